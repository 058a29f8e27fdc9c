#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct str str_c(const char *s)
{
        return (struct str){ s, s ? strlen(s) : 0 };
}

bool str_eq(struct str a, const char *b)
{
        size_t n = strlen(b);
        return a.n == n && (n == 0 || memcmp(a.p, b, n) == 0);
}

bool str_eq_fold(struct str a, const char *b)
{
        size_t n = strlen(b);
        return a.n == n && (n == 0 || strncasecmp(a.p, b, n) == 0);
}

bool str_has_prefix(struct str s, const char *prefix)
{
        size_t n = strlen(prefix);
        return s.n >= n && memcmp(s.p, prefix, n) == 0;
}

bool str_eq_secret(struct str a, struct str b)
{
        size_t n = a.n > b.n ? a.n : b.n;
        volatile unsigned char diff = (unsigned char)(a.n != b.n);
        for (size_t i = 0; i < n; i++) {
                unsigned char x = i < a.n ? (unsigned char)a.p[i] : 0;
                unsigned char y = i < b.n ? (unsigned char)b.p[i] : 0;
                diff |= (unsigned char)(x ^ y);
        }
        return diff == 0;
}

char *str_dup_c(struct str s)
{
        if (s.n && memchr(s.p, 0, s.n))
                return NULL;
        char *copy = malloc(s.n + 1);
        if (!copy)
                return NULL;
        if (s.n)
                memcpy(copy, s.p, s.n);
        copy[s.n] = '\0';
        return copy;
}

bool str_to_u64(struct str s, uint64_t max, uint64_t *ret)
{
        if (s.n == 0)
                return false;
        uint64_t v = 0;
        for (size_t i = 0; i < s.n; i++) {
                unsigned d = (unsigned char)s.p[i] - (unsigned)'0';
                if (d > 9 || v > (UINT64_MAX - d) / 10)
                        return false;
                v = v * 10 + d;
        }
        if (v > max)
                return false;
        *ret = v;
        return true;
}

static int hex_digit(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        if (c >= 'A' && c <= 'F')
                return c - 'A' + 10;
        return -1;
}

bool str_unescape(struct str src, bool plus, char *dst, size_t *ret_n)
{
        size_t n = 0;
        for (size_t i = 0; i < src.n; i++) {
                char c = src.p[i];
                if (c == '+' && plus) {
                        c = ' ';
                } else if (c == '%') {
                        if (src.n - i < 3)
                                return false;
                        int hi = hex_digit(src.p[i + 1]), lo = hex_digit(src.p[i + 2]);
                        if (hi < 0 || lo < 0)
                                return false;
                        c = (char)(hi * 16 + lo);
                        i += 2;
                }
                dst[n++] = c;
        }
        *ret_n = n;
        return true;
}

bool str_is_utf8(struct str s)
{
        const unsigned char *p = (const unsigned char *)s.p, *end = p + s.n;
        while (p < end) {
                if (*p < 0x80) {
                        p++;
                        continue;
                }
                int more = *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
                if (*p < 0xc2 || *p > 0xf4 || end - p <= more)
                        return false;
                if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) ||
                    (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))
                        return false;
                for (int i = 1; i <= more; i++)
                        if ((p[i] & 0xc0) != 0x80)
                                return false;
                p += more + 1;
        }
        return true;
}
