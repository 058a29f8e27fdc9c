/* conn.c alone, in a process of its own: execs and workers are stand-ins that do at once
 * what the request names. The real ones are behind the same socket in test_agent.c. */
#include "agent/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/exec.h"
#include "agent/worker.h"
#include "check.h"
#include "os/loop.h"
#include "os/sys.h"
#include "wire/frame.h"

#define BIG_BYTES (3u << 20) /* of each of two frames: no socket buffer holds them */
#define AGENT_FDS 32

static struct sockaddr_un address = { .sun_family = AF_UNIX };
static socklen_t address_len;
static int told[2]; /* R: ready; W: an exec waits; A: it was abandoned */
static pid_t agent;

/* --- the agent's process --- */

struct exec {
        struct conn *c;
};
static struct exec running;

static void answer(struct conn *c, struct str text, unsigned times)
{
        struct buf out = { 0 };
        for (unsigned i = 0; i < times; i++)
                frame_add(&out, FRAME_STDOUT, text.p, text.n);
        conn_finish(c, &out);
        CHECK(!out.data && !out.len); /* taken */
}

struct exec *exec_start(struct conn *c, struct str payload)
{
        static char big[BIG_BYTES], sentence[1000];
        if (str_eq(payload, "wait")) {
                running.c = c;
                CHECK_INT(write(told[1], "W", 1), 1);
                return &running;
        }
        if (str_eq(payload, "release"))
                answer(running.c, STR("released"), 1);
        if (str_eq(payload, "big")) {
                memset(big, 'b', sizeof big);
                answer(c, (struct str){ big, sizeof big }, 2);
        } else if (str_eq(payload, "fail")) {
                memset(sentence, 's', sizeof sentence - 1);
                conn_fail(c, -ENOENT, ERR_USER, "%%: %s", sentence);
        } else if (str_eq(payload, "no memory")) {
                struct buf out = { .failed = true };
                conn_finish(c, &out);
        } else
                answer(c, payload, 1);
        return NULL;
}

void exec_abandon(struct exec *x)
{
        CHECK(x == &running);
        CHECK_INT(write(told[1], "A", 1), 1);
}

/* Sends back what comes after the request, to the end. */
void worker_start(struct conn *c, enum frame_type type, struct str payload)
{
        char block[1000];
        bool quit = str_eq(payload, "quit");
        int fd = conn_steal_fd(c);
        CHECK(fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 && type == FRAME_UNTAR);
        for (ssize_t n; !quit && (n = read(fd, block, sizeof block)) > 0;)
                CHECK_INT(write(fd, block, (size_t)n), n);
        (void)close(fd);
        if (quit)
                exit(check_failures ? 1 : 0); /* leaks count */
}

static void agent_main(int listen_fd)
{
        struct rlimit few = { AGENT_FDS, AGENT_FDS };
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGPIPE, SIG_DFL); /* one that leaves must not end us by it */
        check_failures = 0;
        if (loop_open() < 0 || conn_setup(listen_fd, "sbx-unit", 7) < 0)
                _exit(90);
        (void)setrlimit(RLIMIT_NOFILE, &few);
        CHECK_INT(write(told[1], "R", 1), 1);
        loop_run();
}

/* --- the server's side --- */

static int dial(void)
{
        struct timeval limit = { .tv_sec = 20 };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_INT(connect(fd, (struct sockaddr *)&address, address_len), 0);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        return fd;
}

static void say(int fd, enum frame_type type, const char *payload)
{
        _cleanup_buf_ struct buf b = { 0 };
        frame_add(&b, type, payload, strlen(payload));
        CHECK_INT(send(fd, b.data, b.len, MSG_NOSIGNAL), b.len);
}

/* The next frame is of that type; its payload is in last. */
static struct buf last;
static bool hear(int fd, enum frame_type type)
{
        struct frame f;
        return frame_read(fd, &last, &f) == 1 && f.type == type;
}

static bool hear_text(int fd, const char *text)
{
        return hear(fd, FRAME_STDOUT) && str_eq((struct str){ last.data, last.len }, text);
}

/* It ends without another byte; a reset tells that we had not been read to the end. */
static bool ended(int fd)
{
        char c;
        ssize_t n = recv(fd, &c, 1, 0);
        bool yes = n == 0 || (n < 0 && errno == ECONNRESET);
        (void)close(fd);
        return yes;
}

static char tells(void)
{
        char c = 0;
        return read(told[0], &c, 1) == 1 ? c : 0;
}

static void check_ping(void)
{
        struct str payload, v;
        enum field tag;
        uint64_t slot = 0;
        int fd = dial();
        say(fd, FRAME_PING, "");
        CHECK(hear(fd, FRAME_HELLO));
        payload = (struct str){ last.data, last.len };
        CHECK(field_next(&payload, &tag, &v) == 1 && tag == FIELD_NAME && str_eq(v, "sbx-unit"));
        CHECK(field_next(&payload, &tag, &v) == 1 && tag == FIELD_COUNT && field_u64(v, &slot) && slot == 7);
        CHECK(ended(fd));
}

static void test_frames_that_are_none(void)
{
        static const unsigned char heads[][FRAME_HEAD_BYTES] = {
                { 0, 0, 0, 0, FRAME_NONE },    { 0, 0, 0, 0, FRAME_TYPE_MAX },        { 0, 0, 0, 0, 255 },
                { 0, 0, 0, 0, FRAME_PING, 1 }, { 0, 0, 0, 0, FRAME_PING, 0, 0, 1 },   { 1, 0, 64, 0, FRAME_EXEC },
                { 255, 255, 255, 255, FRAME_EXEC },
        };
        for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
                int fd = dial();
                CHECK_INT(send(fd, heads[i], FRAME_HEAD_BYTES, MSG_NOSIGNAL), FRAME_HEAD_BYTES);
                CHECK(ended(fd)); /* we did not close */
        }
        _cleanup_buf_ struct buf b = { 0 };
        frame_add(&b, FRAME_EXEC, "cut", 3);
        for (size_t n = 0; n < b.len; n++) {
                int fd = dial();
                CHECK_INT(send(fd, b.data, n, MSG_NOSIGNAL), n);
                CHECK_INT(shutdown(fd, SHUT_WR), 0);
                CHECK(ended(fd));
        }
        check_ping();
}

static void test_unexpected_frames(void)
{
        for (int type = FRAME_DATA; type < FRAME_TYPE_MAX; type++) {
                struct fail_frame got;
                int fd = dial();
                say(fd, type, "payload");
                CHECK(hear(fd, FRAME_FAIL));
                frame_parse_fail((struct str){ last.data, last.len }, &got);
                CHECK(got.code == EPROTO && got.blame == ERR_HOST && strstr(got.msg, frame_name(type)));
                CHECK(ended(fd));
        }
}

/* Execs follow each other on one connection, also when they were sent at once. */
static void test_reuse(void)
{
        struct fail_frame got;
        _cleanup_buf_ struct buf b = { 0 };
        int fd = dial();
        say(fd, FRAME_EXEC, "one");
        CHECK(hear_text(fd, "one"));
        frame_add(&b, FRAME_EXEC, "two", 3);
        frame_add(&b, FRAME_EXEC, "fail", 4);
        frame_add(&b, FRAME_EXEC, "three", 5);
        frame_add(&b, FRAME_PING, NULL, 0);
        for (size_t i = 0; i < b.len; i++)
                CHECK_INT(send(fd, b.data + i, 1, MSG_NOSIGNAL), 1);
        CHECK(hear_text(fd, "two"));
        CHECK(hear(fd, FRAME_FAIL));
        frame_parse_fail((struct str){ last.data, last.len }, &got);
        CHECK(got.code == ENOENT && got.blame == ERR_USER && strncmp(got.msg, "%: sss", 6) == 0);
        CHECK(hear_text(fd, "three") && hear(fd, FRAME_HELLO) && ended(fd));
        fd = dial();
        say(fd, FRAME_EXEC, "no memory");
        CHECK(ended(fd)); /* cut, rather than half an answer */
}

/* More than the socket takes at once, to one that reads and one that leaves. */
static void test_big_answer(void)
{
        int fd = dial();
        for (int again = 0; again < 2; again++) {
                say(fd, FRAME_EXEC, "big");
                check_ping(); /* an answer: the agent goes on while we do not read */
                for (int i = 0; i < 2; i++) {
                        CHECK(hear(fd, FRAME_STDOUT));
                        CHECK(last.len == BIG_BYTES && last.data[0] == 'b' && last.data[BIG_BYTES - 1] == 'b');
                }
        }
        say(fd, FRAME_EXEC, "after");
        CHECK(hear_text(fd, "after"));
        say(fd, FRAME_EXEC, "big");
        check_ping();
        (void)close(fd);
        check_ping();
        check_ping(); /* accepted after the close had been seen */
}

/* It has left before its request is even read: the answer goes nowhere, without a signal. */
static void test_gone_before(void)
{
        int status = 0;
        CHECK_INT(kill(agent, SIGSTOP), 0);
        CHECK(waitpid(agent, &status, WUNTRACED) == agent && WIFSTOPPED(status));
        for (int i = 0; i < 3; i++) {
                int fd = dial();
                if (i)
                        say(fd, FRAME_EXEC, i == 1 ? "x" : "big");
                (void)close(fd);
        }
        CHECK_INT(kill(agent, SIGCONT), 0);
        check_ping();
}

/* Who leaves, or speaks out of turn, during an exec has abandoned it. */
static void test_abandoned(void)
{
        for (int how = 0; how < 3; how++) {
                int fd = dial();
                say(fd, FRAME_EXEC, "wait");
                CHECK_INT(tells(), 'W');
                if (how == 0)
                        say(fd, FRAME_PING, "");
                if (how == 1)
                        CHECK_INT(shutdown(fd, SHUT_WR), 0);
                if (how == 2)
                        (void)close(fd);
                CHECK_INT(tells(), 'A');
                if (how < 2)
                        CHECK(ended(fd));
        }
        int fd = dial(), other = dial();
        say(fd, FRAME_EXEC, "wait");
        CHECK_INT(tells(), 'W');
        say(other, FRAME_EXEC, "release");
        CHECK(hear_text(fd, "released") && hear_text(other, "release"));
        say(fd, FRAME_EXEC, "next");
        CHECK(hear_text(fd, "next"));
        CHECK(shutdown(fd, SHUT_WR) == 0 && ended(fd)); /* nothing ran: nobody is told, see test_quit */
        CHECK(shutdown(other, SHUT_WR) == 0 && ended(other));
}

/* Not a byte past its frame is taken from a connection that is handed on. */
static void test_handed_on(void)
{
        char got[64] = "";
        _cleanup_buf_ struct buf b = { 0 };
        int fd = dial();
        frame_add(&b, FRAME_UNTAR, "x", 1);
        buf_adds(&b, "this is the worker's");
        CHECK_INT(send(fd, b.data, b.len, MSG_NOSIGNAL), b.len);
        CHECK_INT(shutdown(fd, SHUT_WR), 0);
        CHECK_INT(recv(fd, got, sizeof got - 1, MSG_WAITALL), 20);
        CHECK_STR(got, "this is the worker's");
        CHECK(ended(fd));
}

/* Without descriptors the agent accepts nobody, and goes on when it has some again. */
static void test_more_than_fit(void)
{
        int fds[AGENT_FDS * 2];
        for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
                fds[i] = dial();
        for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
                say(fds[i], FRAME_PING, "");
        for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
                CHECK(hear(fds[i], FRAME_HELLO));
                CHECK(ended(fds[i]));
        }
}

static void test_quit(void)
{
        int status = -1, fd = dial();
        say(fd, FRAME_UNTAR, "quit");
        CHECK(ended(fd));
        CHECK_INT(tells(), 0); /* no exec was abandoned that is not counted above */
        (void)waitpid(agent, &status, 0);
        CHECK_INT(status, 0);
}

static void test_setup_fails(void)
{
        CHECK_INT(conn_setup(-1, "x", 0), -EBADF);
        CHECK_INT(conn_setup(told[0], "x", 0), -ENOTSOCK);
}

int main(void)
{
        (void)sys_close_range(3, ~0u, 0); /* the agent's are counted */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        address_len = sizeof address;
        /* Without a path the kernel chooses a name. */
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)) < 0 ||
            getsockname(fd, (struct sockaddr *)&address, &address_len) < 0 || pipe2(told, O_CLOEXEC) < 0)
                return 1;
        agent = fork();
        if (agent == 0)
                agent_main(fd);
        (void)close(fd);
        (void)close(told[1]);
        if (agent < 0 || tells() != 'R')
                return 1;
        RUN(check_ping);
        RUN(test_frames_that_are_none);
        RUN(test_unexpected_frames);
        RUN(test_reuse);
        RUN(test_big_answer);
        RUN(test_gone_before);
        RUN(test_abandoned);
        RUN(test_handed_on);
        RUN(test_more_than_fit);
        RUN(test_quit);
        RUN(test_setup_fails);
        buf_free(&last);
        return check_done();
}
