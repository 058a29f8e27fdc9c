/* Body bytes on their way to the handler: framing, limits, back pressure. Pieces go
 * straight from the read buffer; only a collected body is copied, since handlers keep
 * it while they work. */
#include "http/http_internal.h"

#include "base/limits.h"

#define RESERVE_MAX (64 * 1024) /* believed of a Content-Length before bytes have come */

void http_body_begin(struct http_conn *c, const struct http_head *head)
{
        c->body_chunked = head->chunked;
        c->body_left = head->chunked ? 0 : (uint64_t)head->content_length;
        c->body_done = !head->chunked && c->body_left == 0;
        c->chunk = (struct http_chunk){ 0 };
        c->dropped = 0;
        c->awaits_100 = head->expect_continue && !c->body_done;
}

/* Takes framing off: the next piece of data at p, and how many bytes it cost. */
static int take_framed(struct http_conn *c, const char *p, size_t n, struct str *ret,
                       size_t *ret_used)
{
        if (!c->body_chunked) {
                size_t take = n < c->body_left ? n : (size_t)c->body_left;
                c->body_left -= take;
                c->body_done = c->body_left == 0;
                *ret = (struct str){ p, take };
                *ret_used = take;
                return 0;
        }
        ssize_t used = http_chunk_take(&c->chunk, p, n, ret);
        if (used < 0)
                return -1;
        c->body_done = c->chunk.state == HTTP_CHUNK_DONE;
        *ret_used = (size_t)used;
        return 0;
}

static void deliver(struct http_req *req, struct str piece)
{
        struct http_server *s = req->conn->server;
        if (piece.n == 0)
                return;
        req->body_seen += piece.n;
        bool bounded = req->mode == HTTP_BODY_COLLECT || req->body_max;
        if (bounded && req->body_seen > req->body_max) {
                req->too_large = true;
                return;
        }
        if (req->mode == HTTP_BODY_STREAM) {
                req->on_piece(req, piece.p, piece.n, s->user);
                return;
        }
        if (!req->body.data && req->head.content_length > 0 &&
            req->head.content_length <= RESERVE_MAX)
                (void)buf_reserve(&req->body, (size_t)req->head.content_length + 1);
        buf_add(&req->body, piece.p, piece.n);
}

static void deliver_end(struct http_req *req)
{
        struct http_server *s = req->conn->server;
        req->body_told = true;
        if (req->mode == HTTP_BODY_STREAM)
                req->on_piece(req, NULL, 0, s->user);
        else
                req->on_body(req, (struct str){ req->body.data, req->body.len }, s->user);
}

bool http_body_step(struct http_conn *c, const char *p, size_t n, size_t *ret_used)
{
        struct http_req *req = c->req;
        *ret_used = 0;
        if (req->too_large) {
                http_conn_refuse(c, 413, "The request body is too large.", NULL);
                return true;
        }
        if (!buf_ok(&req->body)) {
                http_conn_refuse(c, 503, "There is no memory for the request body.", NULL);
                return true;
        }
        if (req->mode == HTTP_BODY_UNASKED || req->paused || req->body_told)
                return false;
        if (c->body_done) {
                deliver_end(req);
                return true;
        }
        if (n == 0)
                return false;
        struct str piece;
        if (take_framed(c, p, n, &piece, ret_used) < 0) {
                http_conn_refuse(c, 400, "The chunked body is malformed.", NULL);
                return true;
        }
        deliver(req, piece);
        return true;
}

bool http_body_drop_step(struct http_conn *c, const char *p, size_t n, size_t *ret_used)
{
        struct str piece;
        *ret_used = 0;
        if (c->body_done || n == 0)
                return false;
        if (take_framed(c, p, n, &piece, ret_used) < 0) {
                http_conn_finish(c, true);
                return true;
        }
        c->dropped += *ret_used;
        if (!c->body_done && c->dropped > LIMIT_DISCARD_BODY_BYTES)
                http_conn_finish(c, true);
        return true;
}

bool http_body_too_long_to_drop(const struct http_conn *c)
{
        /* Who waits for "100 Continue" may send the body or not: nobody can tell what
         * the next bytes would be. */
        return !c->body_done && (c->awaits_100 || c->body_left > LIMIT_DISCARD_BODY_BYTES);
}

/* The handler wants the body: a client that waits for the word gets it, unless it has
 * gone ahead, or the body is refused anyway, or a final answer has begun. */
static void ask_for_body(struct http_req *req)
{
        static const char go[] = "HTTP/1.1 100 Continue\r\n\r\n";
        struct http_conn *c = req->conn;
        bool bounded = req->mode == HTTP_BODY_COLLECT || req->body_max;
        if (bounded && req->head.content_length > 0 &&
            (uint64_t)req->head.content_length > req->body_max)
                req->too_large = true;
        if (c->awaits_100 && !req->too_large && !req->started) {
                c->awaits_100 = false;
                if (c->in.len == 0) {
                        uv_buf_t b = http_span(go, sizeof go - 1);
                        http_conn_write(c, &b, 1, NULL);
                }
        }
        http_conn_kick(c);
}

void http_collect_body(struct http_req *req, size_t max,
                       void (*on_body)(struct http_req *req, struct str body, void *user))
{
        if (req->over || req->mode != HTTP_BODY_UNASKED)
                return;
        req->mode = HTTP_BODY_COLLECT;
        req->body_max = max;
        req->on_body = on_body;
        ask_for_body(req);
}

void http_stream_body(struct http_req *req, uint64_t max,
                      void (*on_piece)(struct http_req *req, const char *p, size_t n, void *user))
{
        if (req->over || req->mode != HTTP_BODY_UNASKED)
                return;
        req->mode = HTTP_BODY_STREAM;
        req->body_max = max;
        req->on_piece = on_piece;
        ask_for_body(req);
}

void http_pause_body(struct http_req *req)
{
        if (req->over)
                return;
        req->paused = true;
        http_conn_settle(req->conn);
}

void http_resume_body(struct http_req *req)
{
        if (req->over || !req->paused)
                return;
        req->paused = false;
        http_conn_kick(req->conn);
}
