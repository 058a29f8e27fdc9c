#include "agent/capture.h"

#include "check.h"

/* Everything is kept; what should remain is computed from the whole. */
static void expect(const char *all, size_t n, size_t cap, struct buf *out)
{
        if (cap < 2)
                cap = 2;
        if (n <= cap) {
                buf_add(out, all, n);
                return;
        }
        size_t head = cap / 2, tail = cap - cap / 2;
        buf_add(out, all, head);
        buf_addf(out, "\n[... %zu bytes left out ...]\n", n - head - tail);
        buf_add(out, all + n - tail, tail);
}

static void check_one(size_t n, size_t cap, unsigned step)
{
        char all[600];
        struct capture c;
        _cleanup_buf_ struct buf got = { 0 }, want = { 0 };
        for (size_t i = 0; i < n; i++)
                all[i] = (char)('!' + i % 90);
        capture_init(&c, cap);
        for (size_t at = 0; at < n;) {
                size_t k = step ? step : 1 + (at * 7 + 3) % 40;
                if (k > n - at)
                        k = n - at;
                capture_add(&c, all + at, k);
                at += k;
        }
        capture_render(&c, &got);
        expect(all, n, cap, &want);
        bool same = got.len == want.len && (got.len == 0 || memcmp(got.data, want.data, got.len) == 0);
        if (!same || c.total != n) {
                printf("%zu bytes by %u with cap %zu: \"%.*s\"\n", n, step, cap, (int)got.len, got.data);
                CHECK(!"what is kept is right");
        }
        capture_free(&c);
}

static void test_all_sizes(void)
{
        static const size_t caps[] = { 0, 1, 2, 3, 7, 10, 16, 31, 64, 100 };
        static const unsigned steps[] = { 0, 1, 2, 3, 5, 16, 64, 600 };
        for (size_t c = 0; c < sizeof caps / sizeof caps[0]; c++)
                for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++)
                        for (size_t n = 0; n < 230; n += n < 70 ? 1 : 13)
                                check_one(n, caps[c], steps[s]);
        check_one(600, 100, 600);
}

static void test_nothing_is_allocated_for_nothing(void)
{
        struct capture c;
        _cleanup_buf_ struct buf out = { 0 };
        capture_init(&c, 1 << 20);
        capture_render(&c, &out);
        CHECK(out.len == 0 && c.ring == NULL && c.head.data == NULL);
        capture_add(&c, "short", 5);
        CHECK(c.ring == NULL);
        capture_add(&c, "", 0);
        capture_render(&c, &out);
        CHECK_STR(buf_cstr(&out), "short");
        capture_free(&c);
}

/* However much comes, memory stays bounded and the count is exact. */
static void test_flood(void)
{
        struct capture c;
        static char block[65536];
        memset(block, 'f', sizeof block);
        capture_init(&c, 4096);
        for (unsigned i = 0; i < 1000; i++)
                capture_add(&c, block, sizeof block);
        capture_add(&c, "the end", 7);
        CHECK(c.total == 1000ull * sizeof block + 7);
        CHECK(c.head.cap <= 4096 && c.ring_len == 2048);
        _cleanup_buf_ struct buf out = { 0 };
        capture_render(&c, &out);
        CHECK(out.len < 4096 + 64);
        const char *text = buf_cstr(&out);
        CHECK(strstr(text, "\n[... 65531911 bytes left out ...]\n") != NULL);
        CHECK_STR(text + out.len - 7, "the end");
        capture_free(&c);
        capture_free(&c);
}

/* A cap that no machine can hold keeps the head it can. */
static void test_absurd_cap(void)
{
        struct capture c;
        _cleanup_buf_ struct buf out = { 0 };
        capture_init(&c, (size_t)-1);
        capture_add(&c, "hello", 5);
        capture_render(&c, &out);
        CHECK_STR(buf_cstr(&out), "hello");
        capture_free(&c);
}

int main(void)
{
        RUN(test_all_sizes);
        RUN(test_nothing_is_allocated_for_nothing);
        RUN(test_flood);
        RUN(test_absurd_cap);
        return check_done();
}
