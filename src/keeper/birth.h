/* The first moments of a sandbox. */
#pragma once

#include "keeper/slot.h"
#include "os/rootfs.h"
#include "os/seccomp_filter.h"

struct birth {
        const struct slots *slots;
        const struct slot *slot;
        const struct rootfs_stage *stage;
        const struct seccomp_filter *filter;
        const char *cpuinfo;
        const struct keeper_request *req;
        int listen_fd, ready_fd;
};

/* In the child of the keeper's clone: builds the sandbox around itself and becomes its
 * agent. Never returns; reports over ready_fd. */
void birth_run(const struct birth *b) __attribute__((noreturn));
