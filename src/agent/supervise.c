/* Theory of operation. The agent forks a supervisor, which is a subreaper: whatever its
 * command forks, however it detaches itself, stays its descendant. It starts the command
 * by spawn.c, reports over a pipe (first how the start went, then the command's wait
 * status) and lives until it has no child left. To kill the tree the agent looks for
 * descendants and kills them until a look finds no new one. Supervisor and command share a uid here, so a command can
 * kill its supervisor; the agent then ends everything in the sandbox (supervise_panic).
 * Agent reaps supervisor; supervisor reaps the tree. */
#include "agent/supervise.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/clone.h"
#include "os/sys.h"

#define START_PATIENCE_MS 2000
#define MAX_LOOKS 50

struct report {
        enum { REPORT_START, REPORT_STATUS } kind;
        int stage, error, status;
};

static void report(int fd, struct report r)
{
        (void)!write(fd, &r, sizeof r);
}

static void supervisor(int pipe_fd, struct spawn *s)
{
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        (void)prctl(PR_SET_NAME, "cloche-exec");
        pid_t leader = spawn_command(s, -1);
        /* Only the pipe stays: the command's own output pipes must see their end. */
        if (pipe_fd != 3 && dup3(pipe_fd, 3, O_CLOEXEC) < 0)
                _exit(1);
        (void)sys_close_range(4, ~0u, 0);
        (void)sys_close_range(0, 2, 0);
        report(3, (struct report){ REPORT_START, s->stage, leader < 0 ? leader : s->error, 0 });
        for (;;) {
                int status;
                pid_t pid = waitpid(-1, &status, 0);
                if (pid < 0 && errno == ECHILD)
                        _exit(0);
                if (pid == leader)
                        report(3, (struct report){ REPORT_STATUS, 0, 0, status });
        }
}

pid_t supervise_start(struct supervised *sup, struct spawn *s)
{
        int p[2];
        struct report r;
        if (pipe2(p, O_CLOEXEC) < 0)
                return -errno;
        pid_t pid = clone_fork(0, -1, NULL);
        if (pid == 0)
                supervisor(p[1], s);
        (void)close(p[1]);
        /* A command that is running already may stop its younger sibling's supervisor: do
         * not wait for that for ever. */
        struct pollfd heard = { p[0], POLLIN, 0 };
        if (pid > 0 && poll(&heard, 1, START_PATIENCE_MS) == 0) {
                supervise_kill(pid);
                (void)kill(pid, SIGKILL);
        }
        ssize_t n = pid > 0 ? read(p[0], &r, sizeof r) : -1;
        bool said = n == sizeof r && r.kind == REPORT_START;
        /* An end without a word: its own command, already running, killed it (kill -9 -1). That
         * is a start all the same; the reaper tells how it ended. */
        if (n == 0 || (said && r.stage == SPAWN_STARTED && r.error == 0)) {
                (void)fcntl(p[0], F_SETFL, O_NONBLOCK);
                sup->src.fd = p[0];
                return pid;
        }
        s->stage = said ? (enum spawn_stage)r.stage : SPAWN_CGROUP;
        s->error = said ? r.error : pid < 0 ? pid : -EIO;
        (void)close(p[0]);
        if (pid > 0)
                while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                        ;
        return -1;
}

bool supervise_status(struct supervised *sup, int *ret_status)
{
        struct report r;
        if (sup->src.fd < 0 || read(sup->src.fd, &r, sizeof r) != sizeof r || r.kind != REPORT_STATUS)
                return false;
        *ret_status = r.status;
        return true;
}

void supervise_close(struct supervised *sup)
{
        loop_remove(&sup->src);
}

struct proc {
        pid_t pid, ppid;
        bool taken;
};

/* Every process of this pid namespace with its parent. malloc'd. */
static struct proc *list_procs(size_t *ret_n)
{
        struct proc *all = NULL;
        size_t n = 0, cap = 0;
        DIR *d = opendir("/proc");
        for (struct dirent *de; d && (de = readdir(d));) {
                char path[64], text[512];
                struct proc p = { .pid = atoi(de->d_name) };
                (void)snprintf(path, sizeof path, "/proc/%d/stat", p.pid);
                if (p.pid <= 1 || file_read(AT_FDCWD, path, text, sizeof text) <= 0)
                        continue;
                /* "pid (name) state ppid": the name may hold anything, so from the right */
                char *close_paren = strrchr(text, ')');
                if (!close_paren || sscanf(close_paren, ") %*c %d", &p.ppid) != 1)
                        continue;
                if (n == cap) {
                        struct proc *more = realloc(all, (cap = cap ? cap * 2 : 64) * sizeof *all);
                        if (!more)
                                break;
                        all = more;
                }
                all[n++] = p;
        }
        if (d)
                (void)closedir(d);
        *ret_n = n;
        return all;
}

/* Kills the descendants of root that are there now; the largest pid among them. */
static pid_t kill_descendants(pid_t root)
{
        size_t n, taken = 0, before;
        pid_t largest = 0;
        _cleanup_free_ struct proc *all = list_procs(&n);
        do {
                before = taken;
                for (size_t i = 0; i < n; i++) {
                        bool below = all[i].ppid == root;
                        for (size_t k = 0; k < n && !below; k++)
                                below = all[k].taken && all[k].pid == all[i].ppid;
                        if (below && !all[i].taken) {
                                all[i].taken = true;
                                taken++;
                        }
                }
        } while (taken != before);
        for (size_t i = 0; i < n; i++)
                if (all[i].taken) {
                        (void)kill(all[i].pid, SIGKILL);
                        largest = all[i].pid > largest ? all[i].pid : largest;
                }
        return largest;
}

void supervise_kill(pid_t pid)
{
        pid_t before = -1, now;
        if (pid <= 0)
                return;
        /* A look that finds no younger process than the last one found all. A tree that
         * forks faster than we look is ended with the sandbox's other processes: kill(-1)
         * is one step for the kernel, and no fork comes between. */
        for (int looks = 0; (now = kill_descendants(pid)) > before; before = now)
                if (++looks == MAX_LOOKS) {
                        supervise_panic();
                        break;
                }
        (void)kill(pid, SIGCONT); /* a supervisor that its command stopped has to reap */
}

void supervise_panic(void)
{
        (void)kill(-1, SIGKILL);
}
