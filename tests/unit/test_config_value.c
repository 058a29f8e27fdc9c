#include <errno.h>

#include "base/limits.h"
#include "config_bed.h"

static void test_value_errors(void)
{
        static const struct refused_file rows[] = {
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
                { "api_key = short\n", ":1: ", "at least 16" },
                { "api_key = 0123456789/abcdef\n", ":1: ", "without blanks and '/'" },
        };
        refuse_files(rows, ARRAY_SIZE(rows));
}

/* Whatever a value says, it can be printed as a line of the file. */
static void test_plain(void)
{
        static const char *const bad[] = { "/a\nb", "/a\tb", "/a\x7f", "\"/a\"", "'/a'", " /a", "/a ", "/a #b" };
        struct config c;
        config_init(&c);
        const struct setting *s = setting_find(STR("state_dir"));
        CHECK_INT(setting_set(&c, s, STR("/a#b c"), NULL), 0);
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct err e = { 0 };
                CHECK_INT(setting_set(&c, s, str_c(bad[i]), &e), -EINVAL);
                CHECK(e.msg[0] && !strpbrk(e.msg, "\n\t\x7f"));
                CHECK_STR(c.state_dir, "/a#b c"); /* a refused value changes nothing */
        }
        config_free(&c);
}

/* Each type at its bounds. */
static void test_bounds(void)
{
        static const char x[4100] = "/";
        static const struct { const char *name, *value; int code; } rows[] = {
                { "pool_size", "0", 0 },           { "pool_size", "1000", 0 },        { "pool_size", "+1", -EINVAL },
                { "pool_size", "0x1", -EINVAL },   { "pool_size", "1 0", -EINVAL },
                { "pool_size", "18446744073709551616", -EINVAL },
                { "default_memory", "4Mi", 0 },    { "default_memory", "4194303", -ERANGE },
                { "default_memory", "64Ti", 0 },   { "default_memory", "65Ti", -ERANGE },
                { "default_cpu", "10m", 0 },       { "default_cpu", "9m", -ERANGE },  { "default_cpu", "1024", 0 },
                { "default_cpu", "1024001m", -ERANGE },
                { "log_level", "error", 0 },       { "log_level", "ERROR", -EINVAL }, { "log_level", "", -EINVAL },
                { "cgroup_root", "a.b_c-D9", 0 },  { "cgroup_root", ".a", -EINVAL },  { "cgroup_root", "", -EINVAL },
                { "cgroup_root", "\xc3\xa9", -EINVAL },
                { "api_key", "0123456789abcdef", 0 }, { "api_key", "0123456789abcde", -EINVAL },
                { "api_key", "0123456789abcde\xc3\xa9", -EINVAL }, { "api_key", "0123456789abcde\n", -EINVAL },
                { "api_key", "\"0123456789abcde#", 0 }, { "api_key", "", 0 },
                { "image_fallback", "", 0 },       { "image", "", -EINVAL },          { "image", "/abs", -EINVAL },
                { "state_dir", x, 0 },             { "listen", ":x", -EINVAL },
        };
        struct config c;
        config_init(&c);
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct err e = { 0 };
                int r = setting_set(&c, setting_find(str_c(rows[i].name)), str_c(rows[i].value), &e);
                if (r != rows[i].code)
                        printf("%s = %s: %d %s\n", rows[i].name, rows[i].value, r, e.msg);
                CHECK_INT(r, rows[i].code);
        }
        CHECK(c.api_key == NULL && c.image_fallback == NULL); /* empty: as if there were none */
        char path[4096], name[66];
        memset(path, 'p', sizeof path);
        memset(name, 'n', sizeof name);
        path[0] = '/';
        CHECK_INT(setting_set(&c, setting_find(STR("state_dir")), (struct str){ path, 4095 }, NULL), 0);
        CHECK_INT(setting_set(&c, setting_find(STR("state_dir")), (struct str){ path, 4096 }, NULL), -EINVAL);
        CHECK_INT(setting_set(&c, setting_find(STR("cgroup_root")), (struct str){ name, 64 }, NULL), 0);
        CHECK_INT(setting_set(&c, setting_find(STR("cgroup_root")), (struct str){ name, 65 }, NULL), -EINVAL);
        config_free(&c);
}

/* The text of a value sets that value again; every setting, at both ends of its range. */
static void test_text_reads_back(void)
{
        struct config c, again;
        config_init(&c);
        config_init(&again);
        for (size_t i = 0; i < 2 * setting_count; i++) {
                const struct setting *s = &settings[i / 2];
                uint64_t *at = (uint64_t *)((char *)&c + s->offset), *to = (uint64_t *)((char *)&again + s->offset);
                if (!s->max)
                        continue;
                *at = i % 2 ? s->max : s->min;
                char *text = setting_text(&c, s);
                CHECK_INT(setting_set(&again, s, str_c(text), NULL), 0);
                CHECK_INT(*to, *at);
                free(text);
                CHECK_INT(setting_default(&again, s), 0);
                CHECK_INT(*to, s->number);
        }
        config_free(&c);
        config_free(&again);
}

int main(void)
{
        bed_begin();
        RUN(test_value_errors);
        RUN(test_plain);
        RUN(test_bounds);
        RUN(test_text_reads_back);
        bed_end();
        return check_done();
}
