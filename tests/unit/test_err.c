#include "base/err.h"

#include <errno.h>

#include "check.h"

static void test_blame_and_code(void)
{
        struct err e = { 0 };
        CHECK_INT(fail_host(&e, -EIO, "disk %d of %s", 3, "x"), -EIO);
        CHECK_INT(e.code, -EIO);
        CHECK_INT(e.blame, ERR_HOST);
        CHECK_STR(e.msg, "disk 3 of x");
        CHECK_INT(fail_user(&e, -EINVAL, "no"), -EINVAL);
        CHECK_INT(e.code, -EINVAL);
        CHECK_INT(e.blame, ERR_USER);
        CHECK_STR(e.msg, "no");
}

static void test_without_err(void)
{
        CHECK_INT(fail_host(NULL, -EIO, "%s", "nobody listens"), -EIO);
        CHECK_INT(fail_user(NULL, -ENOENT, "%s", "nobody listens"), -ENOENT);
}

static void test_long_sentence_is_cut(void)
{
        struct err e = { 0 };
        char text[2048];
        memset(text, 'x', sizeof text);
        text[sizeof text - 1] = '\0';
        (void)fail_host(&e, -EIO, "%s", text);
        CHECK_INT(strlen(e.msg), sizeof e.msg - 1);
        /* What comes from a stranger is never a format. */
        (void)fail_user(&e, -EINVAL, "%s", "%n%s%s%s");
        CHECK_STR(e.msg, "%n%s%s%s");
}

int main(void)
{
        RUN(test_blame_and_code);
        RUN(test_without_err);
        RUN(test_long_sentence_is_cut);
        return check_done();
}
