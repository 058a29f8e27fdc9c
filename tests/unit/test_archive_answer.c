/* What a transfer says at its end, read back as the server does it. */
#include "agent/archive_answer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/limits.h"
#include "check.h"

static int sv[2];
static struct buf in;
static uint64_t count, skipped_count;
static struct str lines[LIMIT_SKIPPED_NAMED + 10];
static size_t named;

/* Reads one frame into the variables above. */
static enum frame_type hear(void)
{
        struct frame f = { 0 };
        enum field tag;
        struct str v;
        int r;
        count = skipped_count = ~0ull;
        named = 0;
        if (frame_read(sv[0], &in, &f) != 1)
                return FRAME_NONE;
        while ((r = field_next(&f.payload, &tag, &v)) > 0) {
                if (tag == FIELD_COUNT)
                        CHECK(field_u64(v, &count));
                else if (tag == FIELD_SKIPPED_COUNT)
                        CHECK(field_u64(v, &skipped_count));
                else if (tag == FIELD_SKIPPED && named < ARRAY_SIZE(lines))
                        lines[named++] = v;
                else
                        CHECK(!"a field that belongs here");
        }
        CHECK_INT(r, 0);
        return f.type;
}

static void test_totals(void)
{
        struct skipped none = { 0 }, s = { 0 };
        CHECK_INT(answer_totals(sv[1], FRAME_DONE, 0, &none), 0);
        CHECK_INT(hear(), FRAME_DONE);
        CHECK_INT(count, 0);
        CHECK_INT(skipped_count, 0);
        CHECK_INT(named, 0);
        skipped_add(&s, "a\nb", "not a file");
        skipped_add(&s, "", "name too long");
        skipped_add(&s, "%s%n", "%d"); /* no format of anybody's choosing */
        CHECK_INT(answer_totals(sv[1], FRAME_END, 1ull << 40, &s), 0);
        CHECK_INT(hear(), FRAME_END);
        CHECK_INT(count, 1ll << 40);
        CHECK_INT(skipped_count, 3);
        CHECK_INT(named, 3);
        CHECK(str_eq(lines[0], "a\nb: not a file") && str_eq(lines[1], ": name too long"));
        CHECK(str_eq(lines[2], "%s%n: %d"));
        buf_free(&s.fields);
}

/* All are counted, the first few are named: an archive has two million members. */
static void test_many(void)
{
        struct skipped s = { 0 };
        char name[32];
        size_t full = 0;
        for (int i = 0; i < 5000; i++) {
                (void)snprintf(name, sizeof name, "f%d", i);
                skipped_add(&s, name, "no");
                if (i == LIMIT_SKIPPED_NAMED - 1)
                        full = s.fields.len;
        }
        CHECK_INT(s.count, 5000);
        CHECK_INT(s.fields.len, full);
        CHECK_INT(answer_totals(sv[1], FRAME_DONE, 7, &s), 0);
        CHECK_INT(hear(), FRAME_DONE);
        CHECK_INT(skipped_count, 5000);
        CHECK_INT(named, LIMIT_SKIPPED_NAMED);
        CHECK(str_eq(lines[0], "f0: no"));
        (void)snprintf(name, sizeof name, "f%d: no", LIMIT_SKIPPED_NAMED - 1);
        CHECK(str_eq(lines[LIMIT_SKIPPED_NAMED - 1], name));
        buf_free(&s.fields);
}

static void test_long_names(void)
{
        for (size_t n = 255; n < 259; n++) {
                struct skipped s = { 0 };
                _cleanup_free_ char *name = malloc(n + 1); /* exact, for ASan */
                char wanted[300];
                memset(name, 'n', n);
                name[n] = '\0';
                (void)snprintf(wanted, sizeof wanted, "%.256s%s: why", name, n > 256 ? "…" : "");
                skipped_add(&s, name, "why");
                CHECK_INT(answer_totals(sv[1], FRAME_DONE, 0, &s), 0);
                CHECK_INT(hear(), FRAME_DONE);
                CHECK(named == 1 && str_eq(lines[0], wanted));
                buf_free(&s.fields);
        }
}

static void test_fail(void)
{
        struct err e = { 0 };
        struct fail_frame got;
        struct frame f = { 0 };
        char longest[sizeof e.msg];
        memset(longest, 'm', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        for (int user = 0; user < 2; user++) {
                (void)(user ? fail_user : fail_host)(&e, user ? -EFBIG : -EPIPE, "%s", longest);
                CHECK_INT(answer_fail(sv[1], &e), 0);
                CHECK_INT(frame_read(sv[0], &in, &f), 1);
                CHECK_INT(f.type, FRAME_FAIL);
                frame_parse_fail(f.payload, &got);
                CHECK_INT(got.code, user ? EFBIG : EPIPE);
                CHECK_INT(got.blame, user ? ERR_USER : ERR_HOST);
                CHECK_STR(got.msg, longest);
        }
}

/* Memory ended within a name: the answer has all of its parts that are whole. */
static void test_out_of_memory(void)
{
        struct skipped s = { 0 };
        skipped_add(&s, "name", "why");
        s.fields.len -= 3;
        s.fields.failed = true;
        skipped_add(&s, "other", "why");
        CHECK_INT(answer_totals(sv[1], FRAME_DONE, 1, &s), 0);
        CHECK_INT(hear(), FRAME_DONE);
        CHECK_INT(count, 1);
        CHECK_INT(skipped_count, 2);
        CHECK_INT(named, 0);
        buf_free(&s.fields);
}

static void test_nobody_there(void)
{
        struct skipped s = { 0 };
        struct err e = { .code = -EIO, .msg = "x" };
        (void)close(sv[0]);
        CHECK_INT(answer_totals(sv[1], FRAME_DONE, 1, &s), -EPIPE);
        CHECK_INT(answer_fail(sv[1], &e), -EPIPE);
        CHECK_INT(answer_fail(-1, &e), -EBADF);
}

int main(void)
{
        (void)signal(SIGPIPE, SIG_IGN);
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0 || fcntl(sv[0], F_SETFL, O_NONBLOCK) < 0)
                return 1;
        RUN(test_totals);
        RUN(test_many);
        RUN(test_long_names);
        RUN(test_fail);
        RUN(test_out_of_memory);
        RUN(test_nobody_there);
        buf_free(&in);
        (void)close(sv[1]);
        return check_done();
}
