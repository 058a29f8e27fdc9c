/* A slot's directories: made once, reused by one sandbox after another. Fresh v1 groups
 * for every sandbox would halve the throughput. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "os/cgroup.h"
#include "os/sys.h"

#define V1_SOCKET_SHARE 4 /* socket buffers may take a quarter of the memory limit, beside it */

static int slot_dir(int parent, unsigned slot, const char *below)
{
        char path[64];
        (void)snprintf(path, sizeof path, "s%u%s", slot, below);
        int fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static int make_path(int parent, unsigned slot, const char *below)
{
        char path[64];
        (void)snprintf(path, sizeof path, "s%u%s", slot, below);
        return mkdirat(parent, path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

/* To start a command inside cmd/eN the agent must be able to write the cgroup.procs of the
 * common ancestor (s<slot>) and of the target; to make eN it must own cmd. Limits stay
 * root's: an agent that was taken over cannot raise them. */
static int delegate(int v2, unsigned slot, uid_t uid)
{
        static const char *const owned[] = { "/cgroup.procs", "/cmd", "/cmd/cgroup.procs" };
        for (unsigned i = 0; i < ARRAY_SIZE(owned); i++) {
                char path[64];
                (void)snprintf(path, sizeof path, "s%u%s", slot, owned[i]);
                if (fchownat(v2, path, uid, uid, 0) < 0)
                        return -errno;
        }
        return 0;
}

static int slot_write(int dir, unsigned slot, const char *file, const char *value)
{
        char path[96];
        (void)snprintf(path, sizeof path, "s%u/%s", slot, file);
        return file_write(dir, path, value);
}

static int make_v2(const struct cg *cg, unsigned slot, uid_t uid)
{
        int r = make_path(cg->v2, slot, "");
        if (r < 0)
                return r;
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++) {
                if (cg->where[c] != CG_V2)
                        continue;
                char path[64], plus[32];
                (void)snprintf(path, sizeof path, "s%u/cgroup.subtree_control", slot);
                (void)snprintf(plus, sizeof plus, "+%s", cg_controller_name(c));
                r = file_write(cg->v2, path, plus);
                if (r < 0)
                        return r;
        }
        r = make_path(cg->v2, slot, "/agent");
        if (r == 0)
                r = make_path(cg->v2, slot, "/cmd");
        /* What the agent may make below cmd is bounded, and these files stay root's: an agent
         * that was taken over can neither hoard groups nor leave deep ones behind. */
        if (r == 0)
                r = slot_write(cg->v2, slot, "cmd/cgroup.max.depth", "1");
        if (r == 0)
                r = slot_write(cg->v2, slot, "cmd/cgroup.max.descendants", "600");
        if (r == 0)
                r = delegate(cg->v2, slot, uid);
        return r;
}

int cg_slot_make(const struct cg *cg, unsigned slot, uid_t uid, struct err *e)
{
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++) {
                int r = cg->where[c] == CG_V1 ? make_path(cg->v1[c], slot, "") : 0;
                if (r < 0)
                        return fail_host(e, r, "cannot make the %s cgroup of slot %u: %s",
                                         cg_controller_name(c), slot, strerror(-r));
        }
        int r = cg->v2 >= 0 ? make_v2(cg, slot, uid) : 0;
        if (r < 0)
                return fail_host(e, r, "cannot make the unified cgroup of slot %u: %s", slot,
                                 strerror(-r));
        return 0;
}

static int limit_memory_v1(int dir, unsigned slot, uint64_t memory)
{
        char value[32], sockets[32];
        (void)snprintf(value, sizeof value, "%llu", (unsigned long long)memory);
        (void)snprintf(sockets, sizeof sockets, "%llu", (unsigned long long)memory / V1_SOCKET_SHARE);
        /* The combined limit may never be below the plain one, so the order depends on
         * whether we go up or down: open the combined one first. Absent without swap
         * accounting, and that is fine. */
        (void)slot_write(dir, slot, "memory.memsw.limit_in_bytes", "-1");
        int r = slot_write(dir, slot, "memory.limit_in_bytes", value);
        if (r == -EBUSY) {
                (void)slot_write(dir, slot, "memory.force_empty", "0");
                r = slot_write(dir, slot, "memory.limit_in_bytes", value);
        }
        if (r < 0)
                return r;
        (void)slot_write(dir, slot, "memory.memsw.limit_in_bytes", value);
        /* v1 counts socket buffers apart, and only where they have a limit: without one a
         * sandbox fills the host's memory, and the share of it that all TCP has, over its
         * loopback. */
        r = slot_write(dir, slot, "memory.kmem.tcp.limit_in_bytes", sockets);
        return r == -ENOENT ? 0 : r;
}

static int limit_one(const struct cg *cg, unsigned slot, enum cg_controller c, const struct cg_limits *l)
{
        char value[64];
        bool v1 = cg->where[c] == CG_V1;
        int dir = v1 ? cg->v1[c] : cg->v2;
        switch (c) {
        case CG_MEMORY:
                if (v1)
                        return limit_memory_v1(dir, slot, l->memory);
                (void)snprintf(value, sizeof value, "%llu", (unsigned long long)l->memory);
                (void)slot_write(dir, slot, "cmd/memory.swap.max", "0");
                return slot_write(dir, slot, "cmd/memory.max", value);
        case CG_PIDS:
                (void)snprintf(value, sizeof value, "%llu", (unsigned long long)l->pids);
                return slot_write(dir, slot, v1 ? "pids.max" : "cmd/pids.max", value);
        default:
                if (!v1) {
                        cg_format_cpu_max(l->cpu_millis, value, sizeof value);
                        return slot_write(dir, slot, "cmd/cpu.max", value);
                }
                (void)snprintf(value, sizeof value, "%llu", (unsigned long long)l->cpu_millis * 100);
                return slot_write(dir, slot, "cpu.cfs_quota_us", value);
        }
}

int cg_slot_limit(const struct cg *cg, unsigned slot, const struct cg_limits *l, struct err *e)
{
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++) {
                if (cg->where[c] == CG_NOWHERE)
                        continue;
                int r = limit_one(cg, slot, c, l);
                if (r < 0)
                        return fail_host(e, r, "cannot set the %s limit of slot %u: %s",
                                         cg_controller_name(c), slot, strerror(-r));
        }
        return 0;
}

static int open_in(int dir, unsigned slot, const char *file, int flags)
{
        char path[96];
        (void)snprintf(path, sizeof path, "s%u/%s", slot, file);
        return openat(dir, path, flags | O_CLOEXEC);
}

int cg_slot_agent_dir(const struct cg *cg, unsigned slot)
{
        return cg->v2 < 0 ? -1 : open_in(cg->v2, slot, "agent", O_RDONLY | O_DIRECTORY);
}

int cg_slot_open(const struct cg *cg, unsigned slot, struct cg_agent *ret, struct err *e)
{
        struct cg_agent a = { -1, { -1, -1, -1 }, -1, -1 };
        bool bad = false;
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                if (cg->where[c] == CG_V1) {
                        a.tasks[c] = open_in(cg->v1[c], slot, "tasks", O_WRONLY);
                        bad |= a.tasks[c] < 0;
                }
        if (cg->v2 >= 0) {
                a.cmd_dir = open_in(cg->v2, slot, "cmd", O_RDONLY | O_DIRECTORY);
                bad |= a.cmd_dir < 0;
        }
        if (cg->where[CG_MEMORY] == CG_V1) {
                a.oom_events = open_in(cg->v1[CG_MEMORY], slot, "memory.oom_control", O_RDONLY);
                a.memory_usage = open_in(cg->v1[CG_MEMORY], slot, "memory.usage_in_bytes", O_RDONLY);
        } else if (cg->where[CG_MEMORY] == CG_V2) {
                a.oom_events = open_in(cg->v2, slot, "cmd/memory.events", O_RDONLY);
                a.memory_usage = open_in(cg->v2, slot, "cmd/memory.current", O_RDONLY);
        }
        if (bad) {
                int r = -errno;
                cg_agent_close(&a);
                return fail_host(e, r, "cannot open the cgroups of slot %u: %s", slot, strerror(-r));
        }
        *ret = a;
        return 0;
}

void cg_agent_close(struct cg_agent *a)
{
        close_fd(&a->cmd_dir);
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                close_fd(&a->tasks[c]);
        close_fd(&a->oom_events);
        close_fd(&a->memory_usage);
}

int cg_slot_kill(const struct cg *cg, unsigned slot)
{
        return cg->v2 < 0 ? -ENOENT : slot_write(cg->v2, slot, "cgroup.kill", "1");
}

/* Only groups that something lives in: an empty one that was killed would kill what is born
 * into it later (see agent/group.c). */
int cg_slot_kill_commands(const struct cg *cg, unsigned slot)
{
        int fd = cg->v2 < 0 ? -ENOENT : slot_dir(cg->v2, slot, "/cmd");
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        if (!d)
                return fd < 0 ? fd : -errno;
        for (struct dirent *de; (de = readdir(d));) {
                char path[300], text[128];
                (void)snprintf(path, sizeof path, "%s/cgroup.events", de->d_name);
                if (de->d_type != DT_DIR || de->d_name[0] == '.' || file_read(dirfd(d), path, text, sizeof text) <= 0 ||
                    !cg_find_count(text, "populated"))
                        continue;
                (void)snprintf(path, sizeof path, "%s/cgroup.kill", de->d_name);
                (void)file_write(dirfd(d), path, "1");
        }
        (void)closedir(d);
        return 0;
}

bool cg_slot_populated(const struct cg *cg, unsigned slot)
{
        char path[64], text[128];
        (void)snprintf(path, sizeof path, "s%u/cgroup.events", slot);
        return cg->v2 >= 0 && file_read(cg->v2, path, text, sizeof text) > 0 &&
               cg_find_count(text, "populated") != 0;
}

/* Whatever the agent made below cmd. -errno when something stays. */
static int remove_execs(int v2, unsigned slot)
{
        int r = 0;
        int fd = slot_dir(v2, slot, "/cmd");
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        if (!d) {
                close_fd(&fd);
                return -ENOENT;
        }
        for (struct dirent *de; (de = readdir(d));)
                if (de->d_type == DT_DIR && de->d_name[0] != '.' && unlinkat(dirfd(d), de->d_name, AT_REMOVEDIR) < 0)
                        r = -errno;
        (void)closedir(d);
        return r;
}

int cg_slot_clean(const struct cg *cg, unsigned slot)
{
        return cg->v2 >= 0 ? remove_execs(cg->v2, slot) : 0;
}

int cg_slot_remove(const struct cg *cg, unsigned slot)
{
        static const char *const v2_dirs[] = { "/cmd", "/agent", "" };
        char path[64];
        int r = 0;
        if (cg->v2 >= 0) {
                (void)remove_execs(cg->v2, slot);
                for (unsigned i = 0; i < ARRAY_SIZE(v2_dirs); i++) {
                        (void)snprintf(path, sizeof path, "s%u%s", slot, v2_dirs[i]);
                        if (unlinkat(cg->v2, path, AT_REMOVEDIR) < 0 && errno != ENOENT)
                                r = -errno;
                }
        }
        (void)snprintf(path, sizeof path, "s%u", slot);
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                if (cg->v1[c] >= 0 && unlinkat(cg->v1[c], path, AT_REMOVEDIR) < 0 && errno != ENOENT)
                        r = -errno;
        return r;
}
