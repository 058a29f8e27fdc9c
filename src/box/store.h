/* What must survive a restart: one row for each sandbox, in SQLite. A row is written
 * before its sandbox is told to anybody. After a crash of the machine no sandbox lives, so
 * rows need to survive only the death of this process: no fsync on any path. */
#pragma once

#include "base/err.h"
#include "box/box.h"

struct store;

int store_open(const char *path, struct store **ret, struct err *e);
void store_close(struct store *s);
int store_put(struct store *s, const struct box *b, struct err *e);
int store_set_expiry(struct store *s, const struct box *b, struct err *e);
int store_delete(struct store *s, const struct box *b, struct err *e);
/* Where on this host the sandboxes are (see boxes_config); "" when that was never set. */
int store_get_place(struct store *s, char *out, size_t size, struct err *e);
int store_set_place(struct store *s, const char *place, struct err *e);
/* Hands every row to fn as a box, which fn owns, in the order of their names. */
int store_load(struct store *s, void (*fn)(struct box *b, void *user), void *user, struct err *e);
