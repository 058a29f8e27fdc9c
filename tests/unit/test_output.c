#include "http_fixture.h"

#include <fcntl.h>

/* Reads n bytes in small steps and returns how many came. */
static size_t drain(int fd, size_t n)
{
        static char block[65536];
        size_t got = 0;
        while (got < n && ready(fd, POLLIN)) {
                ssize_t k = recv(fd, block, sizeof block, 0);
                if (k <= 0)
                        break;
                got += (size_t)k;
        }
        return got;
}

/* A fast producer and a reader that comes late: the producer waits, nothing is lost. */
static void test_slow_reader(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(fix_wait(&fix->drains, 1));
        (void)usleep(20000);
        CHECK_INT(fix->drains, 1); /* nobody reads: no second call */
        CHECK_INT(status_of(hear_until(fd, "\r\n\r\n")), 200);
        CHECK(strstr(heard, "Transfer-Encoding: chunked") != NULL);
        /* 256 chunks of 64 KiB: "10000\r\n" … "\r\n", then "0\r\n\r\n" */
        size_t want = 256 * (65536 + 9) + 5;
        CHECK_INT(drain(fd, want), want);
        CHECK(fix->drains > 1);
        CHECK_INT(fix->done, 1);
        CHECK_INT(fix->last_sent, 16 << 20);
        /* and the connection is as good as new */
        CHECK(say(fd, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK_INT(status_of(hear_until(fd, "later")), 200);
        (void)close(fd);
        fix_stop();
}

static void test_big_answers_in_order(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        /* The second is not even looked at while the first waits for its reader. */
        CHECK(say(fd, "GET /bigbuf HTTP/1.1\r\nHost: h\r\n\r\nGET /hello HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(fix_wait(&fix->done, 1));
        (void)usleep(20000);
        CHECK_INT(fix->requests, 1);
        CHECK_INT(status_of(hear_until(fd, "\r\n\r\n")), 200);
        CHECK(strstr(heard, "Content-Length: 8388608\r\n") != NULL);
        static char block[1 << 16];
        for (size_t left = 8u << 20; left;) {
                ssize_t k = ready(fd, POLLIN) ? recv(fd, block, left < sizeof block ? left : sizeof block, 0) : 0;
                if (k <= 0)
                        break;
                left -= (size_t)k;
                CHECK(block[0] == 'y' && block[k - 1] == 'y');
        }
        CHECK(strstr(hear_until(fd, "host=1"), "GET /hello") != NULL);
        (void)close(fd);
        fix_stop();
}

/* Closed by request while the answer still waits for its reader: all of it arrives. */
static void test_close_after_flush(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "GET /bigbuf HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        CHECK(fix_wait(&fix->done, 1));
        CHECK_INT(status_of(hear_until(fd, "\r\n\r\n")), 200);
        CHECK_INT(drain(fd, SIZE_MAX), 8 << 20);
        (void)close(fd);
        /* the same for a client that has shut its sending side */
        fd = dial();
        CHECK(say(fd, "GET /bigbuf HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK_INT(shutdown(fd, SHUT_WR), 0);
        CHECK_INT(status_of(hear_until(fd, "\r\n\r\n")), 200);
        CHECK_INT(drain(fd, SIZE_MAX), 8 << 20);
        (void)close(fd);
        fix_stop();
}

/* A reader that takes nothing is cut. */
static void test_write_timeout(void)
{
        struct http_limits l = fix_limits;
        l.write_timeout_ms = 100;
        fix_start(&l);
        int fd = dial();
        CHECK(say(fd, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(fix_wait(&fix->gone, 1));
        CHECK_INT(fix->done, 1);
        CHECK(drain(fd, SIZE_MAX) < 16u << 20);
        (void)close(fd);
        /* one that takes a little now and then is not */
        fd = dial();
        CHECK(say(fd, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(drain(fd, (16u << 20)) >= 16u << 20);
        CHECK_INT(fix->gone, 1);
        (void)close(fd);
        fix_stop();
}

/* The peer resets while a streamed answer is on its way. */
static void test_reset_while_writing(void)
{
        fix_start(&fix_limits);
        int fd = dial();
        CHECK(say(fd, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n"));
        CHECK(fix_wait(&fix->drains, 1));
        struct linger hard = { .l_onoff = 1, .l_linger = 0 };
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        (void)close(fd);
        CHECK(fix_wait(&fix->gone, 1));
        CHECK(fix_wait(&fix->done, 1));
        fix_stop();
}

int main(void)
{
        RUN(test_slow_reader);
        RUN(test_big_answers_in_order);
        RUN(test_close_after_flush);
        RUN(test_write_timeout);
        RUN(test_reset_while_writing);
        return check_done();
}
