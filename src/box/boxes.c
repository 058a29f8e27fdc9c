#include "box/boxes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/now.h"
#include "box/pool.h"

/* The wall clock may be set: look again at least this often. */
#define EXPIRY_LOOK_MS 10000
/* The keeper works in order: thousands that expire in one moment must not stand before those
 * who ask. As many as keep it busy; the next follow as these are gone. */
#define EXPIRY_AT_ONCE 32
/* When what could not be ended is tried again. */
#define RETRY_END_MS 2000

void boxes_make_name(char out[BOX_NAME_BYTES])
{
        unsigned char r[5];
        if (getrandom(r, sizeof r, 0) != sizeof r)
                abort();
        (void)snprintf(out, BOX_NAME_BYTES, "sbx-%02x%02x%02x%02x%02x", r[0], r[1], r[2], r[3], r[4]);
}

void boxes_transit(struct boxes *bs, int change)
{
        bs->in_transit += (unsigned)change;
        if (!bs->in_transit && bs->on_idle) {
                void (*fn)(void *) = bs->on_idle;
                bs->on_idle = NULL;
                fn(bs->idle_user);
        }
}

/* --- waiting ------------------------------------------------------------------------- */

static int box_await(struct box *b, void (*fn)(struct box *, void *), void *user)
{
        struct box_waiter *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        *w = (struct box_waiter){ NULL, fn, user };
        struct box_waiter **at = &b->waiters;
        while (*at)
                at = &(*at)->next;
        *at = w;
        return 0;
}

static void box_await_no_more(struct box *b, void *user)
{
        for (struct box_waiter **at = &b->waiters; *at; at = &(*at)->next)
                if ((*at)->user == user) {
                        struct box_waiter *w = *at;
                        *at = w->next;
                        free(w);
                        return;
                }
}

/* The transition is over: everybody asks again, in the order they came. */
static void box_wake(struct box *b)
{
        struct box_waiter *w = b->waiters;
        b->waiters = NULL;
        (void)box_ref(b);
        while (w) {
                struct box_waiter *next = w->next;
                w->fn(b, w->user);
                free(w);
                w = next;
        }
        box_unref(b);
}

/* --- the end of a box ------------------------------------------------------------------ */

static void death_closed(uv_handle_t *h)
{
        free(h);
}

static void box_unwatch(struct box *b)
{
        if (b->death)
                uv_close((uv_handle_t *)b->death, death_closed);
        b->death = NULL;
}

/* -ENOENT is the word for "there is no such sandbox", so a missing file of the host's must
 * not be told as that. */
static void box_set_failure(struct box *b, int code, const char *msg)
{
        b->fail_code = code == -ENOENT ? -EIO : code;
        (void)snprintf(b->fail_msg, sizeof b->fail_msg, "%.255s", msg);
}

static void box_gone(struct boxes *bs, struct box *b)
{
        struct err e = { 0 };
        registry_remove(&bs->registry, b);
        b->state = BOX_GONE;
        box_wake(b);
        /* After the answers: a row without an agent means nothing to whoever reads it. */
        if (store_delete(bs->store, b, &e) < 0)
                log_line(LOG_ERROR, "cannot forget a sandbox", "pod", b->name, "error", e.msg, NULL);
        box_unref(b);
}

/* It could not be taken apart: it is still there, so nobody may hear that it is gone. Those
 * who wait get the error; the expiry timer tries again. */
static void box_not_gone(struct boxes *bs, struct box *b, int code, const char *msg)
{
        log_line(LOG_ERROR, "cannot take a sandbox apart, will try again", "pod", b->name, "error", msg, NULL);
        b->state = BOX_RUNNING;
        b->expires_ms = now_wall_ms() + RETRY_END_MS;
        (void)registry_expiry_changed(&bs->registry, b);
        boxes_arm_expiry(bs);
        box_set_failure(b, code, msg);
        box_wake(b);
        b->fail_code = 0;
}

struct ending {
        struct boxes *bs;
        struct box *b;
};

static void on_destroyed(int code, const char *msg, void *user)
{
        struct ending *x = user;
        struct boxes *bs = x->bs;
        if (x->b->expiring) {
                x->b->expiring = false;
                if (bs->expiring-- == EXPIRY_AT_ONCE && !bs->closing)
                        boxes_arm_expiry(bs);
        }
        if (code < 0)
                box_not_gone(bs, x->b, code, msg);
        else {
                bs->deleted_total++;
                box_gone(bs, x->b);
        }
        box_unref(x->b);
        free(x);
        boxes_transit(bs, -1);
}

static void box_stop(struct boxes *bs, struct box *b, const char *why)
{
        struct ending *x = malloc(sizeof *x);
        if (!x)
                abort(); /* no memory for two pointers: nothing sensible is left to do */
        *x = (struct ending){ bs, box_ref(b) };
        b->state = BOX_STOPPING;
        box_unwatch(b);
        boxes_transit(bs, 1);
        log_line(LOG_DEBUG, "sandbox ends", "id", b->id, "pod", b->name, "why", why, NULL);
        engine_destroy(bs->engine, b->name, b->slot, b->pidfd, on_destroyed, x);
}

static void on_death(uv_poll_t *poll, int status, int events)
{
        (void)status;
        (void)events;
        struct ending *watch = poll->data; /* freed with the handle's memory */
        struct box *b = watch->b;
        if (b->state != BOX_RUNNING)
                return;
        log_line(LOG_WARN, "the agent of a sandbox died; the sandbox is lost", "id", b->id, "pod", b->name, NULL);
        watch->bs->lost_total++;
        box_stop(watch->bs, b, "its agent died");
}

/* --- time ------------------------------------------------------------------------------ */

static void on_expiry(uv_timer_t *t)
{
        struct boxes *bs = t->data;
        int64_t now = now_wall_ms();
        struct box *b;
        while (bs->expiring < EXPIRY_AT_ONCE && (b = registry_first(&bs->registry)) && b->expires_ms <= now) {
                if (b->state == BOX_RUNNING) {
                        bs->expired_total++;
                        bs->expiring++;
                        b->expiring = true;
                        box_stop(bs, b, "its time is up");
                }
                /* Out of the heap either way: a stopping box has no time left to watch. */
                b->expires_ms = INT64_MAX;
                (void)registry_expiry_changed(&bs->registry, b);
        }
        boxes_arm_expiry(bs);
}

void boxes_arm_expiry(struct boxes *bs)
{
        struct box *b = registry_first(&bs->registry);
        if (!b || b->expires_ms == INT64_MAX || bs->expiring >= EXPIRY_AT_ONCE) {
                (void)uv_timer_stop(&bs->expiry);
                return;
        }
        int64_t left = b->expires_ms - now_wall_ms();
        if (left < 0)
                left = 0;
        if (left > EXPIRY_LOOK_MS)
                left = EXPIRY_LOOK_MS;
        (void)uv_timer_start(&bs->expiry, on_expiry, (uint64_t)left, 0);
}

static int box_set_time(struct boxes *bs, struct box *b, int64_t ttl_ms)
{
        b->ttl_ms = ttl_ms;
        b->expires_ms = now_wall_ms() + ttl_ms;
        int r = registry_expiry_changed(&bs->registry, b);
        if (r == 0)
                boxes_arm_expiry(bs);
        return r;
}

/* A deadline that has passed counts even if the timer has not come by yet. */
static struct box *find_live(struct boxes *bs, struct str id)
{
        struct box *b = registry_find(&bs->registry, id);
        if (b && b->state == BOX_RUNNING && b->expires_ms <= now_wall_ms()) {
                bs->expired_total++;
                box_stop(bs, b, "its time is up");
        }
        return b;
}

/* --- making ---------------------------------------------------------------------------- */

int boxes_box_started(struct boxes *bs, struct box *b)
{
        struct { uv_poll_t poll; struct ending x; } *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        int r = uv_poll_init(bs->loop, &w->poll, b->pidfd);
        if (r < 0) {
                free(w);
                return r;
        }
        w->x = (struct ending){ bs, b };
        w->poll.data = &w->x;
        b->death = &w->poll;
        (void)uv_poll_start(b->death, UV_READABLE, on_death);
        b->state = BOX_RUNNING;
        r = registry_expiry_changed(&bs->registry, b);
        boxes_arm_expiry(bs);
        return r;
}

static void box_failed(struct boxes *bs, struct box *b, int code, const char *msg)
{
        box_set_failure(b, code, msg);
        registry_remove(&bs->registry, b);
        b->state = BOX_GONE;
        box_wake(b);
        box_unref(b);
}

/* Its agent answers. The row is written before anybody hears of it. */
static void box_made(struct boxes *bs, struct box *b)
{
        struct err e = { 0 };
        b->created_ms = now_wall_ms();
        b->expires_ms = b->created_ms + b->ttl_ms;
        int r = store_put(bs->store, b, &e);
        if (r == 0 && (r = boxes_box_started(bs, b)) < 0)
                (void)fail_host(&e, r, "no memory");
        if (r < 0) {
                box_set_failure(b, r, e.msg);
                box_stop(bs, b, "it could not be stored");
                return;
        }
        bs->created_total++;
        log_line(LOG_DEBUG, "sandbox made", "id", b->id, "pod", b->name, NULL);
        if (bs->delete_all) /* the server leaves and takes everything along */
                box_stop(bs, b, "the server leaves");
        box_wake(b);
}

static void on_created(const struct engine_created *c, void *user)
{
        struct ending *x = user;
        struct boxes *bs = x->bs;
        struct box *b = x->b;
        free(x);
        if (c->code < 0)
                box_failed(bs, b, c->code, c->msg);
        else {
                b->slot = c->slot;
                b->pidfd = c->pidfd;
                box_made(bs, b);
        }
        boxes_transit(bs, -1);
}

static void box_begin(struct boxes *bs, struct box *b)
{
        registry_add(&bs->registry, b);
        if (pool_take(bs->pool, &b->shape, b)) {
                box_made(bs, b);
                pool_fill_later(bs->pool);
                return;
        }
        struct ending *x = malloc(sizeof *x);
        if (!x) {
                box_failed(bs, b, -ENOMEM, "no memory");
                return;
        }
        *x = (struct ending){ bs, b };
        boxes_make_name(b->name);
        boxes_transit(bs, 1);
        engine_create(bs->engine, b->name, &b->shape, on_created, x);
        pool_fill_later(bs->pool);
}

/* --- operations -------------------------------------------------------------------------- */

struct op {
        struct boxes *bs;
        TAILQ_ENTRY(op) link; /* while it waits for box, since then */
        struct box *box;
        uint64_t since;
        enum box_op kind;
        char *id;
        size_t id_len;
        struct shape shape;
        char image[64];
        int64_t ttl_ms;
        box_cb cb;
        void *user;
};

static void op_done(struct op *o, struct box *b, int code, const char *msg)
{
        o->cb(b, code, msg, o->user);
        free(o->id);
        free(o);
}

static void op_run(struct op *o);

static void op_woken(struct box *b, void *user)
{
        struct op *o = user;
        TAILQ_REMOVE(&o->bs->waiting, o, link);
        if (b->fail_code < 0 && (o->kind != BOX_OP_DELETE || b->state != BOX_GONE))
                op_done(o, NULL, b->fail_code, b->fail_msg);
        else if (b->state == BOX_GONE && o->kind == BOX_OP_DELETE)
                op_done(o, NULL, 0, ""); /* joined a delete that is now complete */
        else
                op_run(o);
}

/* A keeper that is held up (stopped, or deep in the kernel) holds up every transition. What
 * was asked for still happens when it goes on; those who wait hear of it now. */
static void on_patience(uv_timer_t *t)
{
        struct boxes *bs = t->data;
        uint64_t now = uv_now(bs->loop);
        struct op *o;
        while ((o = TAILQ_FIRST(&bs->waiting)) && now - o->since >= bs->conf.wait_ms) {
                TAILQ_REMOVE(&bs->waiting, o, link);
                box_await_no_more(o->box, o);
                log_line(LOG_ERROR, "the keeper does not answer", "id", o->id, "waits_to", box_op_name(o->kind), NULL);
                op_done(o, NULL, -EAGAIN, "the keeper does not answer; what was asked for is still under way");
        }
        if (o)
                (void)uv_timer_start(t, on_patience, o->since + bs->conf.wait_ms - now, 0);
}

static void op_wait(struct op *o, struct box *b)
{
        struct boxes *bs = o->bs;
        if (box_await(b, op_woken, o) < 0) {
                op_done(o, NULL, -ENOMEM, "no memory");
                return;
        }
        o->box = b;
        o->since = uv_now(bs->loop);
        TAILQ_INSERT_TAIL(&bs->waiting, o, link);
        if (bs->conf.wait_ms && !uv_is_active((uv_handle_t *)&bs->patience))
                (void)uv_timer_start(&bs->patience, on_patience, bs->conf.wait_ms, 0);
}

static void op_create(struct op *o)
{
        struct boxes *bs = o->bs;
        if (bs->closing) {
                op_done(o, NULL, -ESHUTDOWN, "the server is shutting down");
                return;
        }
        if (bs->registry.count >= bs->conf.max_boxes) {
                char msg[96];
                (void)snprintf(msg, sizeof msg, "the limit of %zu sandboxes (max_sandboxes) is reached",
                               bs->conf.max_boxes);
                op_done(o, NULL, -EAGAIN, msg);
                return;
        }
        struct box *b = box_new((struct str){ o->id, o->id_len });
        if (!b) {
                op_done(o, NULL, -ENOMEM, "no memory");
                return;
        }
        b->shape = o->shape;
        b->ttl_ms = o->ttl_ms;
        (void)snprintf(b->image, sizeof b->image, "%s", o->image);
        /* Wait first, then begin: with a pooled one it is there before begin returns. */
        op_wait(o, b);
        box_begin(bs, b);
}

static void op_on_running(struct op *o, struct box *b)
{
        struct err e = { 0 };
        int r = 0;
        if (o->kind == BOX_OP_DELETE) {
                op_wait(o, b);
                box_stop(o->bs, b, "asked to");
                return;
        }
        if (o->kind == BOX_OP_ENSURE || o->kind == BOX_OP_TOUCH) {
                r = box_set_time(o->bs, b, o->kind == BOX_OP_ENSURE ? o->ttl_ms : b->ttl_ms);
                if (r == 0)
                        r = store_set_expiry(o->bs->store, b, &e);
        }
        op_done(o, r < 0 ? NULL : b, r, e.msg);
}

static void op_run(struct op *o)
{
        struct box *b = find_live(o->bs, (struct str){ o->id, o->id_len });
        if (!b) {
                if (o->kind == BOX_OP_ENSURE)
                        op_create(o);
                else
                        op_done(o, NULL, -ENOENT, "sandbox not found");
                return;
        }
        switch (box_may(b->state, o->kind)) {
        case BOX_DO:
                op_on_running(o, b);
                break;
        case BOX_WAIT:
                op_wait(o, b);
                break;
        default:
                op_done(o, NULL, -ENOENT, "sandbox not found");
        }
}

static struct op *op_new(struct boxes *bs, enum box_op kind, struct str id, box_cb cb, void *user)
{
        struct op *o = calloc(1, sizeof *o);
        if (!o || !(o->id = malloc(id.n + 1))) {
                free(o);
                cb(NULL, -ENOMEM, "no memory", user);
                return NULL;
        }
        memcpy(o->id, id.p, id.n);
        o->id[id.n] = '\0';
        o->id_len = id.n;
        o->bs = bs;
        o->kind = kind;
        o->cb = cb;
        o->user = user;
        return o;
}

void boxes_ensure(struct boxes *bs, const struct ensure *q, box_cb cb, void *user)
{
        struct op *o = op_new(bs, BOX_OP_ENSURE, q->id, cb, user);
        if (!o)
                return;
        o->shape = q->shape;
        o->ttl_ms = q->ttl_ms;
        (void)snprintf(o->image, sizeof o->image, "%s", q->image);
        op_run(o);
}

static void run_simple(struct boxes *bs, enum box_op kind, struct str id, box_cb cb, void *user)
{
        struct op *o = op_new(bs, kind, id, cb, user);
        if (o)
                op_run(o);
}

void boxes_use(struct boxes *bs, struct str id, box_cb cb, void *user)
{
        run_simple(bs, BOX_OP_USE, id, cb, user);
}

void boxes_touch(struct boxes *bs, struct str id, box_cb cb, void *user)
{
        run_simple(bs, BOX_OP_TOUCH, id, cb, user);
}

void boxes_delete(struct boxes *bs, struct str id, box_cb cb, void *user)
{
        run_simple(bs, BOX_OP_DELETE, id, cb, user);
}

/* --- start and stop ------------------------------------------------------------------------ */

int boxes_init(struct boxes *bs, uv_loop_t *loop, struct engine *g, struct store *s, const struct boxes_config *c,
               struct err *e)
{
        *bs = (struct boxes){ .loop = loop, .engine = g, .store = s, .conf = *c };
        int r = registry_init(&bs->registry);
        if (r == 0)
                r = pool_new(bs, &bs->pool);
        if (r < 0)
                return fail_host(e, r, "no memory");
        bs->expiry.data = bs;
        (void)uv_timer_init(loop, &bs->expiry);
        TAILQ_INIT(&bs->waiting);
        bs->patience.data = bs;
        (void)uv_timer_init(loop, &bs->patience);
        return 0;
}

void boxes_fill_pool(struct boxes *bs)
{
        pool_fill(bs->pool);
}

static void stop_each(struct box *b, void *user)
{
        struct boxes *bs = user;
        if (b->state == BOX_RUNNING)
                box_stop(bs, b, "the server leaves");
}

static void unwatch_each(struct box *b, void *user)
{
        (void)user;
        box_unwatch(b);
}

void boxes_shutdown(struct boxes *bs, bool delete_all, void (*on_idle)(void *), void *user)
{
        bs->closing = true;
        bs->delete_all = delete_all;
        (void)uv_timer_stop(&bs->expiry);
        boxes_transit(bs, 1); /* so that it cannot be idle before all is asked for */
        pool_drain(bs->pool);
        registry_each(&bs->registry, delete_all ? stop_each : unwatch_each, bs);
        bs->on_idle = on_idle;
        bs->idle_user = user;
        boxes_transit(bs, -1);
}

void boxes_free(struct boxes *bs)
{
        for (size_t i = 0; i < bs->registry.bucket_count; i++)
                while (bs->registry.buckets[i]) {
                        struct box *b = bs->registry.buckets[i];
                        registry_remove(&bs->registry, b);
                        box_unwatch(b);
                        box_unref(b);
                }
        registry_free(&bs->registry);
        pool_free(bs->pool);
        uv_close((uv_handle_t *)&bs->expiry, NULL);
        uv_close((uv_handle_t *)&bs->patience, NULL);
}
