/* An archive from a stranger becomes files below dest. The worker has the rights of the
 * sandbox's user and nothing else, so the rules here do not guard the host; they guard
 * the promise that an upload writes below dest and nowhere else, and that nothing is
 * dropped in silence: every member is either placed, named as skipped, or the whole
 * upload fails with a reason.
 *
 * Bytes flow: conn -> whole frames in one buffer -> ISA-L (or nothing, for a plain tar)
 * -> libarchive, which only splits the stream into members and hands out pointers into
 * our buffer -> pwrite. The sandbox may run while this does, and swap directories for
 * links under our feet: every path is resolved by the kernel below dest's descriptor. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/archive.h"
#include "agent/archive_answer.h"
#include "agent/below.h"
#include "agent/intake.h"
#include "base/limits.h"

#define CALL_BYTES (2u << 20)      /* one member's headers, or its map of holes */
#define MEMBER_OVERHEAD 4096       /* headers and padding allowed for each member */
#define SLACK_BYTES (64ull << 20)  /* padding after the last member */
#define DIR_TIMES_BYTES (4u << 20) /* remembered to set directories' times at the end */
#define MTIME_MAX 253402300799ll   /* the last second of the year 9999 */

struct untar {
        struct intake in;
        struct archive *a;
        const struct untar_request *req;
        int dest;
        int parent; /* of the last member: most members share it with the one before */
        size_t parent_len;
        char parent_path[LIMIT_PATH_BYTES];
        char path[LIMIT_PATH_BYTES]; /* of the current member, below dest */
        char temp[48];
        uint64_t salt, serial;
        uint64_t members, count, written;
        struct skipped skipped;
        struct buf dir_times; /* path, NUL, struct timespec */
        struct err err;
};

/* --- what became of a member: 1 placed, 0 skipped, negative ends the upload ------- */

static int skip(struct untar *u, const char *name, const char *why)
{
        skipped_add(&u->skipped, name, why);
        return 0;
}

/* Errors that one member brings upon itself. Everything else ends the upload: that a
 * file system is full or read-only must not pass as a list of skipped names. */
static const struct {
        int code;
        const char *why;
} member_faults[] = {
        { EXDEV, "a symbolic link on its path leaves the destination" },
        { ELOOP, "a symbolic link on its path cannot be followed" },
        { EAGAIN, "its path changed while it was followed" },
        { ENOTDIR, "part of its path is not a directory" },
        { EISDIR, "a directory of that name exists" },
        { EEXIST, "a file of that name exists" },
        { ENOTEMPTY, "a directory of that name exists" },
        { ENAMETOOLONG, "name too long" },
        { ENOENT, "its directory does not exist" },
        { EBUSY, "the existing file is in use" },
        { EMLINK, "too many links" },
        { EINVAL, "the file system refuses the name" },
        { EILSEQ, "the file system refuses the name" },
};

static int place_failed(struct untar *u, int code)
{
        for (size_t i = 0; i < ARRAY_SIZE(member_faults); i++)
                if (member_faults[i].code == -code) {
                        /* The kept parent may be what is wrong. */
                        close_fd(&u->parent);
                        return skip(u, u->path, member_faults[i].why);
                }
        switch (-code) {
        case ENOSPC:
        case EDQUOT:
                return fail_user(&u->err, code, "no space left in the sandbox after %llu members",
                                 (unsigned long long)u->count);
        case EFBIG:
                return fail_user(&u->err, code, "%.200s: file too large", u->path);
        case EACCES:
        case EPERM:
        case EROFS:
                return fail_user(&u->err, code, "cannot write %.200s: %s", u->path,
                                 strerror(-code));
        default:
                return fail_host(&u->err, code, "cannot write %.200s: %s", u->path,
                                 strerror(-code));
        }
}

/* Not a comparison: RETRY ("damaged header, shall I look for the next?") sorts above
 * WARN, and to look on in a damaged archive is to guess. */
static bool readable(int r)
{
        return r == ARCHIVE_OK || r == ARCHIVE_WARN;
}

static int archive_failed(struct untar *u)
{
        if (u->in.failed)
                return u->in.failed;
        const char *why = archive_error_string(u->a);
        return fail_user(&u->err, -EINVAL, "invalid tar archive: %.200s", why ? why : "unreadable");
}

/* The directory that u->path is in. The descriptor stays u's. */
static int open_parent(struct untar *u, const char **ret_base)
{
        const char *slash = strrchr(u->path, '/');
        *ret_base = slash ? slash + 1 : u->path;
        if (!slash)
                return u->dest;
        size_t n = (size_t)(slash - u->path);
        if (u->parent >= 0 && u->parent_len == n && memcmp(u->parent_path, u->path, n) == 0)
                return u->parent;
        close_fd(&u->parent);
        memcpy(u->parent_path, u->path, n);
        u->parent_path[n] = '\0';
        u->parent_len = n;
        int fd = below_open(u->dest, u->parent_path, BELOW_DIR, BELOW_DEST);
        if (fd == -ENOENT)
                fd = below_make(u->dest, u->parent_path, BELOW_DEST);
        if (fd >= 0)
                u->parent = fd;
        return fd;
}

/* --- members -------------------------------------------------------------------- */

static struct timespec entry_time(struct archive_entry *e)
{
        struct timespec t = { .tv_nsec = UTIME_NOW };
        if (!archive_entry_mtime_is_set(e))
                return t;
        t.tv_sec = archive_entry_mtime(e);
        t.tv_nsec = archive_entry_mtime_nsec(e);
        if (t.tv_sec < 0 || t.tv_sec > MTIME_MAX)
                t = (struct timespec){ .tv_sec = t.tv_sec < 0 ? 0 : MTIME_MAX };
        if (t.tv_nsec < 0 || t.tv_nsec > 999999999)
                t.tv_nsec = 0;
        return t;
}

/* A name that nobody can have waiting for us; O_EXCL and its like decide in any case. */
static const char *next_temp(struct untar *u)
{
        (void)snprintf(u->temp, sizeof u->temp, ".cloche-%016llx-%llx",
                       (unsigned long long)u->salt, (unsigned long long)u->serial++);
        return u->temp;
}

/* Moves the finished temporary to its name. rename replaces a link instead of following
 * it, and refuses a directory. */
static int move_in(struct untar *u, int dir, const char *base)
{
        int r = renameat(dir, u->temp, dir, base) < 0 ? -errno : 0;
        /* A link that parent_path goes through may have been replaced just now. */
        size_t n = strlen(u->path);
        if (u->parent >= 0 && n <= u->parent_len && strncmp(u->path, u->parent_path, n) == 0)
                close_fd(&u->parent);
        return r;
}

static int write_at(int fd, const char *p, size_t n, off_t at)
{
        while (n) {
                ssize_t w = pwrite(fd, p, n, at);
                if (w < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                p += w;
                n -= (size_t)w;
                at += w;
        }
        return 0;
}

/* Holes stay holes: libarchive says where each piece belongs. Only what is written
 * counts against the limit, what is claimed was checked before. */
static int copy_data(struct untar *u, int fd, int64_t size)
{
        int64_t end = 0;
        for (;;) {
                const void *p;
                size_t n;
                la_int64_t at;
                u->in.call_left = CALL_BYTES;
                int r = archive_read_data_block(u->a, &p, &n, &at);
                if (r == ARCHIVE_EOF)
                        break;
                if (!readable(r))
                        return archive_failed(u);
                if (at < 0 || at > size || (uint64_t)n > (uint64_t)(size - at))
                        return fail_user(&u->err, -EINVAL,
                                         "invalid tar archive: data past its end");
                if (n > u->req->max_bytes - u->written)
                        return fail_user(&u->err, -EFBIG, "the archive unpacks to too much");
                r = write_at(fd, p, n, at);
                if (r < 0)
                        return place_failed(u, r);
                u->written += n;
                end = at + (int64_t)n;
        }
        if (end < size && ftruncate(fd, size) < 0)
                return place_failed(u, -errno);
        return 1;
}

/* Written under another name and moved when whole: a reader in the sandbox never sees
 * half a file, and a failed upload leaves the old one. It has its mode from the start:
 * whoever could read it early may read it a moment later. */
static int place_file(struct untar *u, struct archive_entry *e)
{
        const char *base;
        int64_t size = archive_entry_size(e);
        if (size < 0 || (uint64_t)size > u->req->max_bytes)
                return fail_user(&u->err, -EFBIG, "%.200s: file too large", u->path);
        int dir = open_parent(u, &base);
        if (dir < 0)
                return place_failed(u, dir);
        /* Not setuid, setgid or sticky; and whoever uploads a file may read it again. */
        mode_t mode = (archive_entry_perm(e) & 0777) | 0600;
        _cleanup_close_ int fd = openat(dir, next_temp(u),
                                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return place_failed(u, -errno);
        int r = copy_data(u, fd, size);
        if (r > 0) {
                struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, entry_time(e) };
                (void)futimens(fd, times);
                int moved = move_in(u, dir, base);
                if (moved == 0)
                        return 1;
                (void)unlinkat(dir, u->temp, 0);
                return place_failed(u, moved);
        }
        (void)unlinkat(dir, u->temp, 0);
        return r;
}

static int place_dir(struct untar *u, struct archive_entry *e)
{
        const char *base;
        int dir = open_parent(u, &base);
        if (dir < 0)
                return place_failed(u, dir);
        mode_t mode = (archive_entry_perm(e) & 0777) | 0700;
        if (mkdirat(dir, base, mode) < 0) {
                if (errno != EEXIST)
                        return place_failed(u, -errno);
                _cleanup_close_ int fd = openat(dir, base,
                                                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (fd >= 0)
                        (void)fchmod(fd, mode);
                else {
                        fd = below_open(u->dest, u->path, BELOW_DIR, BELOW_DEST);
                        if (fd < 0)
                                return place_failed(u, fd == -EXDEV ? fd : -EEXIST);
                }
        }
        /* Files made inside change a directory's time, so times come last. */
        if (archive_entry_mtime_is_set(e) && u->dir_times.len < DIR_TIMES_BYTES) {
                struct timespec t = entry_time(e);
                buf_add(&u->dir_times, u->path, strlen(u->path) + 1);
                buf_add(&u->dir_times, &t, sizeof t);
        }
        return 1;
}

static void apply_dir_times(struct untar *u)
{
        for (size_t at = 0; !u->dir_times.failed && at < u->dir_times.len;) {
                const char *path = u->dir_times.data + at;
                struct timespec times[2] = { { .tv_nsec = UTIME_NOW } };
                at += strlen(path) + 1;
                memcpy(&times[1], u->dir_times.data + at, sizeof times[1]);
                at += sizeof times[1];
                int fd = below_open(u->dest, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                                    BELOW_DEST | RESOLVE_NO_SYMLINKS);
                if (fd < 0)
                        continue;
                (void)futimens(fd, times);
                (void)close(fd);
        }
}

/* A link out of dest would be harmless here, in the sandbox's own root. It is refused
 * since whoever reads dest later from elsewhere may follow it. */
static int place_symlink(struct untar *u, struct archive_entry *e)
{
        const char *base, *target = archive_entry_symlink(e);
        if (!target || !*target)
                return skip(u, u->path, "symlink without a target");
        if (strlen(target) >= LIMIT_PATH_BYTES)
                return skip(u, u->path, "symlink target too long");
        if (!below_target(u->path, target))
                return skip(u, u->path, "symlink leaves the destination");
        int dir = open_parent(u, &base);
        if (dir < 0)
                return place_failed(u, dir);
        if (symlinkat(target, dir, next_temp(u)) < 0)
                return place_failed(u, -errno);
        struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, entry_time(e) };
        (void)utimensat(dir, u->temp, times, AT_SYMLINK_NOFOLLOW);
        int r = move_in(u, dir, base);
        if (r == 0)
                return 1;
        (void)unlinkat(dir, u->temp, 0);
        return place_failed(u, r);
}

/* A hard link to a link would give that link a second place to point from, and one to
 * anything outside would carry a stranger's file in: only regular files below dest. */
static int place_hardlink(struct untar *u, const char *name)
{
        char target[LIMIT_PATH_BYTES];
        const char *base, *why = below_clean(name, target);
        struct stat st;
        if (why || !*target)
                return skip(u, u->path, "hard link leaves the destination");
        char *slash = strrchr(target, '/');
        if (slash)
                *slash = '\0';
        _cleanup_close_ int from = below_open(u->dest, slash ? target : ".", BELOW_DIR, BELOW_DEST);
        const char *from_base = slash ? slash + 1 : target;
        if (from < 0 || fstatat(from, from_base, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return skip(u, u->path, "hard link to nothing in the destination");
        if (!S_ISREG(st.st_mode))
                return skip(u, u->path, "hard link to something that is no file");
        int dir = open_parent(u, &base);
        if (dir < 0)
                return place_failed(u, dir);
        if (linkat(from, from_base, dir, next_temp(u), 0) < 0)
                return errno == EPERM ? skip(u, u->path, "hard link not permitted")
                                      : place_failed(u, -errno);
        int r = move_in(u, dir, base);
        /* Of two links to the same file, rename leaves both. */
        (void)unlinkat(dir, u->temp, 0);
        return r < 0 ? place_failed(u, r) : 1;
}

static int place(struct untar *u, struct archive_entry *e)
{
        const char *name = archive_entry_pathname(e), *link = archive_entry_hardlink(e);
        if (!name)
                return skip(u, "", "unreadable name");
        const char *why = below_clean(name, u->path);
        if (why)
                return skip(u, name, why);
        if (!*u->path) {
                /* "./", which tar puts in front of everything, is dest: nothing to do. */
                if (!link && archive_entry_filetype(e) == AE_IFDIR)
                        return 0;
                return skip(u, name, "empty name");
        }
        if (link)
                return place_hardlink(u, link);
        switch (archive_entry_filetype(e)) {
        case AE_IFREG:
                return place_file(u, e);
        case AE_IFDIR:
                return place_dir(u, e);
        case AE_IFLNK:
                return place_symlink(u, e);
        default:
                return skip(u, name, "neither file, directory nor link");
        }
}

/* --- the whole ------------------------------------------------------------------ */

static la_ssize_t read_cb(struct archive *a, void *arg, const void **ret)
{
        (void)a;
        ssize_t n = intake_bytes(arg, ret);
        return n < 0 ? ARCHIVE_FATAL : n;
}

static int unpack(struct untar *u)
{
        struct archive_entry *e;
        const void *rest;
        for (;;) {
                u->in.call_left = CALL_BYTES;
                int r = archive_read_next_header(u->a, &e);
                if (r == ARCHIVE_EOF)
                        break;
                if (!readable(r))
                        return archive_failed(u);
                if (u->members++ >= u->req->max_members)
                        return fail_user(&u->err, -E2BIG, "the archive has over %llu members",
                                         (unsigned long long)u->req->max_members);
                r = place(u, e);
                if (r < 0)
                        return r;
                u->count += (uint64_t)r;
                u->in.call_left = UINT64_MAX;
                if (!readable(archive_read_data_skip(u->a)))
                        return archive_failed(u);
        }
        /* What follows the end mark is padding, yet gzip's check sum comes after it, and
         * without END the client may have sent half. */
        u->in.call_left = UINT64_MAX;
        ssize_t n;
        while ((n = intake_bytes(&u->in, &rest)) > 0)
                ;
        if (n < 0)
                return (int)n;
        if (!u->in.total)
                return fail_user(&u->err, -EINVAL, "invalid tar archive: it is empty");
        apply_dir_times(u);
        return 0;
}

/* Only tar, and no filters: libarchive shall not guess what else the bytes might be. Names
 * come as the bytes that they are as long as the locale is C: what cannot be converted is
 * handed on unchanged, with a warning (a test holds it to that). */
static int open_archive(struct untar *u)
{
        u->a = archive_read_new();
        if (!u->a)
                return fail_host(&u->err, -ENOMEM, "out of memory");
        u->in.call_left = CALL_BYTES;
        if (archive_read_support_format_tar(u->a) != ARCHIVE_OK)
                return fail_host(&u->err, -EIO, "cannot read archives");
        if (archive_read_open(u->a, &u->in, NULL, read_cb, NULL) != ARCHIVE_OK)
                return archive_failed(u);
        return 0;
}

static int open_dest(struct untar *u, int root_fd)
{
        _cleanup_free_ char *path = strdup(u->req->dest);
        if (!path)
                return fail_host(&u->err, -ENOMEM, "out of memory");
        u->dest = below_open(root_fd, path, BELOW_DIR, BELOW_ROOT);
        if (u->dest == -ENOENT)
                u->dest = below_make(root_fd, path, BELOW_ROOT);
        if (u->dest < 0)
                return fail_user(&u->err, u->dest, "cannot use %.200s as destination: %s",
                                 u->req->dest, strerror(-u->dest));
        return 0;
}

/* Closing while the server still sends would make the kernel answer with a reset that
 * overtakes the FAIL: so the rest is read and dropped, for a while. */
static int fail(struct untar *u)
{
        if (u->in.gone || answer_fail(u->in.conn, &u->err) < 0)
                return 1;
        (void)shutdown(u->in.conn, SHUT_WR);
        intake_drain(&u->in);
        return 1;
}

int untar_run(int root_fd, int conn, const struct untar_request *req)
{
        struct untar u = { .req = req, .dest = -1, .parent = -1 };
        uint64_t most;
        if (__builtin_mul_overflow(req->max_members, MEMBER_OVERHEAD, &most) ||
            __builtin_add_overflow(most, SLACK_BYTES, &most) ||
            __builtin_add_overflow(most, req->max_bytes, &most))
                most = UINT64_MAX;
        (void)signal(SIGPIPE, SIG_IGN);
        (void)signal(SIGXFSZ, SIG_IGN); /* a file too large is EFBIG, not our death */
        (void)umask(0);                 /* modes are meant as written */
        if (getrandom(&u.salt, sizeof u.salt, GRND_NONBLOCK) < 0)
                u.salt = (uint64_t)getpid(); /* O_EXCL still holds */
        int r = intake_open(&u.in, conn, most, &u.err);
        if (r == 0)
                r = open_dest(&u, root_fd);
        if (r == 0)
                r = open_archive(&u);
        if (r == 0)
                r = unpack(&u);
        if (r == 0)
                r = answer_totals(conn, FRAME_DONE, u.count, &u.skipped) < 0;
        else
                r = fail(&u);
        (void)archive_read_free(u.a);
        intake_close(&u.in);
        buf_free(&u.skipped.fields);
        buf_free(&u.dir_times);
        close_fd(&u.parent);
        close_fd(&u.dest);
        return r;
}
