/* A sandbox's root file system as its first process sees it: stage in a child, birth in
 * that child's child, as the keeper does it. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/clone.h"
#include "os/rootfs.h"
#include "os/sys.h"
#include "os/userns.h"

#define BASE 0x38000000u
#define STORAGE (1u << 20)
#define INODES 200

static char top[] = "/tmp/cloche-test-birth-XXXXXX";
static char image[64], scratch[64];
static int user_fd = -1;
static struct rootfs_stage stage;
static struct rootfs_plan plan = { .base_uid = BASE, .user_uid = BASE + 1000, .storage = STORAGE, .inodes = INODES,
                                   .cpus = 3 };

static void put(const char *name, const char *text)
{
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", image, name);
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
}

static void put_dir(const char *name)
{
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", image, name);
        CHECK_INT(mkdir(path, 0755), 0);
}

/* fn runs as pid 1 of a sandbox that was just built (r: what rootfs_birth said). */
static void in_sandbox(const struct rootfs_image *img, void (*fn)(int r, int info, const struct err *e))
{
        int status = -1;
        struct err e = { 0 };
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                if (rootfs_stage(&stage, img, 1, scratch, true, user_fd, &e) < 0) {
                        printf("%s\n", e.msg);
                        (void)fflush(stdout);
                        _exit(99);
                }
                pid_t child = clone_fork(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC, -1, NULL);
                if (child == 0) {
                        int info = -1;
                        (void)umask(0);
                        plan.userns_fd = user_fd;
                        int r = rootfs_birth(&stage, &plan, &info, &e);
                        fn(r, info, &e);
                        (void)fflush(stdout);
                        _exit(check_failures ? 1 : 0);
                }
                if (child < 0 || waitpid(child, &status, 0) != child)
                        _exit(98);
                _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 97);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

static void check_owner(const char *path, uid_t uid, unsigned mode)
{
        struct stat st = { 0 };
        int r = lstat(path, &st);
        if (r < 0 || st.st_uid != uid || (mode && (st.st_mode & 07777) != mode)) {
                printf("%s: %s, uid %x, mode %o\n", path, r < 0 ? strerror(errno) : "", st.st_uid, st.st_mode);
                CHECK(!"owner and mode are right");
        }
}

static void look_around(int r, int info, const struct err *e)
{
        char text[256];
        CHECK_INT(r, 0);
        CHECK_STR(e->msg, "");
        CHECK(file_read(AT_FDCWD, "/etc/hello", text, sizeof text) == 6);
        CHECK(access("/usr/bin", F_OK) == 0);
        CHECK(access("/img", F_OK) < 0 && access("/box", F_OK) < 0 && access("/lower", F_OK) < 0 && access(top, F_OK) < 0);
        CHECK(chdir("/") == 0 && chdir("../../..") == 0 && access("img", F_OK) < 0 && access("workspace", F_OK) == 0);
        if (stage.images[0].idmap)
                check_owner("/etc/hello", BASE, 0644); /* the image's root is the sandbox's root */
        check_owner("/", BASE, 0);
        check_owner("/workspace", BASE + 1000, 0755);
        /* proc */
        ssize_t n = readlink("/proc/self", text, sizeof text - 1);
        CHECK(n == 1 && text[0] == '1');
        CHECK_INT(file_write(AT_FDCWD, "/proc/sys/kernel/hostname", "x"), -EROFS);
        CHECK_INT(file_read(AT_FDCWD, "/proc/meminfo", text, sizeof text), 0);
        CHECK_INT(file_write(info, "meminfo", "MemTotal: 1 kB\n"), 0);
        CHECK_INT(file_read(AT_FDCWD, "/proc/meminfo", text, sizeof text), 15); /* the same file */
        CHECK(file_read(AT_FDCWD, "/proc/cmdline", text, sizeof text) == 0);
        /* processors */
        CHECK(file_read(AT_FDCWD, "/sys/devices/system/cpu/online", text, sizeof text) > 0);
        CHECK_STR(text, "0-2\n");
        CHECK(access("/sys/kernel", F_OK) < 0);
}

static void look_at_dev(int r, int info, const struct err *e)
{
        (void)info;
        (void)e;
        char text[16];
        CHECK_INT(r, 0);
        CHECK_INT(file_write(AT_FDCWD, "/dev/null", "x"), 0);
        CHECK_INT(file_read(AT_FDCWD, "/dev/zero", text, sizeof text), 15);
        struct stat st;
        CHECK(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode) && (st.st_mode & 0777) == 0666);
        CHECK(readlink("/dev/ptmx", text, sizeof text) == 8 && memcmp(text, "pts/ptmx", 8) == 0);
        CHECK(access("/dev/mem", F_OK) < 0 && access("/dev/kmsg", F_OK) < 0 && access("/dev/vda", F_OK) < 0);
        CHECK(open("/dev/evil", O_CREAT | O_WRONLY, 0600) < 0 && errno == EROFS);
        CHECK(unlink("/dev/null") < 0 && errno == EROFS);
        int fd = open("/dev/shm/x", O_CREAT | O_RDWR, 0600);
        CHECK(fd >= 0);
        check_owner("/dev/shm", 0, 01777);
        CHECK(open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0);
        /* a device node on the sandbox's own file system opens nothing */
        CHECK(mknod("/workspace/null", S_IFCHR | 0666, 0x103) == 0);
        CHECK(open("/workspace/null", O_WRONLY) < 0 && errno == EACCES);
}

static void test_view(void)
{
        struct rootfs_image img = { .root = image, .binds = { "/usr" }, .bind_count = 1 };
        if (geteuid() != 0)
                SKIP("needs root");
        in_sandbox(&img, look_around);
        in_sandbox(&img, look_at_dev);
}

/* One bound for all that can be written: /workspace, the rest of /, /dev/shm. */
static void fill_up(int r, int info, const struct err *e)
{
        static char block[65536];
        (void)info;
        (void)e;
        CHECK_INT(r, 0);
        int a = open("/workspace/a", O_CREAT | O_WRONLY, 0600), b = open("/etc/b", O_CREAT | O_WRONLY, 0600),
            c = open("/dev/shm/c", O_CREAT | O_WRONLY, 0600);
        CHECK(a >= 0 && b >= 0 && c >= 0);
        size_t total = 0;
        for (int fd = a; fd >= 0; fd = fd == a ? b : fd == b ? c : -1)
                for (ssize_t n; (n = write(fd, block, fd == a ? 4096 * 100 / 50 : sizeof block)) > 0;) {
                        total += (size_t)n;
                        if (fd == a && total >= STORAGE / 3)
                                break;
                        if (total > 2 * STORAGE)
                                break;
                }
        CHECK(total > STORAGE / 2 && total <= STORAGE);
        CHECK(write(c, block, 4096) < 0 && errno == ENOSPC);
        CHECK(unlink("/workspace/a") == 0 && close(a) == 0);
        unsigned files = 0;
        char path[64];
        for (; files < 2 * INODES; files++) {
                (void)snprintf(path, sizeof path, "/workspace/f%u", files);
                int fd = open(path, O_CREAT | O_WRONLY, 0600);
                if (fd < 0)
                        break;
                (void)close(fd);
        }
        CHECK(files > INODES / 2 && files < INODES);
        CHECK_INT(errno, ENOSPC);
        CHECK(unlink("/etc/hello") == 0 || errno == ENOSPC); /* a white-out costs an inode, too */
}

static void test_one_bound(void)
{
        struct rootfs_image img = { .root = image, .binds = { "/usr" }, .bind_count = 1 };
        char path[128];
        if (geteuid() != 0)
                SKIP("needs root");
        in_sandbox(&img, fill_up);
        /* The image is as it was. */
        (void)snprintf(path, sizeof path, "%s/etc/hello", image);
        CHECK(access(path, F_OK) == 0);
        (void)snprintf(path, sizeof path, "%s/etc/b", image);
        CHECK(access(path, F_OK) < 0);
}

static void tmp_is_usable(int r, int info, const struct err *e)
{
        (void)info;
        (void)e;
        CHECK_INT(r, 0);
        check_owner("/tmp", BASE, 01777);
}

/* An image without /tmp gets one that its users can write to. */
static void test_bug_tmp_is_not_writable(void)
{
        struct rootfs_image img = { .root = image };
        if (geteuid() != 0)
                SKIP("needs root");
        in_sandbox(&img, tmp_is_usable);
}

static void expect_not_directory(int r, int info, const struct err *e)
{
        CHECK_INT(r, -ENOTDIR);
        CHECK(strstr(e->msg, "/proc is not a directory") != NULL);
        CHECK_INT(info, -1);
}

static void expect_loop(int r, int info, const struct err *e)
{
        CHECK_INT(r, -ELOOP);
        CHECK(strstr(e->msg, "cannot show /usr") != NULL);
        CHECK_INT(info, -1);
}

static void expect_missing(int r, int info, const struct err *e)
{
        CHECK_INT(r, -ENOENT);
        CHECK(strstr(e->msg, "cannot show /usr") != NULL);
        CHECK_INT(info, -1);
}

/* Images set as traps: a symlink must not choose where we mount. */
static void test_hostile_images(void)
{
        char saved[64], trap[64], path[128];
        if (geteuid() != 0)
                SKIP("needs root");
        memcpy(saved, image, sizeof saved);
        (void)snprintf(trap, sizeof trap, "%s/trap", top);
        CHECK_INT(mkdir(trap, 0755), 0);
        memcpy(image, trap, sizeof trap);
        struct rootfs_image with = { .root = trap, .binds = { "/usr" }, .bind_count = 1 }, without = { .root = trap };
        (void)snprintf(path, sizeof path, "%s/proc", trap);
        CHECK_INT(symlink("/box", path), 0);
        in_sandbox(&without, expect_not_directory);
        (void)unlink(path);
        in_sandbox(&with, expect_missing);
        (void)snprintf(path, sizeof path, "%s/usr", trap);
        CHECK_INT(symlink("/box", path), 0);
        in_sandbox(&with, expect_loop);
        memcpy(image, saved, sizeof saved);
}

int main(void)
{
        char path[128];
        int net = -1;
        struct ns_map map = { 0, BASE, 65536 };
        if (!mkdtemp(top))
                return 1;
        (void)chmod(top, 0755);
        (void)snprintf(image, sizeof image, "%s/image", top);
        (void)snprintf(scratch, sizeof scratch, "%s/scratch", top);
        if (mkdir(image, 0755) < 0 || mkdir(scratch, 0755) < 0)
                return 1;
        put_dir("etc");
        put_dir("usr");
        put("etc/hello", "hello\n");
        int proc = open("/proc", O_RDONLY | O_DIRECTORY);
        if (geteuid() == 0)
                (void)userns_make_pair(proc, &map, &user_fd, &net, NULL);
        RUN(test_view);
        RUN(test_one_bound);
        RUN(test_bug_tmp_is_not_writable);
        RUN(test_hostile_images);
        (void)snprintf(path, sizeof path, "rm -rf '%s'", top);
        return system(path) == 0 ? check_done() : 1;
}
