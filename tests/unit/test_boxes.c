/* Sandboxes as the server keeps them, over a fake keeper whose answers the test times. */
#include "box_bed.h"

static void use(const char *id, struct result *r)
{
        *r = (struct result){ 0 };
        boxes_use(&bs, str_c(id), on_result, r);
}

static void del(const char *id, struct result *r)
{
        *r = (struct result){ 0 };
        boxes_delete(&bs, str_c(id), on_result, r);
}

static void count_row(struct box *b, void *user)
{
        (*(unsigned *)user)++;
        box_unref(b);
}

static unsigned rows(void)
{
        unsigned n = 0;
        struct err e;
        CHECK_INT(store_load(store, count_row, &n, &e), 0);
        return n;
}

/* --- tests ---------------------------------------------------------------------------------- */

static void on_made(struct box *b, int code, const char *msg, void *user)
{
        on_result(b, code, msg, user);
        CHECK_INT(rows(), 1); /* written before anybody hears of it */
}

static void test_life(void)
{
        struct result a, b;
        begin(&plain);
        struct ensure q = { .id = STR("one"), .shape = plain.default_shape, .image = "host", .ttl_ms = 60000 };
        a = (struct result){ 0 };
        boxes_ensure(&bs, &q, on_made, &a);
        CHECK_INT(a.calls, 0);
        turn();
        CHECK(a.calls == 1 && a.b && a.code == 0 && a.b->state == BOX_RUNNING);
        CHECK(strncmp(a.name, "sbx-", 4) == 0 && strlen(a.name) == 14);
        use("one", &b);
        CHECK(b.calls == 1 && b.b == a.b);
        ensure("one", 60000, &b); /* kept, not made again */
        CHECK(b.calls == 1 && b.b == a.b && creates == 1);
        del("one", &b);
        CHECK_INT(b.calls, 0);
        turn();
        CHECK(b.calls == 1 && b.b == NULL && b.code == 0 && destroys == 1);
        CHECK_INT(rows(), 0);
        use("one", &b);
        CHECK(b.calls == 1 && b.code == -ENOENT);
        del("one", &b);
        CHECK(b.calls == 1 && b.code == -ENOENT);
        CHECK(bs.created_total == 1 && bs.deleted_total == 1);
        end();
}

static void test_fifty_at_once(void)
{
        struct result r[50], u, d;
        begin(&plain);
        hold = true;
        for (unsigned i = 0; i < 50; i++)
                ensure("same", 60000, &r[i]);
        use("same", &u);
        turn();
        CHECK(creates == 1 && r[0].calls == 0 && u.calls == 0);
        let_go();
        turn();
        CHECK(u.calls == 1 && u.b);
        for (unsigned i = 0; i < 50; i++)
                CHECK(r[i].calls == 1 && r[i].b == u.b);
        CHECK_INT(creates, 1);
        struct result more[3];
        hold = true;
        del("same", &d);
        for (unsigned i = 0; i < 3; i++)
                del("same", &more[i]); /* join the one that runs */
        turn();
        let_go();
        turn();
        CHECK(d.calls == 1 && d.code == 0 && destroys == 1);
        for (unsigned i = 0; i < 3; i++)
                CHECK(more[i].calls == 1 && more[i].code == 0);
        end();
}

static void test_ensure_while_it_ends(void)
{
        struct result a, d, b, u;
        begin(&plain);
        ensure("x", 60000, &a);
        turn();
        hold = true;
        del("x", &d);
        ensure("x", 60000, &b);
        use("x", &u);
        CHECK(u.calls == 1 && u.code == -ENOENT); /* that one is on its way out */
        turn();
        CHECK(b.calls == 0 && creates == 1);
        let_go();
        turn();
        CHECK(d.calls == 1 && d.code == 0);
        CHECK(b.calls == 1 && b.b && strcmp(b.name, a.name) != 0 && creates == 2); /* a fresh one */
        end();
}

static void test_delete_while_it_is_made(void)
{
        struct result a, d;
        begin(&plain);
        hold = true;
        ensure("x", 60000, &a);
        del("x", &d);
        turn();
        CHECK(a.calls == 0 && d.calls == 0);
        let_go();
        turn();
        CHECK(a.calls == 1 && a.b);
        CHECK(d.calls == 1 && d.code == 0 && destroys == 1 && bs.registry.count == 0);
        end();
}

static void test_failed_create(void)
{
        struct result a, b, u, d;
        begin(&plain);
        fail_creates = -ENOMEM;
        hold = true;
        ensure("x", 60000, &a);
        ensure("x", 60000, &b);
        use("x", &u);
        del("x", &d);
        turn();
        let_go();
        turn();
        CHECK(a.calls == 1 && !a.b && a.code == -ENOMEM && strcmp(a.msg, "not today") == 0);
        CHECK(b.calls == 1 && b.code == -ENOMEM && u.calls == 1 && u.code == -ENOMEM);
        CHECK(d.calls == 1 && d.code == 0); /* nothing is left of it */
        CHECK(bs.registry.count == 0 && rows() == 0);
        fail_creates = 0;
        ensure("x", 60000, &a);
        turn();
        CHECK(a.calls == 1 && a.b);
        end();
}

/* A cgroup that somebody removed made a PUT answer 404. */
static void test_bug_host_failure_is_not_found(void)
{
        struct result a;
        begin(&plain);
        fail_creates = -ENOENT;
        ensure("x", 60000, &a);
        turn();
        CHECK(a.calls == 1 && !a.b);
        CHECK_INT(a.code, -EIO);
        end();
}

static void test_limit(void)
{
        struct boxes_config two = plain;
        struct result a, b, c;
        two.max_boxes = 2;
        begin(&two);
        ensure("a", 60000, &a);
        ensure("b", 60000, &b);
        ensure("c", 60000, &c);
        CHECK(c.calls == 1 && c.code == -EAGAIN && strstr(c.msg, "max_sandboxes"));
        turn();
        CHECK(a.b && b.b);
        ensure("a", 60000, &c); /* one that is there is no new one */
        CHECK(c.calls == 1 && c.b == a.b);
        end();
}

static void test_time(void)
{
        struct result a, b;
        begin(&plain);
        ensure("x", 60000, &a);
        turn();
        int64_t first = a.b->expires_ms;
        CHECK(first >= a.b->created_ms + 60000 && first <= now_wall_ms() + 60000);
        CHECK(registry_first(&bs.registry) == a.b);
        ensure("x", 90000, &b); /* a new time to live */
        CHECK(b.b == a.b && a.b->ttl_ms == 90000 && a.b->expires_ms >= first + 30000);
        a.b->expires_ms = now_wall_ms() + 5000;
        b = (struct result){ 0 };
        boxes_touch(&bs, STR("x"), on_result, &b);
        CHECK(b.calls == 1 && b.b == a.b && a.b->expires_ms > now_wall_ms() + 80000);
        boxes_touch(&bs, STR("none"), on_result, &b);
        CHECK(b.code == -ENOENT);
        end();
}

/* Its time is up: found by whoever looks first, the timer or a request. */
static void test_expiry(void)
{
        struct result a, b, c;
        begin(&plain);
        ensure("x", 60000, &a);
        ensure("y", 60000, &b);
        turn();
        b.b->expires_ms = now_wall_ms() - 1;
        hold = true;
        use("y", &c);
        CHECK(c.calls == 1 && c.code == -ENOENT);
        turn();
        CHECK_INT(destroys, 1);
        let_go();
        turn();
        a.b->expires_ms = now_wall_ms() - 1;
        CHECK_INT(registry_expiry_changed(&bs.registry, a.b), 0);
        boxes_arm_expiry(&bs);
        for (int i = 0; i < 100 && bs.registry.count; i++)
                turn();
        CHECK(destroys == 2 && bs.registry.count == 0 && bs.expired_total == 2 && rows() == 0);
        end();
}

/* Thousands that expire at once do not stand before those who ask. */
static void test_bug_expiry_floods_the_keeper(void)
{
        struct result r[50], u;
        char id[8];
        begin(&plain);
        for (unsigned i = 0; i < 50; i++) {
                (void)snprintf(id, sizeof id, "x%u", i);
                ensure(id, 60000, &r[i]);
                turn();
        }
        CHECK_INT(bs.registry.count, 50);
        hold = true;
        for (unsigned i = 0; i < 50; i++) {
                r[i].b->expires_ms = now_wall_ms() - 1;
                (void)registry_expiry_changed(&bs.registry, r[i].b);
        }
        boxes_arm_expiry(&bs);
        turn();
        CHECK_INT(destroys, 32);
        use("x0", &u); /* over is over, whether its turn has come or not */
        CHECK_INT(u.code, -ENOENT);
        use("x49", &u);
        CHECK_INT(u.code, -ENOENT);
        let_go();
        turn();
        CHECK_INT(bs.registry.count, 0);
        CHECK_INT(bs.expired_total, 50);
        CHECK_INT(bs.expiring, 0);
        end();
}

static void test_agent_dies(void)
{
        struct result a, u;
        begin(&plain);
        ensure("x", 60000, &a);
        turn();
        bury(a.b->slot);
        for (int i = 0; i < 100 && bs.registry.count; i++)
                turn();
        CHECK(bs.lost_total == 1 && destroys == 1 && bs.registry.count == 0);
        use("x", &u);
        CHECK_INT(u.code, -ENOENT);
        end();
}

static void test_shutdown(void)
{
        struct result a, b, c;
        begin(&plain);
        ensure("a", 60000, &a);
        ensure("b", 60000, &b);
        turn();
        idles = 0;
        boxes_shutdown(&bs, true, on_idle, NULL);
        CHECK_INT(idles, 0);
        ensure("c", 60000, &c);
        CHECK(c.calls == 1 && c.code == -ESHUTDOWN);
        turn();
        CHECK(idles == 1 && destroys == 2 && rows() == 0);
        end();
        begin(&plain); /* and the kind that leaves them alive */
        ensure("a", 60000, &a);
        turn();
        idles = 0;
        boxes_shutdown(&bs, false, on_idle, NULL);
        turn();
        CHECK(idles == 1 && destroys == 0 && rows() == 1);
        end();
}

/* One that is being made while the server leaves and takes all with it. */
static void test_bug_shutdown_forgets_pending(void)
{
        struct result a;
        begin(&plain);
        hold = true;
        ensure("a", 60000, &a);
        turn();
        idles = 0;
        boxes_shutdown(&bs, true, on_idle, NULL);
        CHECK_INT(idles, 0);
        let_go();
        turn();
        CHECK(idles == 1 && creates == 1);
        CHECK_INT(destroys, 1);
        CHECK_INT(rows(), 0);
        end();
}

/* Ids are bytes and names are ours. */
static void test_odd_ids(void)
{
        static const struct str ids[] = { STR("a\0b"), STR("a"), STR("'\"\\"), STR("\xe2\x82\xac") };
        struct result r[4], u;
        begin(&plain);
        for (unsigned i = 0; i < 4; i++) {
                struct ensure q = { .id = ids[i], .shape = plain.default_shape, .image = "host", .ttl_ms = 1000 };
                r[i] = (struct result){ 0 };
                boxes_ensure(&bs, &q, on_result, &r[i]);
        }
        turn();
        for (unsigned i = 0; i < 4; i++) {
                boxes_use(&bs, ids[i], on_result, &u);
                CHECK(u.b && u.b == r[i].b);
        }
        CHECK_INT(creates, 4);
        end();
}

/* The keeper dies between two turns of the loop: requests end in errors, not in freed memory. */
static void test_bug_keeper_dies(void)
{
        struct result a, b, c, d;
        begin(&plain);
        ensure("a", 60000, &a);
        ensure("b", 60000, &b);
        turn();
        (void)shutdown(keeper, SHUT_RDWR);
        close_fd(&keeper);
        a.b->expires_ms = now_wall_ms() - 1;
        use("a", &c); /* finds it expired */
        CHECK(c.calls == 1 && c.code == -ENOENT);
        ensure("c", 60000, &c);
        del("b", &d);
        turn();
        CHECK(c.calls == 1 && !c.b && c.code < 0);
        CHECK(d.calls == 1);
        end();
}

/* A keeper that does not answer: whoever waits hears of it, and what was asked for happens when
 * it goes on. */
static void test_bug_keeper_held_up(void)
{
        struct result made, asked[2], gone, u;
        begin(&plain);
        ensure("old", 60000, &made);
        turn();
        CHECK(made.calls == 1 && made.b);
        bs.conf.wait_ms = 20;
        hold = true;
        ensure("new", 60000, &asked[0]);
        ensure("new", 60000, &asked[1]); /* waits for the first */
        del("old", &gone);
        keeper_turn();
        for (int i = 0; i < 1000 && !(asked[0].calls && asked[1].calls && gone.calls); i++)
                (void)uv_run(&loop, UV_RUN_ONCE);
        for (int i = 0; i < 2; i++)
                CHECK(asked[i].calls == 1 && !asked[i].b && asked[i].code == -EAGAIN);
        CHECK(gone.calls == 1 && gone.code == -EAGAIN);
        CHECK(strstr(gone.msg, "keeper") != NULL);
        use("old", &u);
        CHECK(u.calls == 1 && u.code == -ENOENT); /* on its way out all the same */
        let_go();
        turn();
        CHECK(asked[0].calls == 1 && asked[1].calls == 1 && gone.calls == 1);
        use("new", &u);
        CHECK(u.calls == 1 && u.b);
        CHECK_INT(bs.registry.count, 1);
        CHECK_INT(creates, 2);
        end();
}

int main(void)
{
        if (!mkdtemp(dir) || chdir(dir) < 0 || uv_loop_init(&loop) < 0)
                return 1;
        log_setup(LOG_LEVEL_MAX, false, "test"); /* the warnings are meant */
        (void)signal(SIGPIPE, SIG_IGN);
        RUN(test_life);
        RUN(test_fifty_at_once);
        RUN(test_ensure_while_it_ends);
        RUN(test_delete_while_it_is_made);
        RUN(test_failed_create);
        RUN(test_bug_host_failure_is_not_found);
        RUN(test_limit);
        RUN(test_time);
        RUN(test_expiry);
        RUN(test_bug_expiry_floods_the_keeper);
        RUN(test_agent_dies);
        RUN(test_shutdown);
        RUN(test_bug_shutdown_forgets_pending);
        RUN(test_odd_ids);
        RUN(test_bug_keeper_dies);
        RUN(test_bug_keeper_held_up);
        CHECK_INT(uv_loop_close(&loop), 0);
        CHECK_INT(chdir("/"), 0);
        char rm[64];
        (void)snprintf(rm, sizeof rm, "rm -rf '%s'", dir);
        return system(rm) == 0 ? check_done() : 1;
}
