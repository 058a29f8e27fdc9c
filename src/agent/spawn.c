/* Theory of operation. The agent calls clone_vfork: the child borrows the agent's memory
 * and runs on the stack below while the agent waits, until it execs or exits. So the
 * child may only make system calls and write into struct spawn; no malloc, no stdio, no
 * locks. Errors come back through that struct, not a pipe. Nothing of the user's runs
 * before the cgroup, the uid, the capabilities and (inherited from the agent) the seccomp
 * filter are in place. The agent reaps. All fds but 0, 1, 2 are closed by close_range. */
#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "os/caps.h"
#include "os/clone.h"
#include "os/sys.h"

#ifdef CLOCHE_SANITIZE
#include <sanitizer/asan_interface.h>
#endif

#define WORKSPACE "/workspace"
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static char child_stack[64 * 1024] __attribute__((aligned(16)));

/* The raw calls: libc's setuid family walks and signals all threads, with locks. */
int spawn_become_user(uid_t uid)
{
        /* Fails in a user namespace that may not set groups: it then has none to drop. */
        (void)syscall(SYS_setgroups, 0, NULL);
        if (syscall(SYS_setresgid, uid, uid, uid) < 0 || syscall(SYS_setresuid, uid, uid, uid) < 0)
                return -errno;
        return caps_set(0);
}

static void reset_signals(void)
{
        struct sigaction dfl = { .sa_handler = SIG_DFL };
        (void)sigaction(SIGPIPE, &dfl, NULL); /* the only one the agent changes */
        sigset_t none;
        sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static int join_cgroups(const int *tasks)
{
        /* A single-threaded process moving itself does not wait for an RCU grace period;
         * being moved by another would cost 7 ms. */
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                if (tasks[c] >= 0 && write(tasks[c], "0", 1) != 1)
                        return -errno;
        return 0;
}

static int arrange_fds(struct spawn *s)
{
        if (dup2(s->in, 0) < 0 || dup2(s->out, 1) < 0 || dup2(s->err, 2) < 0)
                return -errno;
        return sys_close_range(3, ~0u, 0) < 0 ? -errno : 0;
}

/* nproc and its like ask for the affinity mask. It begins with the processor the scheduler
 * has just chosen for us, so that nothing has to move and neighbours spread by load. */
static void set_affinity(unsigned cpus)
{
        cpu_set_t all, ours;
        unsigned at;
        /* The raw call: libc's answer is in the thread's own memory, which is the agent's
         * here, and would move every command to the agent's processor. */
        if (sched_getaffinity(0, sizeof all, &all) < 0 || cpus >= (unsigned)CPU_COUNT(&all) ||
            syscall(SYS_getcpu, &at, NULL, NULL) < 0)
                return;
        CPU_ZERO(&ours);
        for (int i = 0; i < CPU_SETSIZE && cpus; i++) {
                int cpu = (int)((at + (unsigned)i) % CPU_SETSIZE);
                if (CPU_ISSET(cpu, &all)) {
                        CPU_SET(cpu, &ours);
                        cpus--;
                }
        }
        (void)sched_setaffinity(0, sizeof ours, &ours);
}

static void set_limits(const struct spawn *s)
{
        set_affinity(s->cpus);
        struct rlimit nofile = { 1024, 16384 }, old;
        if (getrlimit(RLIMIT_NOFILE, &old) == 0 && old.rlim_max < nofile.rlim_max)
                nofile.rlim_max = old.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &nofile);
        if (s->pids) {
                struct rlimit nproc = { s->pids, s->pids };
                (void)setrlimit(RLIMIT_NPROC, &nproc);
        }
}

/* mkdir -p, for directories below /workspace only. */
static int make_workdir(char *path)
{
        for (char *p = path + sizeof WORKSPACE; p[-1]; p++) {
                if (*p != '/' && *p != '\0')
                        continue;
                char kept = *p;
                *p = '\0';
                int r = mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
                *p = kept;
                if (r < 0)
                        return r;
                if (!kept)
                        break;
        }
        return 0;
}

static bool below_workspace(const char *path)
{
        size_t n = sizeof WORKSPACE - 1;
        if (strncmp(path, WORKSPACE, n) != 0 || path[n] != '/')
                return false;
        for (const char *p = path; (p = strstr(p, "/..")); p += 3)
                if (p[3] == '/' || p[3] == '\0')
                        return false;
        return true;
}

static int enter_workdir(struct spawn *s)
{
        if (chdir(s->workdir) < 0) {
                if (errno != ENOENT || !below_workspace(s->workdir))
                        return -errno;
                int r = make_workdir(s->workdir);
                if (r < 0)
                        return r;
                if (chdir(s->workdir) < 0)
                        return -errno;
        }
        /* A directory outside of our root would be a leaked fd's (CVE-2024-21626): the
         * kernel then answers "(unreachable)…". */
        char cwd[PATH_MAX];
        if (syscall(SYS_getcwd, cwd, sizeof cwd) < 0)
                return errno == ERANGE ? 0 : -errno;
        return cwd[0] == '/' ? 0 : -EXDEV;
}

static const char *search_path(char *const *envp)
{
        for (; *envp; envp++)
                if (strncmp(*envp, "PATH=", 5) == 0)
                        return *envp + 5;
        return DEFAULT_PATH;
}

/* Finds what to execute, as the user (effective ids): into full, or argv[0] itself when it
 * names a path. 0 or the error that says most. */
static int find_program(const struct spawn *s, char full[PATH_MAX], const char **ret)
{
        const char *file = s->argv[0];
        bool denied = false;
        *ret = file;
        if (strchr(file, '/'))
                return 0;
        size_t file_len = strlen(file);
        for (const char *p = search_path(s->envp); file_len; p++) {
                size_t n = strcspn(p, ":");
                struct stat st;
                if (n + file_len + 2 <= PATH_MAX) {
                        memcpy(full, p, n);
                        memcpy(full + n, "/", 1);
                        memcpy(full + n + (n > 0), file, file_len + 1);
                        *ret = full;
                        if (stat(full, &st) == 0 && S_ISREG(st.st_mode)) {
                                if (faccessat(AT_FDCWD, full, X_OK, AT_EACCESS) == 0)
                                        return 0;
                                denied = true;
                        } else if (errno == EACCES)
                                denied = true;
                }
                p += n;
                if (!*p)
                        break;
        }
        return denied ? -EACCES : -ENOENT;
}

/* Effective ids only: whoever the sandbox's user is cannot signal us by them. */
static int act_as_user(uid_t uid)
{
        (void)syscall(SYS_setgroups, 0, NULL);
        if (syscall(SYS_setresgid, uid, uid, uid) < 0 || syscall(SYS_setresuid, -1, uid, -1) < 0)
                return -errno;
        return 0;
}

/* Until the last two calls real and saved uid stay the agent's, so that commands that are
 * already running cannot stop or kill this one half way: the agent waits for our exec, and
 * a child that is stopped before it would hold it up (KEEPER_KILL is the way out then). */
static int become_and_exec(struct spawn *s, const char *program)
{
        if (syscall(SYS_setresuid, s->uid, s->uid, s->uid) < 0)
                return -errno;
        int r = caps_set(0);
        if (r < 0)
                return r;
        (void)execve(program, s->argv, s->envp);
        return -errno;
}

static int child(void *arg)
{
        struct spawn *s = arg;
        const char *program;
        char full[PATH_MAX];
        reset_signals();
        (void)setsid();
        s->stage = SPAWN_CGROUP;
        s->error = join_cgroups(s->tasks);
        if (s->error == 0) {
                s->stage = SPAWN_FDS;
                s->error = arrange_fds(s);
        }
        if (s->error == 0) {
                set_limits(s);
                s->stage = SPAWN_USER;
                s->error = act_as_user(s->uid);
        }
        if (s->error == 0) {
                s->stage = SPAWN_WORKDIR;
                s->error = enter_workdir(s);
        }
        if (s->error == 0) {
                s->stage = SPAWN_EXEC;
                s->error = find_program(s, full, &program);
        }
        if (s->error == 0) {
                /* Set now: after a successful exec nobody is left to say so. */
                s->stage = SPAWN_STARTED;
                int r = become_and_exec(s, program);
                s->stage = SPAWN_EXEC;
                s->error = r;
        }
        _exit(127);
}

pid_t spawn_command(struct spawn *s, int group_dir)
{
        s->stage = SPAWN_STARTED;
        s->error = 0;
#ifdef CLOCHE_SANITIZE /* the last child never left its frames: their marks are still there */
        __asan_unpoison_memory_region(child_stack, sizeof child_stack);
#endif
        return clone_vfork(child, s, child_stack, sizeof child_stack, group_dir);
}

char *spawn_workdir(const char *given)
{
        char *path = NULL;
        if (!given || !*given)
                return strdup(WORKSPACE);
        if (*given == '/')
                return strdup(given);
        return asprintf(&path, WORKSPACE "/%s", given) < 0 ? NULL : path;
}
