/* A real keeper (keeper.c, birth.c) with an image of our own, spoken to as a server does
 * it, and as a server would that was taken over. */
#include "keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/cgroup.h"
#include "os/sys.h"
#include "wire/fdpass.h"
#include "wire/frame.h"
#include "wire/keeper_msg.h"

#define SLOTS 4

static char top[] = "/tmp/cloche-test-keeper-XXXXXX";
static char image[64], scratch[64], group[64];
static int sock = -1;
static pid_t keeper_pid;
static struct keeper_reply hello;
static uint64_t next_cookie = 1;

static bool start(void)
{
        struct rootfs_image images = { .root = image, .binds = { "/usr" }, .bind_count = 1 };
        struct keeper_config c = { .images = &images, .image_count = 1, .scratch = scratch, .cgroup_group = group,
                                   .uid_base = 0x39000000u, .slots = SLOTS, .privileged = true };
        struct err e = { 0 };
        struct timeval limit = { .tv_sec = 20 };
        int fd;
        (void)fflush(stdout);
        CHECK_INT(keeper_start(&c, &sock, &keeper_pid, &e), 0);
        (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        CHECK(fdpass_recv(sock, &hello, sizeof hello, &fd) == sizeof hello);
        if (hello.code < 0)
                printf("%s\n", hello.msg);
        return hello.op == KEEPER_READY && hello.code == 0;
}

static void stop(void)
{
        int status = -1;
        close_fd(&sock);
        CHECK(waitpid(keeper_pid, &status, 0) == keeper_pid);
        CHECK_INT(status, 0); /* it leaves by itself, and in peace */
}

static struct keeper_request request(uint32_t op)
{
        return (struct keeper_request){ .op = op, .cookie = next_cookie++, .name = "sbx-0123456789", .cpu_millis = 1000,
                                        .memory = 64 << 20, .storage = 1 << 20, .inodes = 1024, .pids = 50 };
}

/* The answer to q; *ret_fd may be NULL. */
static struct keeper_reply ask(const struct keeper_request *q, int fd, int *ret_fd)
{
        struct keeper_reply r = { .code = -ETIME };
        int got = -1;
        CHECK_INT(fdpass_send(sock, q, sizeof *q, fd), 0);
        ssize_t n = fdpass_recv(sock, &r, sizeof r, &got);
        if (n != sizeof r) {
                printf("the keeper said %zd to request %u\n", n, q->op);
                CHECK(!"the keeper answers");
                r.code = -ETIME;
        } else {
                CHECK_INT(r.cookie, q->cookie);
                CHECK_INT(r.op, q->op);
        }
        if (ret_fd)
                *ret_fd = got;
        else
                close_fd(&got);
        return r;
}

static int bound(const char *path)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
        (void)unlink(path);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
                abort();
        return fd;
}

static struct keeper_reply create(const char *path, int *ret_pidfd)
{
        struct keeper_request q = request(KEEPER_CREATE);
        int fd = bound(path);
        struct keeper_reply r = ask(&q, fd, ret_pidfd);
        (void)close(fd);
        if (r.code < 0)
                printf("create: %d %s\n", r.code, r.msg);
        return r;
}

static int destroy(unsigned slot, int pidfd)
{
        struct keeper_request q = request(KEEPER_DESTROY);
        q.slot = slot;
        return ask(&q, pidfd, NULL).code;
}

static int simple(uint32_t op, unsigned slot, int fd)
{
        struct keeper_request q = request(op);
        q.slot = slot;
        return ask(&q, fd, NULL).code;
}

static bool is_dead(int pidfd)
{
        struct pollfd p = { pidfd, POLLIN, 0 };
        return poll(&p, 1, 0) == 1;
}

static int dial(const char *path)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        struct timeval limit = { .tv_sec = 20 };
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
                close_fd(&fd);
        return fd;
}

/* Runs a script in the sandbox; its output into out. */
static void run(const char *path, const char *script, char *out, size_t size)
{
        _cleanup_buf_ struct buf b = { 0 }, in = { 0 };
        struct frame f;
        size_t n = 0, mark = frame_begin(&b, FRAME_EXEC);
        field_add_str(&b, FIELD_ARG, "sh");
        field_add_str(&b, FIELD_ARG, "-c");
        field_add_str(&b, FIELD_ARG, script);
        frame_finish(&b, mark);
        out[0] = '\0';
        int fd = dial(path);
        CHECK(fd >= 0 && send(fd, b.data, b.len, MSG_NOSIGNAL) == (ssize_t)b.len);
        while (frame_read(fd, &in, &f) > 0 && f.type != FRAME_EXIT && f.type != FRAME_FAIL)
                if ((f.type == FRAME_STDOUT || f.type == FRAME_STDERR) && n + f.payload.n < size) {
                        memcpy(out + n, f.payload.p, f.payload.n);
                        n += f.payload.n;
                }
        out[n] = '\0';
        close_fd(&fd);
}

/* --- tests ------------------------------------------------------------------------------ */

static void test_life_of_a_sandbox(void)
{
        char out[4096];
        int pidfd = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        struct keeper_reply r = create("a.sock", &pidfd);
        CHECK(r.code == 0 && r.pid > 0 && pidfd >= 0 && r.slot < SLOTS);
        run("a.sock", "id -u; id -g; hostname; cat /etc/hello; pwd; ls /proc | grep -c '^[0-9]'; cat /proc/1/cgroup | wc -l",
            out, sizeof out);
        CHECK(strncmp(out, "1000\n1000\nsbx-0123456789\nhello\n/workspace\n", 42) == 0);
        run("a.sock", "cat /proc/meminfo | head -1; nproc; ls -A /workspace; cat /proc/net/dev | grep -c :; echo x > /tmp/y && "
                      "cat /tmp/y; cat /proc/self/uid_map", out, sizeof out);
        CHECK(strstr(out, "65536 kB\n1\n1\nx\n") != NULL);
        run("a.sock", "readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/pid", out, sizeof out);
        char ours[64];
        ssize_t n = readlink("/proc/self/ns/net", ours, sizeof ours - 1);
        ours[n > 0 ? n : 0] = '\0';
        CHECK(out[0] && strstr(out, ours) == NULL);
        CHECK(!is_dead(pidfd));
        CHECK_INT(destroy(r.slot, pidfd), 0);
        CHECK(is_dead(pidfd));
        CHECK(dial("a.sock") < 0); /* nobody listens any more */
        CHECK_INT(destroy(r.slot, pidfd), -EINVAL);
        (void)close(pidfd);
        stop();
}

/* Slots come back: more sandboxes one after another than there are slots. */
static void test_slots(void)
{
        int pidfd[SLOTS], extra;
        struct keeper_reply r[SLOTS];
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < SLOTS; i++) {
                        char path[16];
                        (void)snprintf(path, sizeof path, "%u.sock", i);
                        r[i] = create(path, &pidfd[i]);
                        CHECK_INT(r[i].code, 0);
                        for (unsigned k = 0; k < i; k++)
                                CHECK(r[k].slot != r[i].slot);
                }
                struct keeper_request q = request(KEEPER_CREATE);
                int fd = bound("more.sock");
                CHECK_INT(ask(&q, fd, &extra).code, -EAGAIN);
                (void)close(fd);
                for (unsigned i = 0; i < SLOTS; i++) {
                        CHECK_INT(destroy(r[i].slot, pidfd[i]), 0);
                        (void)close(pidfd[i]);
                }
        }
        stop();
}

static void test_hostile_creates(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        static const char *const names[] = { "", "../x", "a/b", "UPPER", "a b", "a.b", "a\n", "\xff" };
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
                struct keeper_request q = request(KEEPER_CREATE);
                int fd = bound("h.sock");
                memset(q.name, 0, sizeof q.name);
                memcpy(q.name, names[i], strlen(names[i]));
                CHECK_INT(ask(&q, fd, NULL).code, -EINVAL);
                (void)close(fd);
        }
        for (unsigned i = 0; i < 14; i++) {
                struct keeper_request q = request(KEEPER_CREATE);
                int fd = i == 0 ? -1 : bound("h.sock");
                switch (i) {
                case 0: break; /* no socket */
                case 1: memset(q.name, 'a', sizeof q.name); break;
                case 2: q.image = 1; break;
                case 3: q.image = UINT32_MAX; break;
                case 4: q.cpu_millis = 0; break;
                case 5: q.cpu_millis = UINT32_MAX; break;
                case 6: q.memory = 0; break;
                case 7: q.memory = UINT64_MAX; break;
                case 8: q.storage = 0; break;
                case 9: q.storage = UINT64_MAX; break;
                case 10: q.inodes = 0; break;
                case 11: q.pids = 0; break;
                case 12: q.pids = UINT64_MAX; break;
                default: q.memory = 1; break;
                }
                struct keeper_reply r = ask(&q, fd, NULL);
                if (r.code != -EINVAL) {
                        printf("case %u: %d %s\n", i, r.code, r.msg);
                        CHECK(!"it is refused");
                }
                close_fd(&fd);
        }
        /* an fd that is no socket: told by the agent, and the slot is free again */
        int null = open("/dev/null", O_RDWR);
        for (unsigned i = 0; i < SLOTS * 2; i++) {
                struct keeper_request q = request(KEEPER_CREATE);
                CHECK_INT(ask(&q, null, NULL).code, -ENOTSOCK);
        }
        (void)close(null);
        stop();
}

static void test_hostile_messages(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        struct keeper_request q = request(KEEPER_CREATE);
        char big[sizeof q + 100] = "";
        CHECK(send(sock, &q, 10, 0) == 10); /* short, long, unknown: dropped */
        CHECK(send(sock, big, sizeof big, 0) == sizeof big);
        static const uint32_t ops[] = { KEEPER_NONE, KEEPER_READY, KEEPER_OP_MAX, 99, UINT32_MAX };
        for (unsigned i = 0; i < 5; i++) {
                q = request(ops[i]);
                CHECK_INT(fdpass_send(sock, &q, sizeof q, i % 2 ? 0 : -1), 0);
        }
        CHECK_INT(simple(KEEPER_SWEEP, 0, -1), 0); /* it is alive, and these were not answered */
        static const unsigned slots[] = { 0, SLOTS - 1, SLOTS, 65536, UINT32_MAX };
        int self = sys_pidfd_open(getpid(), 0);
        for (unsigned i = 0; i < 5; i++) {
                CHECK_INT(simple(KEEPER_DESTROY, slots[i], self), -EINVAL);
                CHECK_INT(simple(KEEPER_DESTROY, slots[i], -1), -EINVAL);
                CHECK_INT(simple(KEEPER_ADOPT, slots[i], self), -EINVAL); /* we do not live in its uids */
                CHECK_INT(simple(KEEPER_ADOPT, slots[i], -1), -EINVAL);
                CHECK(simple(KEEPER_KILL, slots[i], -1) < 0);
        }
        (void)close(self);
        stop();
}

/* The keeper must not be made to end, or to believe ended, what is not the slot's. */
static void test_wrong_processes(void)
{
        int pidfd = -1, other = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        struct keeper_reply a = create("a.sock", &pidfd), b = create("b.sock", &other);
        CHECK(a.code == 0 && b.code == 0);
        pid_t innocent = fork();
        if (innocent == 0)
                for (;;)
                        (void)pause();
        int victim = sys_pidfd_open(innocent, 0);
        CHECK_INT(destroy(a.slot, victim), -EINVAL);
        CHECK_INT(destroy(a.slot, other), -EINVAL);
        CHECK_INT(simple(KEEPER_ADOPT, a.slot, pidfd), -EINVAL);  /* known already */
        for (unsigned s = 0; s < SLOTS; s++)
                if (s != a.slot && s != b.slot)
                        CHECK_INT(simple(KEEPER_ADOPT, s, pidfd), -EINVAL); /* of another slot */
        CHECK(!is_dead(victim) && !is_dead(pidfd) && !is_dead(other));
        CHECK_INT(destroy(a.slot, pidfd), 0);
        CHECK(is_dead(pidfd) && !is_dead(other));
        CHECK_INT(destroy(b.slot, -1), 0); /* its own child: a server without fds needs none */
        CHECK(is_dead(other));
        (void)kill(innocent, SIGKILL);
        (void)waitpid(innocent, NULL, 0);
        (void)close(victim);
        (void)close(pidfd);
        (void)close(other);
        stop();
}

/* Fds that are no pidfd, and the pidfd of somebody who is dead: the sandbox lives, and so
 * does the keeper. */
static void test_bug_destroy_believes_any_fd(void)
{
        int pidfd = -1, pipe_fd[2];
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        struct keeper_reply a = create("a.sock", &pidfd);
        CHECK_INT(a.code, 0);
        pid_t gone = fork();
        if (gone == 0)
                _exit(0);
        int dead = sys_pidfd_open(gone, 0);
        (void)waitpid(gone, NULL, 0);
        CHECK_INT(pipe(pipe_fd), 0);
        (void)close(pipe_fd[1]);
        int fds[] = { dead, eventfd(1, 0), pipe_fd[0], open("/dev/null", O_RDONLY) };
        for (unsigned i = 0; i < 4; i++) {
                CHECK_INT(destroy(a.slot, fds[i]), -EINVAL);
                CHECK(!is_dead(pidfd));
                (void)close(fds[i]);
                if (waitpid(keeper_pid, NULL, WNOHANG) != 0) {
                        CHECK(!"the keeper lives");
                        (void)sys_pidfd_send_signal(pidfd, SIGKILL);
                        (void)close(pidfd);
                        close_fd(&sock);
                        return;
                }
        }
        CHECK_INT(destroy(a.slot, pidfd), 0);
        (void)close(pidfd);
        stop();
}

/* An agent that died by itself: its slot is given back all the same. */
static void test_dead_agent(void)
{
        int pidfd = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        for (unsigned i = 0; i < SLOTS + 1; i++) {
                struct keeper_reply a = create("a.sock", &pidfd);
                CHECK_INT(a.code, 0);
                CHECK_INT(sys_pidfd_send_signal(pidfd, SIGKILL), 0);
                struct pollfd p = { pidfd, POLLIN, 0 };
                CHECK_INT(poll(&p, 1, 10000), 1);
                CHECK_INT(destroy(a.slot, pidfd), 0);
                (void)close(pidfd);
        }
        stop();
}

/* The server and its keeper leave, others come: the sandbox lives on and is taken over. */
static void test_adopt(void)
{
        int pidfd = -1;
        char out[256];
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        struct keeper_reply a = create("a.sock", &pidfd);
        CHECK_INT(a.code, 0);
        run("a.sock", "echo kept > /workspace/f", out, sizeof out);
        stop();
        CHECK(!is_dead(pidfd));
        CHECK(start());
        CHECK_INT(destroy(a.slot, pidfd), -EINVAL); /* nobody told it yet */
        CHECK_INT(simple(KEEPER_ADOPT, (a.slot + 1) % SLOTS, pidfd), -EINVAL);
        CHECK_INT(simple(KEEPER_ADOPT, a.slot, pidfd), 0);
        CHECK_INT(simple(KEEPER_SWEEP, 0, -1), 0);
        CHECK(!is_dead(pidfd)); /* swept around */
        run("a.sock", "cat /workspace/f", out, sizeof out);
        CHECK_STR(out, "kept\n");
        CHECK_INT(destroy(a.slot, -1), -EINVAL); /* no child of this one: only a pidfd says who is meant */
        CHECK_INT(destroy(a.slot, pidfd), 0);
        struct pollfd p = { pidfd, POLLIN, 0 };
        CHECK_INT(poll(&p, 1, 10000), 1);
        (void)close(pidfd);
        stop();
}

/* A process with a pid that we choose. -errno when that cannot be had. */
static pid_t fork_as(pid_t want)
{
        uint64_t a[10] = { [4] = SIGCHLD, [8] = (uint64_t)(uintptr_t)&want, [9] = 1 }; /* set_tid */
        long r = syscall(SYS_clone3, a, sizeof a);
        if (r == 0)
                for (;;)
                        (void)pause();
        return r < 0 ? -errno : (pid_t)r;
}

/* An adopted agent is known by its pid only, which is free again when it has died. */
static void test_bug_destroy_of_a_recycled_pid(void)
{
        int pidfd = -1;
        pid_t innocent;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK_INT(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0); /* so that it is ours to reap */
        CHECK(start());
        struct keeper_reply a = create("a.sock", &pidfd);
        stop();
        CHECK(start());
        CHECK_INT(simple(KEEPER_ADOPT, a.slot, pidfd), 0);
        CHECK_INT(sys_pidfd_send_signal(pidfd, SIGKILL), 0);
        CHECK(waitpid(a.pid, NULL, 0) == a.pid);
        (void)prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
        innocent = fork_as(a.pid);
        int victim = innocent > 0 ? sys_pidfd_open(innocent, 0) : -1;
        if (victim >= 0) {
                CHECK_INT(destroy(a.slot, victim), -EINVAL);
                CHECK(!is_dead(victim));
                (void)kill(innocent, SIGKILL);
                (void)waitpid(innocent, NULL, 0);
                close_fd(&victim);
        }
        CHECK_INT(destroy(a.slot, pidfd), 0);
        (void)close(pidfd);
        stop();
        if (innocent <= 0)
                SKIP("a pid cannot be chosen here");
}

/* What nobody adopts is swept. */
static void test_sweep(void)
{
        int pidfd = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start());
        if (!hello.unified) {
                stop();
                SKIP("no unified hierarchy");
        }
        struct keeper_reply a = create("a.sock", &pidfd);
        CHECK_INT(a.code, 0);
        stop();
        CHECK(start());
        CHECK_INT(simple(KEEPER_SWEEP, 0, -1), 0);
        struct pollfd p = { pidfd, POLLIN, 0 };
        CHECK_INT(poll(&p, 1, 10000), 1);
        (void)close(pidfd);
        stop();
}

static void test_failed_start(void)
{
        struct rootfs_image images = { .root = "/nonexistent/image" };
        struct keeper_config c = { .images = &images, .image_count = 1, .scratch = scratch, .cgroup_group = group,
                                   .uid_base = 0x39000000u, .slots = 2, .privileged = true };
        struct err e = { 0 };
        int fd, status = 0;
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK_INT(keeper_start(&c, &sock, &keeper_pid, &e), 0);
        CHECK(fdpass_recv(sock, &hello, sizeof hello, &fd) == sizeof hello);
        CHECK_INT(hello.code, -ENOENT);
        CHECK(strstr(hello.msg, "/nonexistent/image") != NULL);
        CHECK(waitpid(keeper_pid, &status, 0) == keeper_pid && WIFEXITED(status) && WEXITSTATUS(status) == 1);
        close_fd(&sock);
}

/* Nothing of us is left in any hierarchy. */
static void test_leaves_nothing(void)
{
        struct cg cg;
        struct err e = { 0 };
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK_INT(cg_open(&cg, "cloche-test-look", &e), 0);
        for (unsigned i = 0; i < CG_CONTROLLER_MAX + 1; i++)
                if (cg.top[i] >= 0 && faccessat(cg.top[i], group, F_OK, 0) == 0 && unlinkat(cg.top[i], group, AT_REMOVEDIR) < 0)
                        CHECK(!"no slot is left");
        cg_remove_if_empty(&cg);
        cg_close(&cg);
}

int main(void)
{
        char path[128];
        (void)signal(SIGPIPE, SIG_IGN);
        if (!mkdtemp(top) || chdir(top) < 0)
                return 1;
        (void)chmod(top, 0755);
        (void)snprintf(image, sizeof image, "%s/image", top);
        (void)snprintf(scratch, sizeof scratch, "%s/scratch", top);
        (void)snprintf(group, sizeof group, "cloche-test-keeper-%d", (int)getpid());
        if (mkdir("image", 0755) < 0 || mkdir("scratch", 0755) < 0 || mkdir("image/usr", 0755) < 0 ||
            mkdir("image/etc", 0755) < 0 || mkdir("image/tmp", 0755) < 0 || chmod("image/tmp", 01777) < 0 ||
            symlink("usr/bin", "image/bin") < 0 || symlink("usr/lib", "image/lib") < 0 ||
            symlink("usr/lib64", "image/lib64") < 0)
                return 1;
        int fd = open("image/etc/hello", O_CREAT | O_WRONLY, 0644);
        CHECK(write(fd, "hello\n", 6) == 6);
        (void)close(fd);
        RUN(test_life_of_a_sandbox);
        RUN(test_slots);
        RUN(test_hostile_creates);
        RUN(test_hostile_messages);
        RUN(test_wrong_processes);
        RUN(test_dead_agent);
        RUN(test_adopt);
        RUN(test_bug_destroy_of_a_recycled_pid);
        RUN(test_sweep);
        RUN(test_failed_start);
        RUN(test_bug_destroy_believes_any_fd);
        RUN(test_leaves_nothing);
        CHECK_INT(chdir("/"), 0);
        (void)snprintf(path, sizeof path, "rm -rf '%s'", top);
        return system(path) == 0 ? check_done() : 1;
}
