#include "image/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define COPY_MAX_BYTES (32 * 1024 * 1024) /* certificate bundles are below one MiB */
#define COPY_MAX_DEPTH 8

static void closedirp(DIR **d)
{
        if (*d)
                (void)closedir(*d);
}
#define _cleanup_dir_ _cleanup_(closedirp)

/* Opens a directory below dir without following a link in the last step. */
static int list_at(int dir, const char *name, DIR **ret)
{
        _cleanup_close_ int fd =
                openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        DIR *d = fdopendir(fd);
        if (!d)
                return -errno;
        (void)steal_fd(&fd);
        *ret = d;
        return 0;
}

static bool is_dots(const char *name)
{
        return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int tree_remove(int dir, const char *name)
{
        if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno != EISDIR && errno != EPERM)
                return -errno;
        _cleanup_dir_ DIR *d = NULL;
        int r = list_at(dir, name, &d);
        if (r == -EACCES && fchmodat(dir, name, 0700, 0) == 0) /* our own, mode 0000 */
                r = list_at(dir, name, &d);
        if (r < 0)
                return r;
        /* Without w and x on the directory its owner cannot empty it. */
        (void)fchmod(dirfd(d), 0700);
        int first = 0;
        for (const struct dirent *de; (de = readdir(d));) {
                if (is_dots(de->d_name))
                        continue;
                r = tree_remove(dirfd(d), de->d_name);
                if (r < 0 && first == 0)
                        first = r;
        }
        if (first < 0)
                return first;
        if (unlinkat(dir, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                return -errno;
        return 0;
}

int tree_strip_devices(int dir, struct err *e)
{
        _cleanup_dir_ DIR *d = NULL;
        int r = list_at(dir, ".", &d);
        if (r < 0)
                return fail_host(e, r, "cannot look for devices: %s", strerror(-r));
        for (const struct dirent *de; (de = readdir(d));) {
                struct stat st;
                if (is_dots(de->d_name))
                        continue;
                if (fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return fail_host(e, -errno, "cannot look at %s: %s", de->d_name,
                                         strerror(errno));
                if (S_ISBLK(st.st_mode) || S_ISCHR(st.st_mode)) {
                        if (unlinkat(dirfd(d), de->d_name, 0) < 0)
                                return fail_host(e, -errno, "cannot remove device %s: %s",
                                                 de->d_name, strerror(errno));
                } else if (S_ISDIR(st.st_mode)) {
                        _cleanup_close_ int sub =
                                openat(dirfd(d), de->d_name,
                                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                        if (sub < 0)
                                return fail_host(e, -errno, "cannot open %s: %s", de->d_name,
                                                 strerror(errno));
                        r = tree_strip_devices(sub, e);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

/* --- copying --- */

static bool looks_secret(const char *name, const char *data, size_t n)
{
        static const char *const endings[] = { ".key", ".password", ".p12", ".pfx", "private" };
        size_t length = strlen(name);
        for (size_t i = 0; i < ARRAY_SIZE(endings); i++) {
                size_t tail = strlen(endings[i]);
                if (length >= tail && strcmp(name + length - tail, endings[i]) == 0)
                        return true;
        }
        /* A certificate file may carry its key in the same text. */
        return data && memmem(data, n, "PRIVATE KEY-----", strlen("PRIVATE KEY-----"));
}

static int write_all(int fd, const char *p, size_t n)
{
        while (n > 0) {
                ssize_t put = write(fd, p, n);
                if (put < 0 && errno == EINTR)
                        continue;
                if (put < 0)
                        return -errno;
                p += put;
                n -= (size_t)put;
        }
        return 0;
}

static int read_all(int fd, size_t n, char **ret, size_t *ret_n)
{
        _cleanup_free_ char *data = malloc(n + 1);
        size_t at = 0;
        if (!data)
                return -ENOMEM;
        while (at < n) {
                ssize_t got = read(fd, data + at, n - at);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return -errno;
                if (got == 0)
                        break;
                at += (size_t)got;
        }
        *ret = steal_ptr(&data);
        *ret_n = at;
        return 0;
}

/* src_fd is open for reading, a regular file. */
static int copy_file(int src_fd, const char *name, int dst, const char *dst_name)
{
        struct stat st;
        _cleanup_free_ char *data = NULL;
        size_t n = 0;
        if (fstat(src_fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || !(st.st_mode & S_IROTH) || st.st_size > COPY_MAX_BYTES)
                return 0;
        int r = read_all(src_fd, (size_t)st.st_size, &data, &n);
        if (r < 0)
                return r;
        if (looks_secret(name, data, n))
                return 0;
        _cleanup_close_ int out =
                openat(dst, dst_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (out < 0)
                return -errno;
        r = write_all(out, data, n);
        if (r < 0)
                return r;
        return fchmod(out, st.st_mode & S_IXOTH ? 0755 : 0644) < 0 ? -errno : 0;
}

/* A file that all may read is no more public than the directories on the way to it: one in
 * /etc/ssl/private must not come out through a link in /etc/ssl/certs. */
static bool everybody_reaches(const char *real)
{
        char dir[PATH_MAX];
        for (const char *p = strchr(real + 1, '/'); p; p = strchr(p + 1, '/')) {
                struct stat st;
                (void)snprintf(dir, sizeof dir, "%.*s", (int)(p - real), real);
                if (stat(dir, &st) < 0 || !(st.st_mode & S_IXOTH))
                        return false;
        }
        return true;
}

static int copy_link(int src, const char *name, int dst, const char *dst_name, bool verbatim)
{
        char target[PATH_MAX], via[64], real[PATH_MAX];
        ssize_t n = readlinkat(src, name, target, sizeof target - 1);
        if (n < 0)
                return -errno;
        target[n] = '\0';
        if (verbatim || !strchr(target, '/'))
                return symlinkat(target, dst, dst_name) < 0 ? -errno : 0;
        _cleanup_close_ int fd = openat(src, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return 0; /* dangling on the host: nothing to show */
        (void)snprintf(via, sizeof via, "/proc/self/fd/%d", fd);
        n = readlink(via, real, sizeof real - 1);
        if (n < 0)
                return -errno;
        real[n] = '\0';
        /* Fedora's /etc/ssl/certs leads to /etc/pki, whose public parts are copied too. */
        if (strncmp(real, "/usr/", 5) == 0 || strncmp(real, "/etc/pki/", 9) == 0)
                return symlinkat(real, dst, dst_name) < 0 ? -errno : 0;
        return everybody_reaches(real) ? copy_file(fd, real, dst, dst_name) : 0;
}

static int copy_at(int src, const char *name, int dst, const char *dst_name, bool verbatim,
                   int depth);

static int copy_dir(int src, const char *name, int dst, const char *dst_name, bool verbatim,
                    int depth)
{
        _cleanup_dir_ DIR *d = NULL;
        if (depth > COPY_MAX_DEPTH)
                return -ELOOP;
        int r = list_at(src, name, &d);
        if (r < 0)
                return r;
        if (mkdirat(dst, dst_name, 0755) < 0)
                return -errno;
        _cleanup_close_ int out =
                openat(dst, dst_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (out < 0 || fchmod(out, 0755) < 0)
                return -errno;
        for (const struct dirent *de; (de = readdir(d));) {
                if (is_dots(de->d_name))
                        continue;
                r = copy_at(dirfd(d), de->d_name, out, de->d_name, verbatim, depth + 1);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int copy_at(int src, const char *name, int dst, const char *dst_name, bool verbatim,
                   int depth)
{
        struct stat st;
        if (fstatat(src, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (looks_secret(name, NULL, 0))
                return 0;
        if (S_ISLNK(st.st_mode))
                return copy_link(src, name, dst, dst_name, verbatim);
        /* Not for everybody on the host, so not for sandboxes. */
        mode_t needed = S_ISDIR(st.st_mode) ? S_IROTH | S_IXOTH : S_IROTH;
        if ((st.st_mode & needed) != needed)
                return 0;
        if (S_ISDIR(st.st_mode))
                return copy_dir(src, name, dst, dst_name, verbatim, depth);
        if (!S_ISREG(st.st_mode))
                return 0;
        _cleanup_close_ int fd = openat(src, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return errno == ENOENT ? 0 : -errno;
        return copy_file(fd, name, dst, dst_name);
}

int tree_copy_public(int src, const char *name, int dst, const char *dst_name,
                     bool links_as_they_are, struct err *e)
{
        int r = copy_at(src, name, dst, dst_name, links_as_they_are, 0);
        if (r < 0)
                return fail_host(e, r, "cannot copy %s: %s", name, strerror(-r));
        return 0;
}
