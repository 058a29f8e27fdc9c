#include "os/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* What the copy finds; runs in it. */
static int look(int argc, char **argv)
{
        struct stat st;
        char self[256];
        CHECK_INT(sealed_exec("again", argc, argv), 0); /* no second time */
        CHECK_STR(argv[0], "copied");
        CHECK_INT(argc, 3);
        CHECK_STR(argv[2], "an argument");
        CHECK_STR(getenv("SEALED_TEST"), "kept");
        CHECK(stat("/proc/self/exe", &st) == 0 && (st.st_mode & 07777) == 0500 && st.st_uid == geteuid());
        CHECK(open("/proc/self/exe", O_WRONLY) < 0 && (errno == ETXTBSY || errno == EPERM || errno == EACCES));
        CHECK(truncate("/proc/self/exe", 0) < 0);
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        self[n > 0 ? n : 0] = '\0';
        CHECK(strncmp(self, "/memfd:copied", 13) == 0); /* no path of the host */
        CHECK(fcntl(3, F_GETFD) < 0);                    /* nothing is left open */
        return check_failures ? 1 : 0;
}

static void test_copy(void)
{
        char name[] = "test_sealed", mark[] = "--copy", word[] = "an argument";
        char *argv[] = { name, mark, word, NULL };
        int status = -1;
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                (void)setenv("SEALED_TEST", "kept", 1);
                (void)close(3);
                CHECK_INT(sealed_exec("copied", 3, argv), 0);
                _exit(9); /* never: it is another program now, or it failed */
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_INT(status, 0);
}

int main(int argc, char **argv)
{
        if (argc > 1 && strcmp(argv[1], "--copy") == 0)
                return look(argc, argv);
        RUN(test_copy);
        return check_done();
}
