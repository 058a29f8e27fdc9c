#include "base/json_write.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* How many leading bytes can be copied as they are: printable ASCII but " and \. */
static size_t plain_run(const unsigned char *p, size_t n)
{
        size_t i = 0;
#ifdef __SSE2__
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
        const __m128i space = _mm_set1_epi8(0x20);
        for (; n - i >= 16; i += 16) {
                __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
                /* signed compare: bytes >= 0x80 count as below 0x20, which is wanted */
                __m128i odd = _mm_or_si128(_mm_cmplt_epi8(v, space),
                                           _mm_or_si128(_mm_cmpeq_epi8(v, quote),
                                                        _mm_cmpeq_epi8(v, slash)));
                unsigned mask = (unsigned)_mm_movemask_epi8(odd);
                if (mask)
                        return i + (size_t)__builtin_ctz(mask);
        }
#endif
        while (i < n && p[i] >= 0x20 && p[i] < 0x80 && p[i] != '"' && p[i] != '\\')
                i++;
        return i;
}

/* Length of the valid UTF-8 sequence at p, 0 when there is none. */
static size_t utf8_len(const unsigned char *p, size_t n)
{
        unsigned char c = p[0];
        size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        if (c < 0xc2 || c > 0xf4 || n < len)
                return 0;
        if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) ||
            (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f))
                return 0;
        for (size_t i = 1; i < len; i++)
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
        return len;
}

static void escape_one(struct buf *b, unsigned char c)
{
        static const char hex[] = "0123456789abcdef";
        switch (c) {
        case '"': buf_add(b, "\\\"", 2); return;
        case '\\': buf_add(b, "\\\\", 2); return;
        case '\n': buf_add(b, "\\n", 2); return;
        case '\r': buf_add(b, "\\r", 2); return;
        case '\t': buf_add(b, "\\t", 2); return;
        case '\b': buf_add(b, "\\b", 2); return;
        case '\f': buf_add(b, "\\f", 2); return;
        default: {
                char u[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
                buf_add(b, u, 6);
        }
        }
}

void json_escape(struct buf *b, const char *s, size_t n)
{
        const unsigned char *p = (const unsigned char *)s;
        if (!buf_reserve(b, n + n / 8 + 16))
                return;
        while (n) {
                size_t run = plain_run(p, n);
                buf_add(b, p, run);
                p += run;
                n -= run;
                if (!n)
                        break;
                size_t step = 1;
                if (*p < 0x80)
                        escape_one(b, *p);
                else if (*p == 0xc2 && n > 1 && p[1] >= 0x80 && p[1] < 0xa0) {
                        escape_one(b, p[1]); /* C1 controls drive terminals that show logs */
                        step = 2;
                } else if ((step = utf8_len(p, n)) > 0)
                        buf_add(b, p, step);
                else {
                        buf_add(b, "\xef\xbf\xbd", 3);
                        step = 1;
                }
                p += step;
                n -= step;
        }
}

static void separate(struct json *j)
{
        if (j->comma)
                buf_addc(j->b, ',');
        j->comma = true;
}

void json_open(struct json *j, char bracket)
{
        separate(j);
        buf_addc(j->b, bracket);
        j->comma = false;
}

void json_close(struct json *j, char bracket)
{
        buf_addc(j->b, bracket);
        j->comma = true;
}

void json_key(struct json *j, const char *key)
{
        json_cstr(j, key);
        buf_addc(j->b, ':');
        j->comma = false;
}

void json_str(struct json *j, const char *p, size_t n)
{
        separate(j);
        buf_addc(j->b, '"');
        json_escape(j->b, p, n);
        buf_addc(j->b, '"');
}

void json_cstr(struct json *j, const char *s)
{
        json_str(j, s, strlen(s));
}

void json_int(struct json *j, int64_t v)
{
        separate(j);
        buf_addf(j->b, "%lld", (long long)v);
}

void json_bool(struct json *j, bool v)
{
        separate(j);
        buf_adds(j->b, v ? "true" : "false");
}

void json_kv(struct json *j, const char *key, const char *s)
{
        json_key(j, key);
        json_cstr(j, s);
}

void json_kv_int(struct json *j, const char *key, int64_t v)
{
        json_key(j, key);
        json_int(j, v);
}

void json_kv_bool(struct json *j, const char *key, bool v)
{
        json_key(j, key);
        json_bool(j, v);
}
