/* src/api/noxrunner/files.c, with a client on one side and a fake worker on the other. */
#include "base/limits.h"
#include "nox_bed.h"

#define UPLOAD "POST /v1/sandboxes/b/files/upload"
#define DOWNLOAD "GET /v1/sandboxes/b/files/download"
#define MIB ((size_t)1 << 20)

static struct client c;
static struct agent a;
static size_t used; /* of a.in, by the last frame */

static void ask_head(const char *line, size_t body)
{
        char head[8192];
        client_leave(&c);
        agent_leave(&a);
        used = 0;
        c = client_new();
        int n = snprintf(head, sizeof head, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", line, body);
        client_say(&c, head, (size_t)n);
        a = agent_accept();
}

static void expect_request(enum frame_type type, const char *path)
{
        struct frame f = agent_take(&a, &used);
        enum field tag;
        struct str v;
        uint64_t n;
        unsigned right = 0;
        CHECK_INT(f.type, type);
        while (f.type == type && field_next(&f.payload, &tag, &v) > 0) {
                right += tag == FIELD_PATH && str_eq(v, path);
                right += tag == FIELD_MAX_BYTES && field_u64(v, &n) && n == config.unpacked_bytes;
                right += tag == FIELD_MAX_MEMBERS && field_u64(v, &n) && n == config.upload_members;
        }
        CHECK_INT(right, 3);
}

/* A transfer under way; an upload of n bytes, none of which is sent. */
static void begin_upload(size_t n)
{
        ask_head(UPLOAD, n);
        expect_request(FRAME_UNTAR, "/workspace");
}

static void begin_download(void)
{
        ask_head(DOWNLOAD, 0);
        expect_request(FRAME_TAR, "/workspace");
}

/* An upload of "tar" that is wholly sent. */
static void whole_upload(void)
{
        begin_upload(3);
        client_say(&c, "tar", 3);
        struct frame f = agent_take(&a, &used);
        CHECK(f.type == FRAME_DATA && str_eq(f.payload, "tar"));
        CHECK_INT(agent_take(&a, &used).type, FRAME_END);
        CHECK_INT(client_status(&c), 0);
}

static void add_totals(struct buf *b, uint64_t count, uint64_t skipped)
{
        field_add_u64(b, FIELD_COUNT, count);
        field_add_u64(b, FIELD_SKIPPED_COUNT, skipped);
}

static void say_done(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        add_totals(&b, 1, 0);
        agent_say(&a, FRAME_DONE, b.data, b.len);
}

/* Nothing of the transfer is left. */
static bool is_over(void)
{
        return agent_is_left(&a) && box->refs == 1;
}

/* A 200 that began and was cut: no client takes it for whole. */
static bool is_cut(const char *begins)
{
        _cleanup_buf_ struct buf all = { 0 };
        int status = client_status(&c);
        const char *body = client_body(&c);
        bool whole = unchunk(body, strlen(body), &all);
        return c.closed && status == 200 && !whole && strcmp(buf_cstr(&all), begins) == 0;
}

static void test_upload(void)
{
        whole_upload();
        _cleanup_buf_ struct buf b = { 0 };
        add_totals(&b, 5, 2);
        field_add_str(&b, FIELD_SKIPPED, "a\xff: \"why\"");
        field_add_str(&b, FIELD_SKIPPED, "b: so");
        agent_say(&a, FRAME_DONE, b.data, b.len);
        CHECK_INT(client_status(&c), 200);
        CHECK_STR(client_body(&c), "{\"uploaded\":5,\"skippedCount\":2,\"skipped\":[\"a\xef\xbf\xbd: \\\"why\\\"\",\"b: so\"]}");
        CHECK(!c.closed);
        CHECK(is_over());
        begin_upload(0);
        CHECK_INT(agent_take(&a, &used).type, FRAME_END);
        say_done();
        CHECK_INT(client_status(&c), 200);
}

/* Long pieces become frames that the worker takes. */
static void test_pieces(void)
{
        size_t n = 3 * FRAME_DATA_BYTES / 2, got = 0;
        char *body = malloc(n);
        memset(body, 'p', n);
        begin_upload(n);
        say_all(c.fd, body, n);
        free(body);
        struct frame f;
        while ((f = agent_take(&a, &used)).type == FRAME_DATA) {
                CHECK(f.payload.n > 0 && f.payload.n <= FRAME_DATA_BYTES);
                got += f.payload.n;
        }
        CHECK_INT(f.type, FRAME_END);
        CHECK_INT(got, n);
}

static void test_skipped_bound(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        add_totals(&b, 0, 1000);
        for (unsigned i = 0; i < 1000; i++)
                field_add_str(&b, FIELD_SKIPPED, "x");
        whole_upload();
        agent_say(&a, FRAME_DONE, b.data, b.len);
        CHECK_INT(client_status(&c), 200);
        CHECK(strstr(client_body(&c), "\"skippedCount\":1000,") != NULL);
        unsigned named = 0;
        for (const char *p = client_body(&c); (p = strstr(p, "\"x\"")); p++)
                named++;
        CHECK_INT(named, LIMIT_SKIPPED_NAMED);
}

static void refuse_done(const void *p, size_t n)
{
        whole_upload();
        agent_say(&a, FRAME_DONE, p, n);
        CHECK(client_got(&c, 500, "makes no sense"));
        CHECK(is_over());
}

/* A worker that was taken over says DONE as it likes. */
static void test_bug_bad_done(void)
{
        static const uint64_t rows[][2] = { { 1ull << 63, 0 }, { 0, UINT64_MAX } };
        _cleanup_buf_ struct buf b = { 0 }, narrow = { 0 };
        add_totals(&b, 1, 0);
        refuse_done(b.data, b.len - 1);
        refuse_done("\1", 1);
        field_add(&narrow, FIELD_COUNT, "\1\0\0\0", 4);
        refuse_done(narrow.data, narrow.len);
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_buf_ struct buf wide = { 0 };
                add_totals(&wide, rows[i][0], rows[i][1]);
                refuse_done(wide.data, wide.len);
        }
        begin_upload(10); /* before it has all */
        client_say(&c, "half", 4);
        say_done();
        CHECK(client_got(&c, 500, "makes no sense"));
        CHECK(is_over());
}

static void test_fail(void)
{
        static const struct { int code; enum err_blame blame; int up, down; } rows[] = {
                { ENOENT, ERR_USER, 400, 404 }, { EINVAL, ERR_USER, 400, 400 }, { ENOSPC, ERR_USER, 507, 507 },
                { EAGAIN, ERR_HOST, 503, 503 }, { EIO, ERR_HOST, 500, 500 },    { 1 << 20, ERR_HOST, 500, 500 },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                whole_upload();
                agent_fail(&a, rows[i].code, rows[i].blame, "so \xff");
                CHECK(client_got(&c, rows[i].up, "{\"error\":\"so \xef\xbf\xbd\"}"));
                CHECK(is_over());
                begin_upload(10); /* in the middle of the body, too */
                client_say(&c, "half", 4);
                agent_fail(&a, rows[i].code, rows[i].blame, "early");
                CHECK(client_got(&c, rows[i].up, "early"));
                CHECK(is_over());
                begin_download();
                agent_fail(&a, rows[i].code, rows[i].blame, "so \xff");
                CHECK(client_got(&c, rows[i].down, "{\"error\":\"so \xef\xbf\xbd\"}"));
                CHECK(is_over());
                begin_download();
                agent_say(&a, FRAME_DATA, "half", 4);
                agent_fail(&a, rows[i].code, rows[i].blame, "late");
                CHECK(is_cut("half"));
                CHECK(is_over());
        }
}

static void test_hangup(void)
{
        whole_upload();
        agent_leave(&a);
        CHECK(client_got(&c, 500, "lost during the transfer"));
        begin_upload(10);
        client_say(&c, "half", 4);
        agent_leave(&a);
        CHECK(client_got(&c, 500, "lost during the transfer"));
        begin_download();
        agent_leave(&a);
        CHECK(client_got(&c, 500, "lost during the transfer"));
        begin_download();
        agent_say(&a, FRAME_DATA, "half", 4);
        agent_leave(&a);
        CHECK(is_cut("half"));
        begin_download();
        agent_say(&a, FRAME_DATA, "half", 4);
        agent_say_bytes(&a, "\0\0\0\0\6\0\0", 7); /* all but a byte of END */
        agent_leave(&a);
        CHECK(is_cut("half"));
        CHECK_INT(box->refs, 1);
}

static void test_unknown_frame(void)
{
        static const enum frame_type types[] = { FRAME_PING, FRAME_HELLO, FRAME_STDOUT, FRAME_EXIT };
        for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
                whole_upload();
                agent_say(&a, types[i], NULL, 0);
                CHECK(client_got(&c, 500, "makes no sense"));
                CHECK(is_over());
                begin_download();
                agent_say(&a, types[i], NULL, 0);
                CHECK(client_got(&c, 500, "makes no sense"));
                CHECK(is_over());
                begin_download();
                agent_say(&a, FRAME_DATA, "half", 4);
                agent_say(&a, types[i], NULL, 0);
                CHECK(is_cut("half"));
                CHECK(is_over());
        }
        whole_upload();
        agent_say(&a, FRAME_END, NULL, 0);
        CHECK(client_got(&c, 500, "makes no sense"));
        begin_download();
        say_done();
        CHECK(client_got(&c, 500, "makes no sense"));
}

static void test_download(void)
{
        begin_download();
        CHECK_INT(client_status(&c), 0);
        agent_say(&a, FRAME_DATA, "one ", 4);
        CHECK_INT(client_status(&c), 200);
        CHECK(strstr(client_hear(&c), "\r\nContent-Type: application/x-tar\r\n") != NULL);
        agent_say(&a, FRAME_DATA, NULL, 0); /* which would be the end of a chunked answer */
        agent_say(&a, FRAME_DATA, "two", 3);
        CHECK_STR(client_body(&c), "4\r\none \r\n3\r\ntwo\r\n");
        agent_say(&a, FRAME_END, NULL, 0);
        CHECK_STR(client_body(&c), "4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n");
        CHECK(!c.closed);
        CHECK(is_over());
        begin_download();
        agent_say(&a, FRAME_END, NULL, 0);
        CHECK_INT(client_status(&c), 200);
        CHECK_STR(client_body(&c), "0\r\n\r\n");
}

/* What was left out goes to the log, and not more of it than a worker may name. */
static void test_bug_skipped_log(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        FILE *f = tmpfile();
        int saved = dup(STDERR_FILENO);
        char line[1024];
        unsigned lines = 0;
        field_add_str(&b, FIELD_SKIPPED, "first\nforged");
        for (unsigned i = 0; i < 1000; i++)
                field_add_str(&b, FIELD_SKIPPED, "x");
        if (!f || saved < 0 || dup2(fileno(f), STDERR_FILENO) < 0)
                abort();
        log_setup(LOG_INFO, false, "test");
        begin_download();
        agent_say(&a, FRAME_END, b.data, b.len);
        CHECK_STR(client_body(&c), "0\r\n\r\n");
        log_setup(LOG_ERROR, false, "test");
        (void)dup2(saved, STDERR_FILENO);
        (void)close(saved);
        rewind(f);
        while (fgets(line, sizeof line, f)) {
                CHECK(strstr(line, "left out of a download") != NULL);
                if (lines++ == 0)
                        CHECK(strstr(line, "first\\nforged") != NULL);
        }
        CHECK_INT(lines, LIMIT_SKIPPED_NAMED);
        (void)fclose(f);
}

/* A byte that says where it is. */
static char at_place(size_t i)
{
        return (char)(i % 251);
}

/* Sends as much of n bytes as goes without the other side's help; returns how much. */
static size_t send_some(int fd, const char *p, size_t n)
{
        size_t sent = 0;
        for (unsigned idle = 0; sent < n && idle < 20; turn()) {
                ssize_t w = send(fd, p + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                sent += w > 0 ? (size_t)w : 0;
                idle = w > 0 ? 0 : idle + 1;
        }
        return sent;
}

/* A worker that does not read stops its client; nothing is lost or out of order then. */
static void test_slow_worker(void)
{
        size_t n = 16 * MIB, got = 0;
        char *body = malloc(n);
        struct frame f;
        for (size_t i = 0; i < n; i++)
                body[i] = at_place(i);
        begin_upload(n);
        size_t sent = send_some(c.fd, body, n);
        CHECK(sent > 0 && sent < 4 * MIB); /* two sockets, the high water, a read */
        for (unsigned idle = 0; ((f = agent_take(&a, &used)).type == FRAME_DATA || sent < n) && idle < 100;) {
                if (f.type == FRAME_DATA) {
                        bool same = memcmp(f.payload.p, body + got, f.payload.n) == 0;
                        CHECK(same);
                        got += f.payload.n;
                        if (!same)
                                break;
                }
                ssize_t w = send(c.fd, body + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                sent += w > 0 ? (size_t)w : 0;
                idle = w > 0 || f.type == FRAME_DATA ? 0 : idle + 1;
        }
        CHECK_INT(f.type, FRAME_END);
        CHECK_INT(got, n);
        say_done();
        CHECK_INT(client_status(&c), 200);
        free(body);
}

/* And a client that does not read stops the worker. */
static void test_slow_client(void)
{
        _cleanup_buf_ struct buf frames = { 0 }, all = { 0 };
        size_t n = 16 * MIB, piece = 65536;
        for (size_t i = 0; i < n; i += piece) {
                char block[65536];
                for (size_t k = 0; k < piece; k++)
                        block[k] = at_place(i + k);
                frame_add(&frames, FRAME_DATA, block, piece);
        }
        frame_add(&frames, FRAME_END, NULL, 0);
        begin_download();
        size_t sent = send_some(a.fd, frames.data, frames.len);
        CHECK(sent > 0 && sent < 4 * MIB);
        while (sent < frames.len) {
                size_t more = send_some(a.fd, frames.data + sent, frames.len - sent), before = c.heard.len;
                sent += more;
                (void)client_hear(&c);
                if (!more && c.heard.len == before)
                        break;
        }
        CHECK_INT(sent, frames.len);
        for (size_t before = 0; before != c.heard.len; (void)client_hear(&c))
                before = c.heard.len;
        size_t head = (size_t)(client_body(&c) - c.heard.data);
        CHECK(unchunk(c.heard.data + head, c.heard.len - head, &all));
        CHECK_INT(all.len, n);
        bool same = true;
        for (size_t i = 0; i < all.len; i++)
                same = same && all.data[i] == at_place(i);
        CHECK(same);
        CHECK(is_over());
}

/* Held by the client when the worker is lost: still not a whole archive. */
static void test_lost_while_held(void)
{
        _cleanup_buf_ struct buf frames = { 0 }, all = { 0 };
        static char block[65536];
        for (size_t i = 0; i < 256; i++)
                frame_add(&frames, FRAME_DATA, block, sizeof block);
        begin_download();
        size_t sent = send_some(a.fd, frames.data, frames.len);
        CHECK(sent < frames.len);
        agent_leave(&a);
        CHECK_INT(box->refs, 2); /* what the worker sent is on its way yet */
        for (unsigned i = 0; i < 1000 && !c.closed; i++)
                (void)client_hear(&c);
        CHECK(c.closed);
        size_t head = (size_t)(client_body(&c) - c.heard.data);
        CHECK(!unchunk(c.heard.data + head, c.heard.len - head, &all));
        CHECK(all.len > 0 && all.len <= sent);
        CHECK_INT(box->refs, 1);
}

/* Four transfers begin together. The two whose worker owes something end when its time is
 * up; by then the timers of those that began earlier, and wait for their client, went by. */
static void test_stall(void)
{
        struct client cs[4];
        struct agent as[4];
        _cleanup_buf_ struct buf frames = { 0 };
        static char block[65536];
        uint64_t before = config.stall_seconds;
        client_leave(&c);
        agent_leave(&a);
        config.stall_seconds = 2; /* all four have begun by then */
        for (size_t i = 0; i < 64; i++)
                frame_add(&frames, FRAME_DATA, block, sizeof block);
        for (unsigned i = 0; i < 4; i++) {
                c = (struct client){ .fd = -1 };
                a = (struct agent){ .fd = -1 };
                if (i == 0) { /* the client owes the rest */
                        begin_upload(4);
                        client_say(&c, "ta", 2);
                } else if (i == 1) { /* the client does not read */
                        begin_download();
                        (void)send_some(a.fd, frames.data, frames.len);
                } else if (i == 2) /* the worker owes the answer */
                        whole_upload();
                else /* the worker owes all of it */
                        begin_download();
                cs[i] = c;
                as[i] = a;
        }
        for (unsigned i = 2; i < 4; i++) {
                client_await(&cs[i]);
                CHECK(client_got(&cs[i], 500, "the sandbox does not answer"));
                CHECK(agent_is_left(&as[i]));
        }
        CHECK(!agent_is_left(&as[0]));
        client_say(&cs[0], "r!", 2);
        a = as[0];
        say_done();
        CHECK_INT(client_status(&cs[0]), 200);
        CHECK_INT(box->refs, 2); /* the held download */
        CHECK_INT(client_status(&cs[1]), 200);
        CHECK(!cs[1].closed);
        for (unsigned i = 0; i < 4; i++) {
                client_leave(&cs[i]);
                agent_leave(&as[i]);
        }
        c = (struct client){ .fd = -1 };
        a = (struct agent){ .fd = -1 };
        config.stall_seconds = before;
}

/* What waits for a worker that stopped reading is owed, too. */
static void test_stall_in_the_middle(void)
{
        uint64_t before = config.stall_seconds;
        char *body = calloc(1, 16 * MIB);
        config.stall_seconds = 1;
        begin_upload(16 * MIB);
        CHECK(send_some(c.fd, body, 16 * MIB) < 16 * MIB);
        client_await(&c);
        CHECK(client_got(&c, 500, "the sandbox does not answer"));
        CHECK(is_over());
        free(body);
        config.stall_seconds = before;
}

static void test_client_leaves(void)
{
        begin_upload(10);
        client_say(&c, "half", 4);
        client_leave(&c);
        CHECK_INT(agent_take(&a, &used).type, FRAME_DATA);
        CHECK_INT(agent_take(&a, &used).type, FRAME_NONE); /* and no END */
        CHECK(is_over());
        begin_download();
        agent_say(&a, FRAME_DATA, "half", 4);
        client_leave(&c);
        CHECK(is_over());
        for (unsigned upload = 0; upload < 2; upload++) {
                box->state = BOX_PENDING;
                ask_head(upload ? UPLOAD : DOWNLOAD, 0);
                CHECK(box->waiters != NULL);
                client_leave(&c);
                box->state = BOX_RUNNING;
                wake_waiters();
                CHECK_INT(agent_accept().fd, -1);
                CHECK_INT(box->refs, 1);
        }
}

static void test_too_large(void)
{
        uint64_t before = config.upload_bytes;
        config.upload_bytes = 4;
        begin_upload(4);
        client_say(&c, "1234", 4);
        say_done();
        CHECK_INT(client_status(&c), 200);
        begin_upload(5);
        client_say(&c, "12345", 5);
        CHECK(client_got(&c, 413, "too large"));
        CHECK_INT(agent_take(&a, &used).type, FRAME_NONE);
        CHECK(is_over());
        config.upload_bytes = before;
}

static void test_paths(void)
{
        static const struct { const char *query, *path; } rows[] = {
                { "", "/workspace" },          { "=", "/workspace" },         { "=/", "/" },
                { "=/a%20b/%2e", "/a b/." },   { "=rel/x", "/workspace/rel/x" }, { "=a+b", "/workspace/a b" },
                { "=%", NULL },                { "=%zz", NULL },              { "=a%00b", NULL },
        };
        char line[LIMIT_PATH_BYTES + 128];
        for (size_t i = 0; i < 2 * ARRAY_SIZE(rows); i++) {
                const char *query = rows[i / 2].query, *path = rows[i / 2].path;
                bool up = i % 2;
                (void)snprintf(line, sizeof line, "%s?%s%s", up ? UPLOAD : DOWNLOAD, up ? "dest" : "src", query);
                ask_head(line, 0);
                if (path)
                        expect_request(up ? FRAME_UNTAR : FRAME_TAR, path);
                else
                        CHECK(client_got(&c, 400, up ? "invalid dest" : "invalid src"));
                CHECK_INT(a.fd >= 0, path != NULL);
        }
        char longest[LIMIT_PATH_BYTES + 1] = "/";
        memset(longest + 1, 'l', LIMIT_PATH_BYTES - 2);
        (void)snprintf(line, sizeof line, DOWNLOAD "?src=%s", longest);
        ask_head(line, 0);
        expect_request(FRAME_TAR, longest);
        longest[LIMIT_PATH_BYTES - 1] = 'l';
        (void)snprintf(line, sizeof line, DOWNLOAD "?src=%s", longest);
        ask_head(line, 0);
        CHECK(client_got(&c, 400, "invalid src"));
}

static void test_no_sandbox(void)
{
        ask_head("GET /v1/sandboxes/none/files/download", 0);
        CHECK(client_got(&c, 404, "sandbox not found"));
        CHECK(rename("sbx-b.sock", "away") == 0);
        ask_head(DOWNLOAD, 0);
        CHECK(client_got(&c, 503, "does not answer"));
        ask_head(UPLOAD, 5);
        CHECK(client_got(&c, 503, "does not answer"));
        CHECK_INT(box->refs, 1);
        CHECK(rename("away", "sbx-b.sock") == 0);
}

int main(void)
{
        bed_begin();
        c.fd = a.fd = -1;
        RUN(test_upload);
        RUN(test_pieces);
        RUN(test_skipped_bound);
        RUN(test_bug_bad_done);
        RUN(test_fail);
        RUN(test_hangup);
        RUN(test_unknown_frame);
        RUN(test_download);
        RUN(test_bug_skipped_log);
        RUN(test_slow_worker);
        RUN(test_slow_client);
        RUN(test_lost_while_held);
        RUN(test_stall);
        RUN(test_stall_in_the_middle);
        RUN(test_client_leaves);
        RUN(test_too_large);
        RUN(test_paths);
        RUN(test_no_sandbox);
        client_leave(&c);
        agent_leave(&a);
        bed_end();
        return check_done();
}
