/* Answers: their heads, their framing, their end. */
#include "http/http_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/now.h"

static const struct {
        int status;
        const char *reason;
} reasons[] = {
        { 200, "OK" },
        { 201, "Created" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 206, "Partial Content" },
        { 301, "Moved Permanently" },
        { 302, "Found" },
        { 303, "See Other" },
        { 304, "Not Modified" },
        { 307, "Temporary Redirect" },
        { 308, "Permanent Redirect" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 406, "Not Acceptable" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 410, "Gone" },
        { 411, "Length Required" },
        { 412, "Precondition Failed" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 416, "Range Not Satisfiable" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 423, "Locked" },
        { 425, "Too Early" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 502, "Bad Gateway" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
        { 507, "Insufficient Storage" },
};

static const char *reason_of(int status)
{
        for (size_t i = 0; i < ARRAY_SIZE(reasons); i++)
                if (reasons[i].status == status)
                        return reasons[i].reason;
        return "Unknown";
}

/* No control bytes: a CR LF in an echoed name would end the header and start the
 * attacker's own, or a whole second answer. */
static bool is_plain(const char *s)
{
        for (; *s; s++)
                if ((unsigned char)*s < 0x20 || *s == 0x7f)
                        return false;
        return true;
}

int http_add_header(struct http_req *req, const char *name, const char *value)
{
        /* Ours: two opinions about the length of an answer are one too many. */
        static const char *const ours[] = { "Connection", "Content-Length", "Content-Type",
                                            "Date", "Transfer-Encoding", "X-Request-ID" };
        if (req->over || req->started || !http_is_token(str_c(name)) || !is_plain(value))
                return -EINVAL;
        for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
                if (str_eq_fold(str_c(name), ours[i]))
                        return -EINVAL;
        buf_adds(&req->extra, name);
        buf_add(&req->extra, ": ", 2);
        buf_adds(&req->extra, value);
        buf_add(&req->extra, "\r\n", 2);
        return buf_ok(&req->extra) ? 0 : -ENOMEM;
}

/* The Date line, made once a second. Names are spelled out: strftime() asks the locale. */
static const char *date_line(struct http_server *s)
{
        static const char days[7][4] = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" };
        static const char months[12][4] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
        int64_t second = now_wall_ms() / 1000;
        if (second == s->date_second)
                return s->date;
        time_t t = (time_t)second;
        struct tm tm;
        s->date[0] = '\0';
        if (gmtime_r(&t, &tm))
                (void)snprintf(s->date, sizeof s->date,
                               "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n",
                               days[tm.tm_wday], tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900,
                               tm.tm_hour, tm.tm_min, tm.tm_sec);
        s->date_second = second;
        return s->date;
}

static void add_number(struct buf *b, uint64_t v)
{
        char digits[20];
        size_t at = sizeof digits;
        do {
                digits[--at] = (char)('0' + v % 10);
                v /= 10;
        } while (v);
        buf_add(b, digits + at, sizeof digits - at);
}

#define LENGTH_CHUNKED (-1)
#define LENGTH_UNTIL_CLOSE (-2)

/* The head of the answer, in the server's scratch buffer. */
static struct buf *make_head(struct http_req *req, const char *type, int64_t length)
{
        struct http_server *s = req->conn->server;
        struct buf *b = &s->scratch;
        b->len = 0;
        buf_add(b, "HTTP/1.1 ", 9);
        add_number(b, (uint64_t)req->status);
        buf_addc(b, ' ');
        buf_adds(b, reason_of(req->status));
        buf_add(b, "\r\n", 2);
        buf_adds(b, date_line(s));
        if (type) {
                buf_adds(b, "Content-Type: ");
                buf_adds(b, is_plain(type) ? type : "application/octet-stream");
                buf_add(b, "\r\n", 2);
        }
        if (length >= 0 && req->status != 204 && req->status != 304) {
                buf_adds(b, "Content-Length: ");
                add_number(b, (uint64_t)length);
                buf_add(b, "\r\n", 2);
        } else if (length == LENGTH_CHUNKED && req->status != 204 && req->status != 304) {
                buf_adds(b, "Transfer-Encoding: chunked\r\n");
        }
        buf_adds(b, "X-Request-ID: ");
        buf_adds(b, req->id);
        buf_add(b, "\r\n", 2);
        if (!req->conn->keep)
                buf_adds(b, "Connection: close\r\n");
        else if (req->head.http_1_0)
                buf_adds(b, "Connection: keep-alive\r\n");
        buf_add(b, req->extra.data, req->extra.len);
        buf_add(b, "\r\n", 2);
        return b;
}

/* May another request follow this answer? */
static bool may_keep(const struct http_req *req)
{
        const struct http_conn *c = req->conn;
        return req->head.keep_alive && !c->eof && !c->server->draining && !c->server->closing &&
               !http_body_too_long_to_drop(c);
}

static void set_status(struct http_req *req, int status)
{
        assert(status >= 200 && status <= 599);
        req->status = status;
        req->bodiless = req->head.method_id == HTTP_M_HEAD || status == 204 || status == 304;
}

/* Head and body in one write; own as in http_conn_write(). */
static void write_whole(struct http_req *req, const char *type, const void *body, size_t n,
                        struct buf *own)
{
        struct http_server *s = req->conn->server;
        struct buf *head = make_head(req, type, (int64_t)n);
        if (!buf_ok(head)) { /* no memory for the head: an answer without one would be a lie */
                buf_free(&s->scratch);
                req->conn->keep = false;
                req->status = 0;
                if (own)
                        buf_free(own);
                return;
        }
        uv_buf_t bufs[2] = {
                http_span(head->data, head->len),
                http_span(body, n),
        };
        bool with_body = n > 0 && !req->bodiless;
        req->sent = with_body ? n : 0;
        http_conn_write(req->conn, bufs, with_body ? 2 : 1, with_body ? own : NULL);
        if (own)
                buf_free(own);
}

/* The request's last word is queued. */
static void end_request(struct http_req *req)
{
        struct http_conn *c = req->conn;
        c->req = NULL;
        http_req_done(req);
        http_conn_answered(c);
}

static void reply(struct http_req *req, int status, const char *type, const void *body, size_t n,
                  struct buf *own)
{
        if (req->over || req->started) {
                if (own)
                        buf_free(own);
                http_abort(req); /* half an answer is out: this one cannot follow it */
                return;
        }
        set_status(req, status);
        req->conn->keep = may_keep(req);
        write_whole(req, type, body, n, own);
        end_request(req);
}

void http_reply(struct http_req *req, int status, const char *type, const void *body, size_t n)
{
        reply(req, status, type, body, n, NULL);
}

void http_reply_buf(struct http_req *req, int status, const char *type, struct buf *body)
{
        if (!buf_ok(body)) {
                buf_free(body);
                reply(req, 503, NULL, NULL, 0, NULL);
                return;
        }
        reply(req, status, type, body->data, body->len, body);
}

void http_start(struct http_req *req, int status, const char *type)
{
        if (req->over || req->started)
                return;
        struct http_conn *c = req->conn;
        set_status(req, status);
        req->chunked_answer = !req->head.http_1_0;
        c->keep = req->chunked_answer && may_keep(req);
        struct buf *head = make_head(req, type,
                                     req->chunked_answer ? LENGTH_CHUNKED : LENGTH_UNTIL_CLOSE);
        req->started = true;
        if (!buf_ok(head)) {
                buf_free(head);
                c->broken = true;
                http_server_defer(c->server, c);
                return;
        }
        uv_buf_t b = http_span(head->data, head->len);
        http_conn_write(c, &b, 1, NULL);
}

size_t http_write(struct http_req *req, const void *p, size_t n)
{
        struct http_conn *c = req->conn;
        if (req->over || !req->started)
                return 0;
        /* An empty chunk would end the answer. */
        if (n == 0 || req->bodiless)
                return http_conn_pending(c);
        char size[24];
        int digits = snprintf(size, sizeof size, "%zx\r\n", n);
        char crlf[] = "\r\n";
        uv_buf_t bufs[3] = {
                http_span(size, (size_t)digits),
                http_span(p, n),
                http_span(crlf, 2),
        };
        req->sent += n;
        if (req->chunked_answer)
                http_conn_write(c, bufs, 3, NULL);
        else
                http_conn_write(c, bufs + 1, 1, NULL);
        return http_conn_pending(c);
}

void http_end(struct http_req *req)
{
        char last[] = "0\r\n\r\n";
        if (req->over || !req->started)
                return;
        if (req->chunked_answer && !req->bodiless) {
                uv_buf_t b = http_span(last, sizeof last - 1);
                http_conn_write(req->conn, &b, 1, NULL);
        }
        end_request(req);
}

void http_abort(struct http_req *req)
{
        struct http_conn *c = req->conn;
        if (req->over)
                return;
        req->on_gone = NULL; /* the handler knows: it is its own doing */
        http_conn_gone(c);
}

void http_refusal_write(struct http_req *req, int status, const char *sentence, const char *headers)
{
        struct http_server *s = req->conn->server;
        struct buf body = { 0 };
        const char *type = NULL;
        set_status(req, status);
        buf_free(&req->extra);
        if (headers)
                buf_adds(&req->extra, headers);
        if (s->callbacks.on_refuse)
                type = s->callbacks.on_refuse(status, sentence, req->head.path, &body, s->user);
        if (!type || !buf_ok(&body)) {
                buf_free(&body);
                type = "text/plain; charset=utf-8";
                buf_adds(&body, sentence);
                buf_addc(&body, '\n');
        }
        write_whole(req, type, body.data, body.len, &body);
}
