/* Theory of operation. A namespace needs a process to be born in, so userns_make_pair
 * forks a helper: it gets the network namespace by clone (owned by our user namespace),
 * then makes the user namespace by unshare, and waits. Only the parent may write a map of
 * more than one id, so the helper asks over a socketpair ("u"), the parent writes the maps
 * and opens both namespaces through /proc/PID/ns, answers ("m"), the helper forbids nested
 * user namespaces and leaves; the parent reaps it. The fds keep the namespaces alive. */
#include "os/userns.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/clone.h"
#include "os/sys.h"

static int lo_up(void)
{
        _cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
        return ioctl(fd, SIOCSIFFLAGS, &ifr) < 0 ? -errno : 0;
}

/* What a step of the helper failed at, sent to the parent instead of "u". */
struct helper_report {
        char step; /* 'u' ready for the maps, 'd' done, anything else: the failed step */
        int error;
};

static void helper_say(int fd, char step, int error)
{
        struct helper_report r = { step, error };
        (void)!write(fd, &r, sizeof r);
}

static void helper_run(int proc_fd, int sock)
{
        int r = lo_up();
        if (r < 0) {
                helper_say(sock, 'l', r);
                _exit(1);
        }
        /* No capability over this namespace exists inside, so let any port be bound. */
        (void)file_write(proc_fd, "sys/net/ipv4/ip_unprivileged_port_start", "0");
        if (unshare(CLONE_NEWUSER) < 0) {
                helper_say(sock, 'n', -errno);
                _exit(1);
        }
        helper_say(sock, 'u', 0);
        char go;
        if (read(sock, &go, 1) != 1)
                _exit(1);
        /* Nested user namespaces would give fresh capabilities to whoever makes one; with
         * the limit at 0 even clone3, which seccomp cannot look into, makes none. */
        r = file_write(proc_fd, "sys/user/max_user_namespaces", "0");
        helper_say(sock, r < 0 ? 's' : 'd', r);
        _exit(0);
}

static int write_maps(int proc_fd, pid_t pid, const struct ns_map *map)
{
        char path[64], line[64];
        (void)snprintf(line, sizeof line, "%u %u %u\n", map->inside, map->outside, map->count);
        if (map->count == 1) {
                /* without privilege over other ids, gid_map needs this first */
                (void)snprintf(path, sizeof path, "%d/setgroups", pid);
                (void)file_write(proc_fd, path, "deny");
        }
        (void)snprintf(path, sizeof path, "%d/uid_map", pid);
        int r = file_write(proc_fd, path, line);
        if (r < 0)
                return r;
        (void)snprintf(path, sizeof path, "%d/gid_map", pid);
        return file_write(proc_fd, path, line);
}

static int talk_to_helper(int proc_fd, int sock, pid_t pid, const struct ns_map *map,
                          int *ret_user, int *ret_net, struct err *e)
{
        struct helper_report rep = { 0 };
        if (read(sock, &rep, sizeof rep) != sizeof rep || rep.step != 'u')
                return fail_host(e, rep.error ? rep.error : -EIO,
                                 "cannot make namespaces (step %c): %s", rep.step ? rep.step : '?',
                                 strerror(-rep.error));
        int r = write_maps(proc_fd, pid, map);
        if (r < 0)
                return fail_host(e, r, "cannot write the uid map %u %u %u: %s", map->inside,
                                 map->outside, map->count, strerror(-r));
        char path[64];
        (void)snprintf(path, sizeof path, "%d/ns/user", pid);
        _cleanup_close_ int user = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
        (void)snprintf(path, sizeof path, "%d/ns/net", pid);
        _cleanup_close_ int net = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
        if (user < 0 || net < 0)
                return fail_host(e, -errno, "cannot open fresh namespaces: %s", strerror(errno));
        if (write(sock, "m", 1) != 1 || read(sock, &rep, sizeof rep) != sizeof rep ||
            rep.step != 'd')
                return fail_host(e, rep.error ? rep.error : -EIO,
                                 "cannot forbid nested user namespaces: %s", strerror(-rep.error));
        *ret_user = steal_fd(&user);
        *ret_net = steal_fd(&net);
        return 0;
}

int userns_make_pair(int proc_fd, const struct ns_map *map, int *ret_user_fd, int *ret_net_fd,
                     struct err *e)
{
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                return fail_host(e, -errno, "socketpair: %s", strerror(errno));
        _cleanup_close_ int ours = sv[0];
        pid_t pid = clone_fork(CLONE_NEWNET, -1, NULL);
        if (pid == 0) {
                (void)close(sv[0]);
                helper_run(proc_fd, sv[1]);
        }
        (void)close(sv[1]);
        if (pid < 0)
                return fail_host(e, pid, "cannot make a network namespace: %s", strerror(-pid));
        int r = talk_to_helper(proc_fd, ours, pid, map, ret_user_fd, ret_net_fd, e);
        close_fd(&ours); /* a helper that still waits reads the end and leaves */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        return r;
}

int userns_enter_own(struct err *e)
{
        unsigned uid = geteuid(), gid = getegid();
        char line[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
                return fail_host(e, -errno,
                                 "cannot make an unprivileged user namespace: %s (see `cloche check`)",
                                 strerror(errno));
        int r = file_write(AT_FDCWD, "/proc/self/setgroups", "deny");
        (void)snprintf(line, sizeof line, "0 %u 1\n", uid);
        if (r == 0)
                r = file_write(AT_FDCWD, "/proc/self/uid_map", line);
        (void)snprintf(line, sizeof line, "0 %u 1\n", gid);
        if (r == 0)
                r = file_write(AT_FDCWD, "/proc/self/gid_map", line);
        if (r < 0)
                return fail_host(e, r, "cannot map uid %u into a user namespace: %s", uid,
                                 strerror(-r));
        return 0;
}
