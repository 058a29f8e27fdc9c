/* A group that was killed once is removed, never reused: since 6.14 the kernel counts
 * kills of a cgroup and compares, for CLONE_INTO_CGROUP, the count of the target with that
 * of the caller's own group; a process born into a group with a history of kills is killed
 * at birth. */
#include "agent/group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/limits.h"
#include "os/cgroup.h"
#include "os/sys.h"

static struct {
        int cmd_dir;
        struct group *all[LIMIT_EXECS_PER_BOX * 2]; /* running ones, and haunted ones */
        unsigned count, next_number;
} groups = { .cmd_dir = -1 };

bool group_populated(const struct group *g)
{
        char text[128];
        ssize_t n = pread(g->events, text, sizeof text - 1, 0);
        if (n < 0)
                return true;
        text[n] = '\0';
        return cg_find_count(text, "populated") != 0;
}

int group_kill(struct group *g)
{
        g->killed = true;
        return file_write(g->dir, "cgroup.kill", "1");
}

void group_doubt_all(void)
{
        for (unsigned i = 0; i < groups.count; i++)
                groups.all[i]->killed = true;
}

static void group_name(unsigned number, char out[16])
{
        (void)snprintf(out, 16, "e%u", number);
}

static struct group *group_make(void)
{
        char name[16];
        if (groups.cmd_dir < 0 || groups.count == ARRAY_SIZE(groups.all))
                return NULL;
        group_name(groups.next_number, name);
        for (int tries = 0; mkdirat(groups.cmd_dir, name, 0755) < 0; tries++) {
                if (errno != EEXIST || tries == 1000) /* left by an earlier tenant of the slot */
                        return NULL;
                group_name(++groups.next_number, name);
        }
        _cleanup_close_ int dir = openat(groups.cmd_dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_close_ int events = dir < 0 ? -1 : openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
        struct group *g = events < 0 ? NULL : malloc(sizeof *g);
        if (!g)
                return NULL;
        *g = (struct group){ steal_fd(&dir), steal_fd(&events), groups.next_number++, false, false, true };
        groups.all[groups.count++] = g;
        return g;
}

static void group_remove(unsigned at)
{
        struct group *g = groups.all[at];
        char name[16];
        group_name(g->number, name);
        (void)close(g->dir);
        (void)close(g->events);
        (void)unlinkat(groups.cmd_dir, name, AT_REMOVEDIR);
        groups.all[at] = groups.all[--groups.count];
        free(g);
}

void group_setup(int cmd_dir)
{
        groups.cmd_dir = cmd_dir;
        groups.count = groups.next_number = 0;
        (void)group_make();
}

struct group *group_take(void)
{
        struct group *g = NULL;
        for (unsigned i = 0; i < groups.count && !g;) {
                struct group *at = groups.all[i];
                if (at->busy || (!at->empty && group_populated(at)))
                        i++;
                else if (at->killed)
                        group_remove(i); /* the last one moved here: look again */
                else
                        g = at;
        }
        if (!g)
                g = group_make();
        if (g)
                g->busy = true;
        return g;
}

void group_put(struct group *g, bool empty)
{
        if (!g)
                return;
        g->busy = false;
        g->empty = empty;
}
