#include "box/store.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STMT_PUT, STMT_EXPIRY, STMT_DELETE, STMT_MAX };

struct store {
        sqlite3 *db;
        sqlite3_stmt *stmt[STMT_MAX];
};

static const char *const sql[STMT_MAX] = {
        [STMT_PUT] = "INSERT OR REPLACE INTO sandboxes VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        [STMT_EXPIRY] = "UPDATE sandboxes SET ttl_ms=?, expires_ms=? WHERE name=?",
        [STMT_DELETE] = "DELETE FROM sandboxes WHERE name=?",
};

/* user_version is the schema's; a store of a newer cloche is refused, not guessed at. */
#define SCHEMA_VERSION 1
static const char schema[] =
        "PRAGMA journal_mode=WAL;"
        "PRAGMA synchronous=OFF;" /* see store.h */
        "CREATE TABLE IF NOT EXISTS sandboxes ("
        " name TEXT PRIMARY KEY, id BLOB NOT NULL, slot INTEGER NOT NULL, image TEXT NOT NULL,"
        " cpu_millis INTEGER, memory INTEGER, storage INTEGER, pids INTEGER,"
        " created_ms INTEGER, ttl_ms INTEGER, expires_ms INTEGER) WITHOUT ROWID;"
        "CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY CHECK (one = 1), place TEXT NOT NULL);"
        "PRAGMA user_version=1;";

static int fail_db(struct store *s, struct err *e, const char *what)
{
        return fail_host(e, -EIO, "cannot %s the store: %s", what, sqlite3_errmsg(s->db));
}

static int read_version(sqlite3 *db)
{
        sqlite3_stmt *st = NULL;
        int v = -1;
        if (sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &st, NULL) == SQLITE_OK &&
            sqlite3_step(st) == SQLITE_ROW)
                v = sqlite3_column_int(st, 0);
        (void)sqlite3_finalize(st);
        return v;
}

int store_open(const char *path, struct store **ret, struct err *e)
{
        struct store *s = calloc(1, sizeof *s);
        if (!s)
                return fail_host(e, -ENOMEM, "no memory");
        int r = 0;
        /* Exclusive: we are the only one (the state directory is locked), and no shared
         * memory file is needed. */
        if (sqlite3_open(path, &s->db) != SQLITE_OK ||
            sqlite3_exec(s->db, "PRAGMA locking_mode=EXCLUSIVE", NULL, NULL, NULL) != SQLITE_OK)
                r = fail_db(s, e, "open");
        int version = r == 0 ? read_version(s->db) : 0;
        if (r == 0 && (version < 0 || version > SCHEMA_VERSION))
                r = fail_host(e, -EINVAL, "the store %s is of another version (%d) of cloche", path, version);
        if (r == 0 && sqlite3_exec(s->db, schema, NULL, NULL, NULL) != SQLITE_OK)
                r = fail_db(s, e, "prepare");
        for (unsigned i = 0; r == 0 && i < STMT_MAX; i++)
                if (sqlite3_prepare_v3(s->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[i], NULL) != SQLITE_OK)
                        r = fail_db(s, e, "prepare");
        if (r < 0)
                store_close(s);
        else
                *ret = s;
        return r;
}

void store_close(struct store *s)
{
        for (unsigned i = 0; i < STMT_MAX; i++)
                (void)sqlite3_finalize(s->stmt[i]);
        (void)sqlite3_close(s->db);
        free(s);
}

static int run(struct store *s, sqlite3_stmt *st, struct err *e)
{
        int r = sqlite3_step(st) == SQLITE_DONE ? 0 : fail_db(s, e, "write");
        (void)sqlite3_reset(st);
        (void)sqlite3_clear_bindings(st);
        return r;
}

int store_put(struct store *s, const struct box *b, struct err *e)
{
        sqlite3_stmt *st = s->stmt[STMT_PUT];
        const int64_t numbers[] = { b->shape.cpu_millis, (int64_t)b->shape.memory, (int64_t)b->shape.storage,
                                    (int64_t)b->shape.pids, b->created_ms, b->ttl_ms, b->expires_ms };
        (void)sqlite3_bind_text(st, 1, b->name, -1, SQLITE_STATIC);
        (void)sqlite3_bind_blob(st, 2, b->id, (int)b->id_len, SQLITE_STATIC);
        (void)sqlite3_bind_int64(st, 3, b->slot);
        (void)sqlite3_bind_text(st, 4, b->image, -1, SQLITE_STATIC);
        for (int i = 0; i < 7; i++)
                (void)sqlite3_bind_int64(st, 5 + i, numbers[i]);
        return run(s, st, e);
}

int store_set_expiry(struct store *s, const struct box *b, struct err *e)
{
        sqlite3_stmt *st = s->stmt[STMT_EXPIRY];
        (void)sqlite3_bind_int64(st, 1, b->ttl_ms);
        (void)sqlite3_bind_int64(st, 2, b->expires_ms);
        (void)sqlite3_bind_text(st, 3, b->name, -1, SQLITE_STATIC);
        return run(s, st, e);
}

int store_delete(struct store *s, const struct box *b, struct err *e)
{
        sqlite3_stmt *st = s->stmt[STMT_DELETE];
        (void)sqlite3_bind_text(st, 1, b->name, -1, SQLITE_STATIC);
        return run(s, st, e);
}

int store_get_place(struct store *s, char *out, size_t size, struct err *e)
{
        sqlite3_stmt *st = NULL;
        int r = sqlite3_prepare_v2(s->db, "SELECT place FROM place", -1, &st, NULL);
        if (r == SQLITE_OK)
                r = sqlite3_step(st);
        const char *place = r == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
        (void)snprintf(out, size, "%s", place ? place : "");
        (void)sqlite3_finalize(st);
        return r == SQLITE_ROW || r == SQLITE_DONE ? 0 : fail_db(s, e, "read");
}

int store_set_place(struct store *s, const char *place, struct err *e)
{
        sqlite3_stmt *st = NULL;
        if (sqlite3_prepare_v2(s->db, "INSERT OR REPLACE INTO place VALUES (1, ?)", -1, &st, NULL) != SQLITE_OK)
                return fail_db(s, e, "write");
        (void)sqlite3_bind_text(st, 1, place, -1, SQLITE_STATIC);
        int r = run(s, st, e);
        (void)sqlite3_finalize(st);
        return r;
}

static struct box *row_box(sqlite3_stmt *st)
{
        const char *name = (const char *)sqlite3_column_text(st, 0);
        const char *image = (const char *)sqlite3_column_text(st, 3);
        struct str id = { sqlite3_column_blob(st, 1), (size_t)sqlite3_column_bytes(st, 1) };
        struct box *b = name && image ? box_new(id) : NULL;
        if (!b)
                return NULL;
        (void)snprintf(b->name, sizeof b->name, "%s", name);
        (void)snprintf(b->image, sizeof b->image, "%s", image);
        b->slot = (unsigned)sqlite3_column_int64(st, 2);
        b->shape.cpu_millis = (uint32_t)sqlite3_column_int64(st, 4);
        b->shape.memory = (uint64_t)sqlite3_column_int64(st, 5);
        b->shape.storage = (uint64_t)sqlite3_column_int64(st, 6);
        b->shape.pids = (uint64_t)sqlite3_column_int64(st, 7);
        b->created_ms = sqlite3_column_int64(st, 8);
        b->ttl_ms = sqlite3_column_int64(st, 9);
        b->expires_ms = sqlite3_column_int64(st, 10);
        return b;
}

int store_load(struct store *s, void (*fn)(struct box *, void *), void *user, struct err *e)
{
        sqlite3_stmt *st = NULL;
        int r = SQLITE_OK;
        if (sqlite3_prepare_v2(s->db, "SELECT * FROM sandboxes ORDER BY name", -1, &st, NULL) != SQLITE_OK)
                return fail_db(s, e, "read");
        while ((r = sqlite3_step(st)) == SQLITE_ROW) {
                struct box *b = row_box(st);
                if (b)
                        fn(b, user);
        }
        (void)sqlite3_finalize(st);
        return r == SQLITE_DONE ? 0 : fail_db(s, e, "read");
}
