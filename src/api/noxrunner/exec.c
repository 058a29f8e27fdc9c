/* POST …/exec: from JSON to an EXEC frame, and from the agent's frames to JSON.
 *
 * A client whose own timeout equals the command's would give up while we answer (the
 * real client's default is 30 s for both), and proxies cut quiet connections. So an exec
 * that takes longer than heartbeat_seconds gets its status line at once and white space
 * before its JSON from then on; everything that could make it anything but a 200 has been
 * checked by then. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "api/noxrunner/nox.h"
#include "base/json_write.h"
#include "base/limits.h"
#include "base/now.h"
#include "engine/link.h"

#define TIMEOUT_CODE 124 /* what the agent says at a deadline, too */

struct exec_call {
        struct api *api;
        struct http_req *req; /* NULL: the client has left */
        struct box *box;
        struct link *link;
        struct buf frame; /* the EXEC frame until it is sent */
        struct buf out[2];
        uint64_t timeout_s;
        uv_timer_t *beat;
        uint64_t started;
        bool rescued;
        bool ended; /* the agent has said its last word */
};

struct exec_end {
        uint64_t code, signal, reason, duration_ns, total[2];
};

static void beat_closed(uv_handle_t *h)
{
        free(h);
}

static void exec_call_free(struct exec_call *x)
{
        if (x->beat)
                uv_close((uv_handle_t *)x->beat, beat_closed);
        if (x->link)
                (x->ended ? link_done : link_close)(x->link);
        if (x->box) {
                x->box->execs--;
                box_unref(x->box);
        }
        buf_free(&x->frame);
        buf_free(&x->out[0]);
        buf_free(&x->out[1]);
        free(x);
}

static void on_gone(struct http_req *req, void *user)
{
        (void)user;
        struct exec_call *x = http_user(req);
        x->req = NULL;
        /* Closing the link makes the agent end the command: nobody waits for it. Before
         * there is a link, boxes_use still holds x and frees it in its callback. */
        if (x->link)
                exec_call_free(x);
}

/* --- the answer --------------------------------------------------------------------- */

static void add_stderr_note(struct exec_call *x, const struct exec_end *end)
{
        struct buf *e = &x->out[1];
        if (end->reason == EXIT_TIMEOUT) {
                if (e->len && e->data[e->len - 1] != '\n')
                        buf_addc(e, '\n');
                buf_addf(e, "Command timed out after %llu seconds\n", (unsigned long long)x->timeout_s);
        }
}

static void write_json(struct exec_call *x, const struct exec_end *end, struct buf *b)
{
        struct json j = { .b = b };
        json_open(&j, '{');
        json_kv_int(&j, "exitCode", (int64_t)end->code);
        json_key(&j, "stdout");
        json_str(&j, x->out[0].data, x->out[0].len);
        json_key(&j, "stderr");
        json_str(&j, x->out[1].data, x->out[1].len);
        json_kv_int(&j, "durationMs", (int64_t)((end->duration_ns + 500000) / 1000000));
        json_kv(&j, "reason", exit_reason_name((enum exit_reason)end->reason));
        json_kv_int(&j, "signal", (int64_t)end->signal);
        json_kv_bool(&j, "stdoutTruncated", end->total[0] > x->api->config->output_bytes);
        json_kv_bool(&j, "stderrTruncated", end->total[1] > x->api->config->output_bytes);
        json_close(&j, '}');
}

static void answer(struct exec_call *x, const struct exec_end *end)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct http_req *req = x->req;
        add_stderr_note(x, end);
        write_json(x, end, &b);
        bool ok = buf_ok(&b) && buf_ok(&x->out[0]) && buf_ok(&x->out[1]);
        exec_call_free(x);
        if (http_started(req)) {
                if (!ok) {
                        http_abort(req);
                        return;
                }
                (void)http_write(req, b.data, b.len);
                http_end(req);
        } else if (ok)
                http_reply_buf(req, 200, "application/json", &b);
        else
                api_error(req, 500, "no memory for the command's output");
}

/* The sandbox ended under the command. That is an end of the command, too: killed. */
static void answer_killed(struct exec_call *x)
{
        struct exec_end end = { .code = 128 + SIGKILL, .signal = SIGKILL, .reason = EXIT_KILLED,
                                .duration_ns = now_ns() - x->started };
        buf_adds(&x->out[1], "The sandbox was deleted, expired or lost while the command ran\n");
        answer(x, &end);
}

static void refuse(struct exec_call *x, int status, const char *msg)
{
        struct http_req *req = x->req;
        exec_call_free(x);
        if (http_started(req))
                http_abort(req);
        else
                api_error(req, status, "%s", msg);
}

/* --- frames ------------------------------------------------------------------------- */

static bool parse_end(struct str payload, struct exec_end *ret)
{
        enum field tag;
        struct str v;
        int r;
        while ((r = field_next(&payload, &tag, &v)) > 0) {
                uint64_t *at = tag == FIELD_CODE           ? &ret->code
                               : tag == FIELD_SIGNAL       ? &ret->signal
                               : tag == FIELD_REASON       ? &ret->reason
                               : tag == FIELD_DURATION_NS  ? &ret->duration_ns
                               : tag == FIELD_STDOUT_TOTAL ? &ret->total[0]
                               : tag == FIELD_STDERR_TOTAL ? &ret->total[1]
                                                           : NULL;
                if (at && !field_u64(v, at))
                        return false;
        }
        return r == 0 && ret->code <= 255 && ret->signal <= 64 && ret->reason < EXIT_REASON_MAX;
}

static void on_fail(struct exec_call *x, struct str payload)
{
        struct fail_frame f;
        frame_parse_fail(payload, &f);
        /* ENOENT here is a missing workdir, not a missing sandbox. */
        int status = f.blame == ERR_USER && f.code != EAGAIN ? 400 : api_status_of(-(int)f.code, f.blame);
        refuse(x, status, f.msg);
}

static void on_frame(struct link *l, const struct frame *f, void *user)
{
        (void)l;
        struct exec_call *x = user;
        struct exec_end end = { 0 };
        switch (f->type) {
        case FRAME_STDOUT:
        case FRAME_STDERR: {
                struct buf *b = &x->out[f->type == FRAME_STDERR];
                /* An agent that was taken over must not grow our memory. */
                if (b->len + f->payload.n > x->api->config->output_bytes + 4096) {
                        refuse(x, 500, "the agent sent more output than was asked for");
                        return;
                }
                buf_add(b, f->payload.p, f->payload.n);
                return;
        }
        case FRAME_EXIT:
                x->ended = parse_end(f->payload, &end);
                if (x->ended)
                        answer(x, &end);
                else
                        refuse(x, 500, "the agent's answer makes no sense");
                return;
        case FRAME_FAIL:
                on_fail(x, f->payload);
                return;
        default:
                refuse(x, 500, "the agent's answer makes no sense");
        }
}

static void on_end(struct link *l, int code, void *user)
{
        (void)l;
        (void)code;
        struct exec_call *x = user;
        x->link = NULL; /* it closes itself */
        answer_killed(x);
}

static const struct link_handlers handlers = { on_frame, on_end, NULL, NULL };

/* The agent enforces the deadline. This is for an agent that is held up (see spawn.c): well
 * past the deadline every command of the sandbox is ended from outside, which frees it. */
static void rescue(struct exec_call *x)
{
        x->rescued = true;
        if (x->box->state == BOX_RUNNING)
                engine_kill_commands(x->api->boxes->engine, x->box->slot);
}

/* Its commands are ended by now; should it ever go on, it finds its asker gone. */
static void give_up(struct exec_call *x)
{
        struct exec_end end = { .code = TIMEOUT_CODE, .reason = EXIT_TIMEOUT,
                                .duration_ns = now_ns() - x->started };
        buf_adds(&x->out[1], "The sandbox does not answer\n");
        answer(x, &end);
}

static void on_beat(uv_timer_t *t);

/* When the agent is next to be helped, then to be given up. */
static uint64_t next_step(const struct exec_call *x)
{
        return x->started + (x->timeout_s + (x->rescued ? EXEC_GIVE_UP_SECONDS : EXEC_RESCUE_SECONDS)) * NS_PER_SEC;
}

static void arm_beat(struct exec_call *x)
{
        uint64_t now = now_ns(), step = next_step(x), ms = x->api->config->heartbeat_seconds * 1000;
        uint64_t left = step > now ? (step - now) / NS_PER_MS + 1 : 1;
        (void)uv_timer_start(x->beat, on_beat, left < ms ? left : ms, 0);
}

static void on_beat(uv_timer_t *t)
{
        struct exec_call *x = t->data;
        if (now_ns() >= next_step(x)) {
                if (x->rescued) {
                        give_up(x);
                        return;
                }
                rescue(x);
        }
        arm_beat(x);
        if (!http_started(x->req))
                http_start(x->req, 200, "application/json");
        (void)http_write(x->req, " ", 1);
}

static void start_beat(struct exec_call *x)
{
        x->started = now_ns();
        if (!(x->beat = malloc(sizeof *x->beat)))
                return;
        x->beat->data = x;
        (void)uv_timer_init(x->api->loop, x->beat);
        arm_beat(x);
}

static void on_box(struct box *b, int code, const char *msg, void *user)
{
        struct exec_call *x = user;
        struct err e = { 0 };
        if (!x->req) {
                exec_call_free(x);
                return;
        }
        if (!b) {
                refuse(x, api_status_of(code, ERR_HOST), msg);
                return;
        }
        if (b->execs >= x->api->config->execs_per_sandbox) {
                refuse(x, 503, "as many commands as allowed (execs_per_sandbox) are running in this sandbox");
                return;
        }
        x->box = box_ref(b);
        b->execs++;
        if (link_open(x->api->loop, b->name, &x->frame, &handlers, x, &x->link, &e) < 0) {
                x->link = NULL;
                refuse(x, 503, e.msg);
                return;
        }
        start_beat(x);
}

/* --- the request ----------------------------------------------------------------------- */

static int add_args(json_t *cmd, struct buf *out, size_t *total, struct err *e)
{
        size_t i;
        json_t *v;
        if (!json_is_array(cmd) || json_array_size(cmd) == 0)
                return fail_user(e, -EINVAL, "cmd must be an array of at least one string");
        if (json_array_size(cmd) > LIMIT_ARGV_COUNT)
                return fail_user(e, -E2BIG, "cmd has more than %d entries", LIMIT_ARGV_COUNT);
        json_array_foreach(cmd, i, v) {
                if (!json_is_string(v))
                        return fail_user(e, -EINVAL, "cmd[%zu] must be a string", i);
                if (i == 0 && json_string_length(v) == 0)
                        return fail_user(e, -EINVAL, "cmd[0] must not be empty");
                if (json_string_length(v) > LIMIT_ARG_BYTES)
                        return fail_user(e, -E2BIG, "cmd[%zu] is longer than %d bytes", i, LIMIT_ARG_BYTES);
                *total += json_string_length(v) + 9;
                field_add(out, FIELD_ARG, json_string_value(v), json_string_length(v));
        }
        return 0;
}

static int add_env(json_t *env, struct buf *out, size_t *total, struct err *e)
{
        const char *key;
        json_t *v;
        if (!env || json_is_null(env))
                return 0;
        if (!json_is_object(env))
                return fail_user(e, -EINVAL, "env must be an object of strings");
        if (json_object_size(env) > LIMIT_ENV_COUNT)
                return fail_user(e, -E2BIG, "env has more than %d entries", LIMIT_ENV_COUNT);
        json_object_foreach(env, key, v) {
                size_t klen = strlen(key);
                if (!json_is_string(v))
                        return fail_user(e, -EINVAL, "env values must be strings (%.100s is not)", key);
                if (!klen || strchr(key, '='))
                        return fail_user(e, -EINVAL, "env names must not be empty or hold '='");
                size_t n = klen + 1 + json_string_length(v);
                if (n > LIMIT_ARG_BYTES)
                        return fail_user(e, -E2BIG, "env %.100s is longer than %d bytes", key, LIMIT_ARG_BYTES);
                *total += n + 9;
                _cleanup_buf_ struct buf pair = { 0 };
                buf_addf(&pair, "%s=%s", key, json_string_value(v));
                if (!buf_ok(&pair))
                        return fail_host(e, -ENOMEM, "no memory");
                field_add(out, FIELD_ENV, pair.data, pair.len);
        }
        return 0;
}

static int get_timeout(const struct config *conf, json_t *v, uint64_t *ret, struct err *e)
{
        *ret = conf->default_exec_timeout_seconds;
        if (!v || json_is_null(v))
                return 0;
        if (!json_is_integer(v) || json_integer_value(v) <= 0 ||
            (uint64_t)json_integer_value(v) > conf->max_exec_timeout_seconds)
                return fail_user(e, -ERANGE, "timeoutSeconds must be a whole number from 1 to %llu",
                                 (unsigned long long)conf->max_exec_timeout_seconds);
        *ret = (uint64_t)json_integer_value(v);
        return 0;
}

static int parse_request(struct exec_call *x, json_t *body, struct err *e)
{
        size_t total = 0;
        json_t *workdir = json_object_get(body, "workdir");
        size_t mark = frame_begin(&x->frame, FRAME_EXEC);
        int r = add_args(json_object_get(body, "cmd"), &x->frame, &total, e);
        if (r == 0)
                r = add_env(json_object_get(body, "env"), &x->frame, &total, e);
        if (r == 0)
                r = get_timeout(x->api->config, json_object_get(body, "timeoutSeconds"), &x->timeout_s, e);
        if (r < 0)
                return r;
        if (total > LIMIT_ARGV_ENV_BYTES)
                return fail_user(e, -E2BIG, "cmd and env together are larger than %d bytes", LIMIT_ARGV_ENV_BYTES);
        if (workdir && !json_is_null(workdir)) {
                if (!json_is_string(workdir) || json_string_length(workdir) >= LIMIT_PATH_BYTES - 16)
                        return fail_user(e, -EINVAL, "workdir must be a string of at most %d bytes",
                                         LIMIT_PATH_BYTES - 17);
                field_add(&x->frame, FIELD_WORKDIR, json_string_value(workdir), json_string_length(workdir));
        }
        field_add_u64(&x->frame, FIELD_TIMEOUT_MS, x->timeout_s * 1000);
        field_add_u64(&x->frame, FIELD_OUTPUT_CAP, x->api->config->output_bytes);
        frame_finish(&x->frame, mark);
        return buf_ok(&x->frame) ? 0 : fail_host(e, -ENOMEM, "no memory");
}

static void on_body(struct http_req *req, struct str body, void *user)
{
        (void)user;
        struct call *c = http_user(req);
        json_t *j = nox_parse(req, body);
        struct exec_call *x = j ? calloc(1, sizeof *x) : NULL;
        struct err e = { 0 };
        if (!x) {
                if (j)
                        api_error(req, 500, "no memory");
                json_decref(j);
                return;
        }
        x->api = c->api;
        x->req = req;
        struct str id = c->params[0];
        http_set_user(req, x);
        http_on_gone(req, on_gone);
        int r = parse_request(x, j, &e);
        json_decref(j);
        if (r < 0)
                refuse(x, e.blame == ERR_USER ? 400 : 500, e.msg);
        else
                boxes_use(x->api->boxes, id, on_box, x);
}

void nox_exec(struct call *c)
{
        http_set_user(c->req, c);
        http_collect_body(c->req, c->api->config->json_body_bytes, on_body);
}
