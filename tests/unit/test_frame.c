#include "wire/frame.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int take(const char *p, size_t n, struct frame *f, size_t *used)
{
        char *exact = malloc(n ? n : 1); /* reading past the end is then an error */
        memcpy(exact, p, n);
        int r = frame_take(exact, n, f, used);
        if (r > 0) {
                CHECK(f->payload.p == exact + FRAME_HEAD_BYTES);
                f->payload.p = p + FRAME_HEAD_BYTES;
        }
        free(exact);
        return r;
}

static void test_partial_at_every_byte(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        size_t used = 99;
        frame_add(&b, FRAME_EXEC, "hello", 5);
        frame_add(&b, FRAME_END, NULL, 0);
        for (size_t n = 0; n < FRAME_HEAD_BYTES + 5; n++)
                CHECK_INT(take(b.data, n, &f, &used), 0);
        CHECK_INT(used, 99);
        for (size_t n = FRAME_HEAD_BYTES + 5; n <= b.len; n++) {
                CHECK_INT(take(b.data, n, &f, &used), 1);
                CHECK_INT(f.type, FRAME_EXEC);
                CHECK(str_eq(f.payload, "hello"));
                CHECK_INT(used, FRAME_HEAD_BYTES + 5);
        }
        CHECK_INT(take(b.data + used, b.len - used, &f, &used), 1);
        CHECK_INT(f.type, FRAME_END);
        CHECK_INT(f.payload.n, 0);
        CHECK_INT(used, FRAME_HEAD_BYTES);
}

static void test_hostile_heads(void)
{
        struct frame f;
        size_t used;
        for (unsigned type = 0; type < 256; type++) {
                unsigned char head[FRAME_HEAD_BYTES];
                frame_head(head, FRAME_PING, 0);
                head[4] = (unsigned char)type;
                CHECK_INT(take((char *)head, sizeof head, &f, &used),
                          type == FRAME_NONE || type >= FRAME_TYPE_MAX ? -EPROTO : 1);
        }
        for (unsigned at = 5; at < 8; at++)
                for (unsigned bit = 0; bit < 8; bit++) {
                        unsigned char head[FRAME_HEAD_BYTES];
                        frame_head(head, FRAME_PING, 0);
                        head[at] = (unsigned char)(1u << bit);
                        CHECK_INT(take((char *)head, sizeof head, &f, &used), -EPROTO);
                }
        static const uint32_t sizes[] = { FRAME_MAX_PAYLOAD + 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff8 };
        for (unsigned i = 0; i < 5; i++) {
                unsigned char head[FRAME_HEAD_BYTES];
                frame_head(head, FRAME_DATA, sizes[i]);
                CHECK_INT(take((char *)head, sizeof head, &f, &used), -EPROTO);
        }
        unsigned char head[FRAME_HEAD_BYTES];
        frame_head(head, FRAME_DATA, FRAME_MAX_PAYLOAD);
        CHECK_INT(take((char *)head, sizeof head, &f, &used), 0); /* allowed, not here yet */
}

static void test_begin_and_finish(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        size_t used;
        frame_add(&b, FRAME_PING, NULL, 0);
        size_t mark = frame_begin(&b, FRAME_EXIT);
        field_add_u64(&b, FIELD_CODE, 7);
        for (unsigned i = 0; i < 300; i++) /* the buffer moves while the frame is open */
                field_add_str(&b, FIELD_MESSAGE, "some words");
        frame_finish(&b, mark);
        CHECK_INT(frame_take(b.data + mark, b.len - mark, &f, &used), 1);
        CHECK_INT(used, b.len - mark);
        CHECK_INT(f.type, FRAME_EXIT);
        struct buf failed = { .failed = true };
        mark = frame_begin(&failed, FRAME_EXIT);
        frame_finish(&failed, mark); /* touches no memory */
        CHECK(!buf_ok(&failed));
}

static void test_fields(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        uint16_t newer = 999;
        uint32_t len = 2;
        field_add_str(&b, FIELD_ARG, "");
        field_add(&b, FIELD_ARG, "a\0b", 3);
        field_add_u64(&b, FIELD_CODE, UINT64_MAX);
        buf_add(&b, &newer, 2); /* of a newer version */
        buf_add(&b, &len, 4);
        buf_adds(&b, "zz");
        struct str left = { b.data, b.len }, v;
        enum field tag;
        uint64_t n = 0;
        CHECK(field_next(&left, &tag, &v) == 1 && tag == FIELD_ARG && v.n == 0);
        CHECK(field_next(&left, &tag, &v) == 1 && tag == FIELD_ARG && v.n == 3 && memcmp(v.p, "a\0b", 3) == 0);
        CHECK(field_next(&left, &tag, &v) == 1 && tag == FIELD_CODE && field_u64(v, &n) && n == UINT64_MAX);
        CHECK(field_next(&left, &tag, &v) == 1 && tag == FIELD_MAX && v.n == 2);
        CHECK_INT(field_next(&left, &tag, &v), 0);
        CHECK(!field_u64(STR("1234567"), &n) && !field_u64(STR("123456789"), &n) && !field_u64(STR(""), &n));
        /* cut at every byte: a whole number of fields or an error, never a read beyond */
        static const size_t whole[] = { 0, 6, 15, 29, 37 };
        for (size_t cut = 0; cut <= b.len; cut++) {
                char *exact = malloc(cut ? cut : 1);
                memcpy(exact, b.data, cut);
                left = (struct str){ exact, cut };
                int r;
                while ((r = field_next(&left, &tag, &v)) > 0)
                        CHECK(v.p >= exact && v.p + v.n <= exact + cut);
                bool complete = false;
                for (unsigned i = 0; i < 5; i++)
                        complete |= whole[i] == cut;
                CHECK_INT(r, complete ? 0 : -EPROTO);
                free(exact);
        }
}

static void test_hostile_fields(void)
{
        static const uint32_t sizes[] = { 5, 0x7fffffff, 0xffffffff, 0xfffffffa };
        for (unsigned i = 0; i < 4; i++) {
                unsigned char t[10] = { FIELD_ARG, 0 };
                memcpy(t + 2, &sizes[i], 4);
                struct str left = { (char *)t, sizeof t }, v;
                enum field tag;
                CHECK_INT(field_next(&left, &tag, &v), -EPROTO);
        }
        unsigned char none[6] = { 0 };
        struct str left = { (char *)none, sizeof none }, v;
        enum field tag;
        CHECK_INT(field_next(&left, &tag, &v), -EPROTO);
}

/* Written byte by byte by another process, read whole. */
static void test_blocking_read(void)
{
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0)
                abort();
        pid_t pid = fork();
        if (pid == 0) {
                struct buf b = { 0 };
                frame_add(&b, FRAME_DATA, "drop by drop", 12);
                frame_add(&b, FRAME_END, NULL, 0);
                for (size_t i = 0; i < b.len; i++)
                        if (write(sv[1], b.data + i, 1) != 1)
                                _exit(1);
                buf_free(&b);
                _exit(0);
        }
        (void)close(sv[1]);
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        CHECK_INT(frame_read(sv[0], &b, &f), 1);
        CHECK(f.type == FRAME_DATA && str_eq(f.payload, "drop by drop"));
        CHECK_INT(frame_read(sv[0], &b, &f), 1);
        CHECK(f.type == FRAME_END && f.payload.n == 0);
        CHECK_INT(frame_read(sv[0], &b, &f), 0);
        (void)close(sv[0]);
        (void)waitpid(pid, NULL, 0);
}

static void test_blocking_read_errors(void)
{
        static const struct { const char *bytes; size_t n; int r; } rows[] = {
                { "", 0, 0 },
                { "\1", 1, -EPIPE },
                { "\3\0\0\0\5\0\0", 7, -EPIPE },
                { "\3\0\0\0\5\0\0\0", 8, -EPIPE },
                { "\3\0\0\0\5\0\0\0ab", 10, -EPIPE },
                { "\3\0\0\0\0\0\0\0abc", 11, -EPROTO },
                { "\xff\xff\xff\xff\5\0\0\0", 8, -EPROTO },
                { "\3\0\0\0\5\0\0\0abc", 11, 1 },
        };
        for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                int sv[2];
                _cleanup_buf_ struct buf b = { 0 };
                struct frame f;
                if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0)
                        abort();
                CHECK(send(sv[1], rows[i].bytes, rows[i].n, 0) == (ssize_t)rows[i].n);
                (void)close(sv[1]);
                CHECK_INT(frame_read(sv[0], &b, &f), rows[i].r);
                (void)close(sv[0]);
        }
        CHECK_INT(frame_read(-1, &(struct buf){ 0 }, &(struct frame){ 0 }), -EBADF);
}

/* More than a pipe takes at once: the writer goes on where it was stopped. */
static void test_blocking_write(void)
{
        int p[2];
        size_t n = 1 << 20;
        char *big = malloc(n);
        for (size_t i = 0; i < n; i++)
                big[i] = (char)(i * 31 >> 3);
        if (pipe(p) < 0)
                abort();
        pid_t pid = fork();
        if (pid == 0)
                _exit(frame_write(p[1], FRAME_DATA, big, n) == 0 && frame_write(p[1], FRAME_END, NULL, 0) == 0 ? 0 : 1);
        (void)close(p[1]);
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f = { 0 };
        CHECK_INT(frame_read(p[0], &b, &f), 1);
        CHECK(f.payload.n == n && memcmp(f.payload.p, big, n) == 0);
        CHECK_INT(frame_read(p[0], &b, &f), 1);
        CHECK_INT(f.type, FRAME_END);
        int status = 1;
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
        (void)close(p[0]);
        free(big);
}

static void test_names(void)
{
        for (unsigned i = 0; i < FRAME_TYPE_MAX; i++)
                for (unsigned k = 0; k < i; k++)
                        CHECK(strcmp(frame_name((enum frame_type)i), frame_name((enum frame_type)k)) != 0);
        CHECK_STR(frame_name((enum frame_type)200), "unknown");
        CHECK_STR(frame_name(FRAME_UNTAR), "untar");
        CHECK_STR(exit_reason_name(EXIT_OOM), "oom");
        CHECK_STR(exit_reason_name((enum exit_reason)77), "unknown");
}

static void test_fail_frame(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct fail_frame f;
        frame_parse_fail((struct str){ NULL, 0 }, &f);
        CHECK(f.code == EIO && f.blame == ERR_HOST && f.msg[0]);
        field_add_u64(&b, FIELD_CODE, ENOSPC);
        field_add_u64(&b, FIELD_BLAME, ERR_USER);
        field_add_str(&b, FIELD_MESSAGE, "no room");
        frame_parse_fail((struct str){ b.data, b.len }, &f);
        CHECK(f.code == ENOSPC && f.blame == ERR_USER);
        CHECK_STR(f.msg, "no room");
        /* An agent that was taken over: no errno, no blame, a long message. */
        b.len = 0;
        char much[4000];
        memset(much, 'x', sizeof much);
        field_add_u64(&b, FIELD_CODE, UINT64_MAX);
        field_add_u64(&b, FIELD_BLAME, 99);
        field_add(&b, FIELD_MESSAGE, much, sizeof much);
        frame_parse_fail((struct str){ b.data, b.len }, &f);
        CHECK(f.code == EIO && f.blame == ERR_HOST && strlen(f.msg) == 500);
}

int main(void)
{
        RUN(test_fail_frame);
        RUN(test_partial_at_every_byte);
        RUN(test_hostile_heads);
        RUN(test_begin_and_finish);
        RUN(test_fields);
        RUN(test_hostile_fields);
        RUN(test_blocking_read);
        RUN(test_blocking_read_errors);
        RUN(test_blocking_write);
        RUN(test_names);
        return check_done();
}
