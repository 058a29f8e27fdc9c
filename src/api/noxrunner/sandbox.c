/* PUT, touch, DELETE, health. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/noxrunner/nox.h"
#include "base/json_write.h"
#include "base/now.h"
#include "base/quantity.h"

void nox_health(struct call *c)
{
        http_reply(c->req, 200, "text/plain", "OK", 2);
}

/* For operators and tests: what lives here now. */
void nox_stats(struct call *c)
{
        const struct boxes *bs = c->api->boxes;
        _cleanup_buf_ struct buf b = { 0 };
        struct json j = { .b = &b };
        json_open(&j, '{');
        json_kv_int(&j, "sandboxes", (int64_t)bs->registry.count);
        json_kv_int(&j, "inTransit", bs->in_transit);
        json_kv_int(&j, "created", (int64_t)bs->created_total);
        json_kv_int(&j, "deleted", (int64_t)bs->deleted_total);
        json_kv_int(&j, "expired", (int64_t)bs->expired_total);
        json_kv_int(&j, "lost", (int64_t)bs->lost_total);
        json_kv_int(&j, "connections", http_server_connections(c->api->http));
        json_close(&j, '}');
        http_reply_buf(c->req, 200, "application/json", &b);
}

/* From here on the client may leave; the answer then has nobody to go to. */
static void on_gone(struct http_req *req, void *user)
{
        (void)user;
        struct call **held = http_user(req);
        if (held && *held)
                (*held)->req = NULL;
}

/* The call outlives its request's arena when the client leaves, so it moves to the heap;
 * the arena keeps a pointer to it for on_gone. */
static struct call *call_hold(struct call *c)
{
        struct call *copy = malloc(sizeof *copy);
        struct call **at = http_alloc(c->req, sizeof *at);
        if (!copy || !at) {
                free(copy);
                api_error(c->req, 500, "no memory");
                return NULL;
        }
        *copy = *c;
        *at = copy;
        http_set_user(c->req, at);
        http_on_gone(c->req, on_gone);
        return copy;
}

/* --- PUT ------------------------------------------------------------------------------ */

static void on_ensured(struct box *b, int code, const char *msg, void *user)
{
        struct call *c = user;
        struct http_req *req = c->req;
        free(c);
        if (!req)
                return;
        if (!b) {
                api_error(req, api_status_of(code, ERR_HOST), "cannot create the sandbox: %s", msg);
                return;
        }
        char when[32];
        format_utc(b->expires_ms, when, sizeof when);
        _cleanup_buf_ struct buf out = { 0 };
        struct json j = { .b = &out };
        json_open(&j, '{');
        json_kv(&j, "podName", b->name);
        json_kv(&j, "expiresAt", when);
        json_close(&j, '}');
        http_reply_buf(req, 200, "application/json", &out);
}

/* The field as a string; absent and null leave *ret alone. */
static int get_string(json_t *body, const char *key, struct str *ret, struct err *e)
{
        json_t *v = json_object_get(body, key);
        if (!v || json_is_null(v))
                return 0;
        if (!json_is_string(v))
                return fail_user(e, -EINVAL, "%s must be a string", key);
        *ret = (struct str){ json_string_value(v), json_string_length(v) };
        return 1;
}

static int get_ttl(const struct config *conf, json_t *body, int64_t *ret_ms, struct err *e)
{
        json_t *v = json_object_get(body, "ttlSeconds");
        json_int_t s = (json_int_t)conf->default_ttl_seconds;
        if (v && !json_is_null(v)) {
                if (!json_is_integer(v))
                        return fail_user(e, -EINVAL, "ttlSeconds must be a whole number of seconds");
                s = json_integer_value(v);
        }
        if (s <= 0 || (uint64_t)s > conf->max_ttl_seconds)
                return fail_user(e, -ERANGE, "ttlSeconds must be from 1 to %llu",
                                 (unsigned long long)conf->max_ttl_seconds);
        *ret_ms = (int64_t)s * 1000;
        return 0;
}

struct limit_field {
        const char *key;
        int (*parse)(struct str, uint64_t *, struct err *);
        uint64_t *value, max;
        const char *setting;
};

static int get_limits(const struct config *conf, json_t *body, struct shape *shape, struct err *e)
{
        uint64_t cpu = conf->default_cpu;
        struct limit_field fields[] = {
                { "cpuLimit", quantity_cpu_limit, &cpu, conf->max_cpu, "max_cpu" },
                { "memoryLimit", quantity_memory_limit, &shape->memory, conf->max_memory, "max_memory" },
                { "ephemeralStorageLimit", quantity_storage_limit, &shape->storage, conf->max_storage, "max_storage" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
                struct limit_field *f = &fields[i];
                struct err why = { 0 };
                struct str s;
                int r = get_string(body, f->key, &s, e);
                if (r > 0 && (r = f->parse(s, f->value, &why)) < 0)
                        return fail_user(e, r, "%s: %.340s", f->key, why.msg);
                if (r < 0)
                        return r;
                if (*f->value > f->max)
                        return fail_user(e, -ERANGE, "%s is above what this server allows (setting %s)", f->key,
                                         f->setting);
        }
        shape->cpu_millis = (uint32_t)cpu;
        return 0;
}

static int parse_put(struct call *c, json_t *body, struct ensure *q, struct err *e)
{
        const struct config *conf = c->api->config;
        struct str image = { "", 0 };
        const char *path;
        q->shape = (struct shape){ .memory = conf->default_memory, .storage = conf->default_storage,
                                   .pids = conf->default_pids };
        int r = get_ttl(conf, body, &q->ttl_ms, e);
        if (r == 0)
                r = get_limits(conf, body, &q->shape, e);
        if (r == 0)
                r = get_string(body, "image", &image, e);
        if (r < 0)
                return r;
        r = config_image_find(conf, image, &q->image, &path, e);
        if (r < 0)
                return r;
        int index = c->api->image_index(q->image, c->api->image_user);
        if (index < 0)
                return fail_host(e, index, "image %s is not ready", q->image);
        q->shape.image = (unsigned)index;
        return 0;
}

static void on_put_body(struct http_req *req, struct str body, void *user)
{
        (void)user;
        struct call *c = *(struct call **)http_user(req);
        json_t *j = nox_parse(req, body);
        if (!j) {
                free(c);
                return;
        }
        struct err e = { 0 };
        struct ensure q = { .id = c->params[0] };
        if (parse_put(c, j, &q, &e) < 0) {
                api_error(req, e.blame == ERR_HOST ? 500 : 400, "%s", e.msg);
                free(c);
        } else
                boxes_ensure(c->api->boxes, &q, on_ensured, c);
        json_decref(j);
}

/* While the body is on its way nothing is under way that could still call back. */
static void on_gone_early(struct http_req *req, void *user)
{
        (void)user;
        free(*(struct call **)http_user(req));
}

static void on_put_body_held(struct http_req *req, struct str body, void *user)
{
        http_on_gone(req, on_gone);
        on_put_body(req, body, user);
}

void nox_put(struct call *c)
{
        struct call *held = call_hold(c);
        if (!held)
                return;
        http_on_gone(c->req, on_gone_early);
        http_collect_body(c->req, c->api->config->json_body_bytes, on_put_body_held);
}

/* --- touch, DELETE --------------------------------------------------------------------- */

static void on_touched(struct box *b, int code, const char *msg, void *user)
{
        struct call *c = user;
        struct http_req *req = c->req;
        free(c);
        if (!req)
                return;
        if (b)
                http_reply(req, 200, "application/json", "{}", 2);
        else
                api_error(req, api_status_of(code, ERR_HOST), "%s", msg);
}

void nox_touch(struct call *c)
{
        struct call *held = call_hold(c);
        if (held)
                boxes_touch(c->api->boxes, held->params[0], on_touched, held);
}

static void on_deleted(struct box *b, int code, const char *msg, void *user)
{
        (void)b;
        struct call *c = user;
        struct http_req *req = c->req;
        free(c);
        if (!req)
                return;
        if (code == 0)
                http_reply(req, 204, NULL, NULL, 0);
        else
                api_error(req, api_status_of(code, ERR_HOST), "%s", msg);
}

void nox_delete(struct call *c)
{
        struct call *held = call_hold(c);
        if (held)
                boxes_delete(c->api->boxes, held->params[0], on_deleted, held);
}
