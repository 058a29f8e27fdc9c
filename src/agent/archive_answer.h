/* What a transfer answers: how many members, which were left out and why, or a failure. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/frame.h"

struct skipped {
        uint64_t count;
        struct buf fields; /* FIELD_SKIPPED for the first LIMIT_SKIPPED_NAMED */
};

void skipped_add(struct skipped *s, const char *name, const char *why);
int answer_totals(int conn, enum frame_type type, uint64_t count, const struct skipped *s);
int answer_fail(int conn, const struct err *e);
