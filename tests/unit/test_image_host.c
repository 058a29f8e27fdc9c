/* The skeleton against what may stand in its place or in its way; what is in it is checked
 * in test_image.c. */
#include "image/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "image/tree.h"

static char top[] = "/tmp/cloche-test-host-XXXXXX";
static int fd; /* of top */
static struct err e;

static void put(const char *name, const char *text)
{
        _cleanup_close_ int f = openat(fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        CHECK(f >= 0 && write(f, text, strlen(text)) == (ssize_t)strlen(text));
}

static const char *get(const char *name)
{
        static char text[4096];
        _cleanup_close_ int f = openat(fd, name, O_RDONLY | O_CLOEXEC);
        ssize_t n = f < 0 ? -1 : read(f, text, sizeof text - 1);
        text[n > 0 ? n : 0] = '\0';
        return n < 0 ? NULL : text;
}

static struct stat look(const char *name)
{
        struct stat st = { 0 };
        (void)fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW);
        return st;
}

/* How many are in top, and the name of one that was set aside. */
static int entries(char old[256])
{
        int n = 0;
        DIR *d = opendir(top);
        old[0] = '\0';
        for (const struct dirent *de; d && (de = readdir(d));) {
                n += de->d_name[0] != '.' || de->d_name[1] == 'o';
                if (strncmp(de->d_name, ".old-", 5) == 0)
                        (void)snprintf(old, 256, "%s", de->d_name);
        }
        if (d)
                (void)closedir(d);
        return n;
}

static int make(int parent, const char *name)
{
        e = (struct err){ 0 };
        int r = image_make_host_skeleton(parent, name, &e);
        CHECK_INT(e.code, r); /* a failure has its sentence, a success none */
        CHECK((r < 0) == (e.msg[0] != '\0'));
        return r;
}

static void begin(void)
{
        (void)close(fd);
        CHECK_INT(tree_remove(AT_FDCWD, top), 0);
        CHECK(mkdir(top, 0755) == 0 && chmod(top, 0755) == 0);
        fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* A stamp that is not exactly ours vouches for nothing. */
static void test_stamps(void)
{
        char stamp[1024], changed[1100], old[256];
        begin();
        CHECK_INT(make(fd, "host"), 0);
        (void)snprintf(stamp, sizeof stamp, "%s", get("host/etc/cloche-image"));
        CHECK(strstr(stamp, "/usr ") && strstr(stamp, "/etc/ld.so.cache "));
        CHECK_INT(look("host/etc/cloche-image").st_mode & 07777, 0644);
        for (int i = 0; i < 5; i++) {
                (void)snprintf(changed, sizeof changed, "%s%s", stamp, i == 0 ? "x" : "");
                if (i == 1)
                        changed[strlen(changed) - 1] = '\0';
                if (i == 2)
                        changed[0] = '\0';
                if (i == 3)
                        changed[strlen(changed) - 2] ^= 1;
                ino_t before = look("host").st_ino;
                if (i == 4)
                        CHECK_INT(unlinkat(fd, "host/etc/cloche-image", 0), 0);
                else
                        put("host/etc/cloche-image", changed);
                CHECK_INT(make(fd, "host"), 0);
                CHECK(look("host").st_ino != before);
                CHECK_STR(get("host/etc/cloche-image"), stamp);
                (void)entries(old);
                CHECK(look(old).st_ino == before); /* whole, and aside */
                CHECK_INT(tree_remove(fd, old), 0);
        }
}

/* A stamp behind a link is somebody else's. */
static void test_linked_stamp(void)
{
        begin();
        CHECK_INT(make(fd, "host"), 0);
        CHECK_INT(renameat(fd, "host/etc/cloche-image", fd, "stamp"), 0);
        CHECK_INT(symlinkat("../../stamp", fd, "host/etc/cloche-image"), 0);
        ino_t before = look("host").st_ino;
        CHECK_INT(make(fd, "host"), 0);
        CHECK(look("host").st_ino != before && S_ISREG(look("host/etc/cloche-image").st_mode));
}

static void test_in_its_place(void)
{
        char old[256];
        begin();
        put("host", "a file");
        CHECK_INT(make(fd, "host"), 0);
        CHECK(S_ISDIR(look("host").st_mode));
        CHECK_INT(entries(old), 2);
        CHECK_STR(get(old), "a file");

        begin();
        CHECK_INT(mkdirat(fd, "elsewhere", 0755), 0);
        CHECK_INT(symlinkat("elsewhere", fd, "host"), 0);
        CHECK_INT(make(fd, "host"), 0);
        CHECK(S_ISDIR(look("host").st_mode));
        CHECK_INT(entries(old), 3);
        CHECK(S_ISLNK(look(old).st_mode));
        CHECK(unlinkat(fd, "elsewhere", AT_REMOVEDIR) == 0); /* nothing was put into it */
}

static void test_names(void)
{
        char name[300], old[256];
        begin();
        memset(name, 'n', sizeof name - 1);
        name[255] = '\0'; /* fits, but not with what is put around it */
        CHECK_INT(make(fd, name), -ENAMETOOLONG);
        CHECK(strstr(e.msg, "too long"));
        CHECK_INT(make(fd, "no/such"), -ENOENT);
        CHECK_INT(entries(old), 0);
}

static void read_only(void)
{
        char old[256];
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", top, "tmpfs", 0, NULL) < 0 || mount(NULL, top, NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
                _exit(99);
        _cleanup_close_ int ro = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CHECK_INT(make(ro, "host"), -EROFS);
        /* A file system that is full in the middle: nothing half made stays. */
        CHECK_INT(mount(NULL, top, NULL, MS_REMOUNT, "nr_inodes=40"), 0);
        CHECK_INT(make(ro, "host"), -ENOSPC);
        CHECK_INT(entries(old), 0);
        CHECK_INT(mount(NULL, top, NULL, MS_REMOUNT, "nr_inodes=100000,size=16k"), 0);
        CHECK_INT(make(ro, "host"), -ENOSPC);
        CHECK_INT(entries(old), 0);
}

static void test_read_only(void)
{
        begin();
        if (geteuid() != 0)
                SKIP("needs root to mount");
        check_in_child(read_only);
}

static void no_descriptors(void)
{
        struct rlimit few = { (rlim_t)fd + 1, 1000 };
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        CHECK_INT(make(fd, "host"), -EMFILE);
        few.rlim_cur = 1000;
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        CHECK_INT(make(-1, "host"), -EBADF);
        CHECK_INT(make(fd, "host"), 0);
        CHECK_STR(get("host/etc/hostname"), "sandbox\n");
}

static void test_no_descriptors(void)
{
        begin();
        check_in_child(no_descriptors);
}

/* A server without root makes it, too: all of it is its own. */
static void as_user(void)
{
        CHECK(fchown(fd, 65534, 65534) == 0 && setresgid(65534, 65534, 65534) == 0 &&
              setresuid(65534, 65534, 65534) == 0);
        CHECK_INT(make(fd, "host"), 0);
        CHECK_INT(look("host/workspace").st_uid, 65534);
        CHECK_INT(look("host/root").st_mode & 07777, 0700);
        CHECK(strstr(get("host/etc/passwd"), "sandbox:x:1000:1000:"));
        ino_t before = look("host").st_ino;
        CHECK_INT(make(fd, "host"), 0);
        CHECK(look("host").st_ino == before);
}

static void test_as_user(void)
{
        begin();
        if (geteuid() != 0)
                SKIP("needs root to become somebody else");
        check_in_child(as_user);
}

int main(void)
{
        if (!mkdtemp(top))
                return 1;
        fd = -1;
        RUN(test_stamps);
        RUN(test_linked_stamp);
        RUN(test_in_its_place);
        RUN(test_names);
        RUN(test_read_only);
        RUN(test_no_descriptors);
        RUN(test_as_user);
        (void)close(fd);
        return tree_remove(AT_FDCWD, top) < 0 ? 1 : check_done();
}
