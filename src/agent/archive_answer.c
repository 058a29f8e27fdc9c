#include "agent/archive_answer.h"

#include <errno.h>
#include <string.h>

#include "base/limits.h"

#define NAME_BYTES 256 /* of a skipped name: it is a stranger's, and may be endless */

void skipped_add(struct skipped *s, const char *name, const char *why)
{
        if (s->count++ >= LIMIT_SKIPPED_NAMED)
                return;
        _cleanup_buf_ struct buf line = { 0 };
        size_t n = strnlen(name, NAME_BYTES);
        buf_add(&line, name, n);
        buf_addf(&line, "%s: %s", name[n] ? "…" : "", why);
        if (buf_ok(&line))
                field_add(&s->fields, FIELD_SKIPPED, line.data, line.len);
}

int answer_totals(int conn, enum frame_type type, uint64_t count, const struct skipped *s)
{
        _cleanup_buf_ struct buf b = { 0 };
        field_add_u64(&b, FIELD_COUNT, count);
        field_add_u64(&b, FIELD_SKIPPED_COUNT, s->count);
        if (buf_ok(&s->fields)) /* else the last one may be cut; the count stays true without them */
                buf_add(&b, s->fields.data, s->fields.len);
        return buf_ok(&b) ? frame_write(conn, type, b.data, b.len) : -ENOMEM;
}

int answer_fail(int conn, const struct err *e)
{
        _cleanup_buf_ struct buf b = { 0 };
        field_add_u64(&b, FIELD_CODE, (uint64_t)-e->code);
        field_add_u64(&b, FIELD_BLAME, e->blame);
        field_add_str(&b, FIELD_MESSAGE, e->msg);
        return buf_ok(&b) ? frame_write(conn, FRAME_FAIL, b.data, b.len) : -ENOMEM;
}
