#include "box/store.h"

#include <errno.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char dir[] = "/tmp/cloche-test-store-XXXXXX";
static char path[128];

struct rows {
        struct box *list[64];
        unsigned count;
};

static void collect(struct box *b, void *user)
{
        struct rows *r = user;
        if (r->count == 64)
                abort();
        r->list[r->count++] = b;
}

static void rows_free(struct rows *r)
{
        for (unsigned i = 0; i < r->count; i++)
                box_unref(r->list[i]);
        r->count = 0;
}

static struct box *row(const struct rows *r, const char *name)
{
        for (unsigned i = 0; i < r->count; i++)
                if (strcmp(r->list[i]->name, name) == 0)
                        return r->list[i];
        return NULL;
}

static struct store *opened(void)
{
        struct store *s = NULL;
        struct err e = { 0 };
        int r = store_open(path, &s, &e);
        if (r < 0)
                printf("%s\n", e.msg);
        CHECK_INT(r, 0);
        return s;
}

static void forget(void)
{
        static const char *const tails[] = { "", "-wal", "-shm", "-journal" };
        for (unsigned i = 0; i < 4; i++) {
                char p[160];
                (void)snprintf(p, sizeof p, "%s%s", path, tails[i]);
                (void)unlink(p);
        }
}

static struct box *make(const char *name, struct str id)
{
        struct box *b = box_new(id);
        (void)snprintf(b->name, sizeof b->name, "%s", name);
        (void)snprintf(b->image, sizeof b->image, "it's \"an\" image;--");
        b->slot = 4000000000u;
        b->shape = (struct shape){ .cpu_millis = 4000000000u, .memory = 1ull << 46, .storage = (1ull << 46) - 1, .pids = 99 };
        b->created_ms = 1767357296789;
        b->ttl_ms = 31536000000;
        b->expires_ms = b->created_ms + b->ttl_ms;
        return b;
}

static void check_same(const struct box *got, const struct box *want)
{
        if (!got) {
                CHECK(!"the row is there");
                return;
        }
        CHECK(got->id_len == want->id_len && memcmp(got->id, want->id, want->id_len + 1) == 0);
        CHECK_STR(got->image, want->image);
        CHECK_INT(got->slot, want->slot);
        CHECK_INT(got->shape.cpu_millis, want->shape.cpu_millis);
        CHECK_INT(got->shape.memory, want->shape.memory);
        CHECK_INT(got->shape.storage, want->shape.storage);
        CHECK_INT(got->shape.pids, want->shape.pids);
        CHECK_INT(got->created_ms, want->created_ms);
        CHECK_INT(got->ttl_ms, want->ttl_ms);
        CHECK_INT(got->expires_ms, want->expires_ms);
        CHECK_INT(got->pidfd, -1);
        CHECK_INT(got->refs, 1);
}

static const struct str ids[] = {
        STR("plain"), STR("a\0b"), STR("'; DROP TABLE sandboxes; --"), STR("\"quoted\""), STR("\xff\xfe\n"),
        STR("%s%n"), STR("\xe2\x82\xac"), STR("?1 :a @b"),
};
#define IDS (sizeof ids / sizeof ids[0])

static void test_round_trip(void)
{
        struct box *b[IDS];
        struct rows r = { 0 };
        struct err e = { 0 };
        struct store *s = opened();
        for (unsigned i = 0; i < IDS; i++) {
                char name[24];
                (void)snprintf(name, sizeof name, "sbx-%u", (unsigned)IDS - i);
                b[i] = make(name, ids[i]);
                CHECK_INT(store_put(s, b[i], &e), 0);
        }
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK_INT(r.count, IDS);
        for (unsigned i = 1; i < r.count; i++) /* adoption searches in this order */
                CHECK(strcmp(r.list[i - 1]->name, r.list[i]->name) < 0);
        for (unsigned i = 0; i < IDS; i++)
                check_same(row(&r, b[i]->name), b[i]);
        rows_free(&r);
        store_close(s);
        s = opened(); /* what a restart finds */
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK_INT(r.count, IDS);
        for (unsigned i = 0; i < IDS; i++) {
                check_same(row(&r, b[i]->name), b[i]);
                box_unref(b[i]);
        }
        rows_free(&r);
        store_close(s);
        forget();
}

static void test_changes(void)
{
        struct rows r = { 0 };
        struct err e = { 0 };
        struct store *s = opened();
        struct box *a = make("sbx-a", STR("one")), *b = make("sbx-b", STR("two"));
        CHECK_INT(store_put(s, a, &e), 0);
        CHECK_INT(store_put(s, b, &e), 0);
        a->ttl_ms = 5;
        a->expires_ms = 6;
        a->slot = 7; /* not part of an expiry */
        CHECK_INT(store_set_expiry(s, a, &e), 0);
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK(row(&r, "sbx-a")->ttl_ms == 5 && row(&r, "sbx-a")->expires_ms == 6);
        CHECK_INT(row(&r, "sbx-a")->slot, 4000000000u);
        check_same(row(&r, "sbx-b"), b);
        rows_free(&r);
        CHECK_INT(store_put(s, a, &e), 0); /* the same name: replaced */
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK_INT(r.count, 2);
        CHECK_INT(row(&r, "sbx-a")->slot, 7);
        rows_free(&r);
        CHECK_INT(store_delete(s, a, &e), 0);
        CHECK_INT(store_delete(s, a, &e), 0); /* already gone */
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK_INT(r.count, 1);
        check_same(r.list[0], b);
        rows_free(&r);
        box_unref(a);
        box_unref(b);
        store_close(s);
        forget();
}

/* The server dies without a word: what was put is there. */
static void test_survives_a_crash(void)
{
        struct rows r = { 0 };
        struct err e = { 0 };
        pid_t pid = fork();
        if (pid == 0) {
                struct store *s = opened();
                struct box *a = make("sbx-a", STR("one"));
                _exit(store_put(s, a, &e) == 0 ? 0 : 1);
        }
        int status = -1;
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
        struct store *s = opened();
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK_INT(r.count, 1);
        rows_free(&r);
        store_close(s);
        forget();
}

static void run_sql(const char *sql)
{
        sqlite3 *db = NULL;
        CHECK(sqlite3_open(path, &db) == SQLITE_OK && sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK);
        (void)sqlite3_close(db);
}

static void test_newer_version_is_refused(void)
{
        struct store *s = opened(), *untouched = NULL;
        struct err e = { 0 };
        store_close(s);
        run_sql("PRAGMA user_version=99");
        CHECK_INT(store_open(path, &untouched, &e), -EINVAL);
        CHECK(strstr(e.msg, "99") != NULL);
        CHECK(untouched == NULL);
        forget();
}

static void test_no_database(void)
{
        struct store *s = NULL;
        struct err e = { 0 };
        FILE *f = fopen(path, "w");
        for (unsigned i = 0; f && i < 500; i++)
                (void)fputs("this is no database\n", f);
        (void)fclose(f);
        CHECK(store_open(path, &s, &e) < 0);
        CHECK(e.msg[0] && !s);
        forget();
        CHECK(store_open("/nonexistent/dir/store.db", &s, &e) < 0);
        CHECK(!s);
}

/* Somebody edited the file: rows that make no sense are passed over, the rest comes. */
static void test_odd_rows(void)
{
        struct rows r = { 0 };
        struct err e = { 0 };
        struct store *s = opened();
        struct box *a = make("sbx-a", STR("one"));
        CHECK_INT(store_put(s, a, &e), 0);
        store_close(s);
        run_sql("INSERT INTO sandboxes VALUES ('a name that is much longer than any of ours could be',x'41',"
                "-1,'an image name that is longer than sixty-four characters, which is the room for it here',"
                "'x',NULL,1.5,x'00',NULL,NULL,NULL)");
        s = opened();
        CHECK_INT(store_load(s, collect, &r, &e), 0);
        CHECK_INT(r.count, 2);
        check_same(row(&r, "sbx-a"), a);
        rows_free(&r);
        box_unref(a);
        store_close(s);
        forget();
}

int main(void)
{
        if (!mkdtemp(dir))
                return 1;
        (void)snprintf(path, sizeof path, "%s/store.db", dir);
        RUN(test_round_trip);
        RUN(test_changes);
        RUN(test_survives_a_crash);
        RUN(test_newer_version_is_refused);
        RUN(test_no_database);
        RUN(test_odd_rows);
        (void)rmdir(dir);
        return check_done();
}
