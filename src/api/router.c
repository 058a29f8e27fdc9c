#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/json_write.h"
#include "base/limits.h"
#include "base/log.h"

void api_error(struct http_req *req, int status, const char *fmt, ...)
{
        char msg[512];
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(msg, sizeof msg, fmt, ap);
        va_end(ap);
        _cleanup_buf_ struct buf b = { 0 };
        struct json j = { .b = &b };
        json_open(&j, '{');
        json_kv(&j, "error", msg);
        json_close(&j, '}');
        if (status == 503)
                (void)http_add_header(req, "Retry-After", "1");
        http_reply_buf(req, status, "application/json", &b);
}

int api_status_of(int code, enum err_blame blame)
{
        switch (code) {
        case -ENOENT: return 404;
        case -EAGAIN:
        case -ESHUTDOWN:
        case -ECONNREFUSED: return 503;
        case -ENOSPC:
        case -EDQUOT: return 507;
        default: return blame == ERR_USER ? 400 : 500;
        }
}

bool route_match(const char *pattern, struct str path, struct str *params)
{
        unsigned count = 0;
        const char *p = path.p, *end = path.p + path.n;
        for (const char *q = pattern; *q || p < end;) {
                if (q[0] == '{' && q[1] == '}') {
                        const char *slash = memchr(p, '/', (size_t)(end - p));
                        const char *stop = slash ? slash : end;
                        if (count == API_MAX_PARAMS)
                                return false;
                        params[count++] = (struct str){ p, (size_t)(stop - p) };
                        p = stop;
                        q += 2;
                        continue;
                }
                if (p == end || !*q || *p != *q)
                        return false;
                p++;
                q++;
        }
        return true;
}

int route_decode(struct http_req *req, struct str segment, struct str *ret)
{
        char *out = http_alloc(req, segment.n + 1);
        size_t n = 0;
        if (!out)
                return -ENOMEM;
        if (!str_unescape(segment, false, out, &n) || n == 0 || n > LIMIT_SESSION_ID_BYTES ||
            memchr(out, 0, n) || memchr(out, '/', n) || (n == 1 && out[0] == '.') ||
            (n == 2 && out[0] == '.' && out[1] == '.') || !str_is_utf8((struct str){ out, n }))
                return -EINVAL;
        out[n] = '\0';
        *ret = (struct str){ out, n };
        return 0;
}

/* Another method on a path that exists: 405 with what it takes. */
static void answer_no_route(struct http_req *req)
{
        struct str params[API_MAX_PARAMS];
        char allow[64] = "";
        static const char *const names[] = { "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS" };
        for (size_t i = 0; i < noxrunner_route_count; i++) {
                const struct route *r = &noxrunner_routes[i];
                if (!route_match(r->path, http_path(req), params) || strstr(allow, names[r->method]))
                        continue;
                size_t n = strlen(allow);
                (void)snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "", names[r->method]);
        }
        if (!allow[0]) {
                api_error(req, 404, "no such path");
                return;
        }
        (void)http_add_header(req, "Allow", allow);
        api_error(req, 405, "method not allowed here; allowed: %s", allow);
}

void api_on_request(struct http_req *req, void *user)
{
        struct api *api = user;
        struct str params[API_MAX_PARAMS];
        struct str path = http_path(req);
        bool open = str_eq(path, "/healthz");
        if (!api_authorize(api, req, open))
                return;
        enum http_method method = http_method(req);
        for (size_t i = 0; i < noxrunner_route_count; i++) {
                const struct route *r = &noxrunner_routes[i];
                memset(params, 0, sizeof params);
                if (r->method != method || !route_match(r->path, http_path(req), params))
                        continue;
                struct call *c = http_alloc(req, sizeof *c);
                if (!c) {
                        api_error(req, 500, "no memory");
                        return;
                }
                *c = (struct call){ .api = api, .req = req };
                for (unsigned k = 0; k < API_MAX_PARAMS && params[k].p; k++)
                        if (route_decode(req, params[k], &c->params[k]) < 0) {
                                api_error(req, 400,
                                          "invalid session id: 1 to %d bytes of UTF-8 after percent-decoding, "
                                          "no '/', no NUL, not '.' or '..'", LIMIT_SESSION_ID_BYTES);
                                return;
                        }
                r->handle(c);
                return;
        }
        answer_no_route(req);
}

/* How many bytes at p spell the key, percent-encoded or not; 0: they do not. */
static size_t key_at(const char *key, const char *p, const char *end)
{
        const char *at = p;
        for (; *key; key++) {
                char c;
                size_t n;
                if (end - at >= 3 && *at == '%' && str_unescape((struct str){ at, 3 }, false, &c, &n) && c == *key)
                        at += 3;
                else if (at < end && *at == *key)
                        at++;
                else
                        return 0;
        }
        return (size_t)(at - p);
}

/* The path for the log: at most n-1 bytes, and without the key wherever it may stand. What
 * is left of a /k/ here is a wrong key, perhaps by one letter. */
static void log_path(const char *key, struct str p, char *out, size_t n)
{
        size_t o = 0;
        if (str_has_prefix(p, "/k/"))
                p = STR("/k/***");
        for (size_t i = 0; i < p.n && o + 4 < n;) {
                size_t hidden = key ? key_at(key, p.p + i, p.p + p.n) : 0;
                if (hidden) {
                        memcpy(out + o, "***", 3);
                        o += 3;
                        i += hidden;
                } else
                        out[o++] = p.p[i++];
        }
        out[o] = '\0';
}

void api_on_done(struct http_req *req, int status, uint64_t bytes, uint64_t duration_ns, void *user)
{
        const struct api *api = user;
        if (!log_enabled(LOG_INFO))
                return;
        char path[256], code[16], size[24], us[24];
        log_path(api->config->api_key, http_path(req), path, sizeof path);
        (void)snprintf(code, sizeof code, "%d", status);
        (void)snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
        (void)snprintf(us, sizeof us, "%llu", (unsigned long long)(duration_ns / 1000));
        log_line(LOG_INFO, "request", "method", http_method_name(req), "path", path, "status", code, "bytes", size,
                 "us", us, "peer", http_peer(req), "request_id", http_request_id(req), NULL);
}

const char *api_on_refuse(int status, const char *sentence, struct str path, struct buf *body, void *user)
{
        (void)status;
        (void)path;
        (void)user;
        struct json j = { .b = body };
        json_open(&j, '{');
        json_kv(&j, "error", sentence);
        json_close(&j, '}');
        return "application/json";
}
