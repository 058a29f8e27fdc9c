/* The server's side of the keeper's socket, against a fake keeper in this thread. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "check.h"
#include "engine/engine.h"
#include "os/sys.h"
#include "wire/fdpass.h"

static char dir[] = "/tmp/cloche-test-engine-XXXXXX";
static uv_loop_t loop;
static struct engine *engine;
static int keeper = -1;
static const struct shape shape = { .image = 2, .cpu_millis = 1500, .memory = 64 << 20, .storage = 8 << 20, .pids = 99 };

static struct {
        unsigned created, destroyed, lost;
        int code, pidfd;
        unsigned slot;
        char msg[256];
        bool inside; /* a call of ours is under way: no callback may come now */
} seen;

static void on_created(const struct engine_created *c, void *user)
{
        CHECK(user == &seen);
        CHECK(!seen.inside);
        seen.created++;
        seen.code = c->code;
        seen.slot = c->slot;
        seen.pidfd = c->pidfd;
        (void)snprintf(seen.msg, sizeof seen.msg, "%s", c->msg);
}

static void on_destroyed(int code, const char *msg, void *user)
{
        CHECK(user == &seen);
        CHECK(!seen.inside);
        seen.destroyed++;
        seen.code = code;
        (void)snprintf(seen.msg, sizeof seen.msg, "%s", msg);
}

static void on_lost(void *user)
{
        CHECK(user == &seen);
        seen.lost++;
}

static void create(const char *name)
{
        seen.inside = true;
        engine_create(engine, name, &shape, on_created, &seen);
        seen.inside = false;
}

static void destroy(const char *name, unsigned slot, int pidfd)
{
        seen.inside = true;
        engine_destroy(engine, name, slot, pidfd, on_destroyed, &seen);
        seen.inside = false;
}

static void turn(void)
{
        for (int i = 0; i < 20; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void begin(void)
{
        int sv[2];
        struct keeper_reply hello = { .op = KEEPER_READY, .unified = 1 }, got;
        struct err e = { 0 };
        memset(&seen, 0, sizeof seen);
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                abort();
        keeper = sv[1];
        (void)fcntl(keeper, F_SETFL, O_NONBLOCK);
        CHECK_INT(fdpass_send(keeper, &hello, sizeof hello, -1), 0);
        CHECK_INT(engine_new(&loop, sv[0], &engine, &got, &e), 0);
        CHECK_INT(got.unified, 1);
        engine_on_lost(engine, on_lost, &seen);
}

static void end(void)
{
        engine_close(engine);
        turn();
        close_fd(&keeper);
}

static bool heard(struct keeper_request *q, int *fd)
{
        *fd = -1;
        return fdpass_recv(keeper, q, sizeof *q, fd) == sizeof *q;
}

static void answer(const struct keeper_request *q, int code, unsigned slot, int fd)
{
        struct keeper_reply r = { .op = q->op, .cookie = q->cookie, .code = code, .slot = slot };
        memset(r.msg, code < 0 ? 'm' : 0, sizeof r.msg); /* also one that nobody terminated */
        CHECK_INT(fdpass_send(keeper, &r, sizeof r, fd), 0);
}

static void test_hello(void)
{
        static const struct { int code; size_t n; bool send; } rows[] = { { -EPERM, sizeof(struct keeper_reply), true },
                                                                          { 0, 10, true }, { 0, 0, false } };
        for (unsigned i = 0; i < 3; i++) {
                int sv[2];
                struct keeper_reply hello = { .op = KEEPER_READY, .code = rows[i].code, .msg = "cannot: really" }, got;
                struct err e = { 0 };
                struct engine *g = NULL;
                if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                        abort();
                if (rows[i].send)
                        CHECK_INT(fdpass_send(sv[1], &hello, rows[i].n, -1), 0);
                (void)close(sv[1]);
                CHECK_INT(engine_new(&loop, sv[0], &g, &got, &e), i ? -EIO : -EPERM);
                CHECK_STR(e.msg, i ? "the keeper died while it started" : "cannot: really");
                CHECK(g == NULL);
                (void)close(sv[0]);
        }
}

static void test_create(void)
{
        struct keeper_request q;
        int fd, null = open("/dev/null", O_RDONLY);
        struct stat st;
        begin();
        create("sbx-one");
        CHECK(heard(&q, &fd));
        CHECK_INT(q.op, KEEPER_CREATE);
        CHECK_STR(q.name, "sbx-one");
        CHECK(q.image == 2 && q.cpu_millis == 1500 && q.memory == 64 << 20 && q.storage == 8 << 20 && q.pids == 99);
        CHECK_INT(q.inodes, (8 << 20) / STORAGE_BYTES_PER_INODE);
        CHECK(fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode)); /* bound in the working directory */
        CHECK(stat("sbx-one.sock", &st) == 0 && S_ISSOCK(st.st_mode));
        (void)close(fd);
        turn();
        CHECK_INT(seen.created, 0);
        answer(&q, 0, 7, null);
        turn();
        CHECK(seen.created == 1 && seen.code == 0 && seen.slot == 7 && seen.pidfd >= 0);
        (void)close(seen.pidfd);
        CHECK_INT(unlink("sbx-one.sock"), 0);
        (void)close(null);
        end();
}

static void test_failed_create_removes_the_socket(void)
{
        struct keeper_request q;
        int fd;
        begin();
        create("sbx-two");
        CHECK(heard(&q, &fd));
        (void)close(fd);
        answer(&q, -ENOMEM, 0, -1);
        turn();
        CHECK(seen.created == 1 && seen.code == -ENOMEM && seen.pidfd == -1);
        CHECK_INT(strlen(seen.msg), 255); /* cut, not run past */
        CHECK(access("sbx-two.sock", F_OK) < 0);
        end();
}

static void test_socket_that_cannot_be_made(void)
{
        struct keeper_request q;
        int fd;
        begin();
        (void)close(open("sbx-three.sock", O_CREAT | O_WRONLY, 0600));
        create("sbx-three"); /* there is something of that name */
        CHECK(!heard(&q, &fd));
        turn();
        CHECK(seen.created == 1 && seen.code == -EADDRINUSE);
        (void)unlink("sbx-three.sock");
        end();
}

static void test_destroy(void)
{
        struct keeper_request q;
        int fd, null = open("/dev/null", O_RDONLY);
        begin();
        (void)close(open("sbx-four.sock", O_CREAT | O_WRONLY, 0600));
        destroy("sbx-four", 9, null);
        CHECK(access("sbx-four.sock", F_OK) == 0); /* stays until it is really gone */
        CHECK(fcntl(null, F_GETFD) >= 0);         /* still ours */
        CHECK(heard(&q, &fd) && q.op == KEEPER_DESTROY && q.slot == 9 && fd >= 0);
        (void)close(fd);
        answer(&q, -EBUSY, 9, -1);
        turn();
        CHECK(seen.destroyed == 1 && seen.code == -EBUSY);
        CHECK(access("sbx-four.sock", F_OK) == 0); /* it lives, so it can be reached */
        destroy("sbx-four", 9, null);
        CHECK(heard(&q, &fd));
        (void)close(fd);
        answer(&q, 0, 9, -1);
        turn();
        CHECK(seen.destroyed == 2 && seen.code == 0);
        CHECK(access("sbx-four.sock", F_OK) < 0);
        (void)close(null);
        end();
}

/* A sandbox whose pidfd did not come through cannot be watched or ended: it goes back. */
static void test_create_without_a_pidfd(void)
{
        struct keeper_request q, back;
        int fd;
        begin();
        create("sbx-seven");
        CHECK(heard(&q, &fd));
        (void)close(fd);
        answer(&q, 0, 11, -1);
        turn();
        CHECK(seen.created == 1 && seen.code == -EMFILE);
        CHECK(heard(&back, &fd) && back.op == KEEPER_DESTROY && back.slot == 11);
        close_fd(&fd);
        CHECK(access("sbx-seven.sock", F_OK) < 0);
        answer(&back, 0, 11, -1);
        turn();
        CHECK(seen.created == 1 && seen.destroyed == 0);
        end();
}

/* Many requests, answered in another order; each finds its asker. */
static void test_order(void)
{
        struct keeper_request q[50];
        int fd, null = open("/dev/null", O_RDONLY);
        begin();
        for (unsigned i = 0; i < 50; i++)
                destroy("sbx-x", i, null);
        turn();
        for (unsigned i = 0; i < 50; i++) {
                CHECK(heard(&q[i], &fd));
                CHECK_INT(q[i].slot, i); /* in order */
                (void)close(fd);
                turn();
        }
        for (unsigned i = 50; i-- > 0;) {
                answer(&q[i], 0, i, -1);
                turn();
                CHECK_INT(seen.destroyed, 50 - i);
        }
        (void)close(null);
        end();
}

/* More than the socket holds: the rest waits and goes out in order. */
static void test_full_socket(void)
{
        struct keeper_request q;
        int fd, null = open("/dev/null", O_RDONLY);
        begin();
        for (unsigned i = 0; i < 2000; i++)
                destroy("sbx-x", i, null);
        for (unsigned i = 0; i < 2000; i++) {
                bool got = heard(&q, &fd);
                for (int k = 0; k < 100 && !got; k++) {
                        turn();
                        got = heard(&q, &fd);
                }
                if (!got || q.slot != i) {
                        CHECK(!"all come, in order");
                        break;
                }
                (void)close(fd);
                answer(&q, 0, i, -1);
                (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
        turn();
        CHECK_INT(seen.destroyed, 2000);
        (void)close(null);
        end();
}

static void test_lost(void)
{
        begin();
        close_fd(&keeper);
        turn();
        CHECK_INT(seen.lost, 1);
        end();
        begin(); /* a word that makes no sense is as bad */
        CHECK_INT(fdpass_send(keeper, "short", 5, -1), 0);
        turn();
        CHECK_INT(seen.lost, 1);
        end();
}

/* A keeper that is gone is told from the loop, as everything else is. */
static void test_bug_callback_from_within(void)
{
        int null = open("/dev/null", O_RDONLY);
        begin();
        close_fd(&keeper);
        create("sbx-five");
        destroy("sbx-six", 1, null);
        turn();
        CHECK(seen.created == 1 && seen.destroyed == 1 && seen.code < 0);
        CHECK(strstr(seen.msg, "the keeper is gone") != NULL);
        CHECK(access("sbx-five.sock", F_OK) < 0);
        (void)close(null);
        end();
}

/* --- what is asked before the loop runs ------------------------------------------------ */

static void *answer_blocking(void *arg)
{
        struct keeper_request q;
        int fd = -1, *codes = arg;
        for (unsigned i = 0; i < 3; i++) {
                if (fdpass_recv(keeper, &q, sizeof q, &fd) != sizeof q)
                        return NULL;
                close_fd(&fd);
                struct keeper_reply r = { .op = q.op, .cookie = q.cookie, .code = codes[i] };
                (void)fdpass_send(keeper, &r, sizeof r, -1);
        }
        return NULL;
}

static void test_blocking_requests(void)
{
        int codes[] = { 0, -EINVAL, 0 }, null = open("/dev/null", O_RDONLY);
        pthread_t t;
        begin();
        (void)fcntl(keeper, F_SETFL, 0);
        (void)pthread_create(&t, NULL, answer_blocking, codes);
        CHECK_INT(engine_adopt(engine, 4, null), 0);
        CHECK_INT(engine_adopt(engine, 5, null), -EINVAL);
        CHECK_INT(engine_sweep(engine), 0);
        (void)pthread_join(t, NULL);
        close_fd(&keeper);
        CHECK(engine_sweep(engine) < 0);
        (void)close(null);
        end();
}

static void test_socket_name(void)
{
        char out[64];
        engine_socket_name("sbx-0123456789", out, sizeof out);
        CHECK_STR(out, "sbx-0123456789.sock");
}

int main(void)
{
        if (!mkdtemp(dir) || chdir(dir) < 0 || uv_loop_init(&loop) < 0)
                return 1;
        RUN(test_hello);
        RUN(test_create);
        RUN(test_failed_create_removes_the_socket);
        RUN(test_socket_that_cannot_be_made);
        RUN(test_destroy);
        RUN(test_create_without_a_pidfd);
        RUN(test_order);
        RUN(test_full_socket);
        RUN(test_lost);
        RUN(test_blocking_requests);
        RUN(test_socket_name);
        RUN(test_bug_callback_from_within);
        CHECK_INT(uv_loop_close(&loop), 0);
        (void)rmdir(dir);
        return check_done();
}
