#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "os/sys.h"

int file_write(int dfd, const char *path, const char *text)
{
        _cleanup_close_ int fd = openat(dfd, path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        size_t n = strlen(text);
        ssize_t w = write(fd, text, n);
        if (w < 0)
                return -errno;
        return (size_t)w == n ? 0 : -EIO;
}

int file_read(int dfd, const char *path, char *out, size_t size)
{
        _cleanup_close_ int fd = openat(dfd, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        size_t got = 0;
        while (got < size - 1) {
                ssize_t r = read(fd, out + got, size - 1 - got);
                if (r < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (r == 0)
                        break;
                got += (size_t)r;
        }
        out[got] = '\0';
        return (int)got;
}
