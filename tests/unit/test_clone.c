#include "os/clone.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "os/cgroup.h"
#include "os/sys.h"

static char stack[64 * 1024] __attribute__((aligned(16)));

static int exit_of(pid_t pid)
{
        int status = -1;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_fork(void)
{
        volatile int memory = 1;
        int pidfd = -1;
        pid_t pid = clone_fork(0, -1, &pidfd);
        if (pid == 0) {
                memory = 2; /* its own copy */
                _exit(memory + 40);
        }
        CHECK(pid > 0 && pidfd >= 0);
        struct pollfd p = { pidfd, POLLIN, 0 };
        CHECK_INT(poll(&p, 1, 10000), 1);
        CHECK(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
        CHECK_INT(exit_of(pid), 42);
        CHECK_INT(memory, 1);
        (void)close(pidfd);
}

static void test_fork_in_namespaces(void)
{
        pid_t pid = clone_fork(CLONE_NEWPID | CLONE_NEWUTS, -1, NULL);
        if (pid == 0)
                _exit(getpid() == 1 ? 0 : 1);
        if (pid == -EPERM)
                SKIP("no right to make namespaces");
        CHECK_INT(exit_of(pid), 0);
}

static void test_errors(void)
{
        int pidfd = -7;
        CHECK(clone_fork(CLONE_SIGHAND, -1, &pidfd) == -EINVAL); /* without CLONE_VM */
        CHECK_INT(pidfd, -7);
        int null = open("/dev/null", O_RDONLY);
        CHECK(clone_fork(0, null, NULL) == -EBADF); /* no cgroup */
        (void)close(null);
}

struct job {
        const char *path;
        int error;
        volatile int ran;
};

static int run_job(void *arg)
{
        struct job *j = arg;
        char *const argv[] = { (char *)(uintptr_t)j->path, NULL };
        char *const envp[] = { NULL };
        j->ran = 1;
        (void)execve(j->path, argv, envp);
        j->error = errno;
        _exit(9);
}

static void test_vfork_exec(void)
{
        struct job j = { .path = "/bin/true" };
        pid_t pid = clone_vfork(run_job, &j, stack, sizeof stack, -1);
        CHECK(pid > 0);
        CHECK_INT(j.ran, 1); /* we waited, and its memory is ours */
        CHECK_INT(j.error, 0);
        CHECK_INT(exit_of(pid), 0);
        j = (struct job){ .path = "/bin/false" };
        CHECK_INT(exit_of(clone_vfork(run_job, &j, stack, sizeof stack, -1)), 1);
}

static void test_vfork_error_comes_back(void)
{
        struct job j = { .path = "/nonexistent/program" };
        pid_t pid = clone_vfork(run_job, &j, stack, sizeof stack, -1);
        CHECK_INT(j.error, ENOENT);
        CHECK_INT(exit_of(pid), 9);
        int null = open("/dev/null", O_RDONLY);
        j = (struct job){ .path = "/bin/true" };
        CHECK(clone_vfork(run_job, &j, stack, sizeof stack, null) == -EBADF);
        CHECK_INT(j.ran, 0);
        (void)close(null);
}

/* The registers that a caller may keep things in are untouched, and the parent's stack is. */
static void test_vfork_many(void)
{
        unsigned long a = 0x1111, b = 0x2222, c = 0x3333, d = 0x4444;
        for (unsigned i = 0; i < 50; i++) {
                struct job j = { .path = i % 2 ? "/bin/true" : "/nonexistent" };
                pid_t pid = clone_vfork(run_job, &j, stack, i % 3 ? sizeof stack : sizeof stack - 7, -1);
                a += (unsigned long)(pid > 0);
                b += (unsigned long)exit_of(pid);
                c ^= a * b;
                d += c;
        }
        CHECK_INT(a, 0x1111 + 50);
        CHECK_INT(b, 0x2222 + 25 * 9);
        CHECK(c != 0 && d != 0);
}

static void test_born_in_a_cgroup(void)
{
        struct cg cg;
        struct err e = { 0 };
        char group[64], text[512];
        (void)snprintf(group, sizeof group, "cloche-test-clone-%d", (int)getpid());
        if (geteuid() != 0 || cg_open(&cg, group, &e) < 0)
                SKIP("needs root and cgroups");
        if (cg.v2 < 0) {
                cg_remove_if_empty(&cg);
                cg_close(&cg);
                SKIP("no unified hierarchy");
        }
        CHECK_INT(cg_slot_make(&cg, 0, 0, &e), 0);
        int dir = cg_slot_agent_dir(&cg, 0);
        CHECK(dir >= 0);
        pid_t pid = clone_fork(0, dir, NULL);
        if (pid == 0) {
                (void)raise(SIGSTOP);
                _exit(0);
        }
        CHECK(pid > 0);
        (void)waitpid(pid, NULL, WUNTRACED);
        CHECK(file_read(cg.v2, "s0/agent/cgroup.procs", text, sizeof text) > 0);
        CHECK_INT(atoi(text), pid);
        (void)kill(pid, SIGCONT);
        CHECK_INT(exit_of(pid), 0);
        struct job j = { .path = "/bin/true" };
        CHECK_INT(exit_of(clone_vfork(run_job, &j, stack, sizeof stack, dir)), 0);
        (void)close(dir);
        CHECK_INT(cg_slot_remove(&cg, 0), 0);
        cg_remove_if_empty(&cg);
        cg_close(&cg);
}

int main(void)
{
        RUN(test_fork);
        RUN(test_fork_in_namespaces);
        RUN(test_errors);
        RUN(test_vfork_exec);
        RUN(test_vfork_error_comes_back);
        RUN(test_vfork_many);
        RUN(test_born_in_a_cgroup);
        return check_done();
}
