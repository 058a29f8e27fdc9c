/* Removing, copying and cleaning trees; what an ordinary host shows is in test_image.c. */
#include "image/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char top[] = "/tmp/cloche-test-tree-XXXXXX";
static int fd; /* of top */
static struct err e;

static void put(const char *name, const char *text, mode_t mode)
{
        _cleanup_close_ int f = openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        CHECK(f >= 0 && write(f, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(f, mode) == 0);
}

static void make(const char *name, mode_t mode)
{
        CHECK(mkdirat(fd, name, 0700) == 0 && fchmodat(fd, name, mode, 0) == 0);
}

/* Kind and permissions; 0 when there is none. */
static mode_t mode_of(const char *name)
{
        struct stat st;
        return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? 0 : st.st_mode;
}

static const char *get(const char *name)
{
        static char text[256];
        _cleanup_close_ int f = openat(fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        ssize_t n = f < 0 ? -1 : read(f, text, sizeof text - 1);
        text[n > 0 ? n : 0] = '\0';
        return n < 0 ? NULL : text;
}

static const char *path_of(const char *name)
{
        static char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", top, name);
        return path;
}

static int copy(const char *from, const char *to)
{
        e = (struct err){ 0 };
        int r = tree_copy_public(fd, from, fd, to, false, &e);
        CHECK_INT(e.code, r);
        CHECK(r == 0 || strstr(e.msg, from));
        return r;
}

/* Each test begins with an empty top. */
static void begin(void)
{
        (void)close(fd);
        CHECK_INT(tree_remove(AT_FDCWD, top), 0);
        CHECK(mkdir(top, 0755) == 0 && chmod(top, 0755) == 0);
        fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void become_user(void)
{
        CHECK(fchown(fd, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}

/* --- removing --- */

static void remove_as_user(void)
{
        become_user();
        make("t", 0755);
        make("t/closed", 0755);
        put("t/closed/file", "x", 0);
        make("t/closed/sub", 0);
        CHECK_INT(fchmodat(fd, "t/closed", 0, 0), 0);
        make("t/listed", 0755);
        put("t/listed/file", "x", 0644);
        CHECK_INT(fchmodat(fd, "t/listed", 0444, 0), 0);
        CHECK_INT(tree_remove(fd, "t"), 0);
        CHECK(!mode_of("t"));
}

static void test_remove_as_user(void)
{
        if (geteuid() != 0)
                SKIP("needs root to become somebody else");
        begin();
        check_in_child(remove_as_user);
}

/* One that stays does not keep the others. */
static void remove_what_goes(void)
{
        make("t", 0777);
        make("t/kept", 0755);
        put("t/kept/file", "x", 0644);
        CHECK_INT(fchownat(fd, "t", 65534, 65534, 0), 0);
        become_user();
        put("t/a", "x", 0644);
        put("t/z", "x", 0644);
        CHECK_INT(tree_remove(fd, "t"), -EACCES);
        CHECK(!mode_of("t/a") && !mode_of("t/z") && mode_of("t/kept/file"));
}

static void test_remove_what_goes(void)
{
        if (geteuid() != 0)
                SKIP("needs root to become somebody else");
        begin();
        check_in_child(remove_what_goes);
}

static void test_remove_odd(void)
{
        begin();
        make("outside", 0755);
        put("outside/canary", "alive", 0644);
        CHECK_INT(symlinkat("outside", fd, "link"), 0);
        CHECK_INT(tree_remove(fd, "link"), 0);
        CHECK(!mode_of("link"));
        CHECK_STR(get("outside/canary"), "alive");
        CHECK_INT(mkfifoat(fd, "fifo", 0644), 0);
        CHECK_INT(tree_remove(fd, "fifo"), 0);
        CHECK_INT(tree_remove(fd, "no/such"), 0);
        CHECK_INT(tree_remove(fd, "outside/canary/x"), -ENOTDIR);
        CHECK_INT(tree_remove(-1, "x"), -EBADF);
}

static void remove_without_descriptors(void)
{
        char name[128] = "d";
        for (int i = 0; i < 30; i++, strcat(name, "/d"))
                make(name, 0755);
        struct rlimit few = { (rlim_t)fd + 10, 100 };
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        CHECK_INT(tree_remove(fd, "d"), -EMFILE);
        CHECK(tree_strip_devices(fd, &e) == -EMFILE && strstr(e.msg, "Too many open files"));
        few.rlim_cur = 100;
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        CHECK_INT(tree_strip_devices(fd, &e), 0); /* nothing leaked: 60 are enough again */
        CHECK_INT(tree_remove(fd, "d"), 0);
}

static void test_without_descriptors(void)
{
        begin();
        check_in_child(remove_without_descriptors);
}

/* --- copying --- */

static void test_copy_modes(void)
{
        mode_t before = umask(077); /* must not show */
        begin();
        make("src", 02777);
        put("src/plain", "p", 0666);
        put("src/suid", "s", 06755);
        put("src/only-x", "x", 0711);
        if (geteuid() == 0)
                CHECK_INT(fchownat(fd, "src/plain", 1234, 4321, 0), 0);
        CHECK_INT(copy("src", "dst"), 0);
        (void)umask(before);
        CHECK_INT(mode_of("dst"), S_IFDIR | 0755);
        CHECK_INT(mode_of("dst/plain"), S_IFREG | 0644);
        CHECK_INT(mode_of("dst/suid"), S_IFREG | 0755);
        CHECK_INT(mode_of("dst/only-x"), 0);
        struct stat st = { 0 };
        CHECK(fstatat(fd, "dst/plain", &st, 0) == 0 && st.st_uid == geteuid());
}

/* What is there already is neither followed nor written over. */
static void test_copy_onto(void)
{
        begin();
        make("src", 0755);
        put("src/file", "new", 0644);
        put("canary", "alive", 0644);
        CHECK_INT(symlinkat("canary", fd, "planted"), 0);
        CHECK_INT(copy("src/file", "planted"), -EEXIST);
        CHECK_INT(copy("src/file", "canary"), -EEXIST);
        make("outside", 0755);
        CHECK_INT(symlinkat("outside", fd, "dst"), 0);
        CHECK_INT(copy("src", "dst"), -EEXIST);
        CHECK(!mode_of("outside/file"));
        CHECK_STR(get("canary"), "alive");
        CHECK_INT(copy("src", "no/such"), -ENOENT);
        CHECK_INT(copy("canary/x", "y"), -ENOTDIR);
}

static void test_copy_limits(void)
{
        begin();
        char name[64] = "n";
        for (int i = 0; i < 9; i++, strcat(name, "/n"))
                make(name, 0755);
        CHECK_INT(copy("n", "deep"), 0);
        make(name, 0755);
        CHECK_INT(copy("n", "deeper"), -ELOOP);
        make("big", 0755);
        put("big/most", "", 0644);
        put("big/over", "", 0644);
        CHECK_INT(truncate(path_of("big/most"), 32 << 20), 0);
        CHECK_INT(truncate(path_of("big/over"), (32 << 20) + 1), 0);
        CHECK_INT(copy("big", "dst"), 0);
        struct stat st = { 0 };
        CHECK(fstatat(fd, "dst/most", &st, 0) == 0 && st.st_size == 32 << 20);
        CHECK(!mode_of("dst/over"));
}

static void test_copy_links(void)
{
        static const struct {
                const char *name, *target;
                mode_t kind; /* what it becomes, 0: nothing */
                const char *text;
        } rows[] = {
                { "beside", "file", S_IFLNK, NULL },
                { "usr-file", "/usr/bin/env", S_IFLNK, NULL },
                { "usr-by-way", "/usr/../usr/bin/env", S_IFLNK, NULL },
                { "not-usr", "../usr/secretless", S_IFREG, "copied" }, /* top/usr is not /usr */
                { "open.pem", "../open/cert.pem", S_IFREG, "cert" },
                { "closed.pem", "../closed/cert.pem", 0, NULL }, /* readable, behind a closed door */
                { "deeper.pem", "../closed/sub/cert.pem", 0, NULL },
                { "by-name", "../open/server.key", 0, NULL },
                { "by-mode", "../open/hidden", 0, NULL },
                { "fifo", "../open/fifo", 0, NULL },
                { "dir", "../open/", 0, NULL },
                { "loop", "../src/loop", 0, NULL },
        };
        begin();
        make("src", 0755);
        make("usr", 0755);
        make("open", 0755);
        make("closed", 0710);
        make("closed/sub", 0755);
        put("usr/secretless", "copied", 0644);
        put("open/cert.pem", "cert", 0644);
        put("open/server.key", "k", 0644);
        put("open/hidden", "h", 0640);
        put("closed/cert.pem", "secret", 0644);
        put("closed/sub/cert.pem", "secret", 0644);
        CHECK_INT(mkfifoat(fd, "open/fifo", 0666), 0);
        char name[64];
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                (void)snprintf(name, sizeof name, "src/%s", rows[i].name);
                CHECK_INT(symlinkat(rows[i].target, fd, name), 0);
        }
        CHECK_INT(copy("src", "dst"), 0);
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                (void)snprintf(name, sizeof name, "dst/%s", rows[i].name);
                if ((mode_of(name) & S_IFMT) != rows[i].kind)
                        printf("%s: %o\n", name, mode_of(name));
                CHECK_INT(mode_of(name) & S_IFMT, rows[i].kind);
                if (rows[i].text)
                        CHECK_STR(get(name), rows[i].text);
        }
}

/* --- devices --- */

static void test_strip_devices(void)
{
        begin();
        make("t", 0755);
        make("t/sub", 0);
        make("out", 0755);
        if (geteuid() != 0 || mknodat(fd, "t/sub/disk", S_IFBLK | 0600, makedev(7, 99)) < 0 ||
            mknodat(fd, "t/null", S_IFCHR | 0666, makedev(1, 3)) < 0 ||
            mknodat(fd, "out/null", S_IFCHR | 0666, makedev(1, 3)) < 0)
                SKIP("needs the right to make device nodes");
        put("t/file", "kept", 0644);
        CHECK_INT(mkfifoat(fd, "t/fifo", 0644), 0);
        CHECK_INT(symlinkat("/dev/null", fd, "t/link"), 0);
        CHECK_INT(symlinkat("../out", fd, "t/dirlink"), 0);
        _cleanup_close_ int t = openat(fd, "t", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        e = (struct err){ 0 };
        CHECK_INT(tree_strip_devices(t, &e), 0);
        CHECK_STR(e.msg, "");
        CHECK(!mode_of("t/null") && !mode_of("t/sub/disk") && mode_of("t/sub"));
        CHECK(mode_of("t/fifo") && mode_of("t/link") && mode_of("out/null"));
        CHECK_STR(get("t/file"), "kept");
        CHECK_INT(tree_strip_devices(-1, &e), -EBADF);
        CHECK(strstr(e.msg, "cannot look for devices"));
}

int main(void)
{
        if (!mkdtemp(top))
                return 1;
        fd = -1;
        RUN(test_remove_as_user);
        RUN(test_remove_what_goes);
        RUN(test_remove_odd);
        RUN(test_without_descriptors);
        RUN(test_copy_modes);
        RUN(test_copy_onto);
        RUN(test_copy_limits);
        RUN(test_copy_links);
        RUN(test_strip_devices);
        (void)close(fd);
        return tree_remove(AT_FDCWD, top) < 0 ? 1 : check_done();
}
