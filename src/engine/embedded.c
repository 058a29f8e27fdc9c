/* The server's side of the keeper's socket. A request's cookie is the address of its
 * pending record; the keeper is more trusted than we are, so that is taken as it comes
 * back. Requests that do not fit into the socket wait in a list, in order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/limits.h"
#include "engine/engine.h"
#include "wire/fdpass.h"

struct pending {
        struct pending *next; /* while it waits to be sent */
        struct keeper_request req;
        int fd;
        engine_create_cb created;
        engine_destroy_cb destroyed;
        void *user;
};

struct engine {
        uv_poll_t poll;
        int sock;
        struct pending *queue, **tail;
        void (*on_lost)(void *);
        void *lost_user;
};

void engine_socket_name(const char *name, char *out, size_t size)
{
        (void)snprintf(out, size, "%s.sock", name);
}

static void engine_watch(struct engine *g);

static void submit(struct engine *g, struct pending *p);

/* Made, but its pidfd did not fit into this process: without it nobody could end it. */
static void give_back(struct engine *g, unsigned slot)
{
        struct pending *p = calloc(1, sizeof *p);
        if (!p)
                abort();
        p->req = (struct keeper_request){ .op = KEEPER_DESTROY, .slot = slot };
        p->fd = -1;
        submit(g, p);
}

static void finish(struct engine *g, struct pending *p, const struct keeper_reply *reply, int fd)
{
        struct keeper_reply changed, *r = &changed;
        char sock[64];
        changed = *reply;
        if (p->created && r->code == 0 && fd < 0) {
                give_back(g, r->slot);
                r->code = -EMFILE;
                (void)snprintf(r->msg, sizeof r->msg, "the server is out of file descriptors");
        }
        engine_socket_name(p->req.name, sock, sizeof sock);
        if (p->created) {
                struct engine_created c = { r->code, r->msg, r->slot, fd };
                p->created(&c, p->user);
        } else if (fd >= 0)
                (void)close(fd);
        if (p->destroyed)
                p->destroyed(r->code, r->msg, p->user);
        if (p->req.name[0] && (p->req.op == KEEPER_CREATE) == (r->code < 0))
                (void)unlink(sock); /* never made, or gone */
        free(p);
}

/* Failures that are known at once still come from the loop. */
struct late {
        uv_timer_t timer;
        struct engine *g;
        struct pending *p;
        struct keeper_reply r;
};

static void late_closed(uv_handle_t *h)
{
        free(h->data);
}

static void late_run(uv_timer_t *t)
{
        struct late *l = t->data;
        finish(l->g, l->p, &l->r, -1);
        uv_close((uv_handle_t *)t, late_closed);
}

static void finish_late(struct engine *g, struct pending *p, int code, const char *what)
{
        struct late *l = calloc(1, sizeof *l);
        if (!l)
                abort(); /* no memory for 400 bytes: nothing sensible is left to do */
        l->p = p;
        l->g = g;
        l->r.code = code;
        (void)snprintf(l->r.msg, sizeof l->r.msg, "%s: %s", what, strerror(-code));
        l->timer.data = l;
        (void)uv_timer_init(g->poll.loop, &l->timer);
        (void)uv_timer_start(&l->timer, late_run, 0, 0);
}

static void flush(struct engine *g)
{
        while (g->queue) {
                struct pending *p = g->queue;
                int r = fdpass_send(g->sock, &p->req, sizeof p->req, p->fd);
                if (r == -EAGAIN)
                        break;
                g->queue = p->next;
                if (!g->queue)
                        g->tail = &g->queue;
                close_fd(&p->fd);
                if (r < 0)
                        finish_late(g, p, r, "the keeper is gone");
        }
        engine_watch(g);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
        struct engine *g = poll->data;
        if (status < 0) /* POLLERR: it died with requests unread. Reading tells how. */
                events = UV_READABLE;
        while (events & UV_READABLE) {
                struct keeper_reply r;
                int fd = -1;
                ssize_t n = fdpass_recv(g->sock, &r, sizeof r, &fd);
                if (n == -EAGAIN)
                        break;
                if (n != sizeof r) {
                        (void)uv_poll_stop(&g->poll);
                        if (g->on_lost)
                                g->on_lost(g->lost_user);
                        return;
                }
                r.msg[sizeof r.msg - 1] = '\0';
                if (r.cookie)
                        finish(g, (struct pending *)(uintptr_t)r.cookie, &r, fd);
        }
        if (events & UV_WRITABLE)
                flush(g);
}

static void engine_watch(struct engine *g)
{
        (void)uv_poll_start(&g->poll, UV_READABLE | (g->queue ? UV_WRITABLE : 0), on_poll);
}

int engine_new(uv_loop_t *loop, int keeper_sock, struct engine **ret, struct keeper_reply *ret_hello,
               struct err *e)
{
        int fd = -1;
        ssize_t n = fdpass_recv(keeper_sock, ret_hello, sizeof *ret_hello, &fd);
        if (n != sizeof *ret_hello)
                return fail_host(e, -EIO, "the keeper died while it started");
        ret_hello->msg[sizeof ret_hello->msg - 1] = '\0';
        if (ret_hello->code < 0)
                return fail_host(e, ret_hello->code, "%s", ret_hello->msg);
        struct engine *g = calloc(1, sizeof *g);
        if (!g)
                return fail_host(e, -ENOMEM, "no memory");
        g->sock = keeper_sock;
        g->tail = &g->queue;
        g->poll.data = g;
        int r = uv_poll_init(loop, &g->poll, keeper_sock); /* makes it non-blocking */
        if (r < 0) {
                free(g);
                return fail_host(e, r, "cannot watch the keeper: %s", uv_strerror(r));
        }
        engine_watch(g);
        *ret = g;
        return 0;
}

void engine_on_lost(struct engine *g, void (*on_lost)(void *), void *user)
{
        g->on_lost = on_lost;
        g->lost_user = user;
}

static void submit(struct engine *g, struct pending *p)
{
        p->req.cookie = (uint64_t)(uintptr_t)p;
        *g->tail = p;
        g->tail = &p->next;
        if (g->queue == p)
                flush(g);
}

/* A socket bound in the run directory; the agent will listen on it. */
static int bind_socket(const char *name)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        engine_socket_name(name, a.sun_path, sizeof a.sun_path);
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
                return -errno;
        return steal_fd(&fd);
}

void engine_create(struct engine *g, const char *name, const struct shape *s, engine_create_cb cb, void *user)
{
        struct pending *p = calloc(1, sizeof *p);
        if (!p)
                abort();
        p->created = cb;
        p->user = user;
        p->req = (struct keeper_request){ .op = KEEPER_CREATE, .image = s->image, .cpu_millis = s->cpu_millis,
                                          .memory = s->memory, .storage = s->storage, .pids = s->pids };
        p->req.inodes = s->storage / STORAGE_BYTES_PER_INODE;
        if (p->req.inodes < MIN_INODES)
                p->req.inodes = MIN_INODES;
        (void)snprintf(p->req.name, sizeof p->req.name, "%s", name);
        p->fd = bind_socket(name);
        if (p->fd < 0)
                finish_late(g, p, p->fd, "cannot make the sandbox's socket");
        else
                submit(g, p);
}

void engine_destroy(struct engine *g, const char *name, unsigned slot, int pidfd, engine_destroy_cb cb, void *user)
{
        struct pending *p = calloc(1, sizeof *p);
        if (!p)
                abort();
        p->destroyed = cb;
        p->user = user;
        p->req = (struct keeper_request){ .op = KEEPER_DESTROY, .slot = slot };
        (void)snprintf(p->req.name, sizeof p->req.name, "%s", name);
        p->fd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
        submit(g, p);
}

void engine_kill_commands(struct engine *g, unsigned slot)
{
        struct pending *p = calloc(1, sizeof *p);
        if (!p)
                abort();
        p->req = (struct keeper_request){ .op = KEEPER_KILL, .slot = slot };
        p->fd = -1;
        submit(g, p);
}

/* Blocking exchange, only while the loop does not run yet. Answers to earlier requests that
 * come in between go where they belong. */
static int ask(struct engine *g, struct keeper_request *q, int fd)
{
        struct keeper_reply r = { 0 };
        int flags = fcntl(g->sock, F_GETFL);
        (void)fcntl(g->sock, F_SETFL, flags & ~O_NONBLOCK);
        int code = fdpass_send(g->sock, q, sizeof *q, fd);
        while (code == 0) {
                int got = -1;
                if (fdpass_recv(g->sock, &r, sizeof r, &got) != sizeof r) {
                        code = -EIO;
                        break;
                }
                r.msg[sizeof r.msg - 1] = '\0';
                if (r.cookie) {
                        finish(g, (struct pending *)(uintptr_t)r.cookie, &r, got);
                        continue;
                }
                close_fd(&got);
                code = r.code;
                break;
        }
        (void)fcntl(g->sock, F_SETFL, flags);
        return code;
}

int engine_adopt(struct engine *g, unsigned slot, int pidfd)
{
        struct keeper_request q = { .op = KEEPER_ADOPT, .slot = slot };
        return ask(g, &q, pidfd);
}

int engine_sweep(struct engine *g)
{
        struct keeper_request q = { .op = KEEPER_SWEEP };
        return ask(g, &q, -1);
}

static void closed(uv_handle_t *h)
{
        struct engine *g = h->data;
        (void)close(g->sock);
        free(g);
}

void engine_close(struct engine *g)
{
        uv_close((uv_handle_t *)&g->poll, closed);
}
