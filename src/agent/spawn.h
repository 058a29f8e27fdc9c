/* From the agent to a running command: everything between vfork and exec, in one place. */
#pragma once

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "os/cgroup.h"

enum spawn_stage { SPAWN_STARTED, SPAWN_CGROUP, SPAWN_FDS, SPAWN_USER, SPAWN_WORKDIR, SPAWN_EXEC };

struct spawn {
        char *const *argv;
        char *const *envp;
        char *workdir;      /* absolute; changed and restored while directories are made */
        uid_t uid;          /* also the gid */
        int in, out, err;
        const int *tasks;   /* v1 cgroups to put ourselves in, CG_CONTROLLER_MAX of them */
        unsigned cpus;      /* how many processors nproc shows */
        rlim_t pids;        /* RLIMIT_NPROC where no pids controller is; 0: none */
        /* How far it got and why not further: written by the child into our memory. */
        enum spawn_stage stage;
        int error;
};

/* The pid, or -errno when no process could be made at all. s->stage and s->error tell of
 * failures in the child, which is then a zombie for the caller to reap. */
pid_t spawn_command(struct spawn *s, int group_dir);
/* What a child that will run as the sandbox's user does, also for file workers: becomes
 * uid, without groups and capabilities. 0 or -errno. */
int spawn_become_user(uid_t uid);
/* Resolves what a client gave: NULL or empty is /workspace, relative is below it. malloc'd. */
char *spawn_workdir(const char *given);
