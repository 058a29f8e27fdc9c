/* Frames from a socket into one stream of bytes: however they are cut, whatever they are. */
#include "agent/intake.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "check.h"
#include "wire/frame.h"

static struct buf wire, got;
static struct err err;
static struct intake in;
static uint64_t total_max, per_call;

static void data(const void *p, size_t n)
{
        frame_add(&wire, FRAME_DATA, p, n);
}

static void end(void)
{
        frame_add(&wire, FRAME_END, NULL, 0);
}

static int collect(void *arg, const void *p, size_t n)
{
        buf_add(arg, p, n);
        return 0;
}

static void gzip(struct buf *ret, const void *p, size_t n)
{
        _cleanup_deflater_ struct deflater *z = deflater_new(65536, collect, ret);
        CHECK(deflater_run(z, p, n) == 0 && deflater_finish(z) == 0);
}

/* Bytes that do not repeat soon, so that they shrink little. */
static char *noise(size_t n)
{
        char *p = malloc(n);
        uint32_t x = 1;
        for (size_t i = 0; i < n; i++)
                p[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
        return p;
}

/* Another process sends wire, step bytes at a time, and closes. */
static pid_t sender(size_t step, int *ret_fd)
{
        int sv[2];
        CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
        (void)fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
                (void)close(sv[0]);
                for (size_t at = 0; at < wire.len;) {
                        ssize_t w = write(sv[1], wire.data + at, wire.len - at < step ? wire.len - at : step);
                        if (w <= 0)
                                break;
                        at += (size_t)w;
                }
                _exit(0);
        }
        (void)close(sv[1]);
        *ret_fd = sv[0];
        return pid;
}

/* Sends wire and takes the stream into got: what intake_bytes said last. */
static ssize_t take(size_t step)
{
        int fd;
        ssize_t n;
        const void *p = NULL;
        pid_t pid = sender(step, &fd);
        err = (struct err){ 0 };
        got.len = 0;
        CHECK_INT(intake_open(&in, fd, total_max, &err), 0);
        while (in.call_left = per_call, (n = intake_bytes(&in, &p)) > 0) {
                CHECK(n <= INTAKE_BLOCK_BYTES);
                buf_add(&got, p, (size_t)n);
        }
        CHECK_INT(intake_bytes(&in, &p), n); /* the end is the end, a failure stays one */
        CHECK_INT(err.code, n);
        (void)close(fd);
        (void)waitpid(pid, NULL, 0);
        intake_close(&in);
        return n;
}

static void begin(void)
{
        wire.len = 0;
        total_max = per_call = 1 << 30;
}

static bool got_is(const char *p, size_t n)
{
        return got.len == n && memcmp(got.data, p, n) == 0;
}

static void test_plain(void)
{
        static const size_t steps[] = { 1, 7, 8, 4096, 1 << 20 };
        for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
                begin();
                data("one ", 4);
                data(NULL, 0); /* an empty one is no end */
                data("\x1f\x8b is no magic here", 20);
                end();
                frame_add(&wire, FRAME_EXIT, "late", 4); /* nobody reads on */
                CHECK_INT(take(steps[i]), 0);
                CHECK(got_is("one \x1f\x8b is no magic here", 24));
        }
        begin();
        end();
        CHECK_INT(take(100), 0);
        CHECK_INT(got.len, 0);
}

static void test_large_frames(void)
{
        size_t n = FRAME_MAX_PAYLOAD;
        _cleanup_free_ char *p = noise(2 * n + 1);
        begin();
        data(p, n);
        data(p + n, 1);
        data(p + n + 1, n);
        end();
        CHECK_INT(take(SIZE_MAX), 0);
        CHECK(got_is(p, 2 * n + 1));
}

/* The magic may be cut, members follow each other, zeros pad. */
static void test_gzip(void)
{
        static const size_t cuts[] = { 1, 2, 1000, FRAME_DATA_BYTES };
        size_t n = 410000;
        _cleanup_free_ char *p = noise(n);
        _cleanup_buf_ struct buf z = { 0 };
        memset(p + 1000, 'a', 400000); /* more comes out of a frame than one block holds */
        gzip(&z, p, n - 5);
        gzip(&z, p + n - 5, 5);
        buf_add(&z, "\0\0\0", 3);
        for (size_t i = 0; i < ARRAY_SIZE(cuts); i++) {
                begin();
                for (size_t at = 0; at < z.len; at += cuts[i])
                        data(z.data + at, z.len - at < cuts[i] ? z.len - at : cuts[i]);
                end();
                CHECK_INT(take(1 << 16), 0);
                CHECK(got_is(p, n));
        }
}

static void test_broken_gzip(void)
{
        _cleanup_free_ char *p = noise(5000);
        _cleanup_buf_ struct buf z = { 0 };
        gzip(&z, p, 5000);
        static const size_t kept[] = { 1, 2, 9, 2500 };
        for (size_t i = 0; i < ARRAY_SIZE(kept) + 1; i++) {
                begin();
                data(z.data, i < ARRAY_SIZE(kept) ? kept[i] : z.len - 1);
                end();
                CHECK_INT(take(100000), -EINVAL);
                CHECK_STR(err.msg, "truncated gzip data");
                CHECK_INT(err.blame, ERR_USER);
                CHECK(!in.gone);
        }
        z.data[z.len - 8] ^= 1; /* the checksum */
        begin();
        data(z.data, z.len);
        end();
        CHECK_INT(take(100000), -EINVAL);
        CHECK_STR(err.msg, "invalid gzip data");
        begin();
        data("\x1f\x8b nonsense after a magic", 25);
        end();
        CHECK_INT(take(100000), -EINVAL);
        CHECK_STR(err.msg, "invalid gzip data");
}

/* Without END it is no whole upload, wherever it stops; only then has the asker left. */
static void test_cut_off(void)
{
        begin();
        data("0123456789", 10);
        end();
        struct buf whole = wire;
        for (size_t n = 0; n < whole.len; n++) {
                wire = (struct buf){ .data = whole.data, .len = n };
                CHECK_INT(take(100), -EPIPE);
                CHECK_STR(err.msg, "the upload was cut off");
                CHECK_INT(err.blame, ERR_HOST);
                CHECK(in.gone);
                CHECK_INT(got.len, n < FRAME_HEAD_BYTES + 10 ? 0 : 10);
        }
        wire = whole;
        CHECK_INT(take(100), 0);
        CHECK(!in.gone);
}

static void test_strange_frames(void)
{
        static const unsigned char heads[][FRAME_HEAD_BYTES] = {
                { 0, 0, 0, 0, FRAME_NONE },     { 0, 0, 0, 0, FRAME_TYPE_MAX }, { 0, 0, 0, 0, 255 },
                { 0, 0, 0, 0, FRAME_UNTAR },    { 4, 0, 0, 0, FRAME_FAIL },     { 0, 0, 0, 0, FRAME_END, 1 },
                { 1, 0, 64, 0, FRAME_DATA },    { 255, 255, 255, 255, FRAME_DATA },
        };
        for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
                begin();
                data("fine", 4);
                buf_add(&wire, heads[i], FRAME_HEAD_BYTES);
                buf_add(&wire, "rest", 4);
                CHECK_INT(take(100), -EPROTO);
                CHECK_STR(err.msg, "unexpected frame in an upload");
                CHECK(got_is("fine", 4) && !in.gone);
        }
}

static void test_limits(void)
{
        begin();
        total_max = 1000000;
        _cleanup_free_ char *zeros = calloc(1, 1000001);
        for (int zipped = 0; zipped < 2; zipped++)
                for (int over = 0; over < 2; over++) {
                        _cleanup_buf_ struct buf z = { 0 };
                        if (zipped)
                                gzip(&z, zeros, (size_t)(1000000 + over));
                        wire.len = 0;
                        data(zipped ? z.data : zeros, zipped ? z.len : (size_t)(1000000 + over));
                        end();
                        CHECK_INT(take(SIZE_MAX), over ? -EFBIG : 0);
                        CHECK_STR(err.msg, over ? "the archive unpacks to too much" : "");
                        CHECK(over ? got.len < 1000000 : got.len == 1000000);
                }
        /* One step of the reader may not swallow more than it was allowed. */
        begin();
        per_call = 4;
        data("1234", 4);
        data("12345", 5);
        end();
        CHECK_INT(take(100), -EINVAL);
        CHECK_STR(err.msg, "invalid tar archive: header too large");
        CHECK(got_is("1234", 4));
}

/* Everything up to the bound is dropped, so that a sender who only then reads our answer is
 * not reset; more is not: an endless one must not hold us. */
static void test_drain(void)
{
        int fd;
        static const size_t sent[] = { 3 << 20, 66 << 20 };
        for (int i = 0; i < 2; i++) {
                begin();
                (void)buf_reserve(&wire, sent[i]);
                memset(wire.data, 'x', sent[i]);
                wire.len = sent[i];
                pid_t pid = sender(1 << 20, &fd);
                CHECK_INT(intake_open(&in, fd, 1, &err), 0);
                intake_drain(&in);
                size_t rest = 0;
                static char block[65536];
                for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;)
                        rest += (size_t)n;
                size_t dropped = sent[i] - rest, slack = 1 << 20;
                CHECK(i ? dropped >= 64 << 20 && dropped < (64 << 20) + slack : rest == 0);
                intake_close(&in);
                (void)close(fd);
                (void)waitpid(pid, NULL, 0);
        }
}

int main(void)
{
        (void)signal(SIGPIPE, SIG_IGN);
        RUN(test_plain);
        RUN(test_large_frames);
        RUN(test_gzip);
        RUN(test_broken_gzip);
        RUN(test_cut_off);
        RUN(test_strange_frames);
        RUN(test_limits);
        RUN(test_drain);
        buf_free(&wire);
        buf_free(&got);
        return check_done();
}
