#include "http_fixture.h"

static void describe(const char *request, const char *want)
{
        CHECK_INT(ask(request), 200);
        const char *body = body_of(heard);
        if (strncmp(body, want, strlen(want)) != 0) {
                printf("got \"%s\", not \"%s\"\n", body, want);
                check_failures++;
        }
}

#define GET(target) "GET " target " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

static void test_readers(void)
{
        fix_start(&fix_limits);
        describe(GET("/a%20b?x=1"), "GET /a%20b q=x=1 name=0: peer=v4 len=0 host=1 id=");
        describe(GET("/?name=a%20b+c&name=2"), "GET / q=name=a%20b+c&name=2 name=1:a b c peer");
        describe(GET("/?n%61me=z"), "GET / q=n%61me=z name=1:z ");
        describe(GET("/?name"), "GET / q=name name=1: ");
        describe(GET("/?name="), "GET / q=name= name=1: ");
        describe(GET("/?&&x&name=1"), "GET / q=&&x&name=1 name=1:1 ");
        describe(GET("/?name=%zz"), "GET / q=name=%zz name=-22: ");
        describe(GET("/?name=%4"), "GET / q=name=%4 name=-22: ");
        describe(GET("http://other/x?y"), "GET /x q=y ");
        describe("OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "OPTIONS * q=");
        describe("POST /p HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "POST /p q= name=0: peer=v4 len=3 host=0");
        fix_stop();
}

static const char *id_sent_back(const char *header)
{
        char text[600];
        (void)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n",
                       header);
        CHECK_INT(ask(text), 200);
        char *id = strstr(heard, "X-Request-ID: ");
        if (!id)
                return "";
        id += 14;
        id[strcspn(id, "\r")] = '\0';
        return id;
}

static void test_request_id(void)
{
        char long_id[160] = "", line[200];
        fix_start(&fix_limits);
        CHECK_STR(id_sent_back("X-Request-ID: my own-1\r\n"), "my own-1");
        CHECK_INT(strlen(id_sent_back("")), 16);
        CHECK_INT(strlen(id_sent_back("X-Request-ID: caf\xc3\xa9\r\n")), 16);
        CHECK_INT(strlen(id_sent_back("X-Request-ID: a\r\nX-Request-ID: b\r\n")), 16);
        memset(long_id, 'i', 128);
        (void)snprintf(line, sizeof line, "X-Request-ID: %s\r\n", long_id);
        CHECK_STR(id_sent_back(line), long_id);
        memset(long_id, 'i', 129);
        (void)snprintf(line, sizeof line, "X-Request-ID: %s\r\n", long_id);
        CHECK_INT(strlen(id_sent_back(line)), 16);
        char first[32];
        (void)snprintf(first, sizeof first, "%s", id_sent_back(""));
        CHECK(strcmp(first, id_sent_back("")) != 0);
        fix_stop();
}

static void use_arena(struct http_req *req, void *user)
{
        char *p[64];
        (void)user;
        for (unsigned i = 0; i < 64; i++) {
                p[i] = http_alloc(req, i * 37 + 1);
                CHECK(p[i] != NULL && ((uintptr_t)p[i] & 15) == 0);
                if (p[i])
                        memset(p[i], (int)i, i * 37 + 1);
        }
        for (unsigned i = 0; i < 64; i++)
                CHECK(p[i] && p[i][0] == (char)i && p[i][i * 37] == (char)i);
        CHECK(http_alloc(req, SIZE_MAX) == NULL);
        struct str path = http_path(req);
        http_set_path(req, (struct str){ path.p + 6, path.n - 6 });
        CHECK(str_eq(http_path(req), "/rest"));
        http_set_path(req, (struct str){ NULL, 0 });
        CHECK_INT(http_path(req).n, 0);
        http_set_user(req, p);
        CHECK(http_user(req) == p);
        CHECK(http_header(req, "absent").p == NULL);
        CHECK(str_eq(http_header(req, "x-ONE"), "1"));
        CHECK_INT(http_header_count(req, "X-One"), 2);
        CHECK(http_loop(req) != NULL);
        http_reply(req, 200, "text/plain", "ok", 2);
}

#include "http/http_internal.h"

static void test_arena_and_path(void)
{
        uv_loop_t loop;
        struct http_callbacks callbacks = { .on_request = use_arena };
        struct buf out = { 0 };
        CHECK_INT(uv_loop_init(&loop), 0);
        struct http_server *s = http_server_alloc(&loop, &fix_limits, &callbacks, NULL);
        s->capture = &out;
        struct http_conn *c = http_conn_new(s, false);
        http_server_adopt(c);
        http_conn_begin(c);
        static const char text[] = "GET /k/key/rest HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nX-One: 2\r\n\r\n";
        http_conn_feed(c, text, sizeof text - 1);
        CHECK(out.len > 12 && memcmp(out.data, "HTTP/1.1 200", 12) == 0);
        http_server_close(s, NULL, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        CHECK_INT(uv_loop_close(&loop), 0);
        buf_free(&out);
}

int main(void)
{
        RUN(test_readers);
        RUN(test_request_id);
        RUN(test_arena_and_path);
        return check_done();
}
