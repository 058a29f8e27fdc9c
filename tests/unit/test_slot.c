#include "keeper/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/clone.h"
#include "os/sys.h"

static struct slots s;

static bool begin(unsigned count)
{
        struct err e = { 0 };
        char group[64];
        if (geteuid() != 0)
                return false;
        s = (struct slots){ .uid_base = 0x38000000u, .privileged = true };
        s.proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        s.own_net_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        (void)snprintf(group, sizeof group, "cloche-test-slots-%d", (int)getpid());
        CHECK_INT(cg_open(&s.cg, group, &e), 0);
        CHECK_INT(slots_init(&s, count, &e), 0);
        return true;
}

static void end(void)
{
        slots_free_idle(&s);
        for (unsigned i = 0; i < s.count; i++)
                if (s.all[i].state != SLOT_FREE)
                        slot_free(&s, &s.all[i]);
        cg_remove_if_empty(&s.cg);
        for (unsigned i = 0; i < CG_CONTROLLER_MAX + 1; i++) /* nothing of us stays */
                CHECK(s.cg.top[i] < 0 || faccessat(s.cg.top[i], s.cg.group, F_OK, 0) < 0);
        cg_close(&s.cg);
        (void)close(s.proc_fd);
        (void)close(s.own_net_fd);
}

static struct slot *take(void)
{
        struct slot *slot = NULL;
        struct err e = { 0 };
        int r = slot_take(&s, &slot, &e);
        if (r < 0)
                printf("%s\n", e.msg);
        CHECK_INT(r, 0);
        if (slot)
                slot->state = SLOT_LIVE;
        return slot;
}

static void test_uids(void)
{
        struct slots t = { .uid_base = 1000000, .privileged = true };
        struct slot a = { .number = 0 }, b = { .number = 7 };
        CHECK_INT(slot_base_uid(&t, &a), 1000000);
        CHECK_INT(slot_user_uid(&t, &a), 1000000 + SANDBOX_UID);
        CHECK_INT(slot_base_uid(&t, &b), 1000000 + 7 * 65536);
        CHECK_INT(slot_user_uid(&t, &b), 1000000 + 7 * 65536 + SANDBOX_UID);
        t.privileged = false; /* one user namespace for all */
        CHECK_INT(slot_base_uid(&t, &b), 0);
        CHECK_INT(slot_user_uid(&t, &b), 0);
}

static void test_take_and_release(void)
{
        if (!begin(4))
                SKIP("needs root");
        struct slot *a = take(), *b = take();
        CHECK(a && b && a != b && a->user_ns >= 0 && a->net_ns >= 0);
        CHECK(s.have_baseline);
        struct stat one, two;
        CHECK(fstat(a->net_ns, &one) == 0 && fstat(b->net_ns, &two) == 0 && one.st_ino != two.st_ino);
        CHECK(fstat(a->user_ns, &one) == 0 && fstat(b->user_ns, &two) == 0 && one.st_ino != two.st_ino);
        /* given back untouched: the same slot with the same namespaces comes next */
        CHECK(fstat(a->net_ns, &one) == 0);
        slot_release(&s, a);
        CHECK_INT(a->state, SLOT_IDLE);
        CHECK_INT(s.idle_count, 1);
        struct slot *c = take();
        CHECK(c == a && fstat(c->net_ns, &two) == 0 && one.st_ino == two.st_ino);
        CHECK_INT(s.idle_count, 0);
        /* without its namespaces it is freed, and so are its cgroups */
        close_fd(&b->net_ns);
        slot_release(&s, b);
        CHECK_INT(b->state, SLOT_FREE);
        if (s.cg.v2 >= 0) {
                char path[32];
                (void)snprintf(path, sizeof path, "s%u", b->number);
                CHECK(faccessat(s.cg.v2, path, F_OK, 0) < 0);
        }
        end();
}

static void test_used_network_is_not_reused(void)
{
        if (!begin(4))
                SKIP("needs root");
        struct slot *a = take();
        int net = a->net_ns; /* the table is not there in a child */
        pid_t pid = fork();
        if (pid == 0) {
                struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9),
                                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
                if (setns(net, CLONE_NEWNET) < 0)
                        _exit(1);
                (void)!connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to);
                _exit(0);
        }
        int status = -1;
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
        slot_release(&s, a);
        CHECK_INT(a->state, SLOT_FREE);
        CHECK(a->net_ns == -1 && a->user_ns == -1);
        end();
}

/* A process that is left in its cgroup keeps a slot from being used again. */
static void test_populated_is_not_reused(void)
{
        if (!begin(4))
                SKIP("needs root");
        if (s.cg.v2 < 0) {
                end();
                SKIP("no unified hierarchy");
        }
        struct slot *a = take();
        int dir = cg_slot_agent_dir(&s.cg, a->number);
        pid_t pid = clone_fork(0, dir, NULL);
        if (pid == 0)
                for (;;)
                        (void)pause();
        (void)close(dir);
        slot_release(&s, a);
        CHECK_INT(a->state, SLOT_FREE);
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status)); /* and it is ended */
        (void)cg_slot_remove(&s.cg, a->number);
        end();
}

static void test_round_robin_and_full(void)
{
        struct slot *got[3];
        struct slot *none = NULL;
        struct err e = { 0 };
        if (!begin(3))
                SKIP("needs root");
        for (unsigned i = 0; i < 3; i++) {
                got[i] = take();
                CHECK_INT(got[i]->number, i);
        }
        CHECK_INT(slot_take(&s, &none, &e), -EAGAIN);
        CHECK(none == NULL && strstr(e.msg, "all 3 slots"));
        slot_free(&s, got[2]);
        slot_free(&s, got[0]);
        /* a number and its uids rest as long as possible: the next after the last */
        CHECK_INT(take()->number, 0);
        CHECK_INT(take()->number, 2);
        end();
}

static void test_limits_are_cached(void)
{
        struct cg_limits l = { 64 << 20, 50, 500 }, m = { 32 << 20, 60, 700 };
        struct err e = { 0 };
        char path[64], text[64];
        if (!begin(2))
                SKIP("needs root");
        int dir = s.cg.where[CG_PIDS] == CG_V1 ? s.cg.v1[CG_PIDS] : s.cg.v2;
        if (s.cg.where[CG_PIDS] == CG_NOWHERE) {
                end();
                SKIP("no pids controller");
        }
        struct slot *a = take();
        (void)snprintf(path, sizeof path, "s%u/%spids.max", a->number, s.cg.where[CG_PIDS] == CG_V1 ? "" : "cmd/");
        CHECK_INT(slot_limit(&s, a, &l, &e), 0);
        CHECK(file_read(dir, path, text, sizeof text) > 0 && atoi(text) == 50);
        CHECK_INT(file_write(dir, path, "77"), 0);
        CHECK_INT(slot_limit(&s, a, &l, &e), 0); /* the same: nothing is written */
        CHECK(file_read(dir, path, text, sizeof text) > 0 && atoi(text) == 77);
        CHECK_INT(slot_limit(&s, a, &m, &e), 0);
        CHECK(file_read(dir, path, text, sizeof text) > 0 && atoi(text) == 60);
        slot_free(&s, a); /* fresh cgroups have no limits: the memory of them goes, too */
        struct slot *b = take(), *c = take();
        CHECK(b && c);
        CHECK_INT(slot_limit(&s, c == a ? c : b, &m, &e), 0);
        (void)snprintf(path, sizeof path, "s%u/%spids.max", a->number, s.cg.where[CG_PIDS] == CG_V1 ? "" : "cmd/");
        CHECK(file_read(dir, path, text, sizeof text) > 0 && atoi(text) == 60);
        end();
}

/* The namespaces of a running agent, so that they outlive it. */
static void test_keep_namespaces(void)
{
        if (!begin(2))
                SKIP("needs root");
        struct slot *a = take();
        struct stat before, after;
        CHECK(fstat(a->net_ns, &before) == 0);
        int p[2];
        char c = 0;
        CHECK_INT(pipe(p), 0);
        int user = a->user_ns, net = a->net_ns;
        pid_t pid = fork();
        if (pid == 0) {
                if (setns(net, CLONE_NEWNET) < 0 || setns(user, CLONE_NEWUSER) < 0)
                        _exit(1);
                (void)!write(p[1], "x", 1);
                for (;;)
                        (void)pause();
        }
        (void)close(p[1]);
        CHECK(read(p[0], &c, 1) == 1);
        close_fd(&a->user_ns);
        close_fd(&a->net_ns);
        a->pid = pid;
        int pidfd = sys_pidfd_open(pid, 0);
        struct stat other;
        slot_keep_namespaces(&s, a, -1); /* as on a kernel whose pidfds do not tell */
        CHECK(a->user_ns >= 0 && fstat(a->net_ns, &other) == 0 && before.st_ino == other.st_ino);
        close_fd(&a->user_ns);
        close_fd(&a->net_ns);
        slot_keep_namespaces(&s, a, pidfd);
        CHECK(a->user_ns >= 0 && a->net_ns >= 0);
        CHECK(fcntl(a->user_ns, F_GETFD) == FD_CLOEXEC && fcntl(a->net_ns, F_GETFD) == FD_CLOEXEC);
        (void)close(pidfd);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        CHECK(fstat(a->net_ns, &after) == 0 && before.st_ino == after.st_ino);
        slot_release(&s, a);
        CHECK_INT(a->state, SLOT_IDLE);
        (void)close(p[0]);
        end();
}

int main(void)
{
        RUN(test_uids);
        RUN(test_take_and_release);
        RUN(test_used_network_is_not_reused);
        RUN(test_populated_is_not_reused);
        RUN(test_round_robin_and_full);
        RUN(test_limits_are_cached);
        RUN(test_keep_namespaces);
        return check_done();
}
