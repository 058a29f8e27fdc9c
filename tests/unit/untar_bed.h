/* For the tests of untar: archives made by hand, unpacked into a temporary directory that
 * stands for the sandbox's root: root/dest is the destination, root/canary must never
 * change. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/archive.h"
#include "agent/gzip.h"
#include "check.h"
#include "wire/frame.h"

static char root[64], dest[80];
static struct buf ar; /* the archive being made */

static struct {
        enum frame_type type; /* FRAME_NONE when nothing came */
        uint64_t count, skipped, code, blame;
        char message[512], skips[4096]; /* one "name: why" per line */
        int exit;
} ans;

static struct untar_request req = { "/dest", 1 << 24, 1000 };
static size_t frame_bytes = 100000;
static bool no_end;

/* --- making archives -------------------------------------------------------------- */

static inline void octal(char *p, int digits, uint64_t v)
{
        for (int i = digits - 1; i >= 0; i--, v >>= 3)
                p[i] = (char)('0' + (v & 7));
}

static inline void sum(char *h)
{
        unsigned n = 0;
        memset(h + 148, ' ', 8);
        for (int i = 0; i < 512; i++)
                n += (unsigned char)h[i];
        octal(h + 148, 6, n);
        h[154] = 0;
}

static inline char *head(const char *name, char type, uint64_t size, const char *link,
                         unsigned mode)
{
        static char h[512];
        memset(h, 0, sizeof h);
        memcpy(h, name, strlen(name) < 100 ? strlen(name) : 100);
        octal(h + 100, 7, mode);
        octal(h + 108, 7, 0);
        octal(h + 116, 7, 0);
        octal(h + 124, 11, size);
        octal(h + 136, 11, 1000000000);
        h[156] = type;
        if (link)
                memcpy(h + 157, link, strlen(link) < 100 ? strlen(link) : 100);
        memcpy(h + 257, "ustar\00000", 8);
        sum(h);
        return h;
}

static inline void body(const void *p, size_t n)
{
        static const char zeros[512];
        buf_add(&ar, p, n);
        buf_add(&ar, zeros, -n & 511);
}

static inline void member(const char *name, char type, const char *link, unsigned mode,
                   const char *data)
{
        size_t n = data ? strlen(data) : 0;
        buf_add(&ar, head(name, type, n, link, mode), 512);
        body(data, n);
}

static inline void file(const char *name, const char *data)
{
        member(name, '0', NULL, 0644, data);
}

static inline void pax_n(const char *key, const char *value, size_t n)
{
        _cleanup_buf_ struct buf rec = { 0 };
        size_t total = strlen(key) + n + 3;
        char digits[24];
        while (total != strlen(key) + n + 3 +
                                (size_t)snprintf(digits, sizeof digits, "%zu", total))
                total++;
        buf_addf(&rec, "%s %s=", digits, key);
        buf_add(&rec, value, n);
        buf_addc(&rec, '\n');
        buf_add(&ar, head("PaxHeader", 'x', rec.len, NULL, 0644), 512);
        body(rec.data, rec.len);
}

static inline void pax(const char *key, const char *value)
{
        pax_n(key, value, strlen(value));
}

static inline void finish(void)
{
        static const char zeros[1024];
        buf_add(&ar, zeros, sizeof zeros);
}

static inline int collect(void *arg, const void *p, size_t n)
{
        buf_add(arg, p, n);
        return 0;
}

static inline void compress_archive(void)
{
        struct buf gz = { 0 };
        _cleanup_deflater_ struct deflater *z = deflater_new(65536, collect, &gz);
        (void)deflater_run(z, ar.data, ar.len);
        (void)deflater_finish(z);
        buf_free(&ar);
        ar = gz;
}

/* --- running ---------------------------------------------------------------------- */

static inline void take_answer(struct frame f)
{
        enum field tag;
        struct str v;
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

static inline void send_archive(int fd)
{
        for (size_t at = 0; at < ar.len; at += frame_bytes) {
                size_t n = ar.len - at < frame_bytes ? ar.len - at : frame_bytes;
                if (frame_write(fd, FRAME_DATA, ar.data + at, n) < 0)
                        return;
        }
        if (!no_end)
                (void)frame_write(fd, FRAME_END, NULL, 0);
}

static uid_t child_uid;
static rlim_t child_fsize;

static inline void unpack(void)
{
        int sv[2];
        memset(&ans, 0, sizeof ans);
        (void)fflush(NULL);
        CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
        pid_t pid = fork();
        if (pid == 0) {
                int fd = open(root, O_PATH | O_DIRECTORY);
                (void)close(sv[0]);
                struct rlimit fsize = { child_fsize, child_fsize };
                if (child_fsize)
                        (void)setrlimit(RLIMIT_FSIZE, &fsize);
                if (child_uid && setresuid(child_uid, child_uid, child_uid) < 0)
                        _exit(99);
                int r = untar_run(fd, sv[1], &req);
                buf_free(&ar);
                exit(r); /* leaks count */
        }
        (void)close(sv[1]);
        send_archive(sv[0]);
        if (no_end)
                (void)shutdown(sv[0], SHUT_WR);
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        while (frame_read(sv[0], &b, &f) > 0)
                take_answer(f);
        (void)close(sv[0]);
        int status;
        (void)waitpid(pid, &status, 0);
        ans.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        CHECK(ans.exit == 0 || ans.exit == 1);
        CHECK_INT(ans.exit, ans.type != FRAME_DONE);
        buf_free(&ar);
        no_end = false;
}

static inline const char *path_of(const char *rel)
{
        static char p[8][8192];
        static int i;
        i = (i + 1) % 8;
        snprintf(p[i], sizeof p[i], "%s/%s", root, rel);
        return p[i];
}

/* The contents, or NULL; "(link)" for a link. */
static inline const char *get(const char *rel)
{
        static char text[4][4096];
        static int i;
        struct stat st;
        i = (i + 1) % 4;
        if (lstat(path_of(rel), &st) < 0)
                return NULL;
        if (S_ISLNK(st.st_mode))
                return "(link)";
        if (S_ISDIR(st.st_mode))
                return "(dir)";
        int fd = open(path_of(rel), O_RDONLY);
        ssize_t n = read(fd, text[i], sizeof text[i] - 1);
        (void)close(fd);
        text[i][n > 0 ? n : 0] = 0;
        return text[i];
}

static inline bool absent(const char *rel)
{
        struct stat st;
        return lstat(path_of(rel), &st) < 0 && errno == ENOENT;
}

static inline void put(const char *rel, const char *text)
{
        int fd = open(path_of(rel), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
}

static inline int entries(const char *rel)
{
        DIR *d = opendir(path_of(rel));
        int n = -2;
        while (d && readdir(d))
                n++;
        if (d)
                (void)closedir(d);
        return n;
}

static inline void begin(void)
{
        char cmd[200];
        snprintf(cmd, sizeof cmd, "chmod -R u+rwX %s; rm -rf %s/*", root, root);
        CHECK_INT(system(cmd), 0);
        CHECK_INT(mkdir(dest, 0755), 0);
        put("canary", "alive");
        req = (struct untar_request){ "/dest", 1 << 24, 1000 };
        frame_bytes = 100000;
}

static inline void end_checks(void)
{
        char cmd[200];
        CHECK_STR(get("canary"), "alive");
        snprintf(cmd, sizeof cmd, "! find %s -name '.cloche-*' | grep .", root);
        CHECK_INT(system(cmd), 0);
}

#define done(n, s)                              \
        do {                                    \
                CHECK_INT(ans.type, FRAME_DONE); \
                CHECK_INT(ans.count, n);        \
                CHECK_INT(ans.skipped, s);      \
        } while (0)
#define failed(e)                               \
        do {                                    \
                CHECK_INT(ans.type, FRAME_FAIL); \
                CHECK_INT(ans.code, e);         \
                CHECK_INT(ans.blame, ERR_USER); \
        } while (0)
#define skipped_line(text) CHECK(strstr(ans.skips, text))

static inline bool bed_make(void)
{
        const char *tmp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(root, sizeof root, "%s/cloche-untar-XXXXXX", tmp);
        if (!mkdtemp(root))
                return false;
        snprintf(dest, sizeof dest, "%s/dest", root);
        (void)signal(SIGPIPE, SIG_IGN);
        return true;
}

static inline int bed_done(void)
{
        char cmd[100];
        snprintf(cmd, sizeof cmd, "rm -rf %s", root);
        (void)!system(cmd);
        return check_done();
}
