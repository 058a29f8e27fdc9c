#include "os/loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/now.h"

#define BATCH 32

static struct {
        int fd;
        uint64_t deadline;
        void (*on_deadline)(void);
        struct epoll_event events[BATCH];
        int count, at;
        struct source *resting;
} loop = { .fd = -1 };

int loop_open(void)
{
        /* An agent is forked out of the keeper's loop: nothing of that one may stay. */
        memset(&loop, 0, sizeof loop);
        loop.fd = epoll_create1(EPOLL_CLOEXEC);
        return loop.fd < 0 ? -errno : loop.fd;
}

int loop_add(struct source *s, uint32_t events)
{
        struct epoll_event ev = { .events = events, .data.ptr = s };
        return epoll_ctl(loop.fd, EPOLL_CTL_ADD, s->fd, &ev) < 0 ? -errno : 0;
}

int loop_mod(struct source *s, uint32_t events)
{
        struct epoll_event ev = { .events = events, .data.ptr = s };
        return epoll_ctl(loop.fd, EPOLL_CTL_MOD, s->fd, &ev) < 0 ? -errno : 0;
}

void loop_remove(struct source *s)
{
        if (s->fd < 0)
                return;
        (void)epoll_ctl(loop.fd, EPOLL_CTL_DEL, s->fd, NULL);
        close_fd(&s->fd);
        for (int i = loop.at; i < loop.count; i++)
                if (loop.events[i].data.ptr == s)
                        loop.events[i].data.ptr = NULL;
        if (loop.resting == s)
                loop.resting = NULL;
        if (loop.resting && loop_mod(loop.resting, EPOLLIN) == 0)
                loop.resting = NULL;
}

void loop_rest(struct source *s)
{
        if (loop_mod(s, 0) == 0)
                loop.resting = s;
}

void loop_set_deadline(uint64_t at_ns, void (*fn)(void))
{
        loop.deadline = at_ns;
        loop.on_deadline = fn;
}

static int wait_ms(void)
{
        if (!loop.deadline)
                return -1;
        uint64_t now = now_ns();
        if (loop.deadline <= now)
                return 0;
        uint64_t ms = (loop.deadline - now + NS_PER_MS - 1) / NS_PER_MS;
        return ms > 1000000 ? 1000000 : (int)ms;
}

void loop_run(void)
{
        for (;;) {
                int n = epoll_wait(loop.fd, loop.events, BATCH, wait_ms());
                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        _exit(70);
                }
                loop.count = n;
                for (loop.at = 0; loop.at < loop.count;) {
                        struct epoll_event *ev = &loop.events[loop.at++];
                        struct source *s = ev->data.ptr;
                        if (s)
                                s->fn(s, ev->events);
                }
                loop.count = 0;
                if (loop.deadline && now_ns() >= loop.deadline)
                        loop.on_deadline();
        }
}
