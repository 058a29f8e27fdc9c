/* After a restart: which sandboxes of an earlier server still live? An agent's listening
 * socket answers that: the kernel tells who listens (a pidfd of it), and a socket that
 * nobody listens on any more refuses. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "box/boxes.h"
#include "os/sys.h"
#include "wire/frame.h"

#define HELLO_SECONDS 2

static int connect_agent(const char *sock)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        if (snprintf(a.sun_path, sizeof a.sun_path, "%s", sock) >= (int)sizeof a.sun_path)
                return -ENAMETOOLONG;
        struct timeval limit = { .tv_sec = HELLO_SECONDS };
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        /* An agent that does not accept must not hold up the start: this bounds connect. */
        if (fd >= 0)
                (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
                return -errno;
        return steal_fd(&fd);
}

static int peer_pidfd(int fd)
{
        int pidfd;
        socklen_t n = sizeof pidfd;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
                return pidfd;
        struct ucred cred; /* before Linux 6.5 */
        n = sizeof cred;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
                return -errno;
        pidfd = sys_pidfd_open(cred.pid, 0);
        return pidfd < 0 ? -errno : pidfd;
}

struct loaded {
        struct boxes *bs;
        struct box **list; /* in the order of their names; those that are not running are lost */
        size_t count, cap;
        char was[160]; /* their place, when it is not ours */
        bool incomplete; /* no memory: a row is missing, and its agent is not an orphan */
};

static void collect(struct box *b, void *user)
{
        struct loaded *l = user;
        if (l->count == l->cap) {
                size_t cap = l->cap ? l->cap * 2 : 64;
                struct box **list = realloc(l->list, cap * sizeof *list);
                if (!list) {
                        l->incomplete = true;
                        box_unref(b);
                        return;
                }
                l->list = list;
                l->cap = cap;
        }
        l->list[l->count++] = b;
}

/* Our own want says nothing about the agent: to call it dead would end a live sandbox. */
static bool is_our_want(int code)
{
        return code == -EMFILE || code == -ENFILE || code == -ENOMEM || code == -ENOBUFS;
}

/* Connects, and tells who listens there. 0, or -errno with *ret_fd and *ret_pidfd -1. */
static int reach_agent(const char *sock, int *ret_fd, int *ret_pidfd)
{
        _cleanup_close_ int fd = connect_agent(sock);
        int pidfd = fd < 0 ? fd : peer_pidfd(fd);
        *ret_fd = *ret_pidfd = -1;
        if (pidfd < 0)
                return pidfd;
        *ret_fd = steal_fd(&fd);
        *ret_pidfd = pidfd;
        return 0;
}

/* 1: it is ours again. 0: there is no such sandbox any more. Negative: nobody can tell. */
static int adopt_one(const struct loaded *l, struct box *b)
{
        struct boxes *bs = l->bs;
        char sock[64];
        _cleanup_close_ int fd = -1;
        engine_socket_name(b->name, sock, sizeof sock);
        int r = reach_agent(sock, &fd, &b->pidfd);
        if (r < 0)
                return is_our_want(r) ? r : 0;
        if (l->was[0])
                return -EXDEV;
        r = engine_adopt(bs->engine, b->slot, b->pidfd);
        if (r < 0)
                return r == -EINVAL ? 0 : r; /* the keeper's no; anything else is its end */
        registry_add(&bs->registry, b);
        r = boxes_box_started(bs, b);
        if (r == 0)
                return 1;
        registry_remove(&bs->registry, b);
        return r;
}

/* The slot of an agent that no row tells of. */
static int ask_slot(int fd, unsigned *ret_slot)
{
        struct timeval limit = { .tv_sec = HELLO_SECONDS };
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        enum field tag;
        struct str v;
        uint64_t n;
        if (frame_write(fd, FRAME_PING, NULL, 0) < 0 || frame_read(fd, &b, &f) <= 0 || f.type != FRAME_HELLO)
                return -EIO;
        while (field_next(&f.payload, &tag, &v) > 0)
                if (tag == FIELD_COUNT && field_u64(v, &n)) {
                        *ret_slot = (unsigned)n;
                        return 0;
                }
        return -EIO;
}

static void on_orphan_gone(int code, const char *msg, void *user)
{
        struct boxes *bs = user;
        if (code < 0)
                log_line(LOG_WARN, "cannot end an orphan", "error", msg, NULL);
        boxes_transit(bs, -1);
}

/* Made, but never told to anybody: a pooled one, or one whose maker died too early. */
static int end_orphan(const struct loaded *l, const char *sock)
{
        struct boxes *bs = l->bs;
        char name[BOX_NAME_BYTES];
        size_t n = strlen(sock) - strlen(".sock");
        unsigned slot;
        _cleanup_close_ int fd = -1, pidfd = -1;
        int r = n >= sizeof name ? -ENAMETOOLONG : reach_agent(sock, &fd, &pidfd);
        if (is_our_want(r))
                return r;
        if (r == 0 && l->was[0])
                return -EXDEV;
        if (r == 0 && ask_slot(fd, &slot) < 0)
                r = -EINVAL;
        if (r == 0 && (r = engine_adopt(bs->engine, slot, pidfd)) < 0 && r != -EINVAL)
                return r;
        if (r < 0) {
                /* Nobody's, and it says nothing sensible: without cgroups nothing would ever
                 * find it again once its socket is gone. */
                if (pidfd >= 0)
                        (void)sys_pidfd_send_signal(pidfd, SIGKILL);
                (void)unlink(sock);
                return 0;
        }
        memcpy(name, sock, n);
        name[n] = '\0';
        log_line(LOG_INFO, "ending a sandbox that belongs to nobody", "pod", name, NULL);
        boxes_transit(bs, 1);
        engine_destroy(bs->engine, name, slot, pidfd, on_orphan_gone, bs);
        return 0;
}

/* Whoever starts without being sure must not go on: the sweep would end what lives. */
static int fail_unsure(const struct loaded *l, int code, const char *name, struct err *e)
{
        if (code == -EXDEV)
                return fail_user(e, code, "%s lives with %s, and this start is to use %s: start with what it was (with "
                                 "--on-exit delete, to end it), or use another --state-dir",
                                 name, l->was, l->bs->conf.place);
        return fail_host(e, code, "cannot take over %s: %s; no sandbox was touched, start again", name,
                         code == -EMFILE ? "too many open files (raise the limit, ulimit -n)"
                                         : is_our_want(code) ? strerror(-code) : "the keeper died");
}

static int compare_name(const void *name, const void *box)
{
        return strcmp(name, (*(struct box *const *)box)->name);
}

/* A search and not a walk: a host may have ten thousand sockets and as many rows. */
static bool is_known(const struct loaded *l, const char *sock)
{
        char name[BOX_NAME_BYTES];
        int n = snprintf(name, sizeof name, "%.*s", (int)(strlen(sock) - strlen(".sock")), sock);
        if (n >= (int)sizeof name || !l->count)
                return false;
        struct box **b = bsearch(name, l->list, l->count, sizeof *l->list, compare_name);
        return b && (*b)->state == BOX_RUNNING;
}

/* Names first: ending one changes the directory. */
static int scan_sockets(const struct loaded *l, struct err *e)
{
        DIR *d = opendir(".");
        if (!d)
                return fail_host(e, -errno, "cannot read the run directory: %s", strerror(errno));
        _cleanup_buf_ struct buf names = { 0 };
        for (struct dirent *de; (de = readdir(d));) {
                size_t n = strlen(de->d_name);
                if (n > 5 && strcmp(de->d_name + n - 5, ".sock") == 0 && !is_known(l, de->d_name))
                        buf_add(&names, de->d_name, n + 1);
        }
        (void)closedir(d);
        int r = 0;
        for (size_t at = 0; r == 0 && at < names.len; at += strlen(names.data + at) + 1)
                if ((r = end_orphan(l, names.data + at)) < 0)
                        (void)fail_unsure(l, r, names.data + at, e);
        return r;
}

int boxes_adopt(struct boxes *bs, unsigned *ret_adopted, unsigned *ret_lost, struct err *e)
{
        struct loaded l = { .bs = bs };
        unsigned adopted = 0, lost = 0;
        int r = store_load(bs->store, collect, &l, e);
        if (r == 0 && l.incomplete)
                r = fail_host(e, -ENOMEM, "no memory for the sandboxes in the store");
        if (r == 0)
                r = store_get_place(bs->store, l.was, sizeof l.was, e);
        bool same_place = strcmp(l.was, bs->conf.place) == 0;
        if (same_place)
                l.was[0] = '\0';
        for (size_t i = 0; i < l.count; i++) {
                struct box *b = l.list[i];
                int is_live = r < 0 ? r : adopt_one(&l, b);
                if (is_live > 0) {
                        adopted++;
                        continue;
                }
                if (is_live == 0) {
                        struct err ignored;
                        log_line(LOG_WARN, "a sandbox did not outlive the last server", "id", b->id, "pod", b->name,
                                 NULL);
                        (void)store_delete(bs->store, b, &ignored);
                        lost++;
                } else if (r == 0)
                        r = fail_unsure(&l, is_live, b->name, e);
        }
        /* Sweeping before orphans are ended: their groups are then known as taken. */
        if (r == 0)
                r = scan_sockets(&l, e);
        if (r == 0 && !same_place)
                r = store_set_place(bs->store, bs->conf.place, e);
        for (size_t i = 0; i < l.count; i++)
                if (l.list[i]->state != BOX_RUNNING)
                        box_unref(l.list[i]);
        free(l.list);
        *ret_adopted = adopted;
        *ret_lost = lost;
        return r;
}
