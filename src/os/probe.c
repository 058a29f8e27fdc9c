#include "os/probe.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "os/caps.h"
#include "os/probe_internal.h"

#define CHILD_SECONDS 10 /* a probe takes milliseconds; this only ends a hang */

static const struct {
        const char *name;
        probe_fn *run;
        bool essential;
} probes[] = {
        { "kernel", probe_kernel, false },
        { "user", probe_user, false },
        { "namespaces", probe_namespaces, true },
        { "user namespaces", probe_user_namespaces, true },
        { "new mount API", probe_mount_api, true },
        { "overlayfs", probe_overlayfs, true },
        { "idmapped mounts", probe_idmap, false },
        { "cgroup memory", probe_cgroup_memory, false },
        { "cgroup pids", probe_cgroup_pids, false },
        { "cgroup cpu", probe_cgroup_cpu, false },
        { "cgroup v2 tree", probe_cgroup_tree, false },
        { "seccomp", probe_seccomp, true },
        { "Landlock", probe_landlock, false },
        { "pidfd", probe_pidfd, true },
        { "memfd", probe_memfd, true },
        { "limits", probe_limits, false },
        { "memory", probe_memory, false },
        { "state directory", probe_state_dir, true },
};
static_assert(ARRAY_SIZE(probes) <= PROBE_MAX, "raise PROBE_MAX");

static const char *const status_names[] = { "ok", "weak", "missing" };
static_assert(ARRAY_SIZE(status_names) == PROBE_STATUS_MAX, "a word for each");

const char *probe_status_name(enum probe_status s)
{
        return status_names[s];
}

void probe_ok(struct probe_result *r, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        r->status = PROBE_OK;
        (void)vsnprintf(r->detail, sizeof r->detail, fmt, ap);
        r->remedy[0] = '\0';
        va_end(ap);
}

void probe_bad(struct probe_result *r, enum probe_status s, const char *fmt, ...)
{
        char both[sizeof r->detail + sizeof r->remedy];
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(both, sizeof both, fmt, ap);
        va_end(ap);
        char *remedy = strchr(both, '\n');
        if (remedy)
                *remedy++ = '\0';
        r->status = s;
        (void)snprintf(r->detail, sizeof r->detail, "%.*s", (int)sizeof r->detail - 1, both);
        (void)snprintf(r->remedy, sizeof r->remedy, "%.*s", (int)sizeof r->remedy - 1,
                       remedy ? remedy : "");
}

int probe_child(int (*fn)(void *), void *arg)
{
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
                return -errno;
        _cleanup_close_ int reading = ends[0], writing = ends[1];
        pid_t pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0) {
                (void)signal(SIGALRM, SIG_DFL);
                sigset_t none;
                sigemptyset(&none);
                (void)sigprocmask(SIG_SETMASK, &none, NULL);
                (void)alarm(CHILD_SECONDS);
                int code = fn(arg);
                (void)!write(writing, &code, sizeof code);
                _exit(0);
        }
        close_fd(&writing);
        int code = 0, status = 0;
        ssize_t n;
        do
                n = read(reading, &code, sizeof code);
        while (n < 0 && errno == EINTR);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        if (n != (ssize_t)sizeof code)
                return WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? -ETIMEDOUT : -EIO;
        return code;
}

void probe_all(const char *state_dir, struct probe_report *ret)
{
        struct probe_host host = {
                .state_dir = state_dir,
                .privileged = caps_effective() & (1ull << CAP_SYS_ADMIN),
        };
        *ret = (struct probe_report){ .can_serve = true };
        for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
                struct probe_result *r = &ret->results[ret->count++];
                r->name = probes[i].name;
                r->essential = probes[i].essential;
                probes[i].run(&host, r);
                if (r->essential && r->status == PROBE_MISSING)
                        ret->can_serve = false;
        }
}

char *probe_summary(const struct probe_report *report)
{
        struct buf b = { 0 };
        for (size_t i = 0; i < report->count; i++) {
                const struct probe_result *r = &report->results[i];
                if (r->status != PROBE_OK)
                        buf_addf(&b, "%s%s %s: %.*s", b.len ? "; " : "", r->name, status_names[r->status],
                                 (int)strcspn(r->detail, ";"), r->detail);
        }
        buf_adds(&b, "");
        char *text = buf_steal(&b);
        buf_free(&b);
        return text;
}
