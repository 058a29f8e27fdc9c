/* Sandboxes of the default shape, made ahead of time and known to nobody yet. */
#pragma once

#include "box/boxes.h"

int pool_new(struct boxes *bs, struct pool **ret);
/* Moves a ready sandbox into b (name, slot, pidfd); false when none fits. */
bool pool_take(struct pool *p, const struct shape *shape, struct box *b);
/* Begins to fill up to its size. */
void pool_fill(struct pool *p);
/* The same, in a moment: what was just handed out is about to be used, and making another
 * beside it would only slow that down. */
void pool_fill_later(struct pool *p);
/* Ends all of it and fills no more. */
void pool_drain(struct pool *p);
void pool_free(struct pool *p);
