/* What the tests of the exec and files handlers share: the whole way from a client's socket
 * through src/http to a fake agent and a fake keeper, all in this thread, so that every byte
 * is sent when the test means it. */
#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/api.h"
#include "base/log.h"
#include "check.h"
#include "engine/link.h"
#include "wire/fdpass.h"
#include "wire/frame.h"

static char dir[] = "/tmp/cloche-test-nox-XXXXXX";
static uv_loop_t loop;
static struct config config;
static struct boxes boxes;
static struct engine *engine;
static struct api api;
static struct box *box; /* "b", running */
static int listener = -1, keeper = -1;

struct client {
        int fd;
        bool closed; /* by the server */
        struct buf heard;
};

struct agent {
        int fd;
        struct buf in; /* what came and was not taken yet */
};

/* --- both ends ------------------------------------------------------------------------ */

static inline void hear(int fd, struct buf *b, bool *ret_closed)
{
        char piece[65536];
        ssize_t n;
        while ((n = recv(fd, piece, sizeof piece, MSG_DONTWAIT)) > 0)
                buf_add(b, piece, (size_t)n);
        *ret_closed = n == 0 || (errno != EAGAIN && errno != EINTR);
}

/* Until nothing happens any more. */
static inline void turn(void)
{
        for (int i = 0; i < 20; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static inline void say_all(int fd, const char *p, size_t n)
{
        for (unsigned idle = 0; n && idle < 100; turn()) {
                ssize_t w = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
                size_t went = w > 0 ? (size_t)w : 0;
                p += went;
                n -= went;
                idle = went ? 0 : idle + 1;
        }
        CHECK_INT(n, 0); /* the server reads */
}

static inline int dial(const char *path)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
                abort();
        return fd;
}

static inline int listening(const char *path)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 8) < 0)
                abort();
        return fd;
}

/* --- the client ----------------------------------------------------------------------- */

static inline struct client client_new(void)
{
        return (struct client){ .fd = dial("http.sock") };
}

static inline void client_say(struct client *c, const void *p, size_t n)
{
        CHECK_INT(send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT), (ssize_t)n);
        turn();
}

static inline const char *client_hear(struct client *c)
{
        turn();
        hear(c->fd, &c->heard, &c->closed);
        return buf_cstr(&c->heard);
}

static inline void client_ask(struct client *c, const char *line, const char *body, size_t n)
{
        _cleanup_buf_ struct buf b = { 0 };
        (void)client_hear(c);
        buf_free(&c->heard); /* the last answer */
        buf_addf(&b, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", line, n);
        buf_add(&b, body, n);
        say_all(c->fd, b.data, b.len);
}

/* Also waits for timers: for what comes at its own time. */
static inline void client_await(struct client *c)
{
        while (hear(c->fd, &c->heard, &c->closed), !c->heard.len && !c->closed)
                (void)uv_run(&loop, UV_RUN_ONCE);
}

/* The status, 0 while there is no answer. */
static inline int client_status(struct client *c)
{
        const char *text = client_hear(c);
        return strncmp(text, "HTTP/1.1 ", 9) == 0 ? atoi(text + 9) : 0;
}

static inline const char *client_body(struct client *c)
{
        const char *p = strstr(client_hear(c), "\r\n\r\n");
        return p ? p + 4 : "";
}

/* Takes the chunks of n bytes off. True when their end is there and nothing behind it. */
static inline bool unchunk(const char *p, size_t n, struct buf *out)
{
        const char *stop = p + n;
        while (p < stop) {
                char *data;
                size_t k = strtoul(p, &data, 16);
                if (strncmp(data, "\r\n", 2) != 0)
                        return false;
                data += 2;
                if (k == 0)
                        return strcmp(data, "\r\n") == 0;
                if (k + 2 > (size_t)(stop - data))
                        k = (size_t)(stop - data); /* cut */
                buf_add(out, data, k);
                p = data + k + 2;
        }
        return false;
}

/* An error with its sentence. */
static inline bool client_got(struct client *c, int status, const char *words)
{
        if (client_status(c) == status && strstr(client_body(c), words))
                return true;
        printf("not %d \"%s\" but: %s\n", status, words, client_hear(c));
        return false;
}

static inline void client_leave(struct client *c)
{
        if (c->fd >= 0)
                (void)close(c->fd);
        buf_free(&c->heard);
        *c = (struct client){ .fd = -1 };
        turn();
}

/* --- the agent ------------------------------------------------------------------------- */

/* fd -1: nobody called. */
static inline struct agent agent_accept(void)
{
        turn();
        return (struct agent){ .fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) };
}

/* The next frame from the server, FRAME_NONE when there is none. Valid until the next call. */
static inline struct frame agent_take(struct agent *a, size_t *used)
{
        struct frame f = { 0 };
        bool closed;
        buf_consume(&a->in, *used);
        *used = 0;
        turn();
        hear(a->fd, &a->in, &closed);
        if (!a->in.len || frame_take(a->in.data, a->in.len, &f, used) != 1)
                f.type = FRAME_NONE;
        return f;
}

static inline bool agent_is_left(struct agent *a)
{
        bool closed;
        turn();
        hear(a->fd, &a->in, &closed);
        return closed;
}

static inline void agent_say_bytes(struct agent *a, const void *p, size_t n)
{
        say_all(a->fd, p, n);
}

static inline void agent_say(struct agent *a, enum frame_type type, const void *p, size_t n)
{
        _cleanup_buf_ struct buf b = { 0 };
        frame_add(&b, type, p, n);
        agent_say_bytes(a, b.data, b.len);
}

static inline void agent_fail(struct agent *a, int code, enum err_blame blame, const char *msg)
{
        _cleanup_buf_ struct buf b = { 0 };
        field_add_u64(&b, FIELD_CODE, (uint64_t)code);
        field_add_u64(&b, FIELD_BLAME, blame);
        field_add_str(&b, FIELD_MESSAGE, msg);
        agent_say(a, FRAME_FAIL, b.data, b.len);
}

static inline void agent_leave(struct agent *a)
{
        if (a->fd >= 0)
                (void)close(a->fd);
        buf_free(&a->in);
        *a = (struct agent){ .fd = -1 };
        turn();
}

/* --- begin and end ----------------------------------------------------------------------- */

/* Whoever waits for the sandbox goes on, as after a transition. */
static inline void wake_waiters(void)
{
        for (struct box_waiter *w; (w = box->waiters);) {
                box->waiters = w->next;
                w->fn(box, w->user);
                free(w);
        }
        turn();
}

static inline void bed_begin(void)
{
        static const struct http_limits limits = { .head_bytes = 65536, .header_count = 16, .connections = 16 };
        static const struct http_callbacks callbacks = { api_on_request, NULL, api_on_refuse };
        static const struct boxes_config bc = { .max_boxes = 1 };
        struct keeper_reply hello = { .op = KEEPER_READY }, got;
        struct err e = { 0 };
        int sv[2];
        (void)signal(SIGPIPE, SIG_IGN);
        log_setup(LOG_ERROR, false, "test");
        if (!mkdtemp(dir) || chdir(dir) < 0 || uv_loop_init(&loop) < 0 ||
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
                abort();
        keeper = sv[1];
        listener = listening("sbx-b.sock");
        if (fdpass_send(keeper, &hello, sizeof hello, -1) < 0 || engine_new(&loop, sv[0], &engine, &got, &e) < 0 ||
            boxes_init(&boxes, &loop, engine, NULL, &bc, &e) < 0)
                abort();
        config_init(&config);
        api = (struct api){ .loop = &loop, .config = &config, .boxes = &boxes };
        if (http_server_new(&loop, listening("http.sock"), &limits, &callbacks, &api, &api.http, &e) < 0)
                abort();
        box = box_new(STR("b"));
        (void)snprintf(box->name, sizeof box->name, "sbx-b");
        box->state = BOX_RUNNING;
        box->slot = 7;
        box->expires_ms = INT64_MAX;
        registry_add(&boxes.registry, box);
}

/* Every handle and every reference must have come back. */
static inline void bed_end(void)
{
        link_close_parked();
        http_server_close(api.http, NULL, NULL);
        turn();
        CHECK_INT(box->refs, 1);
        CHECK_INT(box->execs, 0);
        boxes_free(&boxes);
        engine_close(engine);
        turn();
        CHECK_INT(uv_loop_close(&loop), 0);
        config_free(&config);
        (void)close(keeper);
        (void)close(listener);
        (void)unlink("http.sock");
        (void)unlink("sbx-b.sock");
        (void)rmdir(dir);
}
