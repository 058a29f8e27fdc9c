/* Control groups, v1 and v2 and any mix of both. Each of the three controllers we need may
 * live in a v1 hierarchy of its own or in the unified one; ending and freezing a tree is
 * always done in the unified one, which also exists (without controllers) on v1 hosts.
 *
 *   v1   <controller>/<group>/s<slot>              limits; commands put themselves in
 *   v2   <group>/s<slot>/agent                     the agent, outside of all limits
 *        <group>/s<slot>/cmd                       limits of the controllers that are here
 *        <group>/s<slot>/cmd/e<n>                  one exec: what a timeout kills
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum cg_controller { CG_MEMORY, CG_PIDS, CG_CPU, CG_CONTROLLER_MAX };
enum cg_where { CG_NOWHERE, CG_V1, CG_V2 };

struct cg_limits {
        uint64_t memory; /* bytes */
        uint64_t pids;
        uint64_t cpu_millis;
};

struct cg {
        enum cg_where where[CG_CONTROLLER_MAX];
        int v1[CG_CONTROLLER_MAX]; /* <controller>/<group> dir fds, -1 */
        int v2;                    /* <group> dir fd in the unified hierarchy, -1: none */
        int top[CG_CONTROLLER_MAX + 1]; /* where our group is: each v1 hierarchy, unified */
        char group[64];
        bool v2_has_controllers;
};

/* What an agent needs of its slot; fds, -1 where there is none. */
struct cg_agent {
        int cmd_dir;                   /* v2: exec groups are made below */
        int tasks[CG_CONTROLLER_MAX];  /* v1: a command writes "0" here */
        int oom_events;                /* counts OOM kills: memory.oom_control / memory.events */
        int memory_usage;
};

const char *cg_controller_name(enum cg_controller c);
const char *cg_where_name(enum cg_where w);

/* Where each controller is, from the text of /proc/self/mountinfo (pure: unit-tested).
 * v2_controllers is the text of the unified root's cgroup.controllers. Paths are cut at
 * PATH_MAX; returns -EINVAL on nonsense. */
struct cg_mounts {
        char v1[CG_CONTROLLER_MAX][256];
        char v2[256];
};
int cg_parse_mountinfo(const char *text, struct cg_mounts *ret);
/* "10000 100000" for 100 millis; "max 100000" for 0. */
void cg_format_cpu_max(uint64_t cpu_millis, char *out, size_t size);
/* The number behind key in a "key value" file such as memory.events; 0 when absent. */
uint64_t cg_find_count(const char *text, const char *key);

/* Makes (or finds) our group in every hierarchy there is. Missing controllers are not an
 * error: the caller decides by where[]. */
int cg_open(struct cg *cg, const char *group, struct err *e);
void cg_close(struct cg *cg);
/* Removes our group from each hierarchy where no slot is left. */
void cg_remove_if_empty(const struct cg *cg);

/* Makes the directories of a slot, owned so that uid (the agent's) can make exec groups. */
int cg_slot_make(const struct cg *cg, unsigned slot, uid_t uid, struct err *e);
int cg_slot_limit(const struct cg *cg, unsigned slot, const struct cg_limits *l, struct err *e);
/* The directory an agent is born in (v2); -1 without a unified hierarchy. */
int cg_slot_agent_dir(const struct cg *cg, unsigned slot);
int cg_slot_open(const struct cg *cg, unsigned slot, struct cg_agent *ret, struct err *e);
void cg_agent_close(struct cg_agent *a);
/* Kills whatever is in the slot's unified group, which cannot be born into again after
 * that (see agent/group.c): only for slots that are then removed. */
int cg_slot_kill(const struct cg *cg, unsigned slot);
/* Kills the slot's commands, not its agent. */
int cg_slot_kill_commands(const struct cg *cg, unsigned slot);
bool cg_slot_populated(const struct cg *cg, unsigned slot);
/* Removes what a sandbox's agent made below its slot; -errno when something stays. */
int cg_slot_clean(const struct cg *cg, unsigned slot);
/* Removes the slot's directories; -EBUSY while a process is left. */
int cg_slot_remove(const struct cg *cg, unsigned slot);
/* Calls fn for every slot that has a directory in any hierarchy (perhaps repeatedly). */
int cg_each_slot(const struct cg *cg, void (*fn)(unsigned slot, void *user), void *user);
