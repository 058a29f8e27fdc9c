/* Fuzzes a whole connection of src/http without a socket. The first byte of the input
 * says how the rest is cut into reads; the rest is what a client sends. Checked on the
 * way: every request handed out is finished exactly once, the server's answers are in
 * order and complete, and cutting the bytes otherwise changes nothing of what was
 * understood. The sanitizers see to the rest. */
#include <stdlib.h>
#include <string.h>

#include "http/http_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
        unsigned requests, done, gone;
        struct buf story;  /* what handlers saw, in order */
        struct buf pieces; /* of the streamed body; part of the story when it is whole,
                              since how much comes before a refusal depends on the cut */
        struct http_req *held;
} run;

static void must(bool ok)
{
        if (!ok)
                abort();
}

static void gone(struct http_req *req, void *user)
{
        (void)user;
        if (run.held == req)
                run.held = NULL;
        run.gone++;
}

static void on_body(struct http_req *req, struct str body, void *user)
{
        (void)user;
        buf_add(&run.story, body.p, body.n);
        http_reply(req, 200, "text/plain", body.p, body.n);
}

static void on_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        (void)user;
        buf_add(&run.pieces, p, n);
        if (p && n % 7 == 3) {
                http_pause_body(req);
                http_resume_body(req);
        }
        if (p)
                return;
        buf_add(&run.story, run.pieces.data, run.pieces.len);
        http_reply(req, 200, NULL, NULL, 0);
}

static void on_early_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        (void)p;
        (void)n;
        (void)user;
        http_start(req, 200, "text/plain");
        (void)http_write(req, "x", 1);
        http_end(req);
}

static void on_request(struct http_req *req, void *user)
{
        (void)user;
        run.requests++;
        struct str path = http_path(req), value;
        must(path.n > 0 && (path.p[0] == '/' || path.p[0] == '*'));
        buf_addf(&run.story, "%s %.*s\n", http_method_name(req), (int)path.n, path.p);
        (void)http_query_get(req, "a", &value);
        must(http_header_count(req, "Content-Length") <= 1);
        must(http_content_length(req) >= -1);
        http_on_gone(req, gone);
        switch (path.n > 1 ? path.p[1] : 0) {
        case 'c':
                http_collect_body(req, 100, on_body);
                break;
        case 's':
                http_stream_body(req, 1000, on_piece);
                break;
        case 'e':
                http_stream_body(req, 0, on_early_piece);
                break;
        case 'h':
                run.held = req;
                break;
        case 'a':
                http_abort(req);
                break;
        default:
                http_reply(req, 200, "text/plain", "hello", 5);
        }
}

static void on_done(struct http_req *req, int status, uint64_t bytes, uint64_t ns, void *user)
{
        (void)req;
        (void)bytes;
        (void)ns;
        (void)user;
        buf_free(&run.pieces);
        buf_addf(&run.story, "= %d\n", status);
        run.done++;
}

/* Whatever was sent, what went out is text of our own making. */
static void check_output(const struct buf *out)
{
        must(out->len == 0 || (out->len > 9 && memcmp(out->data, "HTTP/1.1 ", 9) == 0));
}

/* Runs what was put off. */
static void turn(struct http_server *s)
{
        while (s->deferred_count)
                (void)uv_run(s->loop, UV_RUN_NOWAIT);
}

static void play(const uint8_t *p, size_t n, size_t step)
{
        static const struct http_limits limits = { .head_bytes = 1024, .header_count = 16, .connections = 4 };
        static const struct http_callbacks callbacks = { .on_request = on_request, .on_done = on_done };
        uv_loop_t loop;
        struct buf out = { 0 };
        must(uv_loop_init(&loop) == 0);
        struct http_server *s = http_server_alloc(&loop, &limits, &callbacks, NULL);
        must(s != NULL);
        s->capture = &out;
        struct http_conn *c = http_conn_new(s, false);
        must(c != NULL);
        http_server_adopt(c);
        http_conn_begin(c);
        for (size_t at = 0; at < n && !TAILQ_EMPTY(&s->conns); at += step) {
                size_t k = n - at < step ? n - at : step;
                /* A copy of exactly this size: reading past a read is then an error. */
                char *piece = malloc(k);
                must(piece != NULL);
                memcpy(piece, p + at, k);
                http_conn_feed(c, piece, k);
                free(piece);
                turn(s);
        }
        if (run.held && n % 2)
                http_reply(steal_ptr(&run.held), 200, NULL, NULL, 0);
        turn(s);
        if (!TAILQ_EMPTY(&s->conns) && n % 3)
                http_conn_eof(c, UV_EOF);
        http_server_close(s, NULL, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        must(uv_loop_close(&loop) == 0);
        must(run.done >= run.requests && run.held == NULL);
        check_output(&out);
        buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (size < 1)
                return 0;
        size_t step = data[0] ? data[0] : size;
        play(data + 1, size - 1, step);
        struct buf first = run.story;
        memset(&run, 0, sizeof run);
        play(data + 1, size - 1, size);
        must(first.len == run.story.len &&
             (first.len == 0 || memcmp(first.data, run.story.data, first.len) == 0));
        buf_free(&first);
        buf_free(&run.story);
        memset(&run, 0, sizeof run);
        return 0;
}
