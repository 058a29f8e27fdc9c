#include "box/box.h"

#include <fcntl.h>
#include <unistd.h>

#include "check.h"

/* The state machine as it is meant, written down a second time from its words. */
static enum box_verdict meant(enum box_state s, enum box_op op)
{
        if (s == BOX_PENDING)
                return BOX_WAIT; /* nothing is decided yet */
        if (s == BOX_RUNNING)
                return BOX_DO;
        if (s == BOX_STOPPING && (op == BOX_OP_ENSURE || op == BOX_OP_DELETE))
                return BOX_WAIT; /* a fresh one afterwards; the end of this one */
        return BOX_NONE;
}

static void test_table(void)
{
        static const char *const verdicts[BOX_VERDICT_MAX] = { "do", "wait", "none" };
        char text[1024] = "";
        size_t n = 0;
        for (int s = 0; s < BOX_STATE_MAX; s++) {
                n += (size_t)snprintf(text + n, sizeof text - n, "%s:", box_state_name((enum box_state)s));
                for (int op = 0; op < BOX_OP_MAX; op++) {
                        enum box_verdict v = box_may((enum box_state)s, (enum box_op)op);
                        CHECK_INT(v, meant((enum box_state)s, (enum box_op)op));
                        n += (size_t)snprintf(text + n, sizeof text - n, " %s=%s", box_op_name((enum box_op)op), verdicts[v]);
                }
                n += (size_t)snprintf(text + n, sizeof text - n, "\n");
        }
        CHECK_STR(text, "pending: ensure=wait use=wait touch=wait delete=wait expire=wait\n"
                        "running: ensure=do use=do touch=do delete=do expire=do\n"
                        "stopping: ensure=wait use=none touch=none delete=wait expire=none\n"
                        "gone: ensure=none use=none touch=none delete=none expire=none\n");
}

static void test_new(void)
{
        static const char id[] = "a\0b\"'\n\xff";
        struct box *b = box_new((struct str){ id, sizeof id - 1 });
        CHECK(b->id_len == sizeof id - 1 && memcmp(b->id, id, sizeof id) == 0);
        CHECK_INT(b->state, BOX_PENDING);
        CHECK_INT(b->refs, 1);
        CHECK_INT(b->pidfd, -1);
        CHECK(b->heap_at == SIZE_MAX);
        box_unref(b);
}

static void test_references(void)
{
        struct box *b = box_new(STR("x"));
        b->pidfd = open("/dev/null", O_RDONLY);
        int fd = b->pidfd;
        CHECK(box_ref(b) == b);
        box_unref(b);
        CHECK(fcntl(fd, F_GETFD) >= 0); /* still held */
        box_unref(b);
        CHECK(fcntl(fd, F_GETFD) < 0);
}

int main(void)
{
        RUN(test_table);
        RUN(test_new);
        RUN(test_references);
        return check_done();
}
