#include "http_fixture.h"
#include "http/http_internal.h"

static void test_refusals_close(void)
{
        static const struct {
                int status;
                const char *text;
        } cases[] = {
                { 400, "GET / HTTP/1.1\nHost: h\n\n" },
                { 400, "GET /\r\n" },
                { 400, "GET / HTTP/1.1\r\n\r\n" },
                { 400, "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n" },
                { 400, "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n" },
                { 400, "GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n" },
                { 400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n" },
                { 400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello" },
                { 501, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" },
                { 501, "BREW / HTTP/1.1\r\nHost: h\r\n\r\n" },
                { 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" },
                { 400, "GET * HTTP/1.1\r\nHost: h\r\n\r\n" },
                { 400, "\x16\x03\x01\x02\x01\x01" },
        };
        fix_start(&fix_limits);
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                CHECK_INT(ask(cases[i].text), cases[i].status);
                CHECK(!heard_reset);
        }
        CHECK_INT(fix->requests, 0);
        fix_stop();
}

static void test_large_heads(void)
{
        static char big[2000000];
        memset(big, 'a', sizeof big);
        fix_start(&fix_limits);
        memcpy(big, "GET /", 5);
        int fd = dial();
        (void)say_n(fd, big, sizeof big);
        CHECK_INT(status_of(hear_all(fd)), 414);
        CHECK(!heard_reset);
        (void)close(fd);
        memcpy(big, "GET / HTTP/1.1\r\nHost: h\r\nX: ", 28);
        fd = dial();
        (void)say_n(fd, big, sizeof big);
        CHECK_INT(status_of(hear_all(fd)), 431);
        (void)close(fd);
        struct buf many = { 0 };
        buf_adds(&many, "GET / HTTP/1.1\r\nHost: h\r\n");
        for (int i = 0; i < 10000; i++)
                buf_adds(&many, "A: b\r\n");
        CHECK_INT(ask_n(many.data, many.len), 431);
        buf_free(&many);
        fix_stop();
}

static void test_keep_alive(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        for (int i = 0; i < 3; i++) {
                CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"));
                CHECK_INT(status_of(hear_until(fd, "abc")), 200);
                CHECK(strstr(heard, "Connection:") == NULL);
        }
        CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"));
        CHECK_INT(status_of(hear_all(fd)), 200);
        (void)close(fd);
        /* HTTP/1.0 closes unless asked not to */
        CHECK_INT(ask("GET / HTTP/1.0\r\n\r\n"), 200);
        fd = dial();
        for (int i = 0; i < 2; i++) {
                CHECK(say(fd, "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n!"));
                CHECK_INT(status_of(hear_until(fd, "!")), 200);
                CHECK(strstr(heard, "Connection: keep-alive\r\n") != NULL);
        }
        (void)close(fd);
        fix_stop();
}

static void test_pipelining(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        /* slow, fast, with body: the answers keep the order */
        CHECK(say(fd, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n"
                      "GET /two HTTP/1.1\r\nHost: h\r\n\r\n"
                      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nthree"
                      "GET /four HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
                      "GET /never HTTP/1.1\r\nHost: h\r\n\r\n"));
        const char *all = hear_all(fd);
        const char *one = strstr(all, "later"), *two = strstr(all, "GET /two"),
                   *three = strstr(all, "three"), *four = strstr(all, "GET /four");
        CHECK(one && two && three && four && one < two && two < three && three < four);
        CHECK(strstr(all, "/never") == NULL);
        CHECK_INT(fix->requests, 4);
        (void)close(fd);
        fix_stop();
}

/* What comes behind a request in work is bounded: then the kernel holds it. */
static void test_pipelining_is_bounded(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n"));
        struct buf b = { 0 };
        for (int i = 0; i < 2000; i++)
                buf_adds(&b, "GET /none HTTP/1.1\r\nHost: h\r\n\r\n");
        buf_adds(&b, "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        CHECK(say_n(fd, b.data, b.len));
        CHECK(strstr(hear_all(fd), "GET /last") != NULL);
        CHECK_INT(fix->requests, 2002);
        buf_free(&b);
        (void)close(fd);
        fix_stop();
}

static void test_gone(void)
{
        fix_start(&fix_limits);
        /* while the handler works */
        int fd = dial();
        CHECK(say(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(fix_wait(&fix->requests, 1));
        (void)close(fd);
        CHECK(fix_wait(&fix->gone, 1));
        CHECK_INT(fix->last_status, 0);
        /* in the middle of a collected and of a streamed body */
        fd = dial();
        CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf"));
        CHECK(fix_wait(&fix->requests, 2));
        (void)close(fd);
        CHECK(fix_wait(&fix->gone, 2));
        fd = dial();
        CHECK(say(fd, "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"));
        CHECK(fix_wait(&fix->requests, 3));
        (void)close(fd);
        CHECK(fix_wait(&fix->gone, 3));
        CHECK(fix_wait(&fix->done, 3));
        CHECK_INT(fix->ended, 0);
        fix_stop();
}

/* Not read because its read-ahead is full: the tick notices. */
static void test_gone_behind_pipelined_bytes(void)
{
        struct http_limits l = fix_limits;
        l.idle_timeout_ms = 200; /* only makes the tick short */
        static char much[100000]; /* more than is read ahead, less than the kernel takes */
        memset(much, 'm', sizeof much);
        fix_start(&l);
        int fd = dial();
        CHECK(say(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(say_n(fd, much, sizeof much));
        CHECK(fix_wait(&fix->requests, 1));
        (void)close(fd);
        CHECK(fix_wait(&fix->gone, 1));
        fix_stop();
}

static void test_timeouts(void)
{
        struct http_limits l = fix_limits;
        l.head_timeout_ms = 60;
        l.idle_timeout_ms = 60;
        l.body_timeout_ms = 60;
        fix_start(&l);
        CHECK_INT(ask("GET / HTTP/1.1\r\nHost"), 408); /* slowloris */
        CHECK_INT(ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nslow"), 408);
        CHECK_INT(fix->gone, 1);
        CHECK_INT(ask(""), -1);                         /* nothing was asked, nothing is said */
        int fd = dial();
        CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"));
        CHECK_INT(status_of(hear_all(fd)), 200);
        CHECK_STR(body_of(heard), "ok");
        (void)close(fd);
        /* a handler may take its time: no timeout runs then */
        fd = dial();
        CHECK(say(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"));
        (void)usleep(200000);
        CHECK_INT(fix->gone, 1);
        (void)close(fd);
        CHECK(fix_wait(&fix->gone, 2));
        fix_stop();
}

/* --- without sockets: however the bytes are cut, the answers are the same ----------- */

static void feed(const char *p, size_t n, size_t step, struct buf *out)
{
        uv_loop_t loop;
        if (uv_loop_init(&loop) < 0)
                abort();
        fix = calloc(1, sizeof *fix);
        struct http_server *s = http_server_alloc(&loop, &fix_limits, &fix_callbacks, NULL);
        if (!fix || !s)
                abort();
        s->capture = out;
        s->id_seed = 1;
        struct http_conn *c = http_conn_new(s, false);
        http_server_adopt(c);
        http_conn_begin(c);
        for (size_t at = 0; at < n && c->state != HTTP_CONN_DEAD; at += step)
                http_conn_feed(c, p + at, n - at < step ? n - at : step);
        http_server_close(s, NULL, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        CHECK_INT(uv_loop_close(&loop), 0);
        free(fix);
        fix = NULL;
}

/* Dates may differ by a second between two runs. */
static void blank_dates(struct buf *b)
{
        char *text = buf_cstr(b);
        for (char *p = text; p && (p = strstr(p, "\r\nDate: ")); p += 8)
                memset(p + 8, '-', strcspn(p + 8, "\r"));
}

static void test_every_cut(void)
{
        static const char text[] =
                "\r\nGET /one?name=x HTTP/1.1\r\nHost: h\r\nX-Request-ID: abc\r\n\r\n"
                "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                "5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
                "POST /count HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n1234567"
                "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n1234567"
                "POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n1234567"
                "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"
                "GET / HTTP/1.1\r\nHost: h\r\nBad Header: x\r\n\r\nGET /after HTTP/1.1\r\nHost: h\r\n\r\n";
        _cleanup_buf_ struct buf whole = { 0 };
        feed(text, sizeof text - 1, sizeof text, &whole);
        blank_dates(&whole);
        CHECK(strstr(buf_cstr(&whole), "hello world") != NULL);
        CHECK(strstr(buf_cstr(&whole), "HTTP/1.1 400") != NULL);
        CHECK(strstr(buf_cstr(&whole), "/after") == NULL);
        for (size_t step = 1; step < sizeof text; step++) {
                _cleanup_buf_ struct buf cut = { 0 };
                feed(text, sizeof text - 1, step, &cut);
                blank_dates(&cut);
                CHECK_STR(buf_cstr(&cut), buf_cstr(&whole));
        }
}

int main(void)
{
        CHECK(sizeof(struct http_conn) < 1536); /* what an idle connection costs */
        RUN(test_refusals_close);
        RUN(test_large_heads);
        RUN(test_keep_alive);
        RUN(test_pipelining);
        RUN(test_pipelining_is_bounded);
        RUN(test_gone);
        RUN(test_gone_behind_pipelined_bytes);
        RUN(test_timeouts);
        RUN(test_every_cut);
        return check_done();
}
