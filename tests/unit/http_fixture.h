/* For the tests of src/http: a real server on 127.0.0.1 in a thread of its own, and raw
 * sockets to talk to it, so that tests send exactly the bytes they mean. The handler is
 * steered by the path. Waits are bounded by WAIT_MS and end as soon as they can. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"
#include "http/http.h"

#define WAIT_MS 10000

struct fixture {
        uv_loop_t loop;
        uv_thread_t thread;
        uv_async_t call; /* runs what the test asks for on the loop's thread */
        uv_timer_t timer;
        struct http_server *server;
        uint16_t port;
        void (*job)(struct fixture *f);
        atomic_int requests, done, gone, drained, piece_bytes, ended, drains, last_status, jobs;
        atomic_int header_results;
        atomic_int paused_now;
        atomic_ullong last_sent;
        struct http_req *held; /* loop thread only */
        size_t left;           /* of a long answer */
};

static struct fixture *fix;

static const struct http_limits fix_limits = {
        .head_bytes = 4096,
        .header_count = 16,
        .connections = 64,
        .head_timeout_ms = 60000,
        .idle_timeout_ms = 60000,
        .body_timeout_ms = 60000,
        .write_timeout_ms = 60000,
};

/* --- handlers --------------------------------------------------------------------- */

static inline void fix_gone(struct http_req *req, void *user)
{
        (void)user;
        if (fix->held == req)
                fix->held = NULL;
        http_reply(req, 200, "text/plain", "too late", 8); /* must do nothing */
        fix->gone++;
}

static inline void fix_echo(struct http_req *req, struct str body, void *user)
{
        (void)user;
        http_reply(req, 200, "application/octet-stream", body.p, body.n);
}

static inline void fix_count_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        (void)user;
        fix->piece_bytes += (int)n;
        if (p)
                return;
        fix->ended++;
        char text[32];
        int len = snprintf(text, sizeof text, "%d", (int)fix->piece_bytes);
        http_reply(req, 200, "text/plain", text, (size_t)len);
}

static inline void fix_pause_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        (void)user;
        fix->piece_bytes += (int)n;
        if (!p) {
                fix->ended++;
                http_reply(req, 200, "text/plain", "whole", 5);
                return;
        }
        http_pause_body(req);
        fix->held = req;
        fix->paused_now = 1;
}

/* Answers in the middle of the body. */
static inline void fix_early_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        (void)p;
        (void)n;
        (void)user;
        http_reply(req, 200, "text/plain", "enough", 6);
}

static inline void fix_abort_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        volatile char sum = 0;
        (void)user;
        http_abort(req);
        for (size_t i = 0; i < n; i++) /* the piece outlives the request */
                sum = (char)(sum + p[i]);
        (void)sum;
}

static inline void fix_produce(struct http_req *req, void *user)
{
        static char block[65536];
        (void)user;
        memset(block, 'x', sizeof block);
        fix->drains++;
        while (fix->left) {
                size_t n = fix->left < sizeof block ? fix->left : sizeof block;
                fix->left -= n;
                if (http_write(req, block, n) > 256 * 1024)
                        return;
        }
        fix->held = NULL;
        http_end(req);
}

static inline void fix_later(uv_timer_t *t)
{
        (void)t;
        struct http_req *req = fix->held;
        fix->held = NULL;
        if (req)
                http_reply(req, 200, "text/plain", "later", 5);
}

static inline void fix_headers(struct http_req *req)
{
        int r = 0;
        r |= (http_add_header(req, "X-Good", "fine") == 0) << 0;
        r |= (http_add_header(req, "X-Bad", "a\r\nSet-Cookie: evil") == -EINVAL) << 1;
        r |= (http_add_header(req, "X-Bad", "a\nb") == -EINVAL) << 2;
        r |= (http_add_header(req, "X-Bad\r\nX-Evil", "a") == -EINVAL) << 3;
        r |= (http_add_header(req, "", "a") == -EINVAL) << 4;
        r |= (http_add_header(req, "Content-Length", "5") == -EINVAL) << 5;
        r |= (http_add_header(req, "transfer-encoding", "chunked") == -EINVAL) << 6;
        fix->header_results = r;
        http_reply(req, 200, "text/plain\r\nX-Evil: 1", "ok", 2);
}

static inline void fix_describe(struct http_req *req)
{
        struct buf b = { 0 };
        struct str path = http_path(req), query = http_query(req), v = { "", 0 };
        int r = http_query_get(req, "name", &v);
        buf_addf(&b, "%s %.*s q=%.*s name=%d:%.*s peer=%s len=%lld host=%u id=%s", http_method_name(req),
                 (int)path.n, path.p, (int)query.n, query.n ? query.p : "", r, (int)v.n, v.p,
                 strncmp(http_peer(req), "127.0.0.1:", 10) == 0 ? "v4" : http_peer(req),
                 (long long)http_content_length(req), http_header_count(req, "HOST"),
                 http_request_id(req));
        http_reply_buf(req, 200, "text/plain", &b);
}

static inline void fix_stream_answer(struct http_req *req)
{
        http_start(req, 200, "text/plain");
        (void)http_write(req, "one ", 4);
        (void)http_write(req, "", 0);
        (void)http_write(req, "two", 3);
        http_end(req);
}

static inline void fix_big_buf(struct http_req *req)
{
        struct buf b = { 0 };
        if (buf_reserve(&b, 8u << 20)) {
                memset(b.data, 'y', 8u << 20);
                b.len = 8u << 20;
        }
        http_reply_buf(req, 200, "text/plain", &b);
}

static inline void fix_hold(struct http_req *req)
{
        http_on_gone(req, fix_gone);
        fix->held = req;
}

static inline void fix_request(struct http_req *req, void *user)
{
        struct str path = http_path(req);
        (void)user;
        fix->requests++;
        if (str_eq(path, "/echo")) {
                http_on_gone(req, fix_gone);
                http_collect_body(req, 1000000, fix_echo);
        } else if (str_eq(path, "/count")) {
                http_on_gone(req, fix_gone);
                http_stream_body(req, 50000000, fix_count_piece);
        } else if (str_eq(path, "/pause")) {
                http_on_gone(req, fix_gone);
                http_stream_body(req, 0, fix_pause_piece);
        } else if (str_eq(path, "/early")) {
                http_stream_body(req, 0, fix_early_piece);
        } else if (str_eq(path, "/abort-piece")) {
                http_stream_body(req, 0, fix_abort_piece);
        } else if (str_eq(path, "/hold")) {
                fix_hold(req);
        } else if (str_eq(path, "/later")) {
                fix_hold(req);
                (void)uv_timer_start(&fix->timer, fix_later, 20, 0);
        } else if (str_eq(path, "/stream")) {
                fix_stream_answer(req);
        } else if (str_eq(path, "/cut")) {
                http_start(req, 200, "text/plain");
                (void)http_write(req, "part", 4);
                http_abort(req);
        } else if (str_eq(path, "/long")) {
                fix_hold(req);
                fix->left = 16u << 20;
                http_on_drain(req, fix_produce);
                http_start(req, 200, "application/octet-stream");
                fix_produce(req, NULL);
        } else if (str_eq(path, "/bigbuf")) {
                fix_big_buf(req);
        } else if (str_eq(path, "/headers")) {
                fix_headers(req);
        } else if (str_eq(path, "/none")) {
                http_reply(req, 204, NULL, NULL, 0);
        } else {
                fix_describe(req);
        }
}

static inline void fix_done(struct http_req *req, int status, uint64_t bytes, uint64_t ns, void *user)
{
        (void)user;
        (void)http_path(req);
        (void)http_request_id(req);
        CHECK(ns < 60000000000ull);
        fix->last_status = status;
        fix->last_sent = bytes;
        fix->done++;
}

static inline const char *fix_refuse(int status, const char *sentence, struct str path, struct buf *body,
                                     void *user)
{
        (void)path;
        (void)user;
        buf_addf(body, "{\"code\":%d,\"error\":\"%s\"}", status, sentence);
        return "application/json";
}

static const struct http_callbacks fix_callbacks = {
        .on_request = fix_request,
        .on_done = fix_done,
        .on_refuse = fix_refuse,
};

/* --- the server ------------------------------------------------------------------- */

static inline void fix_run_job(uv_async_t *a)
{
        (void)a;
        void (*job)(struct fixture *f) = fix->job;
        fix->job = NULL;
        if (job)
                job(fix);
        fix->jobs++;
}

static inline void fix_main(void *arg)
{
        (void)arg;
        (void)uv_run(&fix->loop, UV_RUN_DEFAULT);
}

static inline int fix_listen(uint16_t *ret_port)
{
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 || listen(fd, 128) < 0 ||
            getsockname(fd, (struct sockaddr *)&a, &n) < 0)
                abort();
        *ret_port = ntohs(a.sin_port);
        return fd;
}

static inline void fix_start(const struct http_limits *limits)
{
        struct err e = { 0 };
        (void)signal(SIGPIPE, SIG_IGN);
        fix = calloc(1, sizeof *fix);
        if (!fix || uv_loop_init(&fix->loop) < 0)
                abort();
        (void)uv_async_init(&fix->loop, &fix->call, fix_run_job);
        (void)uv_timer_init(&fix->loop, &fix->timer);
        int fd = fix_listen(&fix->port);
        if (http_server_new(&fix->loop, fd, limits, &fix_callbacks, NULL, &fix->server, &e) < 0)
                abort();
        if (uv_thread_create(&fix->thread, fix_main, NULL) < 0)
                abort();
}

static inline bool fix_wait(atomic_int *v, int least)
{
        for (int i = 0; i < WAIT_MS; i++) {
                if (*v >= least)
                        return true;
                (void)usleep(1000);
        }
        return false;
}

/* Runs job on the loop's thread and waits for it. */
static inline void fix_call(void (*job)(struct fixture *f))
{
        int before = fix->jobs;
        fix->job = job;
        (void)uv_async_send(&fix->call);
        CHECK(fix_wait(&fix->jobs, before + 1));
}

static inline void fix_server_closed(void *user)
{
        (void)user;
        uv_close((uv_handle_t *)&fix->call, NULL);
        uv_close((uv_handle_t *)&fix->timer, NULL);
}

static inline void fix_close_job(struct fixture *f)
{
        http_server_close(f->server, fix_server_closed, NULL);
}

static inline void fix_stop(void)
{
        fix_call(fix_close_job);
        (void)uv_thread_join(&fix->thread);
        CHECK_INT(uv_loop_close(&fix->loop), 0); /* not one handle is left */
        CHECK_INT(fix->requests <= fix->done, 1);
        free(fix);
        fix = NULL;
}

/* --- the client ------------------------------------------------------------------- */

static inline int dial(void)
{
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons(fix->port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
                abort();
        return fd;
}

static inline bool ready(int fd, short events)
{
        struct pollfd p = { .fd = fd, .events = events };
        return poll(&p, 1, WAIT_MS) == 1;
}

/* False when the server has closed before everything was sent. */
static inline bool say_n(int fd, const char *p, size_t n)
{
        while (n) {
                ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
                if (k <= 0)
                        return false;
                p += k;
                n -= (size_t)k;
        }
        return true;
}

static inline bool say(int fd, const char *s)
{
        return say_n(fd, s, strlen(s));
}

static char heard[1 << 20];
static bool heard_reset;

/* Everything until the server closes. */
static inline const char *hear_all(int fd)
{
        size_t n = 0;
        heard_reset = false;
        for (;;) {
                if (!ready(fd, POLLIN)) {
                        printf("the server neither answers nor closes\n");
                        check_failures++;
                        break;
                }
                ssize_t k = recv(fd, heard + n, sizeof heard - 1 - n, 0);
                heard_reset = k < 0;
                if (k <= 0)
                        break;
                n += (size_t)k;
        }
        heard[n] = '\0';
        return heard;
}

/* Until what was heard ends in tail. */
static inline const char *hear_until(int fd, const char *tail)
{
        size_t n = 0, t = strlen(tail);
        heard[0] = '\0';
        while (n < t || strcmp(heard + n - t, tail) != 0) {
                ssize_t k = ready(fd, POLLIN) ? recv(fd, heard + n, 1, 0) : 0;
                if (k <= 0) {
                        printf("expected \"%s\", got \"%s\"\n", tail, heard);
                        check_failures++;
                        break;
                }
                heard[++n] = '\0';
                heard[n] = '\0';
        }
        return heard;
}

static inline int status_of(const char *answer)
{
        return strncmp(answer, "HTTP/1.1 ", 9) == 0 ? atoi(answer + 9) : -1;
}

/* Sends the bytes, hears everything, returns the status (-1: no answer). */
static inline int ask_n(const char *p, size_t n)
{
        int fd = dial();
        (void)say_n(fd, p, n);
        int status = status_of(hear_all(fd));
        (void)close(fd);
        return status;
}

static inline int ask(const char *s)
{
        return ask_n(s, strlen(s));
}

static inline const char *body_of(const char *answer)
{
        const char *p = strstr(answer, "\r\n\r\n");
        return p ? p + 4 : "";
}
