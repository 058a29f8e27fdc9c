#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

#include "check.h"

static char text[65536];
static int saved = -1, pipe_fd[2];

static void catch_begin(void)
{
        if (pipe(pipe_fd) < 0 || (saved = dup(2)) < 0 || dup2(pipe_fd[1], 2) < 0)
                abort();
        (void)close(pipe_fd[1]);
}

static const char *catch_end(void)
{
        size_t n = 0;
        ssize_t r;
        (void)dup2(saved, 2);
        (void)close(saved);
        while ((r = read(pipe_fd[0], text + n, sizeof text - 1 - n)) > 0)
                n += (size_t)r;
        text[n] = '\0';
        (void)close(pipe_fd[0]);
        return text;
}

static unsigned count(const char *s, char c)
{
        unsigned n = 0;
        for (; *s; s++)
                n += *s == c;
        return n;
}

static const char *const attacks[] = {
        "plain",
        "two words",
        "a\n2026-01-01T00:00:00.000Z error cloche: forged",
        "a\r\nb",
        "\x1b[2J\x1b]0;title\x07",
        "\xc2\x9b" "31m",     /* U+009B, CSI to a terminal that knows C1 */
        "\xe2\x80\xa8 line separator",
        "quote\" level=error x=\"",
        "back\\slash",
        "\x7f",
        "",
        "x=y",
        "\xff\xfe",
        "%s%n%d",
};

static void test_text_lines_cannot_be_forged(void)
{
        log_setup(LOG_DEBUG, false, "t");
        for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
                catch_begin();
                log_line(LOG_INFO, "request", "path", attacks[i], "after", "me", NULL);
                const char *line = catch_end();
                size_t n = strlen(line);
                CHECK_INT(count(line, '\n'), 1);
                CHECK(n && line[n - 1] == '\n');
                for (size_t k = 0; k + 1 < n; k++)
                        CHECK(line[k] >= 0x20 && line[k] < 0x7f);
                CHECK(n > 10 && strcmp(line + n - 10, " after=me\n") == 0);
        }
        catch_begin();
        log_line(LOG_WARN, "m", "k", "quote\" level=error x=\"", "v", "plain", NULL);
        CHECK(strstr(catch_end(), " warn  t: m k=\"quote\\\" level=error x=\\\"\" v=plain\n") != NULL);
        catch_begin();
        log_line(LOG_WARN, "m", "k", "\xc2\x9b", "none", (char *)NULL, NULL);
        CHECK(strstr(catch_end(), " m k=\"\\xc2\\x9b\" none=\"\"\n") != NULL);
}

static void test_json_lines_parse(void)
{
        log_setup(LOG_DEBUG, true, "t");
        for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
                catch_begin();
                log_line(LOG_ERROR, attacks[i], "path", attacks[i], NULL);
                const char *line = catch_end();
                CHECK_INT(count(line, '\n'), 1);
                json_t *j = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
                CHECK(j != NULL);
                CHECK_STR(json_string_value(json_object_get(j, "level")), "error");
                CHECK_STR(json_string_value(json_object_get(j, "process")), "t");
                const char *v = json_string_value(json_object_get(j, "path"));
                CHECK(v && (attacks[i][0] == '\xff' || strcmp(v, attacks[i]) == 0));
                CHECK_INT(strlen(json_string_value(json_object_get(j, "time"))), 24);
                json_decref(j);
        }
}

static void test_levels(void)
{
        for (int least = 0; least < LOG_LEVEL_MAX; least++) {
                log_setup((enum log_level)least, false, "t");
                for (int l = 0; l < LOG_LEVEL_MAX; l++) {
                        catch_begin();
                        log_line((enum log_level)l, "m", NULL);
                        CHECK_INT(*catch_end() != '\0', l >= least);
                        CHECK_INT(log_enabled((enum log_level)l), l >= least);
                }
        }
        for (int l = 0; l < LOG_LEVEL_MAX; l++) {
                enum log_level back = LOG_LEVEL_MAX;
                CHECK(log_level_from(log_level_name((enum log_level)l), &back) && (int)back == l);
        }
        enum log_level untouched = LOG_WARN;
        CHECK(!log_level_from("Info", &untouched) && !log_level_from("", &untouched) && untouched == LOG_WARN);
}

static void test_keeps_errno(void)
{
        log_setup(LOG_DEBUG, false, "t");
        int keep = dup(2), full = open("/dev/full", O_WRONLY);
        if (full < 0) {
                (void)close(keep);
                SKIP("no /dev/full");
        }
        (void)dup2(full, 2);
        errno = ENOTUNIQ;
        log_line(LOG_ERROR, "nobody can read this", NULL);
        int after = errno;
        (void)dup2(keep, 2);
        (void)close(keep);
        (void)close(full);
        CHECK_INT(after, ENOTUNIQ);
}

int main(void)
{
        RUN(test_text_lines_cannot_be_forged);
        RUN(test_json_lines_parse);
        RUN(test_levels);
        RUN(test_keeps_errno);
        return check_done();
}
