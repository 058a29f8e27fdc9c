#include "box/registry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Ids come from strangers: a keyed hash, so that nobody can choose colliding ones. */
static uint64_t hash_key;

static uint64_t hash(struct str s)
{
        uint64_t h = 0xcbf29ce484222325ull ^ hash_key;
        for (size_t i = 0; i < s.n; i++) {
                h ^= (unsigned char)s.p[i];
                h *= 0x100000001b3ull;
                h ^= h >> 29;
        }
        h ^= hash_key >> 7;
        h *= 0x9e3779b97f4a7c15ull;
        return h ^ h >> 32;
}

static struct str box_id(const struct box *b)
{
        return (struct str){ b->id, b->id_len };
}

int registry_init(struct registry *r)
{
        *r = (struct registry){ .bucket_count = 256 };
        if (!hash_key)
                (void)!getrandom(&hash_key, sizeof hash_key, 0);
        r->buckets = calloc(r->bucket_count, sizeof *r->buckets);
        return r->buckets ? 0 : -ENOMEM;
}

void registry_free(struct registry *r)
{
        free(r->buckets);
        free(r->heap);
        *r = (struct registry){ 0 };
}

struct box *registry_find(const struct registry *r, struct str id)
{
        for (struct box *b = r->buckets[hash(id) % r->bucket_count]; b; b = b->hash_next)
                if (b->id_len == id.n && memcmp(b->id, id.p, id.n) == 0)
                        return b;
        return NULL;
}

static void grow(struct registry *r)
{
        size_t count = r->bucket_count * 2;
        struct box **buckets = calloc(count, sizeof *buckets);
        if (!buckets)
                return; /* longer chains, nothing worse */
        for (size_t i = 0; i < r->bucket_count; i++)
                for (struct box *b = r->buckets[i], *next; b; b = next) {
                        struct box **at = &buckets[hash(box_id(b)) % count];
                        next = b->hash_next;
                        b->hash_next = *at;
                        *at = b;
                }
        free(r->buckets);
        r->buckets = buckets;
        r->bucket_count = count;
}

/* --- the heap, by expires_ms ------------------------------------------------------- */

static void place(struct registry *r, size_t at, struct box *b)
{
        r->heap[at] = b;
        b->heap_at = at;
}

static void sift_up(struct registry *r, size_t at)
{
        struct box *b = r->heap[at];
        while (at && r->heap[(at - 1) / 2]->expires_ms > b->expires_ms) {
                place(r, at, r->heap[(at - 1) / 2]);
                at = (at - 1) / 2;
        }
        place(r, at, b);
}

static void sift_down(struct registry *r, size_t at)
{
        struct box *b = r->heap[at];
        for (;;) {
                size_t child = at * 2 + 1;
                if (child >= r->heap_count)
                        break;
                if (child + 1 < r->heap_count && r->heap[child + 1]->expires_ms < r->heap[child]->expires_ms)
                        child++;
                if (r->heap[child]->expires_ms >= b->expires_ms)
                        break;
                place(r, at, r->heap[child]);
                at = child;
        }
        place(r, at, b);
}

static void heap_remove(struct registry *r, struct box *b)
{
        size_t at = b->heap_at;
        if (at == SIZE_MAX)
                return;
        struct box *last = r->heap[--r->heap_count];
        b->heap_at = SIZE_MAX;
        if (last == b)
                return;
        place(r, at, last);
        sift_up(r, at);
        sift_down(r, last->heap_at);
}

int registry_expiry_changed(struct registry *r, struct box *b)
{
        if (b->heap_at == SIZE_MAX) {
                if (r->heap_count == r->heap_cap) {
                        size_t cap = r->heap_cap ? r->heap_cap * 2 : 64;
                        struct box **heap = realloc(r->heap, cap * sizeof *heap);
                        if (!heap)
                                return -ENOMEM;
                        r->heap = heap;
                        r->heap_cap = cap;
                }
                place(r, r->heap_count++, b);
        }
        sift_up(r, b->heap_at);
        sift_down(r, b->heap_at);
        return 0;
}

struct box *registry_first(const struct registry *r)
{
        return r->heap_count ? r->heap[0] : NULL;
}

void registry_add(struct registry *r, struct box *b)
{
        if (r->count >= r->bucket_count)
                grow(r);
        struct box **at = &r->buckets[hash(box_id(b)) % r->bucket_count];
        b->hash_next = *at;
        *at = b;
        r->count++;
}

void registry_remove(struct registry *r, struct box *b)
{
        struct box **at = &r->buckets[hash(box_id(b)) % r->bucket_count];
        for (; *at; at = &(*at)->hash_next)
                if (*at == b) {
                        *at = b->hash_next;
                        r->count--;
                        break;
                }
        heap_remove(r, b);
}

void registry_each(const struct registry *r, void (*fn)(struct box *, void *), void *user)
{
        for (size_t i = 0; i < r->bucket_count; i++)
                for (struct box *b = r->buckets[i]; b; b = b->hash_next)
                        fn(b, user);
}
