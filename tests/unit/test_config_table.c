#include "config/config_table.h"

#include "base/limits.h"
#include "config_bed.h"

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
                       (int)(strlen(__FILE__) - strlen("tests/unit/test_config_table.c")), __FILE__);
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

static void test_nearest(void)
{
        CHECK_STR(setting_nearest(STR("listn"))->name, "listen");
        CHECK_STR(setting_nearest(STR("Default-TTL"))->name, "default_ttl_seconds");
        CHECK_STR(setting_nearest(STR("upload_byte"))->name, "upload_bytes");
        char flood[4096];
        memset(flood, 'x', sizeof flood);
        CHECK(setting_nearest((struct str){ flood, sizeof flood }));
}

static void test_spellings(void)
{
        char out[SETTING_NAME_BYTES];
        const struct setting *s = setting_find(STR("max_exec_timeout_seconds"));
        CHECK_STR(setting_env(s, out), "CLOCHE_MAX_EXEC_TIMEOUT_SECONDS");
        CHECK_STR(setting_flag(s, out), "--max-exec-timeout-seconds");
        CHECK(!setting_find(STR("listen ")) && !setting_find(STR("liste")) && !setting_find(STR("")));
        CHECK(!setting_find(STR("Listen")) && !setting_find((struct str){ "listen\0x", 8 }));
        for (size_t i = 0; i < setting_count; i++) /* no two are one */
                for (size_t k = 0; k < i; k++)
                        CHECK(settings[i].offset != settings[k].offset && strcmp(settings[i].name, settings[k].name) != 0);
}

int main(void)
{
        bed_begin();
        RUN(test_defaults_are_the_limits);
        RUN(test_shipped_file);
        RUN(test_nearest);
        RUN(test_spellings);
        bed_end();
        return check_done();
}
