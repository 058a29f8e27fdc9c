#include "agent/capture.h"

#include <string.h>

void capture_init(struct capture *c, size_t cap)
{
        *c = (struct capture){ .cap = cap < 2 ? 2 : cap };
}

void capture_free(struct capture *c)
{
        buf_free(&c->head);
        free(c->ring);
        c->ring = NULL;
}

static size_t tail_cap(const struct capture *c)
{
        return c->cap - c->cap / 2;
}

static void ring_add(struct capture *c, const char *p, size_t n)
{
        size_t cap = tail_cap(c);
        if (!c->ring && !(c->ring = malloc(cap)))
                return; /* no memory: the head stays, and total tells of the rest */
        if (n > cap) {
                p += n - cap;
                n = cap;
        }
        size_t first = cap - c->ring_at < n ? cap - c->ring_at : n;
        memcpy(c->ring + c->ring_at, p, first);
        memcpy(c->ring, p + first, n - first);
        c->ring_at = (c->ring_at + n) % cap;
        c->ring_len = c->ring_len + n > cap ? cap : c->ring_len + n;
}

void capture_add(struct capture *c, const char *p, size_t n)
{
        c->total += n;
        size_t room = c->cap / 2 - c->head.len;
        size_t take = n < room ? n : room;
        buf_add(&c->head, p, take);
        if (n > take)
                ring_add(c, p + take, n - take);
}

void capture_render(const struct capture *c, struct buf *out)
{
        buf_add(out, c->head.data, c->head.len);
        uint64_t lost = c->total - c->head.len - c->ring_len;
        if (lost)
                buf_addf(out, "\n[... %llu bytes left out ...]\n", (unsigned long long)lost);
        size_t cap = tail_cap(c);
        size_t start = c->ring_len < cap ? 0 : c->ring_at;
        size_t first = c->ring_len < cap - start ? c->ring_len : cap - start;
        if (c->ring) {
                buf_add(out, c->ring + start, first);
                buf_add(out, c->ring, c->ring_len - first);
        }
}
