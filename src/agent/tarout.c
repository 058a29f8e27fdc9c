/* A directory or file of the sandbox as a tar.gz. The tree is a stranger's and alive: it
 * may change while it is read, hold FIFOs that would block and links that lead out. No
 * link is ever followed, every name is opened from its parent's descriptor, and what
 * cannot be told truthfully ends in a FAIL instead of a shorter archive.
 *
 * Headers are written here, not by libarchive: its writer turns names through the locale
 * and knows no way to keep bytes that are not UTF-8. File data is read straight into the
 * block that is compressed next, behind its header, so small files share one block. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "agent/archive.h"
#include "agent/archive_answer.h"
#include "agent/below.h"
#include "agent/gzip.h"
#include "base/str.h"

#define BLOCK_BYTES (256u * 1024)
#define TAR_BLOCK 512u
#define DEPTH_MAX 256                    /* each level holds a descriptor */
#define USTAR_SIZE_MAX 077777777777ll    /* eleven octal digits */
#define USTAR_NAME_BYTES 100
#define OPEN_FLAGS (O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC)

struct level {
        DIR *dir;
        size_t path_len;
        bool emitted; /* something below is in the archive */
        struct stat st;
};

struct tarout {
        int conn;
        struct deflater *z;
        char *block;
        size_t fill;
        struct buf path; /* of the current entry, below src, NUL-terminated */
        struct level levels[DEPTH_MAX];
        unsigned depth;
        uint64_t count;
        struct skipped skipped;
        struct err err;
};

struct ustar {
        char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type[1];
        char linkname[100], magic[8], uname[32], gname[32], major[8], minor[8], prefix[155];
        char pad[12];
};
_Static_assert(sizeof(struct ustar) == TAR_BLOCK, "a tar header is one block");

/* --- the stream ----------------------------------------------------------------- */

static int send_data(void *arg, const void *p, size_t n)
{
        struct tarout *t = arg;
        return frame_write(t->conn, FRAME_DATA, p, n);
}

static int stream_failed(struct tarout *t, int r)
{
        return fail_host(&t->err, r, "cannot send the archive: %s", strerror(-r));
}

static int flush_block(struct tarout *t)
{
        int r = deflater_run(t->z, t->block, t->fill);
        t->fill = 0;
        return r < 0 ? stream_failed(t, r) : 0;
}

/* p may be NULL for zeros. */
static int put(struct tarout *t, const void *p, uint64_t n)
{
        const char *from = p;
        while (n) {
                if (t->fill == BLOCK_BYTES) {
                        int r = flush_block(t);
                        if (r < 0)
                                return r;
                }
                size_t some = BLOCK_BYTES - t->fill;
                if (some > n)
                        some = (size_t)n;
                if (from) {
                        memcpy(t->block + t->fill, from, some);
                        from += some;
                } else
                        memset(t->block + t->fill, 0, some);
                t->fill += some;
                n -= some;
        }
        return 0;
}

static int put_padding(struct tarout *t, uint64_t size)
{
        return put(t, NULL, -size % TAR_BLOCK);
}

/* --- headers -------------------------------------------------------------------- */

static void octal(char *field, size_t size, uint64_t v)
{
        for (size_t i = size - 1; i-- > 0; v >>= 3)
                field[i] = (char)('0' + (v & 7));
        field[size - 1] = '\0';
}

static void copy_field(char *field, size_t size, const char *s)
{
        memcpy(field, s, strnlen(s, size));
}

static int put_ustar(struct tarout *t, const char *name, const char *link, char type,
                     const struct stat *st, uint64_t size)
{
        struct ustar h;
        unsigned sum = 0;
        int64_t mtime = st->st_mtim.tv_sec;
        memset(&h, 0, sizeof h);
        copy_field(h.name, sizeof h.name, name);
        copy_field(h.linkname, sizeof h.linkname, link);
        octal(h.mode, sizeof h.mode, st->st_mode & 0777);
        octal(h.uid, sizeof h.uid, 0);
        octal(h.gid, sizeof h.gid, 0);
        octal(h.size, sizeof h.size, size > USTAR_SIZE_MAX ? 0 : size);
        octal(h.mtime, sizeof h.mtime,
              mtime < 0 ? 0 : mtime > USTAR_SIZE_MAX ? USTAR_SIZE_MAX : (uint64_t)mtime);
        h.type[0] = type;
        memcpy(h.magic, "ustar\00000", sizeof h.magic);
        memset(h.sum, ' ', sizeof h.sum);
        for (size_t i = 0; i < sizeof h; i++)
                sum += ((const unsigned char *)&h)[i];
        octal(h.sum, 7, sum);
        return put(t, &h, sizeof h);
}

/* "LENGTH key=value\n", where LENGTH counts itself. */
static void pax_record(struct buf *b, const char *key, const char *value)
{
        size_t body = strlen(key) + strlen(value) + 3, total = body + 1;
        char digits[24];
        for (;;) {
                size_t n = body + (size_t)snprintf(digits, sizeof digits, "%zu", total);
                if (n == total)
                        break;
                total = n;
        }
        buf_addf(b, "%s %s=%s\n", digits, key, value);
}

static bool fits_ustar(const char *s)
{
        size_t n = 0;
        for (; s[n]; n++)
                if ((unsigned char)s[n] >= 0x80)
                        return false;
        return n <= USTAR_NAME_BYTES;
}

/* An extended header only where the plain one cannot say it: it doubles the cost of a
 * small file. */
static int put_head(struct tarout *t, const char *name, const char *link, char type,
                    const struct stat *st, uint64_t size)
{
        _cleanup_buf_ struct buf pax = { 0 };
        char digits[24];
        if (!str_is_utf8(str_c(name)) || !str_is_utf8(str_c(link)))
                pax_record(&pax, "hdrcharset", "BINARY");
        if (!fits_ustar(name))
                pax_record(&pax, "path", name);
        if (!fits_ustar(link))
                pax_record(&pax, "linkpath", link);
        if (size > USTAR_SIZE_MAX) {
                (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)size);
                pax_record(&pax, "size", digits);
        }
        if (!buf_ok(&pax))
                return fail_host(&t->err, -ENOMEM, "out of memory");
        int r = 0;
        if (pax.len) {
                struct stat plain = { .st_mode = 0644 };
                r = put_ustar(t, "PaxHeader", "", 'x', &plain, pax.len);
                if (r == 0)
                        r = put(t, pax.data, pax.len);
                if (r == 0)
                        r = put_padding(t, pax.len);
        }
        if (r == 0)
                r = put_ustar(t, name, link, type, st, size);
        if (r == 0)
                t->count++;
        return r;
}

/* --- entries -------------------------------------------------------------------- */

static int skip(struct tarout *t, const char *why)
{
        skipped_add(&t->skipped, t->path.data, why);
        return 0;
}

static int changed(struct tarout *t)
{
        return fail_user(&t->err, -EIO, "%.200s: file changed while it was read", t->path.data);
}

/* Opening an entry failed. Gone means that it is not there, which is no lie; unreadable
 * is named; anything else is our trouble. */
static int open_failed(struct tarout *t, int code)
{
        switch (-code) {
        case ENOENT:
                return 0;
        case EACCES:
        case EPERM:
                return skip(t, "permission denied");
        case ELOOP:
        case ENXIO:
        case ENOTDIR:
        case ENODEV:
                return skip(t, "it changed while it was read");
        default:
                return fail_host(&t->err, code, "cannot read %.200s: %s", t->path.data,
                                 strerror(-code));
        }
}

/* Where the data that follows at begins and ends; a terabyte of hole need not be read.
 * A file that got shorter looks like one that ends in a hole: that must not pass. */
static int next_data(struct tarout *t, int fd, int64_t at, int64_t size, int64_t *ret_from,
                     int64_t *ret_to)
{
        off_t from = lseek(fd, at, SEEK_DATA);
        struct stat now;
        if (from < 0 && errno == ENXIO) {
                if (fstat(fd, &now) < 0 || now.st_size < size)
                        return changed(t);
                *ret_from = *ret_to = size;
                return 0;
        }
        off_t to = from < 0 ? -1 : lseek(fd, from, SEEK_HOLE);
        bool known = from >= at && to > from;
        *ret_from = known ? (from < size ? from : size) : at;
        *ret_to = known && to < size ? to : size;
        return 0;
}

static int put_range(struct tarout *t, int fd, int64_t at, int64_t to)
{
        while (at < to) {
                int r = t->fill == BLOCK_BYTES ? flush_block(t) : 0;
                if (r < 0)
                        return r;
                size_t some = BLOCK_BYTES - t->fill;
                if ((int64_t)some > to - at)
                        some = (size_t)(to - at);
                ssize_t got = pread(fd, t->block + t->fill, some, at);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return fail_host(&t->err, -errno, "cannot read %.200s: %s", t->path.data,
                                         strerror(errno));
                if (got == 0)
                        return changed(t);
                t->fill += (size_t)got;
                at += got;
        }
        return 0;
}

/* A file that grows is cut at the size that its header told. */
static int put_file(struct tarout *t, int fd, const struct stat *st)
{
        int64_t size = st->st_size, at = 0;
        bool sparse = st->st_blocks < size / 512;
        int r = put_head(t, t->path.data, "", '0', st, (uint64_t)size);
        while (r == 0 && at < size) {
                int64_t from = 0, to = size;
                if (sparse)
                        r = next_data(t, fd, at, size, &from, &to);
                if (r == 0 && from > at)
                        r = put(t, NULL, (uint64_t)(from - at));
                if (r == 0)
                        r = put_range(t, fd, from, to);
                at = to;
        }
        return r < 0 ? r : put_padding(t, (uint64_t)size);
}

/* A FIFO may take a file's place after readdir: O_NONBLOCK keeps open from waiting for
 * its writer, and only fstat of what was opened counts. */
static int visit_file(struct tarout *t, struct level *in, const char *name)
{
        struct stat st;
        _cleanup_close_ int fd = openat(dirfd(in->dir), name, OPEN_FLAGS);
        if (fd < 0)
                return open_failed(t, -errno);
        if (fstat(fd, &st) < 0)
                return open_failed(t, -errno);
        if (!S_ISREG(st.st_mode))
                return skip(t, "it changed while it was read");
        in->emitted = true;
        return put_file(t, fd, &st);
}

static int visit_link(struct tarout *t, struct level *in, const char *name)
{
        char target[LIMIT_PATH_BYTES];
        struct stat st;
        ssize_t n = readlinkat(dirfd(in->dir), name, target, sizeof target);
        if (n < 0)
                return errno == EINVAL ? skip(t, "it changed while it was read")
                                       : open_failed(t, -errno);
        if (n == 0 || (size_t)n == sizeof target)
                return skip(t, "symlink target too long");
        target[n] = '\0';
        if (!below_target(t->path.data, target))
                return skip(t, "symlink leaves the directory");
        if (fstatat(dirfd(in->dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return open_failed(t, -errno);
        st.st_mode = 0777;
        in->emitted = true;
        return put_head(t, t->path.data, target, '2', &st, 0);
}

/* /proc and its like are no files: sizes there are made up, contents endless. */
static bool is_kernel_fs(int fd)
{
        static const unsigned magics[] = {
                PROC_SUPER_MAGIC, SYSFS_MAGIC,    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
                DEBUGFS_MAGIC,    TRACEFS_MAGIC,  SECURITYFS_MAGIC,   BPF_FS_MAGIC,
                DEVPTS_SUPER_MAGIC,
        };
        struct statfs fs;
        if (fstatfs(fd, &fs) < 0)
                return false;
        for (size_t i = 0; i < ARRAY_SIZE(magics); i++)
                if ((unsigned)fs.f_type == magics[i])
                        return true;
        return false;
}

/* Takes fd. */
static int push(struct tarout *t, int fd_in, const struct stat *st)
{
        _cleanup_close_ int fd = fd_in;
        /* An archive that silently ends at some depth would be a lie. */
        if (t->depth == DEPTH_MAX)
                return fail_user(&t->err, -ENAMETOOLONG, "directories nest deeper than %d",
                                 DEPTH_MAX);
        DIR *dir = fdopendir(fd);
        if (!dir)
                return fail_host(&t->err, -errno, "cannot read %.200s: %s", t->path.data,
                                 strerror(errno));
        (void)steal_fd(&fd);
        t->levels[t->depth++] = (struct level){ .dir = dir, .path_len = t->path.len, .st = *st };
        return 0;
}

static int visit_dir(struct tarout *t, struct level *in, const char *name)
{
        struct stat st;
        _cleanup_close_ int fd = openat(dirfd(in->dir), name, OPEN_FLAGS | O_DIRECTORY);
        if (fd < 0)
                return open_failed(t, -errno);
        if (fstat(fd, &st) < 0)
                return open_failed(t, -errno);
        if (st.st_dev != in->st.st_dev && is_kernel_fs(fd))
                return skip(t, "a file system of the kernel");
        return push(t, steal_fd(&fd), &st);
}

static int visit(struct tarout *t, struct level *in, const struct dirent *d)
{
        unsigned char type = d->d_type;
        struct stat st;
        t->path.len = in->path_len;
        if (t->path.len)
                buf_addc(&t->path, '/');
        buf_adds(&t->path, d->d_name);
        if (!buf_cstr(&t->path))
                return fail_host(&t->err, -ENOMEM, "out of memory");
        if (type == DT_UNKNOWN) {
                if (fstatat(dirfd(in->dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return open_failed(t, -errno);
                type = IFTODT(st.st_mode);
        }
        switch (type) {
        case DT_REG:
                return visit_file(t, in, d->d_name);
        case DT_DIR:
                return visit_dir(t, in, d->d_name);
        case DT_LNK:
                return visit_link(t, in, d->d_name);
        default:
                return skip(t, "neither file, directory nor link");
        }
}

/* Directories with something inside are not members: clients make parents, and the
 * reference emits none. An empty one would be lost without. */
static int pop(struct tarout *t)
{
        struct level *l = &t->levels[--t->depth];
        int r = 0;
        (void)closedir(l->dir);
        if (t->depth == 0)
                return 0;
        t->path.len = l->path_len;
        if (!l->emitted) {
                buf_addc(&t->path, '/');
                if (!buf_cstr(&t->path))
                        return fail_host(&t->err, -ENOMEM, "out of memory");
                r = put_head(t, t->path.data, "", '5', &l->st, 0);
        }
        t->levels[t->depth - 1].emitted = true;
        return r;
}

static int walk(struct tarout *t)
{
        int r = 0;
        while (r == 0 && t->depth) {
                struct level *in = &t->levels[t->depth - 1];
                errno = 0;
                struct dirent *d = readdir(in->dir);
                if (!d && errno && errno != ENOENT)
                        return fail_host(&t->err, -errno, "cannot read a directory: %s",
                                         strerror(errno));
                if (!d)
                        r = pop(t);
                else if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
                        r = visit(t, in, d);
        }
        return r;
}

/* --- the whole ------------------------------------------------------------------ */

static int open_src_failed(struct tarout *t, const char *src, int code)
{
        return fail_user(&t->err, code, "cannot read %.200s: %s", src, strerror(-code));
}

/* Looks before it opens: opening a FIFO, a tty or a device does something. */
static int open_src(struct tarout *t, int root_fd, const char *src, struct stat *ret_st)
{
        _cleanup_close_ int look = below_open(root_fd, src, O_PATH | O_CLOEXEC, BELOW_ROOT);
        if (look < 0)
                return open_src_failed(t, src, look);
        if (fstat(look, ret_st) < 0)
                return open_src_failed(t, src, -errno);
        if (!S_ISREG(ret_st->st_mode) && !S_ISDIR(ret_st->st_mode))
                return fail_user(&t->err, -EINVAL, "%.200s is neither file nor directory", src);
        _cleanup_close_ int fd = below_open(root_fd, src, OPEN_FLAGS & ~O_NOFOLLOW, BELOW_ROOT);
        if (fd < 0)
                return open_src_failed(t, src, fd);
        if (fstat(fd, ret_st) < 0)
                return open_src_failed(t, src, -errno);
        if (is_kernel_fs(fd))
                return fail_user(&t->err, -EINVAL, "%.200s is in a file system of the kernel", src);
        return steal_fd(&fd);
}

static int pack(struct tarout *t, int root_fd, const char *src)
{
        struct stat st;
        _cleanup_close_ int fd = open_src(t, root_fd, src, &st);
        if (fd < 0)
                return fd;
        t->block = malloc(BLOCK_BYTES);
        t->z = deflater_new(FRAME_DATA_BYTES, send_data, t);
        const char *slash = strrchr(src, '/');
        if (S_ISREG(st.st_mode))
                buf_adds(&t->path, slash ? slash + 1 : src);
        if (!t->block || !t->z || !buf_cstr(&t->path))
                return fail_host(&t->err, -ENOMEM, "out of memory");
        int r;
        if (S_ISREG(st.st_mode))
                r = put_file(t, fd, &st);
        else if (S_ISDIR(st.st_mode))
                r = push(t, steal_fd(&fd), &st);
        else
                r = changed(t);
        if (r == 0)
                r = walk(t);
        if (r == 0)
                r = put(t, NULL, 2 * TAR_BLOCK);
        if (r == 0)
                r = flush_block(t);
        if (r == 0) {
                r = deflater_finish(t->z);
                r = r < 0 ? stream_failed(t, r) : 0;
        }
        return r;
}

int tar_run(int root_fd, int conn, const char *src)
{
        struct tarout *t = calloc(1, sizeof *t);
        if (!t) {
                struct err e;
                (void)fail_host(&e, -ENOMEM, "out of memory");
                (void)answer_fail(conn, &e);
                return 1;
        }
        t->conn = conn;
        (void)signal(SIGPIPE, SIG_IGN); /* a client that hangs up is an error like others */
        int r = pack(t, root_fd, src);
        if (r == 0)
                r = answer_totals(conn, FRAME_END, t->count, &t->skipped) < 0;
        else {
                (void)answer_fail(conn, &t->err);
                r = 1;
        }
        while (t->depth)
                (void)closedir(t->levels[--t->depth].dir);
        deflater_freep(&t->z);
        free(t->block);
        buf_free(&t->path);
        buf_free(&t->skipped.fields);
        free(t);
        return r;
}
