#include "agent/intake.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "wire/frame.h"

#define DRAIN_BYTES (64ull << 20)
#define DRAIN_SECONDS 10

int intake_open(struct intake *s, int conn, uint64_t total_max, struct err *e)
{
        *s = (struct intake){ .conn = conn, .total_max = total_max, .err = e };
        if (!buf_reserve(&s->frames, INTAKE_READ_BYTES))
                return fail_host(e, -ENOMEM, "out of memory");
        return 0;
}

void intake_close(struct intake *s)
{
        inflater_freep(&s->gz);
        free(s->block);
        buf_free(&s->frames);
}

static int intake_fill(struct intake *s)
{
        buf_consume(&s->frames, s->pos);
        s->pos = 0;
        if (!buf_reserve(&s->frames, INTAKE_READ_BYTES))
                return fail_host(s->err, -ENOMEM, "out of memory");
        ssize_t r;
        do
                r = read(s->conn, s->frames.data + s->frames.len, s->frames.cap - s->frames.len);
        while (r < 0 && errno == EINTR);
        if (r <= 0) {
                s->gone = true;
                return fail_host(s->err, -EPIPE, "the upload was cut off");
        }
        s->frames.len += (size_t)r;
        return 0;
}

/* Points in at the next payload: 1, 0 at END, negative. */
static int intake_frame(struct intake *s)
{
        while (!s->ended) {
                struct frame f;
                size_t used;
                int r = frame_take(s->frames.data + s->pos, s->frames.len - s->pos, &f, &used);
                if (r == 0) {
                        r = intake_fill(s);
                        if (r < 0)
                                return r;
                        continue;
                }
                if (r < 0 || (f.type != FRAME_DATA && f.type != FRAME_END))
                        return fail_host(s->err, -EPROTO, "unexpected frame in an upload");
                s->pos += used;
                s->ended = f.type == FRAME_END;
                s->in = f.payload.p;
                s->in_n = s->ended ? 0 : f.payload.n;
                if (s->in_n)
                        return 1;
        }
        return 0;
}

/* The magic decides, never a header of the request: clients send application/x-tar for
 * both. */
static int intake_start(struct intake *s)
{
        s->started = true;
        int r = intake_frame(s);
        if (r <= 0)
                return r;
        if (s->in[0] != 0x1f || (s->in_n > 1 && (unsigned char)s->in[1] != 0x8b))
                return 1;
        s->gz = inflater_new();
        s->block = malloc(INTAKE_BLOCK_BYTES);
        if (!s->gz || !s->block)
                return fail_host(s->err, -ENOMEM, "out of memory");
        return 1;
}

static ssize_t intake_plain(struct intake *s, const void **ret)
{
        int r = s->in_n ? 1 : intake_frame(s);
        if (r <= 0)
                return r;
        size_t n = s->in_n < INTAKE_BLOCK_BYTES ? s->in_n : INTAKE_BLOCK_BYTES;
        *ret = s->in;
        s->in += n;
        s->in_n -= n;
        return (ssize_t)n;
}

static ssize_t intake_gzip(struct intake *s, const void **ret)
{
        for (;;) {
                int n = inflater_run(s->gz, &s->in, &s->in_n, s->block, INTAKE_BLOCK_BYTES);
                if (n < 0)
                        return fail_user(s->err, -EINVAL, "invalid gzip data");
                *ret = s->block;
                if (n > 0)
                        return n;
                int r = intake_frame(s);
                if (r == 0 && !inflater_at_end(s->gz))
                        return fail_user(s->err, -EINVAL, "truncated gzip data");
                if (r <= 0)
                        return r;
        }
}

ssize_t intake_bytes(struct intake *s, const void **ret)
{
        if (s->failed)
                return s->failed;
        ssize_t n = s->started ? 1 : intake_start(s);
        if (n > 0)
                n = s->gz ? intake_gzip(s, ret) : intake_plain(s, ret);
        if (n > 0) {
                s->total += (uint64_t)n;
                /* A bomb need not be written to cost: skipped members and padding count. */
                if (s->total > s->total_max)
                        n = fail_user(s->err, -EFBIG, "the archive unpacks to too much");
                else if ((uint64_t)n > s->call_left)
                        n = fail_user(s->err, -EINVAL, "invalid tar archive: header too large");
                else
                        s->call_left -= (uint64_t)n;
        }
        if (n < 0)
                s->failed = (int)n;
        return n;
}

void intake_drain(struct intake *s)
{
        struct timeval limit = { .tv_sec = DRAIN_SECONDS };
        uint64_t dropped = 0;
        ssize_t n;
        (void)setsockopt(s->conn, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        while (dropped < DRAIN_BYTES &&
               (n = read(s->conn, s->frames.data, s->frames.cap)) > 0)
                dropped += (uint64_t)n;
}
