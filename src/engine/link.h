/* One operation with one agent: a connection to its socket, frames both ways. The kernel's
 * socket buffers are the flow control. A connection whose operation ended in step (an exec's
 * does) is parked (one for each agent) and serves the next with the same agent: that saves both sides the
 * making and the taking apart, a tenth of the time of a short exec. */
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
        /* Some of what waited has been taken; comes before on_drain (may be NULL). */
        void (*on_moved)(struct link *l, void *user);
};

/* Takes a parked connection, or connects to the sandbox's socket in the working directory,
 * and sends request (taken over on success). */
int link_open(uv_loop_t *loop, const char *box_name, struct buf *request, const struct link_handlers *h,
              void *user, struct link **ret, struct err *e);
/* Sends a frame; bytes that the socket does not take now are kept. Returns how many wait. */
size_t link_send(struct link *l, enum frame_type type, const void *p, size_t n);
void link_pause(struct link *l);
void link_resume(struct link *l);
/* Ends it: the agent sees its asker leave. No callback comes any more. */
void link_close(struct link *l);
/* Lets go of it after the answer's last frame: the agent is ready for the next request on
 * this connection, so it is kept. No callback comes any more. */
void link_done(struct link *l);
/* Closes what is parked, so that the loop can end. */
void link_close_parked(void);
