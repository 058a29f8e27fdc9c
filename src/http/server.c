/* The server: listeners, the one coarse timer, work put off to the next turn, and the
 * two ways to end. */
#include "http/http_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/now.h"

#define BACKLOG 1024

/* --- time and deferred work ------------------------------------------------------- */

static void on_tick(uv_timer_t *t)
{
        struct http_server *s = t->data;
        uint64_t now = uv_now(s->loop);
        /* A tick may close connections, also others than its own through a handler, so
         * the list is walked from the front, each one moved to the back first. */
        unsigned n = s->conn_count + s->reject_count;
        for (struct http_conn *c; n > 0 && (c = TAILQ_FIRST(&s->conns)); n--) {
                TAILQ_REMOVE(&s->conns, c, link);
                TAILQ_INSERT_TAIL(&s->conns, c, link);
                http_conn_tick(c, now);
        }
}

/* Often enough for the shortest timeout to mean something. */
static uint64_t tick_ms(const struct http_limits *l)
{
        uint64_t all[] = { l->head_timeout_ms, l->idle_timeout_ms, l->body_timeout_ms,
                           l->write_timeout_ms };
        uint64_t ms = HTTP_TICK_MAX_MS;
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                if (all[i] && all[i] / 4 < ms)
                        ms = all[i] / 4;
        return ms < HTTP_TICK_MIN_MS ? HTTP_TICK_MIN_MS : ms;
}

static bool is_empty(const struct http_server *s)
{
        return TAILQ_EMPTY(&s->conns);
}

static void on_later(uv_idle_t *h)
{
        struct http_server *s = h->data;
        if (s->spare_fd < 0)
                s->spare_fd = eventfd(0, EFD_CLOEXEC);
        /* Those that are deferred again wait for the next turn: the loop polls between. */
        for (unsigned n = s->deferred_count; n > 0 && !TAILQ_EMPTY(&s->deferred); n--) {
                struct http_conn *c = TAILQ_FIRST(&s->deferred);
                TAILQ_REMOVE(&s->deferred, c, deferred_link);
                s->deferred_count--;
                c->deferred = false;
                http_conn_run(c);
        }
        if (s->draining && is_empty(s) && !s->closing && s->on_drained) {
                void (*on_drained)(void *user) = s->on_drained;
                s->on_drained = NULL;
                on_drained(s->drained_user);
        }
        if (TAILQ_EMPTY(&s->deferred))
                (void)uv_idle_stop(&s->later);
}

static void run_later(struct http_server *s)
{
        if (!s->closing)
                (void)uv_idle_start(&s->later, on_later);
}

void http_server_defer(struct http_server *s, struct http_conn *c)
{
        if (c->deferred || c->state == HTTP_CONN_DEAD)
                return;
        c->deferred = true;
        TAILQ_INSERT_TAIL(&s->deferred, c, deferred_link);
        s->deferred_count++;
        run_later(s);
}

/* --- connections ------------------------------------------------------------------ */

static void name_peer(struct http_conn *c, bool is_unix)
{
        struct sockaddr_storage a;
        int n = sizeof a;
        char ip[INET6_ADDRSTRLEN] = "";
        (void)snprintf(c->peer, sizeof c->peer, is_unix ? "unix" : "unknown");
        if (is_unix || uv_tcp_getpeername(&c->uv.tcp, (struct sockaddr *)&a, &n) < 0)
                return;
        if (a.ss_family == AF_INET) {
                const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
                (void)uv_ip4_name(v4, ip, sizeof ip);
                (void)snprintf(c->peer, sizeof c->peer, "%s:%u", ip, ntohs(v4->sin_port));
        } else if (a.ss_family == AF_INET6) {
                const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
                (void)uv_ip6_name(v6, ip, sizeof ip);
                (void)snprintf(c->peer, sizeof c->peer, "[%s]:%u", ip, ntohs(v6->sin6_port));
        }
}

void http_server_adopt(struct http_conn *c)
{
        struct http_server *s = c->server;
        c->reject = s->conn_count >= s->limits.connections;
        if (c->reject)
                s->reject_count++;
        else
                s->conn_count++;
        TAILQ_INSERT_TAIL(&s->conns, c, link);
        if (!uv_is_active((uv_handle_t *)&s->tick)) {
                uint64_t ms = tick_ms(&s->limits);
                (void)uv_timer_start(&s->tick, on_tick, ms, ms);
        }
}

static void accept_one(struct http_listener *l)
{
        struct http_server *s = l->server;
        struct http_conn *c = http_conn_new(s, l->is_unix);
        /* Without memory the connection is left where it is: libuv stops polling the
         * listener until it is taken, which is tried when another one has left. */
        l->stuck = c == NULL;
        if (!c)
                return;
        http_server_adopt(c);
        if (uv_accept(&l->uv.stream, &c->uv.stream) < 0 || s->reject_count > HTTP_REJECTS) {
                http_conn_destroy(c);
                return;
        }
        if (!l->is_unix)
                (void)uv_tcp_nodelay(&c->uv.tcp, 1);
        name_peer(c, l->is_unix);
        if (c->reject)
                http_conn_refuse(c, 503, "The server has too many connections.",
                                 "Retry-After: 1\r\n");
        else
                http_conn_begin(c);
}

/* Out of file descriptors. libuv calls us again and again without ever turning the loop
 * until the queue is empty. Its own spare descriptor (an open "/") cannot be had again
 * once files are locked down, so we hold one: given up, it lets us take the waiting
 * connections and close them. */
static void drop_waiting(struct http_listener *l)
{
        uv_os_fd_t fd;
        if (uv_fileno(&l->uv.handle, &fd) < 0)
                return;
        /* Somebody else may have taken the place of the spare: then one of ours must go, for
         * libuv would not leave its loop otherwise. */
        struct http_conn *victim = TAILQ_FIRST(&l->server->conns), *c2;
        TAILQ_FOREACH(c2, &l->server->conns, link)
                if (!c2->req) { /* rather an idle one than one whose command runs */
                        victim = c2;
                        break;
                }
        if (l->server->spare_fd >= 0)
                close_fd(&l->server->spare_fd);
        else if (victim)
                http_conn_gone(victim);
        for (int c; (c = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == EINTR || errno == ECONNABORTED;)
                if (c >= 0)
                        (void)close(c);
        /* Not taken again at once: accept asks for a descriptor before it looks at the queue,
         * so with none free libuv would never see EAGAIN. on_later does it. */
        run_later(l->server);
}

static void on_connection(uv_stream_t *stream, int status)
{
        struct http_listener *l = stream->data;
        if (status == 0)
                accept_one(l);
        else if (status == UV_EMFILE || status == UV_ENFILE)
                drop_waiting(l);
}

void http_server_conn_left(struct http_server *s)
{
        if (is_empty(s)) {
                (void)uv_timer_stop(&s->tick);
                if (s->draining)
                        run_later(s);
        }
        for (struct http_listener *l = s->listeners; l && !s->closing; l = l->next)
                if (l->stuck)
                        accept_one(l);
}

unsigned http_server_connections(const struct http_server *s)
{
        return s->conn_count;
}

/* --- listeners -------------------------------------------------------------------- */

static void on_listener_closed(uv_handle_t *h)
{
        struct http_listener *l = h->data;
        struct http_server *s = l->server;
        free(l);
        http_server_release(s);
}

static void close_listeners(struct http_server *s)
{
        while (s->listeners) {
                struct http_listener *l = s->listeners;
                s->listeners = l->next;
                uv_close(&l->uv.handle, on_listener_closed);
        }
}

static int open_listener(struct http_listener *l, int fd)
{
        int r = l->is_unix ? uv_pipe_init(l->server->loop, &l->uv.pipe, 0)
                           : uv_tcp_init(l->server->loop, &l->uv.tcp);
        if (r < 0)
                return r;
        l->uv.handle.data = l;
        l->server->handles++;
        /* libuv owns what it has opened, and the caller keeps his until all is well. */
        _cleanup_close_ int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        r = own < 0 ? -errno
            : l->is_unix ? uv_pipe_open(&l->uv.pipe, own) : uv_tcp_open(&l->uv.tcp, own);
        if (r == 0)
                (void)steal_fd(&own);
        if (r == 0)
                r = uv_listen(&l->uv.stream, BACKLOG, on_connection);
        if (r < 0) {
                uv_close(&l->uv.handle, on_listener_closed);
                return r;
        }
        return 1;
}

int http_server_add_listener(struct http_server *s, int listen_fd, struct err *e)
{
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        if (getsockname(listen_fd, (struct sockaddr *)&a, &n) < 0)
                return fail_host(e, -errno, "cannot use the listening socket: %s", strerror(errno));
        struct http_listener *l = calloc(1, sizeof *l);
        if (!l)
                return fail_host(e, -ENOMEM, "no memory for a listener");
        l->server = s;
        l->is_unix = a.ss_family == AF_UNIX;
        unsigned before = s->handles;
        int r = open_listener(l, listen_fd);
        if (r <= 0) {
                if (s->handles == before) /* else its close callback frees it */
                        free(l);
                return fail_host(e, r, "cannot listen: %s", uv_strerror(r));
        }
        (void)close(listen_fd);
        l->next = s->listeners;
        s->listeners = l;
        return 0;
}

/* --- the whole -------------------------------------------------------------------- */

struct http_server *http_server_alloc(uv_loop_t *loop, const struct http_limits *limits,
                                      const struct http_callbacks *callbacks, void *user)
{
        struct http_server *s = calloc(1, sizeof *s);
        char *read_buf = malloc(HTTP_READ_BYTES);
        if (!s || !read_buf) {
                free(read_buf);
                free(s);
                return NULL;
        }
        s->loop = loop;
        s->spare_fd = eventfd(0, EFD_CLOEXEC);
        s->limits = *limits;
        s->callbacks = *callbacks;
        s->user = user;
        s->read_buf = read_buf;
        TAILQ_INIT(&s->conns);
        TAILQ_INIT(&s->deferred);
        if (getrandom(&s->id_seed, sizeof s->id_seed, GRND_NONBLOCK) != sizeof s->id_seed)
                s->id_seed = now_ns();
        (void)uv_timer_init(loop, &s->tick);
        (void)uv_idle_init(loop, &s->later);
        s->tick.data = s;
        s->later.data = s;
        s->handles = 2;
        return s;
}

int http_server_new(uv_loop_t *loop, int listen_fd, const struct http_limits *limits,
                    const struct http_callbacks *callbacks, void *user,
                    struct http_server **ret, struct err *e)
{
        struct http_server *s = http_server_alloc(loop, limits, callbacks, user);
        if (!s)
                return fail_host(e, -ENOMEM, "no memory for the HTTP server");
        int r = http_server_add_listener(s, listen_fd, e);
        if (r < 0) {
                http_server_close(s, NULL, NULL);
                return r;
        }
        *ret = s;
        return 0;
}

void http_server_drain(struct http_server *s, void (*on_drained)(void *user), void *user)
{
        if (s->closing)
                return;
        s->draining = true;
        s->on_drained = on_drained;
        s->drained_user = user;
        close_listeners(s);
        struct http_conn *c, *next;
        for (c = TAILQ_FIRST(&s->conns); c; c = next) {
                next = TAILQ_NEXT(c, link);
                if (c->state == HTTP_CONN_HEAD && c->head.len == 0 && c->in.len == 0)
                        http_conn_finish(c, false);
        }
        run_later(s);
}

static void on_handle_closed(uv_handle_t *h)
{
        http_server_release(h->data);
}

void http_server_release(struct http_server *s)
{
        if (--s->handles > 0)
                return;
        void (*closed)(void *user) = s->on_closed;
        void *user = s->closed_user;
        buf_free(&s->scratch);
        free(s->read_buf);
        close_fd(&s->spare_fd);
        free(s);
        if (closed)
                closed(user);
}

void http_server_close(struct http_server *s, void (*on_closed)(void *user), void *user)
{
        if (s->closing)
                return;
        s->closing = true;
        s->on_closed = on_closed;
        s->closed_user = user;
        close_listeners(s);
        while (!TAILQ_EMPTY(&s->conns))
                http_conn_gone(TAILQ_FIRST(&s->conns));
        uv_close((uv_handle_t *)&s->tick, on_handle_closed);
        uv_close((uv_handle_t *)&s->later, on_handle_closed);
}
