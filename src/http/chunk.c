/* The chunked body coding, byte by byte where it is syntax and span by span where it is
 * data. Ours and not http_parser's because distributions build that one in its lenient
 * mode: it then takes any two bytes for the CRLF behind a chunk, and a front proxy that
 * does not would see other requests in the same bytes than we do. */
#include "http/http_internal.h"

#include <sys/types.h>

/* -1 when c is no hexadecimal digit: "0x5", "+5" and " 5" end here. */
static int hex(unsigned char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        c |= 0x20;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Text of extensions and trailers, which nobody reads: only bounded, and free of the
 * control bytes that could be line ends to somebody else. */
static bool take_text(struct http_chunk *k, unsigned char c)
{
        if ((c < 0x20 && c != '\t') || c == 0x7f)
                return false;
        return ++k->extra <= HTTP_CHUNK_EXTRA_BYTES;
}

static bool take_size(struct http_chunk *k, unsigned char c)
{
        int digit = hex(c);
        if (digit >= 0) {
                /* 15 digits stay below 2^60: no sum can overflow. Zeros count, or a
                 * chunk size could go on for ever. */
                if (++k->digits > 15)
                        return false;
                k->left = k->left * 16 + (unsigned)digit;
                return true;
        }
        if (k->digits == 0)
                return false;
        if (c == '\r')
                k->state = HTTP_CHUNK_SIZE_LF;
        else if (c == ';')
                k->state = HTTP_CHUNK_EXTENSION;
        else
                return false;
        return true;
}

static bool take_trailer(struct http_chunk *k, unsigned char c)
{
        if (c == '\r') {
                k->state = k->state == HTTP_CHUNK_TRAILER ? HTTP_CHUNK_LAST_LF
                                                          : HTTP_CHUNK_TRAILER_LF;
                return true;
        }
        k->state = HTTP_CHUNK_TRAILER_IN;
        return take_text(k, c);
}

/* Expects exactly c == want, then goes to next. */
static bool take_exact(struct http_chunk *k, unsigned char c, char want, enum http_chunk_state next)
{
        k->state = next;
        return c == (unsigned char)want;
}

static bool take_syntax(struct http_chunk *k, unsigned char c)
{
        switch (k->state) {
        case HTTP_CHUNK_SIZE:
                return take_size(k, c);
        case HTTP_CHUNK_EXTENSION:
                if (c != '\r')
                        return take_text(k, c);
                k->state = HTTP_CHUNK_SIZE_LF;
                return true;
        case HTTP_CHUNK_SIZE_LF:
                k->digits = 0;
                return take_exact(k, c, '\n', k->left ? HTTP_CHUNK_DATA : HTTP_CHUNK_TRAILER);
        case HTTP_CHUNK_DATA_CR:
                return take_exact(k, c, '\r', HTTP_CHUNK_DATA_LF);
        case HTTP_CHUNK_DATA_LF:
                return take_exact(k, c, '\n', HTTP_CHUNK_SIZE);
        case HTTP_CHUNK_TRAILER:
        case HTTP_CHUNK_TRAILER_IN:
                return take_trailer(k, c);
        case HTTP_CHUNK_TRAILER_LF:
                return take_exact(k, c, '\n', HTTP_CHUNK_TRAILER);
        case HTTP_CHUNK_LAST_LF:
                return take_exact(k, c, '\n', HTTP_CHUNK_DONE);
        default:
                return false;
        }
}

ssize_t http_chunk_take(struct http_chunk *k, const char *p, size_t n, struct str *ret_data)
{
        size_t i = 0;
        *ret_data = (struct str){ NULL, 0 };
        while (i < n && k->state != HTTP_CHUNK_DONE) {
                if (k->state == HTTP_CHUNK_DATA) {
                        size_t take = n - i < k->left ? n - i : (size_t)k->left;
                        *ret_data = (struct str){ p + i, take };
                        k->left -= take;
                        if (k->left == 0)
                                k->state = HTTP_CHUNK_DATA_CR;
                        return (ssize_t)(i + take);
                }
                if (!take_syntax(k, (unsigned char)p[i]))
                        return -1;
                i++;
        }
        return (ssize_t)i;
}
