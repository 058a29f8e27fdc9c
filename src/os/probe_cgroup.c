/* Probes of control groups: where each controller lives, and whether a group can really be
 * made there. What is made is removed again, what is switched on is switched off again. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "os/cgroup.h"
#include "os/clone.h"
#include "os/probe_internal.h"
#include "os/sys.h"

#define MOUNTINFO_BYTES (256 * 1024)

static int find_mounts(struct cg_mounts *ret)
{
        _cleanup_free_ char *text = malloc(MOUNTINFO_BYTES);
        if (!text)
                return -ENOMEM;
        int r = file_read(AT_FDCWD, "/proc/self/mountinfo", text, MOUNTINFO_BYTES);
        return r < 0 ? r : cg_parse_mountinfo(text, ret);
}

static const char *group_name(char out[48])
{
        (void)snprintf(out, 48, "cloche-check-%d", (int)getpid());
        return out;
}

/* A probe that was killed leaves its group; whoever gets its pid later takes it over. */
static int make_group(int dir, char name[48])
{
        return mkdirat(dir, group_name(name), 0755) < 0 && errno != EEXIST ? -errno : 0;
}

/* Is the word in a list that is separated by blanks? */
static bool has_word(const char *list, const char *word)
{
        size_t n = strlen(word);
        for (const char *p = list; (p = strstr(p, word)); p += n)
                if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\n' || !p[n]))
                        return true;
        return false;
}

/* Makes a group in dir, looks whether it has that file, removes it. 0 or -errno. */
static int try_group(int dir, const char *file)
{
        char name[48];
        int r = make_group(dir, name);
        if (r < 0)
                return r;
        _cleanup_close_ int group = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (group < 0)
                r = -errno;
        if (r == 0 && faccessat(group, file, W_OK, 0) < 0)
                r = -errno;
        if (unlinkat(dir, name, AT_REMOVEDIR) < 0 && r == 0)
                r = -errno;
        return r;
}

/* In the unified hierarchy a controller must be handed down before children have it. */
static int try_v2(const char *point, const char *controller, const char *file)
{
        char have[256] = "", down[256] = "", change[40];
        _cleanup_close_ int dir = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
                return -errno;
        if (file_read(dir, "cgroup.controllers", have, sizeof have) < 0 ||
            !has_word(have, controller))
                return -ENOENT;
        (void)file_read(dir, "cgroup.subtree_control", down, sizeof down);
        bool before = has_word(down, controller);
        (void)snprintf(change, sizeof change, "+%s", controller);
        int r = before ? 0 : file_write(dir, "cgroup.subtree_control", change);
        if (r < 0)
                return r;
        r = try_group(dir, file);
        change[0] = '-';
        if (!before)
                (void)file_write(dir, "cgroup.subtree_control", change);
        return r;
}

static const struct {
        const char *v1_file, *v2_file, *cost;
} rows[] = {
        [CG_MEMORY] = { "memory.limit_in_bytes", "memory.max",
                        "one sandbox can use up the host's memory" },
        [CG_PIDS] = { "pids.max", "pids.max", "one sandbox can use up the host's processes" },
        [CG_CPU] = { "cpu.cfs_quota_us", "cpu.max", "one sandbox can take all cores" },
};

static void probe_controller(enum cg_controller c, const struct probe_host *h,
                             struct probe_result *r)
{
        const char *name = cg_controller_name(c);
        struct cg_mounts m = { 0 };
        int x = find_mounts(&m);
        bool v1 = x == 0 && m.v1[c][0];
        if (x == 0 && v1) {
                _cleanup_close_ int dir = open(m.v1[c], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                x = dir < 0 ? -errno : try_group(dir, rows[c].v1_file);
        } else if (x == 0) {
                x = m.v2[0] ? try_v2(m.v2, name, rows[c].v2_file) : -ENOENT;
        }
        if (x == 0)
                probe_ok(r, "cgroup %s at %.100s, groups can be made", v1 ? "v1" : "v2",
                         v1 ? m.v1[c] : m.v2);
        else if (x == -ENOENT)
                probe_bad(r, PROBE_MISSING, "in no hierarchy; %s\n"
                          "mount -t cgroup2 none /sys/fs/cgroup, or boot with cgroup_enable=%s",
                          rows[c].cost, name);
        else
                probe_bad(r, PROBE_MISSING, "%.100s: %s; %s\n%s", v1 ? m.v1[c] : m.v2,
                          strerror(-x), rows[c].cost,
                          h->privileged ? "in a container: mount cgroups writable, in a cgroup "
                                          "namespace of its own without processes at its root"
                                        : "run as root");
}

void probe_cgroup_memory(const struct probe_host *h, struct probe_result *r)
{
        probe_controller(CG_MEMORY, h, r);
}

void probe_cgroup_pids(const struct probe_host *h, struct probe_result *r)
{
        probe_controller(CG_PIDS, h, r);
}

void probe_cgroup_cpu(const struct probe_host *h, struct probe_result *r)
{
        probe_controller(CG_CPU, h, r);
}

/* A child that is born in the group. 0 or -errno. */
static int try_birth(int group)
{
        pid_t pid = clone_fork(0, group, NULL);
        if (pid == 0)
                _exit(0);
        if (pid < 0)
                return (int)pid;
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        return 0;
}

static int try_tree(const char *point, bool *ret_kill, int *ret_birth)
{
        char name[48];
        _cleanup_close_ int dir = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int made = dir < 0 ? -errno : make_group(dir, name);
        if (made < 0)
                return made;
        _cleanup_close_ int group = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = group < 0 ? -errno : 0;
        if (r == 0) {
                *ret_kill = faccessat(group, "cgroup.kill", W_OK, 0) == 0;
                *ret_birth = try_birth(group);
        }
        if (unlinkat(dir, name, AT_REMOVEDIR) < 0 && r == 0)
                r = -errno;
        return r;
}

void probe_cgroup_tree(const struct probe_host *h, struct probe_result *r)
{
        static const char cost[] = "a command that hides its children from a timeout is ended "
                                   "only with its sandbox";
        struct cg_mounts m = { 0 };
        bool has_kill = false;
        int birth = -EIO, x = find_mounts(&m);
        if (x < 0 || !m.v2[0]) {
                probe_bad(r, PROBE_MISSING, "no unified hierarchy; %s\n"
                          "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none "
                          "/sys/fs/cgroup/unified", cost);
                return;
        }
        x = try_tree(m.v2, &has_kill, &birth);
        if (x < 0)
                probe_bad(r, PROBE_MISSING, "%.60s: %s; %s\n%s", m.v2, strerror(-x), cost,
                          h->privileged ? "mount it writable" : "run as root");
        else if (!has_kill || birth < 0)
                probe_bad(r, PROBE_WEAK, "%.60s: cgroup.kill %s, CLONE_INTO_CGROUP: %s; %s\n"
                          "a kernel from 5.14 on", m.v2, has_kill ? "works" : "is not there",
                          birth ? strerror(-birth) : "works", cost);
        else
                probe_ok(r, "%.100s: cgroup.kill and CLONE_INTO_CGROUP work", m.v2);
}
