#include "cli/check.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/json_write.h"
#include "config/config.h"
#include "os/probe.h"

#define NAME_COLUMN 17

static void print_line(const char *status, const char *name, const char *detail,
                       const char *remedy)
{
        printf("%-8s %-*s %s%s%s\n", status, NAME_COLUMN, name, detail,
               *remedy ? "; to get it: " : "", remedy);
}

static void add_json(struct json *j, const char *status, const char *name, const char *detail,
                     const char *remedy)
{
        json_open(j, '{');
        json_kv(j, "name", name);
        json_kv(j, "status", status);
        json_kv(j, "detail", detail);
        json_kv(j, "remedy", remedy);
        json_close(j, '}');
}

/* One finding, in either form; j is NULL for lines. */
static void show(struct json *j, enum probe_status status, const char *name, const char *detail,
                 const char *remedy)
{
        if (j)
                add_json(j, probe_status_name(status), name, detail, remedy);
        else
                print_line(probe_status_name(status), name, detail, remedy);
}

static bool show_all(struct json *j, const struct config *c, const struct err *config_err)
{
        struct probe_report report;
        bool good_config = config_err->code == 0;
        unsigned weak = 0;
        probe_all(c->state_dir ? c->state_dir : "/", &report);
        show(j, good_config ? PROBE_OK : PROBE_MISSING, "configuration",
             good_config ? (c->file ? c->file : "defaults, environment and flags")
                         : config_err->msg,
             good_config ? "" : "mend the setting (cloche serve --help lists them)");
        for (size_t i = 0; i < report.count; i++) {
                const struct probe_result *r = &report.results[i];
                weak += r->status != PROBE_OK;
                show(j, r->status, r->name, r->detail, r->remedy);
        }
        bool can = good_config && report.can_serve;
        char words[128];
        if (!can)
                (void)snprintf(words, sizeof words, "cloche cannot serve here");
        else if (weak)
                (void)snprintf(words, sizeof words, "cloche can serve here, with %u weakness%s",
                               weak, weak == 1 ? "" : "es");
        else
                (void)snprintf(words, sizeof words, "cloche can serve here");
        show(j, can ? PROBE_OK : PROBE_MISSING, "verdict", words, "");
        return can;
}

static void usage(void)
{
        printf("usage: cloche check [--json] [--config FILE] [--NAME VALUE]...\n"
               "Tries what a sandbox needs of this host and prints one line a finding: ok, weak\n"
               "or missing. Exit status 0 when cloche can serve here, 1 when not. All settings\n"
               "of `cloche serve` are accepted; state_dir is the one that matters.\n");
}

/* The flags without --json, which is ours; NULL without memory. */
static char **without_json(int argc, char **argv, int *ret_argc, bool *ret_json)
{
        char **rest = calloc((size_t)argc + 1, sizeof *rest);
        int n = 0;
        if (!rest)
                return NULL;
        for (int i = 0; i < argc; i++) {
                if (strcmp(argv[i], "--json") == 0)
                        *ret_json = true;
                else
                        rest[n++] = argv[i];
        }
        *ret_argc = n;
        return rest;
}

int check_main(int argc, char **argv)
{
        bool as_json = false;
        int rest_argc = 0;
        _cleanup_free_ char **rest = without_json(argc, argv, &rest_argc, &as_json);
        _cleanup_config_ struct config c;
        struct err e = { 0 };
        config_init(&c);
        if (!rest)
                return 1;
        (void)config_load(&c, rest_argc, rest, &e);
        if (c.help) {
                usage();
                return 0;
        }
        _cleanup_buf_ struct buf out = { 0 };
        struct json j = { .b = &out };
        if (as_json)
                json_open(&j, '[');
        bool can = show_all(as_json ? &j : NULL, &c, &e);
        if (as_json) {
                json_close(&j, ']');
                const char *text = buf_cstr(&out);
                if (!text)
                        return 1;
                puts(text);
        }
        return fflush(stdout) == 0 && can ? 0 : 1;
}
