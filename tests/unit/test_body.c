#include "http_fixture.h"

#include <fcntl.h>

static void test_collect(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"), 200);
        CHECK_STR(body_of(heard), "hello");
        CHECK_INT(ask("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n"), 200);
        CHECK_STR(body_of(heard), "abcde");
        CHECK_INT(ask("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        CHECK_STR(body_of(heard), "");
        fix_stop();
}

static void test_bad_chunks_close(void)
{
        static const char *const bad[] = { "0x3\r\nabc\r\n", "+3\r\nabc\r\n", "3\r\nabcX\r\n",
                                           "fffffffffffffffff\r\n", "3\nabc\n", "3 \r\nabc\r\n" };
        char text[300];
        fix_start(&fix_limits);
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                (void)snprintf(text, sizeof text,
                               "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%s", bad[i]);
                CHECK_INT(ask(text), 400);
                CHECK(strstr(heard, "Connection: close\r\n") != NULL);
                CHECK(!heard_reset);
        }
        CHECK_INT(fix->gone, 6); /* the handler is told before the refusal */
        fix_stop();
}

static void test_too_large(void)
{
        static char big[1100000];
        memset(big, 'b', sizeof big);
        fix_start(&fix_limits);
        /* declared: refused before a byte of it is read */
        CHECK_INT(ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000001\r\n\r\n"), 413);
        CHECK_INT(ask("POST /count HTTP/1.1\r\nHost: h\r\nContent-Length: 50000001\r\n\r\n"), 413);
        /* found out on the way; the client goes on sending and still reads the answer */
        int fd = dial();
        CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10c8e0\r\n"));
        CHECK(say_n(fd, big, sizeof big));
        CHECK_INT(status_of(hear_all(fd)), 413);
        CHECK(!heard_reset);
        CHECK_INT(fix->last_status, 413);
        CHECK_INT(fix->gone, 3);
        (void)close(fd);
        fix_stop();
}

static void test_continue(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"));
        CHECK_STR(hear_until(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        CHECK(say(fd, "abc"));
        CHECK_INT(status_of(hear_until(fd, "abc")), 200);
        /* refused without a go-ahead, then closed: the body may come or not */
        CHECK(say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"));
        CHECK_INT(status_of(hear_all(fd)), 413);
        (void)close(fd);
        /* answered without asking for the body */
        CHECK_INT(ask("POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"), 200);
        CHECK(strstr(heard, "Connection: close") != NULL);
        CHECK_INT(ask("POST /x HTTP/1.1\r\nHost: h\r\nExpect: more\r\nContent-Length: 3\r\n\r\n"), 417);
        fix_stop();
}

static void test_stream(void)
{
        static char block[100000];
        memset(block, 'b', sizeof block);
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "PUT /count HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n"));
        for (int i = 0; i < 100; i++)
                CHECK(say_n(fd, block, sizeof block));
        CHECK_INT(status_of(hear_until(fd, "10000000")), 200);
        CHECK_INT(fix->ended, 1);
        (void)close(fd);
        fix_stop();
}

static void resume(struct fixture *f)
{
        struct http_req *req = f->held;
        f->held = NULL;
        f->paused_now = 0;
        if (req)
                http_resume_body(req);
}

/* A paused body stops the sender, and nothing is lost when it goes on. */
static void test_pause(void)
{
        static char block[65536];
        memset(block, 'b', sizeof block);
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "PUT /pause HTTP/1.1\r\nHost: h\r\nContent-Length: 67108864\r\n\r\n"));
        (void)fcntl(fd, F_SETFL, O_NONBLOCK);
        size_t sent = 0, total = 67108864;
        CHECK(fix_wait(&fix->requests, 1));
        /* The first piece pauses; then the socket fills up and stays full. */
        for (int idle = 0; idle < 50;) {
                ssize_t k = send(fd, block, sizeof block, MSG_NOSIGNAL);
                if (k > 0) {
                        sent += (size_t)k;
                        idle = 0;
                } else {
                        idle++;
                        (void)usleep(1000);
                }
        }
        CHECK(sent < total);
        CHECK(fix->piece_bytes <= 128 * 1024);
        while (sent < total) {
                if (fix->paused_now)
                        fix_call(resume);
                size_t n = total - sent < sizeof block ? total - sent : sizeof block;
                ssize_t k = send(fd, block, n, MSG_NOSIGNAL);
                if (k > 0)
                        sent += (size_t)k;
        }
        for (int i = 0; i < WAIT_MS && !fix->ended; i++) {
                if (fix->paused_now)
                        fix_call(resume);
                else
                        (void)usleep(1000);
        }
        CHECK_INT(fix->piece_bytes, 67108864);
        CHECK_INT(status_of(hear_until(fd, "whole")), 200);
        (void)close(fd);
        fix_stop();
}

/* Chunks that share one read, with a pause after each: the rest waits in the server. */
static void test_pause_in_chunks(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "PUT /pause HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n"));
        for (int i = 1; i <= 3; i++) {
                CHECK(fix_wait(&fix->paused_now, 1));
                CHECK_INT(fix->piece_bytes, i);
                fix_call(resume);
        }
        CHECK_INT(status_of(hear_until(fd, "whole")), 200);
        CHECK(strstr(hear_until(fd, "host=1"), "GET /next") != NULL);
        (void)close(fd);
        fix_stop();
}

/* Answered before the body has come: a short rest is dropped and the connection kept. */
static void test_unread_body(void)
{
        static char rest[400000];
        memset(rest, 'r', sizeof rest);
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345"));
        CHECK_INT(status_of(hear_until(fd, "host=1")), 200);
        (void)hear_until(fd, "id=");
        for (int i = 0; i < 16; i++)
                (void)recv(fd, heard, 1, MSG_WAITALL);
        CHECK(say(fd, "67890GET /second HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(strstr(hear_until(fd, "host=1"), "GET /second") != NULL);
        (void)close(fd);
        /* in the middle of streaming it */
        fd = dial();
        CHECK(say(fd, "POST /early HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"));
        CHECK_INT(status_of(hear_until(fd, "enough")), 200);
        CHECK(say(fd, "3\r\nabc\r\n0\r\n\r\nGET /third HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(strstr(hear_until(fd, "host=1"), "GET /third") != NULL);
        (void)close(fd);
        /* a long rest costs the connection, and the answer says so */
        fd = dial();
        CHECK(say(fd, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 400000\r\n\r\n"));
        CHECK(say_n(fd, rest, sizeof rest));
        CHECK_INT(status_of(hear_all(fd)), 200);
        CHECK(strstr(heard, "Connection: close") != NULL && !heard_reset);
        (void)close(fd);
        /* chunked: nobody knew that it would be long */
        fd = dial();
        CHECK(say(fd, "POST /early HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n61a80\r\n"));
        CHECK(say_n(fd, rest, sizeof rest));
        CHECK_INT(status_of(hear_all(fd)), 200);
        (void)close(fd);
        fix_stop();
}

static void test_abort_in_piece(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("POST /abort-piece HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\nabc\r\n"), -1);
        CHECK_INT(fix->last_status, 0);
        CHECK_INT(fix->done, 1);
        fix_stop();
}

int main(void)
{
        RUN(test_collect);
        RUN(test_bad_chunks_close);
        RUN(test_too_large);
        RUN(test_continue);
        RUN(test_stream);
        RUN(test_pause);
        RUN(test_pause_in_chunks);
        RUN(test_unread_body);
        RUN(test_abort_in_piece);
        return check_done();
}
