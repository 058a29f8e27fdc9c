#include "base/json_write.h"

#include <jansson.h>

#include "base/str.h"
#include "check.h"

/* Byte by byte, without any run or vector: what json_escape must equal. */
static void reference(struct buf *b, const unsigned char *p, size_t n)
{
        for (size_t i = 0; i < n;) {
                static const char names[] = "\"\"\\\\\nn\rr\tt\bb\ff";
                const char *short_form = NULL;
                for (const char *q = names; *q && p[i]; q += 2)
                        if ((unsigned char)*q == p[i])
                                short_form = q + 1;
                if (short_form) {
                        buf_addc(b, '\\');
                        buf_addc(b, *short_form);
                        i++;
                } else if (p[i] < 0x20) {
                        buf_addf(b, "\\u%04x", p[i++]);
                } else if (p[i] < 0x80) {
                        buf_addc(b, (char)p[i++]);
                } else {
                        size_t len = 2;
                        while (len <= 4 && len <= n - i && !str_is_utf8((struct str){ (const char *)p + i, len }))
                                len++;
                        if (len == 2 && n - i >= 2 && p[i] == 0xc2 && p[i + 1] < 0xa0) {
                                buf_addf(b, "\\u%04x", p[i + 1]); /* C1 controls drive terminals */
                                i += 2;
                        } else if (len <= 4 && len <= n - i) {
                                buf_add(b, p + i, len);
                                i += len;
                        } else {
                                buf_adds(b, "\xef\xbf\xbd");
                                i++;
                        }
                }
        }
}

/* In memory of exactly n bytes, so that reading beyond is an error. */
static bool same(const unsigned char *bytes, size_t n)
{
        _cleanup_buf_ struct buf got = { 0 }, want = { 0 };
        unsigned char *exact = malloc(n ? n : 1);
        memcpy(exact, bytes, n);
        json_escape(&got, (const char *)exact, n);
        reference(&want, exact, n);
        free(exact);
        bool ok = buf_ok(&got) && got.len == want.len && (got.len == 0 || memcmp(got.data, want.data, got.len) == 0);
        if (!ok)
                printf("%zu bytes: %.*s\nnot %.*s\n", n, (int)got.len, got.data, (int)want.len, want.data);
        return ok;
}

/* jansson reads it back, and nothing but the invalid bytes has changed. */
static bool parses(const unsigned char *bytes, size_t n)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct json j = { .b = &b };
        json_open(&j, '[');
        json_str(&j, (const char *)bytes, n);
        json_close(&j, ']');
        json_t *doc = json_loadb(b.data, b.len, JSON_ALLOW_NUL, NULL);
        const json_t *s = doc ? json_array_get(doc, 0) : NULL;
        bool ok = s && json_is_string(s);
        if (ok && str_is_utf8((struct str){ (const char *)bytes, n }))
                ok = json_string_length(s) == n && memcmp(json_string_value(s), bytes, n) == 0;
        json_decref(doc);
        return ok;
}

static void test_every_byte_at_every_place(void)
{
        unsigned wrong = 0;
        for (unsigned c = 0; c < 256; c++)
                for (size_t n = 1; n <= 35; n += n < 15 || n > 18 ? 3 : 1)
                        for (size_t at = 0; at < n; at++) {
                                unsigned char t[35];
                                memset(t, 'x', sizeof t);
                                t[at] = (unsigned char)c;
                                wrong += !same(t, n);
                        }
        CHECK_INT(wrong, 0);
}

/* Characters of several bytes across and up to the 16-byte steps, whole and cut off. */
static void test_characters_at_boundaries(void)
{
        static const char *const chars[] = { "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\xa0\x80",
                                             "\xf4\x90\x80\x80", "\xc0\xaf", "\xe0\x80\x80", "\xf0\x80\x80\x80" };
        unsigned wrong = 0;
        for (size_t k = 0; k < sizeof chars / sizeof chars[0]; k++)
                for (size_t at = 0; at < 34; at++)
                        for (size_t cut = 0; cut <= strlen(chars[k]); cut++) {
                                unsigned char t[64];
                                memset(t, '.', sizeof t);
                                memcpy(t + at, chars[k], cut);
                                wrong += !same(t, at + cut);
                                wrong += !same(t, 48);
                                wrong += !parses(t, at + cut);
                        }
        CHECK_INT(wrong, 0);
}

static void test_random_bytes(void)
{
        unsigned wrong = 0;
        srandom(1);
        for (unsigned round = 0; round < 30000; round++) {
                unsigned char t[80];
                size_t n = (size_t)random() % sizeof t;
                int kind = (int)(random() % 4);
                for (size_t i = 0; i < n; i++) {
                        static const unsigned char odd[] = { 0x80, 0xbf, 0xc2, 0xe0, 0xed, 0xef, 0xf0, 0xf4, '"', 0 };
                        long r = random();
                        t[i] = kind == 0   ? (unsigned char)r
                               : kind == 1 ? (unsigned char)(0x20 + r % 0x5f)
                               : kind == 2 ? odd[(size_t)r % sizeof odd]
                               : r % 8     ? 'a'
                                           : (unsigned char)(r >> 8);
                }
                wrong += !same(t, n) + !parses(t, n);
        }
        CHECK_INT(wrong, 0);
        CHECK(same((const unsigned char *)"", 0));
}

/* One U+FFFD for each byte that cannot start or continue a character. */
static void test_replacement(void)
{
        static const struct { const char *in, *out; } rows[] = {
                { "\xff", "\xef\xbf\xbd" },
                { "a\xc3", "a\xef\xbf\xbd" },
                { "\xe2\x82z", "\xef\xbf\xbd\xef\xbf\xbdz" },
                { "\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
                { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
                { "\x7f</script>", "\x7f</script>" },
                { "\x1b[31m", "\\u001b[31m" },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                _cleanup_buf_ struct buf b = { 0 };
                json_escape(&b, rows[i].in, strlen(rows[i].in));
                CHECK_STR(buf_cstr(&b), rows[i].out);
        }
}

static void test_writer(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct json j = { .b = &b };
        json_open(&j, '{');
        json_kv(&j, "a\"b", "x\ny");
        json_kv_int(&j, "min", INT64_MIN);
        json_kv_int(&j, "max", INT64_MAX);
        json_kv_bool(&j, "yes", true);
        json_key(&j, "list");
        json_open(&j, '[');
        json_int(&j, 1);
        json_bool(&j, false);
        json_open(&j, '{');
        json_close(&j, '}');
        json_open(&j, '[');
        json_close(&j, ']');
        json_cstr(&j, "end");
        json_close(&j, ']');
        json_kv(&j, "last", "");
        json_close(&j, '}');
        CHECK_STR(buf_cstr(&b), "{\"a\\\"b\":\"x\\ny\",\"min\":-9223372036854775808,\"max\":9223372036854775807,"
                                "\"yes\":true,\"list\":[1,false,{},[],\"end\"],\"last\":\"\"}");
        json_t *doc = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES, NULL);
        CHECK(doc != NULL);
        CHECK_INT(json_integer_value(json_object_get(doc, "min")), INT64_MIN);
        json_decref(doc);
}

int main(void)
{
        RUN(test_every_byte_at_every_place);
        RUN(test_characters_at_boundaries);
        RUN(test_random_bytes);
        RUN(test_replacement);
        RUN(test_writer);
        return check_done();
}
