/* A sandbox as the server sees it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/str.h"
#include "engine/engine.h"

enum box_state {
        BOX_PENDING,  /* being made */
        BOX_RUNNING,
        BOX_STOPPING, /* being taken apart */
        BOX_GONE,     /* nothing is left but this record, while somebody holds it */
        BOX_STATE_MAX
};

enum box_op {
        BOX_OP_ENSURE, /* PUT: make it or keep it */
        BOX_OP_USE,    /* exec, upload, download */
        BOX_OP_TOUCH,
        BOX_OP_DELETE,
        BOX_OP_EXPIRE,
        BOX_OP_MAX
};

/* What an operation does in a state: the whole state machine is this and one table. */
enum box_verdict {
        BOX_DO,   /* now */
        BOX_WAIT, /* when the present transition is over, ask again */
        BOX_NONE, /* there is no such sandbox (404) */
        BOX_VERDICT_MAX
};

enum box_verdict box_may(enum box_state state, enum box_op op);
const char *box_state_name(enum box_state s);
const char *box_op_name(enum box_op op);

struct box;

/* Somebody who waits for the end of a transition. */
struct box_waiter {
        struct box_waiter *next;
        void (*fn)(struct box *b, void *user);
        void *user;
};

struct box {
        char *id; /* the client's name for it, id_len bytes and a NUL */
        size_t id_len;
        char name[BOX_NAME_BYTES]; /* ours: sbx- and ten hex digits */
        enum box_state state;
        unsigned refs; /* the registry's, and one for each operation that looks at it */
        unsigned slot;
        unsigned execs; /* running now */
        int pidfd;
        uv_poll_t *death; /* watches pidfd */
        struct shape shape;
        char image[64];
        int64_t created_ms, ttl_ms, expires_ms;
        bool expiring;  /* its time is up, and it is on its way out for that */
        size_t heap_at; /* place in the expiry heap, SIZE_MAX: not in it */
        struct box *hash_next;
        struct box_waiter *waiters;
        int fail_code;      /* why making it failed */
        char fail_msg[256];
};

struct box *box_new(struct str id);
struct box *box_ref(struct box *b);
void box_unref(struct box *b);
