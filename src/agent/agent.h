/* PID 1 of one sandbox. Theory of operation in agent.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "os/cgroup.h"
#include "os/seccomp_filter.h"

/* Everything the keeper hands to the agent that it forks. */
struct agent_params {
        char name[32];
        unsigned slot;
        int listen_fd;      /* bound, not yet listening */
        int info_fd;        /* directory behind /proc/meminfo and /proc/cpuinfo */
        int ready_fd;       /* one struct agent_ready goes here */
        struct cg_agent cg;
        uid_t agent_uid;    /* ids inside the sandbox's user namespace */
        uid_t user_uid;
        uint64_t memory;
        uint64_t pids;      /* for RLIMIT_NPROC, where no cgroup counts processes; else 0 */
        unsigned cpus;
        const struct seccomp_filter *filter;
        const char *cpuinfo; /* one processor's block of the host's /proc/cpuinfo */
};

struct agent_ready {
        int code; /* 0 or -errno */
        char msg[256];
};

/* Never returns. */
void agent_run(struct agent_params *p) __attribute__((noreturn));
