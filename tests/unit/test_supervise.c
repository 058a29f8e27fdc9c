/* Supervised trees, in a pid namespace of their own with a /proc of its own; this program
 * is also the command that is supervised (argv[1] says which one). */
#include "agent/supervise.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "os/clone.h"

static const int no_tasks[CG_CONTROLLER_MAX] = { -1, -1, -1 };
static int ready[2]; /* commands say that they are there through their stdout */

/* --- what is supervised --------------------------------------------------------------- */

static void say(void)
{
        (void)!write(1, "x", 1);
}

static void wait_for_ever(void)
{
        for (;;)
                (void)pause();
}

/* Children in their own sessions, a daemon twice forked, one that ignores what can be ignored. */
static int tree(void)
{
        for (int i = 0; i < 4; i++)
                if (fork() == 0) {
                        if (i & 1)
                                (void)setsid();
                        if (i & 2) {
                                if (fork())
                                        _exit(0); /* the daemon's parent leaves */
                                (void)setsid();
                        }
                        for (int s = 1; s < 32; s++)
                                (void)signal(s, SIG_IGN);
                        say();
                        wait_for_ever();
                }
        say();
        wait_for_ever();
        return 0;
}

/* Never the same process for long: each forks its successor and leaves. */
static int comet(void)
{
        say();
        for (;;) {
                pid_t pid = fork();
                if (pid > 0)
                        _exit(0);
                if (pid == 0)
                        (void)setsid();
        }
}

static int background(void)
{
        if (fork() == 0) {
                say();
                wait_for_ever();
        }
        return 5;
}

/* --- the other side --------------------------------------------------------------------- */

static pid_t start(struct supervised *sup, struct spawn *s, const char *what)
{
        static char self[] = "/proc/self/exe", dir[] = "/";
        static char arg[32];
        static char *argv[3] = { self, arg, NULL }, *envp[] = { NULL };
        (void)snprintf(arg, sizeof arg, "%s", what);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        *s = (struct spawn){ .argv = argv, .envp = envp, .workdir = dir, .uid = geteuid(), .in = null, .out = ready[1],
                             .err = 2, .tasks = no_tasks, .cpus = 1024 };
        sup->src.fd = -1;
        pid_t pid = supervise_start(sup, s);
        (void)close(null);
        return pid;
}

static void await(unsigned n)
{
        char c;
        while (n--) {
                struct pollfd p = { ready[0], POLLIN, 0 };
                CHECK(poll(&p, 1, 10000) == 1 && read(ready[0], &c, 1) == 1);
        }
}

/* Everybody in this pid namespace but ourselves; zombies count, they are somebody's. */
static unsigned others(void)
{
        unsigned n = 0;
        DIR *d = opendir("/proc");
        for (struct dirent *de; d && (de = readdir(d));)
                n += atoi(de->d_name) > 1;
        if (d)
                (void)closedir(d);
        return n;
}

static bool reap_all(void)
{
        for (int i = 0; i < 2000; i++) {
                while (waitpid(-1, NULL, WNOHANG) > 0)
                        ;
                if (others() == 0)
                        return true;
                (void)usleep(1000);
        }
        return false;
}

static bool status_comes(struct supervised *sup, int *status)
{
        struct pollfd p = { sup->src.fd, POLLIN, 0 };
        return poll(&p, 1, 10000) == 1 && supervise_status(sup, status);
}

static void check_status(void)
{
        struct supervised sup;
        struct spawn s;
        int status = -1;
        pid_t pid = start(&sup, &s, "code");
        CHECK(pid > 0);
        CHECK(status_comes(&sup, &status) && WIFEXITED(status) && WEXITSTATUS(status) == 42);
        supervise_close(&sup);
        CHECK_INT(sup.src.fd, -1);
        CHECK(reap_all());
        pid = start(&sup, &s, "abort");
        CHECK(status_comes(&sup, &status) && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        supervise_close(&sup);
        CHECK(reap_all());
}

static void check_failure(void)
{
        struct supervised sup = { { .fd = -1 } };
        static char missing[] = "/nonexistent", dir[] = "/";
        char *argv[] = { missing, NULL }, *envp[] = { NULL };
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        struct spawn s = { .argv = argv, .envp = envp, .workdir = dir, .uid = geteuid(), .in = null, .out = null,
                           .err = null, .tasks = no_tasks, .cpus = 1024 };
        CHECK(supervise_start(&sup, &s) < 0);
        CHECK(s.stage == SPAWN_EXEC && s.error == -ENOENT);
        CHECK_INT(sup.src.fd, -1);
        CHECK_INT(others(), 0); /* all reaped */
        char nowhere[] = "/nonexistent/dir";
        s.workdir = nowhere;
        CHECK(supervise_start(&sup, &s) < 0);
        CHECK(s.stage == SPAWN_WORKDIR && s.error == -ENOENT);
        (void)close(null);
        int status;
        CHECK(!supervise_status(&sup, &status));
}

static void check_tree(void)
{
        struct supervised sup;
        struct spawn s;
        pid_t pid = start(&sup, &s, "tree");
        CHECK(pid > 0);
        await(5);
        CHECK(others() >= 6);
        supervise_kill(pid);
        CHECK(reap_all());
        supervise_close(&sup);
        supervise_kill(0); /* nobody */
        supervise_kill(-1);
}

/* What a command leaves behind stays in the tree, and its supervisor with it. */
static void check_left_behind(void)
{
        struct supervised sup;
        struct spawn s;
        int status = -1;
        pid_t pid = start(&sup, &s, "background");
        await(1);
        CHECK(status_comes(&sup, &status) && WEXITSTATUS(status) == 5);
        CHECK(waitpid(pid, NULL, WNOHANG) == 0);
        supervise_close(&sup);
        supervise_kill(pid);
        CHECK(reap_all());
}

/* Two trees: one dies, the other lives. */
static void check_neighbours(void)
{
        struct supervised a, b;
        struct spawn s;
        pid_t one = start(&a, &s, "tree");
        await(5);
        pid_t two = start(&b, &s, "background");
        await(1);
        supervise_kill(one);
        CHECK(waitpid(one, NULL, 0) == one);
        for (int i = 0; i < 5000 && others() != 2; i++) /* its leader is just leaving */
                (void)usleep(1000);
        CHECK(waitpid(two, NULL, WNOHANG) == 0 && others() == 2);
        supervise_panic();
        CHECK(reap_all());
        supervise_close(&a);
        supervise_close(&b);
}

static void check_comet(void)
{
        for (int round = 0; round < 5; round++) {
                struct supervised sup;
                struct spawn s;
                pid_t pid = start(&sup, &s, "comet");
                await(1);
                supervise_kill(pid);
                bool gone = reap_all();
                CHECK(gone);
                if (!gone) {
                        supervise_panic();
                        (void)reap_all();
                }
                supervise_close(&sup);
        }
}

static void in_namespace(void (*fn)(void))
{
        int status = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        (void)fflush(stdout);
        pid_t pid = clone_fork(CLONE_NEWPID | CLONE_NEWNS, -1, NULL);
        if (pid == 0) {
                check_failures = 0;
                if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("proc", "/proc", "proc", 0, NULL) < 0 ||
                    pipe2(ready, O_CLOEXEC) < 0 || loop_open() < 0)
                        _exit(99);
                fn();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

static void test_status(void) { in_namespace(check_status); }
static void test_failure(void) { in_namespace(check_failure); }
static void test_tree_is_killed(void) { in_namespace(check_tree); }
static void test_left_behind(void) { in_namespace(check_left_behind); }
static void test_neighbours(void) { in_namespace(check_neighbours); }
static void test_comet(void) { in_namespace(check_comet); }

int main(int argc, char **argv)
{
        if (argc > 1) {
                if (strcmp(argv[1], "code") == 0)
                        return 42;
                if (strcmp(argv[1], "abort") == 0)
                        return kill(getpid(), SIGKILL);
                return strcmp(argv[1], "tree") == 0 ? tree() : strcmp(argv[1], "comet") == 0 ? comet() : background();
        }
        RUN(test_status);
        RUN(test_failure);
        RUN(test_tree_is_killed);
        RUN(test_left_behind);
        RUN(test_neighbours);
        RUN(test_comet);
        return check_done();
}
