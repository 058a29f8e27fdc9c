#include "agent/exec_request.h"

#include <errno.h>

#include "base/limits.h"
#include "check.h"
#include "wire/frame.h"

static const char *env(const struct exec_request *q, const char *key)
{
        size_t n = strlen(key);
        const char *found = NULL;
        unsigned count = 0;
        for (char **p = q->envp; *p; p++)
                if (strncmp(*p, key, n) == 0 && (*p)[n] == '=') {
                        found = *p + n + 1;
                        count++;
                }
        CHECK(count <= 1);
        return found;
}

static int parse(struct buf *b, struct exec_request *q, struct err *e)
{
        *e = (struct err){ 0 };
        char *exact = malloc(b->len ? b->len : 1);
        if (b->len)
                memcpy(exact, b->data, b->len);
        int r = exec_request_parse((struct str){ exact, b->len }, q, e);
        free(exact); /* the request keeps nothing of the frame */
        buf_free(b);
        return r;
}

static void test_defaults(void)
{
        struct buf b = { 0 };
        struct exec_request q;
        struct err e;
        field_add_str(&b, FIELD_ARG, "true");
        CHECK_INT(parse(&b, &q, &e), 0);
        CHECK_STR(q.argv[0], "true");
        CHECK(q.argv[1] == NULL);
        CHECK_STR(q.workdir, "/workspace");
        CHECK_INT(q.timeout_ms, DEFAULT_EXEC_TIMEOUT_SECONDS * 1000);
        CHECK_INT(q.output_cap, LIMIT_OUTPUT_BYTES);
        CHECK_STR(env(&q, "HOME"), "/workspace");
        CHECK_STR(env(&q, "LANG"), "C.UTF-8");
        CHECK(env(&q, "PATH") && strstr(env(&q, "PATH"), "/usr/bin"));
        exec_request_free(&q);
        CHECK(q.argv == NULL && q.workdir == NULL);
        exec_request_free(&q);
}

/* The server's environment is nobody's business inside. */
static void test_nothing_leaks_in(void)
{
        struct buf b = { 0 };
        struct exec_request q;
        struct err e;
        (void)setenv("CLOCHE_API_KEY", "secret", 1);
        field_add_str(&b, FIELD_ARG, "env");
        CHECK_INT(parse(&b, &q, &e), 0);
        for (char **p = q.envp; *p; p++)
                CHECK(strstr(*p, "secret") == NULL);
        exec_request_free(&q);
}

static void test_full(void)
{
        struct buf b = { 0 };
        struct exec_request q;
        struct err e;
        field_add_str(&b, FIELD_ARG, "sh");
        field_add_str(&b, FIELD_ENV, "A=1");
        field_add_str(&b, FIELD_ARG, "");
        field_add_str(&b, FIELD_ENV, "AB=2");
        field_add_str(&b, FIELD_ENV, "A=3"); /* the last one holds */
        field_add_str(&b, FIELD_ENV, "PATH=/x");
        field_add_str(&b, FIELD_ENV, "EMPTY=");
        field_add_str(&b, FIELD_ENV, "EQ=a=b");
        field_add_str(&b, FIELD_WORKDIR, "/first");
        field_add_str(&b, FIELD_WORKDIR, "sub/dir");
        field_add_str(&b, FIELD_ARG, "-c");
        field_add_u64(&b, FIELD_TIMEOUT_MS, 1);
        field_add_u64(&b, FIELD_OUTPUT_CAP, 77);
        CHECK_INT(parse(&b, &q, &e), 0);
        CHECK_STR(q.argv[0], "sh");
        CHECK_STR(q.argv[1], "");
        CHECK_STR(q.argv[2], "-c");
        CHECK(q.argv[3] == NULL);
        CHECK_STR(env(&q, "A"), "3");
        CHECK_STR(env(&q, "AB"), "2");
        CHECK_STR(env(&q, "PATH"), "/x");
        CHECK_STR(env(&q, "EMPTY"), "");
        CHECK_STR(env(&q, "EQ"), "a=b");
        CHECK_STR(q.workdir, "/workspace/sub/dir");
        CHECK_INT(q.timeout_ms, 1);
        CHECK_INT(q.output_cap, 77);
        exec_request_free(&q);
}

static void test_many(void)
{
        struct buf b = { 0 };
        struct exec_request q;
        struct err e;
        for (unsigned i = 0; i < 5000; i++) {
                char text[32];
                (void)snprintf(text, sizeof text, "a%u", i);
                field_add_str(&b, FIELD_ARG, text);
        }
        for (unsigned i = 0; i < 300; i++) {
                char text[32];
                (void)snprintf(text, sizeof text, "V%u=%u", i, i);
                field_add_str(&b, FIELD_ENV, text);
        }
        CHECK_INT(parse(&b, &q, &e), 0);
        unsigned n = 0;
        while (q.argv[n])
                n++;
        CHECK_INT(n, 5000);
        CHECK_STR(q.argv[4999], "a4999");
        CHECK_STR(env(&q, "V299"), "299");
        exec_request_free(&q);
}

static void refused(struct buf *b, const char *what)
{
        struct exec_request q = { .workdir = (char *)(uintptr_t)"untouched" };
        struct err e;
        int r = parse(b, &q, &e);
        if (r >= 0 || e.blame != ERR_USER || !e.msg[0] || strcmp(q.workdir, "untouched") != 0) {
                printf("%s: %d\n", what, r);
                CHECK(!"it is refused and nothing is returned");
        }
}

static void test_refusals(void)
{
        struct buf b = { 0 };
        refused(&b, "no argument");
        field_add_str(&b, FIELD_ENV, "A=1");
        refused(&b, "only environment");
        field_add(&b, FIELD_ARG, "a\0b", 3);
        refused(&b, "a NUL in an argument");
        field_add_str(&b, FIELD_ARG, "x");
        field_add(&b, FIELD_ENV, "A=\0", 3);
        refused(&b, "a NUL in the environment");
        field_add_str(&b, FIELD_ARG, "x");
        field_add(&b, FIELD_WORKDIR, "/a\0b", 4);
        refused(&b, "a NUL in the directory");
        field_add_str(&b, FIELD_ARG, "x");
        field_add_u64(&b, FIELD_TIMEOUT_MS, 0);
        refused(&b, "no time");
        field_add_str(&b, FIELD_ARG, "x");
        field_add_u64(&b, FIELD_TIMEOUT_MS, (1ull << 42) + 1);
        refused(&b, "too much time");
        field_add_str(&b, FIELD_ARG, "x");
        field_add_u64(&b, FIELD_TIMEOUT_MS, UINT64_MAX);
        refused(&b, "all the time");
        field_add_str(&b, FIELD_ARG, "x");
        field_add(&b, FIELD_TIMEOUT_MS, "1234", 4);
        refused(&b, "a short number");
        field_add_str(&b, FIELD_ARG, "x");
        buf_adds(&b, "cut");
        refused(&b, "cut off");
}

/* A NUL is the client's mistake, not a lack of memory. */
static void test_bug_nul_argument_is_enomem(void)
{
        struct buf b = { 0 };
        struct exec_request q;
        struct err e;
        field_add(&b, FIELD_ARG, "a\0b", 3);
        CHECK_INT(parse(&b, &q, &e), -EINVAL);
}

/* Whatever the bytes: an answer, no read beyond, no leak. */
static void test_random_payloads(void)
{
        srandom(99);
        for (unsigned round = 0; round < 20000; round++) {
                struct buf b = { 0 };
                unsigned fields = (unsigned)random() % 6;
                for (unsigned i = 0; i < fields; i++) {
                        char text[16];
                        size_t n = (size_t)random() % sizeof text;
                        for (size_t k = 0; k < n; k++)
                                text[k] = "=/A\0.b"[random() % 6];
                        field_add(&b, (enum field)(1 + random() % FIELD_MAX), text, n);
                }
                if (b.len && random() % 3 == 0)
                        b.data[(size_t)random() % b.len] = (char)random();
                if (b.len && random() % 4 == 0)
                        b.len = (size_t)random() % b.len;
                struct exec_request q = { 0 };
                struct err e;
                if (parse(&b, &q, &e) == 0) {
                        CHECK(q.argv && q.argv[0] && q.workdir[0] == '/' && q.timeout_ms > 0);
                        exec_request_free(&q);
                }
        }
}

int main(void)
{
        RUN(test_defaults);
        RUN(test_nothing_leaks_in);
        RUN(test_full);
        RUN(test_many);
        RUN(test_refusals);
        RUN(test_bug_nul_argument_is_enomem);
        RUN(test_random_payloads);
        return check_done();
}
