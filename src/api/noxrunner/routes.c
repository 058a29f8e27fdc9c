#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/noxrunner/nox.h"
#include "base/limits.h"

const struct route noxrunner_routes[] = {
        { HTTP_M_GET, "/healthz", nox_health, true },
        { HTTP_M_HEAD, "/healthz", nox_health, true },
        { HTTP_M_GET, "/-/stats", nox_stats, false },
        { HTTP_M_PUT, "/v1/sandboxes/{}", nox_put, false },
        { HTTP_M_DELETE, "/v1/sandboxes/{}", nox_delete, false },
        { HTTP_M_POST, "/v1/sandboxes/{}/touch", nox_touch, false },
        { HTTP_M_POST, "/v1/sandboxes/{}/exec", nox_exec, false },
        { HTTP_M_POST, "/v1/sandboxes/{}/files/upload", nox_upload, false },
        { HTTP_M_GET, "/v1/sandboxes/{}/files/download", nox_download, false },
};
const size_t noxrunner_route_count = ARRAY_SIZE(noxrunner_routes);

/* Three bytes ("{},") become 230 in memory and keep the only thread busy: 8 MiB of them were
 * 650 MB and a second in which nobody else was served. */
static bool has_too_many_values(struct str body)
{
        size_t values = 0;
        bool in_string = false;
        if (body.n <= LIMIT_JSON_VALUES)
                return false;
        for (size_t i = 0; i < body.n; i++) {
                char c = body.p[i];
                if (c == '"')
                        in_string = !in_string;
                else if (in_string)
                        i += c == '\\';
                else
                        values += c == ',' || c == '[' || c == '{';
        }
        return values > LIMIT_JSON_VALUES;
}

json_t *nox_parse(struct http_req *req, struct str body)
{
        json_error_t e;
        if (body.n == 0)
                return json_object();
        if (has_too_many_values(body)) {
                api_error(req, 400, "the JSON body has more than %d values", LIMIT_JSON_VALUES);
                return NULL;
        }
        /* Strict: no duplicate keys, no NUL in strings, numbers in range, nothing behind. */
        json_t *j = json_loadb(body.p, body.n, JSON_REJECT_DUPLICATES, &e);
        if (!j) {
                api_error(req, 400, "invalid JSON at byte %d: %s", e.position, e.text);
                return NULL;
        }
        if (!json_is_object(j)) {
                json_decref(j);
                api_error(req, 400, "the body must be a JSON object");
                return NULL;
        }
        return j;
}

const char *nox_path(struct http_req *req, const char *name)
{
        struct str v;
        int r = http_query_get(req, name, &v);
        if (r == 0 || (r > 0 && v.n == 0))
                return "/workspace";
        if (r < 0 || memchr(v.p, 0, v.n) || v.n >= LIMIT_PATH_BYTES) {
                api_error(req, 400, "invalid %s: a path of at most %d bytes, percent-encoded, without NUL", name,
                          LIMIT_PATH_BYTES - 1);
                return NULL;
        }
        size_t size = v.n + sizeof "/workspace/";
        char *path = http_alloc(req, size);
        if (!path) {
                api_error(req, 500, "no memory");
                return NULL;
        }
        (void)snprintf(path, size, "%s%.*s", v.p[0] == '/' ? "" : "/workspace/", (int)v.n, v.p);
        return path;
}
