/* Theory of operation: see clone.h. Nothing here reaps; whoever calls owns the child.
 * clone3 is used for its CLONE_INTO_CGROUP; no fallback to clone exists because every
 * kernel with the mount API that we need (5.12) has clone3 (5.3) and the flag (5.7). */
#include "os/clone.h"

#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The fields up to cgroup, at their fixed offsets: older headers lack some. */
struct args {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
                set_tid, set_tid_size, cgroup;
};

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

pid_t clone_fork(uint64_t flags, int cgroup_fd, int *ret_pidfd)
{
        int pidfd = -1;
        struct args a = { .flags = flags, .exit_signal = SIGCHLD };
        if (cgroup_fd >= 0) {
                a.flags |= CLONE_INTO_CGROUP;
                a.cgroup = (uint64_t)cgroup_fd;
        }
        if (ret_pidfd) {
                a.flags |= CLONE_PIDFD;
                a.pidfd = (uint64_t)(uintptr_t)&pidfd;
        }
        long r = syscall(SYS_clone3, &a, sizeof a);
        if (r < 0)
                return -errno;
        if (r > 0 && ret_pidfd)
                *ret_pidfd = pidfd;
        return (pid_t)r;
}

#if defined(__x86_64__)
/* The child starts on the new stack right after the syscall instruction, so it must call
 * fn from here: a C return would use the parent's frame. */
static long clone3_call(struct args *a, int (*fn)(void *), void *arg)
{
        long r;
        register long a1 __asm__("rdi") = (long)a;
        register long a2 __asm__("rsi") = sizeof *a;
        register long r12 __asm__("r12") = (long)fn;
        register long r13 __asm__("r13") = (long)arg;
        __asm__ volatile("syscall\n\t"
                         "test %%rax, %%rax\n\t"
                         "jnz 1f\n\t"
                         "xor %%ebp, %%ebp\n\t"
                         "mov %%r13, %%rdi\n\t"
                         "call *%%r12\n\t"
                         "ud2\n\t"
                         "1:"
                         : "=a"(r)
                         : "0"((long)SYS_clone3), "r"(a1), "r"(a2), "r"(r12), "r"(r13)
                         : "rcx", "r11", "memory");
        return r;
}
#elif defined(__aarch64__)
static long clone3_call(struct args *a, int (*fn)(void *), void *arg)
{
        register long x8 __asm__("x8") = SYS_clone3;
        register long x0 __asm__("x0") = (long)a;
        register long x1 __asm__("x1") = sizeof *a;
        register long x19 __asm__("x19") = (long)fn;
        register long x20 __asm__("x20") = (long)arg;
        __asm__ volatile("svc #0\n\t"
                         "cbnz x0, 1f\n\t"
                         "mov x29, #0\n\t"
                         "mov x0, x20\n\t"
                         "blr x19\n\t"
                         "brk #1\n\t"
                         "1:"
                         : "+r"(x0)
                         : "r"(x8), "r"(x1), "r"(x19), "r"(x20)
                         : "memory", "cc");
        return x0;
}
#endif

pid_t clone_vfork(int (*fn)(void *), void *arg, void *stack, size_t stack_size, int cgroup_fd)
{
        struct args a = { .flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD };
        if (cgroup_fd >= 0) {
                a.flags |= CLONE_INTO_CGROUP;
                a.cgroup = (uint64_t)cgroup_fd;
        }
#if defined(__x86_64__) || defined(__aarch64__)
        a.stack = (uint64_t)(uintptr_t)stack;
        a.stack_size = stack_size & ~(size_t)15;
        long r = clone3_call(&a, fn, arg);
        return (pid_t)r; /* the raw system call: already -errno */
#else
        (void)stack;
        (void)stack_size;
        a.flags &= ~(uint64_t)CLONE_VM; /* no hand-written entry for this machine: copy */
        long r = syscall(SYS_clone3, &a, sizeof a);
        if (r == 0)
                _exit(fn(arg));
        return r < 0 ? -errno : (pid_t)r;
#endif
}
