/* The request object: its arena, its readers, its end. */
#include "http/http_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/now.h"

#define BLOCK_BYTES 4096

struct http_req *http_req_new(struct http_conn *c)
{
        struct http_req *req = malloc(sizeof *req);
        if (!req)
                return NULL;
        /* The arena is most of it, and needs no zeros. */
        memset(req, 0, offsetof(struct http_req, arena));
        req->conn = c;
        req->head.method_id = HTTP_M_OTHER;
        req->begun_ns = now_ns();
        return req;
}

void http_req_done(struct http_req *req)
{
        struct http_server *s = req->conn->server;
        req->over = true;
        if (s->callbacks.on_done)
                s->callbacks.on_done(req, req->status, req->sent, now_ns() - req->begun_ns,
                                     s->user);
        while (req->blocks) {
                struct http_block *next = req->blocks->next;
                free(req->blocks);
                req->blocks = next;
        }
        buf_free(&req->head_bytes);
        buf_free(&req->body);
        buf_free(&req->extra);
        free(req);
}

void *http_alloc(struct http_req *req, size_t n)
{
        size_t head = sizeof(struct http_block) + 15;
        if (n > SIZE_MAX / 2)
                return NULL;
        size_t rounded = (n + 15) & ~(size_t)15;
        if (rounded <= sizeof req->arena - req->arena_used) {
                void *p = req->arena + req->arena_used;
                req->arena_used += rounded;
                return p;
        }
        /* What the inline part cannot hold gets a block of its own: requests that need
         * more than that part are few, and what they need is seldom small. */
        struct http_block *b = malloc(head + rounded);
        if (!b)
                return NULL;
        b->next = req->blocks;
        req->blocks = b;
        return (void *)(((uintptr_t)(b + 1) + 15) & ~(uintptr_t)15);
}

/* Spreads a counter over all 64 bits, so that ids of two servers or of two starts do
 * not look alike. No secret: an id is a name. */
static uint64_t spread(uint64_t x)
{
        x += 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
}

/* The client's own id is echoed in a header and written to logs: plain text only. */
static bool id_is_fit(struct str id)
{
        for (size_t i = 0; i < id.n; i++)
                if (id.p[i] < 0x20 || id.p[i] > 0x7e)
                        return false;
        return id.n > 0 && id.n <= HTTP_ID_BYTES;
}

void http_req_set_id(struct http_req *req)
{
        static const char digits[] = "0123456789abcdef";
        struct http_server *s = req->conn->server;
        struct str given = http_header(req, "X-Request-ID");
        if (id_is_fit(given) && http_header_count(req, "X-Request-ID") == 1) {
                memcpy(req->id, given.p, given.n);
                req->id[given.n] = '\0';
                return;
        }
        uint64_t x = spread(s->id_seed + s->id_count++);
        for (int i = 0; i < 16; i++)
                req->id[i] = digits[(x >> (60 - 4 * i)) & 15];
        req->id[16] = '\0';
}

enum http_method http_method(const struct http_req *req)
{
        return req->head.method_id;
}

const char *http_method_name(const struct http_req *req)
{
        return http_method_names[req->head.method_id];
}

struct str http_path(const struct http_req *req)
{
        return req->head.path;
}

void http_set_path(struct http_req *req, struct str path)
{
        struct str old = req->head.path;
        assert(path.n <= old.n);
        req->head.path = (struct str){ old.p + (old.n - path.n), path.n };
}

struct str http_query(const struct http_req *req)
{
        return req->head.query;
}

/* The key of "key=value", decoded where it needs to be, is name? */
static bool key_is(struct http_req *req, struct str key, const char *name)
{
        if (str_eq(key, name))
                return true;
        if (!key.n || (!memchr(key.p, '%', key.n) && !memchr(key.p, '+', key.n)))
                return false;
        char *plain = http_alloc(req, key.n);
        size_t n;
        return plain && str_unescape(key, true, plain, &n) &&
               str_eq((struct str){ plain, n }, name);
}

int http_query_get(struct http_req *req, const char *name, struct str *ret)
{
        struct str rest = req->head.query;
        while (rest.n) {
                const char *amp = memchr(rest.p, '&', rest.n);
                struct str pair = { rest.p, amp ? (size_t)(amp - rest.p) : rest.n };
                size_t skip = amp ? pair.n + 1 : pair.n;
                rest = (struct str){ rest.p + skip, rest.n - skip };
                const char *eq = pair.n ? memchr(pair.p, '=', pair.n) : NULL;
                struct str key = { pair.p, eq ? (size_t)(eq - pair.p) : pair.n };
                if (!key_is(req, key, name))
                        continue;
                struct str raw = { pair.p + key.n + 1, eq ? pair.n - key.n - 1 : 0 };
                char *plain = http_alloc(req, raw.n + 1);
                if (!plain)
                        return -ENOMEM;
                size_t n = 0;
                if (raw.n && !str_unescape(raw, true, plain, &n))
                        return -EINVAL;
                plain[n] = '\0';
                *ret = (struct str){ plain, n };
                return 1;
        }
        return 0;
}

struct str http_header(const struct http_req *req, const char *name)
{
        for (unsigned i = 0; i < req->head.field_count; i++)
                if (str_eq_fold(req->head.fields[i].name, name))
                        return req->head.fields[i].value;
        return (struct str){ NULL, 0 };
}

unsigned http_header_count(const struct http_req *req, const char *name)
{
        unsigned n = 0;
        for (unsigned i = 0; i < req->head.field_count; i++)
                n += str_eq_fold(req->head.fields[i].name, name);
        return n;
}

const char *http_request_id(const struct http_req *req)
{
        return req->id;
}

const char *http_peer(const struct http_req *req)
{
        return req->conn->peer;
}

void http_set_user(struct http_req *req, void *user)
{
        req->user = user;
}

void *http_user(const struct http_req *req)
{
        return req->user;
}

int64_t http_content_length(const struct http_req *req)
{
        return req->head.content_length;
}

uv_loop_t *http_loop(const struct http_req *req)
{
        return req->conn->server->loop;
}

void http_on_gone(struct http_req *req, void (*on_gone)(struct http_req *req, void *user))
{
        req->on_gone = on_gone;
}

void http_on_drain(struct http_req *req, void (*on_drain)(struct http_req *req, void *user))
{
        req->on_drain = on_drain;
}

bool http_started(const struct http_req *req)
{
        return req->started;
}
