#include "base/buf.h"

#include <stdint.h>

#include "check.h"

static void test_append(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        char *want = malloc(200000);
        size_t n = 0;
        for (unsigned i = 0; i < 20000; i++) {
                char piece[16];
                int len = snprintf(piece, sizeof piece, "%u,", i * 7919);
                if (i % 3 == 0)
                        buf_add(&b, piece, (size_t)len);
                else if (i % 3 == 1)
                        buf_adds(&b, piece);
                else
                        buf_addf(&b, "%s", piece);
                memcpy(want + n, piece, (size_t)len);
                n += (size_t)len;
        }
        buf_addc(&b, '\0');
        want[n++] = '\0';
        CHECK(buf_ok(&b));
        CHECK_INT(b.len, n);
        CHECK(b.len == n && memcmp(b.data, want, n) == 0);
        CHECK(b.cap >= b.len);
        free(want);
}

static void test_empty(void)
{
        struct buf b = { 0 };
        buf_add(&b, NULL, 0);
        buf_adds(&b, "");
        CHECK(b.data == NULL && b.len == 0);
        CHECK_STR(buf_cstr(&b), "");
        CHECK_INT(b.len, 0);
        buf_consume(&b, 0);
        buf_consume(&b, 5);
        CHECK_INT(b.len, 0);
        buf_free(&b);
        buf_free(&b); /* twice does no harm */
        CHECK(b.data == NULL && b.cap == 0);
}

static void test_consume(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        buf_adds(&b, "0123456789");
        buf_consume(&b, 3);
        CHECK_STR(buf_cstr(&b), "3456789");
        buf_consume(&b, 0);
        CHECK_STR(buf_cstr(&b), "3456789");
        buf_consume(&b, 6);
        CHECK_STR(buf_cstr(&b), "9");
        buf_consume(&b, 1);
        CHECK_INT(b.len, 0);
        buf_adds(&b, "again");
        buf_consume(&b, 99);
        CHECK_INT(b.len, 0);
}

/* The NUL is there but not counted, and the next append writes over it. */
static void test_cstr(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        for (unsigned i = 0; i < 600; i++) {
                buf_addc(&b, (char)('a' + i % 26));
                const char *s = buf_cstr(&b);
                CHECK_INT(b.len, i + 1);
                CHECK(s && strlen(s) == i + 1);
        }
}

static void test_steal(void)
{
        struct buf b = { 0 };
        buf_adds(&b, "mine");
        char *p = buf_steal(&b);
        CHECK_STR(p, "mine");
        CHECK(b.data == NULL && b.len == 0 && b.cap == 0);
        free(p);
        buf_adds(&b, "usable again");
        CHECK_STR(buf_cstr(&b), "usable again");
        buf_free(&b);
}

static void test_failure_is_sticky(void)
{
        struct buf b = { 0 };
        buf_adds(&b, "kept");
        CHECK(!buf_reserve(&b, SIZE_MAX)); /* no overflow into a small allocation */
        CHECK(!buf_ok(&b));
        buf_adds(&b, "dropped");
        buf_addf(&b, "%d", 1);
        buf_addc(&b, 'x');
        CHECK_INT(b.len, 4);
        CHECK(buf_cstr(&b) == NULL);
        CHECK(buf_steal(&b) == NULL);
        CHECK(!buf_reserve(&b, 0));
        buf_free(&b);
        CHECK(buf_ok(&b));
        CHECK(!buf_reserve(&b, SIZE_MAX / 2 + 1));
        buf_free(&b);
}

int main(void)
{
        RUN(test_append);
        RUN(test_empty);
        RUN(test_consume);
        RUN(test_cstr);
        RUN(test_steal);
        RUN(test_failure_is_sticky);
        return check_done();
}
