/* Trees of all kinds, packed by tar_run and read back by a small tar reader of our own
 * and by untar_run. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/archive.h"
#include "agent/gzip.h"
#include "check.h"
#include "wire/frame.h"

#define MEMBERS 600

static char root[64];

static struct {
        char name[70000], link[5000];
        char type;
        unsigned mode;
        uint64_t size, mtime;
        bool pax, binary;
        const char *data;
} *got;
static int got_n;

static struct {
        bool data_before_fail;
        enum frame_type type;
        uint64_t count, skipped, code, blame, bytes;
        char message[512], skips[4096];
        int exit;
        size_t biggest;
} ans;

static struct buf tar;
static uid_t child_uid;
static uint64_t stop_after; /* bytes of archive, then the reader hangs up */

/* --- reading back ----------------------------------------------------------------- */

static uint64_t number(const char *p, size_t n)
{
        uint64_t v = 0;
        for (size_t i = 0; i < n && p[i] >= '0' && p[i] <= '7'; i++)
                v = v * 8 + (uint64_t)(p[i] - '0');
        return v;
}

static bool sum_holds(const char *h)
{
        unsigned n = 0;
        for (int i = 0; i < 512; i++)
                n += i >= 148 && i < 156 ? ' ' : (unsigned char)h[i];
        return n == number(h + 148, 8);
}

/* Takes one extended header apart into the member that follows. */
static void read_pax(const char *p, size_t n, int m, uint64_t *size)
{
        got[m].pax = true;
        while (n) {
                char *end;
                size_t len = strtoul(p, &end, 10);
                CHECK(len > 5 && len <= n && *end == ' ' && p[len - 1] == '\n');
                if (len <= 5 || len > n)
                        return;
                const char *eq = memchr(end, '=', (size_t)(p + len - end));
                int vlen = (int)(p + len - 1 - (eq + 1));
                if (strncmp(end, " path=", 6) == 0)
                        snprintf(got[m].name, sizeof got[m].name, "%.*s", vlen, eq + 1);
                else if (strncmp(end, " linkpath=", 10) == 0)
                        snprintf(got[m].link, sizeof got[m].link, "%.*s", vlen, eq + 1);
                else if (strncmp(end, " size=", 6) == 0)
                        *size = strtoull(eq + 1, NULL, 10);
                else if (strncmp(end, " hdrcharset=BINARY", 18) == 0)
                        got[m].binary = true;
                else
                        CHECK(false);
                p += len;
                n -= len;
        }
}

static void read_tar(void)
{
        size_t at = 0;
        uint64_t pax_size = UINT64_MAX;
        got_n = 0;
        memset(got, 0, MEMBERS * sizeof *got);
        while (at + 512 <= tar.len && tar.data[at] && got_n < MEMBERS) {
                const char *h = tar.data + at;
                uint64_t size = number(h + 124, 12);
                CHECK(sum_holds(h));
                CHECK(memcmp(h + 257, "ustar\00000", 8) == 0);
                CHECK(number(h + 108, 8) == 0 && number(h + 116, 8) == 0); /* uid, gid */
                CHECK(h[265] == 0 && h[297] == 0);                         /* uname, gname */
                at += 512;
                if (h[156] == 'x') {
                        read_pax(tar.data + at, size, got_n, &pax_size);
                        at += (size + 511) & ~511ull;
                        continue;
                }
                if (pax_size != UINT64_MAX)
                        size = pax_size;
                pax_size = UINT64_MAX;
                if (!got[got_n].name[0])
                        memcpy(got[got_n].name, h, strnlen(h, 100));
                if (!got[got_n].link[0])
                        memcpy(got[got_n].link, h + 157, strnlen(h + 157, 100));
                got[got_n].type = h[156];
                got[got_n].mode = (unsigned)number(h + 100, 8);
                got[got_n].mtime = number(h + 136, 12);
                got[got_n].size = size;
                got[got_n++].data = tar.data + at;
                at += (size + 511) & ~511ull;
        }
        static const char zeros[1024]; /* close it */
        if (ans.type == FRAME_END && got_n < MEMBERS)
                CHECK(at + 1024 == tar.len && memcmp(tar.data + at, zeros, 1024) == 0);
}

static int find(const char *name)
{
        for (int i = 0; i < got_n; i++)
                if (strcmp(got[i].name, name) == 0)
                        return i;
        return -1;
}

static bool has(const char *name, char type, const char *data)
{
        int i = find(name);
        return i >= 0 && got[i].type == type && got[i].size == strlen(data) &&
               memcmp(got[i].data, data, strlen(data)) == 0;
}

/* --- running ---------------------------------------------------------------------- */

static void take_answer(struct frame f)
{
        enum field tag;
        struct str v;
        ans.data_before_fail = ans.bytes > 0;
        ans.type = f.type;
        while (field_next(&f.payload, &tag, &v) > 0) {
                uint64_t n = 0;
                (void)field_u64(v, &n);
                if (tag == FIELD_COUNT)
                        ans.count = n;
                if (tag == FIELD_SKIPPED_COUNT)
                        ans.skipped = n;
                if (tag == FIELD_CODE)
                        ans.code = n;
                if (tag == FIELD_BLAME)
                        ans.blame = n;
                if (tag == FIELD_MESSAGE)
                        snprintf(ans.message, sizeof ans.message, "%.*s", (int)v.n, v.p);
                size_t at = strlen(ans.skips);
                if (tag == FIELD_SKIPPED)
                        snprintf(ans.skips + at, sizeof ans.skips - at, "%.*s\n", (int)v.n, v.p);
        }
}

static void inflate_into(struct inflater *z, struct str p, bool keep)
{
        char room[65536];
        int n;
        while ((n = inflater_run(z, &p.p, &p.n, room, sizeof room)) > 0) {
                ans.bytes += (uint64_t)n;
                if (keep)
                        buf_add(&tar, room, (size_t)n);
        }
        CHECK_INT(n, 0);
}

static void pack_as(const char *src, bool keep)
{
        int sv[2], status;
        _cleanup_inflater_ struct inflater *z = inflater_new();
        memset(&ans, 0, sizeof ans);
        buf_free(&tar);
        (void)fflush(NULL);
        CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
        pid_t pid = fork();
        if (pid == 0) {
                int fd = open(root, O_PATH | O_DIRECTORY);
                (void)close(sv[0]);
                (void)alarm(60); /* nothing here may block */
                if (child_uid && setresuid(child_uid, child_uid, child_uid) < 0)
                        _exit(99);
                int r = tar_run(fd, sv[1], src);
                free(got);
                inflater_freep(&z);
                exit(r);
        }
        (void)close(sv[1]);
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        while ((!stop_after || ans.bytes < stop_after) && frame_read(sv[0], &b, &f) > 0) {
                if (f.type == FRAME_DATA) {
                        ans.biggest = f.payload.n > ans.biggest ? f.payload.n : ans.biggest;
                        inflate_into(z, f.payload, keep);
                } else
                        take_answer(f);
        }
        (void)close(sv[0]);
        (void)waitpid(pid, &status, 0);
        ans.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        CHECK_INT(ans.exit, ans.type != FRAME_END);
        CHECK(ans.biggest <= FRAME_DATA_BYTES);
        CHECK(ans.type != FRAME_END || inflater_at_end(z));
        if (keep)
                read_tar();
        stop_after = 0;
}

static void pack(const char *src)
{
        pack_as(src, true);
}

static const char *path_of(const char *rel)
{
        static char p[8][8192];
        static int i;
        i = (i + 1) % 8;
        snprintf(p[i], sizeof p[i], "%s/%s", root, rel);
        return p[i];
}

static void put(const char *rel, const char *text)
{
        int fd = open(path_of(rel), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
}

static void begin(void)
{
        char cmd[200];
        snprintf(cmd, sizeof cmd, "chmod -R u+rwX %s; rm -rf %s/*", root, root);
        CHECK_INT(system(cmd), 0);
        CHECK_INT(mkdir(path_of("src"), 0755), 0);
        put("secret", "not yours");
}

/* --- tests ------------------------------------------------------------------------ */

static void ordinary(void)
{
        begin();
        CHECK_INT(mkdir(path_of("src/sub"), 0755), 0);
        CHECK_INT(mkdir(path_of("src/empty"), 0750), 0);
        put("src/a", "one");
        put("src/sub/b", "two");
        put("src/none", "");
        CHECK_INT(chmod(path_of("src/a"), 06711), 0);
        struct timespec t[2] = { { .tv_sec = 77 }, { .tv_sec = 1234567890 } };
        CHECK_INT(utimensat(AT_FDCWD, path_of("src/a"), t, 0), 0);
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(ans.count, 4);
        CHECK_INT(ans.skipped, 0);
        CHECK_INT(got_n, 4);
        CHECK(has("a", '0', "one") && has("sub/b", '0', "two") && has("none", '0', ""));
        CHECK(has("empty/", '5', ""));
        CHECK_INT(got[find("a")].mode, 0711);
        CHECK_INT(got[find("a")].mtime, 1234567890);
        CHECK_INT(got[find("empty/")].mode, 0750);
        CHECK(!got[find("a")].pax);
}

static void one_file(void)
{
        begin();
        put("src/file.txt", "x");
        pack("/src/file.txt");
        CHECK_INT(got_n, 1);
        CHECK(has("file.txt", '0', "x"));
        pack("//src/../src/./file.txt");
        CHECK(has("file.txt", '0', "x"));
}

static void empty_dir(void)
{
        begin();
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(got_n, 0);
        CHECK_INT(ans.bytes, 1024);
}

static void missing(void)
{
        static const struct {
                const char *src;
                int code;
        } cases[] = { { "/nothing", ENOENT },     { "/src/no/where", ENOENT },
                      { "/secret/", ENOTDIR },    { "/secret/x", ENOTDIR },
                      { "/src/loop", ELOOP },     { "/src/fifo", EINVAL },
                      { "/src/dangling", ENOENT } };
        begin();
        CHECK_INT(symlink("loop", path_of("src/loop")), 0);
        CHECK_INT(symlink("/gone", path_of("src/dangling")), 0);
        CHECK_INT(mkfifo(path_of("src/fifo"), 0644), 0);
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                pack(cases[i].src);
                CHECK_INT(ans.type, FRAME_FAIL);
                CHECK_INT(ans.code, cases[i].code);
                CHECK_INT(ans.blame, ERR_USER);
                CHECK(!ans.data_before_fail && strstr(ans.message, cases[i].src));
        }
}

static void src_stays_in_root(void)
{
        begin();
        put("src/x", "mine");
        CHECK_INT(symlink("/src", path_of("abs")), 0);
        CHECK_INT(symlink("../../../src", path_of("up")), 0);
        pack("/abs");
        CHECK(has("x", '0', "mine"));
        pack("/up");
        CHECK(has("x", '0', "mine"));
        pack("/../../src");
        CHECK(has("x", '0', "mine"));
        pack("/etc/passwd");
        CHECK_INT(ans.code, ENOENT);
}

static void links(void)
{
        begin();
        CHECK_INT(mkdir(path_of("src/d"), 0755), 0);
        put("src/file", "x");
        CHECK_INT(symlink("file", path_of("src/in")), 0);
        CHECK_INT(symlink("../file", path_of("src/d/in")), 0);
        CHECK_INT(symlink("../secret", path_of("src/up")), 0);
        CHECK_INT(symlink("../../secret", path_of("src/d/up")), 0);
        CHECK_INT(symlink("/secret", path_of("src/abs")), 0);
        CHECK_INT(symlink("..", path_of("src/dir")), 0);
        CHECK_INT(link(path_of("src/file"), path_of("src/hard")), 0);
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(got_n, 4);
        CHECK_INT(ans.skipped, 4);
        CHECK(has("in", '2', "") && has("d/in", '2', ""));
        CHECK_STR(got[find("d/in")].link, "../file");
        CHECK(has("hard", '0', "x"));
        CHECK(strstr(ans.skips, "d/up: symlink leaves the directory\n"));
        CHECK(!tar.len || !memmem(tar.data, tar.len, "not yours", 9));
}

static void special_files(void)
{
        begin();
        CHECK_INT(mkdir(path_of("src/only-special"), 0755), 0);
        CHECK_INT(mkfifo(path_of("src/only-special/fifo"), 0644), 0);
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        snprintf(a.sun_path, sizeof a.sun_path, "%s", path_of("src/sock"));
        int s = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK_INT(bind(s, (struct sockaddr *)&a, sizeof a), 0);
        put("src/f", "x");
        bool dev = mknod(path_of("src/null"), S_IFCHR | 0666, 1 << 8 | 3) == 0;
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(got_n, 2);
        CHECK(has("only-special/", '5', "") && has("f", '0', "x"));
        CHECK_INT(ans.skipped, 2 + dev);
        (void)close(s);
}

static void names(void)
{
        char deep[1200] = "src", exact[101], over[102];
        begin();
        memset(exact, 'e', 100);
        exact[100] = 0;
        memset(over, 'o', 101);
        over[101] = 0;
        put("src/caf\xc3\xa9", "utf8");
        put("src/raw\xff", "raw");
        put("src/new\nline", "nl");
        snprintf(deep, sizeof deep, "src/%s", exact);
        put(deep, "100");
        snprintf(deep, sizeof deep, "src/%s", over);
        put(deep, "101");
        snprintf(deep, sizeof deep, "src");
        for (int i = 0; i < 5; i++) {
                strcat(deep, "/");
                strcat(deep, over);
                strcat(deep, "dir");
                CHECK_INT(mkdir(path_of(deep), 0755), 0);
        }
        CHECK_INT(symlink(over, path_of("src/tolong")), 0);
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(got_n, 7);
        CHECK(has("caf\xc3\xa9", '0', "utf8") && got[find("caf\xc3\xa9")].pax);
        CHECK(!got[find("caf\xc3\xa9")].binary);
        CHECK(has("raw\xff", '0', "raw") && got[find("raw\xff")].binary);
        CHECK(has("new\nline", '0', "nl"));
        CHECK(has(exact, '0', "100") && !got[find(exact)].pax);
        CHECK(has(over, '0', "101") && got[find(over)].pax);
        strcat(deep, "/");
        CHECK(has(deep + 4, '5', ""));
        CHECK_STR(got[find("tolong")].link, over);
}

/* Every size of the digits that a pax record counts itself with. */
static void pax_lengths(void)
{
        char name[250] = "src/";
        begin();
        for (size_t n = 101; n < 240; n++) {
                memset(name + 4, 'l', n);
                name[4 + n] = 0;
                put(name, "x");
        }
        pack("/src");
        CHECK_INT(got_n, 139);
        for (int i = 0; i < got_n; i++)
                CHECK(got[i].pax && strspn(got[i].name, "l") == strlen(got[i].name));
}

static void too_deep(void)
{
        begin();
        int fd = open(path_of("src"), O_RDONLY | O_DIRECTORY);
        for (int i = 0; i < 400; i++) {
                CHECK_INT(mkdirat(fd, "dddddddddddddddddddd", 0755), 0);
                int next = openat(fd, "dddddddddddddddddddd", O_RDONLY | O_DIRECTORY);
                (void)close(fd);
                fd = next;
        }
        (void)close(fd);
        pack_as("/src", false);
        CHECK_INT(ans.type, FRAME_FAIL);
        CHECK_INT(ans.code, ENAMETOOLONG);
}

static void unreadable(void)
{
        if (getuid() != 0)
                SKIP("needs root to become somebody else");
        begin();
        CHECK_INT(chmod(root, 0755), 0);
        put("src/ok", "x");
        put("src/closed", "x");
        CHECK_INT(mkdir(path_of("src/dir"), 0700), 0);
        CHECK_INT(chmod(path_of("src/closed"), 0600), 0);
        child_uid = 65534;
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(got_n, 1);
        CHECK_INT(ans.skipped, 2);
        CHECK(strstr(ans.skips, "closed: permission denied\n"));
        pack("/src/closed");
        CHECK_INT(ans.type, FRAME_FAIL);
        CHECK_INT(ans.code, EACCES);
        child_uid = 0;
}

static void sparse_and_large(void)
{
        begin();
        int fd = open(path_of("src/sparse"), O_RDWR | O_CREAT, 0644);
        CHECK_INT(ftruncate(fd, 9ll << 30), 0);
        CHECK(pwrite(fd, "middle", 6, 1 << 20) == 6);
        (void)close(fd);
        stop_after = 3 << 20; /* the header must say 9 GiB; nobody reads them all */
        pack("/src");
        CHECK_INT(got_n, 1);
        CHECK_INT(got[0].size, 9ll << 30);
        CHECK(got[0].pax && memcmp(got[0].data + (1 << 20), "middle", 6) == 0);
        fd = open(path_of("src/sparse"), O_RDWR);
        CHECK_INT(ftruncate(fd, 5 << 20), 0);
        (void)close(fd);
        pack("/src");
        CHECK_INT(ans.type, FRAME_END);
        CHECK_INT(got[0].size, 5 << 20);
        CHECK(memcmp(got[0].data + (1 << 20), "middle", 6) == 0);
        size_t set = 0;
        for (size_t i = 0; i < got[0].size; i++)
                set += got[0].data[i] != 0;
        CHECK_INT(set, 6);
}

static void reader_hangs_up(void)
{
        begin();
        int fd = open(path_of("src/big"), O_RDWR | O_CREAT, 0644);
        CHECK_INT(ftruncate(fd, 1ll << 40), 0);
        (void)close(fd);
        stop_after = 1 << 20;
        pack_as("/src", false); /* ends, with exit code 1, and not by a signal */
        CHECK_INT(ans.type, FRAME_NONE);
}

/* Whatever a file does while it is read: the archive is whole or there is a FAIL. */
static void changing_files(void)
{
        begin();
        static char data[1 << 20];
        memset(data, 'z', sizeof data);
        pid_t pid = fork();
        if (pid == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
                for (;;) {
                        int fd = open(path_of("src/f"), O_RDWR | O_CREAT | O_TRUNC, 0644);
                        for (int i = 0; i < 8; i++)
                                (void)!write(fd, data, sizeof data);
                        (void)!ftruncate(fd, 1000);
                        (void)close(fd);
                        (void)unlink(path_of("src/g"));
                        (void)mkfifo(path_of("src/g"), 0644);
                        (void)unlink(path_of("src/g"));
                        (void)!symlink("../secret", path_of("src/g"));
                        (void)unlink(path_of("src/g"));
                        (void)mkdir(path_of("src/g"), 0755);
                        (void)rmdir(path_of("src/g"));
                        (void)!link(path_of("src/f"), path_of("src/g"));
                }
        int whole = 0, torn = 0;
        for (int i = 0; i < 60; i++) {
                pack("/src");
                CHECK(ans.type == FRAME_END || (ans.type == FRAME_FAIL && ans.code == EIO));
                whole += ans.type == FRAME_END;
                torn += ans.type == FRAME_FAIL;
                CHECK(!tar.len || !memmem(tar.data, tar.len, "not yours", 9));
                for (int m = 0; ans.type == FRAME_END && m < got_n; m++)
                        CHECK(got[m].size == 0 || got[m].type == '0');
        }
        CHECK(whole + torn == 60 && whole > 0);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
}

static void kernel_file_systems(void)
{
        char saved[64];
        memcpy(saved, root, sizeof saved);
        strcpy(root, "/");
        pack_as("/proc/self", false);
        CHECK_INT(ans.type, FRAME_FAIL);
        CHECK_INT(ans.code, EINVAL);
        pack_as("/sys/kernel", false);
        CHECK_INT(ans.type, FRAME_FAIL);
        memcpy(root, saved, sizeof saved);
}

/* What tar_run says, untar_run and tar(1) understand. */
static void round_trip(void)
{
        begin();
        char cmd[600];
        snprintf(cmd, sizeof cmd,
                 "cd %s && cp -a /usr/include/linux src/ && cd src && ln -s linux/fs.h l && "
                 "mkdir -p e/f && printf x > 'caf\xc3\xa9' && chmod 4755 l", root);
        CHECK_INT(system(cmd), 0);
        pack_as("/src", true);
        CHECK_INT(ans.type, FRAME_END);
        int fd = open(path_of("t.tar"), O_RDWR | O_CREAT, 0644);
        CHECK(write(fd, tar.data, tar.len) == (ssize_t)tar.len);
        (void)close(fd);
        snprintf(cmd, sizeof cmd, "cd %s && mkdir x && tar xf t.tar -C x && "
                                  "diff -r --no-dereference src x", root);
        CHECK_INT(system(cmd), 0);
        int sv[2], status;
        CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
        (void)fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
                int rfd = open(root, O_PATH | O_DIRECTORY);
                struct untar_request req = { "/y", 1ull << 32, 100000 };
                (void)close(sv[0]);
                _exit(untar_run(rfd, sv[1], &req));
        }
        (void)close(sv[1]);
        for (size_t at = 0; at < tar.len; at += 65536)
                (void)frame_write(sv[0], FRAME_DATA, tar.data + at,
                                  tar.len - at < 65536 ? tar.len - at : 65536);
        (void)frame_write(sv[0], FRAME_END, NULL, 0);
        (void)waitpid(pid, &status, 0);
        (void)close(sv[0]);
        CHECK_INT(status, 0);
        snprintf(cmd, sizeof cmd, "cd %s && diff -r --no-dereference src y", root);
        CHECK_INT(system(cmd), 0);
}

int main(void)
{
        const char *tmp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(root, sizeof root, "%s/cloche-tar-XXXXXX", tmp);
        got = calloc(MEMBERS, sizeof *got);
        if (!got || !mkdtemp(root))
                return 1;
        (void)signal(SIGPIPE, SIG_IGN);
        RUN(ordinary);
        RUN(one_file);
        RUN(empty_dir);
        RUN(missing);
        RUN(src_stays_in_root);
        RUN(links);
        RUN(special_files);
        RUN(names);
        RUN(pax_lengths);
        RUN(too_deep);
        RUN(unreadable);
        RUN(sparse_and_large);
        RUN(reader_hangs_up);
        RUN(changing_files);
        RUN(kernel_file_systems);
        RUN(round_trip);
        char cmd[100];
        snprintf(cmd, sizeof cmd, "rm -rf %s", root);
        (void)!system(cmd);
        free(got);
        buf_free(&tar);
        return check_done();
}
