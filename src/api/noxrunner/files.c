/* POST …/files/upload and GET …/files/download: bytes pass through in pieces; a slow side
 * slows the other, and nothing is ever held but what is between two sockets. The client's
 * side is timed by http; the sandbox's side here: an agent or a worker that was stopped
 * would otherwise hold its client for ever. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/noxrunner/nox.h"
#include "base/json_write.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/link.h"

/* How much may wait for a slow side before the other is told to stop. */
#define HIGH_WATER (512 * 1024)

struct transfer {
        struct api *api;
        struct http_req *req; /* NULL: the client has left */
        struct box *box;
        struct link *link;
        const char *path;
        uv_timer_t stall;
        uint64_t moved_at;          /* loop time of the sandbox's last sign of life */
        bool upload, ended, queued; /* upload: all was sent; some of it waits for the sandbox */
        bool held;                  /* download: the sandbox waits for the client */
};

static void stall_closed(uv_handle_t *h)
{
        free(h->data);
}

static void transfer_free(struct transfer *t)
{
        if (t->link)
                link_close(t->link);
        if (t->box)
                box_unref(t->box);
        uv_close((uv_handle_t *)&t->stall, stall_closed);
}

static void moved(struct transfer *t)
{
        t->moved_at = uv_now(t->api->loop);
}

static void on_gone(struct http_req *req, void *user)
{
        (void)user;
        struct transfer *t = http_user(req);
        t->req = NULL;
        if (t->link)
                transfer_free(t); /* the worker sees its connection end without END */
}

/* When it can no longer be said as a status, the connection is cut: half an archive must
 * not look like a whole one. */
static void refuse(struct transfer *t, int status, const char *msg)
{
        struct http_req *req = t->req;
        transfer_free(t);
        if (http_started(req))
                http_abort(req);
        else
                api_error(req, status, "%s", msg);
}

static void on_fail(struct transfer *t, struct str payload)
{
        struct fail_frame f;
        frame_parse_fail(payload, &f);
        /* A destination that cannot be made is the asker's mistake, not a missing sandbox. */
        int status = t->upload && f.code == ENOENT ? 400 : api_status_of(-(int)f.code, f.blame);
        refuse(t, status, f.msg);
}

static void on_end(struct link *l, int code, void *user)
{
        (void)l;
        (void)code;
        struct transfer *t = user;
        t->link = NULL;
        refuse(t, 500, "the sandbox was deleted, expired or lost during the transfer");
}

static void on_stall(uv_timer_t *timer)
{
        struct transfer *t = timer->data;
        uint64_t limit = t->api->config->stall_seconds * 1000, now = uv_now(t->api->loop);
        bool owes = t->upload ? t->ended || t->queued : !t->held;
        if (!owes)
                t->moved_at = now;
        if (now - t->moved_at >= limit)
                refuse(t, 500, "the sandbox does not answer");
        else
                (void)uv_timer_start(timer, on_stall, t->moved_at + limit - now, 0);
}

/* --- upload -------------------------------------------------------------------------- */

static bool parse_done(struct str payload, uint64_t *ret_count, uint64_t *ret_skipped)
{
        enum field tag;
        struct str v;
        int r;
        while ((r = field_next(&payload, &tag, &v)) > 0) {
                uint64_t *at = tag == FIELD_COUNT ? ret_count : tag == FIELD_SKIPPED_COUNT ? ret_skipped : NULL;
                if (at && !field_u64(v, at))
                        return false;
        }
        return r == 0 && *ret_count <= INT64_MAX && *ret_skipped <= INT64_MAX;
}

static void on_done(struct transfer *t, struct str payload)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct json j = { .b = &b };
        uint64_t count = 0, skipped = 0;
        unsigned named = 0;
        enum field tag;
        struct str v;
        struct http_req *req = t->req;
        /* Done with what it has not been sent yet: nobody knows what it has unpacked. */
        if (!t->ended || !parse_done(payload, &count, &skipped)) {
                refuse(t, 500, "the worker's answer makes no sense");
                return;
        }
        json_open(&j, '{');
        json_kv_int(&j, "uploaded", (int64_t)count);
        json_kv_int(&j, "skippedCount", (int64_t)skipped);
        json_key(&j, "skipped");
        json_open(&j, '[');
        while (field_next(&payload, &tag, &v) > 0)
                if (tag == FIELD_SKIPPED && named++ < LIMIT_SKIPPED_NAMED)
                        json_str(&j, v.p, v.n);
        json_close(&j, ']');
        json_close(&j, '}');
        transfer_free(t);
        http_reply_buf(req, 200, "application/json", &b);
}

static void on_upload_frame(struct link *l, const struct frame *f, void *user)
{
        (void)l;
        struct transfer *t = user;
        if (f->type == FRAME_DONE)
                on_done(t, f->payload);
        else if (f->type == FRAME_FAIL)
                on_fail(t, f->payload);
        else
                refuse(t, 500, "the worker's answer makes no sense");
}

static void on_upload_drain(struct link *l, void *user)
{
        (void)l;
        struct transfer *t = user;
        t->queued = false;
        http_resume_body(t->req);
}

/* Not only when all is taken: a queue that is filled as fast as it empties is never empty. */
static void on_upload_moved(struct link *l, void *user)
{
        (void)l;
        moved(user);
}

static void on_piece(struct http_req *req, const char *p, size_t n, void *user)
{
        (void)user;
        struct transfer *t = http_user(req);
        if (!t->queued)
                moved(t);
        if (!p) {
                t->ended = true;
                (void)link_send(t->link, FRAME_END, NULL, 0);
                return;
        }
        while (n) {
                size_t take = n < FRAME_DATA_BYTES ? n : FRAME_DATA_BYTES;
                size_t waits = link_send(t->link, FRAME_DATA, p, take);
                t->queued = waits > 0;
                if (waits > HIGH_WATER)
                        http_pause_body(req);
                p += take;
                n -= take;
        }
}

static const struct link_handlers upload_handlers = { on_upload_frame, on_end, on_upload_drain, on_upload_moved };

/* --- download ------------------------------------------------------------------------- */

static void on_download_drain(struct http_req *req, void *user)
{
        (void)user;
        struct transfer *t = http_user(req);
        t->held = false;
        moved(t);
        if (t->link)
                link_resume(t->link);
}

static void start_answer(struct transfer *t)
{
        if (http_started(t->req))
                return;
        http_start(t->req, 200, "application/x-tar");
        http_on_drain(t->req, on_download_drain);
}

static void log_skipped(const struct transfer *t, struct str payload)
{
        enum field tag;
        struct str v;
        unsigned named = 0;
        while (field_next(&payload, &tag, &v) > 0)
                /* The worker names no more either, unless it was taken over: a frame has room
                 * for 700,000 lines of our log. */
                if (tag == FIELD_SKIPPED && named++ < LIMIT_SKIPPED_NAMED) {
                        char what[256];
                        (void)snprintf(what, sizeof what, "%.*s", (int)(v.n < 250 ? v.n : 250), v.p);
                        log_line(LOG_INFO, "left out of a download", "id", t->box->id, "what", what, NULL);
                }
}

static void on_download_frame(struct link *l, const struct frame *f, void *user)
{
        struct transfer *t = user;
        switch (f->type) {
        case FRAME_DATA:
                moved(t);
                start_answer(t);
                if (http_write(t->req, f->payload.p, f->payload.n) > HIGH_WATER) {
                        t->held = true;
                        link_pause(l);
                }
                return;
        case FRAME_END: {
                struct http_req *req = t->req;
                start_answer(t);
                log_skipped(t, f->payload);
                transfer_free(t);
                http_end(req);
                return;
        }
        case FRAME_FAIL:
                on_fail(t, f->payload);
                return;
        default:
                refuse(t, 500, "the worker's answer makes no sense");
        }
}

static const struct link_handlers download_handlers = { on_download_frame, on_end, NULL, NULL };

/* --- both ------------------------------------------------------------------------------ */

static void on_box(struct box *b, int code, const char *msg, void *user)
{
        struct transfer *t = user;
        struct err e = { 0 };
        struct buf frame = { 0 };
        if (!t->req) {
                transfer_free(t);
                return;
        }
        if (!b) {
                refuse(t, api_status_of(code, ERR_HOST), msg);
                return;
        }
        t->box = box_ref(b);
        size_t mark = frame_begin(&frame, t->upload ? FRAME_UNTAR : FRAME_TAR);
        field_add_str(&frame, FIELD_PATH, t->path);
        field_add_u64(&frame, FIELD_MAX_BYTES, t->api->config->unpacked_bytes);
        field_add_u64(&frame, FIELD_MAX_MEMBERS, t->api->config->upload_members);
        frame_finish(&frame, mark);
        int r = link_open(t->api->loop, b->name, &frame, t->upload ? &upload_handlers : &download_handlers, t,
                          &t->link, &e);
        buf_free(&frame);
        if (r < 0) {
                t->link = NULL;
                refuse(t, 503, e.msg);
                return;
        }
        moved(t);
        (void)uv_timer_start(&t->stall, on_stall, t->api->config->stall_seconds * 1000, 0);
        if (t->upload)
                http_stream_body(t->req, t->api->config->upload_bytes, on_piece);
}

static void start(struct call *c, bool upload)
{
        const char *path = nox_path(c->req, upload ? "dest" : "src");
        if (!path)
                return;
        struct transfer *t = calloc(1, sizeof *t);
        if (!t) {
                api_error(c->req, 500, "no memory");
                return;
        }
        *t = (struct transfer){ .api = c->api, .req = c->req, .path = path, .upload = upload };
        t->stall.data = t;
        (void)uv_timer_init(c->api->loop, &t->stall);
        http_set_user(c->req, t);
        http_on_gone(c->req, on_gone);
        boxes_use(c->api->boxes, c->params[0], on_box, t);
}

void nox_upload(struct call *c)
{
        start(c, true);
}

void nox_download(struct call *c)
{
        start(c, false);
}
