#include "cli/check.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "cli/version.h"

static char path[] = "/tmp/cloche-test-check-XXXXXX";

/* Runs a verb with stdout in a file and hands back what it printed. */
static int run(int (*verb)(int, char **), char **argv, char *out, size_t size)
{
        int argc = 0;
        while (argv[argc])
                argc++;
        (void)fflush(stdout);
        int saved = fcntl(1, F_DUPFD_CLOEXEC, 3);
        int fd = open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        (void)dup2(fd, 1);
        int r = verb(argc, argv);
        (void)fflush(stdout);
        (void)dup2(saved, 1);
        ssize_t n = pread(fd, out, size - 1, 0);
        out[n > 0 ? n : 0] = '\0';
        (void)close(fd);
        (void)close(saved);
        return r;
}
#define ARGV(...) ((char *[]){ verb, __VA_ARGS__, NULL })

static char verb[] = "check", json[] = "--json", config[] = "--config", dir[] = "--state-dir",
            tmp[] = "/tmp", nowhere[] = "/proc/nowhere", unknown[] = "--nope=1", help[] = "--help";
static char out[65536];

static void test_lines(void)
{
        (void)run(check_main, ARGV(config, path, dir, tmp), out, sizeof out);
        unsigned lines = 0;
        for (char *p = strtok(out, "\n"); p; p = strtok(NULL, "\n")) {
                CHECK(strncmp(p, "ok ", 3) == 0 || strncmp(p, "weak ", 5) == 0 ||
                      strncmp(p, "missing ", 8) == 0);
                /* Whatever is not ok says how to get it; the verdict has no cure. */
                if (strncmp(p, "ok ", 3) != 0 && !strstr(p, "verdict"))
                        CHECK(strstr(p, "; to get it: "));
                lines++;
        }
        CHECK(lines >= 17);
}

static void test_json_says_the_same(void)
{
        int code = run(check_main, ARGV(json, config, path, dir, tmp), out, sizeof out);
        json_t *array = json_loads(out, 0, NULL);
        CHECK(json_is_array(array));
        size_t n = json_array_size(array);
        CHECK(n >= 17);
        for (size_t i = 0; i < n; i++) {
                json_t *row = json_array_get(array, i);
                CHECK(json_string_value(json_object_get(row, "name")));
                CHECK(json_string_value(json_object_get(row, "detail")));
                CHECK(json_string_value(json_object_get(row, "remedy")));
        }
        json_t *last = json_array_get(array, n - 1);
        CHECK_STR(json_string_value(json_object_get(last, "name")), "verdict");
        CHECK_STR(json_string_value(json_object_get(last, "status")), code ? "missing" : "ok");
        json_decref(array);
}

static void test_exit_status(void)
{
        CHECK_INT(run(check_main, ARGV(config, path, dir, nowhere), out, sizeof out), 1);
        CHECK(strstr(out, "cannot serve here"));
        CHECK(strstr(out, "missing  state directory"));
        CHECK_INT(run(check_main, ARGV(config, path, unknown), out, sizeof out), 1);
        CHECK(strstr(out, "missing  configuration     unknown flag '--nope'"));
        CHECK_INT(run(check_main, ARGV(help), out, sizeof out), 0);
        CHECK(strstr(out, "usage: cloche check"));
}

static void test_version(void)
{
        CHECK_INT(run(version_main, ARGV(NULL), out, sizeof out), 0);
        CHECK(strncmp(out, "cloche " CLOCHE_VERSION "\n", 8 + strlen(CLOCHE_VERSION)) == 0);
        CHECK(strstr(out, "libuv") && strstr(out, "sqlite") && strstr(out, "libseccomp"));
}

int main(void)
{
        int fd = mkstemp(path); /* an empty configuration, not the machine's own */
        if (fd < 0)
                return 1;
        (void)close(fd);
        RUN(test_lines);
        RUN(test_json_says_the_same);
        RUN(test_exit_status);
        RUN(test_version);
        (void)unlink(path);
        return check_done();
}
