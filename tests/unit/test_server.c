#include "http_fixture.h"

#include <sys/resource.h>

static atomic_int connections;

static void count_connections(struct fixture *f)
{
        connections = (int)http_server_connections(f->server);
}

static bool wait_for_connections(int want)
{
        for (int i = 0; i < WAIT_MS; i++) {
                fix_call(count_connections);
                if (connections == want)
                        return true;
                (void)usleep(1000);
        }
        return false;
}

static void test_connection_limit(void)
{
        struct http_limits l = fix_limits;
        l.connections = 3;
        fix_start(&l);
        int fd[3];
        for (int i = 0; i < 3; i++)
                fd[i] = dial();
        CHECK(wait_for_connections(3));
        for (int i = 0; i < 5; i++) {
                CHECK_INT(ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), 503);
                CHECK(strstr(heard, "\r\nRetry-After: 1\r\n") != NULL);
                CHECK(strstr(heard, "\r\nConnection: close\r\n") != NULL);
                CHECK(!heard_reset);
        }
        CHECK_INT(fix->requests, 0);
        (void)close(fd[0]);
        CHECK(wait_for_connections(2));
        CHECK_INT(ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        (void)close(fd[1]);
        (void)close(fd[2]);
        fix_stop();
}

/* Far above the limit even the 503 is not promised, but nothing breaks. */
static void test_flood(void)
{
        struct http_limits l = fix_limits;
        l.connections = 2;
        fix_start(&l);
        int fd[200];
        for (int i = 0; i < 200; i++)
                fd[i] = dial();
        CHECK(wait_for_connections(2));
        for (int i = 0; i < 200; i++)
                (void)close(fd[i]);
        CHECK(wait_for_connections(0));
        CHECK_INT(ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        fix_stop();
}

static atomic_int turns;
static uv_check_t turn_counter;

static void count_turn(uv_check_t *h)
{
        (void)h;
        turns++;
}

static void start_counting(struct fixture *f)
{
        turns = 0;
        (void)uv_check_init(&f->loop, &turn_counter);
        (void)uv_check_start(&turn_counter, count_turn);
}

static void stop_counting(struct fixture *f)
{
        (void)f;
        uv_close((uv_handle_t *)&turn_counter, NULL);
}

/* Without file descriptors the loop neither dies nor spins, and recovers. */
static void test_no_descriptors(void)
{
        fix_start(&fix_limits);
        int early = dial();
        CHECK(wait_for_connections(1));
        fix_call(start_counting);
        /* Our side of the connections is made before the limit falls. */
        int fd[8];
        for (int i = 0; i < 8; i++)
                fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct rlimit old, low;
        (void)getrlimit(RLIMIT_NOFILE, &old);
        low = old;
        low.rlim_cur = (rlim_t)fd[7] + 1;
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &low), 0);
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons(fix->port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        for (int i = 0; i < 8; i++)
                CHECK_INT(connect(fd[i], (struct sockaddr *)&a, sizeof a), 0);
        (void)usleep(50000);
        CHECK(turns < 1000);
        CHECK(say(early, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nup"));
        CHECK_INT(status_of(hear_until(early, "up")), 200);
        for (int i = 0; i < 8; i++)
                (void)close(fd[i]);
        (void)setrlimit(RLIMIT_NOFILE, &old);
        CHECK_INT(ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        fix_call(stop_counting);
        (void)close(early);
        fix_stop();
}

static void on_drained(void *user)
{
        (void)user;
        fix->drained++;
}

static void drain(struct fixture *f)
{
        http_server_drain(f->server, on_drained, NULL);
}

static void answer_held(struct fixture *f)
{
        struct http_req *req = f->held;
        f->held = NULL;
        if (req)
                http_reply(req, 200, "text/plain", "done", 4);
}

static void test_drain(void)
{
        fix_start(&fix_limits);
        int idle = dial(), busy = dial(), half = dial();
        CHECK(wait_for_connections(3));
        CHECK(say(busy, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(say(half, "GET /half HTTP/1.1\r\nHo"));
        CHECK(fix_wait(&fix->requests, 1));
        fix_call(count_connections); /* a turn, so that the half head is read */
        (void)usleep(10000);
        fix_call(drain);
        CHECK_STR(hear_all(idle), ""); /* closed at once */
        CHECK_INT(fix->drained, 0);
        CHECK(say(half, "st: h\r\n\r\n"));
        CHECK_INT(status_of(hear_all(half)), 200);
        fix_call(answer_held);
        CHECK_INT(status_of(hear_all(busy)), 200);
        CHECK(strstr(heard, "Connection: close") != NULL);
        CHECK(fix_wait(&fix->drained, 1));
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons(fix->port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(connect(late, (struct sockaddr *)&a, sizeof a) < 0);
        (void)close(late);
        (void)close(idle);
        (void)close(busy);
        (void)close(half);
        fix_stop();
}

static void test_drain_when_empty(void)
{
        fix_start(&fix_limits);
        fix_call(drain);
        CHECK(fix_wait(&fix->drained, 1));
        fix_stop();
}

/* Closing tells those who wait, and leaves nothing behind (the address sanitizer and
 * uv_loop_close() look). */
static void test_close_with_work(void)
{
        fix_start(&fix_limits);
        int fd[4];
        static const char *const texts[] = {
                "GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /more HTTP/1.1\r\nHost: h\r\n\r\n",
                "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf",
                "GET /long HTTP/1.1\r\nHost: h\r\n\r\n",
                "GET /part HTTP/1.1\r\nHo",
        };
        for (int i = 0; i < 4; i++) {
                fd[i] = dial();
                CHECK(say(fd[i], texts[i]));
        }
        CHECK(fix_wait(&fix->requests, 3));
        struct fixture *f = fix;
        fix_call(fix_close_job);
        (void)uv_thread_join(&f->thread);
        CHECK_INT(uv_loop_close(&f->loop), 0);
        CHECK_INT(f->gone, 3);
        CHECK_INT(f->done, 3);
        for (int i = 0; i < 4; i++)
                (void)close(fd[i]);
        free(f);
        fix = NULL;
}

static int unix_fd;

static void add_unix(struct fixture *f)
{
        struct err e = { 0 };
        CHECK_INT(http_server_add_listener(f->server, unix_fd, &e), 0);
        CHECK(http_server_add_listener(f->server, -1, &e) < 0);
        CHECK(e.msg[0] != '\0');
}

static void test_unix(void)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        (void)snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "cloche-test-http-%d", (int)getpid());
        fix_start(&fix_limits);
        unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_INT(bind(unix_fd, (struct sockaddr *)&a, sizeof a), 0);
        CHECK_INT(listen(unix_fd, 16), 0);
        fix_call(add_unix);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_INT(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        CHECK(say(fd, "GET /u HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(strstr(hear_until(fd, "host=1"), "peer=unix") != NULL);
        (void)close(fd);
        CHECK_INT(ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        fix_stop();
}

static void test_bad_listener(void)
{
        uv_loop_t loop;
        struct http_server *s = NULL;
        struct err e = { 0 };
        CHECK_INT(uv_loop_init(&loop), 0);
        CHECK(http_server_new(&loop, -1, &fix_limits, &fix_callbacks, NULL, &s, &e) < 0);
        CHECK(s == NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        CHECK_INT(uv_loop_close(&loop), 0);
}

int main(void)
{
        RUN(test_connection_limit);
        RUN(test_flood);
        RUN(test_no_descriptors);
        RUN(test_drain);
        RUN(test_drain_when_empty);
        RUN(test_close_with_work);
        RUN(test_unix);
        RUN(test_bad_listener);
        return check_done();
}
