#include <sys/stat.h>

#include "config_bed.h"

static void test_file_errors(void)
{
        static const struct refused_file rows[] = {
                { "pool_size = 1\nlisen = :80\n", ":2: ", "did you mean 'listen'?" },
                { "max-memory = 1Gi\n", ":1: ", "did you mean 'max_memory'?" },
                { "\n\npool_size = 1\npool_size = 1\n", ":4: ", "already set in line 3" },
                { "nonsense\n", ":1: ", "'name = value'" },
                { "= 3\n", ":1: ", "unknown setting" },
                { "[server]\n", ":1: ", "only section is [images]" },
                { "[images]\npool_size = 3\n", ":2: ", "must stand above [images]" },
        };
        refuse_files(rows, ARRAY_SIZE(rows));
}

static void test_lines(void)
{
        struct config c;
        struct err e;
        /* no newline at the end, blanks of all kinds, and '#' within a word */
        CHECK_INT(load(&c, &e, "\xef\xbb\xbf# a mark of order\n", NULL), -EINVAL);
        config_free(&c);
        CHECK_INT(load(&c, &e, "  # prose\n\r\n\t pool_size\t=\t5 \r\nstate_dir = /a#b\t#why # twice\n"
                               "[images] # the rest\nx = /y=z", NULL), 0);
        CHECK_INT(c.pool_size, 5);
        CHECK_STR(c.state_dir, "/a#b");
        CHECK_INT(c.image_count, 1);
        CHECK_STR(c.images[0].target, "/y=z");
        CHECK_INT(c.images[0].line, 6);
        CHECK_STR(c.file, conf);
        config_free(&c);
        CHECK_INT(load(&c, &e, "", NULL), 0);
        config_free(&c);
}

/* A line without '=' may be a key: it is not repeated. */
static void test_no_echo(void)
{
        struct config c;
        struct err e;
        CHECK_INT(load(&c, &e, "api_key verysecretverysecret\n", NULL), -EINVAL);
        CHECK(strstr(e.msg, ":1: ") && !strstr(e.msg, "verysecret"));
        config_free(&c);
}

static void test_slurp(void)
{
        char *text = NULL;
        struct err e = { 0 };
        write_file(other, "1234");
        CHECK_INT(config_slurp(other, 4, &text, &e), 0);
        CHECK_STR(text, "1234");
        free(text);
        text = NULL;
        CHECK_INT(config_slurp(other, 3, &text, &e), -EFBIG);
        CHECK(strstr(e.msg, "larger than 3 bytes"));
        CHECK_INT(config_slurp(dir, 4, &text, &e), -EINVAL);
        CHECK(strstr(e.msg, "not a regular file"));
        FILE *f = fopen(other, "we");
        CHECK(f && fwrite("a\0b", 1, 3, f) == 3 && fclose(f) == 0);
        CHECK_INT(config_slurp(other, 4, &text, &e), -EINVAL);
        CHECK(strstr(e.msg, "NUL"));
        CHECK(unlink(other) == 0 && mkfifo(other, 0600) == 0);
        CHECK_INT(config_slurp(other, 4, &text, &e), -EINVAL); /* and it does not wait for a writer */
        CHECK(unlink(other) == 0);
        CHECK_INT(config_slurp(other, 4, &text, &e), -ENOENT);
        CHECK(text == NULL);
}

int main(void)
{
        bed_begin();
        RUN(test_file_errors);
        RUN(test_lines);
        RUN(test_no_echo);
        RUN(test_slurp);
        bed_end();
        return check_done();
}
