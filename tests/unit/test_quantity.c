#include "base/quantity.h"

#include <errno.h>
#include <stdint.h>

#include "base/limits.h"
#include "check.h"

#define BAD UINT64_MAX

static void test_cpu(void)
{
        static const struct {
                const char *text;
                uint64_t millis;
        } rows[] = {
                { "1", 1000 },    { "500m", 500 },  { "1.5", 1500 }, { "0.25", 250 },
                { "0.001", 1 },   { "1.050", 1050 }, { "0", 0 },     { "0m", 0 },
                { "64", 64000 },  { "007", 7000 },  { "2000m", 2000 },
                { "", BAD },      { "m", BAD },     { ".", BAD },    { ".5", BAD },
                { "1.", BAD },    { "1.5m", BAD },  { "1.m", BAD },  { "-1", BAD },
                { "+1", BAD },    { " 1", BAD },    { "1 ", BAD },   { "1e3", BAD },
                { "1.0001", BAD }, { "0x10", BAD }, { "1,5", BAD },  { "1M", BAD },
                { "500mm", BAD }, { "1..5", BAD },  { "1.5.0", BAD }, { "nan", BAD },
                { "18446744073709551615", BAD },    { "18446744073709551616m", BAD },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                uint64_t v = 4711;
                struct err e = { 0 };
                int r = quantity_cpu(str_c(rows[i].text), &v, &e);
                if (rows[i].millis == BAD) {
                        if (r >= 0)
                                printf("taken: '%s'\n", rows[i].text);
                        CHECK(r < 0);
                        CHECK_INT(v, 4711); /* untouched */
                        CHECK_INT(e.code, r);
                        CHECK_INT(e.blame, ERR_USER);
                } else {
                        CHECK_INT(r, 0);
                        CHECK_INT(v, rows[i].millis);
                }
        }
}

static const struct {
        const char *text;
        uint64_t bytes;
} byte_rows[] = {
        { "0", 0 },
        { "1048576", 1048576 },
        { "1k", 1000 },
        { "1K", 1000 },
        { "2M", 2000000 },
        { "1G", 1000000000 },
        { "1T", 1000000000000 },
        { "1P", 1000000000000000 },
        { "1Ki", 1024 },
        { "512Mi", 512ull << 20 },
        { "1Gi", 1ull << 30 },
        { "1Ti", 1ull << 40 },
        { "1Pi", 1ull << 50 },
        { "1.5Gi", 3ull << 29 },
        { "0.5Ki", 512 },
        { "1.000", 1 },
        { "1.25k", 1250 },
        { "18446744073709551614", UINT64_MAX - 1 },
        { "16383Pi", 16383ull << 50 },
        { "16384Pi", BAD },                 /* 2^64 */
        { "18446744073709551616", BAD },    /* 2^64 */
        { "99999999999999999999999", BAD },
        { "18446744073709551615.5Pi", BAD },
        { "0.5", BAD },
        { "1.0001Ki", BAD }, /* 1024.1024 bytes */
        { "1.1Ki", BAD },
        { "", BAD },
        { "Gi", BAD },
        { "1gi", BAD },
        { "1GI", BAD },
        { "1Gib", BAD },
        { "1 Gi", BAD },
        { "1Gi ", BAD },
        { "-1Gi", BAD },
        { "+1", BAD },
        { "1e9", BAD },
        { "1E", BAD },
        { "1m", BAD },
        { "1.", BAD },
        { ".5Gi", BAD },
        { "1.0000000000000000000000Gi", BAD },
        { "0x1000", BAD },
};

static void test_bytes(void)
{
        for (size_t i = 0; i < ARRAY_SIZE(byte_rows); i++) {
                uint64_t v = 4711;
                int r = quantity_bytes(str_c(byte_rows[i].text), &v, NULL);
                if (byte_rows[i].bytes == BAD) {
                        if (r >= 0)
                                printf("taken: '%s'\n", byte_rows[i].text);
                        CHECK(r < 0);
                        CHECK_INT(v, 4711);
                } else {
                        CHECK_INT(r, 0);
                        CHECK(v == byte_rows[i].bytes);
                }
        }
}

static void test_embedded_nul(void)
{
        uint64_t v;
        CHECK_INT(quantity_bytes((struct str){ "1\0Gi", 4 }, &v, NULL), -EINVAL);
        CHECK_INT(quantity_cpu((struct str){ "1\0", 2 }, &v, NULL), -EINVAL);
        CHECK_INT(quantity_cpu((struct str){ NULL, 0 }, &v, NULL), -EINVAL);
        /* Counted, not terminated: what stands behind is not read. */
        CHECK_INT(quantity_bytes((struct str){ "10Gi", 2 }, &v, NULL), 0);
        CHECK_INT(v, 10);
}

static void test_sentences(void)
{
        struct err e = { 0 };
        uint64_t v;
        CHECK_INT(quantity_cpu(STR("two"), &v, &e), -EINVAL);
        CHECK(strstr(e.msg, "'two'") && strstr(e.msg, "'500m'") && strstr(e.msg, "'1.5'"));
        CHECK_INT(quantity_bytes(STR("lots"), &v, &e), -EINVAL);
        CHECK(strstr(e.msg, "'lots'") && strstr(e.msg, "'1Gi'"));
        CHECK_INT(quantity_bytes(STR("0.5"), &v, &e), -EINVAL);
        CHECK(strstr(e.msg, "whole number"));
        CHECK_INT(quantity_bytes(STR("16384Pi"), &v, &e), -ERANGE);
        /* Terminal escapes and floods do not come through. */
        CHECK_INT(quantity_cpu(STR("\033[31m\r\nforged"), &v, &e), -EINVAL);
        CHECK(!strchr(e.msg, '\033') && !strchr(e.msg, '\n') && !strchr(e.msg, '\r'));
        char flood[5000];
        memset(flood, 'x', sizeof flood);
        CHECK_INT(quantity_bytes((struct str){ flood, sizeof flood }, &v, &e), -EINVAL);
        CHECK(strlen(e.msg) < 250);
        CHECK(strstr(e.msg, "xxx...'"));
}

static void test_echo(void)
{
        char out[ECHO_BYTES];
        CHECK_STR(echo_value(STR(""), out), "");
        CHECK_STR(echo_value(STR("a\377b\177c"), out), "a?b?c");
        CHECK_STR(echo_value(STR("1234567890123456789012345678901234567890"), out),
                  "1234567890123456789012345678901234567890");
        CHECK_STR(echo_value(STR("12345678901234567890123456789012345678901"), out),
                  "1234567890123456789012345678901234567890...");
}

static void test_limits(void)
{
        struct err e = { 0 };
        uint64_t v = 0;
        CHECK_INT(quantity_cpu_limit(STR("10m"), &v, &e), 0);
        CHECK_INT(v, MIN_CPU_MILLIS);
        CHECK_INT(quantity_cpu_limit(STR("9m"), &v, &e), -ERANGE);
        CHECK(strstr(e.msg, "'9m'") && strstr(e.msg, "'10m'") && strstr(e.msg, "'1024'"));
        CHECK_INT(quantity_cpu_limit(STR("0"), &v, &e), -ERANGE);
        CHECK_INT(quantity_cpu_limit(STR("1024"), &v, &e), 0);
        CHECK_INT(quantity_cpu_limit(STR("1024.001"), &v, &e), -ERANGE);
        CHECK_INT(quantity_cpu_limit(STR("x"), &v, &e), -EINVAL);

        CHECK_INT(quantity_memory_limit(STR("4Mi"), &v, &e), 0);
        CHECK(v == MIN_MEMORY_BYTES);
        CHECK_INT(quantity_memory_limit(STR("4194303"), &v, &e), -ERANGE);
        CHECK(strstr(e.msg, "memory") && strstr(e.msg, "'4Mi'") && strstr(e.msg, "'64Ti'"));
        CHECK_INT(quantity_memory_limit(STR("64Ti"), &v, &e), 0);
        CHECK_INT(quantity_memory_limit(STR("65Ti"), &v, &e), -ERANGE);

        CHECK_INT(quantity_storage_limit(STR("64Ki"), &v, &e), 0);
        CHECK(v == MIN_STORAGE_BYTES);
        CHECK_INT(quantity_storage_limit(STR("63Ki"), &v, &e), -ERANGE);
        CHECK(strstr(e.msg, "storage"));
}

static void test_text_reads_back(void)
{
        static const uint64_t numbers[] = { 0, 1, 10, 250, 999, 1000, 1001, 1024, 1500, 2000,
                                            1536, 1ull << 20, 3ull << 29, 1ull << 30,
                                            1000000000ull, 1ull << 46, UINT64_MAX / 2000 };
        char out[QUANTITY_TEXT_BYTES];
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
                uint64_t v = 1;
                CHECK_INT(quantity_bytes(str_c(quantity_bytes_text(numbers[i], out)), &v, NULL), 0);
                CHECK(v == numbers[i]);
                CHECK_INT(quantity_cpu(str_c(quantity_cpu_text(numbers[i], out)), &v, NULL), 0);
                CHECK(v == numbers[i]);
        }
        CHECK_STR(quantity_bytes_text(2048ull << 20, out), "2Gi");
        CHECK_STR(quantity_bytes_text(1536, out), "1536");
        CHECK_STR(quantity_cpu_text(1500, out), "1.5");
        CHECK_STR(quantity_cpu_text(500, out), "500m");
        CHECK_STR(quantity_cpu_text(1000, out), "1");
}

int main(void)
{
        RUN(test_cpu);
        RUN(test_bytes);
        RUN(test_embedded_nul);
        RUN(test_sentences);
        RUN(test_echo);
        RUN(test_limits);
        RUN(test_text_reads_back);
        return check_done();
}
