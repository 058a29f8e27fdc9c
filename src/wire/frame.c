#include "wire/frame.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *const frame_names[] = {
        "none", "ping", "exec",   "untar",  "tar",  "data", "end",
        "hello", "stdout", "stderr", "exit", "done", "fail",
};
static_assert(ARRAY_SIZE(frame_names) == FRAME_TYPE_MAX, "a name for each frame");

static const char *const reason_names[] = { "exited", "signaled", "timeout", "oom", "killed" };
static_assert(ARRAY_SIZE(reason_names) == EXIT_REASON_MAX, "a word for each reason");

const char *frame_name(enum frame_type type)
{
        return (unsigned)type < FRAME_TYPE_MAX ? frame_names[type] : "unknown";
}

const char *exit_reason_name(enum exit_reason r)
{
        return (unsigned)r < EXIT_REASON_MAX ? reason_names[r] : "unknown";
}

/* u32 length of the payload, u8 type, three zero bytes. Host byte order: both ends run
 * on one machine or, later, on machines of one architecture. */
void frame_head(unsigned char head[FRAME_HEAD_BYTES], enum frame_type type, uint32_t n)
{
        memset(head, 0, FRAME_HEAD_BYTES);
        memcpy(head, &n, 4);
        head[4] = (unsigned char)type;
}

void frame_add(struct buf *out, enum frame_type type, const void *payload, size_t n)
{
        unsigned char head[FRAME_HEAD_BYTES];
        frame_head(head, type, (uint32_t)n);
        buf_add(out, head, sizeof head);
        buf_add(out, payload, n);
}

size_t frame_begin(struct buf *out, enum frame_type type)
{
        size_t mark = out->len;
        frame_add(out, type, NULL, 0);
        return mark;
}

void frame_finish(struct buf *out, size_t mark)
{
        if (!buf_ok(out))
                return;
        uint32_t n = (uint32_t)(out->len - mark - FRAME_HEAD_BYTES);
        memcpy(out->data + mark, &n, 4);
}

/* Length and type of a head; -EPROTO when it is none. */
static int head_parse(const char *data, uint32_t *ret_n, enum frame_type *ret_type)
{
        memcpy(ret_n, data, 4);
        unsigned char type = (unsigned char)data[4];
        if (*ret_n > FRAME_MAX_PAYLOAD || type == FRAME_NONE || type >= FRAME_TYPE_MAX ||
            data[5] || data[6] || data[7])
                return -EPROTO;
        *ret_type = (enum frame_type)type;
        return 0;
}

int frame_take(const char *data, size_t n, struct frame *ret, size_t *ret_used)
{
        uint32_t len;
        enum frame_type type;
        if (n < FRAME_HEAD_BYTES)
                return 0;
        int r = head_parse(data, &len, &type);
        if (r < 0)
                return r;
        if (n - FRAME_HEAD_BYTES < len)
                return 0;
        *ret = (struct frame){ type, { data + FRAME_HEAD_BYTES, len } };
        *ret_used = FRAME_HEAD_BYTES + len;
        return 1;
}

static int write_all(int fd, struct iovec *iov, int count)
{
        while (count) {
                ssize_t w = writev(fd, iov, count);
                if (w < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                size_t left = (size_t)w;
                while (count && left >= iov->iov_len) {
                        left -= iov->iov_len;
                        iov++;
                        count--;
                }
                if (count) {
                        iov->iov_base = (char *)iov->iov_base + left;
                        iov->iov_len -= left;
                }
        }
        return 0;
}

int frame_write(int fd, enum frame_type type, const void *payload, size_t n)
{
        unsigned char head[FRAME_HEAD_BYTES];
        frame_head(head, type, (uint32_t)n);
        struct iovec iov[2] = { { head, sizeof head }, { (void *)(uintptr_t)payload, n } };
        return write_all(fd, iov, n ? 2 : 1);
}

/* 1 when all n bytes came, 0 at end of stream before the first, -EPIPE in the middle. */
static int read_all(int fd, char *p, size_t n)
{
        size_t got = 0;
        while (got < n) {
                ssize_t r = read(fd, p + got, n - got);
                if (r < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (r == 0)
                        return got ? -EPIPE : 0;
                got += (size_t)r;
        }
        return 1;
}

int frame_read(int fd, struct buf *b, struct frame *ret)
{
        char head[FRAME_HEAD_BYTES];
        uint32_t n;
        enum frame_type type;
        int r = read_all(fd, head, sizeof head);
        if (r <= 0)
                return r;
        r = head_parse(head, &n, &type);
        if (r < 0)
                return r;
        b->len = 0;
        if (!buf_reserve(b, (size_t)n + 1))
                return -ENOMEM;
        r = n ? read_all(fd, b->data, n) : 1;
        if (r <= 0)
                return r < 0 ? r : -EPIPE;
        b->len = n;
        *ret = (struct frame){ type, { b->data, n } };
        return 1;
}

void field_add(struct buf *out, enum field tag, const void *p, size_t n)
{
        uint16_t t = (uint16_t)tag;
        uint32_t len = (uint32_t)n;
        buf_add(out, &t, sizeof t);
        buf_add(out, &len, sizeof len);
        buf_add(out, p, n);
}

void field_add_str(struct buf *out, enum field tag, const char *s)
{
        field_add(out, tag, s, strlen(s));
}

void field_add_u64(struct buf *out, enum field tag, uint64_t v)
{
        field_add(out, tag, &v, sizeof v);
}

int field_next(struct str *payload, enum field *ret_tag, struct str *ret_value)
{
        uint16_t tag;
        uint32_t len;
        if (payload->n == 0)
                return 0;
        if (payload->n < sizeof tag + sizeof len)
                return -EPROTO;
        memcpy(&tag, payload->p, sizeof tag);
        memcpy(&len, payload->p + sizeof tag, sizeof len);
        size_t left = payload->n - sizeof tag - sizeof len;
        if (len > left || tag == FIELD_NONE)
                return -EPROTO;
        *ret_tag = tag < FIELD_MAX ? (enum field)tag : FIELD_MAX;
        *ret_value = (struct str){ payload->p + sizeof tag + sizeof len, len };
        payload->p = ret_value->p + len;
        payload->n = left - len;
        return 1;
}

bool field_u64(struct str value, uint64_t *ret)
{
        if (value.n != sizeof *ret)
                return false;
        memcpy(ret, value.p, sizeof *ret);
        return true;
}

void frame_parse_fail(struct str payload, struct fail_frame *ret)
{
        enum field tag;
        struct str v;
        uint64_t blame = ERR_HOST;
        *ret = (struct fail_frame){ .code = EIO, .msg = "the agent failed" };
        while (field_next(&payload, &tag, &v) > 0) {
                if (tag == FIELD_CODE)
                        (void)field_u64(v, &ret->code);
                else if (tag == FIELD_BLAME)
                        (void)field_u64(v, &blame);
                else if (tag == FIELD_MESSAGE)
                        (void)snprintf(ret->msg, sizeof ret->msg, "%.*s", (int)(v.n < 500 ? v.n : 500), v.p);
        }
        ret->blame = blame == ERR_USER ? ERR_USER : ERR_HOST;
        if (ret->code > 4095) /* no errno: an agent that was taken over may say anything */
                ret->code = EIO;
}
