#include "agent/below.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"

const char *below_clean(const char *name, char out[LIMIT_PATH_BYTES])
{
        size_t len = 0;
        if (strnlen(name, LIMIT_PATH_BYTES + 1) > LIMIT_PATH_BYTES)
                return "name too long";
        for (const char *p = name; *p;) {
                size_t n = strcspn(p, "/");
                if (n == 2 && p[0] == '.' && p[1] == '.')
                        return "\"..\" in its name";
                if (n > NAME_MAX)
                        return "a part of its name is over 255 bytes";
                if (n && !(n == 1 && p[0] == '.')) {
                        if (len + 1 + n >= LIMIT_PATH_BYTES)
                                return "name too long";
                        if (len)
                                out[len++] = '/';
                        memcpy(out + len, p, n);
                        len += n;
                }
                p += n + (p[n] == '/');
        }
        out[len] = '\0';
        return NULL;
}

/* EAGAIN: somebody renames directories while a link with ".." is followed, and the
 * kernel cannot tell whether it left. A sandbox that goes on doing so loses the member. */
int below_open(int base, const char *path, int flags, uint64_t resolve)
{
        for (int tries = 0;; tries++) {
                int fd = sys_openat2(base, path, (uint64_t)flags, 0, resolve);
                if (fd >= 0)
                        return fd;
                if (errno != EAGAIN || tries == 32)
                        return -errno;
        }
}

/* Links are the kernel's to resolve, from base and by the caller's rule: only plain
 * names are opened from the directory reached so far. */
int below_make(int base, char *path, uint64_t resolve)
{
        _cleanup_close_ int cur = -1;
        for (char *p = path; *p;) {
                size_t n = strcspn(p, "/");
                char *end = p + n, kept = *end;
                if (n) {
                        int from = cur >= 0 ? cur : base, fd = -ENOTDIR;
                        *end = '\0';
                        if (strcmp(p, "..") != 0) {
                                int made = mkdirat(from, p, 0755);
                                if (made < 0 && errno != EEXIST)
                                        fd = -errno;
                                else if ((fd = openat(from, p, BELOW_DIR | O_NOFOLLOW)) < 0)
                                        fd = -errno;
                        }
                        if (fd == -ENOTDIR || fd == -ELOOP)
                                fd = below_open(base, path, BELOW_DIR, resolve);
                        *end = kept;
                        if (fd < 0)
                                return fd;
                        close_fd(&cur);
                        cur = fd;
                }
                p = end + (kept == '/');
        }
        return cur >= 0 ? steal_fd(&cur) : below_open(base, ".", BELOW_DIR, resolve);
}

bool below_target(const char *path, const char *target)
{
        long depth = 0;
        if (*target == '/')
                return false;
        for (const char *p = path; *p; p++)
                depth += *p == '/';
        for (const char *p = target; *p;) {
                size_t n = strcspn(p, "/");
                if (n == 2 && p[0] == '.' && p[1] == '.')
                        depth--;
                else if (n && !(n == 1 && p[0] == '.'))
                        depth++;
                if (depth < 0)
                        return false;
                p += n + (p[n] == '/');
        }
        return true;
}
