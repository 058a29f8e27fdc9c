/* All sandboxes of this server: making, finding, keeping alive, ending. Protocols are
 * adapters on this. Callbacks may run from within the call. */
#pragma once

#include <sys/queue.h>
#include <uv.h>

#include "box/registry.h"
#include "box/store.h"

struct pool;
struct op;

struct boxes_config {
        size_t max_boxes;
        unsigned pool_size;
        unsigned refill_ms; /* a pool is filled again this long after it was used */
        unsigned wait_ms;   /* who waits this long for a sandbox gets an error; 0: waits on */
        struct shape default_shape;
        char default_image[64];
        char place[160]; /* uid range and cgroups: live sandboxes cannot follow when it changes */
};

struct boxes {
        uv_loop_t *loop;
        struct engine *engine;
        struct store *store;
        struct registry registry;
        struct boxes_config conf;
        struct pool *pool;
        uv_timer_t expiry;
        TAILQ_HEAD(, op) waiting; /* for a transition to end, the longest first */
        uv_timer_t patience;
        bool closing, delete_all;
        unsigned in_transit; /* creates and destroys under way */
        unsigned expiring;   /* of them, because their time is up */
        void (*on_idle)(void *user);
        void *idle_user;
        uint64_t created_total, deleted_total, expired_total, lost_total;
};

/* b is NULL on failure: code is -errno with a sentence. */
typedef void (*box_cb)(struct box *b, int code, const char *msg, void *user);

struct ensure {
        struct str id;
        struct shape shape;
        const char *image;
        int64_t ttl_ms;
};

int boxes_init(struct boxes *bs, uv_loop_t *loop, struct engine *g, struct store *s, const struct boxes_config *c,
               struct err *e);
/* Makes the sandbox, or keeps the one that is there and restarts its time. */
void boxes_ensure(struct boxes *bs, const struct ensure *q, box_cb cb, void *user);
/* The running sandbox, waiting for it if it is just being made; cb gets NULL and -ENOENT
 * when there is none. The box in cb is borrowed: take a reference to keep it. */
void boxes_use(struct boxes *bs, struct str id, box_cb cb, void *user);
/* Restarts its time. */
void boxes_touch(struct boxes *bs, struct str id, box_cb cb, void *user);
/* cb runs when nothing of it is left; b is NULL then with code 0. */
void boxes_delete(struct boxes *bs, struct str id, box_cb cb, void *user);

/* Blocking, at start: takes over what lives, drops what does not, ends what belongs to
 * nobody. The working directory is the run directory. Counts come back. */
int boxes_adopt(struct boxes *bs, unsigned *ret_adopted, unsigned *ret_lost, struct err *e);
/* Ends pooled sandboxes, and all others too when asked; on_idle runs when it is done. */
void boxes_shutdown(struct boxes *bs, bool delete_all, void (*on_idle)(void *user), void *user);
void boxes_free(struct boxes *bs);
void boxes_fill_pool(struct boxes *bs);

/* --- for box/pool.c and box/adopt.c ------------------------------------------------- */
void boxes_make_name(char out[BOX_NAME_BYTES]);
/* b is alive in its slot: watch it, count its time. */
int boxes_box_started(struct boxes *bs, struct box *b);
void boxes_transit(struct boxes *bs, int change);
void boxes_arm_expiry(struct boxes *bs);
