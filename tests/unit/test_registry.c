#include "box/registry.h"

#include "check.h"

static bool heap_ok(const struct registry *r)
{
        for (size_t i = 0; i < r->heap_count; i++) {
                if (r->heap[i]->heap_at != i)
                        return false;
                if (i && r->heap[(i - 1) / 2]->expires_ms > r->heap[i]->expires_ms)
                        return false;
        }
        return true;
}

struct tally {
        size_t count;
        uint64_t sum;
};

static void tally(struct box *b, void *user)
{
        struct tally *t = user;
        t->count++;
        t->sum += b->slot;
}

#define IDS 700

/* The naive model: an array by number, looked through from end to end. */
static struct box *model[IDS];

static struct str id_of(unsigned i, char out[32])
{
        int n = snprintf(out, 32, "id %u\x01%c", i, '\0'); /* also with a NUL inside */
        return (struct str){ out, (size_t)n };
}

static int64_t model_first(void)
{
        int64_t first = INT64_MAX;
        for (unsigned i = 0; i < IDS; i++)
                if (model[i] && model[i]->heap_at != SIZE_MAX && model[i]->expires_ms < first)
                        first = model[i]->expires_ms;
        return first;
}

static void check_all(const struct registry *r)
{
        struct tally t = { 0 }, want = { 0 };
        char text[32];
        registry_each(r, tally, &t);
        for (unsigned i = 0; i < IDS; i++) {
                CHECK(registry_find(r, id_of(i, text)) == model[i]);
                if (model[i]) {
                        want.count++;
                        want.sum += model[i]->slot;
                }
        }
        CHECK_INT(t.count, want.count);
        CHECK_INT(t.sum, want.sum);
        CHECK_INT(r->count, want.count);
        CHECK(heap_ok(r));
}

static void test_against_a_model(void)
{
        struct registry r;
        char text[32];
        srandom(5);
        CHECK_INT(registry_init(&r), 0);
        for (unsigned round = 0; round < 60000; round++) {
                unsigned i = (unsigned)random() % IDS;
                struct box *b = model[i];
                long what = random() % 8;
                if (!b) {
                        b = model[i] = box_new(id_of(i, text));
                        b->slot = i;
                        b->expires_ms = random() % 1000;
                        registry_add(&r, b);
                        if (random() % 4) /* some are never given a time */
                                CHECK_INT(registry_expiry_changed(&r, b), 0);
                } else if (what < 3) {
                        registry_remove(&r, b);
                        CHECK(b->heap_at == SIZE_MAX);
                        box_unref(b);
                        model[i] = NULL;
                } else {
                        b->expires_ms = what == 7 ? INT64_MAX : random() % 1000;
                        CHECK_INT(registry_expiry_changed(&r, b), 0);
                }
                const struct box *first = registry_first(&r);
                CHECK((first ? first->expires_ms : INT64_MAX) == model_first());
                if (round % 4000 == 0)
                        check_all(&r);
        }
        check_all(&r);
        CHECK(r.bucket_count > 256); /* it has grown on the way */
        int64_t last = INT64_MIN;
        for (struct box *b; (b = registry_first(&r));) { /* comes out in order */
                CHECK(b->expires_ms >= last);
                last = b->expires_ms;
                model[b->slot] = NULL;
                registry_remove(&r, b);
                box_unref(b);
        }
        for (unsigned i = 0; i < IDS; i++)
                if (model[i]) {
                        registry_remove(&r, model[i]);
                        box_unref(model[i]);
                        model[i] = NULL;
                }
        CHECK_INT(r.count, 0);
        registry_free(&r);
}

/* Ids are bytes: a NUL does not end them, a prefix is another id. */
static void test_ids_are_bytes(void)
{
        static const struct str ids[] = { STR("a"), STR("a\0"), STR("a\0b"), STR("A"), STR("\xff"), STR("") };
        struct box *b[6];
        struct registry r;
        CHECK_INT(registry_init(&r), 0);
        CHECK(registry_first(&r) == NULL);
        for (unsigned i = 0; i < 6; i++)
                registry_add(&r, b[i] = box_new(ids[i]));
        for (unsigned i = 0; i < 6; i++)
                CHECK(registry_find(&r, ids[i]) == b[i]);
        CHECK(registry_find(&r, STR("a\0c")) == NULL);
        for (unsigned i = 0; i < 6; i++) {
                registry_remove(&r, b[i]);
                registry_remove(&r, b[i]); /* twice does no harm */
                CHECK_INT(r.count, 5 - i);
                box_unref(b[i]);
        }
        registry_free(&r);
}

int main(void)
{
        RUN(test_against_a_model);
        RUN(test_ids_are_bytes);
        return check_done();
}
