#include "wire/fdpass.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union control {
        struct cmsghdr align;
        char room[CMSG_SPACE(4 * sizeof(int))]; /* more than allowed, to see and close them */
};

int fdpass_send(int sock, const void *msg, size_t n, int fd)
{
        union control c = { 0 };
        struct iovec iov = { (void *)(uintptr_t)msg, n };
        struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
        if (fd >= 0) {
                h.msg_control = &c;
                h.msg_controllen = CMSG_SPACE(sizeof fd);
                struct cmsghdr *cm = CMSG_FIRSTHDR(&h);
                *cm = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(sizeof fd) };
                memcpy(CMSG_DATA(cm), &fd, sizeof fd);
        }
        ssize_t w;
        while ((w = sendmsg(sock, &h, MSG_NOSIGNAL)) < 0 && errno == EINTR)
                ;
        return w < 0 ? -errno : (size_t)w == n ? 0 : -EIO;
}

static int collect_fds(struct msghdr *h, int *ret_fd)
{
        int count = 0;
        *ret_fd = -1;
        for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
                if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n; i++) {
                        int fd;
                        memcpy(&fd, CMSG_DATA(cm) + i * sizeof fd, sizeof fd);
                        if (count++ == 0)
                                *ret_fd = fd;
                        else
                                (void)close(fd);
                }
        }
        return count;
}

ssize_t fdpass_recv(int sock, void *msg, size_t n, int *ret_fd)
{
        union control c;
        struct iovec iov = { msg, n };
        struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c };
        ssize_t r;
        while ((r = recvmsg(sock, &h, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
                ;
        if (r < 0)
                return -errno;
        int count = collect_fds(&h, ret_fd);
        /* MSG_CTRUNC: the fd could not be had here (we are out of them). The message itself
         * is whole; without its fd the receiver can still answer it. */
        if (count > 1 || (h.msg_flags & MSG_TRUNC)) {
                if (*ret_fd >= 0)
                        (void)close(*ret_fd);
                *ret_fd = -1;
                return -EPROTO;
        }
        return r;
}
