/* The agent's side of the unix socket: accept, one request frame, one answer. Requests are
 * read exactly, never a byte past their frame: what follows belongs to the worker that
 * the connection may be handed to. After an exec's answer the connection waits for the
 * next request; after any other it is closed. */
#include "agent/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/exec.h"
#include "os/loop.h"
#include "agent/worker.h"
#include "wire/frame.h"

struct conn {
        struct source src;
        struct buf in, out;
        struct exec *exec;
        bool finishing, reusable, watches_out;
};

static struct {
        struct source listener;
        const char *name;
        unsigned slot;
} server;

static void conn_free(struct conn *c)
{
        loop_remove(&c->src);
        buf_free(&c->in);
        buf_free(&c->out);
        free(c);
}

static void conn_watch(struct conn *c, bool out)
{
        if (c->watches_out != out)
                (void)loop_mod(&c->src, out ? EPOLLOUT : EPOLLIN | EPOLLRDHUP);
        c->watches_out = out;
}

static void conn_flush(struct conn *c)
{
        while (c->out.len) {
                ssize_t w = send(c->src.fd, c->out.data, c->out.len, MSG_NOSIGNAL);
                if (w < 0) {
                        if (errno == EINTR)
                                continue;
                        if (errno == EAGAIN) {
                                conn_watch(c, true);
                                return;
                        }
                        c->reusable = false;
                        break;
                }
                buf_consume(&c->out, (size_t)w);
        }
        if (!c->reusable) {
                conn_free(c);
                return;
        }
        conn_watch(c, false);
        c->finishing = c->reusable = false;
        buf_free(&c->out);
}

void conn_finish(struct conn *c, struct buf *frames)
{
        c->exec = NULL;
        c->finishing = true;
        buf_free(&c->out);
        c->out = *frames;
        *frames = (struct buf){ 0 };
        if (!buf_ok(&c->out)) { /* no memory: cut, the server calls that a failure */
                conn_free(c);
                return;
        }
        conn_flush(c);
}

void conn_fail(struct conn *c, int code, enum err_blame blame, const char *fmt, ...)
{
        struct buf out = { 0 };
        char msg[512];
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(msg, sizeof msg, fmt, ap);
        va_end(ap);
        size_t mark = frame_begin(&out, FRAME_FAIL);
        field_add_u64(&out, FIELD_CODE, (uint64_t)(code < 0 ? -code : code));
        field_add_u64(&out, FIELD_BLAME, blame);
        field_add_str(&out, FIELD_MESSAGE, msg);
        frame_finish(&out, mark);
        conn_finish(c, &out);
}

int conn_steal_fd(struct conn *c)
{
        int fd = fcntl(c->src.fd, F_DUPFD_CLOEXEC, 0);
        conn_free(c);
        return fd;
}

static void say_hello(struct conn *c)
{
        struct buf out = { 0 };
        size_t mark = frame_begin(&out, FRAME_HELLO);
        field_add_str(&out, FIELD_NAME, server.name);
        field_add_u64(&out, FIELD_COUNT, server.slot);
        frame_finish(&out, mark);
        conn_finish(c, &out);
}

static void conn_request(struct conn *c, const struct frame *f)
{
        switch (f->type) {
        case FRAME_PING:
                say_hello(c);
                return;
        case FRAME_EXEC: {
                c->reusable = true;
                struct exec *x = exec_start(c, f->payload);
                if (x) /* else c has its answer, and may be gone */
                        c->exec = x;
                return;
        }
        case FRAME_TAR:
        case FRAME_UNTAR:
                worker_start(c, f->type, f->payload);
                return;
        default:
                conn_fail(c, -EPROTO, ERR_HOST, "unexpected frame %s", frame_name(f->type));
        }
}

/* How many bytes the frame still lacks; head first. */
static size_t conn_wants(const struct conn *c)
{
        uint32_t n = 0;
        if (c->in.len < FRAME_HEAD_BYTES)
                return FRAME_HEAD_BYTES - c->in.len;
        memcpy(&n, c->in.data, sizeof n);
        return n > FRAME_MAX_PAYLOAD ? 0 : FRAME_HEAD_BYTES + n - c->in.len;
}

static void conn_read(struct conn *c)
{
        for (;;) {
                struct frame f;
                size_t used, want = conn_wants(c);
                int r = frame_take(c->in.data, c->in.len, &f, &used);
                if (r > 0) {
                        struct buf request = c->in; /* outlives c if the request ends it */
                        c->in = (struct buf){ 0 };
                        conn_request(c, &f);
                        buf_free(&request);
                        return;
                }
                if (r < 0 || !want || !buf_reserve(&c->in, want)) {
                        conn_free(c);
                        return;
                }
                ssize_t n = recv(c->src.fd, c->in.data + c->in.len, want, 0);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN)
                        return;
                if (n <= 0) {
                        conn_free(c);
                        return;
                }
                c->in.len += (size_t)n;
        }
}

static void on_conn(struct source *s, uint32_t events)
{
        struct conn *c = (struct conn *)s;
        if (c->finishing) {
                if (events & (EPOLLHUP | EPOLLERR))
                        conn_free(c);
                else
                        conn_flush(c);
                return;
        }
        if (!c->exec) {
                conn_read(c);
                return;
        }
        /* The asker left. It has nothing to say during an exec either: who does is not in
         * step with us. */
        struct exec *x = c->exec;
        conn_free(c);
        exec_abandon(x);
}

static void on_accept(struct source *s, uint32_t events)
{
        (void)events;
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && errno == EMFILE) {
                loop_rest(s); /* whoever calls waits in the backlog meanwhile */
                return;
        }
        struct conn *c = fd < 0 ? NULL : calloc(1, sizeof *c);
        if (!c) {
                if (fd >= 0)
                        (void)close(fd);
                return;
        }
        c->src = (struct source){ fd, on_conn };
        if (loop_add(&c->src, EPOLLIN | EPOLLRDHUP) < 0) {
                conn_free(c);
                return;
        }
        conn_read(c); /* the request usually came with the connection */
}

int conn_setup(int listen_fd, const char *name, unsigned slot)
{
        server.name = name;
        server.slot = slot;
        server.listener = (struct source){ listen_fd, on_accept };
        /* Listening here and not in the keeper makes this process the socket's peer: the
         * server learns our pid from the kernel, not from a file. */
        if (listen(listen_fd, 128) < 0)
                return -errno;
        return loop_add(&server.listener, EPOLLIN);
}
