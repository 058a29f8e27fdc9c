/* What is kept of a stream: its head and its tail, in bounded memory. The head shows what
 * was started, the tail how it ended; a flood between them costs nothing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct capture {
        size_t cap;      /* bytes kept in all; half head, half tail */
        uint64_t total;  /* bytes seen */
        struct buf head;
        char *ring;
        size_t ring_at;  /* next write position */
        size_t ring_len;
};

void capture_init(struct capture *c, size_t cap);
void capture_free(struct capture *c);
void capture_add(struct capture *c, const char *p, size_t n);
/* Appends what was kept, with a marker line where bytes are missing. */
void capture_render(const struct capture *c, struct buf *out);
