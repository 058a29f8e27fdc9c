/* Making processes. Two shapes only:
 *
 *   clone_fork   a child with memory of its own, perhaps in new namespaces: what the
 *                keeper uses for agents and the agent for its workers.
 *   clone_vfork  a child that borrows our memory on a stack of its own until it execs or
 *                exits, while the calling thread waits: what the agent uses for commands.
 *                No page table is copied (38 ms for a parent of 1 GiB otherwise). The
 *                child runs with all signals blocked state of the parent and may only do
 *                what is safe between vfork and exec.
 *
 * Both can be born inside a cgroup (v2), so that no instruction of theirs ever runs
 * outside of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Returns 0 in the child, the pid in the parent, -errno on failure. cgroup_fd < 0: stay
 * in the parent's cgroup. ret_pidfd may be NULL. */
pid_t clone_fork(uint64_t flags, int cgroup_fd, int *ret_pidfd);

/* Runs fn(arg) in the child; fn must not return (it execs or _exits). */
pid_t clone_vfork(int (*fn)(void *), void *arg, void *stack, size_t stack_size, int cgroup_fd);
