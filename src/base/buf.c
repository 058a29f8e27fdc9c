#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void buf_free(struct buf *b)
{
        free(b->data);
        *b = (struct buf){ 0 };
}

bool buf_reserve(struct buf *b, size_t more)
{
        if (b->failed)
                return false;
        if (more <= b->cap - b->len)
                return true;
        if (more > SIZE_MAX / 2 - b->len) {
                b->failed = true;
                return false;
        }
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->len < more)
                cap *= 2;
        char *p = realloc(b->data, cap);
        if (!p) {
                b->failed = true;
                return false;
        }
        b->data = p;
        b->cap = cap;
        return true;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
        if (!n || !buf_reserve(b, n))
                return;
        memcpy(b->data + b->len, p, n);
        b->len += n;
}

void buf_adds(struct buf *b, const char *s)
{
        buf_add(b, s, strlen(s));
}

void buf_addc(struct buf *b, char c)
{
        buf_add(b, &c, 1);
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(NULL, 0, fmt, ap);
        va_end(ap);
        if (n < 0 || !buf_reserve(b, (size_t)n + 1)) {
                b->failed = true;
                return;
        }
        va_start(ap, fmt);
        (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
        va_end(ap);
        b->len += (size_t)n;
}

void buf_consume(struct buf *b, size_t n)
{
        if (n >= b->len) {
                b->len = 0;
                return;
        }
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
}

char *buf_cstr(struct buf *b)
{
        if (!buf_reserve(b, 1))
                return NULL;
        b->data[b->len] = '\0';
        return b->data;
}

char *buf_steal(struct buf *b)
{
        char *p = buf_cstr(b);
        if (p)
                *b = (struct buf){ 0 };
        return p;
}
