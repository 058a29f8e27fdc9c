#include "os/netns.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/sys.h"
#include "os/userns.h"

static int proc_fd, own;

static int fresh(void)
{
        struct ns_map map = { 0, 0x38000000u, 65536 };
        struct err e = { 0 };
        int user = -1, net = -1;
        if (userns_make_pair(proc_fd, &map, &user, &net, &e) < 0)
                return -1;
        (void)close(user);
        return net;
}

static void tcp_to_self(void)
{
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof a;
        int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(l, (struct sockaddr *)&a, n) < 0 || listen(l, 1) < 0 || getsockname(l, (struct sockaddr *)&a, &n) < 0 ||
            connect(c, (struct sockaddr *)&a, n) < 0)
                _exit(1);
}

static void refused_connection(void)
{
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        if (connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&a, sizeof a) == 0 || errno != ECONNREFUSED)
                _exit(1);
}

static void udp_to_self(void)
{
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        if (sendto(socket(AF_INET, SOCK_DGRAM, 0), "x", 1, 0, (struct sockaddr *)&a, sizeof a) != 1)
                _exit(1);
}

static void udp6_to_self(void)
{
        struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT };
        int fd = socket(AF_INET6, SOCK_DGRAM, 0);
        if (fd < 0 || sendto(fd, "x", 1, 0, (struct sockaddr *)&a, sizeof a) != 1)
                _exit(77); /* no IPv6 here */
}

static void unix_only(void)
{
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0 || write(sv[0], "x", 1) != 1)
                _exit(1);
}

static int use(int net, void (*fn)(void))
{
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
                if (setns(net, CLONE_NEWNET) < 0)
                        _exit(2);
                fn();
                _exit(0);
        }
        (void)waitpid(pid, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_untouched(void)
{
        struct stat before, after;
        if (geteuid() != 0)
                SKIP("needs root");
        int net = fresh();
        if (net < 0)
                SKIP("no namespaces here");
        CHECK(!netns_untouched(proc_fd, own, net)); /* nothing to compare with yet */
        CHECK_INT(netns_baseline(proc_fd, own, net), 0);
        CHECK(netns_untouched(proc_fd, own, net));
        (void)close(net);
        static const struct { const char *what; void (*fn)(void); bool untouched; } rows[] = {
                { "nothing", NULL, true },
                { "unix sockets", unix_only, true },
                { "a TCP connection to itself", tcp_to_self, false },
                { "a refused connection", refused_connection, false },
                { "a datagram", udp_to_self, false },
                { "a datagram over IPv6", udp6_to_self, false },
        };
        (void)stat("/proc/self/ns/net", &before);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                net = fresh();
                int r = rows[i].fn ? use(net, rows[i].fn) : 0;
                if (r == 77) {
                        (void)close(net);
                        continue;
                }
                CHECK_INT(r, 0);
                if (netns_untouched(proc_fd, own, net) != rows[i].untouched) {
                        printf("after %s\n", rows[i].what);
                        CHECK(!"the verdict is right");
                }
                (void)close(net);
        }
        (void)stat("/proc/self/ns/net", &after);
        CHECK(before.st_ino == after.st_ino); /* we are where we were */
        CHECK(!netns_untouched(proc_fd, own, proc_fd)); /* no namespace at all */
}

/* A connection of the host that its owner has closed with bytes nobody reads: an orphan. */
static bool make_orphan(int keep[2])
{
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof a;
        static char block[1 << 20];
        int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        keep[0] = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(keep[0], (struct sockaddr *)&a, n) < 0 || listen(keep[0], 1) < 0 ||
            getsockname(keep[0], (struct sockaddr *)&a, &n) < 0)
                return false;
        (void)!connect(c, (struct sockaddr *)&a, n);
        keep[1] = accept(keep[0], NULL, NULL);
        for (int i = 0; i < 100 && send(c, block, sizeof block, MSG_NOSIGNAL) > 0; i++)
                ;
        (void)close(c);
        return keep[1] >= 0;
}

/* Orphaned connections are counted for the whole machine: they say nothing of a namespace. */
static void test_bug_orphans_of_the_host(void)
{
        int keep[2] = { -1, -1 };
        if (geteuid() != 0)
                SKIP("needs root");
        int a = fresh();
        if (a < 0)
                SKIP("no namespaces here");
        CHECK_INT(netns_baseline(proc_fd, own, a), 0);
        if (!make_orphan(keep))
                SKIP("no loopback here");
        CHECK(netns_untouched(proc_fd, own, a));
        int b = fresh();
        CHECK(netns_untouched(proc_fd, own, b));
        (void)close(keep[0]);
        (void)close(keep[1]);
        (void)close(a);
        (void)close(b);
}

int main(void)
{
        proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        RUN(test_untouched);
        RUN(test_bug_orphans_of_the_host);
        (void)close(proc_fd);
        (void)close(own);
        return check_done();
}
