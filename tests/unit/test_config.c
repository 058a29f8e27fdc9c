#include "config/config.h"

#include "config_bed.h"

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

static void test_whole_errors(void)
{
        static const struct refused_file rows[] = {
                { "default_cpu = 4\nmax_cpu = 2\n", "", "default_cpu (4) is larger than max_cpu (2)" },
                { "max_memory = 1Gi\n", "", "default_memory (2Gi) is larger than max_memory (1Gi)" },
                { "max_storage = 1Mi\n", "", "default_storage (1Gi)" },
                { "max_ttl_seconds = 60\n", "", "default_ttl_seconds (900)" },
                { "max_exec_timeout_seconds = 5\n", "", "default_exec_timeout_seconds (30)" },
                { "max_sandboxes = 3\n", "", "pool_size (4)" },
                { "api_key_file = /nonexistent/key\n", "", "api_key_file: cannot read" },
        };
        refuse_files(rows, ARRAY_SIZE(rows));
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

/* What was said last holds, as with most programs. */
static void test_flags_twice(void)
{
        char a[] = "--pool-size=1", b[] = "--pool-size", two[] = "2", h[] = "-h";
        struct config c;
        struct err e;
        CHECK_INT(load(&c, &e, "", FLAGS(a, b, two)), 0);
        CHECK_INT(c.pool_size, 2);
        CHECK(!c.help && !c.print_config);
        config_free(&c);
        CHECK_INT(load(&c, &e, "pool_size = broken\n", FLAGS(h)), 0);
        CHECK(c.help);
        config_free(&c);
}

static void test_no_home(void)
{
        char verb[] = "serve", flag[] = "--config", named[] = "--state-dir=/srv/x";
        struct config c;
        struct err e = { 0 };
        write_file(conf, "");
        config_init(&c);
        free(c.state_dir);
        c.state_dir = NULL;
        CHECK_INT(config_load(&c, 3, FLAGS(verb, flag, conf), &e), -EINVAL);
        CHECK(strstr(e.msg, "--state-dir"));
        config_free(&c);
        config_init(&c);
        free(c.state_dir);
        c.state_dir = NULL;
        CHECK_INT(config_load(&c, 4, FLAGS(verb, flag, conf, named), &e), 0);
        CHECK_STR(c.state_dir, "/srv/x");
        config_free(&c);
}

int main(void)
{
        bed_begin();
        RUN(test_precedence);
        RUN(test_whole_errors);
        RUN(test_flag_errors);
        RUN(test_config_file_choice);
        RUN(test_key_needed_beyond_loopback);
        RUN(test_key_file);
        RUN(test_flags_twice);
        RUN(test_no_home);
        bed_end();
        return check_done();
}
