#include "config_bed.h"

static void test_image_errors(void)
{
        static const struct refused_file rows[] = {
                { "[images]\nx = relative/../path!\n", ":2: ", "neither an absolute path" },
                { "[images]\nx = /\n", ":2: ", "all of the host's files" },
                { "[images]\nhost = /srv\n", ":2: ", "built in" },
                { "[images]\nx = /a\nx = /b\n", ":3: ", "already named in line 2" },
                { "[images]\na = b\nb = c\nc = a\n", ":2: ", "in a circle" },
                { "[images]\na = a\n", ":2: ", "in a circle" },
                { "[images]\na = nowhere\n", ":2: ", "unknown image" },
                { "image = nope\n", "", "the setting image names the image 'nope'" },
                { "image_fallback = nope\n", "", "the setting image_fallback" },
        };
        refuse_files(rows, ARRAY_SIZE(rows));
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

static void test_names(void)
{
        static const char *const good[] = { "a", "python:3.11-slim", "ghcr.io/o/i@sha256:0", "A_b", ".x" };
        static const char *const bad[] = { "", "/a", "a b", "a\n", "a#", "\xc3\xa9", "a=b" };
        char longest[256];
        memset(longest, 'l', sizeof longest);
        for (size_t i = 0; i < ARRAY_SIZE(good); i++)
                CHECK(config_image_name_ok(str_c(good[i])));
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                CHECK(!config_image_name_ok(str_c(bad[i])));
        CHECK(!config_image_name_ok((struct str){ "a\0b", 3 }));
        CHECK(config_image_name_ok((struct str){ longest, 255 }));
        CHECK(!config_image_name_ok((struct str){ longest, 256 }));
}

/* A thousand of them, and a sentence about them that stays short. */
static void test_many(void)
{
        struct config c;
        struct err e = { 0 };
        const char *name, *path;
        char text[32];
        config_init(&c);
        for (unsigned i = 0; i < 1000; i++) {
                (void)snprintf(text, sizeof text, "image-%u", i);
                CHECK_INT(config_add_image(&c, str_c(text), STR("/srv/x"), i + 1, &e), 0);
        }
        CHECK_INT(config_add_image(&c, STR("more"), STR("/srv/x"), 1001, &e), -E2BIG);
        CHECK_INT(config_image_find(&c, STR("image-999"), &name, &path, &e), 0);
        CHECK_STR(path, "/srv/x");
        CHECK_INT(config_image_find(&c, STR("more"), &name, &path, &e), -ENOENT);
        unsigned left = 0;
        const char *rest = strstr(e.msg, " and ");
        CHECK(rest && sscanf(rest, " and %u more", &left) == 1);
        char last[32];
        (void)snprintf(last, sizeof last, "image-%u and", 999 - left);
        CHECK(strstr(e.msg, last)); /* all that are not named are counted */
        CHECK(strstr(e.msg, "image_fallback"));
        config_free(&c);
}

/* The longest way of aliases is no circle. */
static void test_long_way(void)
{
        struct config c;
        struct err e = { 0 };
        const char *name, *path;
        char from[32], to[32];
        config_init(&c);
        for (unsigned i = 0; i < 50; i++) {
                (void)snprintf(from, sizeof from, "a%u", i);
                (void)snprintf(to, sizeof to, i == 49 ? "host" : "a%u", i + 1);
                CHECK_INT(config_add_image(&c, str_c(from), str_c(to), i + 1, &e), 0);
        }
        CHECK_INT(config_check_images(&c, &e), 0);
        CHECK_INT(config_image_find(&c, STR("a0"), &name, &path, &e), 0);
        CHECK_STR(name, "host");
        config_free(&c);
}

int main(void)
{
        bed_begin();
        RUN(test_image_errors);
        RUN(test_images);
        RUN(test_names);
        RUN(test_many);
        RUN(test_long_way);
        bed_end();
        return check_done();
}
