/* What the files of the probe share. */
#pragma once

#include <sys/types.h>

#include "base/cleanup.h"
#include "os/probe.h"

struct probe_host {
        const char *state_dir;
        bool privileged; /* holds CAP_SYS_ADMIN here: no user namespace needed first */
};

typedef void probe_fn(const struct probe_host *h, struct probe_result *r);

probe_fn probe_kernel, probe_user, probe_limits, probe_memory, probe_state_dir;
probe_fn probe_seccomp, probe_landlock, probe_pidfd, probe_memfd;
probe_fn probe_namespaces, probe_user_namespaces, probe_overlayfs, probe_mount_api, probe_idmap;
probe_fn probe_cgroup_memory, probe_cgroup_pids, probe_cgroup_cpu, probe_cgroup_tree;

void probe_ok(struct probe_result *r, const char *fmt, ...) _printf_(2, 3);
/* detail and remedy, separated by a newline in the format */
void probe_bad(struct probe_result *r, enum probe_status s, const char *fmt, ...)
        _printf_(3, 4);

/* Runs fn in a child that ends with it, and with which its namespaces, mounts and limits
 * go. fn returns 0 or -errno, and so does this; -ETIMEDOUT when the child hangs. */
int probe_child(int (*fn)(void *), void *arg);
/* In a child: a mount namespace of its own from which nothing spreads, with an empty tmpfs
 * on /tmp; without privilege in a user namespace. 0 or -errno. */
int probe_enter_private(bool privileged);
/* In a child: root of a new user namespace that maps only the caller. */
int probe_enter_userns(void);
