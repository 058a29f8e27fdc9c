#include <errno.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "check.h"
#include "os/sys.h"

static char dir[] = "/tmp/cloche-test-file-XXXXXX";
static int dfd = -1;

static void test_write_and_read(void)
{
        char text[64];
        _cleanup_close_ int fd = openat(dfd, "f", O_CREAT | O_WRONLY, 0600);
        CHECK_INT(file_write(dfd, "f", "hello\n"), 0);
        CHECK_INT(file_read(dfd, "f", text, sizeof text), 6);
        CHECK_STR(text, "hello\n");
        CHECK_INT(file_read(dfd, "f", text, 4), 3); /* cut, terminated */
        CHECK_STR(text, "hel");
        CHECK_INT(file_read(dfd, "f", text, 1), 0);
        CHECK_STR(text, "");
}

static void test_errors(void)
{
        char text[8] = "kept";
        CHECK_INT(file_write(dfd, "none", "x"), -ENOENT); /* never makes a file */
        CHECK_INT(file_read(dfd, "none", text, sizeof text), -ENOENT);
        CHECK_STR(text, "kept");
        CHECK_INT(file_write(dfd, ".", "x"), -EISDIR);
        CHECK_INT(file_read(dfd, ".", text, sizeof text), -EISDIR);
        CHECK_INT(file_write(AT_FDCWD, "/dev/full", "x"), -ENOSPC);
}

/* A write that the file answers with an error must be told: limits depend on it. */
static void test_kernel_refusal_is_told(void)
{
        CHECK(file_write(AT_FDCWD, "/proc/self/oom_score_adj", "nonsense") == -EINVAL);
}

static void test_no_fd_leaks(void)
{
        char text[16];
        int first = dup(0);
        (void)close(first);
        for (int i = 0; i < 10; i++) {
                (void)file_read(dfd, "f", text, sizeof text);
                (void)file_write(dfd, "f", "again");
                (void)file_read(dfd, ".", text, sizeof text);
        }
        int second = dup(0);
        CHECK_INT(second, first);
        (void)close(second);
}

int main(void)
{
        if (!mkdtemp(dir) || (dfd = open(dir, O_RDONLY | O_DIRECTORY)) < 0)
                return 1;
        RUN(test_write_and_read);
        RUN(test_errors);
        RUN(test_kernel_refusal_is_told);
        RUN(test_no_fd_leaks);
        (void)unlinkat(dfd, "f", 0);
        (void)rmdir(dir);
        (void)close(dfd);
        return check_done();
}
