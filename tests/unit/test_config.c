#include "config/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/log.h"
#include "check.h"
#include "config/config_table.h"

static char dir[] = "/tmp/cloche-test-config-XXXXXX";
static char conf[128], other[128];

static void write_file(const char *path, const char *text)
{
        FILE *f = fopen(path, "we");
        if (!f || fputs(text, f) < 0 || fclose(f) != 0) {
                perror(path);
                exit(1);
        }
}

/* Loads from the file `conf` (never the machine's own) plus these flags. */
static int load(struct config *c, struct err *e, const char *text, char *const *flags)
{
        char verb[] = "serve", flag[] = "--config";
        char *argv[16] = { verb, flag, conf };
        int argc = 3;
        for (; flags && *flags; flags++)
                argv[argc++] = *flags;
        *e = (struct err){ 0 };
        write_file(conf, text);
        config_init(c);
        return config_load(c, argc, argv, e);
}
#define FLAGS(...) ((char *[]){ __VA_ARGS__, NULL })

static char *printed(const struct config *c)
{
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        config_print(c, f);
        (void)fclose(f);
        return text;
}

static void test_defaults_are_the_limits(void)
{
        struct config c;
        config_init(&c);
        CHECK_STR(c.listen, "127.0.0.1:8080");
        CHECK_STR(c.image, "host");
        CHECK_STR(c.cgroup_root, "cloche");
        CHECK(!c.image_fallback && !c.api_key && !c.api_key_file);
        CHECK_INT(c.log_level, LOG_INFO);
        CHECK_INT(c.on_exit, ON_EXIT_KEEP);
        CHECK_INT(c.default_cpu, DEFAULT_CPU_MILLIS);
        CHECK_INT(c.default_memory, DEFAULT_MEMORY_BYTES);
        CHECK_INT(c.default_storage, DEFAULT_STORAGE_BYTES);
        CHECK_INT(c.head_timeout_seconds, LIMIT_HEAD_TIMEOUT_MS / 1000);
        CHECK_INT(c.write_timeout_seconds, LIMIT_WRITE_TIMEOUT_MS / 1000);
        CHECK_INT(c.heartbeat_seconds, EXEC_HEARTBEAT_MS / 1000);
        CHECK_INT(c.max_sandboxes, LIMIT_BOXES);
        CHECK_INT(c.uid_base, 524288);
        for (size_t i = 0; i < setting_count; i++) {
                const struct setting *s = &settings[i];
                if (s->max) { /* each default lies in its own range */
                        CHECK(s->number >= s->min && s->number <= s->max);
                }
                CHECK(setting_find(str_c(s->name)) == s);
                CHECK(s->help && s->section);
        }
        config_free(&c);
}

/* "#name = value" is a default; "# words" is prose. */
static void test_shipped_file(void)
{
        char path[512], *text = NULL;
        unsigned seen[CONFIG_SETTINGS_MAX] = { 0 };
        (void)snprintf(path, sizeof path, "%.*setc/cloche.conf",
                       (int)(strlen(__FILE__) - strlen("tests/unit/test_config.c")), __FILE__);
        CHECK_INT(config_slurp(path, 1 << 20, &text, NULL), 0);
        if (!text)
                return;
        struct config c, fresh;
        struct err e;
        CHECK_INT(load(&c, &e, text, NULL), 0);
        config_init(&fresh);
        struct buf all = { 0 };
        for (char *line = text, *next; line && *line; line = next) {
                next = strchr(line, '\n');
                if (next)
                        *next++ = '\0';
                char *equals = strchr(line, '=');
                if (line[0] != '#' || line[1] < 'a' || line[1] > 'z' || !equals)
                        continue;
                struct str name = { line + 1, (size_t)(equals - line) - 2 };
                const struct setting *s = setting_find(name);
                if (!s)
                        printf("not a setting: %s\n", line);
                CHECK(s);
                if (!s)
                        continue;
                seen[s - settings]++;
                char *is = strcmp(s->name, "state_dir") == 0 ? strdup(s->text)
                                                             : setting_text(&fresh, s);
                CHECK_STR(equals[1] ? equals + 2 : "", is);
                free(is);
                buf_addf(&all, "%s\n", line + 1);
        }
        for (size_t i = 0; i < setting_count; i++) {
                if (seen[i] != 1)
                        printf("in the file %u times: %s\n", seen[i], settings[i].name);
                CHECK_INT(seen[i], 1);
        }
        config_free(&c);
        /* And with every '#' removed it is a valid file that changes nothing. */
        CHECK_INT(load(&c, &e, buf_cstr(&all), NULL), 0);
        CHECK_STR(e.msg, "");
        CHECK_INT(c.default_memory, fresh.default_memory);
        CHECK_INT(c.max_ttl_seconds, fresh.max_ttl_seconds);
        CHECK_INT(c.origins[0].source, FROM_FILE);
        config_free(&c);
        config_free(&fresh);
        buf_free(&all);
        free(text);
}

static void test_precedence(void)
{
        static const char text[] = "# first\npool_size = 1\nmax_sandboxes = 100 # why\n"
                                   "\tgrace_seconds=3\r\n";
        char flag_a[] = "--pool-size=3", flag_b[] = "--log-format", value_b[] = "json";
        struct config c;
        struct err e;
        CHECK_INT(setenv("CLOCHE_POOL_SIZE", "2", 1), 0);
        CHECK_INT(setenv("CLOCHE_MAX_SANDBOXES", "", 1), 0); /* empty: as if not set */
        CHECK_INT(setenv("CLOCHE_DEFAULT_MEMORY", "1.5Gi", 1), 0);
        CHECK_INT(setenv("CLOCHE_SERVICE_HOST", "10.0.0.1", 1), 0); /* Kubernetes' */
        CHECK_INT(load(&c, &e, text, NULL), 0);
        CHECK_INT(c.pool_size, 2);
        CHECK_INT(c.max_sandboxes, 100);
        CHECK_INT(c.grace_seconds, 3);
        CHECK_INT(c.default_memory, 3ll << 29);
        config_free(&c);

        CHECK_INT(load(&c, &e, text, FLAGS(flag_a, flag_b, value_b)), 0);
        CHECK_INT(c.pool_size, 3);
        CHECK_INT(c.log_format, LOG_FORMAT_JSON);
        char *out = printed(&c), where[200];
        CHECK(strstr(out, "# flag --pool-size\n"));
        CHECK(strstr(out, "# environment CLOCHE_DEFAULT_MEMORY\n"));
        (void)snprintf(where, sizeof where, "# file %s:3\n", conf);
        CHECK(strstr(out, where));
        CHECK(strstr(out, "listen = 127.0.0.1:8080"));
        CHECK(strstr(out, "# default\n"));
        free(out);
        config_free(&c);
        (void)unsetenv("CLOCHE_POOL_SIZE");
        (void)unsetenv("CLOCHE_MAX_SANDBOXES");
        (void)unsetenv("CLOCHE_SERVICE_HOST");
        (void)unsetenv("CLOCHE_DEFAULT_MEMORY");
}

static void test_print_reads_back(void)
{
        static const char text[] = "listen = unix:/run/x.sock\ndefault_cpu = 250m\n"
                                   "default_memory = 1G\nstate_dir = /srv/a b\nlog_level = warn\n"
                                   "image_fallback = deb\n[images]\ndeb = /srv/deb\nx:1 = deb\n";
        struct config c, again;
        struct err e;
        CHECK_INT(load(&c, &e, text, NULL), 0);
        char *first = printed(&c);
        CHECK_INT(load(&again, &e, first, NULL), 0);
        CHECK_STR(e.msg, "");
        CHECK_STR(again.state_dir, "/srv/a b");
        CHECK_STR(again.listen, "unix:/run/x.sock");
        CHECK_INT(again.default_cpu, 250);
        CHECK_INT(again.default_memory, 1000000000);
        CHECK_INT(again.log_level, LOG_WARN);
        CHECK_INT(again.image_count, 2);
        free(first);
        config_free(&c);
        config_free(&again);
}

static void test_file_errors(void)
{
        static const struct {
                const char *text, *line, *words;
        } rows[] = {
                { "pool_size = 1\nlisen = :80\n", ":2: ", "did you mean 'listen'?" },
                { "max-memory = 1Gi\n", ":1: ", "did you mean 'max_memory'?" },
                { "\n\npool_size = 1\npool_size = 1\n", ":4: ", "already set in line 3" },
                { "pool_size = many\n", ":1: ", "pool_size: 'many' is not a whole number" },
                { "pool_size = -1\n", ":1: ", "whole number" },
                { "pool_size = 1001\n", ":1: ", "from 0 to 1000" },
                { "pool_size =\n", ":1: ", "pool_size" },
                { "default_memory = 1MB\n", ":1: ", "default_memory: '1MB' is not" },
                { "default_memory = 1Mi\n", ":1: ", "from 4Mi to 64Ti" },
                { "default_cpu = 5m\n", ":1: ", "from 10m to 1024" },
                { "grace_seconds = 10s\n", ":1: ", "number of seconds" },
                { "log_level = loud\n", ":1: ", "debug, info, warn, error" },
                { "engine = docker\n", ":1: ", "embedded" },
                { "listen = \"127.0.0.1:80\"\n", ":1: ", "without quotes" },
                { "listen =\n", ":1: ", "a value is missing" },
                { "state_dir = var/lib\n", ":1: ", "not an absolute path" },
                { "cgroup_root = a/b\n", ":1: ", "is not a name" },
                { "cgroup_root = ..\n", ":1: ", "is not a name" },
                { "image = a b\n", ":1: ", "not an image name" },
                { "nonsense\n", ":1: ", "'name = value'" },
                { "= 3\n", ":1: ", "unknown setting" },
                { "[server]\n", ":1: ", "only section is [images]" },
                { "[images]\npool_size = 3\n", ":2: ", "must stand above [images]" },
                { "[images]\nx = relative/../path!\n", ":2: ", "neither an absolute path" },
                { "[images]\nx = /\n", ":2: ", "all of the host's files" },
                { "[images]\nhost = /srv\n", ":2: ", "built in" },
                { "[images]\nx = /a\nx = /b\n", ":3: ", "already named in line 2" },
                { "[images]\na = b\nb = c\nc = a\n", ":2: ", "in a circle" },
                { "[images]\na = a\n", ":2: ", "in a circle" },
                { "[images]\na = nowhere\n", ":2: ", "unknown image" },
                { "api_key = short\n", ":1: ", "at least 16" },
                { "api_key = 0123456789/abcdef\n", ":1: ", "without blanks and '/'" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct config c;
                struct err e;
                int r = load(&c, &e, rows[i].text, NULL);
                char where[160];
                (void)snprintf(where, sizeof where, "%s%s", conf, rows[i].line);
                if (r >= 0 || !strstr(e.msg, where) || !strstr(e.msg, rows[i].words))
                        printf("row %zu: %d %s\n", i, r, e.msg);
                CHECK(r < 0);
                CHECK(strstr(e.msg, where));
                CHECK(strstr(e.msg, rows[i].words));
                config_free(&c);
        }
}

static void test_whole_errors(void)
{
        static const struct {
                const char *text, *words;
        } rows[] = {
                { "default_cpu = 4\nmax_cpu = 2\n", "default_cpu (4) is larger than max_cpu (2)" },
                { "max_memory = 1Gi\n", "default_memory (2Gi) is larger than max_memory (1Gi)" },
                { "max_storage = 1Mi\n", "default_storage (1Gi)" },
                { "max_ttl_seconds = 60\n", "default_ttl_seconds (900)" },
                { "max_exec_timeout_seconds = 5\n", "default_exec_timeout_seconds (30)" },
                { "max_sandboxes = 3\n", "pool_size (4)" },
                { "image = nope\n", "the setting image names the image 'nope'" },
                { "image_fallback = nope\n", "the setting image_fallback" },
                { "api_key_file = /nonexistent/key\n", "api_key_file: cannot read" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct config c;
                struct err e;
                int r = load(&c, &e, rows[i].text, NULL);
                if (r >= 0 || !strstr(e.msg, rows[i].words))
                        printf("row %zu: %d %s\n", i, r, e.msg);
                CHECK(r < 0 && strstr(e.msg, rows[i].words));
                config_free(&c);
        }
}

static void test_flag_errors(void)
{
        static const struct {
                const char *flag, *words;
        } rows[] = {
                { "--lisen=:80", "did you mean '--listen'?" },
                { "--pool_size=3", "did you mean '--pool-size'?" },
                { "--pool-size", "needs a value" },
                { "--config", "needs a value" },
                { "--print-config=yes", "unknown flag" },
                { "--", "unknown flag" },
                { "--=3", "unknown flag" },
                { "extra", "unexpected argument 'extra'" },
                { "-v", "unexpected argument" },
                { "--pool-size=x", "flag --pool-size: 'x'" },
                { "--api-key=tooshort", "flag --api-key: an API key needs" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct config c;
                struct err e;
                char flag[64];
                (void)snprintf(flag, sizeof flag, "%s", rows[i].flag);
                int r = load(&c, &e, "", FLAGS(flag));
                if (r >= 0 || !strstr(e.msg, rows[i].words))
                        printf("row %zu: %d %s\n", i, r, e.msg);
                CHECK(r < 0 && strstr(e.msg, rows[i].words));
                CHECK(!strstr(e.msg, "tooshort")); /* no key in a sentence */
                config_free(&c);
        }
        struct config c;
        struct err e;
        CHECK_INT(setenv("CLOCHE_POOL_SIZE", "x", 1), 0);
        CHECK(load(&c, &e, "", NULL) < 0);
        CHECK(strstr(e.msg, "environment CLOCHE_POOL_SIZE: 'x'"));
        config_free(&c);
        (void)unsetenv("CLOCHE_POOL_SIZE");
}

static void test_config_file_choice(void)
{
        char verb[] = "serve", flag[] = "--config", none[] = "/nonexistent/cloche.conf";
        char equals[160], print[] = "--print-config", help[] = "--help";
        struct config c;
        struct err e = { 0 };
        config_init(&c);
        CHECK_INT(config_load(&c, 3, FLAGS(verb, flag, none), &e), -ENOENT);
        CHECK(strstr(e.msg, none));
        config_free(&c);
        config_init(&c);
        CHECK_INT(config_load(&c, 3, FLAGS(verb, flag, dir), &e), -EINVAL); /* a directory */
        config_free(&c);

        write_file(other, "pool_size = 7\n");
        (void)snprintf(equals, sizeof equals, "--config=%s", other);
        config_init(&c);
        CHECK_INT(config_load(&c, 3, FLAGS(verb, equals, print), &e), 0);
        CHECK_INT(c.pool_size, 7);
        CHECK(c.print_config && !c.help);
        CHECK_STR(c.file, other);
        config_free(&c);

        CHECK_INT(setenv("CLOCHE_CONFIG", other, 1), 0);
        config_init(&c);
        CHECK_INT(config_load(&c, 1, FLAGS(verb), &e), 0);
        CHECK_INT(c.pool_size, 7);
        config_free(&c);
        (void)unsetenv("CLOCHE_CONFIG");

        /* Help is to be had with a broken file as well. */
        config_init(&c);
        CHECK_INT(config_load(&c, 4, FLAGS(verb, flag, none, help), &e), 0);
        CHECK(c.help);
        config_free(&c);
}

static void test_listen(void)
{
        static const struct {
                const char *text;
                int family, port;
                bool loopback;
        } rows[] = {
                { "127.0.0.1:8080", AF_INET, 8080, true },
                { "127.9.9.9:1", AF_INET, 1, true },
                { "localhost:80", AF_INET, 80, true },
                { "[::1]:8080", AF_INET6, 8080, true },
                { "[::ffff:127.0.0.1]:80", AF_INET6, 80, true },
                { "unix:/run/cloche.sock", AF_UNIX, 0, true },
                { "127.0.0.1:0", AF_INET, 0, true },
                { "0.0.0.0:65535", AF_INET, 65535, false },
                { "10.0.0.1:80", AF_INET, 80, false },
                { "128.0.0.1:80", AF_INET, 80, false },
                { "[::]:80", AF_INET6, 80, false },
                { "[::ffff:10.0.0.1]:80", AF_INET6, 80, false },
                { ":80", -1, 80, false },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct sockaddr_storage a = { 0 };
                socklen_t n = 0;
                struct config c = { .listen = strdup(rows[i].text) };
                CHECK_INT(config_parse_listen(rows[i].text, &a, &n, NULL), 0);
                if (rows[i].family >= 0)
                        CHECK_INT(a.ss_family, rows[i].family);
                if (a.ss_family != AF_UNIX)
                        CHECK_INT(ntohs(((struct sockaddr_in *)&a)->sin_port), rows[i].port);
                else
                        CHECK_STR(((struct sockaddr_un *)&a)->sun_path, "/run/cloche.sock");
                CHECK(n > 0 && n <= sizeof a);
                CHECK_INT(config_listen_is_loopback(&c), rows[i].loopback);
                free(c.listen);
        }
        static const char *const bad[] = {
                "", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                "127.0.0.1: 80", "127.1:80", "example.com:80", "::1:80", "[::1]", "[]:80",
                "[::1:80", "[127.0.0.1]:80", "[::1]x:80", "unix:", "unix:run/x", "*:80",
                "http://127.0.0.1:80", "127.0.0.1:80x", "[fe80::1%lo]:80",
        };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct sockaddr_storage a;
                socklen_t n;
                struct err e = { 0 };
                if (config_parse_listen(bad[i], &a, &n, &e) >= 0)
                        printf("taken: '%s'\n", bad[i]);
                CHECK_INT(config_parse_listen(bad[i], &a, &n, &e), -EINVAL);
                CHECK(strlen(e.msg) > 20);
        }
        char deep[200] = "unix:/";
        memset(deep + 6, 'x', 150);
        struct sockaddr_storage a;
        socklen_t n;
        CHECK_INT(config_parse_listen(deep, &a, &n, NULL), -EINVAL);
}

static void test_key_needed_beyond_loopback(void)
{
        char all[] = "--listen=0.0.0.0:80", key[] = "--api-key=0123456789abcdef";
        struct config c;
        struct err e;
        CHECK_INT(load(&c, &e, "", FLAGS(all)), -EPERM);
        CHECK(strstr(e.msg, "0.0.0.0:80") && strstr(e.msg, "API key"));
        config_free(&c);
        CHECK_INT(load(&c, &e, "", FLAGS(all, key)), 0);
        CHECK_STR(c.api_key, "0123456789abcdef");
        char *out = printed(&c);
        CHECK(!strstr(out, "0123456789abcdef"));
        CHECK(strstr(out, "#api_key = (set)"));
        CHECK(strstr(out, "# flag --api-key\n"));
        free(out);
        config_free(&c);
}

static void test_key_file(void)
{
        char flag[160], from[160], key[] = "--api-key=fedcba9876543210";
        struct config c;
        struct err e;
        (void)snprintf(flag, sizeof flag, "--api-key-file=%s", other);
        write_file(other, "0123456789abcdef\n");
        CHECK_INT(load(&c, &e, "", FLAGS(flag)), 0);
        CHECK_STR(c.api_key, "0123456789abcdef");
        char *out = printed(&c);
        CHECK(!strstr(out, "0123456789abcdef") && strstr(out, "#api_key = (set)"));
        free(out);
        config_free(&c);
        /* Both on the command line is a mistake; a flag over a file is precedence. */
        CHECK_INT(load(&c, &e, "", FLAGS(flag, key)), -EINVAL);
        CHECK(strstr(e.msg, "keep one"));
        config_free(&c);
        CHECK_INT(load(&c, &e, "api_key = aaaaaaaaaaaaaaaaaaaa\n", FLAGS(flag)), 0);
        CHECK_STR(c.api_key, "0123456789abcdef");
        out = printed(&c);
        (void)snprintf(from, sizeof from, " # api_key_file %s\n", other);
        CHECK(strstr(out, from) != NULL);
        free(out);
        config_free(&c);
        char text[200];
        (void)snprintf(text, sizeof text, "api_key_file = %s\n", other);
        CHECK_INT(load(&c, &e, text, FLAGS(key)), 0);
        CHECK_STR(c.api_key, "fedcba9876543210");
        config_free(&c);
        static const char *const bad[] = { "", "\n", "short\n", "0123456789abcdef\nsecond\n",
                                           "0123456789 abcdef\n" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                write_file(other, bad[i]);
                CHECK(load(&c, &e, "", FLAGS(flag)) < 0);
                CHECK(strstr(e.msg, "api_key_file") && !strstr(e.msg, "0123456789"));
                config_free(&c);
        }
}

static void test_images(void)
{
        static const char text[] = "image = latest\n[images]\ndeb = /srv/deb.tar.gz\n"
                                   "latest = stable\nstable = deb\npython:3.11-slim = host\n";
        char fallback[] = "--image-fallback=stable";
        const char *name = NULL, *path = NULL;
        struct config c;
        struct err e;
        CHECK_INT(load(&c, &e, text, NULL), 0);
        CHECK_INT(config_image_find(&c, STR(""), &name, &path, &e), 0);
        CHECK_STR(name, "deb");
        CHECK_STR(path, "/srv/deb.tar.gz");
        CHECK_INT(config_image_find(&c, STR("host"), &name, &path, &e), 0);
        CHECK_STR(name, "host");
        CHECK(!path);
        CHECK_INT(config_image_find(&c, STR("python:3.11-slim"), &name, &path, &e), 0);
        CHECK_STR(name, "host");
        CHECK(!path);
        CHECK_INT(config_image_find(&c, STR("alpine"), &name, &path, &e), -ENOENT);
        CHECK_INT(e.blame, ERR_USER);
        CHECK(strstr(e.msg, "'alpine'") && strstr(e.msg, "host, deb, latest, stable") &&
              strstr(e.msg, "image_fallback"));
        CHECK_INT(config_image_find(&c, (struct str){ "deb\0x", 5 }, &name, &path, &e), -ENOENT);
        config_free(&c);
        CHECK_INT(load(&c, &e, text, FLAGS(fallback)), 0);
        CHECK_INT(config_image_find(&c, STR("alpine"), &name, &path, &e), 0);
        CHECK_STR(path, "/srv/deb.tar.gz");
        config_free(&c);
}

static void test_usage_names_every_flag(void)
{
        char *text = NULL, flag[SETTING_NAME_BYTES];
        size_t n;
        FILE *f = open_memstream(&text, &n);
        config_usage(f);
        (void)fclose(f);
        for (size_t i = 0; i < setting_count; i++)
                CHECK(strstr(text, setting_flag(&settings[i], flag)));
        free(text);
}

static void test_nearest(void)
{
        CHECK_STR(setting_nearest(STR("listn"))->name, "listen");
        CHECK_STR(setting_nearest(STR("Default-TTL"))->name, "default_ttl_seconds");
        CHECK_STR(setting_nearest(STR("upload_byte"))->name, "upload_bytes");
        char flood[4096];
        memset(flood, 'x', sizeof flood);
        CHECK(setting_nearest((struct str){ flood, sizeof flood }));
}

int main(void)
{
        extern char **environ;
        for (size_t i = 0; environ[i];) {
                char name[64] = "";
                if (sscanf(environ[i], "%63[A-Z_]", name) == 1 &&
                    strncmp(name, "CLOCHE_", 7) == 0)
                        (void)unsetenv(name);
                else
                        i++;
        }
        if (!mkdtemp(dir))
                return 1;
        (void)snprintf(conf, sizeof conf, "%s/cloche.conf", dir);
        (void)snprintf(other, sizeof other, "%s/other", dir);
        RUN(test_defaults_are_the_limits);
        RUN(test_shipped_file);
        RUN(test_precedence);
        RUN(test_print_reads_back);
        RUN(test_file_errors);
        RUN(test_whole_errors);
        RUN(test_flag_errors);
        RUN(test_config_file_choice);
        RUN(test_listen);
        RUN(test_key_needed_beyond_loopback);
        RUN(test_key_file);
        RUN(test_images);
        RUN(test_usage_names_every_flag);
        RUN(test_nearest);
        (void)unlink(conf);
        (void)unlink(other);
        (void)rmdir(dir);
        return check_done();
}
