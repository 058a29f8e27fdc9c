/* One operation with one agent: a connection to its socket, frames both ways. The kernel's
 * socket buffers are the flow control. */
#pragma once

#include <stdbool.h>
#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/frame.h"

struct link;

struct link_handlers {
        /* A frame from the agent; the payload is valid during the call. */
        void (*on_frame)(struct link *l, const struct frame *f, void *user);
        /* The connection ended (code 0) or failed; the link is gone after this call. Not
         * called after link_close. */
        void (*on_end)(struct link *l, int code, void *user);
        /* All that was sent has been taken (may be NULL). */
        void (*on_drain)(struct link *l, void *user);
};

/* Connects to the sandbox's socket in the working directory and sends request (taken over). */
int link_open(uv_loop_t *loop, const char *box_name, struct buf *request, const struct link_handlers *h,
              void *user, struct link **ret, struct err *e);
/* Sends a frame; bytes that the socket does not take now are kept. Returns how many wait. */
size_t link_send(struct link *l, enum frame_type type, const void *p, size_t n);
void link_pause(struct link *l);
void link_resume(struct link *l);
/* Ends it: the agent sees its asker leave. No callback comes any more. */
void link_close(struct link *l);
