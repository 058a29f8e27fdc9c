/* What the tests of src/config share: a directory with a file of settings, never the
 * machine's own, and an environment without ours. */
#pragma once

#include <errno.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "check.h"
#include "config/config_table.h"

static char dir[] = "/tmp/cloche-test-config-XXXXXX";
static char conf[128], other[128];

static inline void write_file(const char *path, const char *text)
{
        FILE *f = fopen(path, "we");
        if (!f || fputs(text, f) < 0 || fclose(f) != 0) {
                perror(path);
                exit(1);
        }
}

/* Loads from the file `conf` (never the machine's own) plus these flags. */
static inline int load(struct config *c, struct err *e, const char *text, char *const *flags)
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

static inline char *printed(const struct config *c)
{
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        config_print(c, f);
        (void)fclose(f);
        return text;
}

/* Files that must be refused: where (":2: ", "" for the whole) and why. */
struct refused_file {
        const char *text, *where, *words;
};

static inline void refuse_files(const struct refused_file *rows, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                struct config c;
                struct err e;
                int r = load(&c, &e, rows[i].text, NULL);
                char where[160] = "";
                if (*rows[i].where)
                        (void)snprintf(where, sizeof where, "%s%s", conf, rows[i].where);
                if (r >= 0 || !strstr(e.msg, where) || !strstr(e.msg, rows[i].words))
                        printf("row %zu: %d %s\n", i, r, e.msg);
                CHECK(r < 0);
                CHECK(strstr(e.msg, where));
                CHECK(strstr(e.msg, rows[i].words));
                config_free(&c);
        }
}

static inline void bed_begin(void)
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
                abort();
        (void)snprintf(conf, sizeof conf, "%s/cloche.conf", dir);
        (void)snprintf(other, sizeof other, "%s/other", dir);
}

static inline void bed_end(void)
{
        (void)unlink(conf);
        (void)unlink(other);
        (void)rmdir(dir);
}
