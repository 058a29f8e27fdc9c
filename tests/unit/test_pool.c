/* The pool of ready sandboxes, over a fake keeper whose answers the test times. */
#include "box_bed.h"

static struct boxes_config pooled(unsigned n)
{
        struct boxes_config c = plain;
        c.pool_size = n;
        return c;
}

/* --- tests ---------------------------------------------------------------------------------- */

static void test_fill(void)
{
        struct boxes_config c = pooled(5);
        begin(&c);
        hold = true;
        boxes_fill_pool(&bs);
        boxes_fill_pool(&bs);
        turn();
        CHECK_INT(creates, 2); /* few at once: a request must not queue behind a pool's worth */
        let_go();
        turn();
        CHECK_INT(creates, 5);
        boxes_fill_pool(&bs);
        turn();
        CHECK_INT(creates, 5);
        CHECK_INT(bs.in_transit, 0);
        end();
        CHECK_INT(destroys, 5);
}

static void test_take(void)
{
        struct boxes_config c = pooled(2);
        struct result a;
        begin(&c);
        boxes_fill_pool(&bs);
        turn();
        CHECK_INT(creates, 2);
        ensure("x", 60000, &a);
        CHECK(a.calls == 1 && a.b && a.b->pidfd >= 0); /* there at once */
        turn();
        CHECK_INT(creates, 3); /* and filled up again */
        CHECK_INT(bs.registry.count, 1);
        end();
        CHECK_INT(destroys, 3);
}

static void test_other_shapes(void)
{
        struct boxes_config c = pooled(1);
        begin(&c);
        boxes_fill_pool(&bs);
        turn();
        for (unsigned i = 0; i < 5; i++) {
                struct shape s = c.default_shape;
                struct box b = { 0 };
                s.image += i == 0;
                s.cpu_millis += i == 1;
                s.memory += i == 2;
                s.storage += i == 3;
                s.pids += i == 4;
                CHECK(!pool_take(bs.pool, &s, &b));
        }
        end();
}

/* One that died in the pool is not handed out. */
static void test_dead_in_the_pool(void)
{
        struct boxes_config c = pooled(2);
        struct result a;
        begin(&c);
        boxes_fill_pool(&bs);
        turn();
        bury(0);
        bury(1);
        ensure("x", 60000, &a);
        CHECK_INT(a.calls, 0);
        turn();
        CHECK(a.calls == 1 && a.b && a.b->slot >= 2);
        CHECK_INT(destroys, 2);
        end();
}

/* A keeper that makes none is not asked again and again; a request is a reason to try. */
static void test_broken(void)
{
        struct boxes_config c = pooled(3);
        struct result a;
        begin(&c);
        fail_creates = -ENOSPC;
        boxes_fill_pool(&bs);
        turn();
        CHECK(creates >= 1 && creates <= 2);
        unsigned before = creates;
        boxes_fill_pool(&bs);
        turn();
        CHECK_INT(creates, before);
        ensure("x", 60000, &a);
        turn();
        CHECK(a.calls == 1 && a.code == -ENOSPC);
        fail_creates = 0;
        ensure("x", 60000, &a);
        turn();
        CHECK(a.calls == 1 && a.b);
        before = creates;
        turn();
        CHECK_INT(creates, before);
        CHECK(creates - destroys >= 4); /* the pool is full again */
        end();
}

/* What is being made while the pool is emptied is ended as soon as it is there. */
static void test_drain(void)
{
        struct boxes_config c = pooled(4);
        begin(&c);
        boxes_fill_pool(&bs);
        keeper_turn();
        hold = true;
        turn();
        idles = 0;
        boxes_shutdown(&bs, false, on_idle, NULL);
        turn();
        CHECK_INT(idles, 0);
        let_go();
        turn();
        CHECK_INT(idles, 1);
        CHECK_INT(creates, destroys);
        boxes_fill_pool(&bs); /* no more */
        turn();
        CHECK_INT(creates, destroys);
        end();
}

int main(void)
{
        if (!mkdtemp(dir) || chdir(dir) < 0 || uv_loop_init(&loop) < 0)
                return 1;
        log_setup(LOG_LEVEL_MAX, false, "test"); /* the warnings are meant */
        (void)signal(SIGPIPE, SIG_IGN);
        RUN(test_fill);
        RUN(test_take);
        RUN(test_other_shapes);
        RUN(test_dead_in_the_pool);
        RUN(test_broken);
        RUN(test_drain);
        CHECK_INT(uv_loop_close(&loop), 0);
        CHECK_INT(chdir("/"), 0);
        char rm[64];
        (void)snprintf(rm, sizeof rm, "rm -rf '%s'", dir);
        return system(rm) == 0 ? check_done() : 1;
}
