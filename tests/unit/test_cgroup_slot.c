/* Slots of cgroups: real ones of this host under a group name of our own, and the v2
 * writer against plain files, since few hosts have both kinds of hierarchy. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/cgroup.h"
#include "os/clone.h"
#include "os/sys.h"

static char group[64];

static bool open_real(struct cg *cg)
{
        struct err e = { 0 };
        (void)snprintf(group, sizeof group, "cloche-test-slot-%d", (int)getpid());
        return geteuid() == 0 && cg_open(cg, group, &e) == 0 &&
               (cg->v2 >= 0 || cg->v1[CG_MEMORY] >= 0 || cg->v1[CG_PIDS] >= 0);
}

static void close_real(struct cg *cg)
{
        cg_remove_if_empty(cg);
        cg_close(cg);
}

static void check_file(int dir, const char *path, const char *want)
{
        char text[256];
        int n = file_read(dir, path, text, sizeof text);
        if (n > 0 && text[n - 1] == '\n')
                text[n - 1] = '\0';
        CHECK_STR(n < 0 ? "(cannot be read)" : text, want);
}

static void test_real_limits(void)
{
        struct cg cg;
        struct err e = { 0 };
        struct cg_limits l = { 64 << 20, 33, 250 };
        if (!open_real(&cg))
                SKIP("needs root and cgroups");
        CHECK_INT(cg_slot_make(&cg, 7, 4242, &e), 0);
        CHECK_INT(cg_slot_make(&cg, 7, 4242, &e), 0); /* again: it may be there already */
        CHECK_INT(cg_slot_limit(&cg, 7, &l, &e), 0);
        CHECK_STR(e.msg, "");
        if (cg.where[CG_MEMORY] == CG_V1)
                check_file(cg.v1[CG_MEMORY], "s7/memory.limit_in_bytes", "67108864");
        if (cg.where[CG_PIDS] == CG_V1)
                check_file(cg.v1[CG_PIDS], "s7/pids.max", "33");
        if (cg.where[CG_CPU] == CG_V1)
                check_file(cg.v1[CG_CPU], "s7/cpu.cfs_quota_us", "25000");
        if (cg.where[CG_MEMORY] == CG_V2)
                check_file(cg.v2, "s7/cmd/memory.max", "67108864");
        if (cg.where[CG_PIDS] == CG_V2)
                check_file(cg.v2, "s7/cmd/pids.max", "33");
        /* up and down again: the combined limit is never in the way */
        l.memory = 512 << 20;
        CHECK_INT(cg_slot_limit(&cg, 7, &l, &e), 0);
        l.memory = 32 << 20;
        CHECK_INT(cg_slot_limit(&cg, 7, &l, &e), 0);
        if (cg.where[CG_MEMORY] == CG_V1) {
                check_file(cg.v1[CG_MEMORY], "s7/memory.limit_in_bytes", "33554432");
                char text[64];
                if (file_read(cg.v1[CG_MEMORY], "s7/memory.memsw.limit_in_bytes", text, sizeof text) > 0)
                        CHECK_STR(text, "33554432\n");
                if (file_read(cg.v1[CG_MEMORY], "s7/memory.kmem.tcp.limit_in_bytes", text, sizeof text) > 0)
                        CHECK_STR(text, "8388608\n");
        }
        CHECK_INT(cg_slot_limit(&cg, 8, &l, &e) < 0, cg.where[0] || cg.where[1] || cg.where[2]);
        CHECK_INT(cg_slot_remove(&cg, 7), 0);
        CHECK_INT(cg_slot_remove(&cg, 7), 0); /* nothing there: fine */
        close_real(&cg);
}

/* The agent may make exec groups and move into them, and may not touch its limits. */
static void test_real_owners(void)
{
        struct cg cg;
        struct err e = { 0 };
        struct stat st;
        if (!open_real(&cg))
                SKIP("needs root and cgroups");
        if (cg.v2 < 0) {
                close_real(&cg);
                SKIP("no unified hierarchy");
        }
        CHECK_INT(cg_slot_make(&cg, 1, 4242, &e), 0);
        static const struct { const char *path; uid_t uid; } rows[] = {
                { "s1", 0 },       { "s1/cgroup.procs", 4242 },     { "s1/agent", 0 },
                { "s1/cmd", 4242 }, { "s1/cmd/cgroup.procs", 4242 }, { "s1/cgroup.kill", 0 },
                { "s1/cmd/cgroup.subtree_control", 0 },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                CHECK_INT(fstatat(cg.v2, rows[i].path, &st, 0), 0);
                CHECK_INT(st.st_uid, rows[i].uid);
        }
        CHECK_INT(cg_slot_remove(&cg, 1), 0);
        close_real(&cg);
}

static void test_real_processes(void)
{
        struct cg cg;
        struct cg_agent a;
        struct err e = { 0 };
        int status = 0;
        if (!open_real(&cg))
                SKIP("needs root and cgroups");
        if (cg.v2 < 0) {
                close_real(&cg);
                SKIP("no unified hierarchy");
        }
        CHECK(!cg_slot_populated(&cg, 2)); /* not there at all */
        CHECK_INT(cg_slot_make(&cg, 2, 0, &e), 0);
        CHECK(!cg_slot_populated(&cg, 2));
        CHECK_INT(cg_slot_open(&cg, 2, &a, &e), 0);
        int agent_dir = cg_slot_agent_dir(&cg, 2);
        CHECK(agent_dir >= 0 && a.cmd_dir >= 0);
        for (unsigned c = 0; c < CG_CONTROLLER_MAX; c++)
                CHECK_INT(a.tasks[c] >= 0, cg.where[c] == CG_V1);
        CHECK_INT(a.oom_events >= 0, cg.where[CG_MEMORY] != CG_NOWHERE);
        CHECK_INT(a.memory_usage >= 0, cg.where[CG_MEMORY] != CG_NOWHERE);
        CHECK_INT(mkdirat(a.cmd_dir, "e0", 0755), 0);
        int exec_dir = openat(a.cmd_dir, "e0", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        pid_t agent = clone_fork(0, agent_dir, NULL);
        if (agent == 0)
                for (;;)
                        (void)pause();
        pid_t command = clone_fork(0, exec_dir, NULL);
        if (command == 0)
                for (;;)
                        (void)pause();
        CHECK(agent > 0 && command > 0);
        CHECK(cg_slot_populated(&cg, 2));
        CHECK(cg_slot_remove(&cg, 2) < 0); /* still lived in */
        CHECK_INT(cg_slot_kill(&cg, 2), 0);
        CHECK(waitpid(agent, &status, 0) == agent && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(waitpid(command, &status, 0) == command && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(!cg_slot_populated(&cg, 2));
        (void)close(exec_dir);
        cg_agent_close(&a);
        CHECK_INT(a.cmd_dir, -1);
        (void)close(agent_dir);
        CHECK_INT(mkdirat(cg.v2, "s2/cmd/e1", 0755), 0);
        cg_slot_clean(&cg, 2);
        CHECK(faccessat(cg.v2, "s2/cmd/e0", F_OK, 0) < 0 && faccessat(cg.v2, "s2/cmd/e1", F_OK, 0) < 0);
        CHECK(faccessat(cg.v2, "s2/cmd", F_OK, 0) == 0);
        CHECK_INT(mkdirat(cg.v2, "s2/cmd/e5", 0755), 0);
        CHECK_INT(cg_slot_remove(&cg, 2), 0); /* with the exec group below */
        CHECK(cg_slot_open(&cg, 2, &a, &e) < 0);
        close_real(&cg);
}

static void test_without_v2(void)
{
        struct cg cg = { .v1 = { -1, -1, -1 }, .v2 = -1, .top = { -1, -1, -1, -1 } };
        struct cg_limits l = { 1 << 20, 1, 10 };
        struct cg_agent a;
        struct err e = { 0 };
        CHECK_INT(cg_slot_make(&cg, 0, 0, &e), 0);
        CHECK_INT(cg_slot_limit(&cg, 0, &l, &e), 0);
        CHECK_INT(cg_slot_open(&cg, 0, &a, &e), 0);
        CHECK_INT(cg_slot_agent_dir(&cg, 0), -1);
        CHECK(a.cmd_dir == -1 && a.tasks[0] == -1 && a.oom_events == -1);
        CHECK_INT(cg_slot_kill(&cg, 0), -ENOENT);
        CHECK(!cg_slot_populated(&cg, 0));
        CHECK_INT(cg_slot_remove(&cg, 0), 0);
}

/* --- the v2 writer against plain files ------------------------------------------------ */

static char fake_dir[] = "/tmp/cloche-test-v2-XXXXXX";

static void touch(int dir, const char *path)
{
        int fd = openat(dir, path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        if (fd < 0)
                abort();
        (void)close(fd);
}

static const char *const fake_files[] = {
        "s3/cgroup.procs", "s3/cgroup.subtree_control", "s3/cgroup.kill", "s3/cgroup.events",
        "s3/cmd/cgroup.procs", "s3/cmd/memory.max", "s3/cmd/memory.swap.max", "s3/cmd/pids.max", "s3/cmd/cpu.max",
        "s3/cmd/memory.events", "s3/cmd/memory.current", "s3/cmd/cgroup.max.depth", "s3/cmd/cgroup.max.descendants",
};

static void test_v2_writer(void)
{
        struct err e = { 0 };
        struct cg_limits l = { 123 << 20, 77, 1500 };
        struct cg_agent a;
        if (!mkdtemp(fake_dir))
                abort();
        struct cg cg = { .where = { CG_V2, CG_V2, CG_V2 }, .v1 = { -1, -1, -1 }, .top = { -1, -1, -1, -1 },
                         .v2 = open(fake_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .v2_has_controllers = true };
        CHECK_INT(mkdirat(cg.v2, "s3", 0755), 0);
        CHECK_INT(mkdirat(cg.v2, "s3/cmd", 0755), 0);
        for (size_t i = 0; i < sizeof fake_files / sizeof fake_files[0]; i++)
                touch(cg.v2, fake_files[i]);
        CHECK_INT(cg_slot_make(&cg, 3, geteuid(), &e), 0);
        CHECK(faccessat(cg.v2, "s3/agent", F_OK, 0) == 0);
        /* each write of a plain file starts at its beginning: the last one is what is seen,
         * and the longest of them ("+memory") shows behind it */
        check_file(cg.v2, "s3/cgroup.subtree_control", "+cpusry");
        check_file(cg.v2, "s3/cmd/cgroup.max.depth", "1"); /* exec groups, and nothing below them */
        CHECK_INT(cg_slot_limit(&cg, 3, &l, &e), 0);
        check_file(cg.v2, "s3/cmd/memory.max", "128974848");
        check_file(cg.v2, "s3/cmd/memory.swap.max", "0");
        check_file(cg.v2, "s3/cmd/pids.max", "77");
        check_file(cg.v2, "s3/cmd/cpu.max", "150000 100000");
        CHECK_INT(cg_slot_open(&cg, 3, &a, &e), 0);
        CHECK(a.oom_events >= 0 && a.memory_usage >= 0 && a.cmd_dir >= 0);
        CHECK(a.tasks[0] == -1 && a.tasks[1] == -1 && a.tasks[2] == -1);
        cg_agent_close(&a);
        CHECK_INT(cg_slot_kill(&cg, 3), 0);
        check_file(cg.v2, "s3/cgroup.kill", "1");
        CHECK_INT(file_write(cg.v2, "s3/cgroup.events", "populated 1\nfrozen 0\n"), 0);
        CHECK(cg_slot_populated(&cg, 3));
        CHECK_INT(file_write(cg.v2, "s3/cgroup.events", "populated 0\nfrozen 0\n"), 0);
        CHECK(!cg_slot_populated(&cg, 3));
        /* Without swap accounting there is no such file, and that is fine; a memory limit
         * that cannot be set is not. */
        (void)unlinkat(cg.v2, "s3/cmd/memory.swap.max", 0);
        CHECK_INT(cg_slot_limit(&cg, 3, &l, &e), 0);
        (void)unlinkat(cg.v2, "s3/cmd/memory.max", 0);
        CHECK_INT(cg_slot_limit(&cg, 3, &l, &e), -ENOENT);
        CHECK(strstr(e.msg, "memory limit of slot 3") != NULL);
        /* One without memory in v2 writes only the others. */
        cg.where[CG_MEMORY] = CG_NOWHERE;
        touch(cg.v2, "s3/cmd/pids.max");
        CHECK_INT(cg_slot_limit(&cg, 3, &l, &e), 0);
        check_file(cg.v2, "s3/cmd/pids.max", "77");
        for (size_t i = 0; i < sizeof fake_files / sizeof fake_files[0]; i++)
                (void)unlinkat(cg.v2, fake_files[i], 0);
        CHECK_INT(mkdirat(cg.v2, "s3/cmd/e0", 0755), 0);
        CHECK_INT(cg_slot_remove(&cg, 3), 0);
        CHECK(faccessat(cg.v2, "s3", F_OK, 0) < 0);
        cg_close(&cg);
        (void)rmdir(fake_dir);
}

int main(void)
{
        RUN(test_real_limits);
        RUN(test_real_owners);
        RUN(test_real_processes);
        RUN(test_without_v2);
        RUN(test_v2_writer);
        return check_done();
}
