/* Fuzzes the JSON bodies of POST exec ('e' first) and PUT (anything else): through a whole
 * connection of src/http into the NoxRunner handlers. A fake agent takes what the exec
 * handler sends: every body that is accepted must be a frame that the agent accepts, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/exec_request.h"
#include "api/api.h"
#include "http/http_internal.h"
#include "wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct config config;
static struct boxes boxes;
static struct api api;
static uv_loop_t loop;
static int listener;
static char dir[] = "/tmp/clf-XXXXXX";
static struct sockaddr_un address = { .sun_family = AF_UNIX };

static void must(bool ok)
{
        if (!ok)
                abort();
}

static int image_index(const char *name, void *user)
{
        (void)name;
        (void)user;
        return 0;
}

static void clean_up(void)
{
        (void)unlink(address.sun_path);
        (void)rmdir(dir);
}

static void setup(void)
{
        struct boxes_config bc = { .max_boxes = 1 }; /* the one below: PUTs of others are refused */
        struct err e;
        config_init(&config);
        must(uv_loop_init(&loop) == 0 && mkdtemp(dir));
        struct box *b = box_new(STR("fuzz"));
        must(b != NULL);
        (void)snprintf(b->name, sizeof b->name, "%s/a", dir); /* a path: libFuzzer needs its own directory */
        engine_socket_name(b->name, address.sun_path, sizeof address.sun_path);
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0);
        (void)atexit(clean_up);
        must(boxes_init(&boxes, &loop, NULL, NULL, &bc, &e) == 0);
        b->state = BOX_RUNNING;
        b->expires_ms = INT64_MAX;
        registry_add(&boxes.registry, b);
        api = (struct api){ .loop = &loop, .config = &config, .boxes = &boxes, .image_index = image_index };
}

/* What the agent makes of it. */
static void serve_agent(void)
{
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
                return;
        struct buf b = { 0 };
        struct frame f;
        struct exec_request q = { 0 };
        struct err e;
        must(frame_read(fd, &b, &f) == 1 && f.type == FRAME_EXEC);
        must(exec_request_parse(f.payload, &q, &e) == 0);
        must(q.argv[0] && q.argv[0][0] && q.workdir[0] == '/');
        exec_request_free(&q);
        buf_free(&b);
        (void)close(fd);
}

static int ask(const char *head, const uint8_t *body, size_t n)
{
        static const struct http_limits limits = { .head_bytes = 1024, .header_count = 16, .connections = 4 };
        static const struct http_callbacks callbacks = { api_on_request, NULL, api_on_refuse };
        struct buf in = { 0 }, out = { 0 };
        buf_addf(&in, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", head, n);
        buf_add(&in, body, n);
        struct http_server *s = http_server_alloc(&loop, &limits, &callbacks, &api);
        must(s != NULL);
        s->capture = &out;
        struct http_conn *c = http_conn_new(s, false);
        must(c != NULL);
        http_server_adopt(c);
        http_conn_begin(c);
        http_conn_feed(c, in.data, in.len);
        for (int i = 0; i < 50 && !out.len; i++) {
                (void)uv_run(&loop, UV_RUN_NOWAIT);
                serve_agent();
        }
        must(out.len > 12 && memcmp(out.data, "HTTP/1.1 ", 9) == 0);
        int status = (out.data[9] - '0') * 100 + (out.data[10] - '0') * 10 + (out.data[11] - '0');
        http_server_close(s, NULL, NULL);
        for (int i = 0; i < 5; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
        buf_free(&in);
        buf_free(&out);
        return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static bool ready;
        if (!ready)
                setup();
        ready = true;
        if (size < 1)
                return 0;
        if (data[0] == 'e') {
                int status = ask("POST /v1/sandboxes/fuzz/exec", data + 1, size - 1);
                must(status == 200 || status == 400 || status == 413);
        } else {
                int status = ask("PUT /v1/sandboxes/other", data + 1, size - 1);
                must(status == 400 || status == 413 || status == 503);
        }
        struct exec_request q = { 0 };
        struct err e;
        if (exec_request_parse((struct str){ (const char *)data, size }, &q, &e) == 0)
                exec_request_free(&q);
        return 0;
}
