/* One connection: which state it is in, and who may take the next bytes.
 *
 *   HEAD ──head complete──▶ WORK ──answered──▶ HEAD        (keep-alive)
 *                             │                 DROP ─▶ HEAD (body was left unread)
 *                             └─refused, close─▶ CLOSING ─▶ LINGER ─▶ DEAD
 *
 * Requests are taken one by one: bytes behind a request in work wait in c->in, which is
 * bounded, and a head is only taken when the previous answer has left, so that a client
 * that pipelines and never reads cannot make answers pile up.
 *
 * A client's end of stream while its answer is pending counts as gone, as with other
 * servers: TCP does not tell "I have sent everything" from "I have left". */
#include "http/http_internal.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"

struct http_conn *http_conn_new(struct http_server *s, bool is_unix)
{
        struct http_conn *c = calloc(1, sizeof *c);
        if (!c)
                return NULL;
        int r = is_unix ? uv_pipe_init(s->loop, &c->uv.pipe, 0) : uv_tcp_init(s->loop, &c->uv.tcp);
        if (r < 0) {
                free(c);
                return NULL;
        }
        c->uv.handle.data = c;
        c->server = s;
        s->handles++;
        return c;
}

static void set_deadline(struct http_conn *c, uint64_t after_ms)
{
        c->deadline = after_ms ? uv_now(c->server->loop) + after_ms : 0;
}

void http_conn_begin(struct http_conn *c)
{
        set_deadline(c, c->server->limits.head_timeout_ms);
        http_conn_settle(c);
}

static void on_closed(uv_handle_t *h)
{
        struct http_conn *c = h->data;
        struct http_server *s = c->server;
        buf_free(&c->head);
        buf_free(&c->in);
        buf_free(&c->out);
        buf_free(&c->flight);
        free(c);
        http_server_release(s);
}

void http_conn_destroy(struct http_conn *c)
{
        struct http_server *s = c->server;
        if (c->state == HTTP_CONN_DEAD)
                return;
        c->state = HTTP_CONN_DEAD;
        TAILQ_REMOVE(&s->conns, c, link);
        if (c->deferred) {
                TAILQ_REMOVE(&s->deferred, c, deferred_link);
                s->deferred_count--;
                c->deferred = false;
        }
        if (c->reject)
                s->reject_count--;
        else
                s->conn_count--;
        bool reset = c->reset && c->uv.handle.type == UV_TCP &&
                     uv_tcp_close_reset(&c->uv.tcp, on_closed) == 0;
        if (!reset)
                uv_close(&c->uv.handle, on_closed);
        http_server_conn_left(s);
}

void http_conn_gone(struct http_conn *c)
{
        struct http_req *req = c->req;
        c->req = NULL;
        if (req) {
                req->over = true;
                /* An answer that ends with the connection would look complete. */
                c->reset |= req->started && !req->chunked_answer && !req->bodiless;
                if (req->on_gone)
                        req->on_gone(req, c->server->user);
                http_req_done(req);
        }
        http_conn_destroy(c);
}

void http_conn_refuse(struct http_conn *c, int status, const char *sentence, const char *headers)
{
        struct http_req *req = c->req;
        if (req && req->started) {
                http_conn_gone(c);
                return;
        }
        c->req = NULL;
        if (req && req->on_gone) {
                req->over = true;
                req->on_gone(req, c->server->user);
        } else if (!req) {
                req = http_req_new(c);
                if (!req) {
                        http_conn_destroy(c);
                        return;
                }
                http_req_set_id(req);
        }
        c->keep = false;
        http_refusal_write(req, status, sentence, headers);
        http_req_done(req);
        http_conn_finish(c, true);
}

/* --- taking bytes --------------------------------------------------------------- */

static void idle(struct http_conn *c)
{
        c->state = HTTP_CONN_HEAD;
        set_deadline(c, c->server->limits.idle_timeout_ms);
        if (c->server->draining && c->in.len == 0)
                http_conn_finish(c, false);
}

/* A complete head of len bytes, at bytes or, when it came in parts, in c->head. */
static void begin_request(struct http_conn *c, const char *bytes, size_t len)
{
        struct http_server *s = c->server;
        struct http_req *req = http_req_new(c);
        unsigned lines = c->scan.lines;
        c->scan = (struct http_scan){ 0 };
        c->state = HTTP_CONN_WORK;
        c->deadline = 0;
        if (!req) {
                http_conn_destroy(c);
                return;
        }
        c->req = req;
        if (c->head.len) {
                req->head_bytes = c->head;
                c->head = (struct buf){ 0 };
                bytes = req->head_bytes.data;
        } else {
                char *copy = http_alloc(req, len);
                if (copy)
                        memcpy(copy, bytes, len);
                bytes = copy;
        }
        struct http_field *fields = http_alloc(req, lines * sizeof *fields);
        struct http_refusal why = { 503, "There is no memory for the request." };
        if (!bytes || !fields || http_head_parse(bytes, len, fields, lines, &req->head, &why) < 0) {
                http_req_set_id(req);
                http_conn_refuse(c, why.status, why.sentence, NULL);
                return;
        }
        http_req_set_id(req);
        http_body_begin(c, &req->head);
        s->callbacks.on_request(req, s->user);
}

static bool head_step(struct http_conn *c, const char *p, size_t n, size_t *ret_used)
{
        const struct http_limits *l = &c->server->limits;
        size_t had = c->head.len, len = 0;
        *ret_used = 0;
        if (n == 0 || http_conn_pending(c) > 0)
                return false;
        struct http_refusal why;
        size_t take = n;
        if (had) {
                take = n < l->head_bytes - had ? n : l->head_bytes - had;
                buf_add(&c->head, p, take);
        }
        struct str all = had ? (struct str){ c->head.data, c->head.len } : (struct str){ p, n };
        int r = buf_ok(&c->head) ? http_head_scan(&c->scan, all.p, all.n, l, &len, &why) : 0;
        if (r == 0) {
                if (!had) {
                        buf_add(&c->head, p, n);
                        set_deadline(c, l->head_timeout_ms);
                }
                if (!buf_ok(&c->head))
                        http_conn_destroy(c);
                *ret_used = take;
                return true;
        }
        if (r < 0) {
                *ret_used = n;
                http_conn_refuse(c, why.status, why.sentence, NULL);
                return true;
        }
        *ret_used = len - had;
        if (had)
                c->head.len = len;
        begin_request(c, p, len);
        return true;
}

static bool drop_step(struct http_conn *c, const char *p, size_t n, size_t *ret_used)
{
        if (c->body_done) {
                *ret_used = 0;
                idle(c);
                return true;
        }
        return http_body_drop_step(c, p, n, ret_used);
}

static void linger_step(struct http_conn *c, size_t n)
{
        c->dropped += n;
        if (c->dropped > HTTP_LINGER_BYTES)
                http_conn_destroy(c);
}

/* Lets whoever is entitled take bytes until nobody can go on. Returns what was taken. */
static size_t take(struct http_conn *c, const char *p, size_t n)
{
        size_t used = 0;
        unsigned heads = 0;
        for (bool more = true; more;) {
                size_t k = 0;
                switch (c->state) {
                case HTTP_CONN_HEAD:
                        /* One read can hold thousands of pipelined requests; the other
                         * connections want their turn between. */
                        if (used < n && heads++ >= HTTP_BURST) {
                                http_server_defer(c->server, c);
                                return used;
                        }
                        more = head_step(c, p + used, n - used, &k);
                        break;
                case HTTP_CONN_WORK:
                        more = http_body_step(c, p + used, n - used, &k);
                        break;
                case HTTP_CONN_DROP:
                        more = drop_step(c, p + used, n - used, &k);
                        break;
                case HTTP_CONN_LINGER:
                        linger_step(c, n - used);
                        return n;
                default:
                        return n;
                }
                used += k;
        }
        return used;
}

void http_conn_feed(struct http_conn *c, const char *p, size_t n)
{
        if (c->state == HTTP_CONN_DEAD)
                return;
        if (c->in.len) {
                buf_add(&c->in, p, n);
                http_conn_run(c);
                return;
        }
        if (c->state == HTTP_CONN_WORK || c->state == HTTP_CONN_DROP)
                set_deadline(c, c->server->limits.body_timeout_ms);
        c->feeding = true;
        size_t used = take(c, p, n);
        c->feeding = false;
        if (used < n)
                buf_add(&c->in, p + used, n - used);
        http_conn_settle(c);
}

void http_conn_run(struct http_conn *c)
{
        if (c->state == HTTP_CONN_DEAD)
                return;
        if (c->broken || !buf_ok(&c->in)) {
                http_conn_gone(c);
                return;
        }
        /* Held here, not in c: whatever a handler does to the connection, the bytes it
         * was handed stay until it returns. */
        struct buf in = c->in;
        c->in = (struct buf){ 0 };
        c->feeding = true;
        size_t used = take(c, in.len ? in.data : "", in.len);
        c->feeding = false;
        if (used < in.len && c->state != HTTP_CONN_DEAD) {
                buf_consume(&in, used);
                c->in = in;
        } else {
                buf_free(&in);
        }
        http_conn_settle(c);
}

void http_conn_kick(struct http_conn *c)
{
        if (!c->feeding && c->state != HTTP_CONN_DEAD)
                http_server_defer(c->server, c);
}

void http_conn_answered(struct http_conn *c)
{
        if (c->state == HTTP_CONN_DEAD)
                return;
        if (!c->keep || http_body_too_long_to_drop(c)) {
                http_conn_finish(c, !c->body_done || c->in.len > 0);
                return;
        }
        if (c->body_done) {
                idle(c);
        } else {
                c->state = HTTP_CONN_DROP;
                set_deadline(c, c->server->limits.body_timeout_ms);
        }
        if (c->in.len)
                http_conn_kick(c);
        else if (!c->feeding)
                http_conn_settle(c);
}

/* --- reading -------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret)
{
        struct http_conn *c = h->data;
        struct http_req *req = c->req;
        (void)suggested;
        bool ahead = c->state == HTTP_CONN_WORK &&
                     (c->body_done || !req || req->mode == HTTP_BODY_UNASKED);
        size_t room = HTTP_READ_BYTES;
        if (ahead)
                room = c->in.len < HTTP_AHEAD_BYTES ? HTTP_AHEAD_BYTES - c->in.len : 1;
        /* One buffer for all connections: what a read brings is taken or copied before
         * the next read. */
        *ret = uv_buf_init(c->server->read_buf, (unsigned)room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
        struct http_conn *c = stream->data;
        if (n > 0)
                http_conn_feed(c, b->base, (size_t)n);
        else if (n < 0)
                http_conn_eof(c, (int)n);
}

void http_conn_eof(struct http_conn *c, int status)
{
        c->eof = true;
        c->reading = false;
        switch (c->state) {
        case HTTP_CONN_WORK:
                http_conn_gone(c);
                break;
        case HTTP_CONN_HEAD:
        case HTTP_CONN_DROP:
        case HTTP_CONN_CLOSING:
                /* What is already answered may still be on its way to a client that has
                 * only shut its sending side. */
                if (status == UV_EOF)
                        http_conn_finish(c, false);
                else
                        http_conn_destroy(c);
                break;
        default:
                http_conn_destroy(c);
        }
}

/* Does the handler wait for bytes of the body? */
static bool wants_body(const struct http_conn *c)
{
        return c->req && c->req->mode != HTTP_BODY_UNASKED && !c->req->paused && !c->body_done;
}

static bool wants_read(const struct http_conn *c)
{
        switch (c->state) {
        case HTTP_CONN_HEAD:
                return http_conn_pending(c) == 0 && c->in.len == 0;
        case HTTP_CONN_WORK:
                if (wants_body(c))
                        return true;
                if (c->req && c->req->paused && !c->body_done)
                        return false; /* back pressure: the kernel's window fills */
                return c->in.len < HTTP_AHEAD_BYTES;
        case HTTP_CONN_DROP:
        case HTTP_CONN_LINGER:
                return true;
        default:
                return false;
        }
}

void http_conn_settle(struct http_conn *c)
{
        if (c->state == HTTP_CONN_DEAD || c->feeding)
                return;
        if (c->state == HTTP_CONN_WORK && !wants_body(c))
                c->deadline = 0;
        else if (c->state == HTTP_CONN_WORK && c->deadline == 0)
                set_deadline(c, c->server->limits.body_timeout_ms);
        bool read = wants_read(c) && !c->eof && !c->broken && !c->server->capture;
        if (read && !c->reading) {
                c->reading = uv_read_start(&c->uv.stream, on_alloc, on_read) == 0;
                if (!c->reading) {
                        c->broken = true;
                        http_server_defer(c->server, c);
                }
        } else if (!read && c->reading) {
                (void)uv_read_stop(&c->uv.stream);
                c->reading = false;
        }
}

/* --- time ----------------------------------------------------------------------- */

/* A connection that is not read cannot report its end; ask the kernel. While a body is
 * paused an orderly end may lie behind bytes that we still want, so only a broken
 * connection counts then. */
static bool hung_up(const struct http_conn *c)
{
        uv_os_fd_t fd;
        if (uv_fileno(&c->uv.handle, &fd) < 0)
                return false;
        bool mid_body = c->req && c->req->paused && !c->body_done;
        struct pollfd p = { .fd = fd, .events = mid_body ? 0 : POLLRDHUP };
        return poll(&p, 1, 0) > 0 && p.revents != 0;
}

void http_conn_tick(struct http_conn *c, uint64_t now)
{
        if (c->state == HTTP_CONN_DEAD)
                return;
        /* A peer that takes nothing would make the kernel keep its bytes for minutes. */
        c->reset |= http_conn_stalled(c, now);
        if (c->broken || c->reset ||
            (c->state == HTTP_CONN_WORK && !c->reading && hung_up(c))) {
                http_conn_gone(c);
                return;
        }
        if (c->deadline == 0 || now < c->deadline || c->writing)
                return;
        if (c->state == HTTP_CONN_WORK)
                http_conn_refuse(c, 408, "The request body came too slowly.", NULL);
        else if (c->state == HTTP_CONN_HEAD && c->head.len)
                http_conn_refuse(c, 408, "The request head came too slowly.", NULL);
        else
                /* Nothing was asked: a 408 here could be taken for the answer to a
                 * request that is just being sent. */
                http_conn_destroy(c);
}
