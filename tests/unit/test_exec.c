/* src/api/noxrunner/exec.c, with a client on one side and a fake agent on the other. */
#include <jansson.h>

#include "agent/exec_request.h"
#include "base/limits.h"
#include "nox_bed.h"

#define SIMPLE "{\"cmd\":[\"x\"]}"

static struct client c;
static struct agent a;

static void ask(const char *body)
{
        client_ask(&c, "POST /v1/sandboxes/b/exec", body, strlen(body));
}

static void hear_exec(void)
{
        size_t used = 0;
        CHECK_INT(agent_take(&a, &used).type, FRAME_EXEC);
        buf_consume(&a.in, used);
}

static void start(const char *body)
{
        c = client_new();
        ask(body);
        a = agent_accept();
        CHECK(a.fd >= 0);
        hear_exec();
}

/* A command that runs: a new client, a new connection to the agent, and nothing else. */
static void run(const char *body)
{
        link_close_parked();
        agent_leave(&a);
        client_leave(&c);
        start(body);
        CHECK_INT(client_status(&c), 0);
        CHECK_INT(box->execs, 1);
}

static void add_exit(struct buf *b, uint64_t code, uint64_t signal, uint64_t reason)
{
        field_add_u64(b, FIELD_CODE, code);
        field_add_u64(b, FIELD_SIGNAL, signal);
        field_add_u64(b, FIELD_REASON, reason);
}

static void say_exit(uint64_t code, uint64_t signal, uint64_t reason, uint64_t ns, uint64_t out, uint64_t err)
{
        _cleanup_buf_ struct buf b = { 0 };
        add_exit(&b, code, signal, reason);
        field_add_u64(&b, FIELD_DURATION_NS, ns);
        field_add_u64(&b, FIELD_STDOUT_TOTAL, out);
        field_add_u64(&b, FIELD_STDERR_TOTAL, err);
        agent_say(&a, FRAME_EXIT, b.data, b.len);
}

static void say_end(void)
{
        say_exit(0, 0, EXIT_EXITED, 0, 0, 0);
}

/* The JSON of an answer in whichever framing; NULL when it is not whole. */
static json_t *answered(void)
{
        const char *head = client_hear(&c), *body = strstr(head, "\r\n\r\n");
        if (strncmp(head, "HTTP/1.1 200 ", 13) != 0 || !body)
                return NULL;
        body += 4;
        if (!strstr(head, "Transfer-Encoding: chunked"))
                return json_loads(body, 0, NULL);
        _cleanup_buf_ struct buf all = { 0 };
        return unchunk(body, strlen(body), &all) ? json_loads(buf_cstr(&all), 0, NULL) : NULL;
}

static bool is_ended(const char *reason, int code, const char *out, const char *err)
{
        json_t *j = answered();
        const char *r = json_string_value(json_object_get(j, "reason"));
        const char *o = json_string_value(json_object_get(j, "stdout"));
        const char *s = json_string_value(json_object_get(j, "stderr"));
        bool ok = r && o && s && strcmp(r, reason) == 0 && strcmp(o, out) == 0 && strcmp(s, err) == 0 &&
                  json_integer_value(json_object_get(j, "exitCode")) == code;
        if (!ok)
                printf("%s\n", client_hear(&c));
        json_decref(j);
        return ok;
}

#define LOST "The sandbox was deleted, expired or lost while the command ran\n"

static void test_answer(void)
{
        run(SIMPLE);
        agent_say(&a, FRAME_STDOUT, "one ", 4);
        agent_say(&a, FRAME_STDERR, "bad\n", 4);
        agent_say(&a, FRAME_STDOUT, "two", 3);
        CHECK_INT(client_status(&c), 0);
        say_exit(3, 9, EXIT_SIGNALED, 1500000, 7, 4);
        CHECK_INT(client_status(&c), 200);
        CHECK_STR(client_body(&c), "{\"exitCode\":3,\"stdout\":\"one two\",\"stderr\":\"bad\\n\",\"durationMs\":2,"
                                   "\"reason\":\"signaled\",\"signal\":9,\"stdoutTruncated\":false,"
                                   "\"stderrTruncated\":false}");
        CHECK(strstr(client_hear(&c), "\r\nContent-Type: application/json\r\n") != NULL);
        CHECK_INT(box->execs, 0);
        CHECK(!c.closed);
}

/* What the agent gets is what the client meant. */
static void test_request(void)
{
        struct exec_request q = { 0 };
        struct err e = { 0 };
        size_t used = 0;
        run(SIMPLE);
        say_end();
        ask("{\"cmd\":[\"a\",\"\",\"\\u00e9 b\"],\"env\":{\"K\":\"v=w\",\"E\":\"\"},\"workdir\":\"/w d\","
            "\"timeoutSeconds\":7,\"unknown\":[1]}");
        struct frame f = agent_take(&a, &used);
        CHECK_INT(exec_request_parse(f.payload, &q, &e), 0);
        CHECK_STR(q.argv[0], "a");
        CHECK_STR(q.argv[1], "");
        CHECK_STR(q.argv[2], "\xc3\xa9 b");
        CHECK(q.argv[3] == NULL);
        CHECK_STR(q.workdir, "/w d");
        CHECK_INT(q.timeout_ms, 7000);
        CHECK_INT(q.output_cap, config.output_bytes);
        unsigned found = 0;
        for (char **p = q.envp; *p; p++)
                found += strcmp(*p, "K=v=w") == 0 || strcmp(*p, "E=") == 0;
        CHECK_INT(found, 2);
        exec_request_free(&q);
        buf_consume(&a.in, used);
        say_end();
        CHECK(is_ended("exited", 0, "", ""));
        ask("{\"cmd\":[\"a\"],\"env\":null,\"workdir\":null,\"timeoutSeconds\":null}");
        used = 0;
        f = agent_take(&a, &used);
        CHECK_INT(exec_request_parse(f.payload, &q, &e), 0);
        CHECK_INT(q.timeout_ms, config.default_exec_timeout_seconds * 1000);
        exec_request_free(&q);
}

static void test_output_bound(void)
{
        static char block[8192];
        uint64_t before = config.output_bytes;
        config.output_bytes = 100;
        size_t most = 100 + 4096; /* of each stream: the agent's last piece may be a whole pipe page */
        memset(block, 'o', sizeof block);
        for (unsigned i = 0; i < 2; i++) {
                enum frame_type type = i ? FRAME_STDERR : FRAME_STDOUT;
                run(SIMPLE);
                agent_say(&a, FRAME_STDOUT, block, most);
                agent_say(&a, FRAME_STDERR, block, most);
                CHECK(!agent_is_left(&a));
                agent_say(&a, type, "", 0);
                CHECK_INT(client_status(&c), 0);
                agent_say(&a, type, "x", 1);
                CHECK(client_got(&c, 500, "more output than was asked for"));
                CHECK(agent_is_left(&a));
                CHECK_INT(box->execs, 0);
        }
        for (unsigned i = 0; i < 4; i++) {
                run(SIMPLE);
                say_exit(0, 0, EXIT_EXITED, 0, 100 + i % 2, 100 + i / 2);
                json_t *j = answered();
                CHECK_INT(json_is_true(json_object_get(j, "stdoutTruncated")), i % 2);
                CHECK_INT(json_is_true(json_object_get(j, "stderrTruncated")), i / 2);
                json_decref(j);
        }
        config.output_bytes = before;
}

static void refuse_exit(const struct buf *b, size_t n)
{
        run(SIMPLE);
        agent_say(&a, FRAME_STDOUT, "fine", 4);
        agent_say(&a, FRAME_EXIT, b->data, n);
        CHECK(client_got(&c, 500, "makes no sense"));
        CHECK(strstr(client_hear(&c), "fine") == NULL);
        CHECK(agent_is_left(&a)); /* not parked: the next exec shall not meet it */
        CHECK_INT(box->execs, 0);
}

static void test_bad_exit(void)
{
        static const struct { uint64_t code, signal, reason; bool ok; } rows[] = {
                { 255, 0, EXIT_EXITED, true },          { 256, 0, EXIT_EXITED, false },
                { 0, 64, EXIT_SIGNALED, true },         { 0, 65, EXIT_SIGNALED, false },
                { 0, 0, EXIT_REASON_MAX - 1, true },    { 0, 0, EXIT_REASON_MAX, false },
                { UINT64_MAX, 0, EXIT_EXITED, false },  { 0, UINT64_MAX, 0, false },
                { 0, 0, UINT64_MAX, false },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_buf_ struct buf b = { 0 };
                add_exit(&b, rows[i].code, rows[i].signal, rows[i].reason);
                if (!rows[i].ok) {
                        refuse_exit(&b, b.len);
                        continue;
                }
                run(SIMPLE);
                agent_say(&a, FRAME_EXIT, b.data, b.len);
                CHECK_INT(client_status(&c), 200);
        }
        _cleanup_buf_ struct buf cut = { 0 }, narrow = { 0 }, none = { 0 };
        add_exit(&cut, 0, 0, 0);
        refuse_exit(&cut, cut.len - 1);
        refuse_exit(&cut, 3);
        field_add(&narrow, FIELD_CODE, "\0\0\0\0", 4);
        refuse_exit(&narrow, narrow.len);
        field_add(&none, FIELD_NONE, "", 0);
        refuse_exit(&none, none.len);
}

static void test_fail(void)
{
        static const struct { int code; enum err_blame blame; int status; } rows[] = {
                { ENOENT, ERR_USER, 400 },  { EINVAL, ERR_USER, 400 }, { EAGAIN, ERR_USER, 503 },
                { EAGAIN, ERR_HOST, 503 },  { EIO, ERR_HOST, 500 },    { ENOSPC, ERR_HOST, 507 },
                { ENOSPC, ERR_USER, 400 },  { 99999, ERR_HOST, 500 },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                run(SIMPLE);
                agent_say(&a, FRAME_STDOUT, "fine", 4);
                agent_fail(&a, rows[i].code, rows[i].blame, "it \"is\" \xff so");
                CHECK(client_got(&c, rows[i].status, "{\"error\":\"it \\\"is\\\" \xef\xbf\xbd so\"}"));
                CHECK_INT(strstr(client_hear(&c), "\r\nRetry-After: 1\r\n") != NULL, rows[i].status == 503);
                CHECK(agent_is_left(&a));
                CHECK_INT(box->execs, 0);
        }
        run(SIMPLE);
        agent_say(&a, FRAME_FAIL, NULL, 0);
        CHECK(client_got(&c, 500, "the agent failed"));
}

/* An agent that goes is the end of the command, never a success of it. */
static void test_hangup(void)
{
        run(SIMPLE);
        agent_leave(&a);
        CHECK(is_ended("killed", 128 + SIGKILL, "", LOST));
        run(SIMPLE);
        agent_say(&a, FRAME_STDOUT, "out", 3);
        agent_say(&a, FRAME_STDERR, "err\n", 4);
        agent_leave(&a);
        CHECK(is_ended("killed", 128 + SIGKILL, "out", "err\n" LOST));
        _cleanup_buf_ struct buf b = { 0 };
        frame_add(&b, FRAME_EXIT, NULL, 0);
        run(SIMPLE);
        agent_say_bytes(&a, b.data, b.len - 1); /* in the middle of an EXIT that would have been fine */
        agent_leave(&a);
        CHECK(is_ended("killed", 128 + SIGKILL, "", LOST));
        run(SIMPLE);
        agent_say_bytes(&a, "\0\0\0\0\143\0\0\0", 8); /* no frame at all */
        CHECK(is_ended("killed", 128 + SIGKILL, "", LOST));
        CHECK(agent_is_left(&a));
}

static void test_unknown_frame(void)
{
        static const enum frame_type types[] = { FRAME_PING, FRAME_EXEC, FRAME_DATA, FRAME_END, FRAME_HELLO,
                                                 FRAME_DONE };
        for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
                run(SIMPLE);
                agent_say(&a, types[i], "x", 1);
                CHECK(client_got(&c, 500, "makes no sense"));
                CHECK(agent_is_left(&a));
        }
}

/* Said out of turn: it must not become the answer to the next command. */
static void test_frames_after_exit(void)
{
        for (unsigned later = 0; later < 2; later++) {
                _cleanup_buf_ struct buf b = { 0 };
                run(SIMPLE);
                frame_add(&b, FRAME_STDOUT, "first", 5);
                frame_add(&b, FRAME_EXIT, NULL, 0);
                size_t cut = b.len;
                frame_add(&b, FRAME_STDOUT, "evil", 4);
                frame_add(&b, FRAME_EXIT, NULL, 0);
                agent_say_bytes(&a, b.data, later ? cut : b.len);
                if (later)
                        agent_say_bytes(&a, b.data + cut, b.len - cut);
                CHECK(is_ended("exited", 0, "first", ""));
                CHECK(agent_is_left(&a));
                agent_leave(&a);
                ask(SIMPLE);
                a = agent_accept();
                CHECK(a.fd >= 0);
                hear_exec();
                CHECK_INT(client_status(&c), 0);
                agent_say(&a, FRAME_STDOUT, "second", 6);
                say_end();
                CHECK(is_ended("exited", 0, "second", ""));
        }
}

static void test_reuse(void)
{
        run(SIMPLE);
        for (unsigned i = 0; i < 3; i++) {
                char text[2] = { (char)('0' + i) };
                agent_say(&a, FRAME_STDOUT, text, 1);
                say_end();
                CHECK(is_ended("exited", 0, text, ""));
                CHECK(!agent_is_left(&a));
                ask(SIMPLE);
                CHECK_INT(agent_accept().fd, -1);
                hear_exec();
        }
        say_end();
        CHECK(is_ended("exited", 0, "", ""));
}

static void test_client_leaves(void)
{
        run(SIMPLE);
        agent_say(&a, FRAME_STDOUT, "half", 4);
        CHECK(!agent_is_left(&a));
        client_leave(&c);
        CHECK(agent_is_left(&a)); /* which ends the command */
        CHECK_INT(box->execs, 0);
        CHECK_INT(box->refs, 1);
}

/* Before there is a sandbox to ask: nothing is started for nobody. */
static void test_client_leaves_early(void)
{
        link_close_parked();
        for (unsigned stays = 0; stays < 2; stays++) {
                box->state = BOX_PENDING;
                client_leave(&c);
                c = client_new();
                ask(SIMPLE);
                CHECK(box->waiters != NULL);
                if (!stays)
                        client_leave(&c);
                box->state = BOX_RUNNING;
                wake_waiters();
                agent_leave(&a);
                a = agent_accept();
                CHECK_INT(a.fd >= 0, stays);
                CHECK_INT(box->execs, stays);
        }
        hear_exec();
        say_end();
        CHECK(is_ended("exited", 0, "", ""));
}

/* How many beats came; -1: something else came, too. */
static int beats(void)
{
        const char *p = client_body(&c);
        int n = 0;
        for (; strncmp(p, "1\r\n \r\n", 6) == 0; p += 6)
                n++;
        return *p ? -1 : n;
}

static void test_heartbeat(void)
{
        struct client cs[4];
        struct agent as[4];
        uint64_t before = config.heartbeat_seconds;
        config.heartbeat_seconds = 1;
        link_close_parked();
        agent_leave(&a);
        client_leave(&c);
        for (unsigned i = 0; i < 4; i++) {
                start(SIMPLE);
                cs[i] = c;
                as[i] = a;
        }
        for (unsigned i = 0; i < 4; i++) {
                c = cs[i];
                a = as[i];
                client_await(&c);
                CHECK_INT(client_status(&c), 200);
                CHECK(beats() >= 1 && answered() == NULL);
                if (i == 0) {
                        agent_say(&a, FRAME_STDOUT, "slow", 4);
                        say_end();
                        CHECK(is_ended("exited", 0, "slow", ""));
                        CHECK(!c.closed);
                } else if (i == 1) {
                        agent_leave(&a);
                        CHECK(is_ended("killed", 128 + SIGKILL, "", LOST));
                } else {
                        if (i == 2) /* too late for a status: cut, so that it is no answer */
                                agent_fail(&a, EIO, ERR_HOST, "no");
                        else
                                agent_say(&a, FRAME_DONE, NULL, 0);
                        CHECK(strstr(client_body(&c), "0\r\n\r\n") == NULL);
                        CHECK(c.closed && answered() == NULL);
                }
                client_leave(&c);
                agent_leave(&a);
        }
        /* And it goes on. */
        start(SIMPLE);
        int n;
        while ((n = beats()) == 0 || n == 1)
                (void)uv_run(&loop, UV_RUN_ONCE);
        CHECK_INT(n, 2);
        config.heartbeat_seconds = before;
}

/* An agent that is held up gets help from outside, then its asker an answer. */
static void test_silent_agent(void)
{
        uint64_t before = config.default_exec_timeout_seconds;
        struct keeper_request q = { 0 };
        int fd = -1;
        CHECK(fdpass_recv(keeper, &q, sizeof q, &fd) < 0);
        link_close_parked();
        agent_leave(&a);
        client_leave(&c);
        config.default_exec_timeout_seconds = (uint64_t)-10; /* ended ten seconds before it began */
        c = client_new();
        ask(SIMPLE);
        a = agent_accept();
        hear_exec();
        config.default_exec_timeout_seconds = before;
        json_t *j;
        while (!(j = answered()) && !c.closed)
                (void)uv_run(&loop, UV_RUN_ONCE);
        CHECK(fdpass_recv(keeper, &q, sizeof q, &fd) == sizeof q);
        CHECK_INT(q.op, KEEPER_KILL);
        CHECK_INT(q.slot, box->slot);
        struct keeper_reply r = { .op = q.op, .cookie = q.cookie, .slot = q.slot };
        CHECK(fdpass_recv(keeper, &q, sizeof q, &fd) < 0); /* once */
        CHECK_INT(fdpass_send(keeper, &r, sizeof r, -1), 0);
        CHECK_STR(json_string_value(json_object_get(j, "reason")), "timeout");
        CHECK_INT(json_integer_value(json_object_get(j, "exitCode")), 124);
        CHECK(strstr(json_string_value(json_object_get(j, "stderr")), "The sandbox does not answer\n") != NULL);
        json_decref(j);
        CHECK(agent_is_left(&a));
        CHECK_INT(box->execs, 0);
}

static void test_timeout_note(void)
{
        static const struct { const char *err, *noted; } rows[] = {
                { "", "Command timed out after 2 seconds\n" },
                { "a\n", "a\nCommand timed out after 2 seconds\n" },
                { "a", "a\nCommand timed out after 2 seconds\n" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                run("{\"cmd\":[\"x\"],\"timeoutSeconds\":2}");
                agent_say(&a, FRAME_STDERR, rows[i].err, strlen(rows[i].err));
                say_exit(124, 0, EXIT_TIMEOUT, 0, 0, 0);
                CHECK(is_ended("timeout", 124, "", rows[i].noted));
        }
}

static void test_invalid_utf8(void)
{
        run(SIMPLE);
        agent_say(&a, FRAME_STDOUT, "a\xff\xc3", 3); /* é in two pieces is one letter */
        agent_say(&a, FRAME_STDOUT, "\xa9\0\xed\xa0\x80z", 6);
        agent_say(&a, FRAME_STDERR, "\xe2\x82", 2);
        say_end();
        CHECK_INT(client_status(&c), 200);
        CHECK(strstr(client_body(&c), "\"stdout\":\"a\xef\xbf\xbd\xc3\xa9\\u0000\xef\xbf\xbd") != NULL);
        json_t *j = json_loads(client_body(&c), JSON_ALLOW_NUL, NULL); /* takes nothing but UTF-8 */
        CHECK(j != NULL);
        json_decref(j);
}

static void test_places(void)
{
        uint64_t before = config.execs_per_sandbox;
        struct client second = client_new();
        config.execs_per_sandbox = 1;
        run(SIMPLE);
        client_ask(&second, "POST /v1/sandboxes/b/exec", SIMPLE, strlen(SIMPLE));
        CHECK(client_got(&second, 503, "execs_per_sandbox"));
        CHECK_INT(box->execs, 1);
        say_end();
        CHECK(is_ended("exited", 0, "", ""));
        ask(SIMPLE);
        hear_exec();
        say_end();
        CHECK(is_ended("exited", 0, "", ""));
        client_leave(&second);
        config.execs_per_sandbox = before;
}

static void test_no_sandbox(void)
{
        client_leave(&c);
        c = client_new();
        client_ask(&c, "POST /v1/sandboxes/none/exec", SIMPLE, strlen(SIMPLE));
        CHECK(client_got(&c, 404, "sandbox not found"));
        link_close_parked();
        CHECK(rename("sbx-b.sock", "away") == 0);
        ask(SIMPLE);
        CHECK(client_got(&c, 503, "does not answer"));
        CHECK_INT(box->execs, 0);
        CHECK_INT(box->refs, 1);
        CHECK(rename("away", "sbx-b.sock") == 0);
}

/* prefix, then n times each (@ is the number), then suffix. */
static char *many(const char *prefix, const char *each, size_t n, const char *suffix)
{
        struct buf b = { 0 };
        buf_adds(&b, prefix);
        for (size_t i = 0; i < n; i++)
                for (const char *p = each; *p; p++)
                        if (*p == '@')
                                buf_addf(&b, "%zu", i);
                        else
                                buf_addc(&b, *p);
        buf_adds(&b, suffix);
        return buf_steal(&b);
}

static void refused(const char *body, const char *words)
{
        ask(body);
        CHECK(client_got(&c, 400, words));
        CHECK_INT(agent_accept().fd, -1);
}

static void test_bad_requests(void)
{
        static const struct { const char *body, *words; } rows[] = {
                { "{", "invalid JSON" },
                { "{\"cmd\":[\"a\"]} x", "invalid JSON" },
                { "{\"cmd\":[\"a\"],\"cmd\":[\"b\"]}", "invalid JSON" },
                { "{\"cmd\":[\"a\\u0000\"]}", "invalid JSON" },
                { "{\"cmd\":[\"\xff\"]}", "invalid JSON" },
                { "[]", "must be a JSON object" },
                { "", "cmd must be an array" },
                { "{}", "cmd must be an array" },
                { "{\"cmd\":null}", "cmd must be an array" },
                { "{\"cmd\":\"ls\"}", "cmd must be an array" },
                { "{\"cmd\":[]}", "cmd must be an array" },
                { "{\"cmd\":[1]}", "cmd[0] must be a string" },
                { "{\"cmd\":[\"a\",null]}", "cmd[1] must be a string" },
                { "{\"cmd\":[\"\"]}", "cmd[0] must not be empty" },
                { "{\"cmd\":[\"a\"],\"env\":[]}", "env must be an object" },
                { "{\"cmd\":[\"a\"],\"env\":{\"A\":1}}", "env values must be strings (A is not)" },
                { "{\"cmd\":[\"a\"],\"env\":{\"A=\":\"1\"}}", "env names must not be empty or hold '='" },
                { "{\"cmd\":[\"a\"],\"env\":{\"\":\"1\"}}", "env names must not be empty or hold '='" },
                { "{\"cmd\":[\"a\"],\"timeoutSeconds\":0}", "timeoutSeconds must be" },
                { "{\"cmd\":[\"a\"],\"timeoutSeconds\":-1}", "timeoutSeconds must be" },
                { "{\"cmd\":[\"a\"],\"timeoutSeconds\":1.0}", "timeoutSeconds must be" },
                { "{\"cmd\":[\"a\"],\"timeoutSeconds\":\"1\"}", "timeoutSeconds must be" },
                { "{\"cmd\":[\"a\"],\"timeoutSeconds\":86401}", "from 1 to 86400" },
                { "{\"cmd\":[\"a\"],\"timeoutSeconds\":9223372036854775808}", "invalid JSON" },
                { "{\"cmd\":[\"a\"],\"workdir\":1}", "workdir must be a string" },
        };
        client_leave(&c);
        link_close_parked();
        c = client_new();
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
                refused(rows[i].body, rows[i].words);
}

/* Each limit, and the last that is let through. */
static void test_request_limits(void)
{
        const struct { const char *prefix, *each; size_t most; const char *suffix, *words; } rows[] = {
                { "{\"cmd\":[\"", "x", LIMIT_ARG_BYTES, "\"]}", "cmd[0] is longer" },
                { "{\"cmd\":[\"a\"", ",\"\"", LIMIT_ARGV_COUNT - 1, "]}", "cmd has more than" },
                { "{\"cmd\":[\"a\"],\"env\":{\"A\":\"", "x", LIMIT_ARG_BYTES - 2, "\"}}", "env A is longer" },
                { "{\"cmd\":[\"a\"],\"env\":{\"z\":\"\"", ",\"k@\":\"\"", LIMIT_ENV_COUNT - 1, "}}",
                  "env has more than" },
                { "{\"cmd\":[\"a\"],\"workdir\":\"/", "w", LIMIT_PATH_BYTES - 18, "\"}", "workdir must be" },
                /* Each costs its bytes and 9 more; the first 10. */
                { "{\"cmd\":[\"a\"", ",\"0123456789012345678901234567890123456789012345678901234\"",
                  (LIMIT_ARGV_ENV_BYTES - 10) / 64, "]}", "together are larger" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_free_ char *good = many(rows[i].prefix, rows[i].each, rows[i].most, rows[i].suffix);
                _cleanup_free_ char *bad = many(rows[i].prefix, rows[i].each, rows[i].most + 1, rows[i].suffix);
                run(SIMPLE);
                link_close_parked();
                say_end();
                refused(bad, rows[i].words);
                ask(good);
                size_t used = 0;
                struct frame f;
                while ((f = agent_take(&a, &used)).type == FRAME_NONE && !client_status(&c))
                        ;
                if (f.type != FRAME_EXEC)
                        printf("row %zu: %s\n", i, client_hear(&c));
                CHECK_INT(f.type, FRAME_EXEC);
        }
        _cleanup_free_ char *values = many("{\"cmd\":[\"a\"],\"x\":[0", ",0", LIMIT_JSON_VALUES, "]}");
        run(SIMPLE);
        say_end();
        refused(values, "more than 131072 values");
        uint64_t before = config.json_body_bytes;
        config.json_body_bytes = strlen(SIMPLE);
        run(SIMPLE);
        say_end();
        CHECK(is_ended("exited", 0, "", ""));
        ask(SIMPLE " ");
        CHECK(client_got(&c, 413, "too large"));
        config.json_body_bytes = before;
}

int main(void)
{
        bed_begin();
        c.fd = a.fd = -1;
        RUN(test_answer);
        RUN(test_request);
        RUN(test_output_bound);
        RUN(test_bad_exit);
        RUN(test_fail);
        RUN(test_hangup);
        RUN(test_unknown_frame);
        RUN(test_frames_after_exit);
        RUN(test_reuse);
        RUN(test_client_leaves);
        RUN(test_client_leaves_early);
        RUN(test_heartbeat);
        RUN(test_silent_agent);
        RUN(test_timeout_note);
        RUN(test_invalid_utf8);
        RUN(test_places);
        RUN(test_no_sandbox);
        RUN(test_bad_requests);
        RUN(test_request_limits);
        client_leave(&c);
        agent_leave(&a);
        bed_end();
        return check_done();
}
