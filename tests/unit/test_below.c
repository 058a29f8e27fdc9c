/* Names and paths of strangers, over a tree with something to reach just outside of it. */
#include "agent/below.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "check.h"

static char top[] = "/tmp/cloche-test-below-XXXXXX";
static int top_fd, base; /* base is top/base; top/outside is not below it */

/* --- names --- */

static void test_clean(void)
{
        static const struct {
                const char *name, *clean; /* NULL: refused */
        } rows[] = {
                { "a", "a" }, { "/a", "a" }, { "//a///b//", "a/b" }, { "./a/./b/.", "a/b" }, { "", "" },
                { "/", "" }, { ".", "" }, { "././/", "" }, { "...", "..." }, { "..a/b..", "..a/b.." },
                { ".hidden/..x", ".hidden/..x" }, { "new\nline/\xff", "new\nline/\xff" },
                { "back\\..\\slash", "back\\..\\slash" }, { "..", NULL }, { "../a", NULL }, { "/..", NULL },
                { "a/..", NULL }, { "a/../b", NULL }, { "a//..//b", NULL },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                char out[LIMIT_PATH_BYTES];
                const char *why = below_clean(rows[i].name, out);
                if (rows[i].clean) {
                        CHECK(!why);
                        CHECK_STR(out, rows[i].clean);
                } else
                        CHECK_STR(why, "\"..\" in its name");
        }
}

/* n bytes, with a slash after every 200. */
static char *long_name(size_t n)
{
        char *s = malloc(n + 1); /* exact: a read past the NUL shows under ASan */
        for (size_t i = 0; i < n; i++)
                s[i] = i % 201 == 200 ? '/' : 'x';
        s[n] = '\0';
        return s;
}

static void test_clean_lengths(void)
{
        char *out = malloc(LIMIT_PATH_BYTES); /* as above, for writes */
        for (size_t n = LIMIT_PATH_BYTES - 3; n < LIMIT_PATH_BYTES + 3; n++) {
                _cleanup_free_ char *name = long_name(n);
                const char *why = below_clean(name, out);
                if (n < LIMIT_PATH_BYTES) {
                        CHECK(!why);
                        CHECK_STR(out, name);
                } else
                        CHECK_STR(why, "name too long");
        }
        _cleanup_free_ char *slashes = malloc(LIMIT_PATH_BYTES + 2);
        memset(slashes, '/', LIMIT_PATH_BYTES + 1);
        slashes[LIMIT_PATH_BYTES + 1] = '\0';
        CHECK_STR(below_clean(slashes, out), "name too long"); /* however little would be left */
        CHECK(!below_clean(slashes + 1, out));
        CHECK_STR(out, "");

        char part[262] = "d/";
        memset(part + 2, 'p', 255);
        CHECK(!below_clean(part, out));
        CHECK_STR(out, part);
        part[257] = 'p';
        CHECK_STR(below_clean(part, out), "a part of its name is over 255 bytes");
        part[258] = '/';
        CHECK_STR(below_clean(part, out), "a part of its name is over 255 bytes");
        free(out);
}

static void test_target(void)
{
        static const struct {
                const char *path, *target;
                bool below;
        } rows[] = {
                { "l", "a", true }, { "l", ".", true }, { "l", "a/..", true }, { "l", "a/b/../../c", true },
                { "l", "...", true }, { "l", "..", false }, { "l", "../a", false }, { "l", "./..", false },
                { "l", "a/../..", false }, { "l", "a/../../base/a", false }, { "l", "//a", false },
                { "l", "/", false }, { "d/l", "..", true }, { "d/l", "../", true },
                { "d/l", "../..", false }, { "d/l", "..//..", false }, { "d/e/l", "../../a", true },
                { "d/e/l", "../../../a", false }, { "d/e/l", "../x/../../../a", false },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
                if (below_target(rows[i].path, rows[i].target) != rows[i].below) {
                        printf("%s -> %s\n", rows[i].path, rows[i].target);
                        CHECK(!"it is told right");
                }
}

/* --- paths --- */

static bool same(int fd, const char *path)
{
        struct stat a = { 0 }, b = { 0 };
        return fd >= 0 && fstat(fd, &a) == 0 && fstatat(top_fd, path, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
               a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool there(const char *path)
{
        return faccessat(top_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static int make(const char *path, uint64_t resolve)
{
        char copy[LIMIT_PATH_BYTES];
        (void)snprintf(copy, sizeof copy, "%s", path);
        int fd = below_make(base, copy, resolve);
        CHECK_STR(copy, path); /* restored, also after a failure */
        return fd;
}

static void test_open(void)
{
        static const struct {
                const char *path, *dest, *root; /* reached by each rule; NULL: not */
        } rows[] = {
                { "dir", "base/dir", "base/dir" },
                { "in", "base/dir", "base/dir" },
                { "dir/up", "base", "base" },
                { "dir/..", "base", "base" },
                { "..", NULL, "base" },
                { "/dir", NULL, "base/dir" },
                { "abs", NULL, "base/dir" }, /* "/dir" is the sandbox's */
                { "out", NULL, NULL },       /* "../outside" is base/outside: none */
                { "over", NULL, "base/dir" },
                { "loop", NULL, NULL },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
                for (int rule = 0; rule < 2; rule++) {
                        const char *wanted = rule ? rows[i].root : rows[i].dest;
                        _cleanup_close_ int fd =
                                below_open(base, rows[i].path, BELOW_DIR, rule ? BELOW_ROOT : BELOW_DEST);
                        if (wanted ? !same(fd, wanted) : fd >= 0) {
                                printf("%s by rule %d\n", rows[i].path, rule);
                                CHECK(!"it leads where it should");
                        }
                }
        CHECK_INT(below_open(base, "..", BELOW_DIR, BELOW_DEST), -EXDEV);
        CHECK_INT(below_open(base, "loop", BELOW_DIR, BELOW_DEST), -ELOOP);
        CHECK_INT(below_open(base, "file", BELOW_DIR, BELOW_DEST), -ENOTDIR);
        CHECK_INT(below_open(base, "none", BELOW_DIR, BELOW_DEST), -ENOENT);
        CHECK_INT(below_open(-1, "dir", BELOW_DIR, BELOW_DEST), -EBADF);
}

/* /proc/self/root and cwd are doors that no ".." goes through. */
static void test_magic_links(void)
{
        _cleanup_close_ int proc = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (proc < 0)
                SKIP("no /proc");
        CHECK_INT(below_open(proc, "root", BELOW_DIR, BELOW_DEST), -ELOOP);
        CHECK_INT(below_open(proc, "root/tmp", BELOW_DIR, BELOW_ROOT), -ELOOP);
        char path[] = "cwd/x";
        CHECK_INT(below_make(proc, path, BELOW_ROOT), -ELOOP);
        CHECK_STR(path, "cwd/x");
}

static void test_make(void)
{
        struct stat st;
        mode_t before = umask(022);
        int fd = make("new/a//b/./c/", BELOW_DEST);
        CHECK(same(fd, "base/new/a/b/c"));
        CHECK(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0755);
        CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        (void)close(fd);
        (void)umask(before);
        static const struct {
                const char *path, *made;
                uint64_t rule;
        } rows[] = {
                { "new/a", "base/new/a", BELOW_DEST }, /* is there already */
                { "", "base", BELOW_DEST },
                { "in/made", "base/dir/made", BELOW_DEST }, /* through a link that stays */
                { "/abs/more", "base/dir/more", BELOW_ROOT },
                { "/../../top/../beside", "base/beside", BELOW_ROOT }, /* .. at the top stays there */
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_close_ int got = make(rows[i].path, rows[i].rule);
                CHECK(same(got, rows[i].made));
        }
        CHECK(there("base/top"));
}

static void test_make_refused(void)
{
        char part[300] = "deep/";
        CHECK_INT(make("out/x", BELOW_DEST), -EXDEV);
        CHECK_INT(make("dir/../../x", BELOW_DEST), -EXDEV);
        CHECK_INT(make("abs/x", BELOW_DEST), -EXDEV);
        CHECK_INT(make("over/x", BELOW_DEST), -EXDEV);
        CHECK_INT(make("loop/x", BELOW_DEST), -ELOOP);
        CHECK_INT(make("file/x", BELOW_DEST), -ENOTDIR);
        CHECK_INT(make("file", BELOW_ROOT), -ENOTDIR);
        CHECK_INT(make("dangling/x", BELOW_DEST), -ENOENT); /* its target is not made */
        CHECK(!there("base/nothing") && !there("outside/x") && !there("x"));
        memset(part + 5, 'n', 256);
        CHECK_INT(make(part, BELOW_DEST), -ENAMETOOLONG);
        CHECK(there("base/deep"));
}

/* Many parts hold one descriptor at a time, and none is left when there is no more. */
static void test_descriptors(void)
{
        struct rlimit old, few;
        char deep[LIMIT_PATH_BYTES] = "many";
        for (int i = 0; i < 60; i++)
                strcat(deep, "/d");
        CHECK_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
        int next = dup(base);
        (void)close(next);
        few = (struct rlimit){ (rlim_t)next + 2, old.rlim_max };
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        int fd = make(deep, BELOW_DEST);
        CHECK(fd >= 0);
        (void)close(fd);
        few.rlim_cur = (rlim_t)next + 1; /* room for one: the second part fails */
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
        CHECK_INT(make("one/two/three", BELOW_DEST), -EMFILE);
        fd = make("one", BELOW_DEST);
        CHECK_INT(fd, next); /* nothing leaked */
        (void)close(fd);
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
        CHECK(there("base/one/two") && !there("base/one/two/three"));
}

int main(void)
{
        static const char *const links[][2] = { { "dir", "in" },          { "..", "dir/up" },   { "/dir", "abs" },
                                                { "../outside", "out" },  { "loop", "loop" },   { "nothing", "dangling" },
                                                { "../../../dir", "over" } };
        (void)sys_close_range(3, ~0u, 0); /* what is open is counted */
        if (!mkdtemp(top))
                return 1;
        top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (mkdirat(top_fd, "base", 0755) < 0 || mkdirat(top_fd, "base/dir", 0755) < 0 ||
            mkdirat(top_fd, "outside", 0755) < 0 || mknodat(top_fd, "base/file", S_IFREG | 0644, 0) < 0)
                return 1;
        base = openat(top_fd, "base", O_PATH | O_DIRECTORY | O_CLOEXEC);
        for (size_t i = 0; i < ARRAY_SIZE(links); i++)
                if (symlinkat(links[i][0], base, links[i][1]) < 0)
                        return 1;
        RUN(test_clean);
        RUN(test_clean_lengths);
        RUN(test_target);
        RUN(test_open);
        RUN(test_magic_links);
        RUN(test_make);
        RUN(test_make_refused);
        RUN(test_descriptors);
        char cmd[100];
        (void)snprintf(cmd, sizeof cmd, "rm -rf %s", top);
        (void)!system(cmd);
        return check_done();
}
