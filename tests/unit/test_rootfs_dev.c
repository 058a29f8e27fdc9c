/* /dev of a sandbox, made both ways in a tmpfs of a mount namespace of its own. */
#include "os/rootfs_dev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "os/sys.h"

static char dir[] = "/tmp/cloche-test-dev-XXXXXX";

static const struct {
        const char *name;
        unsigned major, minor;
} nodes[] = { { "null", 1, 3 },   { "zero", 1, 5 },    { "full", 1, 7 },
              { "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 } };
static const char *const links[][2] = { { "fd", "/proc/self/fd" },
                                        { "stdin", "/proc/self/fd/0" },
                                        { "stdout", "/proc/self/fd/1" },
                                        { "stderr", "/proc/self/fd/2" },
                                        { "ptmx", "pts/ptmx" } };
static const char *const dirs[] = { "shm", "pts" };

static int entries(int fd)
{
        int n = 0;
        DIR *d = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        while (d && readdir(d))
                n++;
        if (d)
                (void)closedir(d);
        return n - 2;
}

static void check_filled(int dev, bool own)
{
        struct stat st;
        char text[64];
        for (size_t i = 0; i < ARRAY_SIZE(nodes); i++) {
                CHECK_INT(fstatat(dev, nodes[i].name, &st, AT_SYMLINK_NOFOLLOW), 0);
                CHECK(S_ISCHR(st.st_mode));
                CHECK(st.st_rdev == makedev(nodes[i].major, nodes[i].minor));
                CHECK_INT(st.st_mode & 0666, 0666); /* the sandbox's user is not their owner */
                if (own)
                        CHECK_INT(st.st_mode & 07777, 0666);
        }
        for (size_t i = 0; i < ARRAY_SIZE(links); i++) {
                memset(text, 0, sizeof text);
                CHECK(readlinkat(dev, links[i][0], text, sizeof text - 1) > 0);
                CHECK_STR(text, links[i][1]);
        }
        for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
                CHECK_INT(fstatat(dev, dirs[i], &st, AT_SYMLINK_NOFOLLOW), 0);
                CHECK(S_ISDIR(st.st_mode));
                CHECK_INT(st.st_mode & 07777, 0755);
        }
        /* And nothing else: no disk, no memory, no kernel log. */
        CHECK_INT(entries(dev), ARRAY_SIZE(nodes) + ARRAY_SIZE(links) + ARRAY_SIZE(dirs));
        _cleanup_close_ int zero = openat(dev, "zero", O_RDWR | O_CLOEXEC);
        CHECK_INT(read(zero, text, sizeof text), sizeof text);
        _cleanup_close_ int full = openat(dev, "full", O_RDWR | O_CLOEXEC);
        CHECK(write(full, "x", 1) < 0 && errno == ENOSPC);
}

/* --- in a child with its own mounts; . is an empty tmpfs --- */

static int make(const char *name)
{
        CHECK_INT(mkdir(name, 0755), 0);
        return open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void own_nodes(void)
{
        _cleanup_close_ int dev = make("own");
        CHECK_INT(rootfs_dev_fill(dev, -1), 0);
        check_filled(dev, true);
        CHECK_INT(rootfs_dev_fill(dev, -1), -EEXIST); /* only an empty one */
        CHECK_INT(rootfs_dev_fill(-1, -1), -EBADF);
}

static void bound_nodes(void)
{
        _cleanup_close_ int dev = make("bound"), host = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct stat there, here;
        CHECK_INT(rootfs_dev_fill(dev, host), 0);
        check_filled(dev, false);
        CHECK(fstatat(host, "null", &there, 0) == 0 && fstatat(dev, "null", &here, 0) == 0);
        CHECK(there.st_dev == here.st_dev && there.st_ino == here.st_ino);
        CHECK(unlinkat(dev, "null", 0) < 0 && errno == EBUSY);
}

/* A host that lacks one: no plain file is left to pass for a device. */
static void bound_from_nothing(void)
{
        _cleanup_close_ int dev = make("poor"), host = make("poor-host");
        CHECK_INT(rootfs_dev_fill(dev, host), -ENOENT);
        CHECK_INT(entries(dev), 0);
        CHECK_INT(mknodat(dev, "null", S_IFREG | 0644, 0), 0);
        CHECK_INT(mknodat(host, "null", S_IFREG | 0644, 0), 0);
        CHECK_INT(rootfs_dev_fill(dev, host), -EEXIST);
}

/* What stands in the way is neither followed nor replaced. */
static void in_the_way(void)
{
        static const char *const names[] = { "null", "tty", "fd", "ptmx", "shm", "pts" };
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                char text[64];
                struct stat st;
                (void)snprintf(text, sizeof text, "way%zu", i);
                _cleanup_close_ int dev = make(text);
                CHECK_INT(symlinkat("../victim", dev, names[i]), 0);
                CHECK_INT(rootfs_dev_fill(dev, -1), -EEXIST);
                CHECK(fstatat(dev, names[i], &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode));
                CHECK(access("victim", F_OK) < 0);
        }
}

static void full_file_system(void)
{
        CHECK_INT(mkdir("small", 0755), 0);
        CHECK_INT(mount("tmpfs", "small", "tmpfs", 0, "nr_inodes=9"), 0);
        _cleanup_close_ int dev = open("small", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CHECK_INT(rootfs_dev_fill(dev, -1), -ENOSPC);
}

static void out_of_descriptors(void)
{
        struct rlimit old, few;
        _cleanup_close_ int dev = make("few"), host = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
        int next = dup(dev);
        (void)close(next);
        CHECK_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
        few = (struct rlimit){ (rlim_t)next + 1, old.rlim_max }; /* the tree fits, the file not */
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        int r = rootfs_dev_fill(dev, host);
        int after = dup(dev);
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
        CHECK_INT(r, -EMFILE);
        CHECK_INT(after, next); /* nothing leaked */
        (void)close(after);
}

/* Last: gives up being root. */
static void without_privilege(void)
{
        _cleanup_close_ int dev = make("user"), host = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
        CHECK_INT(fchown(dev, 65534, 65534), 0);
        CHECK_INT(setresuid(65534, 65534, 65534), 0);
        CHECK_INT(rootfs_dev_fill(dev, -1), -EPERM);
        CHECK_INT(rootfs_dev_fill(dev, host), -EPERM);
        CHECK_INT(entries(dev), 0);
}

static void in_namespace(void (*fn)(void))
{
        int status = -1;
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                (void)sys_close_range(3, ~0u, 0);
                (void)umask(0);
                if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
                    mount("tmpfs", dir, "tmpfs", 0, "mode=0755") < 0 || chdir(dir) < 0)
                        _exit(99);
                fn();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

#define IN_NAMESPACE(fn)                                                    \
        static void test_##fn(void)                                         \
        {                                                                   \
                if (geteuid() != 0)                                         \
                        SKIP("needs root for device nodes and mounts");     \
                in_namespace(fn);                                           \
        }
IN_NAMESPACE(own_nodes)
IN_NAMESPACE(bound_nodes)
IN_NAMESPACE(bound_from_nothing)
IN_NAMESPACE(in_the_way)
IN_NAMESPACE(full_file_system)
IN_NAMESPACE(out_of_descriptors)
IN_NAMESPACE(without_privilege)

int main(void)
{
        if (!mkdtemp(dir))
                return 1;
        RUN(test_own_nodes);
        RUN(test_bound_nodes);
        RUN(test_bound_from_nothing);
        RUN(test_in_the_way);
        RUN(test_full_file_system);
        RUN(test_out_of_descriptors);
        RUN(test_without_privilege);
        (void)rmdir(dir);
        return check_done();
}
