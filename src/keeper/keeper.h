/* The small privileged process that makes sandboxes and takes them apart. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "os/rootfs.h"

struct keeper_config {
        const struct rootfs_image *images;
        unsigned image_count;
        const char *scratch;      /* an empty directory to build the stage on */
        const char *cgroup_group; /* our directory in each cgroup hierarchy */
        uid_t uid_base;           /* host ids: slot n has uid_base + n * 65536 … */
        unsigned slots;           /* how many sandboxes there can be */
        bool privileged;          /* false: no root, one user namespace for all */
        void (*in_child)(void *user); /* forgets what the keeper must not know */
        void *user;
};

/* Forks the keeper. Must be called while this process has no threads and few fds. The
 * socket is the server's end; the keeper leaves when it closes. */
int keeper_start(const struct keeper_config *c, int *ret_sock, pid_t *ret_pid, struct err *e);
