/* Theory of operation. Runs in the process that the keeper cloned with new mount, pid,
 * ipc, uts and cgroup namespaces, born in the slot's agent cgroup; still root (of the
 * host, or of the keeper's user namespace). In order: the slot's network namespace, the
 * file system, the slot's user namespace. From the last step on there is no power left
 * over anything that was made before, because all of it belongs to the outer user
 * namespace. Then every fd but the agent's is closed and the agent takes over. */
#include "keeper/birth.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "os/sys.h"

static unsigned cpus_of(const struct keeper_request *q)
{
        return (q->cpu_millis + 999) / 1000;
}

static int enter_user_namespace(int fd, uid_t uid, struct err *e)
{
        if (setns(fd, CLONE_NEWUSER) < 0)
                return fail_host(e, -errno, "cannot enter the user namespace: %s", strerror(errno));
        /* Until here the uid is the outer root's, which the new namespace does not even
         * have a name for. */
        (void)syscall(SYS_setgroups, 0, NULL);
        if (syscall(SYS_setresgid, uid, uid, uid) < 0 || syscall(SYS_setresuid, uid, uid, uid) < 0)
                return fail_host(e, -errno, "cannot become the sandbox's root: %s", strerror(errno));
        return 0;
}

static int close_all_but(const int *keep, unsigned n)
{
        unsigned from = 3;
        for (;;) {
                unsigned next = ~0u; /* the smallest kept fd that is not below from */
                for (unsigned i = 0; i < n; i++)
                        if (keep[i] >= (int)from && (unsigned)keep[i] < next)
                                next = (unsigned)keep[i];
                if (next != from && sys_close_range(from, next == ~0u ? next : next - 1, 0) < 0)
                        return -errno;
                if (next == ~0u)
                        return 0;
                from = next + 1;
        }
}

/* stdio of the keeper is the server's terminal or log: not for the sandbox. */
static int detach_stdio(void)
{
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0 || dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
                return -errno;
        return 0;
}

static int build(const struct birth *b, struct agent_params *p, struct err *e)
{
        const struct keeper_request *q = b->req;
        struct rootfs_plan plan = {
                .image = q->image,
                .userns_fd = b->slot->user_ns,
                .base_uid = slot_base_uid(b->slots, b->slot),
                .user_uid = slot_user_uid(b->slots, b->slot),
                .storage = q->storage,
                .inodes = q->inodes,
                .cpus = p->cpus,
        };
        (void)umask(0);
        if (setns(b->slot->net_ns, CLONE_NEWNET) < 0)
                return fail_host(e, -errno, "cannot enter the network namespace: %s", strerror(errno));
        if (sethostname(q->name, strlen(q->name)) < 0)
                return fail_host(e, -errno, "cannot set the host name: %s", strerror(errno));
        /* Its cgroups are opened here and not in the keeper: this runs beside it. */
        int r = cg_slot_open(&b->slots->cg, b->slot->number, &p->cg, e);
        if (r == 0)
                r = rootfs_birth(b->stage, &plan, &p->info_fd, e);
        if (r == 0 && detach_stdio() < 0)
                r = fail_host(e, -errno, "cannot open /dev/null: %s", strerror(errno));
        if (r == 0)
                r = enter_user_namespace(b->slot->user_ns, p->agent_uid, e);
        if (r < 0)
                return r;
        int keep[] = { p->listen_fd, p->info_fd, p->ready_fd, p->cg.cmd_dir, p->cg.tasks[0],
                       p->cg.tasks[1], p->cg.tasks[2], p->cg.oom_events, p->cg.memory_usage };
        r = close_all_but(keep, ARRAY_SIZE(keep));
        return r < 0 ? fail_host(e, r, "cannot close fds: %s", strerror(-r)) : 0;
}

void birth_run(const struct birth *b)
{
        static struct agent_params p;
        struct err e = { 0 };
        p = (struct agent_params){
                .slot = b->slot->number,
                .listen_fd = b->listen_fd,
                .ready_fd = b->ready_fd,
                .info_fd = -1,
                .agent_uid = b->slots->privileged ? 0 : SANDBOX_UID,
                .user_uid = SANDBOX_UID,
                .memory = b->req->memory,
                .pids = b->slots->cg.where[CG_PIDS] == CG_NOWHERE ? b->req->pids : 0,
                .cpus = cpus_of(b->req),
                .filter = b->filter,
                .cpuinfo = b->cpuinfo,
        };
        (void)snprintf(p.name, sizeof p.name, "%s", b->req->name);
        if (build(b, &p, &e) < 0) {
                struct agent_ready bad = { .code = e.code };
                (void)snprintf(bad.msg, sizeof bad.msg, "%.255s", e.msg);
                (void)!write(b->ready_fd, &bad, sizeof bad);
                _exit(1);
        }
        agent_run(&p);
}
