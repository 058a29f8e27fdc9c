/* Requests go through a whole connection of src/http without a socket. */
#include <errno.h>

#include "api/api.h"
#include "base/limits.h"
#include "check.h"
#include "http/http_internal.h"

static struct buf answer;

static void exchange(void (*on_request)(struct http_req *, void *), void *user, const char *bytes)
{
        static const struct http_limits limits = { .head_bytes = 8192, .header_count = 32, .connections = 4 };
        struct http_callbacks callbacks = { .on_request = on_request, .on_refuse = api_on_refuse };
        uv_loop_t loop;
        buf_free(&answer);
        if (uv_loop_init(&loop) < 0)
                abort();
        struct http_server *s = http_server_alloc(&loop, &limits, &callbacks, user);
        s->capture = &answer;
        struct http_conn *c = http_conn_new(s, false);
        http_server_adopt(c);
        http_conn_begin(c);
        http_conn_feed(c, bytes, strlen(bytes));
        while (s->deferred_count)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
        http_server_close(s, NULL, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        CHECK_INT(uv_loop_close(&loop), 0);
}

static int status(void)
{
        const char *text = buf_cstr(&answer);
        return strncmp(text, "HTTP/1.1 ", 9) == 0 ? atoi(text + 9) : -1;
}

static void test_match(void)
{
        static const struct { const char *pattern, *path; bool match; const char *p0, *p1; } rows[] = {
                { "/healthz", "/healthz", true, NULL, NULL },
                { "/healthz", "/healthz/", false, NULL, NULL },
                { "/healthz", "/health", false, NULL, NULL },
                { "/healthz", "/Healthz", false, NULL, NULL },
                { "/healthz", "//healthz", false, NULL, NULL },
                { "/healthz", "", false, NULL, NULL },
                { "/v1/sandboxes/{}", "/v1/sandboxes/abc", true, "abc", NULL },
                { "/v1/sandboxes/{}", "/v1/sandboxes/", true, "", NULL }, /* refused when decoded */
                { "/v1/sandboxes/{}", "/v1/sandboxes", false, NULL, NULL },
                { "/v1/sandboxes/{}", "/v1/sandboxes/a/b", false, NULL, NULL },
                { "/v1/sandboxes/{}", "/v1/sandboxes/a/", false, NULL, NULL },
                { "/v1/sandboxes/{}", "/v1/sandboxes/a%2Fb", true, "a%2Fb", NULL },
                { "/v1/sandboxes/{}/exec", "/v1/sandboxes/x/exec", true, "x", NULL },
                { "/v1/sandboxes/{}/exec", "/v1/sandboxes/x/exec/", false, NULL, NULL },
                { "/v1/sandboxes/{}/exec", "/v1/sandboxes/x/execx", false, NULL, NULL },
                { "/v1/sandboxes/{}/exec", "/v1/sandboxes/x", false, NULL, NULL },
                { "/v1/sandboxes/{}/exec", "/v1/sandboxes//exec", true, "", NULL },
                { "/{}/{}", "/a/b", true, "a", "b" },
                { "/{}/{}", "/a", false, NULL, NULL },
                { "/{}", "/{}", true, "{}", NULL },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                struct str params[API_MAX_PARAMS] = { { 0 } };
                char *exact = malloc(strlen(rows[i].path) + 1);
                memcpy(exact, rows[i].path, strlen(rows[i].path) + 1);
                bool match = route_match(rows[i].pattern, (struct str){ exact, strlen(exact) }, params);
                if (match != rows[i].match) {
                        printf("%s on %s: %d\n", rows[i].pattern, rows[i].path, match);
                        CHECK(!"the row holds");
                }
                if (match && rows[i].p0)
                        CHECK(str_eq(params[0], rows[i].p0));
                if (match && rows[i].p1)
                        CHECK(str_eq(params[1], rows[i].p1));
                free(exact);
        }
        struct str params[API_MAX_PARAMS];
        CHECK(!route_match("/{}/{}/{}/{}/{}", STR("/a/b/c/d/e"), params)); /* more than there is room for */
        CHECK(route_match("/{}/{}/{}/{}", STR("/a/b/c/d"), params));
}

/* The end of the pattern is no byte to match: a NUL in the path once went on behind it. */
static void test_bug_nul_matches_the_end(void)
{
        struct str params[API_MAX_PARAMS];
        char *pattern = strdup("/healthz"); /* so that reading behind it is an error */
        CHECK(!route_match(pattern, STR("/healthz\0x"), params));
        CHECK(!route_match(pattern, STR("/healthz\0"), params));
        free(pattern);
}

static void decode_all(struct http_req *req, void *user)
{
        (void)user;
        static const struct { const char *in, *out; } rows[] = {
                { "abc", "abc" },       { "a%20b", "a b" },    { "a+b", "a+b" },
                { "%2e%2e%2e", "..." }, { "%E2%82%AC", "\xe2\x82\xac" }, { "%25", "%" },
                { ".a", ".a" },         { "a..", "a.." },      { "~-_!'", "~-_!'" },
                { "", NULL },           { ".", NULL },         { "..", NULL },
                { "%2e", NULL },        { "%2E%2e", NULL },    { "a%2Fb", NULL },
                { "%2F", NULL },        { "a%00", NULL },      { "%00", NULL },
                { "%", NULL },          { "%zz", NULL },       { "%ff", NULL },
                { "%c0%af", NULL },     { "%ed%a0%80", NULL },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                struct str v = { "untouched", 9 };
                int r = route_decode(req, str_c(rows[i].in), &v);
                CHECK_INT(r, rows[i].out ? 0 : -EINVAL);
                CHECK(str_eq(v, rows[i].out ? rows[i].out : "untouched"));
                if (r == 0)
                        CHECK_INT(v.p[v.n], 0);
        }
        char longest[LIMIT_SESSION_ID_BYTES + 2];
        struct str v;
        memset(longest, 'x', sizeof longest);
        CHECK_INT(route_decode(req, (struct str){ longest, LIMIT_SESSION_ID_BYTES }, &v), 0);
        CHECK_INT(route_decode(req, (struct str){ longest, LIMIT_SESSION_ID_BYTES + 1 }, &v), -EINVAL);
        http_reply(req, 200, NULL, NULL, 0);
}

static void test_decode(void)
{
        exchange(decode_all, NULL, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        CHECK_INT(status(), 200);
}

static void test_status_of(void)
{
        static const struct { int code; enum err_blame blame; int status; } rows[] = {
                { -ENOENT, ERR_HOST, 404 },  { -EAGAIN, ERR_HOST, 503 }, { -ESHUTDOWN, ERR_USER, 503 },
                { -ENOSPC, ERR_USER, 507 },  { -EDQUOT, ERR_HOST, 507 }, { -EIO, ERR_HOST, 500 },
                { -EINVAL, ERR_USER, 400 },  { -EINVAL, ERR_HOST, 500 }, { -ECONNREFUSED, ERR_HOST, 503 },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
                CHECK_INT(api_status_of(rows[i].code, rows[i].blame), rows[i].status);
}

static void raise_error(struct http_req *req, void *user)
{
        api_error(req, *(int *)user, "odd \"%s\"", "\n\xff</b>");
}

static void test_error_body(void)
{
        exchange(raise_error, &(int){ 503 }, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        CHECK_INT(status(), 503);
        CHECK(strstr(answer.data, "\r\nRetry-After: 1\r\n") != NULL);
        CHECK(strstr(answer.data, "\r\n\r\n{\"error\":\"odd \\\"\\n\xef\xbf\xbd</b>\\\"\"}") != NULL);
        exchange(raise_error, &(int){ 400 }, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        CHECK_INT(status(), 400);
        CHECK(strstr(answer.data, "Retry-After") == NULL);
}

static void test_no_route(void)
{
        struct config config = { .api_key = NULL };
        struct api api = { .config = &config };
        exchange(api_on_request, &api, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
        CHECK_INT(status(), 404);
        exchange(api_on_request, &api, "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        CHECK_INT(status(), 405);
        CHECK(strstr(answer.data, "\r\nAllow: GET, HEAD\r\n") != NULL);
        exchange(api_on_request, &api, "GET /v1/sandboxes/x HTTP/1.1\r\nHost: localhost\r\n\r\n");
        CHECK_INT(status(), 405);
        CHECK(strstr(answer.data, "PUT") && strstr(answer.data, "DELETE"));
        exchange(api_on_request, &api, "DELETE /v1/sandboxes/%2e%2e HTTP/1.1\r\nHost: localhost\r\n\r\n");
        CHECK_INT(status(), 400);
        exchange(api_on_request, &api, "DELETE /v1/sandboxes/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
        CHECK_INT(status(), 400);
        exchange(api_on_request, &api, "GET /v1/sandboxes/x HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        CHECK_INT(status(), 403);
}

int main(void)
{
        RUN(test_match);
        RUN(test_bug_nul_matches_the_end);
        RUN(test_decode);
        RUN(test_status_of);
        RUN(test_error_body);
        RUN(test_no_route);
        buf_free(&answer);
        return check_done();
}
