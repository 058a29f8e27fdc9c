#include "check.h"
#include "http/http_internal.h"

static const struct http_limits limits = { .head_bytes = 2000, .header_count = 8 };
static struct http_head head;
static struct http_field fields[32];
static const char *said; /* the sentence of the last refusal */

/* Scans in pieces of step bytes and parses. 0 when accepted, -1 when incomplete, else
 * the status of the refusal. */
static int check_n(const char *p, size_t n, size_t step)
{
        struct http_scan s = { 0 };
        struct http_refusal why = { 0 };
        size_t len;
        for (size_t at = step; ; at += step) {
                if (at > n)
                        at = n;
                int r = http_head_scan(&s, p, at, &limits, &len, &why);
                said = why.sentence;
                if (r < 0)
                        return why.status;
                if (r > 0)
                        break;
                if (at == n)
                        return -1;
        }
        int r = http_head_parse(p, len, fields, 32, &head, &why);
        said = why.sentence;
        return r < 0 ? why.status : 0;
}

static int check_head(const char *p, size_t n)
{
        int first = check_n(p, n, 1);
        for (size_t step = 2; step <= n; step++)
                CHECK_INT(check_n(p, n, step), first);
        return first;
}

#define HEAD(text) check_head(text, sizeof(text) - 1)
#define WITH(fields_text) HEAD("POST / HTTP/1.1\r\nHost: h\r\n" fields_text "\r\n")

static void test_good(void)
{
        CHECK_INT(HEAD("GET /a/b?c=d&e HTTP/1.1\r\nHost: h:80\r\nX-A: \t v w \r\nEmpty:\r\n\r\n"), 0);
        CHECK(str_eq(head.path, "/a/b"));
        CHECK(str_eq(head.query, "c=d&e"));
        CHECK_INT(head.field_count, 3);
        CHECK(str_eq(head.fields[1].value, "v w"));
        CHECK(str_eq(head.fields[2].value, ""));
        CHECK(head.keep_alive);
        CHECK_INT(head.content_length, 0);
        CHECK_INT(HEAD("\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK_INT(HEAD("GET / HTTP/1.0\r\n\r\n"), 0);
        CHECK(!head.keep_alive);
        CHECK_INT(HEAD("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), 0);
        CHECK(head.keep_alive);
        CHECK_INT(WITH("Connection: foo, close\r\n"), 0);
        CHECK(!head.keep_alive);
        CHECK_INT(WITH("Connection: Upgrade\r\nUpgrade: websocket\r\n"), 0);
        CHECK_INT(WITH("X: caf\xc3\xa9\r\n"), 0);
        CHECK_INT(HEAD("GET /caf\xc3\xa9 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"), 0);
}

static void test_methods(void)
{
        CHECK_INT(HEAD("PATCH / HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK_INT(head.method_id, HTTP_M_PATCH);
        CHECK_INT(HEAD("TRACE / HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK_INT(head.method_id, HTTP_M_OTHER);
        CHECK_INT(HEAD("BREW / HTTP/1.1\r\nHost: h\r\n\r\n"), 501);
        CHECK_INT(HEAD("get / HTTP/1.1\r\nHost: h\r\n\r\n"), 501);
        CHECK_INT(HEAD("GE(T / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD(" GET / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n"), 501);
        CHECK_INT(HEAD("{\"json\": 1}\r\n"), 400);
}

static void test_targets(void)
{
        CHECK_INT(HEAD("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK(str_eq(head.path, "*"));
        CHECK_INT(HEAD("GET * HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET http://h/x?y HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK(str_eq(head.path, "/x"));
        CHECK(str_eq(head.query, "y"));
        CHECK_INT(HEAD("GET HTTPS://h HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK(str_eq(head.path, "/"));
        CHECK_INT(HEAD("GET http://h?q HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
        CHECK(str_eq(head.path, "/"));
        CHECK(str_eq(head.query, "q"));
        CHECK_INT(HEAD("GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET http://u@h/x HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET x HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET  HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET /\tb HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET /#f HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

static void test_versions(void)
{
        CHECK_INT(HEAD("GET /\r\n"), 400); /* HTTP/0.9 */
        CHECK_INT(HEAD("GET / HTTP/0.9\r\n"), 505);
        CHECK_INT(HEAD("GET / HTTP/1.2\r\n"), 505);
        CHECK_INT(HEAD("GET / HTTP/2.0\r\n"), 505);
        CHECK_INT(HEAD("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
        CHECK_INT(HEAD("GET / HTTP/1.1 \r\n"), 400);
        CHECK_INT(HEAD("GET / http/1.1\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/11\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.10\r\n"), 400);
}

static void test_bytes(void)
{
        CHECK_INT(HEAD("GET / HTTP/1.1\nHost: h\n\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost: h\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost: h\r\r\n\r\n"), 400);
        CHECK_INT(WITH("A: b\rC: d\r\n"), 400);
        CHECK_INT(WITH("A: b\0c\r\n"), 400);
        CHECK_INT(WITH("A: b\x1b[2J\r\n"), 400);
        CHECK_INT(WITH("A: b\x7f\r\n"), 400);
        CHECK_INT(HEAD("GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        CHECK_INT(HEAD("\x16\x03\x01\x02"), 400); /* a TLS hello */
        CHECK_INT(HEAD("\r\n\r\nGET / HTTP/1.1\r\n"), 400);
}

static void test_fields(void)
{
        CHECK_INT(WITH("A: b\r\n folded\r\n"), 400);
        CHECK_INT(WITH("A: b\r\n\tfolded\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\n Host: h\r\n\r\n"), 400);
        CHECK_INT(WITH("A : b\r\n"), 400);
        CHECK_INT(WITH(": b\r\n"), 400);
        CHECK_INT(WITH("novalue\r\n"), 400);
        CHECK_INT(WITH("A(b): c\r\n"), 400);
        CHECK_INT(WITH("A\xc3\xa9: c\r\n"), 400);
}

static void test_framing(void)
{
        CHECK_INT(WITH("Content-Length: 5\r\n"), 0);
        CHECK_INT(head.content_length, 5);
        CHECK_INT(WITH("Content-Length: 0\r\n"), 0);
        CHECK_INT(WITH("Content-Length: 9223372036854775807\r\n"), 0);
        CHECK_INT(WITH("Content-Length: 9223372036854775808\r\n"), 400);
        CHECK_INT(WITH("Content-Length: 18446744073709551621\r\n"), 400);
        CHECK_INT(WITH("Content-Length: +5\r\n"), 400);
        CHECK_INT(WITH("Content-Length: -5\r\n"), 400);
        CHECK_INT(WITH("Content-Length: 0x5\r\n"), 400);
        CHECK_INT(WITH("Content-Length: 5 5\r\n"), 400);
        CHECK_INT(WITH("Content-Length: 5, 5\r\n"), 400);
        CHECK_INT(WITH("Content-Length: 5,\r\n"), 400);
        CHECK_INT(WITH("Content-Length:\r\n"), 400);
        CHECK_INT(WITH("Content-Length: 5\r\ncontent-length: 5\r\n"), 400);
        CHECK_INT(WITH("Content-Length : 5\r\n"), 400);
        CHECK_INT(WITH("Transfer-Encoding: chunked\r\n"), 0);
        CHECK(head.chunked);
        CHECK_INT(head.content_length, -1);
        CHECK_INT(WITH("Transfer-Encoding: CHUNKED\r\n"), 0);
        CHECK_INT(WITH("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400);
        CHECK_INT(WITH("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400);
        CHECK_INT(WITH("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400);
        CHECK_INT(WITH("Transfer-Encoding: xchunked\r\n"), 501);
        CHECK_INT(WITH("Transfer-Encoding: chunked, identity\r\n"), 501);
        CHECK_INT(WITH("Transfer-Encoding: gzip, chunked\r\n"), 501);
        CHECK_INT(WITH("Transfer-Encoding: \"chunked\"\r\n"), 501);
        CHECK_INT(WITH("Transfer-Encoding: identity\r\n"), 501);
        CHECK_INT(WITH("Transfer-Encoding:\r\n"), 501);
        CHECK_INT(WITH("Transfer-Encoding: \x0b" "chunked\r\n"), 400);
        CHECK_INT(HEAD("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

static void test_host_and_expect(void)
{
        CHECK_INT(HEAD("GET / HTTP/1.1\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost: u@b\r\n\r\n"), 400);
        CHECK_INT(HEAD("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 0);
        CHECK_INT(WITH("Expect: 100-Continue\r\nContent-Length: 1\r\n"), 0);
        CHECK(head.expect_continue);
        CHECK_INT(WITH("Expect: 200-maybe\r\n"), 417);
        CHECK_INT(WITH("Expect: 100-continue\r\nExpect: x\r\n"), 417);
}

static void test_size(void)
{
        char big[4000];
        memset(big, 'a', sizeof big);
        memcpy(big, "GET /", 5);
        CHECK_INT(check_n(big, sizeof big, 7), 414);
        memset(big, 'a', sizeof big);
        memcpy(big, "GET / HTTP/1.1\r\nHost: h\r\nX: ", 28);
        CHECK_INT(check_n(big, sizeof big, 7), 431);
        CHECK_INT(check_n(big, sizeof big, 4000), 431);
        CHECK_INT(check_n(big, 1999, 7), -1);
        /* exactly the limit */
        memcpy(big + 1996, "\r\n\r\n", 4);
        CHECK_INT(check_n(big, 2000, 2000), 0);
        CHECK_INT(WITH("A: 1\r\nA: 2\r\nA: 3\r\nA: 4\r\nA: 5\r\nA: 6\r\nA: 7\r\n"), 0);
        CHECK_INT(WITH("A: 1\r\nA: 2\r\nA: 3\r\nA: 4\r\nA: 5\r\nA: 6\r\nA: 7\r\nA: 8\r\n"), 431);
}

/* http_parser stands behind our rules and refuses some of this as well; each rule must
 * hold by itself. */
static void test_own_rules(void)
{
        CHECK_INT(WITH("A: b\nC: d\r\n"), 400);
        CHECK_STR(said, "Lines must end in CR LF.");
        CHECK_INT(WITH("A: b\rC: d\r\n"), 400);
        CHECK_STR(said, "Lines must end in CR LF.");
        CHECK_INT(WITH("A: b\0\r\n"), 400);
        CHECK_STR(said, "The head contains a control byte.");
        CHECK_INT(WITH("A: b\x7f\r\n"), 400);
        CHECK_STR(said, "The head contains a control byte.");
        CHECK_INT(WITH("A: b\r\n c: d\r\n"), 400);
        CHECK_STR(said, "A header continues on a second line.");
        CHECK_INT(WITH("A : b\r\n"), 400);
        CHECK_STR(said, "A header name is malformed.");
        CHECK_INT(WITH("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400);
        CHECK_STR(said, "Content-Length and Transfer-Encoding exclude each other.");
        CHECK_INT(WITH("Content-Length: 5\r\nContent-Length: 5\r\n"), 400);
        CHECK_STR(said, "The length of the body is given more than once.");
        CHECK_INT(WITH("Content-Length: 5,5\r\n"), 400);
        CHECK_STR(said, "Content-Length is no number.");
}

int main(void)
{
        RUN(test_good);
        RUN(test_methods);
        RUN(test_targets);
        RUN(test_versions);
        RUN(test_bytes);
        RUN(test_fields);
        RUN(test_framing);
        RUN(test_host_and_expect);
        RUN(test_size);
        RUN(test_own_rules);
        return check_done();
}
