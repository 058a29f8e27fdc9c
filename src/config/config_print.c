/* --print-config and --help, both from the table. */
#include "config/config.h"

#include <string.h>

#include "config/config_table.h"

static void print_origin(const struct config *c, size_t row, FILE *out)
{
        char name[SETTING_NAME_BYTES];
        const struct config_origin *o = &c->origins[row];
        switch (o->source) {
        case FROM_FILE:
                fprintf(out, "file %s:%u", c->file, o->line);
                break;
        case FROM_ENV:
                fprintf(out, "environment %s", setting_env(&settings[row], name));
                break;
        case FROM_FLAG:
                fprintf(out, "flag %s", setting_flag(&settings[row], name));
                break;
        default:
                fprintf(out, "default");
        }
}

static void print_row(const struct config *c, size_t row, FILE *out)
{
        const struct setting *s = &settings[row];
        _cleanup_free_ char *text = setting_text(c, s);
        char line[256];
        const char *value = text ? text : "(out of memory)";
        if (s->type == SET_SECRET) {
                /* Commented out: what is printed can be used as a file again. */
                bool set = *value != '\0';
                if (text)
                        explicit_bzero(text, strlen(text));
                (void)snprintf(line, sizeof line, "#%s = %s", s->name, set ? "(set)" : "");
                fprintf(out, "%-44s # ", line);
                if (set && c->origins[row].source == FROM_DEFAULT)
                        fprintf(out, "api_key_file %s", c->api_key_file);
                else
                        print_origin(c, row, out);
        } else {
                (void)snprintf(line, sizeof line, "%s = ", s->name);
                fprintf(out, "%s%-*s # ", line, 44 - (int)strlen(line), value);
                print_origin(c, row, out);
        }
        fputc('\n', out);
}

void config_print(const struct config *c, FILE *out)
{
        const char *section = "";
        for (size_t i = 0; i < setting_count; i++) {
                if (strcmp(section, settings[i].section) != 0) {
                        fprintf(out, "%s# --- %s ---\n", i ? "\n" : "", settings[i].section);
                        section = settings[i].section;
                }
                print_row(c, i, out);
        }
        if (c->image_count)
                fprintf(out, "\n[images]\n");
        for (size_t i = 0; i < c->image_count; i++)
                fprintf(out, "%s = %s # file %s:%u\n", c->images[i].name, c->images[i].target,
                        c->file, c->images[i].line);
}

void config_usage(FILE *out)
{
        struct config c;
        config_init(&c);
        fprintf(out, "usage: cloche serve [--NAME VALUE]...\n"
                     "Serves sandboxes over HTTP until Ctrl-C or SIGTERM. What stands beside a name\n"
                     "here is its default.\n");
        fprintf(out, "  %-44s %s\n  %-44s %s\n  %-44s %s\n", "--config FILE",
                "read this file (" CONFIG_DEFAULT_FILE " if it exists)", "--print-config",
                "show what is in force and where it came from", "--help", "show this");
        for (size_t i = 0; i < setting_count; i++) {
                char flag[SETTING_NAME_BYTES], left[160];
                _cleanup_free_ char *text = setting_text(&c, &settings[i]);
                (void)snprintf(left, sizeof left, "%s %s", setting_flag(&settings[i], flag),
                               text && *text ? text : "VALUE");
                fprintf(out, "  %-44s %s", left, settings[i].help);
                for (size_t k = 0; settings[i].choices && settings[i].choices[k]; k++)
                        fprintf(out, "%s%s", k ? " | " : ": ", settings[i].choices[k]);
                fputc('\n', out);
        }
        fprintf(out, "Each is also an environment variable (--pool-size: CLOCHE_POOL_SIZE) and a\n"
                     "setting in the file (pool_size = 4); a flag wins over the environment, that\n"
                     "over the file. etc/cloche.conf explains them all.\n");
        config_free(&c);
}
