/* A command shares the agent's memory until its exec: in that moment /proc/self/exe means our
 * own program, and whoever may name what is executed (a request, the first line of a script,
 * a symlink) can name it. Run from a file of the host, it would enter the sandbox that way
 * (CVE-2019-5736 wrote to it), and its path would tell about the host. */
#include "os/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static int copy_all(int from, int to)
{
        for (;;) {
                ssize_t n = sendfile(to, from, NULL, 1 << 30);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : 0;
        }
}

static int make_copy(const char *name, int from)
{
        _cleanup_close_ int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
        if (fd < 0 && errno == EINVAL) /* before 6.3, where every memfd can be executed */
                fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int r = fd < 0 ? -errno : copy_all(from, fd);
        if (r == 0 && (fchmod(fd, 0500) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0))
                r = -errno;
        return r < 0 ? r : steal_fd(&fd);
}

int sealed_exec(const char *name, int argc, char **argv)
{
        extern char **environ;
        _cleanup_close_ int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        if (self < 0)
                return -errno;
        int seals = fcntl(self, F_GET_SEALS);
        if (seals >= 0 && (seals & SEALS) == SEALS)
                return 0;
        _cleanup_close_ int copy = make_copy(name, self);
        if (copy < 0)
                return copy;
        _cleanup_free_ char **args = calloc((size_t)argc + 1, sizeof *args);
        if (!args)
                return -ENOMEM;
        memcpy(args, argv, (size_t)argc * sizeof *args);
        args[0] = (char *)(uintptr_t)name;
        (void)fexecve(copy, args, environ);
        return -errno;
}
