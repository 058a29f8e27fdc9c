#include "agent/gzip.h"

#include <errno.h>
#include <isa-l/igzip_lib.h>
#include <limits.h>
#include <string.h>

/* ISA-L counts in u32 and we answer in int: one call never sees more than this. */
#define CALL_MAX ((size_t)1 << 30)

enum inflate_stage {
        STAGE_START,   /* nothing seen yet: the first byte must begin a member */
        STAGE_MEMBER,  /* inside a member */
        STAGE_BETWEEN, /* a member is complete: another, padding, or the end */
        STAGE_PADDING, /* zero bytes only from here on */
};

struct inflater {
        struct inflate_state state;
        enum inflate_stage stage;
};

struct inflater *inflater_new(void)
{
        struct inflater *z = malloc(sizeof *z);
        if (!z)
                return NULL;
        isal_inflate_init(&z->state);
        z->stage = STAGE_START;
        return z;
}

void inflater_freep(struct inflater **z)
{
        free(*z);
}

bool inflater_at_end(const struct inflater *z)
{
        return z->stage == STAGE_BETWEEN || z->stage == STAGE_PADDING;
}

/* Decides what the next byte between members is. False when it is neither a member's
 * first byte nor padding. */
static bool begin_member(struct inflater *z, unsigned char c)
{
        if (c == 0x1f && z->stage != STAGE_PADDING) {
                isal_inflate_reset(&z->state);
                z->state.crc_flag = ISAL_GZIP;
                z->stage = STAGE_MEMBER;
                return true;
        }
        if (c || z->stage == STAGE_START)
                return false;
        z->stage = STAGE_PADDING;
        return true;
}

static int inflate_some(struct inflater *z, const char **in, size_t *n, void *out, size_t cap)
{
        struct inflate_state *s = &z->state;
        size_t give = *n < CALL_MAX ? *n : CALL_MAX;
        s->next_in = (uint8_t *)(uintptr_t)*in;
        s->avail_in = (uint32_t)give;
        s->next_out = out;
        s->avail_out = (uint32_t)cap;
        int r = isal_inflate(s);
        /* The positive answers concern name buffers and dictionaries, which gzip read
         * this way never asks for. */
        if (r < 0 || r > ISAL_OUT_OVERFLOW)
                return -EBADMSG;
        *in += give - s->avail_in;
        *n -= give - s->avail_in;
        if (s->block_state == ISAL_BLOCK_FINISH)
                z->stage = STAGE_BETWEEN;
        return (int)(cap - s->avail_out);
}

int inflater_run(struct inflater *z, const char **in, size_t *n, void *out, size_t cap)
{
        if (cap > CALL_MAX)
                cap = CALL_MAX;
        for (;;) {
                if (z->stage != STAGE_MEMBER) {
                        if (!*n)
                                return 0;
                        if (!begin_member(z, (unsigned char)**in))
                                return -EBADMSG;
                        if (z->stage == STAGE_PADDING) {
                                ++*in;
                                --*n;
                                continue;
                        }
                }
                size_t before = *n;
                int got = inflate_some(z, in, n, out, cap);
                if (got)
                        return got;
                /* ISA-L keeps up to a window of output of its own, so a call may produce
                 * without consuming; one that does neither has nothing left to give. */
                if (*n == 0 && (z->stage != STAGE_MEMBER || before == 0))
                        return 0;
                if (*n == before && z->stage == STAGE_MEMBER)
                        return -EBADMSG;
        }
}

struct deflater {
        struct isal_zstream stream;
        deflater_sink sink;
        void *arg;
        size_t block_bytes;
        uint8_t level_buf[ISAL_DEF_LVL1_DEFAULT];
        uint8_t block[];
};

struct deflater *deflater_new(size_t block_bytes, deflater_sink sink, void *arg)
{
        struct deflater *z = malloc(sizeof *z + block_bytes);
        if (!z)
                return NULL;
        isal_deflate_init(&z->stream);
        z->stream.level = 1;
        z->stream.level_buf = z->level_buf;
        z->stream.level_buf_size = sizeof z->level_buf;
        z->stream.gzip_flag = IGZIP_GZIP;
        z->stream.flush = NO_FLUSH;
        z->stream.next_out = z->block;
        z->stream.avail_out = (uint32_t)block_bytes;
        z->sink = sink;
        z->arg = arg;
        z->block_bytes = block_bytes;
        return z;
}

void deflater_freep(struct deflater **z)
{
        free(*z);
}

static int hand_on(struct deflater *z)
{
        size_t n = z->block_bytes - z->stream.avail_out;
        int r = n ? z->sink(z->arg, z->block, n) : 0;
        z->stream.next_out = z->block;
        z->stream.avail_out = (uint32_t)z->block_bytes;
        return r < 0 ? r : 0;
}

int deflater_run(struct deflater *z, const void *p, size_t n)
{
        const uint8_t *in = p;
        while (n) {
                size_t give = n < CALL_MAX ? n : CALL_MAX;
                z->stream.next_in = (uint8_t *)(uintptr_t)in;
                z->stream.avail_in = (uint32_t)give;
                if (isal_deflate(&z->stream) != COMP_OK)
                        return -EIO;
                in += give - z->stream.avail_in;
                n -= give - z->stream.avail_in;
                if (z->stream.avail_out == 0) {
                        int r = hand_on(z);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

int deflater_finish(struct deflater *z)
{
        z->stream.avail_in = 0;
        z->stream.end_of_stream = 1;
        do {
                if (isal_deflate(&z->stream) != COMP_OK)
                        return -EIO;
                if (z->stream.internal_state.state == ZSTATE_END || z->stream.avail_out == 0) {
                        int r = hand_on(z);
                        if (r < 0)
                                return r;
                }
        } while (z->stream.internal_state.state != ZSTATE_END);
        return 0;
}
