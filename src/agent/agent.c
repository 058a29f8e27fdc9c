/* Theory of operation. The keeper clones this process into its namespaces and root file
 * system; agent_run makes it what it stays: root of the sandbox's user namespace (nobody
 * outside) with three capabilities, no way to gain more, a seccomp filter, and a few fds:
 * its listening socket, its cgroups, the info files. It has no parent it depends on: the
 * keeper and the server may die and come back, connections just end. It starts commands
 * (spawn.c) and file workers (worker.c), which have another uid and no capabilities, and
 * as pid 1 reaps everything. Its own end is a SIGKILL from the keeper, which takes the
 * whole pid namespace with it. */
#include "agent/agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/conn.h"
#include "agent/exec.h"
#include "agent/info.h"
#include "os/loop.h"
#include "agent/worker.h"
#include "base/cleanup.h"
#include "os/caps.h"

static void on_sigchld(struct source *s, uint32_t events)
{
        (void)events;
        struct signalfd_siginfo si;
        int status;
        pid_t pid;
        while (read(s->fd, &si, sizeof si) > 0)
                ;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
                if (!worker_child_gone(pid))
                        exec_child_gone(pid, status);
        exec_check_ending();
}

static void set_limits(void)
{
        /* 1, not 0: a host whose core_pattern is a pipe ignores 0, and only 1 stops it
         * from handing a sandbox's memory to a host program. */
        struct rlimit core = { 1, 1 };
        (void)setrlimit(RLIMIT_CORE, &core);
        struct rlimit nofile;
        if (getrlimit(RLIMIT_NOFILE, &nofile) == 0) {
                nofile.rlim_cur = nofile.rlim_max;
                (void)setrlimit(RLIMIT_NOFILE, &nofile);
        }
}

static int lock_down(const struct agent_params *p)
{
        /* Not dumpable: commands of the same uid (a server without root) cannot ptrace us
         * or look into /proc/1. */
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
                return -errno;
        int r = caps_lock();
        if (r == 0)
                r = caps_set(caps_agent_mask());
        if (r == 0)
                r = seccomp_filter_load(p->filter);
        return r;
}

static int setup(struct agent_params *p, struct source *child)
{
        const struct sigaction ignore = { .sa_handler = SIG_IGN }, dfl = { .sa_handler = SIG_DFL };
        sigset_t all;
        sigfillset(&all);
        (void)sigprocmask(SIG_SETMASK, &all, NULL);
        /* What the keeper ignores would be ignored by every command here: exec keeps that. */
        (void)sigaction(SIGINT, &dfl, NULL);
        (void)sigaction(SIGTERM, &dfl, NULL);
        (void)sigaction(SIGPIPE, &ignore, NULL);
        (void)umask(022);
        (void)prctl(PR_SET_NAME, "cloche-agent");
        set_limits();
        int r = loop_open();
        if (r < 0)
                return r;
        sigset_t chld;
        sigemptyset(&chld);
        sigaddset(&chld, SIGCHLD);
        *child = (struct source){ signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK), on_sigchld };
        if (child->fd < 0)
                return -errno;
        r = loop_add(child, EPOLLIN);
        info_setup(p->info_fd, p->memory, p->cg.memory_usage);
        info_write_cpus(p->cpuinfo, p->cpus);
        info_refresh();
        exec_setup(p);
        worker_setup(p->user_uid, p->cg.tasks);
        if (r == 0)
                r = lock_down(p);
        if (r == 0)
                r = conn_setup(p->listen_fd, p->name, p->slot);
        return r;
}

/* What nearly every command looks up first. Each sandbox has file systems of its own whose
 * caches are empty, and a look-up through them costs the first command; here, after somebody
 * has been told that we are ready, it mostly costs nobody. */
static void warm_up(void)
{
        static const char *const paths[] = {
                "/workspace", "/bin/sh", "/usr/bin/env", "/etc/ld.so.cache", "/etc/ld.so.preload",
#if defined(__x86_64__)
                "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6",
#elif defined(__aarch64__)
                "/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libc.so.6",
#endif
        };
        struct stat st;
        for (unsigned i = 0; i < ARRAY_SIZE(paths); i++)
                (void)stat(paths[i], &st);
}

void agent_run(struct agent_params *p)
{
        static struct source child;
        struct agent_ready ready = { 0 };
        ready.code = setup(p, &child);
        if (ready.code < 0)
                (void)snprintf(ready.msg, sizeof ready.msg, "the agent cannot start: %s", strerror(-ready.code));
        /* A keeper that died meanwhile told nobody of us: leave. */
        if (write(p->ready_fd, &ready, sizeof ready) != sizeof ready || ready.code < 0)
                _exit(1);
        close_fd(&p->ready_fd);
        warm_up();
        loop_run();
}
