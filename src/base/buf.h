/* A growable byte buffer. Out of memory is sticky: appends after a failed one do
 * nothing, and buf_ok() says so once at the end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

struct buf {
        char *data;
        size_t len, cap;
        bool failed;
};

void buf_free(struct buf *b);
bool buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) _printf_(2, 3);
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);
/* NUL-terminates without counting the NUL. NULL when an append failed. */
char *buf_cstr(struct buf *b);
/* The NUL-terminated bytes, now the caller's; NULL when an append failed. */
char *buf_steal(struct buf *b);

static inline bool buf_ok(const struct buf *b)
{
        return !b->failed;
}

#define _cleanup_buf_ _cleanup_(buf_free)
