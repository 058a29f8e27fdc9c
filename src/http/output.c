/* The way out: one write in flight, one buffer behind it, and the end of a connection.
 *
 * A small answer is one system call: head and body are gathered and tried at once. Only
 * what the socket does not take is copied and queued. A socket that fails is noticed
 * from the loop, never from inside the handler's call that wrote. */
#include "http/http_internal.h"

#include <string.h>

static void on_written(uv_write_t *w, int status);

size_t http_conn_pending(const struct http_conn *c)
{
        return (c->writing ? uv_stream_get_write_queue_size(&c->uv.stream) : 0) + c->out.len;
}

/* Out of memory or a handle that cannot write: the answer can no longer be completed. */
static void break_conn(struct http_conn *c)
{
        c->broken = true;
        http_server_defer(c->server, c);
}

/* flight holds the bytes, of which the first off are already written. */
static void launch(struct http_conn *c, size_t off)
{
        if (!buf_ok(&c->flight)) {
                break_conn(c);
                return;
        }
        uv_buf_t b = http_span(c->flight.data + off, c->flight.len - off);
        if (uv_write(&c->write, &c->uv.stream, &b, 1, on_written) < 0) {
                break_conn(c);
                return;
        }
        c->writing = true;
        c->write_since = uv_now(c->server->loop);
        c->write_mark = http_conn_pending(c);
}

static void end_after_flush(struct http_conn *c);

/* Everything that waited is written. */
static void flushed(struct http_conn *c)
{
        struct http_req *req = c->req;
        if (c->state == HTTP_CONN_CLOSING) {
                end_after_flush(c);
                return;
        }
        if (req && req->started && req->on_drain)
                req->on_drain(req, c->server->user);
        if (c->in.len)
                http_conn_kick(c);
        else
                http_conn_settle(c);
}

static void on_written(uv_write_t *w, int status)
{
        struct http_conn *c = w->handle->data;
        c->writing = false;
        buf_free(&c->flight);
        if (c->state == HTTP_CONN_DEAD)
                return;
        if (status < 0) {
                http_conn_gone(c);
                return;
        }
        if (c->out.len || !buf_ok(&c->out)) {
                c->flight = c->out;
                c->out = (struct buf){ 0 };
                launch(c, 0);
                return;
        }
        buf_free(&c->out);
        flushed(c);
}

/* Adds to b what lies behind the first skip bytes of the buffers. */
static void add_rest(struct buf *b, const uv_buf_t *bufs, unsigned count, size_t skip)
{
        for (unsigned i = 0; i < count; i++) {
                size_t cut = skip < bufs[i].len ? skip : bufs[i].len;
                buf_add(b, bufs[i].base + cut, bufs[i].len - cut);
                skip -= cut;
        }
}

void http_conn_write(struct http_conn *c, const uv_buf_t *bufs, unsigned count, struct buf *own)
{
        size_t total = 0, done = 0;
        for (unsigned i = 0; i < count; i++)
                total += bufs[i].len;
        if (c->server->capture) {
                add_rest(c->server->capture, bufs, count, 0);
        } else if (!c->broken && c->state != HTTP_CONN_DEAD && c->writing) {
                add_rest(&c->out, bufs, count, 0);
        } else if (!c->broken && c->state != HTTP_CONN_DEAD) {
                int r = uv_try_write(&c->uv.stream, bufs, count);
                done = r > 0 ? (size_t)r : 0; /* errors come back from the queue */
                size_t rest = total - done;
                if (rest && own && rest <= own->len) {
                        c->flight = *own;
                        *own = (struct buf){ 0 };
                        launch(c, c->flight.len - rest);
                } else if (rest) {
                        add_rest(&c->flight, bufs, count, done);
                        launch(c, 0);
                }
        }
        if (own)
                buf_free(own);
}

bool http_conn_stalled(struct http_conn *c, uint64_t now)
{
        uint64_t limit = c->server->limits.write_timeout_ms;
        if (!c->writing)
                return false;
        /* The queue of the stream only shrinks by what the peer took. */
        size_t waits = uv_stream_get_write_queue_size(&c->uv.stream);
        if (waits != c->write_mark) {
                c->write_mark = waits;
                c->write_since = now;
        }
        return limit && now - c->write_since >= limit;
}

static void on_shut(uv_shutdown_t *r, int status)
{
        struct http_conn *c = r->handle->data;
        if (status < 0 && c->state != HTTP_CONN_DEAD)
                http_conn_destroy(c);
}

/* Closing a socket that has unread bytes sends a reset, which makes the client's kernel
 * throw away our answer. So after a refusal: say that we are done, then read until the
 * client has closed too, within bounds. */
static void end_after_flush(struct http_conn *c)
{
        bool linger = c->linger && !c->eof && !c->server->capture && !c->server->closing;
        if (!linger || uv_shutdown(&c->shutdown, &c->uv.stream, on_shut) < 0) {
                http_conn_destroy(c);
                return;
        }
        c->state = HTTP_CONN_LINGER;
        c->dropped = 0;
        c->deadline = uv_now(c->server->loop) + HTTP_LINGER_MS;
        buf_free(&c->in);
        http_conn_settle(c);
}

void http_conn_finish(struct http_conn *c, bool linger)
{
        if (c->state == HTTP_CONN_DEAD || c->state == HTTP_CONN_LINGER)
                return;
        c->state = HTTP_CONN_CLOSING;
        c->linger |= linger;
        c->deadline = 0;
        buf_free(&c->head);
        if (http_conn_pending(c) == 0)
                end_after_flush(c);
        else
                http_conn_settle(c);
}
