#include "os/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static void test_hybrid(void)
{
        static const char text[] =
                "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
                "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
                "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
                "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw shared:11 master:3 - cgroup none rw,memory\n"
                "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
                "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate";
        struct cg_mounts m;
        CHECK_INT(cg_parse_mountinfo(text, &m), 0);
        CHECK_STR(m.v1[CG_CPU], "/sys/fs/cgroup/cpu,cpuacct");
        CHECK_STR(m.v1[CG_MEMORY], "/sys/fs/cgroup/memory");
        CHECK_STR(m.v1[CG_PIDS], "/sys/fs/cgroup/pids");
        CHECK_STR(m.v2, "/sys/fs/cgroup/unified");
}

static void test_pure_v2(void)
{
        struct cg_mounts m;
        CHECK_INT(cg_parse_mountinfo("35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - "
                                     "cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n", &m), 0);
        CHECK_STR(m.v2, "/sys/fs/cgroup");
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                CHECK_STR(m.v1[c], "");
}

/* Names that contain a controller's name are not that controller. */
static void test_similar_names(void)
{
        struct cg_mounts m;
        (void)cg_parse_mountinfo("1 2 0:1 / /a rw - cgroup cgroup rw,cpuset\n"
                                 "1 2 0:1 / /b rw - cgroup cgroup rw,cpuacct\n"
                                 "1 2 0:1 / /c rw - cgroup cgroup rw,name=memory\n"
                                 "1 2 0:1 / /d rw - cgroup cgroup rw,mypids,pidsy\n"
                                 "1 2 0:1 / /e,memory rw - tmpfs cgroup rw,memory,pids,cpu\n", &m);
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                CHECK_STR(m.v1[c], "");
        CHECK_STR(m.v2, "");
}

static void test_weird_texts(void)
{
        static const char *const texts[] = {
                "", "\n", "\n\n\n", " - ", " - cgroup2", "1 2 3 4 5 6 -", "1 2 3 4 - cgroup2 x y",
                "1 2 3 4 /p rw - cgroup2", "no separator here\n", "1 2 3 4 /p rw - cgroup2 x\n",
        };
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
                struct cg_mounts m;
                char *exact = strdup(texts[i]);
                (void)cg_parse_mountinfo(exact, &m);
                CHECK_STR(m.v2[0] && i != 6 ? "found something" : "", "");
                free(exact);
        }
        /* The first of several wins; a line longer than any sane one is passed over. */
        char *text = malloc(8192), *p = text;
        p += sprintf(p, "1 2 0:1 / /");
        memset(p, 'x', 3000);
        p += 3000;
        (void)sprintf(p, " rw - cgroup2 cgroup2 rw\n1 2 0:1 / /one rw - cgroup2 c rw\n1 2 0:1 / /two rw - cgroup2 c rw");
        struct cg_mounts m;
        (void)cg_parse_mountinfo(text, &m);
        CHECK_STR(m.v2, "/one");
        /* Every prefix of a real text is digested. */
        (void)strcpy(text, "32 31 0:29 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,memory,pids");
        for (size_t n = strlen(text); n > 0; n--) {
                char *cut = strndup(text, n);
                (void)cg_parse_mountinfo(cut, &m);
                free(cut);
        }
        free(text);
}

static void test_cpu_max(void)
{
        static const struct { uint64_t millis; const char *text; } rows[] = {
                { 0, "max 100000" }, { 10, "1000 100000" }, { 100, "10000 100000" },
                { 1000, "100000 100000" }, { 1500, "150000 100000" }, { 1024000, "102400000 100000" },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                char out[64];
                cg_format_cpu_max(rows[i].millis, out, sizeof out);
                CHECK_STR(out, rows[i].text);
        }
        char small[4];
        cg_format_cpu_max(1000, small, sizeof small);
        CHECK_STR(small, "100");
}

static void test_find_count(void)
{
        static const char events[] = "low 0\nhigh 1\nmax 22\noom 3\noom_kill 44\noom_group_kill 5\n";
        CHECK_INT(cg_find_count(events, "oom_kill"), 44);
        CHECK_INT(cg_find_count(events, "oom"), 3);
        CHECK_INT(cg_find_count(events, "low"), 0);
        CHECK_INT(cg_find_count(events, "max"), 22);
        CHECK_INT(cg_find_count(events, "kill"), 0); /* no row of that name */
        CHECK_INT(cg_find_count(events, "none"), 0);
        CHECK_INT(cg_find_count("oom_kill_disable 1\nunder_oom 1\noom_kill 7\n", "oom_kill"), 7);
        CHECK_INT(cg_find_count("populated 1", "populated"), 1);
        CHECK_INT(cg_find_count("xpopulated 1\npopulated", "populated"), 0);
        CHECK_INT(cg_find_count("", "populated"), 0);
        CHECK(cg_find_count("n 18446744073709551615\n", "n") == UINT64_MAX);
}

static void test_names(void)
{
        CHECK_STR(cg_controller_name(CG_MEMORY), "memory");
        CHECK_STR(cg_controller_name(CG_CPU), "cpu");
        CHECK_STR(cg_where_name(CG_NOWHERE), "none");
        CHECK_STR(cg_where_name(CG_V2), "v2");
}

struct seen {
        unsigned count, sum;
};

static void see(unsigned slot, void *user)
{
        struct seen *s = user;
        s->count++;
        s->sum += slot;
}

/* Only s<number> is a slot. */
static void test_each_slot(void)
{
        static const char *const dirs[] = { "s0", "s12", "s3x", "sx", "t4", "s", "s1.scope" };
        char dir[] = "/tmp/cloche-test-cg-XXXXXX";
        if (!mkdtemp(dir))
                abort();
        struct cg cg = { .v1 = { -1, -1, -1 }, .v2 = open(dir, O_RDONLY | O_DIRECTORY), .top = { -1, -1, -1, -1 } };
        for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
                CHECK_INT(mkdirat(cg.v2, dirs[i], 0700), 0);
        struct seen s = { 0 };
        CHECK_INT(cg_each_slot(&cg, see, &s), 0);
        CHECK_INT(s.count, 2);
        CHECK_INT(s.sum, 12);
        for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
                (void)unlinkat(cg.v2, dirs[i], AT_REMOVEDIR);
        cg_close(&cg);
        CHECK_INT(cg.v2, -1);
        (void)rmdir(dir);
}

static void test_open_on_this_host(void)
{
        struct cg cg;
        struct err e = { 0 };
        char group[64];
        (void)snprintf(group, sizeof group, "cloche-test-%d", (int)getpid());
        CHECK_INT(cg_open(&cg, group, &e), 0);
        unsigned found = cg.v2 >= 0;
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++) {
                CHECK_INT(cg.v1[c] >= 0, cg.where[c] == CG_V1);
                CHECK(cg.where[c] != CG_V2 || cg.v2 >= 0);
                found += cg.where[c] != CG_NOWHERE;
        }
        CHECK_STR(cg.group, group);
        CHECK_INT(cg.v2_has_controllers, cg.where[0] == CG_V2 || cg.where[1] == CG_V2 || cg.where[2] == CG_V2);
        cg_remove_if_empty(&cg);
        for (unsigned i = 0; i < CG_CONTROLLER_MAX + 1; i++)
                CHECK(cg.top[i] < 0 || faccessat(cg.top[i], group, F_OK, 0) < 0);
        cg_close(&cg);
        if (!found)
                SKIP("no cgroup can be made here");
}

int main(void)
{
        RUN(test_hybrid);
        RUN(test_pure_v2);
        RUN(test_similar_names);
        RUN(test_weird_texts);
        RUN(test_cpu_max);
        RUN(test_find_count);
        RUN(test_names);
        RUN(test_each_slot);
        RUN(test_open_on_this_host);
        return check_done();
}
