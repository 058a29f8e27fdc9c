/* --print-config and --help. */
#include "config_bed.h"

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

/* Printed once more, it says the same but for where it came from. */
static void test_print_is_stable(void)
{
        struct config c;
        struct err e;
        CHECK_INT(load(&c, &e, "pool_size = 2\n[images]\na = /srv/a\n", NULL), 0);
        char *first = printed(&c);
        config_free(&c);
        CHECK(strstr(first, "#api_key = ") && !strstr(first, "(set)"));
        char row[256];
        (void)snprintf(row, sizeof row, "\n[images]\na = /srv/a # file %s:3\n", conf);
        CHECK(strstr(first, row));
        CHECK_INT(load(&c, &e, first, NULL), 0);
        char *second = printed(&c);
        config_free(&c);
        char *p = first, *q = second;
        while (*p && *q) {
                size_t n = strcspn(p, "\n"), m = strcspn(q, "\n");
                char *at = memmem(p, n, " # ", 3), *to = memmem(q, m, " # ", 3);
                size_t k = at ? (size_t)(at - p) : n, j = to ? (size_t)(to - q) : m;
                CHECK(k == j && memcmp(p, q, k) == 0);
                p += n + (p[n] == '\n');
                q += m + (q[m] == '\n');
        }
        CHECK(!*p && !*q);
        free(first);
        free(second);
}

/* A section's heading stands once, above its settings. */
static void test_sections(void)
{
        struct config c;
        config_init(&c);
        char *out = printed(&c);
        unsigned headings = 0, rows = 0;
        for (const char *p = out; (p = strstr(p, "# --- ")); p++)
                headings++;
        for (const char *p = out; (p = strstr(p, " # default\n")); p++)
                rows++;
        CHECK_INT(rows, setting_count);
        for (size_t i = 0; i < setting_count; i++)
                headings -= i == 0 || strcmp(settings[i].section, settings[i - 1].section) != 0;
        CHECK_INT(headings, 0);
        CHECK(!strstr(out, "[images]"));
        free(out);
        config_free(&c);
}

int main(void)
{
        bed_begin();
        RUN(test_print_reads_back);
        RUN(test_usage_names_every_flag);
        RUN(test_print_is_stable);
        RUN(test_sections);
        bed_end();
        return check_done();
}
