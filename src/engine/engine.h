/* How a sandbox comes to life and ends, as the server sees it: asynchronous requests to
 * the keeper. All callbacks run from the loop, never from within the call. */
#pragma once

#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "keeper/keeper.h"
#include "wire/keeper_msg.h"

struct engine;

/* What a sandbox is made of. */
struct shape {
        unsigned image; /* index into the images the keeper was started with */
        uint32_t cpu_millis;
        uint64_t memory, storage, pids;
};

struct engine_created {
        int code; /* 0 or -errno with msg */
        const char *msg;
        unsigned slot;
        int pidfd; /* the receiver's */
};

typedef void (*engine_create_cb)(const struct engine_created *r, void *user);
typedef void (*engine_destroy_cb)(int code, const char *msg, void *user);

/* Waits for the keeper's first word (blocking, at start). *ret_hello says what it can do. */
int engine_new(uv_loop_t *loop, int keeper_sock, struct engine **ret, struct keeper_reply *ret_hello,
               struct err *e);
/* on_lost: the keeper died; nothing can be made or ended any more. */
void engine_on_lost(struct engine *g, void (*on_lost)(void *user), void *user);
/* Makes the sandbox's socket in the working directory (the run directory) by itself. */
void engine_create(struct engine *g, const char *name, const struct shape *shape, engine_create_cb cb, void *user);
/* pidfd stays the caller's. cb runs when nothing of the sandbox is left. */
void engine_destroy(struct engine *g, const char *name, unsigned slot, int pidfd, engine_destroy_cb cb, void *user);
/* Ends all commands of a sandbox whose agent does not answer. */
void engine_kill_commands(struct engine *g, unsigned slot);
/* Blocking, at start, before anything else is asked. */
int engine_adopt(struct engine *g, unsigned slot, int pidfd);
int engine_sweep(struct engine *g);
void engine_close(struct engine *g);

/* Name of a sandbox's socket in the run directory. */
void engine_socket_name(const char *name, char *out, size_t size);
