/* Theory of operation. Forked by the server before that has threads, sockets or memory to
 * speak of, and never exec'd: an agent is a fork of this process, so what is mapped here
 * is shared by all agents. It gives up the host's file system first (rootfs_stage), keeps
 * fds of /proc and its cgroups, and then serves one socket: CREATE, ADOPT, DESTROY, SWEEP.
 * It waits for nothing but its epoll: a birth reports over a pipe, a death shows on a
 * pidfd. When the server's end of the socket closes it removes what is idle and leaves;
 * sandboxes live on without it. It holds no fd for a live sandbox, so that its forks cost
 * the same with one sandbox as with thousands. */
#include "keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/limits.h"
#include "keeper/birth.h"
#include "keeper/slot.h"
#include "os/clone.h"
#include "os/sys.h"
#include "os/userns.h"
#include "wire/fdpass.h"

static struct {
        struct source server;
        struct slots slots;
        struct rootfs_stage stage;
        struct seccomp_filter filter;
        char cpuinfo[4096];
} keeper;

static void reply(const struct keeper_reply *r, int fd)
{
        int sent = fdpass_send(keeper.server.fd, r, sizeof *r, fd);
        if (sent == -EAGAIN) {
                /* The server is slow to read. Waiting here is right: more work for it
                 * would only make it slower. */
                struct pollfd p = { keeper.server.fd, POLLOUT, 0 };
                (void)poll(&p, 1, -1);
                (void)fdpass_send(keeper.server.fd, r, sizeof *r, fd);
        }
}

static void reply_error(uint32_t op, uint64_t cookie, const struct err *e)
{
        struct keeper_reply r = { .op = op, .cookie = cookie, .code = e->code ? e->code : -EIO };
        (void)snprintf(r.msg, sizeof r.msg, "%.255s", e->msg);
        reply(&r, -1);
}

static void answer_destroyed(const struct slot *slot)
{
        struct keeper_reply r = { .op = KEEPER_DESTROY, .cookie = slot->cookie, .slot = slot->number };
        reply(&r, -1);
}

/* --- death ------------------------------------------------------------------------ */

/* The agent, and with it its whole pid and mount namespace, is gone. */
static void on_dead(struct source *s, uint32_t events)
{
        (void)events;
        struct slot *slot = (struct slot *)((char *)s - offsetof(struct slot, src));
        (void)waitpid(slot->pid, NULL, WNOHANG); /* ECHILD for an adopted one */
        loop_remove(s);
        answer_destroyed(slot);
        /* The rest is not on the asker's path any more; but the server may have been woken on
         * this processor, and would wait for the end of it. */
        (void)sched_yield();
        slot_release(&keeper.slots, slot);
}

static void await_death(struct slot *slot, int pidfd)
{
        slot->state = SLOT_DYING;
        (void)sys_pidfd_send_signal(pidfd, SIGKILL); /* pid 1: its whole namespace goes */
        slot->src = (struct source){ pidfd, on_dead };
        if (loop_add(&slot->src, EPOLLIN) < 0)
                abort();
}

/* --- birth ------------------------------------------------------------------------ */

static void on_ready(struct source *s, uint32_t events)
{
        (void)events;
        struct slot *slot = (struct slot *)((char *)s - offsetof(struct slot, src));
        struct agent_ready ready = { .code = -EIO, .msg = "the agent died while it was set up" };
        (void)!read(s->fd, &ready, sizeof ready);
        loop_remove(s);
        close_fd(&slot->user_ns); /* the agent holds them now */
        close_fd(&slot->net_ns);
        if (ready.code == 0) {
                struct keeper_reply r = { .op = KEEPER_CREATE, .cookie = slot->cookie,
                                          .slot = slot->number, .pid = slot->pid };
                slot->state = SLOT_LIVE;
                reply(&r, slot->pidfd);
                close_fd(&slot->pidfd);
                return;
        }
        int status = 0;
        while (waitpid(slot->pid, &status, 0) < 0 && errno == EINTR)
                ;
        struct err e = { .code = ready.code };
        if (WIFSIGNALED(status))
                (void)snprintf(e.msg, sizeof e.msg, "%.200s (signal %d)", ready.msg, WTERMSIG(status));
        else
                (void)snprintf(e.msg, sizeof e.msg, "%.255s", ready.msg);
        reply_error(KEEPER_CREATE, slot->cookie, &e);
        close_fd(&slot->pidfd);
        slot_free(&keeper.slots, slot);
}

static int check_create(const struct keeper_request *q, int fd, struct err *e)
{
        if (fd < 0 || memchr(q->name, 0, sizeof q->name) == NULL || !q->name[0] ||
            q->image >= keeper.stage.image_count || q->cpu_millis < MIN_CPU_MILLIS ||
            q->cpu_millis > MAX_CPU_MILLIS || q->memory < MIN_MEMORY_BYTES || q->memory > MAX_MEMORY_BYTES ||
            q->storage < MIN_STORAGE_BYTES || q->storage > MAX_STORAGE_BYTES || q->inodes < MIN_INODES ||
            q->pids == 0 || q->pids > 1u << 22)
                return fail_host(e, -EINVAL, "the keeper refuses a malformed request");
        for (const char *p = q->name; *p; p++)
                if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-", *p))
                        return fail_host(e, -EINVAL, "the keeper refuses a sandbox name");
        return 0;
}

static int start_birth(const struct keeper_request *q, struct slot *slot, int listen_fd, struct err *e)
{
        struct cg_limits limits = { q->memory, q->pids, q->cpu_millis };
        int p[2];
        int r = slot_limit(&keeper.slots, slot, &limits, e);
        if (r < 0)
                return r;
        _cleanup_close_ int born_in = cg_slot_agent_dir(&keeper.slots.cg, slot->number);
        if (born_in < 0 && keeper.slots.cg.v2 >= 0)
                return fail_host(e, -errno, "cannot open the agent's cgroup: %s", strerror(errno));
        if (pipe2(p, O_CLOEXEC) < 0)
                return fail_host(e, -errno, "pipe: %s", strerror(errno));
        struct slot copy = *slot; /* the table itself is not there in the child */
        struct birth b = { &keeper.slots, &copy, &keeper.stage, &keeper.filter, keeper.cpuinfo, q,
                           listen_fd, p[1] };
        pid_t pid = clone_fork(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
                               born_in, &slot->pidfd);
        if (pid == 0)
                birth_run(&b);
        (void)close(p[1]);
        slot->src = (struct source){ p[0], on_ready };
        if (pid < 0 || loop_add(&slot->src, EPOLLIN) < 0) {
                (void)close(p[0]);
                return fail_host(e, pid < 0 ? pid : -EIO, "cannot clone an agent: %s", strerror(pid < 0 ? -pid : EIO));
        }
        slot->pid = pid;
        slot->ours = true;
        slot->cookie = q->cookie;
        slot->state = SLOT_BIRTH;
        return 0;
}

static void do_create(const struct keeper_request *q, int fd)
{
        struct err e = { 0 };
        struct slot *slot = NULL;
        int r = check_create(q, fd, &e);
        if (r == 0)
                r = slot_take(&keeper.slots, &slot, &e);
        if (r == 0)
                r = start_birth(q, slot, fd, &e);
        if (r < 0) {
                if (slot)
                        slot_free(&keeper.slots, slot);
                reply_error(KEEPER_CREATE, q->cookie, &e);
        }
}

/* --- the other requests -------------------------------------------------------------- */

/* Which process a pidfd means, in our pid namespace; 0 when it is gone or none. */
static pid_t pidfd_pid(int pidfd)
{
        char path[64], text[1024];
        struct sys_pidfd_info info = { .mask = 1 /* PIDFD_INFO_PID */ };
        if (pidfd >= 0 && ioctl(pidfd, SYS_PIDFD_GET_INFO, &info) == 0)
                return info.pid > 1 ? (pid_t)info.pid : 0;
        (void)snprintf(path, sizeof path, "self/fdinfo/%d", pidfd);
        if (pidfd < 0 || file_read(keeper.slots.proc_fd, path, text, sizeof text) <= 0)
                return 0;
        const char *p = strstr(text, "\nPid:");
        int pid = p ? atoi(p + 5) : 0;
        return pid > 1 ? pid : 0;
}

/* An adopted process must really live in that slot's user ids: a server that was taken
 * over must not make us kill what it likes. */
static bool lives_in_slot(pid_t pid, const struct slot *slot)
{
        char path[64], text[256];
        unsigned inside, outside;
        (void)snprintf(path, sizeof path, "%d/uid_map", pid);
        if (file_read(keeper.slots.proc_fd, path, text, sizeof text) <= 0 ||
            sscanf(text, "%u %u", &inside, &outside) != 2)
                return false;
        return keeper.slots.privileged ? outside == slot_base_uid(&keeper.slots, slot) : inside == SANDBOX_UID;
}

static void do_adopt(const struct keeper_request *q, int pidfd)
{
        struct keeper_reply r = { .op = KEEPER_ADOPT, .cookie = q->cookie, .slot = q->slot };
        pid_t pid = pidfd_pid(pidfd);
        struct slot *slot = q->slot < keeper.slots.count ? &keeper.slots.all[q->slot] : NULL;
        if (!slot || slot->state != SLOT_FREE || !pid || !lives_in_slot(pid, slot))
                r.code = -EINVAL;
        else {
                slot->state = SLOT_LIVE;
                slot->pid = pid;
        }
        reply(&r, -1);
}

/* Finds the one process that a DESTROY may end: the slot's agent. 1 and *pidfd means it, 0
 * when it is gone already, negative when the request does not fit. */
static int find_agent(const struct slot *slot, int *pidfd)
{
        pid_t pid = pidfd_pid(*pidfd);
        /* An adopted agent's number may be another process's by now. */
        if (pid == slot->pid && (slot->ours || lives_in_slot(pid, slot)))
                return 1;
        if (slot->ours && *pidfd < 0) {
                /* A server without fds to spare attaches none. Our own child's pid means it
                 * until we reap it. */
                *pidfd = sys_pidfd_open(slot->pid, 0);
                return *pidfd < 0 ? -errno : 1;
        }
        /* An adopted agent that died was reaped by init: its pidfd tells no pid any more. */
        return !slot->ours && *pidfd >= 0 && !pid && !lives_in_slot(slot->pid, slot) ? 0 : -EINVAL;
}

static void do_destroy(const struct keeper_request *q, int *pidfd)
{
        struct err e = { 0 };
        struct slot *slot = q->slot < keeper.slots.count ? &keeper.slots.all[q->slot] : NULL;
        int r = slot && slot->state == SLOT_LIVE ? find_agent(slot, pidfd) : -EINVAL;
        if (r < 0) {
                (void)fail_host(&e, r, "the keeper refuses to end what is not the agent of slot %u", q->slot);
                reply_error(KEEPER_DESTROY, q->cookie, &e);
                return;
        }
        slot->cookie = q->cookie;
        if (r > 0) {
                slot_keep_namespaces(&keeper.slots, slot, *pidfd);
                await_death(slot, steal_fd(pidfd));
                return;
        }
        answer_destroyed(slot);
        slot_release(&keeper.slots, slot);
}

/* For an agent that cannot: a command that is stopped between vfork and exec holds it up. */
static void do_kill(const struct keeper_request *q)
{
        struct keeper_reply r = { .op = KEEPER_KILL, .cookie = q->cookie, .slot = q->slot, .code = -EINVAL };
        if (q->slot < keeper.slots.count && keeper.slots.all[q->slot].state == SLOT_LIVE)
                r.code = cg_slot_kill_commands(&keeper.slots.cg, q->slot);
        reply(&r, -1);
}

static void sweep_slot(unsigned number, void *user)
{
        (void)user;
        struct slots *s = &keeper.slots;
        if (number < s->count && s->all[number].state != SLOT_FREE)
                return;
        (void)cg_slot_kill(&s->cg, number);
        char path[64];
        (void)snprintf(path, sizeof path, "s%u/cgroup.events", number);
        _cleanup_close_ int events = s->cg.v2 < 0 ? -1 : openat(s->cg.v2, path, O_RDONLY | O_CLOEXEC);
        for (int i = 0; i < 10 && events >= 0; i++) {
                /* Read by the fd that is polled: only what changes after a read wakes. */
                char text[128];
                ssize_t n = pread(events, text, sizeof text - 1, 0);
                text[n > 0 ? n : 0] = '\0';
                if (cg_find_count(text, "populated") == 0)
                        break;
                struct pollfd p = { events, POLLPRI, 0 };
                (void)poll(&p, 1, 500);
        }
        (void)cg_slot_remove(&s->cg, number);
}

static void do_sweep(const struct keeper_request *q)
{
        struct keeper_reply r = { .op = KEEPER_SWEEP, .cookie = q->cookie };
        (void)cg_each_slot(&keeper.slots.cg, sweep_slot, NULL);
        reply(&r, -1);
}

static void leave(void)
{
        slots_free_idle(&keeper.slots);
        cg_remove_if_empty(&keeper.slots.cg);
        _exit(0);
}

static void on_request(struct source *s, uint32_t events)
{
        (void)events;
        struct keeper_request q;
        _cleanup_close_ int fd = -1;
        ssize_t n = fdpass_recv(s->fd, &q, sizeof q, &fd);
        if (n == -EAGAIN)
                return;
        if (n == 0 || n == -ECONNRESET)
                leave();
        if (n != sizeof q)
                return;
        switch (q.op) {
        case KEEPER_CREATE: do_create(&q, fd); break;
        case KEEPER_ADOPT: do_adopt(&q, fd); break;
        case KEEPER_DESTROY: do_destroy(&q, &fd); break;
        case KEEPER_KILL: do_kill(&q); break;
        case KEEPER_SWEEP: do_sweep(&q); break;
        default: break;
        }
}

/* --- start ---------------------------------------------------------------------------- */

/* The block of the first processor, up to the empty line. */
static void read_cpuinfo(void)
{
        int n = file_read(AT_FDCWD, "/proc/cpuinfo", keeper.cpuinfo, sizeof keeper.cpuinfo);
        char *end = n > 0 ? strstr(keeper.cpuinfo, "\n\n") : NULL;
        if (end)
                end[1] = '\0';
}

static int setup(const struct keeper_config *c, struct err *e)
{
        struct slots *s = &keeper.slots;
        if (c->privileged && c->uid_base + (uint64_t)c->slots * SLOT_UIDS > UINT32_MAX)
                return fail_host(e, -ERANGE, "the uid range is too small for %u slots", c->slots);
        s->uid_base = c->uid_base;
        s->privileged = c->privileged;
        read_cpuinfo();
        if (!c->privileged) {
                int r = userns_enter_own(e);
                if (r < 0)
                        return r;
        }
        s->proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        s->own_net_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (s->proc_fd < 0 || s->own_net_fd < 0)
                return fail_host(e, -errno, "cannot open /proc: %s", strerror(errno));
        int r = slots_init(s, c->slots, e);
        if (r == 0)
                r = seccomp_filter_build(&keeper.filter, e);
        if (r == 0)
                r = cg_open(&s->cg, c->cgroup_group, e);
        if (r < 0)
                return r;
        /* A user namespace to find out whether the images can be shown with its owners. */
        struct ns_map map = { 0, c->uid_base, SLOT_UIDS };
        _cleanup_close_ int user = -1, net = -1;
        if (c->privileged) {
                r = userns_make_pair(s->proc_fd, &map, &user, &net, e);
                if (r < 0)
                        return r;
        }
        return rootfs_stage(&keeper.stage, c->images, c->image_count, c->scratch, c->privileged, user, e);
}

static void keeper_main(const struct keeper_config *c, int sock)
{
        struct keeper_reply hello = { .op = KEEPER_READY };
        struct err e = { 0 };
        struct sigaction ignore = { .sa_handler = SIG_IGN };
        const unsigned char dfl[64] = { 0 }; /* the kernel's own struct, all zero: SIG_DFL */
        /* What whoever started the server ignores would be ignored by every command in every
         * sandbox: fork and exec keep that. By the raw call: libc keeps two signals for itself.
         * Here and not in each agent: it takes longer than an overlay's mount. */
        for (int sig = 1; sig < NSIG; sig++)
                (void)syscall(SYS_rt_sigaction, sig, dfl, NULL, 8);
        /* Ctrl-C at the terminal is the server's to act on; the keeper follows it. */
        (void)sigaction(SIGINT, &ignore, NULL);
        (void)sigaction(SIGTERM, &ignore, NULL);
        (void)sigaction(SIGPIPE, &ignore, NULL);
        (void)prctl(PR_SET_NAME, "cloche-keeper");
        int r = setup(c, &e);
        keeper.server = (struct source){ sock, on_request };
        if (r == 0 && (r = loop_open()) >= 0)
                r = loop_add(&keeper.server, EPOLLIN);
        hello.code = r < 0 ? r : 0;
        (void)snprintf(hello.msg, sizeof hello.msg, "%.255s", e.msg);
        for (unsigned i = 0; i < CG_CONTROLLER_MAX; i++)
                hello.where[i] = (uint8_t)keeper.slots.cg.where[i];
        hello.unified = keeper.slots.cg.v2 >= 0;
        hello.privileged = c->privileged;
        hello.idmap = keeper.stage.images[0].idmap;
        reply(&hello, -1);
        if (r < 0)
                _exit(1);
        loop_run();
}

int keeper_start(const struct keeper_config *c, int *ret_sock, pid_t *ret_pid, struct err *e)
{
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                return fail_host(e, -errno, "socketpair: %s", strerror(errno));
        pid_t pid = fork();
        if (pid < 0) {
                (void)close(sv[0]);
                (void)close(sv[1]);
                return fail_host(e, -errno, "cannot fork the keeper: %s", strerror(errno));
        }
        if (pid == 0) {
                (void)close(sv[0]);
                if (c->in_child)
                        c->in_child(c->user);
                (void)fcntl(sv[1], F_SETFL, O_NONBLOCK);
                keeper_main(c, sv[1]);
                _exit(1);
        }
        (void)close(sv[1]);
        *ret_sock = sv[0];
        *ret_pid = pid;
        return 0;
}
