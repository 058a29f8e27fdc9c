/* All sandboxes by id, and the one that expires first. */
#pragma once

#include "box/box.h"

struct registry {
        struct box **buckets;
        size_t bucket_count, count;
        struct box **heap;
        size_t heap_count, heap_cap;
};

int registry_init(struct registry *r);
void registry_free(struct registry *r);
struct box *registry_find(const struct registry *r, struct str id);
/* Holds the caller's reference from here on. */
void registry_add(struct registry *r, struct box *b);
/* Takes b out of table and heap; the reference is the caller's again. */
void registry_remove(struct registry *r, struct box *b);
/* Puts b where its expires_ms belongs. */
int registry_expiry_changed(struct registry *r, struct box *b);
/* The next to expire, NULL without one. */
struct box *registry_first(const struct registry *r);
/* Calls fn for each; fn may not add or remove. */
void registry_each(const struct registry *r, void (*fn)(struct box *b, void *user), void *user);
