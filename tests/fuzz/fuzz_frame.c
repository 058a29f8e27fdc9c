/* Fuzzes frames and their fields. The first byte says where the rest is cut: what comes in
 * pieces must be understood as what comes at once, and never a byte beyond it is read. */
#include <stdlib.h>
#include <string.h>

#include "wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
        if (!ok)
                abort();
}

static void walk_fields(struct str payload)
{
        const char *end = payload.p + payload.n;
        struct str left = payload, v;
        enum field tag;
        uint64_t n;
        size_t total = 0;
        int r;
        while ((r = field_next(&left, &tag, &v)) > 0) {
                must(tag > FIELD_NONE && tag <= FIELD_MAX);
                must(v.p >= payload.p && v.p + v.n <= end && left.p == v.p + v.n && left.p + left.n == end);
                (void)field_u64(v, &n);
                total += 6 + v.n;
        }
        must(r < 0 || total == payload.n);
}

/* What a reader sees that gets step bytes at a time: types and sizes, and the verdict. */
static void play(const uint8_t *p, size_t n, size_t step, struct buf *story)
{
        struct buf in = { 0 };
        int r = 0;
        for (size_t at = 0; r >= 0 && at < n; at += step) {
                buf_add(&in, p + at, n - at < step ? n - at : step);
                for (;;) {
                        struct frame f;
                        size_t used;
                        char *exact = malloc(in.len ? in.len : 1);
                        must(exact != NULL);
                        if (in.len)
                                memcpy(exact, in.data, in.len);
                        r = frame_take(exact, in.len, &f, &used);
                        if (r > 0) {
                                must(used == FRAME_HEAD_BYTES + f.payload.n && used <= in.len);
                                must(f.type > FRAME_NONE && f.type < FRAME_TYPE_MAX && f.payload.n <= FRAME_MAX_PAYLOAD);
                                buf_addf(story, "%s %zu\n", frame_name(f.type), f.payload.n);
                                walk_fields(f.payload);
                                buf_consume(&in, used);
                        }
                        free(exact);
                        if (r <= 0)
                                break;
                }
        }
        buf_addf(story, "%d\n", r < 0 ? r : 0);
        buf_free(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct buf pieces = { 0 }, whole = { 0 };
        if (size < 1)
                return 0;
        play(data + 1, size - 1, data[0] ? data[0] : 1, &pieces);
        play(data + 1, size - 1, size, &whole);
        must(pieces.len == whole.len && memcmp(pieces.data, whole.data, whole.len) == 0);
        buf_free(&pieces);
        buf_free(&whole);
        walk_fields((struct str){ (const char *)data, size });
        return 0;
}
