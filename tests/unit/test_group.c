#include "agent/group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "check.h"
#include "os/cgroup.h"
#include "os/clone.h"

static pid_t start_in(const struct group *g)
{
        pid_t pid = clone_fork(0, g->dir, NULL);
        if (pid == 0)
                for (;;)
                        (void)pause();
        CHECK(pid > 0);
        return pid;
}

static bool was_killed(pid_t pid)
{
        int status = 0;
        return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void test_without_a_hierarchy(void)
{
        group_setup(-1);
        CHECK(group_take() == NULL);
        group_put(NULL, false);
}

static void use_groups(int cmd_dir)
{
        group_setup(cmd_dir);
        CHECK(faccessat(cmd_dir, "e0", F_OK, 0) == 0); /* made ahead */
        struct group *a = group_take(), *b = group_take();
        CHECK(a && b && a != b);
        CHECK(!group_populated(a) && !group_populated(b));
        pid_t in_a = start_in(a), in_b = start_in(b);
        CHECK(group_populated(a) && group_populated(b));
        CHECK_INT(group_kill(a), 0);
        CHECK(was_killed(in_a));
        CHECK(!group_populated(a) && group_populated(b)); /* only its own tree */
        /* Free, but killed: never handed out again; what is born in it must live. */
        group_put(a, false);
        struct group *c = group_take();
        CHECK(c && c != b && !c->killed);
        pid_t in_c = start_in(c);
        (void)usleep(2000);
        CHECK(waitpid(in_c, NULL, WNOHANG) == 0);
        /* Given back with somebody left behind: not handed out while he lives. */
        group_put(b, false);
        struct group *d = group_take();
        CHECK(d && d != b && d != c);
        (void)kill(in_b, SIGKILL);
        CHECK(was_killed(in_b));
        struct group *e = group_take();
        CHECK(e == b);
        CHECK_INT(group_kill(c), 0);
        CHECK(was_killed(in_c));
        group_put(c, false);
        group_put(d, true);
        group_put(e, false);
}

/* There is a bound, and giving back makes room. */
static void exhaust_groups(int cmd_dir)
{
        static struct group *all[LIMIT_EXECS_PER_BOX * 4];
        unsigned n = 0;
        (void)cmd_dir;
        while (n < LIMIT_EXECS_PER_BOX * 4 && (all[n] = group_take()))
                n++;
        CHECK(n >= LIMIT_EXECS_PER_BOX && n < LIMIT_EXECS_PER_BOX * 4);
        group_put(all[0], true);
        CHECK(group_take() == all[0]);
        CHECK(group_take() == NULL);
        for (unsigned i = 0; i < n; i++)
                group_put(all[i], false);
}

static void test_real_groups(void)
{
        struct cg cg;
        struct cg_agent a;
        struct err e = { 0 };
        char group[64];
        (void)snprintf(group, sizeof group, "cloche-test-group-%d", (int)getpid());
        if (geteuid() != 0 || cg_open(&cg, group, &e) < 0)
                SKIP("needs root and cgroups");
        if (cg.v2 < 0) {
                cg_remove_if_empty(&cg);
                cg_close(&cg);
                SKIP("no unified hierarchy");
        }
        CHECK_INT(cg_slot_make(&cg, 0, 0, &e), 0);
        CHECK_INT(cg_slot_open(&cg, 0, &a, &e), 0);
        use_groups(a.cmd_dir);
        exhaust_groups(a.cmd_dir);
        cg_agent_close(&a);
        cg_slot_clean(&cg, 0);
        CHECK_INT(cg_slot_remove(&cg, 0), 0);
        cg_remove_if_empty(&cg);
        cg_close(&cg);
}

int main(void)
{
        RUN(test_without_a_hierarchy);
        RUN(test_real_groups);
        return check_done();
}
