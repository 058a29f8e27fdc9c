#include "os/userns.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/caps.h"
#include "os/sys.h"

#define BASE 0x38000000u

static int proc_fd = -1, user_fd = -1, net_fd = -1;

static bool make(void)
{
        struct ns_map map = { 0, BASE, 65536 };
        struct err e = { 0 };
        if (geteuid() != 0)
                return false;
        int r = userns_make_pair(proc_fd, &map, &user_fd, &net_fd, &e);
        if (r < 0)
                printf("%s\n", e.msg);
        return r == 0;
}

static void unmake(void)
{
        close_fd(&user_fd);
        close_fd(&net_fd);
}

static void enter(void)
{
        CHECK_INT(setns(net_fd, CLONE_NEWNET), 0);
        CHECK_INT(setns(user_fd, CLONE_NEWUSER), 0);
        CHECK_INT(syscall(SYS_setresgid, 0, 0, 0), 0);
        CHECK_INT(syscall(SYS_setresuid, 0, 0, 0), 0);
}

static void look_at_maps(void)
{
        char text[128];
        unsigned inside = 9, outside = 9, count = 9;
        enter();
        CHECK(file_read(AT_FDCWD, "/proc/self/uid_map", text, sizeof text) > 0);
        /* The reader's side of the map: from inside the outer ids have no other name. */
        CHECK(sscanf(text, "%u %u %u", &inside, &outside, &count) == 3 && inside == 0 && count == 65536);
        CHECK(getuid() == 0);
}

/* No capability over the network namespace, and no way to a further user namespace. */
static void try_to_get_out(void)
{
        enter();
        CHECK(unshare(CLONE_NEWUSER) < 0 && errno == ENOSPC);
        CHECK_INT(caps_set(caps_agent_mask()), 0); /* as an agent */
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        struct ifreq ifr = { .ifr_name = "lo" };
        CHECK(ioctl(fd, SIOCGIFFLAGS, &ifr) == 0 && (ifr.ifr_flags & IFF_UP));
        ifr.ifr_flags = 0;
        CHECK(ioctl(fd, SIOCSIFFLAGS, &ifr) < 0 && errno == EPERM);
        CHECK(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) < 0 && errno == EPERM);
        CHECK(file_write(AT_FDCWD, "/proc/sys/user/max_user_namespaces", "100") < 0);
        /* nested through clone: the same bound */
        pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0)
                _exit(0);
        CHECK(pid < 0);
        if (pid > 0)
                (void)waitpid(pid, NULL, 0);
}

static void use_the_network(void)
{
        enter();
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(80),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
        CHECK_INT(bind(l, (struct sockaddr *)&a, sizeof a), 0); /* any port, without privilege */
        CHECK_INT(listen(l, 1), 0);
        CHECK_INT(connect(c, (struct sockaddr *)&a, sizeof a), 0);
        a.sin_addr.s_addr = htonl(0x08080808);
        CHECK(connect(socket(AF_INET, SOCK_DGRAM, 0), (struct sockaddr *)&a, sizeof a) < 0 && errno == ENETUNREACH);
}

static void test_pair(void)
{
        if (!make())
                SKIP("needs root and user namespaces");
        struct stat a, b;
        CHECK(fstat(net_fd, &a) == 0 && stat("/proc/self/ns/net", &b) == 0 && a.st_ino != b.st_ino);
        CHECK(fstat(user_fd, &a) == 0 && stat("/proc/self/ns/user", &b) == 0 && a.st_ino != b.st_ino);
        CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD); /* the helper is reaped */
        check_in_child(look_at_maps);
        check_in_child(try_to_get_out);
        check_in_child(use_the_network);
        unmake();
}

static void test_bad_map(void)
{
        struct ns_map map = { 0, 0, 0 }; /* the kernel takes no empty range */
        struct err e = { 0 };
        int u = -5, n = -5;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(userns_make_pair(proc_fd, &map, &u, &n, &e) < 0);
        CHECK(strstr(e.msg, "uid map") != NULL);
        CHECK(u == -5 && n == -5);
        CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static void be_own_root(void)
{
        struct err e = { 0 };
        char text[128];
        unsigned inside, outside, count;
        CHECK_INT(setresgid(4321, 4321, 4321), 0);
        CHECK_INT(setresuid(4321, 4321, 4321), 0);
        int r = userns_enter_own(&e);
        if (r == -EPERM || r == -ENOSPC || r == -EACCES)
                return; /* this host forbids it: `cloche check` says so */
        CHECK_INT(r, 0);
        CHECK_INT(getuid(), 0);
        CHECK(file_read(AT_FDCWD, "/proc/self/uid_map", text, sizeof text) > 0);
        CHECK(sscanf(text, "%u %u %u", &inside, &outside, &count) == 3 && inside == 0 && outside == 4321 && count == 1);
        CHECK(file_read(AT_FDCWD, "/proc/self/setgroups", text, sizeof text) > 0 && strncmp(text, "deny", 4) == 0);
}

static void test_own(void)
{
        if (geteuid() != 0)
                SKIP("needs root to become another user");
        check_in_child(be_own_root);
}

int main(void)
{
        proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        RUN(test_pair);
        RUN(test_bad_map);
        RUN(test_own);
        (void)close(proc_fd);
        return check_done();
}
