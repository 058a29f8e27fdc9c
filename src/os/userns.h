/* User and network namespaces of a slot: made once, given to one sandbox after another. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct ns_map {
        uint32_t inside, outside, count; /* one line of uid_map and gid_map */
};

/* Makes a fresh network namespace (owned by the caller's user namespace, so nobody inside
 * a sandbox is ever privileged over it; lo is up) and a user namespace with that map in
 * which no further user namespace can be made. proc_fd is a directory fd of /proc. */
int userns_make_pair(int proc_fd, const struct ns_map *map, int *ret_user_fd, int *ret_net_fd,
                     struct err *e);

/* For a server without root: this process becomes root of a user namespace of its own
 * that maps only its own uid and gid. */
int userns_enter_own(struct err *e);
