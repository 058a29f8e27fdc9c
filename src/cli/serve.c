/* Theory of operation. Order matters here: images first (they run tar), then the keeper is
 * forked while this process has no threads, no sockets and little memory; then sockets,
 * store and adoption of what an earlier server left; then this process gives up every
 * power it does not need and enters its loop. SIGTERM and SIGINT stop accepting, wait for
 * what runs within the grace time and leave; sandboxes live on unless told otherwise. */
#include "cli/serve.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/api.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/serve_setup.h"
#include "engine/engine.h"
#include "engine/link.h"
#include "os/landlock.h"
#include "os/probe.h"
#include "os/sealed.h"

struct server {
        struct config config;
        struct setup setup;
        uv_loop_t loop;
        struct engine *engine;
        struct store *store;
        struct boxes boxes;
        struct http_server *http;
        struct api api;
        char where[256]; /* it listens */
        uv_signal_t term, interrupt;
        uv_timer_t grace;
        unsigned stops; /* how often it was asked to stop */
        unsigned left;  /* creates and destroys under way when the end last looked */
        bool closing;
        int exit_code;
};

/* --- the end ------------------------------------------------------------------------- */

static void on_boxes_idle(void *user)
{
        struct server *s = user;
        link_close_parked();
        engine_close(s->engine);
        boxes_free(&s->boxes);
        store_close(s->store);
        uv_close((uv_handle_t *)&s->term, NULL);
        uv_close((uv_handle_t *)&s->interrupt, NULL);
        uv_close((uv_handle_t *)&s->grace, NULL);
        log_line(LOG_INFO, "stopped", NULL);
}

/* A keeper that is held up must not hold up the end: leaving now is no worse than a crash,
 * after which the next server finds everything again. */
static void on_no_progress(uv_timer_t *t)
{
        struct server *s = t->data;
        if (s->boxes.in_transit == s->left) {
                log_line(LOG_ERROR, "the keeper does not answer; leaving without it", NULL);
                _exit(1);
        }
        s->left = s->boxes.in_transit;
}

static void on_http_closed(void *user)
{
        struct server *s = user;
        (void)uv_timer_start(&s->grace, on_no_progress, KEEPER_WAIT_MS, KEEPER_WAIT_MS);
        boxes_shutdown(&s->boxes, s->config.on_exit == ON_EXIT_DELETE, on_boxes_idle, s);
        s->left = s->boxes.in_transit;
}

static void close_http(struct server *s)
{
        if (s->closing)
                return;
        s->closing = true;
        (void)uv_timer_stop(&s->grace);
        http_server_close(s->http, on_http_closed, s);
}

static void on_drained(void *user)
{
        close_http(user);
}

static void on_grace_over(uv_timer_t *t)
{
        log_line(LOG_WARN, "the grace time is over; cutting what is left", NULL);
        close_http(t->data);
}

static void on_stop(uv_signal_t *sig, int number)
{
        struct server *s = sig->data;
        (void)number;
        if (++s->stops > 1) { /* asked twice: do not wait */
                close_http(s);
                return;
        }
        log_line(LOG_INFO, "stopping; once more to cut what runs", "sandboxes",
                 s->config.on_exit == ON_EXIT_DELETE ? "are deleted" : "stay alive", NULL);
        (void)uv_timer_start(&s->grace, on_grace_over, s->config.grace_seconds * 1000, 0);
        http_server_drain(s->http, on_drained, s);
}

static void on_keeper_lost(void *user)
{
        struct server *s = user;
        log_line(LOG_ERROR, "the keeper died; leaving (sandboxes stay alive, start cloche again)", NULL);
        s->exit_code = 1;
        _exit(1); /* nothing can be made or ended without it, and nothing is lost */
}

/* --- the start ------------------------------------------------------------------------- */

static int image_index(const char *name, void *user)
{
        return setup_image_index(&((struct server *)user)->setup, name);
}

static int start_boxes(struct server *s, struct err *e)
{
        const struct config *c = &s->config;
        const char *image, *path;
        int r = config_image_find(c, str_c(""), &image, &path, e);
        if (r < 0)
                return r;
        struct boxes_config bc = {
                .max_boxes = c->max_sandboxes,
                .pool_size = (unsigned)c->pool_size,
                .refill_ms = POOL_REFILL_MS,
                .wait_ms = KEEPER_WAIT_MS,
                .default_shape = { .image = (unsigned)setup_image_index(&s->setup, image),
                                   .cpu_millis = (uint32_t)c->default_cpu, .memory = c->default_memory,
                                   .storage = c->default_storage, .pids = c->default_pids },
        };
        (void)snprintf(bc.default_image, sizeof bc.default_image, "%s", image);
        setup_place(c, bc.place, sizeof bc.place);
        r = boxes_init(&s->boxes, &s->loop, s->engine, s->store, &bc, e);
        if (r < 0)
                return r;
        unsigned adopted, lost;
        r = boxes_adopt(&s->boxes, &adopted, &lost, e);
        if (r == 0)
                r = engine_sweep(s->engine);
        if (r == 0 && adopted + lost) {
                char a[16], l[16];
                (void)snprintf(a, sizeof a, "%u", adopted);
                (void)snprintf(l, sizeof l, "%u", lost);
                log_line(LOG_INFO, "found sandboxes of an earlier server", "adopted", a, "lost", l, NULL);
        }
        if (r == 0 && !adopted)
                setup_sweep_images(&s->setup);
        return r;
}

static int start_http(struct server *s, struct err *e)
{
        const struct config *c = &s->config;
        static const struct http_callbacks callbacks = { api_on_request, api_on_done, api_on_refuse };
        struct http_limits limits = {
                .head_bytes = c->head_bytes,
                .header_count = (unsigned)c->header_count,
                .connections = (unsigned)c->connections,
                .head_timeout_ms = c->head_timeout_seconds * 1000,
                .idle_timeout_ms = c->idle_timeout_seconds * 1000,
                .body_timeout_ms = c->body_timeout_seconds * 1000,
                .write_timeout_ms = c->write_timeout_seconds * 1000,
        };
        int fd = setup_listen(c, e);
        if (fd < 0)
                return fd;
        setup_where(c, fd, s->where, sizeof s->where);
        int r = http_server_new(&s->loop, fd, &limits, &callbacks, &s->api, &s->http, e);
        if (r < 0)
                return r;
        s->api = (struct api){ .loop = &s->loop, .config = c, .boxes = &s->boxes, .http = s->http,
                               .image_index = image_index, .image_user = s };
        return 0;
}

static void watch_signals(struct server *s)
{
        s->term.data = s->interrupt.data = s->grace.data = s;
        (void)uv_signal_init(&s->loop, &s->term);
        (void)uv_signal_init(&s->loop, &s->interrupt);
        (void)uv_timer_init(&s->loop, &s->grace);
        (void)uv_signal_start(&s->term, on_stop, SIGTERM);
        (void)uv_signal_start(&s->interrupt, on_stop, SIGINT);
}

static void say_started(const struct server *s, const struct keeper_reply *hello, const char *cannot)
{
        char stop[64];
        const struct config *c = &s->config;
        (void)snprintf(stop, sizeof stop, "Ctrl-C or kill %d", (int)getpid());
        log_line(LOG_INFO, "cloche " CLOCHE_VERSION " is ready", "listen", s->where, "engine",
                 hello->privileged ? "embedded" : "embedded, without root", "image", s->boxes.conf.default_image,
                 "state", c->state_dir, "this_host", cannot && *cannot ? cannot : "can do everything", "stop", stop, NULL);
        if (!hello->privileged)
                log_line(LOG_WARN, "running without root is weaker: all sandboxes share one host uid; memory and cpu "
                                   "limits need cgroups and are not enforced; commands share the agent's uid", NULL);
}

static int run(struct server *s, int argc, char **argv, struct err *e)
{
        struct probe_report report;
        struct keeper_reply hello;
        int sock;
        int r = setup_state(&s->setup, &s->config, e);
        if (r < 0)
                return r;
        probe_all(s->config.state_dir, &report);
        _cleanup_free_ char *cannot = probe_summary(&report);
        r = setup_images(&s->setup, &s->config, e);
        if (r == 0)
                r = setup_keeper(&s->setup, &s->config, argc, argv, &sock, e);
        if (r < 0)
                return r;
        (void)uv_loop_init(&s->loop);
        r = engine_new(&s->loop, sock, &s->engine, &hello, e);
        if (r == 0)
                r = store_open(s->setup.store_path, &s->store, e);
        if (r == 0)
                r = start_boxes(s, e);
        if (r == 0)
                r = start_http(s, e);
        if (r < 0)
                return r;
        engine_on_lost(s->engine, on_keeper_lost, s);
        watch_signals(s);
        /* jansson seeds its hash tables from a file that will be out of reach, or else from the
         * clock, which strangers can guess: they choose the keys. */
        size_t seed;
        if (getrandom(&seed, sizeof seed, 0) == sizeof seed)
                json_object_seed(seed | 1);
        r = lockdown_server(s->config.state_dir, e);
        if (r < 0)
                return r;
        boxes_fill_pool(&s->boxes);
        say_started(s, &hello, cannot);
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(&s->loop);
        return 0;
}

/* argv[0] is "serve"; the word before it is the program's. */
static int seal(int argc, char **argv)
{
#ifdef CLOCHE_SANITIZE /* reports look their symbols up in the program's file */
        (void)argc;
        (void)argv;
        return 0;
#else
        int r = sealed_exec("cloche", argc + 1, argv - 1);
        (void)prctl(PR_SET_NAME, "cloche"); /* after it the kernel's idea of a name is a number */
        return r;
#endif
}

int serve_main(int argc, char **argv)
{
        static struct server s; /* large, and there is one */
        struct err e = { 0 };
        int sealed = seal(argc, argv);
        config_init(&s.config);
        int r = config_load(&s.config, argc, argv, &e);
        if (r == 0 && s.config.help) {
                config_usage(stdout);
                config_free(&s.config);
                return 0;
        }
        if (r == 0 && s.config.print_config) {
                config_print(&s.config, stdout);
                config_free(&s.config);
                return 0;
        }
        if (r == 0) {
                struct sigaction ignore = { .sa_handler = SIG_IGN };
                (void)sigaction(SIGPIPE, &ignore, NULL);
                log_setup((enum log_level)s.config.log_level, s.config.log_format == LOG_FORMAT_JSON, "cloche");
                if (sealed < 0)
                        log_line(LOG_WARN, "commands can run this program: no sealed copy of it can be made", "error",
                                 strerror(-sealed), NULL);
                r = run(&s, argc, argv, &e);
        }
        if (r < 0)
                fprintf(stderr, "cloche: %s\n", e.msg[0] ? e.msg : strerror(-r));
        setup_free(&s.setup);
        config_free(&s.config);
        return r < 0 ? 1 : s.exit_code;
}
