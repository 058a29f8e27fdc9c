#include "check.h"
#include "http/http_internal.h"

/* Decodes in pieces of step bytes; -1 malformed, else how the decoder ended. */
static int decode(const char *in, size_t n, size_t step, struct buf *out)
{
        struct http_chunk k = { 0 };
        for (size_t at = 0; at < n;) {
                size_t piece = n - at < step ? n - at : step;
                struct str data;
                ssize_t used = http_chunk_take(&k, in + at, piece, &data);
                if (used < 0)
                        return -1;
                buf_add(out, data.p, data.n);
                at += (size_t)used;
                if (k.state == HTTP_CHUNK_DONE)
                        return at == n ? 1 : 2;
        }
        return 0;
}

/* The result must not depend on how the bytes are cut. */
static int decode_all_ways(const char *in, size_t n, const char *want)
{
        int first = 99;
        for (size_t step = 1; step <= n; step++) {
                _cleanup_buf_ struct buf out = { 0 };
                int r = decode(in, n, step, &out);
                if (first == 99)
                        first = r;
                CHECK_INT(r, first);
                if (want)
                        CHECK_STR(buf_cstr(&out), want);
        }
        return first;
}

#define DECODE(in, want) decode_all_ways(in, sizeof(in) - 1, want)

static void test_good(void)
{
        CHECK_INT(DECODE("5\r\nhello\r\n0\r\n\r\n", "hello"), 1);
        CHECK_INT(DECODE("5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", "hello!"), 1);
        CHECK_INT(DECODE("00a\r\n0123456789\r\n000\r\n\r\n", "0123456789"), 1);
        CHECK_INT(DECODE("A\r\n0123456789\r\n0\r\n\r\n", "0123456789"), 1);
        CHECK_INT(DECODE("2;name=value;x=\"y\"\r\nab\r\n0;last\r\n\r\n", "ab"), 1);
        CHECK_INT(DECODE("2\r\nab\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n", "ab"), 1);
        CHECK_INT(DECODE("2\r\n\r\n\r\n0\r\n\r\n", "\r\n"), 1);
        CHECK_INT(DECODE("2\r\nab\r\n", "ab"), 0);
        CHECK_INT(DECODE("0\r\n\r\nGET", ""), 2);
}

static void test_bad(void)
{
        CHECK_INT(DECODE("0x5\r\nhello\r\n0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("+5\r\nhello\r\n0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("-5\r\nhello\r\n0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE(" 5\r\nhello\r\n0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("5 \r\nhello\r\n0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("\r\n", NULL), -1);
        CHECK_INT(DECODE(";x\r\n", NULL), -1);
        CHECK_INT(DECODE("g\r\n", NULL), -1);
        CHECK_INT(DECODE("5\nhello\r\n", NULL), -1);
        CHECK_INT(DECODE("5\rhello\r\n", NULL), -1);
        CHECK_INT(DECODE("5;a\nb\r\n", NULL), -1);
        CHECK_INT(DECODE("5;a\0b\r\n", NULL), -1);
        CHECK_INT(DECODE("5\r\nhelloXX0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("5\r\nhello\n0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("5\r\nhello0\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("0\r\n\n", NULL), -1);
        CHECK_INT(DECODE("0\r\nA: b\n\r\n", NULL), -1);
        CHECK_INT(DECODE("0\r\nA: \x01\r\n\r\n", NULL), -1);
        CHECK_INT(DECODE("ffffffffffffffff\r\n", NULL), -1);
        CHECK_INT(DECODE("10000000000000005\r\nhello\r\n", NULL), -1);
        CHECK_INT(DECODE("00000000000000005\r\nhello\r\n", NULL), -1);
}

static void test_extra_is_bounded(void)
{
        /* Extensions on every chunk, small each: the sum is what counts. */
        _cleanup_buf_ struct buf b = { 0 };
        for (int i = 0; i < 1000; i++)
                buf_adds(&b, "1;aaaaaaaaaaaaaaaaaaaa\r\nx\r\n");
        _cleanup_buf_ struct buf out = { 0 };
        CHECK_INT(decode(b.data, b.len, 100, &out), -1);

        _cleanup_buf_ struct buf t = { 0 };
        buf_adds(&t, "0\r\n");
        for (int i = 0; i < 2000; i++)
                buf_adds(&t, "Trailer: 1\r\n");
        _cleanup_buf_ struct buf none = { 0 };
        CHECK_INT(decode(t.data, t.len, 100, &none), -1);
}

int main(void)
{
        RUN(test_good);
        RUN(test_bad);
        RUN(test_extra_is_bounded);
        return check_done();
}
