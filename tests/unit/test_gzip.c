#include <errno.h>
#include <stdint.h>

#include "agent/gzip.h"
#include "base/buf.h"
#include "check.h"

/* "hello\n" by gzip -n, so that not only our own output is read. */
static const unsigned char hello[] = { 0x1f, 0x8b, 0x08, 0,    0,    0,    0,    0,    0,
                                       0x03, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0xe7, 0x02, 0,
                                       0x20, 0x30, 0x3a, 0x36, 6,    0,    0,    0 };

static int collect(void *arg, const void *p, size_t n)
{
        buf_add(arg, p, n);
        return 0;
}

static int refuse(void *arg, const void *p, size_t n)
{
        (void)arg, (void)p, (void)n;
        return -EPIPE;
}

static void fill(char *p, size_t n, int kind)
{
        uint32_t x = 12345;
        for (size_t i = 0; i < n; i++) {
                x = x * 1103515245u + 12345u;
                p[i] = kind == 0 ? 0 : kind == 1 ? "the quick brown fox "[i % 20] : (char)(x >> 16);
        }
}

static void squeeze(struct buf *out, const char *p, size_t n, size_t step)
{
        _cleanup_deflater_ struct deflater *z = deflater_new(4096, collect, out);
        for (size_t i = 0; i < n; i += step)
                CHECK_INT(deflater_run(z, p + i, n - i < step ? n - i : step), 0);
        CHECK_INT(deflater_finish(z), 0);
}

/* Inflates src given in pieces; 0 or the error, also when it ends too early. */
static int expand(struct buf *out, const void *src, size_t n, size_t step, size_t cap)
{
        _cleanup_inflater_ struct inflater *z = inflater_new();
        _cleanup_free_ char *room = malloc(cap);
        const char *p = src;
        for (size_t i = 0; i < n; i += step) {
                const char *in = p + i;
                size_t left = n - i < step ? n - i : step;
                for (;;) {
                        int got = inflater_run(z, &in, &left, room, cap);
                        if (got < 0)
                                return got;
                        if (got == 0)
                                break;
                        buf_add(out, room, (size_t)got);
                }
                CHECK_INT(left, 0);
        }
        return inflater_at_end(z) ? 0 : -ENODATA;
}

static void round_trip(void)
{
        static const size_t sizes[] = { 0, 1, 511, 4096, 65536, 300000, 2000000 };
        for (size_t s = 0; s < ARRAY_SIZE(sizes); s++)
                for (int kind = 0; kind < 3; kind++) {
                        _cleanup_free_ char *data = malloc(sizes[s] + 1);
                        _cleanup_buf_ struct buf gz = { 0 }, back = { 0 };
                        fill(data, sizes[s], kind);
                        squeeze(&gz, data, sizes[s], 70000);
                        CHECK_INT(expand(&back, gz.data, gz.len, 999, 5000), 0);
                        CHECK_INT(back.len, sizes[s]);
                        CHECK(back.len == sizes[s] &&
                              (!back.len || memcmp(back.data, data, back.len) == 0));
                }
}

static void byte_by_byte(void)
{
        _cleanup_buf_ struct buf back = { 0 };
        CHECK_INT(expand(&back, hello, sizeof hello, 1, 1), 0);
        CHECK_STR(buf_cstr(&back), "hello\n");
}

static void members_and_padding(void)
{
        _cleanup_buf_ struct buf gz = { 0 }, back = { 0 }, again = { 0 }, junk = { 0 };
        static const char zeros[5000];
        buf_add(&gz, hello, sizeof hello);
        buf_add(&gz, hello, sizeof hello);
        squeeze(&gz, "third\n", 6, 6);
        CHECK_INT(expand(&back, gz.data, gz.len, 7, 100), 0);
        CHECK_STR(buf_cstr(&back), "hello\nhello\nthird\n");
        buf_add(&gz, zeros, sizeof zeros);
        CHECK_INT(expand(&again, gz.data, gz.len, 64, 100), 0);
        CHECK_STR(buf_cstr(&again), "hello\nhello\nthird\n");
        buf_add(&gz, hello, sizeof hello); /* after padding nothing may follow */
        CHECK_INT(expand(&junk, gz.data, gz.len, 64, 100), -EBADMSG);
}

static void header_fields(void)
{
        /* FEXTRA, FNAME and FCOMMENT are there and must be stepped over. */
        _cleanup_buf_ struct buf gz = { 0 }, back = { 0 };
        buf_add(&gz, "\x1f\x8b\x08\x1c\0\0\0\0\0\x03", 10);
        buf_add(&gz, "\x03\0abc", 5);
        buf_add(&gz, "file name\0comment", 18);
        buf_add(&gz, hello + 10, sizeof hello - 10);
        CHECK_INT(expand(&back, gz.data, gz.len, 3, 100), 0);
        CHECK_STR(buf_cstr(&back), "hello\n");
}

static void every_cut_is_noticed(void)
{
        for (size_t n = 0; n < sizeof hello; n++) {
                _cleanup_buf_ struct buf back = { 0 };
                CHECK(expand(&back, hello, n, 5, 100) < 0);
        }
}

static void damage_is_noticed(void)
{
        /* Bytes 3 to 9 are flags, time and system, 17 is padding up to the whole byte: this
         * bit says nothing about the data there. */
        for (size_t i = 0; i < sizeof hello; i++) {
                _cleanup_buf_ struct buf back = { 0 };
                unsigned char bad[sizeof hello];
                memcpy(bad, hello, sizeof hello);
                bad[i] ^= 0x40;
                if ((i < 3 || i > 9) && i != 17)
                        CHECK(expand(&back, bad, sizeof bad, sizeof bad, 100) < 0);
        }
}

static void not_gzip(void)
{
        _cleanup_buf_ struct buf back = { 0 };
        CHECK_INT(expand(&back, "plain text", 10, 10, 100), -EBADMSG);
        CHECK_INT(expand(&back, "\0\0\0\0", 4, 4, 100), -EBADMSG);
        CHECK_INT(expand(&back, "\x1f\x8c\x08\0\0\0\0\0\0\0\0\0\0\0", 14, 14, 100), -EBADMSG);
}

static void sink_errors_come_through(void)
{
        _cleanup_free_ char *data = malloc(1 << 20);
        _cleanup_deflater_ struct deflater *z = deflater_new(512, refuse, NULL);
        fill(data, 1 << 20, 2);
        CHECK_INT(deflater_run(z, data, 1 << 20), -EPIPE);
        _cleanup_deflater_ struct deflater *y = deflater_new(512, refuse, NULL);
        CHECK_INT(deflater_finish(y), -EPIPE);
}

int main(void)
{
        RUN(round_trip);
        RUN(byte_by_byte);
        RUN(members_and_padding);
        RUN(header_fields);
        RUN(every_cut_is_noticed);
        RUN(damage_is_noticed);
        RUN(not_gzip);
        RUN(sink_errors_come_through);
        return check_done();
}
