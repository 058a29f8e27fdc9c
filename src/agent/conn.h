/* A connection from the server: one operation. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct conn;

/* Queues the answer. Once it is out the connection is closed, or (an exec's) waits for the
 * next request. Either way the caller is done with it. */
void conn_finish(struct conn *c, struct buf *frames);
/* A FAIL frame with code, blame and sentence, then as conn_finish. */
void conn_fail(struct conn *c, int code, enum err_blame blame, const char *fmt, ...) _printf_(4, 5);
/* Takes the fd out; the conn is gone. */
int conn_steal_fd(struct conn *c);
int conn_setup(int listen_fd, const char *name, unsigned slot);
