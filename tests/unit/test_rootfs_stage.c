#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/rootfs.h"
#include "os/sys.h"
#include "os/userns.h"

static char top[] = "/tmp/cloche-test-stage-XXXXXX";
static char image[64], scratch[64], file[64];
static int user_fd = -1;

/* Every name on the stage, sorted by looking each up. */
static void check_only(const char *path, const char *const *names, unsigned count)
{
        unsigned n = 0;
        DIR *d = opendir(path);
        CHECK(d != NULL);
        for (struct dirent *de; d && (de = readdir(d));) {
                bool known = de->d_name[0] == '.';
                for (unsigned i = 0; i < count && !known; i++)
                        if (strcmp(names[i], de->d_name) == 0) {
                                known = true;
                                n++;
                        }
                if (!known) {
                        printf("%s/%s\n", path, de->d_name);
                        CHECK(!"it belongs there");
                }
        }
        if (d)
                (void)closedir(d);
        CHECK_INT(n, count);
}

static void look_around(void)
{
        static const char *const root[] = { "box", "lower", "new", "empty", "img",
                                            "lower0", "lower1", "lower2", "lower3", "lower4", "lower5", "lower6", "lower7" };
        static const char *const img[] = { "0", "0-0", "1" };
        struct rootfs_image images[2] = { { .root = image, .binds = { "/usr" }, .bind_count = 1 }, { .root = image } };
        struct rootfs_stage s;
        struct err e = { 0 };
        char text[64];
        CHECK_INT(rootfs_stage(&s, images, 2, scratch, true, user_fd, &e), 0);
        CHECK_STR(e.msg, "");
        CHECK(s.image_count == 2 && s.privileged && s.proc_masks != 0);
        CHECK(s.images[0].bind_count == 1 && s.images[1].bind_count == 0);
        CHECK_STR(s.images[0].binds[0], "/usr");
        check_only("/", root, ARRAY_SIZE(root));
        check_only("/img", img, 3);
        CHECK(file_read(AT_FDCWD, "/img/0/etc/hello", text, sizeof text) == 6);
        CHECK(access("/img/0-0/bin", F_OK) == 0);
        /* Nothing of it can be written, and nothing of the host can be reached. */
        CHECK(open("/img/0/etc/new", O_CREAT | O_WRONLY, 0600) < 0 && errno == EROFS);
        CHECK_INT(file_write(AT_FDCWD, "/img/0/etc/hello", "x"), -EROFS);
        CHECK(open("/img/0-0/new", O_CREAT | O_WRONLY, 0600) < 0 && errno == EROFS);
        CHECK(access(top, F_OK) < 0 && access("/etc", F_OK) < 0 && access("/proc", F_OK) < 0);
        CHECK(chdir("..") == 0 && access("img", F_OK) == 0);
        CHECK(s.own_dev); /* nodes are made in each sandbox */
}

static void test_stage(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        check_in_child(look_around);
        struct stat st;
        CHECK(stat(scratch, &st) == 0); /* the host sees nothing of it */
        char path[128];
        (void)snprintf(path, sizeof path, "%s/img", scratch);
        CHECK(access(path, F_OK) < 0);
}

static void fail_to_stage(void)
{
        struct rootfs_stage s = { .image_count = 77 };
        struct err e = { 0 };
        struct rootfs_image many[ROOTFS_MAX_IMAGES + 1] = { { .root = image } };
        CHECK_INT(rootfs_stage(&s, many, 0, scratch, true, -1, &e), -E2BIG);
        CHECK_INT(rootfs_stage(&s, many, ROOTFS_MAX_IMAGES + 1, scratch, true, -1, &e), -E2BIG);
        struct rootfs_image missing = { .root = "/nonexistent/image" };
        CHECK_INT(rootfs_stage(&s, &missing, 1, scratch, true, -1, &e), -ENOENT);
        CHECK(strstr(e.msg, "/nonexistent/image") != NULL);
        struct rootfs_image no_dir = { .root = file };
        CHECK_INT(rootfs_stage(&s, &no_dir, 1, scratch, true, -1, &e), -ENOTDIR);
        struct rootfs_image bad_bind = { .root = image, .binds = { "/nonexistent" }, .bind_count = 1 };
        CHECK_INT(rootfs_stage(&s, &bad_bind, 1, scratch, true, -1, &e), -ENOENT);
        struct rootfs_image fine = { .root = image };
        CHECK_INT(rootfs_stage(&s, &fine, 1, "/nonexistent/scratch", true, -1, &e), -ENOENT);
        CHECK_INT(s.image_count, 77); /* set on success only */
}

static void test_failures(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        check_in_child(fail_to_stage);
}

/* Without root devices are the host's, bound. */
static void stage_without_root(void)
{
        struct rootfs_image images = { .root = image };
        struct rootfs_stage s;
        struct err e = { 0 };
        struct stat st;
        if (setresgid(4321, 4321, 4321) < 0 || setresuid(4321, 4321, 4321) < 0)
                _exit(3);
        if (userns_enter_own(&e) < 0)
                _exit(0); /* this host forbids it; `cloche check` tells */
        CHECK_INT(rootfs_stage(&s, &images, 1, scratch, false, -1, &e), 0);
        CHECK_STR(e.msg, "");
        CHECK(!s.images[0].idmap);
        CHECK(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
        CHECK(access("/etc", F_OK) < 0);
}

static void test_without_root(void)
{
        if (geteuid() != 0)
                SKIP("needs root to become another user");
        check_in_child(stage_without_root);
}

int main(void)
{
        char path[128];
        int net = -1;
        struct ns_map map = { 0, 0x38000000u, 65536 };
        if (!mkdtemp(top))
                return 1;
        (void)chmod(top, 0755);
        (void)snprintf(image, sizeof image, "%s/image", top);
        (void)snprintf(scratch, sizeof scratch, "%s/scratch", top);
        (void)snprintf(file, sizeof file, "%s/file", top);
        (void)snprintf(path, sizeof path, "%s/etc", image);
        if (mkdir(image, 0755) < 0 || mkdir(scratch, 0755) < 0 || mkdir(path, 0755) < 0)
                return 1;
        (void)close(open(file, O_CREAT | O_WRONLY, 0644));
        (void)snprintf(path, sizeof path, "%s/etc/hello", image);
        int fd = open(path, O_CREAT | O_WRONLY, 0644);
        CHECK(write(fd, "hello\n", 6) == 6);
        (void)close(fd);
        int proc = open("/proc", O_RDONLY | O_DIRECTORY);
        if (geteuid() == 0)
                (void)userns_make_pair(proc, &map, &user_fd, &net, NULL);
        RUN(test_stage);
        RUN(test_failures);
        RUN(test_without_root);
        (void)snprintf(path, sizeof path, "rm -rf '%s'", top);
        return system(path) == 0 ? check_done() : 1;
}
