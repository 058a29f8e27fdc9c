#include "engine/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/limits.h"
#include "engine/engine.h"

#define READ_BYTES (256 * 1024)

struct link {
        uv_poll_t poll;
        int fd;
        struct sockaddr_un peer;
        struct buf in, out;
        size_t taken; /* of in, with the frame that is being handed out */
        const struct link_handlers *h;
        void *user;
        struct link *older, *newer; /* while it is parked */
        bool paused, closed, parked, in_callback;
};

static struct {
        struct link *oldest, *newest;
        unsigned count;
} parked;

static void unpark(struct link *l)
{
        *(l->older ? &l->older->newer : &parked.oldest) = l->newer;
        *(l->newer ? &l->newer->older : &parked.newest) = l->older;
        l->older = l->newer = NULL;
        l->parked = false;
        parked.count--;
}

static void link_freed(uv_handle_t *handle)
{
        struct link *l = handle->data;
        close_fd(&l->fd);
        buf_free(&l->in);
        buf_free(&l->out);
        free(l);
}

void link_close(struct link *l)
{
        if (l->closed)
                return;
        if (l->parked)
                unpark(l);
        l->closed = true;
        (void)uv_poll_stop(&l->poll);
        /* Now, not when the loop gets to it: the agent shall see it at once. */
        (void)shutdown(l->fd, SHUT_RDWR);
        uv_close((uv_handle_t *)&l->poll, link_freed);
}

static struct link *find_parked(const struct sockaddr_un *a)
{
        struct link *l = parked.newest;
        while (l && strcmp(l->peer.sun_path, a->sun_path) != 0)
                l = l->older;
        return l;
}

void link_done(struct link *l)
{
        /* Anything but silence on both sides means that the two are not in step. One for each
         * agent is enough: an idle sandbox holds what it held before. */
        if (l->closed || l->paused || l->out.len || !l->in_callback || l->in.len != l->taken || find_parked(&l->peer)) {
                link_close(l);
                return;
        }
        buf_free(&l->out);
        l->parked = true;
        l->older = parked.newest;
        *(l->older ? &l->older->newer : &parked.oldest) = l;
        parked.newest = l;
        if (++parked.count > LIMIT_PARKED_LINKS)
                link_close(parked.oldest);
}

void link_close_parked(void)
{
        while (parked.oldest)
                link_close(parked.oldest);
}

static void link_ended(struct link *l, int code)
{
        if (l->closed)
                return;
        l->h->on_end(l, code, l->user);
        link_close(l);
}

static void on_poll(uv_poll_t *poll, int status, int events);

static void link_watch(struct link *l)
{
        int events = (l->paused ? 0 : UV_READABLE) | (l->out.len ? UV_WRITABLE : 0);
        if (events)
                (void)uv_poll_start(&l->poll, events, on_poll);
        else
                (void)uv_poll_stop(&l->poll);
}

/* Hands out every whole frame. Pausing in a callback stops it; the rest waits in l->in. */
static void take_frames(struct link *l)
{
        size_t at = 0;
        while (!l->closed && !l->paused && !l->parked) {
                struct frame f;
                size_t used;
                int r = frame_take(l->in.data + at, l->in.len - at, &f, &used);
                if (r == 0)
                        break;
                if (r < 0) {
                        link_ended(l, r);
                        return;
                }
                at += used;
                l->taken = at;
                l->in_callback = true;
                l->h->on_frame(l, &f, l->user);
                l->in_callback = false;
        }
        if (l->parked)
                buf_free(&l->in); /* idle ones are many: keep them small */
        else if (!l->closed)
                buf_consume(&l->in, at);
}

static void link_read(struct link *l)
{
        if (!buf_reserve(&l->in, READ_BYTES / 4)) {
                link_ended(l, -ENOMEM);
                return;
        }
        size_t room = l->in.cap - l->in.len;
        ssize_t n = recv(l->fd, l->in.data + l->in.len, room < READ_BYTES ? room : READ_BYTES, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n <= 0) {
                link_ended(l, n < 0 ? -errno : 0);
                return;
        }
        l->in.len += (size_t)n;
        take_frames(l);
}

static void link_flush(struct link *l)
{
        size_t waited = l->out.len;
        while (l->out.len) {
                ssize_t w = send(l->fd, l->out.data, l->out.len, MSG_NOSIGNAL);
                if (w < 0) {
                        /* An agent that failed answers before it hangs up: keep reading. */
                        if (errno != EAGAIN && errno != EINTR)
                                l->out.len = 0;
                        break;
                }
                buf_consume(&l->out, (size_t)w);
        }
        link_watch(l);
        if (l->out.len < waited && l->h->on_moved)
                l->h->on_moved(l, l->user);
        if (!l->out.len && l->h->on_drain)
                l->h->on_drain(l, l->user);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
        struct link *l = poll->data;
        if (l->parked) { /* the agent went, or talks out of turn */
                link_close(l);
                return;
        }
        if (status < 0) {
                link_ended(l, status);
                return;
        }
        if (events & UV_READABLE)
                link_read(l);
        if (!l->closed && (events & UV_WRITABLE))
                link_flush(l);
}

size_t link_send(struct link *l, enum frame_type type, const void *p, size_t n)
{
        unsigned char head[FRAME_HEAD_BYTES];
        frame_head(head, type, (uint32_t)n);
        size_t sent = 0;
        if (l->closed)
                return 0;
        if (!l->out.len) {
                struct iovec iov[2] = { { head, sizeof head }, { (void *)(uintptr_t)p, n } };
                struct msghdr h = { .msg_iov = iov, .msg_iovlen = n ? 2 : 1 };
                ssize_t w = sendmsg(l->fd, &h, MSG_NOSIGNAL);
                if (w < 0 && errno != EAGAIN && errno != EINTR)
                        return 0; /* the agent hung up; its answer is on the way */
                sent = w > 0 ? (size_t)w : 0;
        }
        if (sent < sizeof head)
                buf_add(&l->out, head + sent, sizeof head - sent);
        size_t body = sent > sizeof head ? sent - sizeof head : 0;
        if (body < n)
                buf_add(&l->out, (const char *)p + body, n - body);
        if (l->out.len)
                link_watch(l);
        return l->out.len;
}

void link_pause(struct link *l)
{
        l->paused = true;
        if (!l->closed)
                link_watch(l);
}

void link_resume(struct link *l)
{
        if (!l->paused || l->closed)
                return;
        l->paused = false;
        if (!l->in_callback) /* else the loop that called us goes on by itself */
                take_frames(l);
        if (!l->closed)
                link_watch(l);
}

/* The parked link to that agent with the request sent on it; NULL when there is none that
 * still works. */
static struct link *take_parked(const struct sockaddr_un *a, struct buf *request)
{
        struct link *l = find_parked(a);
        ssize_t w = l ? send(l->fd, request->data, request->len, MSG_NOSIGNAL) : 0;
        if (w < 0) /* its agent is gone, and the loop has not told us yet */
                link_close(l);
        if (w <= 0)
                return NULL;
        unpark(l);
        buf_consume(request, (size_t)w);
        return l;
}

static int link_connect(uv_loop_t *loop, const struct sockaddr_un *a, struct link **ret, struct err *e)
{
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return fail_host(e, -errno, "no socket: %s", strerror(errno));
        if (connect(fd, (const struct sockaddr *)a, sizeof *a) < 0)
                return fail_host(e, -errno, "the sandbox does not answer: %s", strerror(errno));
        struct link *l = calloc(1, sizeof *l);
        int r = l ? uv_poll_init(loop, &l->poll, fd) : -ENOMEM;
        if (r < 0) {
                free(l);
                return fail_host(e, r, "cannot watch a socket: %s", strerror(-r));
        }
        l->fd = steal_fd(&fd);
        l->peer = *a;
        l->poll.data = l;
        *ret = l;
        return 0;
}

int link_open(uv_loop_t *loop, const char *box_name, struct buf *request, const struct link_handlers *h,
              void *user, struct link **ret, struct err *e)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        engine_socket_name(box_name, a.sun_path, sizeof a.sun_path);
        struct link *l = take_parked(&a, request);
        bool fresh = !l;
        int r = fresh ? link_connect(loop, &a, &l, e) : 0;
        if (r < 0)
                return r;
        l->h = h;
        l->user = user;
        l->out = *request;
        *request = (struct buf){ 0 };
        while (l->out.len) {
                ssize_t w = send(l->fd, l->out.data, l->out.len, MSG_NOSIGNAL);
                if (w < 0)
                        break;
                buf_consume(&l->out, (size_t)w);
        }
        if (fresh || l->out.len) /* a parked one is watched for reading already */
                link_watch(l);
        *ret = l;
        return 0;
}
