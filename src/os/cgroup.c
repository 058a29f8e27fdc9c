#include "os/cgroup.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "os/sys.h"

static const char *const controller_names[] = { "memory", "pids", "cpu" };
static_assert(ARRAY_SIZE(controller_names) == CG_CONTROLLER_MAX, "a name for each");
static const char *const where_names[] = { "none", "v1", "v2" };

const char *cg_controller_name(enum cg_controller c)
{
        return controller_names[c];
}

const char *cg_where_name(enum cg_where w)
{
        return where_names[w];
}

/* Does the comma-separated list hold word? */
static bool list_has(const char *list, const char *word)
{
        size_t n = strlen(word);
        for (const char *p = list; (p = strstr(p, word)); p += n)
                if ((p == list || p[-1] == ',' || p[-1] == ' ') &&
                    (p[n] == '\0' || p[n] == ',' || p[n] == ' ' || p[n] == '\n'))
                        return true;
        return false;
}

/* mountinfo: id parent dev root mountpoint options [optional…] - type source superoptions */
static void parse_mount_line(char *line, struct cg_mounts *m)
{
        char *sep = strstr(line, " - ");
        if (!sep)
                return;
        *sep = '\0';
        char type[32], super[512], point[256];
        if (sscanf(line, "%*s %*s %*s %*s %255s", point) != 1 ||
            sscanf(sep + 3, "%31s %*s %511s", type, super) != 2)
                return;
        if (strcmp(type, "cgroup2") == 0 && !m->v2[0])
                (void)snprintf(m->v2, sizeof m->v2, "%s", point);
        if (strcmp(type, "cgroup") != 0)
                return;
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                if (!m->v1[c][0] && list_has(super, controller_names[c]))
                        (void)snprintf(m->v1[c], sizeof m->v1[c], "%s", point);
}

int cg_parse_mountinfo(const char *text, struct cg_mounts *ret)
{
        struct cg_mounts m = { 0 };
        while (*text) {
                char line[1024];
                size_t n = strcspn(text, "\n");
                if (n < sizeof line) {
                        memcpy(line, text, n);
                        line[n] = '\0';
                        parse_mount_line(line, &m);
                }
                text += n + (text[n] == '\n');
        }
        *ret = m;
        return 0;
}

void cg_format_cpu_max(uint64_t cpu_millis, char *out, size_t size)
{
        if (cpu_millis)
                (void)snprintf(out, size, "%llu 100000", (unsigned long long)cpu_millis * 100);
        else
                (void)snprintf(out, size, "max 100000");
}

uint64_t cg_find_count(const char *text, const char *key)
{
        size_t n = strlen(key);
        for (const char *p = text; (p = strstr(p, key)); p += n)
                if ((p == text || p[-1] == '\n') && p[n] == ' ')
                        return strtoull(p + n + 1, NULL, 10);
        return 0;
}

/* mkdir unless it is there, and open. fd or -errno. */
static int make_dir(int parent, const char *name)
{
        if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
                return -errno;
        int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static int read_mountinfo(struct cg_mounts *m)
{
        size_t size = 256 * 1024;
        _cleanup_free_ char *text = malloc(size);
        if (!text)
                return -ENOMEM;
        int r = file_read(AT_FDCWD, "/proc/self/mountinfo", text, size);
        return r < 0 ? r : cg_parse_mountinfo(text, m);
}

/* The unified hierarchy: our group, with as many of our controllers as it has. */
static void open_v2(struct cg *cg, const char *point, const char *group)
{
        int top = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int fd = top < 0 ? -1 : make_dir(top, group);
        cg->top[CG_CONTROLLER_MAX] = top;
        if (fd < 0)
                return;
        cg->v2 = fd;
        char have[256] = "";
        if (file_read(top, "cgroup.controllers", have, sizeof have) < 0)
                return;
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++) {
                char plus[32];
                (void)snprintf(plus, sizeof plus, "+%s", controller_names[c]);
                if (!list_has(have, controller_names[c]))
                        continue;
                /* EBUSY when the parent holds processes: then it is not ours to have. */
                if (file_write(top, "cgroup.subtree_control", plus) == 0 &&
                    file_write(fd, "cgroup.subtree_control", plus) == 0) {
                        cg->where[c] = CG_V2;
                        cg->v2_has_controllers = true;
                }
        }
}

int cg_open(struct cg *cg, const char *group, struct err *e)
{
        *cg = (struct cg){ .v1 = { -1, -1, -1 }, .v2 = -1, .top = { -1, -1, -1, -1 } };
        (void)snprintf(cg->group, sizeof cg->group, "%s", group);
        struct cg_mounts m;
        int r = read_mountinfo(&m);
        if (r < 0)
                return fail_host(e, r, "cannot read /proc/self/mountinfo: %s", strerror(-r));
        if (m.v2[0])
                open_v2(cg, m.v2, group);
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++) {
                if (cg->where[c] != CG_NOWHERE || !m.v1[c][0])
                        continue;
                cg->top[c] = open(m.v1[c], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                int fd = cg->top[c] < 0 ? -errno : make_dir(cg->top[c], group);
                if (fd < 0)
                        continue;
                cg->v1[c] = fd;
                cg->where[c] = CG_V1;
        }
        return 0;
}

void cg_close(struct cg *cg)
{
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                close_fd(&cg->v1[c]);
        close_fd(&cg->v2);
        for (unsigned i = 0; i < ARRAY_SIZE(cg->top); i++)
                close_fd(&cg->top[i]);
}

void cg_remove_if_empty(const struct cg *cg)
{
        for (unsigned i = 0; i < ARRAY_SIZE(cg->top); i++)
                if (cg->top[i] >= 0)
                        (void)unlinkat(cg->top[i], cg->group, AT_REMOVEDIR);
}

int cg_each_slot(const struct cg *cg, void (*fn)(unsigned, void *), void *user)
{
        int fds[CG_CONTROLLER_MAX + 1] = { cg->v1[0], cg->v1[1], cg->v1[2], cg->v2 };
        for (unsigned i = 0; i < ARRAY_SIZE(fds); i++) {
                if (fds[i] < 0)
                        continue;
                int fd = openat(fds[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                DIR *d = fd < 0 ? NULL : fdopendir(fd);
                if (!d)
                        return -errno;
                for (struct dirent *de; (de = readdir(d));) {
                        unsigned slot;
                        char rest;
                        if (sscanf(de->d_name, "s%u%c", &slot, &rest) == 1)
                                fn(slot, user);
                }
                (void)closedir(d);
        }
        return 0;
}
