/* What the tests of boxes and pool share: a fake keeper in this thread whose answers the test
 * times, and short calls for what they ask. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/now.h"
#include "box/boxes.h"
#include "box/pool.h"
#include "check.h"
#include "os/sys.h"
#include "wire/fdpass.h"

/* --- a fake keeper in this thread --------------------------------------------------------- */

static char dir[] = "/tmp/cloche-test-box-XXXXXX";
static uv_loop_t loop;
static struct engine *engine;
static struct store *store;
static struct boxes bs;
static int keeper = -1;
static struct keeper_request held[64];
static unsigned held_count, creates, destroys, next_slot;
static bool hold; /* requests are kept unanswered */
static int fail_creates;
static pid_t dummies[256]; /* by slot: the process that stands for the sandbox */

static pid_t dummy(int *ret_pidfd)
{
        pid_t pid = fork();
        if (pid == 0) {
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;)
                        (void)pause();
        }
        *ret_pidfd = sys_pidfd_open(pid, 0);
        return pid;
}

static void bury(unsigned slot)
{
        if (slot < 256 && dummies[slot] > 0) {
                (void)kill(dummies[slot], SIGKILL);
                (void)waitpid(dummies[slot], NULL, 0);
                dummies[slot] = 0;
        }
}

static void keeper_answer(const struct keeper_request *q)
{
        struct keeper_reply r = { .op = q->op, .cookie = q->cookie, .slot = q->slot };
        int pidfd = -1;
        if (q->op == KEEPER_CREATE && fail_creates) {
                r.code = fail_creates;
                (void)snprintf(r.msg, sizeof r.msg, "not today");
        } else if (q->op == KEEPER_CREATE) {
                r.slot = next_slot++;
                dummies[r.slot] = dummy(&pidfd);
        } else if (q->op == KEEPER_DESTROY)
                bury(q->slot);
        CHECK_INT(fdpass_send(keeper, &r, sizeof r, pidfd), 0);
        close_fd(&pidfd);
}

static void keeper_turn(void)
{
        struct keeper_request q;
        int fd = -1;
        while (keeper >= 0 && fdpass_recv(keeper, &q, sizeof q, &fd) == sizeof q) {
                close_fd(&fd);
                creates += q.op == KEEPER_CREATE;
                destroys += q.op == KEEPER_DESTROY;
                if (hold && held_count < 64)
                        held[held_count++] = q;
                else
                        keeper_answer(&q);
        }
}

static void let_go(void)
{
        hold = false;
        for (unsigned i = 0; i < held_count; i++)
                keeper_answer(&held[i]);
        held_count = 0;
}

/* Until nothing happens any more. */
static void turn(void)
{
        for (int i = 0; i < 60; i++) {
                keeper_turn();
                (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
}

static const struct boxes_config plain = { .max_boxes = 100, .pool_size = 0, .default_image = "host",
                                           .default_shape = { .cpu_millis = 1000, .memory = 64 << 20,
                                                              .storage = 1 << 20, .pids = 9 } };

static void begin(const struct boxes_config *c)
{
        int sv[2];
        struct keeper_reply hello = { .op = KEEPER_READY }, got;
        struct err e = { 0 };
        hold = false;
        fail_creates = 0;
        held_count = creates = destroys = next_slot = 0;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                abort();
        keeper = sv[1];
        (void)fcntl(keeper, F_SETFL, O_NONBLOCK);
        CHECK_INT(fdpass_send(keeper, &hello, sizeof hello, -1), 0);
        CHECK_INT(engine_new(&loop, sv[0], &engine, &got, &e), 0);
        CHECK_INT(store_open("store.db", &store, &e), 0);
        CHECK_INT(boxes_init(&bs, &loop, engine, store, c, &e), 0);
}

static unsigned idles;

static void on_idle(void *user)
{
        (void)user;
        idles++;
}

static void end(void)
{
        idles = 0;
        fail_creates = 0;
        let_go();
        if (!bs.closing) {
                boxes_shutdown(&bs, true, on_idle, NULL);
                turn();
                CHECK_INT(idles, 1);
        }
        boxes_free(&bs);
        engine_close(engine);
        turn();
        store_close(store);
        close_fd(&keeper);
        for (unsigned i = 0; i < 256; i++)
                bury(i);
        (void)unlink("store.db");
        (void)unlink("store.db-wal");
}

struct result {
        unsigned calls;
        struct box *b;
        int code;
        char name[BOX_NAME_BYTES], msg[128];
};

static void on_result(struct box *b, int code, const char *msg, void *user)
{
        struct result *r = user;
        r->calls++;
        r->b = b;
        r->code = code;
        (void)snprintf(r->msg, sizeof r->msg, "%s", msg ? msg : "");
        (void)snprintf(r->name, sizeof r->name, "%s", b ? b->name : "");
}

static void ensure(const char *id, int64_t ttl_ms, struct result *r)
{
        struct ensure q = { .id = str_c(id), .shape = bs.conf.default_shape, .image = "host", .ttl_ms = ttl_ms };
        *r = (struct result){ 0 };
        boxes_ensure(&bs, &q, on_result, r);
}
