#include "wire/fdpass.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static int sv[2];

static void pair(void)
{
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
                abort();
}

static void unpair(void)
{
        (void)close(sv[0]);
        (void)close(sv[1]);
}

static unsigned open_fds(void)
{
        unsigned n = 0;
        DIR *d = opendir("/proc/self/fd");
        while (d && readdir(d))
                n++;
        if (d)
                (void)closedir(d);
        return n;
}

/* What a peer that follows no rules sends. */
static void send_raw(const void *p, size_t n, unsigned fds)
{
        union { struct cmsghdr align; char room[CMSG_SPACE(16 * sizeof(int))]; } c = { 0 };
        struct iovec iov = { (void *)(uintptr_t)p, n };
        struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
        if (fds) {
                h.msg_control = &c;
                h.msg_controllen = CMSG_SPACE(fds * sizeof(int));
                struct cmsghdr *cm = CMSG_FIRSTHDR(&h);
                cm->cmsg_level = SOL_SOCKET;
                cm->cmsg_type = SCM_RIGHTS;
                cm->cmsg_len = CMSG_LEN(fds * sizeof(int));
                for (unsigned i = 0; i < fds; i++)
                        memcpy(CMSG_DATA(cm) + i * sizeof(int), &(int){ 0 }, sizeof(int));
        }
        CHECK(sendmsg(sv[0], &h, 0) == (ssize_t)n);
}

static void test_with_an_fd(void)
{
        char got[16] = "";
        int fd = -1, null = open("/dev/null", O_RDONLY);
        struct stat a, b;
        pair();
        CHECK_INT(fdpass_send(sv[0], "hello", 5, null), 0);
        CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), 5);
        CHECK(memcmp(got, "hello", 5) == 0);
        CHECK(fd >= 0 && fd != null);
        CHECK(fstat(fd, &a) == 0 && fstat(null, &b) == 0 && a.st_rdev == b.st_rdev);
        CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        (void)close(fd);
        (void)close(null);
        unpair();
}

static void test_without_an_fd(void)
{
        char got[16];
        int fd = 77;
        pair();
        CHECK_INT(fdpass_send(sv[0], "x", 1, -1), 0);
        CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), 1);
        CHECK_INT(fd, -1);
        CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), -EAGAIN);
        (void)close(sv[0]);
        CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), 0);
        CHECK_INT(fdpass_send(sv[1], "x", 1, -1), -EPIPE); /* and no SIGPIPE */
        CHECK_INT(fdpass_send(-1, "x", 1, -1), -EBADF);
        sv[0] = -1;
        unpair();
}

static void test_truncated_message(void)
{
        char got[4];
        int fd = 77;
        pair();
        unsigned before = open_fds();
        CHECK_INT(fdpass_send(sv[0], "longer than that", 16, 0), 0);
        CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), -EPROTO);
        CHECK_INT(fd, -1);
        CHECK_INT(open_fds(), before);
        unpair();
}

/* Any number of fds: none is kept, none is leaked, the socket still works. */
static void test_several_fds(void)
{
        pair();
        unsigned before = open_fds();
        for (unsigned n = 2; n <= 16; n++) {
                char got[16];
                int fd = 77;
                send_raw("many", 4, n);
                CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), -EPROTO);
                CHECK_INT(fd, -1);
                CHECK_INT(open_fds(), before);
        }
        char got[16];
        int fd = 77;
        send_raw("one", 3, 1);
        CHECK_INT(fdpass_recv(sv[1], got, sizeof got, &fd), 3);
        CHECK(fd >= 0);
        (void)close(fd);
        CHECK_INT(open_fds(), before);
        unpair();
}

static void test_full_socket(void)
{
        pair();
        char block[4096] = "";
        int r = 0;
        for (unsigned i = 0; i < 100000 && r == 0; i++)
                r = fdpass_send(sv[0], block, sizeof block, -1);
        CHECK_INT(r, -EAGAIN);
        unpair();
}

int main(void)
{
        RUN(test_with_an_fd);
        RUN(test_without_an_fd);
        RUN(test_truncated_message);
        RUN(test_several_fds);
        RUN(test_full_socket);
        return check_done();
}
