#include "base/now.h"

#include <time.h>

#include "check.h"

static void test_format(void)
{
        static const struct { int64_t ms; const char *plain, *with_ms; } rows[] = {
                { 0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z" },
                { 999, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.999Z" },
                { 1000, "1970-01-01T00:00:01Z", "1970-01-01T00:00:01.000Z" },
                { 951782400000 + 7, "2000-02-29T00:00:00Z", "2000-02-29T00:00:00.007Z" },
                { 1767357296789, "2026-01-02T12:34:56Z", "2026-01-02T12:34:56.789Z" },
                { 4102444799000, "2099-12-31T23:59:59Z", "2099-12-31T23:59:59.000Z" },
                { 4107542399050, "2100-02-28T23:59:59Z", "2100-02-28T23:59:59.050Z" },
                { 253402300799999, "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999Z" },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                char out[40];
                format_utc(rows[i].ms, out, 24);
                CHECK_STR(out, rows[i].plain);
                format_utc_ms(rows[i].ms, out, sizeof out);
                CHECK_STR(out, rows[i].with_ms);
        }
}

/* Wherever the server thinks it lives, answers are in UTC. */
static void test_ignores_the_time_zone(void)
{
        char out[40];
        (void)setenv("TZ", "Asia/Kathmandu", 1);
        tzset();
        format_utc(0, out, sizeof out);
        CHECK_STR(out, "1970-01-01T00:00:00Z");
}

/* Nonsense must not overflow the room or the arithmetic. */
static void test_extremes(void)
{
        static const int64_t wild[] = { INT64_MAX, INT64_MIN, -1, INT64_MAX - 999, 1ll << 62, -62135596800000 };
        for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
                char out[24 + 8];
                memset(out, '#', sizeof out);
                format_utc(wild[i], out, 24);
                CHECK(memchr(out, 0, 24) != NULL);
                CHECK_INT(out[24], '#');
                char ms[40];
                format_utc_ms(wild[i], ms, sizeof ms);
                CHECK(memchr(ms, 0, sizeof ms) != NULL);
        }
}

static void test_clocks(void)
{
        uint64_t a = now_ns(), b = now_ns();
        CHECK(a > 0 && b >= a);
        int64_t before = (int64_t)time(NULL) * 1000, wall = now_wall_ms(), after = ((int64_t)time(NULL) + 1) * 1000;
        CHECK(wall >= before - 1000 && wall <= after + 1000);
}

int main(void)
{
        RUN(test_format);
        RUN(test_ignores_the_time_zone);
        RUN(test_extremes);
        RUN(test_clocks);
        return check_done();
}
