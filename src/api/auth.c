/* Who may ask. With a key: whoever sends it, in one of three places. Without one the
 * server listens on loopback only, and the danger is the user's own browser: a page of
 * the wide web may send requests to localhost (Origin), or make its own name point there
 * (DNS rebinding, seen in Host). */
#include <string.h>

#include "api/api.h"

/* "/k/<key>/rest": the real NoxRunner client can send no header. The prefix is taken off
 * before anything else looks at the path, so it is in no log. */
static struct str take_prefix(struct http_req *req)
{
        struct str path = http_path(req);
        if (!str_has_prefix(path, "/k/"))
                return (struct str){ 0 };
        const char *key = path.p + 3, *end = path.p + path.n;
        const char *slash = memchr(key, '/', (size_t)(end - key));
        if (!slash)
                return (struct str){ 0 };
        http_set_path(req, (struct str){ slash, (size_t)(end - slash) });
        return (struct str){ key, (size_t)(slash - key) };
}

static bool bearer(struct str header, struct str *ret)
{
        if (header.n < 7 || !str_eq_fold((struct str){ header.p, 7 }, "Bearer "))
                return false;
        *ret = (struct str){ header.p + 7, header.n - 7 };
        return true;
}

/* As it was sent, or percent-encoded: clients escape some of what a key may hold. */
static bool prefix_is(struct http_req *req, struct str prefix, struct str key)
{
        char *plain = http_alloc(req, prefix.n);
        size_t n;
        bool ok = str_eq_secret(prefix, key);
        if (plain && str_unescape(prefix, false, plain, &n))
                ok |= str_eq_secret((struct str){ plain, n }, key);
        return ok;
}

static bool key_given(struct http_req *req, struct str prefix, struct str key)
{
        struct str given;
        /* All places are compared, each in constant time: no early way out. */
        bool ok = prefix.p && prefix_is(req, prefix, key);
        if (http_header_count(req, "Authorization") == 1 && bearer(http_header(req, "Authorization"), &given))
                ok |= str_eq_secret(given, key);
        if (http_header_count(req, "OPEN-SANDBOX-API-KEY") == 1)
                ok |= str_eq_secret(http_header(req, "OPEN-SANDBOX-API-KEY"), key);
        return ok;
}

/* "localhost", "127.0.0.1", "[::1]", any address literal; with or without a port. */
static bool host_is_local(struct str host)
{
        if (host.n && host.p[0] == '[')
                return true;
        const char *colon = memchr(host.p, ':', host.n);
        struct str name = { host.p, colon ? (size_t)(colon - host.p) : host.n };
        if (str_eq_fold(name, "localhost") || name.n == 0)
                return true;
        if (name.n > 10 && str_eq_fold((struct str){ name.p + name.n - 10, 10 }, ".localhost"))
                return true;
        for (size_t i = 0; i < name.n; i++)
                if ((name.p[i] < '0' || name.p[i] > '9') && name.p[i] != '.')
                        return false;
        return true;
}

/* "http://HOST" where HOST is what Host says. */
static bool same_origin(struct str origin, struct str host)
{
        static const char scheme[] = "http://";
        size_t n = sizeof scheme - 1;
        return host.n && origin.n == n + host.n && memcmp(origin.p, scheme, n) == 0 &&
               memcmp(origin.p + n, host.p, host.n) == 0;
}

bool api_authorize(struct api *api, struct http_req *req, bool open)
{
        struct str prefix = take_prefix(req);
        if (api->config->api_key) {
                if (open || key_given(req, prefix, str_c(api->config->api_key)) ||
                    (prefix.p && str_eq(http_path(req), "/healthz")))
                        return true;
                (void)http_add_header(req, "WWW-Authenticate", "Bearer");
                api_error(req, 401, "missing or wrong API key: send it as 'Authorization: Bearer KEY', as "
                                    "'OPEN-SANDBOX-API-KEY: KEY', or as path prefix /k/KEY/");
                return false;
        }
        struct str host = http_header(req, "Host"), origin = http_header(req, "Origin");
        /* No name leads to a unix socket: there Host is whatever the client made up. */
        if (host.p && !host_is_local(host) && strcmp(http_peer(req), "unix") != 0) {
                api_error(req, 403, "without an API key only requests to localhost or an address are answered");
                return false;
        }
        if (origin.p && !same_origin(origin, host)) {
                api_error(req, 403, "requests of web pages are not answered without an API key");
                return false;
        }
        return true;
}
