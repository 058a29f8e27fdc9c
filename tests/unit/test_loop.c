/* loop_run never returns, so each case runs in a child that leaves from a callback. */
#include "os/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/now.h"
#include "check.h"

static struct source a, b, c;
static int calls;

static int exit_of(void (*fn)(void))
{
        int status = -1;
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                (void)alarm(20);
                if (loop_open() < 0)
                        _exit(99);
                fn();
                _exit(98);
        }
        (void)waitpid(pid, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int ready_fd(void)
{
        return eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
}

static void leave_with_7(struct source *s, uint32_t events)
{
        _exit(s == &a && (events & EPOLLIN) ? 7 : 1);
}

static void one_source(void)
{
        a = (struct source){ ready_fd(), leave_with_7 };
        if (loop_add(&a, EPOLLIN) < 0)
                _exit(2);
        loop_run();
}

/* Ready all the time, and called only before its rest and after it. */
static void rest_once(struct source *s, uint32_t events)
{
        (void)events;
        if (++calls == 1)
                loop_rest(s);
        else
                _exit(calls == 2 && b.fd < 0 ? 7 : 3);
}

static void end_the_rest(void)
{
        loop_set_deadline(0, NULL);
        if (calls != 1)
                _exit(4);
        loop_remove(&b);
}

static void resting(void)
{
        a = (struct source){ ready_fd(), rest_once };
        b = (struct source){ eventfd(0, EFD_CLOEXEC), leave_with_7 };
        if (loop_add(&a, EPOLLIN) < 0 || loop_add(&b, EPOLLIN) < 0)
                _exit(2);
        loop_set_deadline(now_ns() + 20 * NS_PER_MS, end_the_rest);
        loop_run();
}

/* Whichever is called first takes the other out: it must not be called, though its event
 * has been fetched already. */
static void remove_the_other(struct source *s, uint32_t events)
{
        (void)events;
        calls++;
        struct source *other = s == &a ? &b : &a;
        loop_remove(other);
        loop_remove(s);
        if (other->fd != -1 || s->fd != -1)
                _exit(3);
}

static void after(void)
{
        _exit(calls == 1 ? 7 : 4);
}

static void dropped_events(void)
{
        a = (struct source){ ready_fd(), remove_the_other };
        b = (struct source){ ready_fd(), remove_the_other };
        if (loop_add(&a, EPOLLIN) < 0 || loop_add(&b, EPOLLIN) < 0)
                _exit(2);
        loop_set_deadline(now_ns() + 30 * NS_PER_MS, after);
        loop_run();
}

static void ping(struct source *s, uint32_t events)
{
        (void)s;
        if (!(events & EPOLLOUT))
                _exit(3);
        _exit(calls == 0 ? 7 : 4);
}

static void changed_interest(void)
{
        a = (struct source){ eventfd(0, EFD_CLOEXEC), ping };
        if (loop_add(&a, EPOLLIN) < 0 || loop_mod(&a, EPOLLOUT) < 0)
                _exit(2);
        loop_run();
}

static void deadline_passed(void)
{
        loop_set_deadline(1, after);
        calls = 1;
        loop_run();
}

static void again(void)
{
        if (++calls == 3)
                _exit(7);
        loop_set_deadline(now_ns() + NS_PER_MS, again);
}

static void deadline_rearmed(void)
{
        loop_set_deadline(now_ns() + NS_PER_MS, again);
        loop_run();
}

static void stop_it(struct source *s, uint32_t events)
{
        (void)events;
        (void)s;
        _exit(7);
}

static void deadline_cleared(void)
{
        loop_set_deadline(1, after);
        loop_set_deadline(0, NULL);
        a = (struct source){ ready_fd(), stop_it };
        if (loop_add(&a, EPOLLIN) < 0)
                _exit(2);
        loop_run();
}

/* An agent is forked out of the keeper's loop: the old loop's deadline and events stay behind. */
static void reopen(struct source *s, uint32_t events)
{
        (void)s;
        (void)events;
        loop_set_deadline(1, after); /* calls is 0: being called would be exit code 4 */
        if (loop_open() < 0)
                _exit(2);
        c = (struct source){ ready_fd(), stop_it };
        if (loop_add(&c, EPOLLIN) < 0)
                _exit(2);
        loop_run();
}

static void opened_anew(void)
{
        a = (struct source){ ready_fd(), reopen };
        b = (struct source){ ready_fd(), reopen };
        if (loop_add(&a, EPOLLIN) < 0 || loop_add(&b, EPOLLIN) < 0)
                _exit(2);
        loop_run();
}

static void errors(void)
{
        a = (struct source){ -1, stop_it };
        loop_remove(&a); /* nothing to take out */
        if (loop_add(&a, EPOLLIN) != -EBADF || loop_mod(&a, EPOLLIN) != -EBADF)
                _exit(1);
        a.fd = open("/dev/null", O_RDONLY);
        if (loop_add(&a, EPOLLIN) != -EPERM)
                _exit(2);
        a.fd = ready_fd();
        if (loop_mod(&a, EPOLLIN) != -ENOENT || loop_add(&a, EPOLLIN) != 0 || loop_add(&a, EPOLLIN) != -EEXIST)
                _exit(3);
        _exit(7);
}

static void test_loop(void)
{
        CHECK_INT(exit_of(one_source), 7);
        CHECK_INT(exit_of(dropped_events), 7);
        CHECK_INT(exit_of(changed_interest), 7);
        CHECK_INT(exit_of(resting), 7);
        CHECK_INT(exit_of(errors), 7);
}

static void test_deadline(void)
{
        CHECK_INT(exit_of(deadline_passed), 7);
        CHECK_INT(exit_of(deadline_rearmed), 7);
        CHECK_INT(exit_of(deadline_cleared), 7);
}

static void test_forked_out_of_a_loop(void)
{
        CHECK_INT(exit_of(opened_anew), 7);
}

int main(void)
{
        RUN(test_loop);
        RUN(test_deadline);
        RUN(test_forked_out_of_a_loop);
        return check_done();
}
