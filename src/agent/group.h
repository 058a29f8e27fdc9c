/* Exec groups: one cgroup for each running exec, so that a deadline takes the whole tree,
 * whatever it did to its sessions and process groups. Groups are kept and used again. */
#pragma once

#include <stdbool.h>

struct group {
        int dir;    /* cgroup directory, to be born in */
        int events; /* cgroup.events */
        unsigned number;
        bool busy;
        bool killed; /* cgroup.kill was used: not to be used again */
        bool empty;  /* known so; else ask the kernel */
};

/* Makes the first group ahead of its use. */
void group_setup(int cmd_dir);
/* A free, empty group; NULL when there is no unified hierarchy or no more can be made. */
struct group *group_take(void);
/* Gives it back; empty says that nothing lives in it now. It is handed out again only then:
 * a background process that its exec left behind keeps it. */
void group_put(struct group *g, bool empty);
bool group_populated(const struct group *g);
int group_kill(struct group *g);
/* Somebody outside may have killed groups, and only the kernel knows which: none of those that
 * there are is used again. */
void group_doubt_all(void);
