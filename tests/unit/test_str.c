#include "base/str.h"

#include "check.h"

static struct str s_(const char *p, size_t n)
{
        return (struct str){ p, n };
}

static void test_equality(void)
{
        CHECK(str_eq(STR("abc"), "abc"));
        CHECK(!str_eq(STR("abc"), "ab"));
        CHECK(!str_eq(STR("ab"), "abc"));
        CHECK(!str_eq(STR("abc\0d"), "abc"));
        CHECK(str_eq(s_(NULL, 0), ""));
        CHECK(!str_eq(s_(NULL, 0), "a"));
        CHECK(str_eq_fold(STR("CoNtEnT-Length"), "content-LENGTH"));
        CHECK(!str_eq_fold(STR("content-lengt"), "content-length"));
        CHECK(!str_eq_fold(STR("a\0"), "a"));
        CHECK(str_eq_fold(s_(NULL, 0), ""));
        CHECK(!str_eq_fold(STR("["), "{")); /* differ by 0x20, but are no letters */
        CHECK(str_has_prefix(STR("/k/x"), "/k/"));
        CHECK(!str_has_prefix(STR("/k"), "/k/"));
        CHECK(str_has_prefix(STR(""), ""));
        CHECK_INT(str_c("four").n, 4);
        CHECK(str_c(NULL).p == NULL && str_c(NULL).n == 0);
}

static void test_secret(void)
{
        CHECK(str_eq_secret(STR("hunter2"), STR("hunter2")));
        CHECK(!str_eq_secret(STR("hunter2"), STR("hunter3")));
        CHECK(!str_eq_secret(STR("Hunter2"), STR("hunter2")));
        CHECK(!str_eq_secret(STR("hunter"), STR("hunter2")));
        CHECK(!str_eq_secret(STR("hunter2"), STR("hunter")));
        CHECK(!str_eq_secret(STR("hunter2\0"), STR("hunter2"))); /* a NUL at the end is a byte */
        CHECK(!str_eq_secret(STR(""), STR("x")));
        CHECK(!str_eq_secret(STR(""), STR("\0")));
        CHECK(str_eq_secret(s_(NULL, 0), STR("")));
        /* differences that would cancel each other in a sum */
        CHECK(!str_eq_secret(STR("ab"), STR("ba")));
        CHECK(!str_eq_secret(STR("\x01\x01"), STR("\x00\x00")));
}

static void test_dup_refuses_nul(void)
{
        char *p = str_dup_c(STR("allowed"));
        CHECK_STR(p, "allowed");
        free(p);
        CHECK(str_dup_c(STR("allowed\0.evil")) == NULL);
        CHECK(str_dup_c(STR("\0")) == NULL);
        p = str_dup_c(s_(NULL, 0));
        CHECK_STR(p, "");
        free(p);
        p = str_dup_c(s_("cut here", 3));
        CHECK_STR(p, "cut");
        free(p);
}

static void test_to_u64(void)
{
        static const struct { const char *s; uint64_t max; bool ok; uint64_t v; } rows[] = {
                { "0", UINT64_MAX, true, 0 },
                { "18446744073709551615", UINT64_MAX, true, UINT64_MAX },
                { "18446744073709551616", UINT64_MAX, false, 0 },
                { "18446744073709551619", UINT64_MAX, false, 0 },
                { "99999999999999999999999", UINT64_MAX, false, 0 },
                { "00000000000000000000000000042", 100, true, 42 },
                { "100", 100, true, 100 },
                { "101", 100, false, 0 },
                { "", 100, false, 0 },
                { "+1", 100, false, 0 },
                { "-1", 100, false, 0 },
                { " 1", 100, false, 0 },
                { "1 ", 100, false, 0 },
                { "1e3", 1000, false, 0 },
                { "0x10", 100, false, 0 },
                { "1.0", 100, false, 0 },
                { "\xd9\xa1", 100, false, 0 }, /* an Arabic one */
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                uint64_t v = 777;
                bool ok = str_to_u64(str_c(rows[i].s), rows[i].max, &v);
                if (ok != rows[i].ok || v != (ok ? rows[i].v : 777)) {
                        printf("\"%s\": %d %llu\n", rows[i].s, ok, (unsigned long long)v);
                        CHECK(!"the row holds");
                }
        }
        uint64_t v;
        CHECK(!str_to_u64(STR("1\0"), 100, &v));
}

static void test_unescape(void)
{
        static const struct { const char *in; bool plus; const char *out; } rows[] = {
                { "abc", false, "abc" },   { "a%20b", false, "a b" },  { "a+b", true, "a b" },
                { "a+b", false, "a+b" },   { "%2B", true, "+" },       { "%c3%A9", false, "\xc3\xa9" },
                { "%25%32%35", false, "%25" }, /* decoded once only */
                { "%", false, NULL },      { "%2", false, NULL },      { "a%2", false, NULL },
                { "%g0", false, NULL },    { "%0g", false, NULL },     { "%%20", false, NULL },
                { "% 2", false, NULL },    { "%-1", false, NULL },     { "", false, "" },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                size_t in = strlen(rows[i].in), n = 99;
                char *out = malloc(in ? in : 1); /* exactly the room it may need */
                bool ok = str_unescape(str_c(rows[i].in), rows[i].plus, out, &n);
                CHECK_INT(ok, rows[i].out != NULL);
                if (ok && rows[i].out)
                        CHECK(n == strlen(rows[i].out) && memcmp(out, rows[i].out, n) == 0);
                free(out);
        }
        char out[4];
        size_t n;
        CHECK(str_unescape(STR("%00"), false, out, &n) && n == 1 && out[0] == 0);
}

/* The definition, spelled out: decode to a code point, encode again, compare. */
static bool reference_utf8(const unsigned char *p, size_t n)
{
        for (size_t i = 0; i < n;) {
                unsigned len = p[i] < 0x80 ? 1 : (p[i] & 0xe0) == 0xc0 ? 2 : (p[i] & 0xf0) == 0xe0 ? 3
                               : (p[i] & 0xf8) == 0xf0 ? 4 : 0;
                if (!len || n - i < len)
                        return false;
                uint32_t c = len == 1 ? p[i] : p[i] & (0x7fu >> len);
                for (unsigned k = 1; k < len; k++) {
                        if ((p[i + k] & 0xc0) != 0x80)
                                return false;
                        c = c << 6 | (p[i + k] & 0x3f);
                }
                unsigned needs = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
                if (needs != len || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
                        return false;
                i += len;
        }
        return true;
}

static void test_utf8(void)
{
        unsigned wrong = 0;
        for (unsigned a = 0; a < 256; a++)
                for (unsigned b = 0; b < 256; b++) {
                        unsigned char t[4] = { (unsigned char)a, (unsigned char)b, 0x80, 0xbf };
                        for (size_t n = 0; n <= 4; n++)
                                wrong += str_is_utf8(s_((const char *)t, n)) != reference_utf8(t, n);
                }
        CHECK_INT(wrong, 0);
        srandom(4711);
        for (unsigned i = 0; i < 200000; i++) {
                unsigned char t[8];
                size_t n = (size_t)random() % 9;
                for (size_t k = 0; k < n; k++) {
                        static const unsigned char odd[] = { 'a', 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                                             0xc1, 0xc2, 0xdf, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5 };
                        t[k] = odd[(size_t)random() % sizeof odd];
                }
                char *exact = malloc(n ? n : 1); /* reading past the end is then an error */
                memcpy(exact, t, n);
                wrong += str_is_utf8(s_(exact, n)) != reference_utf8(t, n);
                free(exact);
        }
        CHECK_INT(wrong, 0);
}

int main(void)
{
        RUN(test_equality);
        RUN(test_secret);
        RUN(test_dup_refuses_nul);
        RUN(test_to_u64);
        RUN(test_unescape);
        RUN(test_utf8);
        return check_done();
}
