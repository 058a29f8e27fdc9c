#include "http_fixture.h"

static int count(const char *in, const char *what)
{
        int n = 0;
        for (const char *p = in; (p = strstr(p, what)); p++)
                n++;
        return n;
}

static void test_whole(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"), 200);
        CHECK(strncmp(heard, "HTTP/1.1 200 OK\r\n", 17) == 0);
        CHECK_INT(count(heard, "\r\nContent-Length: 2\r\n"), 1);
        CHECK_INT(count(heard, "\r\nContent-Type: application/octet-stream\r\n"), 1);
        CHECK_INT(count(heard, "\r\nX-Request-ID: "), 1);
        CHECK_INT(count(heard, "\r\nConnection: close\r\n"), 1);
        CHECK_INT(count(heard, "\r\nDate: "), 1);
        CHECK_INT(count(heard, " GMT\r\n"), 1);
        CHECK_STR(body_of(heard), "hi");
        CHECK_INT(fix->last_sent, 2);
        fix_stop();
}

static void test_without_body(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("HEAD /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        CHECK_STR(body_of(heard), "");
        CHECK_INT(count(heard, "Content-Length: 0\r\n"), 0);
        CHECK_INT(count(heard, "Content-Length: "), 1);
        CHECK_INT(fix->last_sent, 0);
        CHECK_INT(ask("HEAD /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        CHECK_STR(body_of(heard), "");
        CHECK_INT(ask("GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 204);
        CHECK_INT(count(heard, "Content-"), 0);
        CHECK_STR(body_of(heard), "");
        fix_stop();
}

static void test_streamed(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        CHECK_INT(count(heard, "\r\nTransfer-Encoding: chunked\r\n"), 1);
        CHECK_INT(count(heard, "Content-Length"), 0);
        CHECK_STR(body_of(heard), "4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n");
        CHECK_INT(fix->last_sent, 7);
        /* HTTP/1.0 knows no chunks: the end of the connection is the end */
        CHECK_INT(ask("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), 200);
        CHECK_INT(count(heard, "Transfer-Encoding"), 0);
        CHECK_INT(count(heard, "\r\nConnection: close\r\n"), 1);
        CHECK_STR(body_of(heard), "one two");
        CHECK(!heard_reset);
        fix_stop();
}

/* An answer that cannot be finished must not look finished. */
static void test_cut(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("GET /cut HTTP/1.1\r\nHost: h\r\n\r\n"), 200);
        CHECK(strstr(body_of(heard), "0\r\n\r\n") == NULL);
        (void)ask("GET /cut HTTP/1.0\r\n\r\n");
        CHECK(heard_reset);
        CHECK_INT(fix->done, 2);
        CHECK_INT(fix->gone, 0);
        fix_stop();
}

static void test_header_injection(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("GET /headers HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), 200);
        CHECK_INT(fix->header_results, 0x7f);
        CHECK_INT(count(heard, "\r\nX-Good: fine\r\n"), 1);
        CHECK_INT(count(heard, "evil") + count(heard, "X-Evil") + count(heard, "X-Bad"), 0);
        CHECK_INT(count(heard, "Content-Length"), 1);
        fix_stop();
}

static void test_refusal_has_a_body(void)
{
        fix_start(&fix_limits);
        CHECK_INT(ask("GET / HTTP/3.0\r\n\r\n"), 505);
        CHECK(strstr(body_of(heard), "{\"code\":505,") == body_of(heard));
        CHECK_INT(count(heard, "\r\nContent-Type: application/json\r\n"), 1);
        CHECK_INT(count(heard, "\r\nX-Request-ID: "), 1);
        CHECK_INT(count(heard, "\r\nConnection: close\r\n"), 1);
        CHECK_INT(fix->last_status, 505);
        CHECK_INT(fix->requests, 0);
        CHECK_INT(fix->done, 1);
        fix_stop();
}

int main(void)
{
        RUN(test_whole);
        RUN(test_without_body);
        RUN(test_streamed);
        RUN(test_cut);
        RUN(test_header_injection);
        RUN(test_refusal_has_a_body);
        return check_done();
}
