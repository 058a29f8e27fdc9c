#include "box/pool.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"

/* How many are made side by side: the keeper works one after another, and a request that
 * needs a fresh sandbox should not queue behind a pool's worth of them. */
#define FILL_AT_ONCE 2

struct ready {
        struct ready *next;
        struct pool *pool;
        char name[BOX_NAME_BYTES];
        unsigned slot;
        int pidfd;
};

struct pool {
        struct boxes *bs;
        struct ready *list;
        unsigned count, making;
        uv_timer_t *refill; /* lives until the loop has closed it */
        bool draining, broken; /* broken: the last attempt failed; try again on demand */
};

int pool_new(struct boxes *bs, struct pool **ret)
{
        struct pool *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        p->bs = bs;
        p->refill = malloc(sizeof *p->refill);
        if (!p->refill) {
                free(p);
                return -ENOMEM;
        }
        p->refill->data = p;
        (void)uv_timer_init(bs->loop, p->refill);
        *ret = p;
        return 0;
}

static void on_refill_closed(uv_handle_t *h)
{
        free(h);
}

void pool_free(struct pool *p)
{
        uv_close((uv_handle_t *)p->refill, on_refill_closed);
        free(p);
}

static void on_destroyed(int code, const char *msg, void *user)
{
        struct ready *r = user;
        if (code < 0)
                log_line(LOG_WARN, "cannot end a pooled sandbox", "pod", r->name, "error", msg, NULL);
        boxes_transit(r->pool->bs, -1);
        close_fd(&r->pidfd);
        free(r);
}

static void end_ready(struct pool *p, struct ready *r)
{
        boxes_transit(p->bs, 1);
        engine_destroy(p->bs->engine, r->name, r->slot, r->pidfd, on_destroyed, r);
}

static void on_created(const struct engine_created *c, void *user)
{
        struct ready *r = user;
        struct pool *p = r->pool;
        p->making--;
        if (c->code < 0) {
                log_line(LOG_WARN, "cannot make a sandbox for the pool", "error", c->msg, NULL);
                p->broken = true;
                free(r);
        } else {
                r->slot = c->slot;
                r->pidfd = c->pidfd;
                if (p->draining)
                        end_ready(p, r);
                else {
                        r->next = p->list;
                        p->list = r;
                        p->count++;
                        pool_fill(p);
                }
        }
        boxes_transit(p->bs, -1); /* last: p may be gone after it */
}

void pool_fill(struct pool *p)
{
        while (!p->draining && !p->broken && p->making < FILL_AT_ONCE && p->count + p->making < p->bs->conf.pool_size) {
                struct ready *r = calloc(1, sizeof *r);
                if (!r)
                        return;
                r->pool = p;
                r->pidfd = -1;
                boxes_make_name(r->name);
                p->making++;
                boxes_transit(p->bs, 1);
                engine_create(p->bs->engine, r->name, &p->bs->conf.default_shape, on_created, r);
        }
}

static void on_refill(uv_timer_t *t)
{
        pool_fill(t->data);
}

void pool_fill_later(struct pool *p)
{
        if (!p->bs->conf.refill_ms)
                pool_fill(p);
        else if (!p->draining && !uv_is_active((uv_handle_t *)p->refill))
                (void)uv_timer_start(p->refill, on_refill, p->bs->conf.refill_ms, 0);
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
        return a->image == b->image && a->cpu_millis == b->cpu_millis && a->memory == b->memory &&
               a->storage == b->storage && a->pids == b->pids;
}

bool pool_take(struct pool *p, const struct shape *shape, struct box *b)
{
        p->broken = false;
        if (!same_shape(shape, &p->bs->conf.default_shape))
                return false;
        while (p->list) {
                struct ready *r = p->list;
                p->list = r->next;
                p->count--;
                /* One that died in the pool must not be handed out. */
                struct pollfd dead = { r->pidfd, POLLIN, 0 };
                if (poll(&dead, 1, 0) != 0) {
                        end_ready(p, r);
                        continue;
                }
                memcpy(b->name, r->name, sizeof b->name);
                b->slot = r->slot;
                b->pidfd = r->pidfd;
                free(r);
                return true;
        }
        return false;
}

void pool_drain(struct pool *p)
{
        p->draining = true;
        (void)uv_timer_stop(p->refill);
        while (p->list) {
                struct ready *r = p->list;
                p->list = r->next;
                p->count--;
                end_ready(p, r);
        }
}
