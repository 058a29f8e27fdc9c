/* Puts the sources together: defaults, file, environment, flags; then checks what only
 * the whole can show. */
#include "config/config.h"

#include <errno.h>
#include <pwd.h>
#include <string.h>

#include "base/buf.h"
#include "base/quantity.h"
#include "config/config_table.h"

#define KEY_FILE_MAX_BYTES 4096

/* Root's is the system's; another user's is where XDG says. NULL without a home. */
static char *default_state_dir(void)
{
        char *path = NULL;
        if (geteuid() == 0)
                return strdup("/var/lib/cloche");
        const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
        if (state && state[0] == '/')
                return asprintf(&path, "%s/cloche", state) < 0 ? NULL : path;
        if (!home || home[0] != '/') {
                const struct passwd *pw = getpwuid(geteuid());
                home = pw ? pw->pw_dir : NULL;
        }
        if (!home || home[0] != '/')
                return NULL;
        return asprintf(&path, "%s/.local/state/cloche", home) < 0 ? NULL : path;
}

void config_init(struct config *c)
{
        *c = (struct config){ 0 };
        for (size_t i = 0; i < setting_count; i++)
                (void)setting_default(c, &settings[i]);
        free(c->state_dir);
        c->state_dir = default_state_dir();
}

static void free_secret(char *s)
{
        if (s)
                explicit_bzero(s, strlen(s));
        free(s);
}

void config_free(struct config *c)
{
        free_secret(c->api_key);
        free(c->listen);
        free(c->state_dir);
        free(c->api_key_file);
        free(c->cgroup_root);
        free(c->image);
        free(c->image_fallback);
        free(c->file);
        for (size_t i = 0; i < c->image_count; i++) {
                free(c->images[i].name);
                free(c->images[i].target);
        }
        free(c->images);
        *c = (struct config){ 0 };
}

/* One flag of the command line: its setting, or one of the three that are none. */
struct flag {
        const struct setting *setting;
        const char *word;
        struct str value;
};

/* Takes the flag at argv[*at] and moves on. 0 or -errno. */
static int take_flag(int argc, char **argv, int *at, struct flag *ret, struct err *e)
{
        static const char *const bare[] = { "print-config", "help" };
        const char *arg = argv[*at], *equals = strchr(arg, '=');
        char shown[ECHO_BYTES], name[SETTING_NAME_BYTES] = "", flag[SETTING_NAME_BYTES];
        if (strcmp(arg, "-h") == 0) {
                *ret = (struct flag){ .word = "help" };
                return 0;
        }
        if (strncmp(arg, "--", 2) != 0)
                return fail_user(e, -EINVAL, "unexpected argument '%s'; settings are given as "
                                 "--name VALUE (see --help)", echo_value(str_c(arg), shown));
        struct str word = { arg + 2, equals ? (size_t)(equals - arg) - 2 : strlen(arg + 2) };
        for (size_t i = 0; i < ARRAY_SIZE(bare); i++)
                if (!equals && str_eq(word, bare[i])) {
                        *ret = (struct flag){ .word = bare[i] };
                        return 0;
                }
        for (size_t i = 0; i < word.n && word.n < sizeof name; i++)
                name[i] = word.p[i] == '-' ? '_' : word.p[i] == '_' ? '-' : word.p[i];
        const struct setting *s = setting_find(str_c(name));
        if (!s && !str_eq(word, "config"))
                return fail_user(e, -EINVAL, "unknown flag '--%s'; did you mean '%s'?",
                                 echo_value(word, shown), setting_flag(setting_nearest(word), flag));
        if (!equals && ++*at >= argc)
                return fail_user(e, -EINVAL, "the flag '%s' needs a value",
                                 echo_value(str_c(arg), shown));
        *ret = (struct flag){ s, s ? NULL : "config", str_c(equals ? equals + 1 : argv[*at]) };
        return 0;
}

/* First pass: which file, and what else was asked for. Also checks all flags' names, so
 * that a typo is reported before a file that is not there. */
static int scan_flags(struct config *c, int argc, char **argv, const char **file, struct err *e)
{
        for (int i = 1; i < argc; i++) {
                struct flag f;
                int r = take_flag(argc, argv, &i, &f, e);
                if (r < 0)
                        return r;
                if (!f.word)
                        continue;
                if (strcmp(f.word, "config") == 0)
                        *file = f.value.p;
                else if (strcmp(f.word, "help") == 0)
                        c->help = true;
                else
                        c->print_config = true;
        }
        return 0;
}

static int load_file(struct config *c, const char *file, struct err *e)
{
        if (!file)
                file = getenv("CLOCHE_CONFIG");
        if (file && *file)
                return config_read_file(c, file, e);
        if (access(CONFIG_DEFAULT_FILE, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR))
                return 0;
        return config_read_file(c, CONFIG_DEFAULT_FILE, e);
}

/* Only our own names are looked for: in a Kubernetes pod others of that prefix appear by
 * themselves (CLOCHE_SERVICE_HOST). An empty variable counts as not set. */
static int load_env(struct config *c, struct err *e)
{
        for (size_t i = 0; i < setting_count; i++) {
                char name[SETTING_NAME_BYTES];
                const char *value = getenv(setting_env(&settings[i], name));
                if (!value || !*value)
                        continue;
                struct err inner = { 0 };
                int r = setting_set(c, &settings[i], str_c(value), &inner);
                if (r < 0)
                        return fail_user(e, r, "environment %s: %s", name, inner.msg);
                c->origins[i] = (struct config_origin){ .source = FROM_ENV };
        }
        return 0;
}

static int load_flags(struct config *c, int argc, char **argv, struct err *e)
{
        for (int i = 1; i < argc; i++) {
                struct flag f;
                struct err inner = { 0 };
                int r = take_flag(argc, argv, &i, &f, e);
                if (r < 0)
                        return r;
                if (!f.setting)
                        continue;
                r = setting_set(c, f.setting, f.value, &inner);
                char name[SETTING_NAME_BYTES];
                if (r < 0)
                        return fail_user(e, r, "flag %s: %s", setting_flag(f.setting, name),
                                         inner.msg);
                c->origins[f.setting - settings] = (struct config_origin){ .source = FROM_FLAG };
        }
        return 0;
}

static int load_key_file(struct config *c, struct err *e)
{
        const struct setting *key = setting_find(STR("api_key"));
        const struct setting *key_file = setting_find(STR("api_key_file"));
        if (!c->api_key_file)
                return 0;
        enum config_source a = c->origins[key - settings].source;
        enum config_source b = c->origins[key_file - settings].source;
        if (c->api_key && a == b)
                return fail_user(e, -EINVAL, "both api_key and api_key_file are set; keep one");
        if (c->api_key && a > b)
                return 0; /* the stronger source wins, as between one setting's two values */
        char *text = NULL;
        struct err inner = { 0 };
        int r = config_slurp(c->api_key_file, KEY_FILE_MAX_BYTES, &text, &inner);
        if (r < 0)
                return fail_user(e, r, "api_key_file: %s", inner.msg);
        struct str value = { text, strcspn(text, "\r\n") };
        /* A second line is a mistake, not a part of the key. */
        if (text[value.n + strspn(text + value.n, "\r\n")])
                r = fail_user(&inner, -EINVAL, "more than one line");
        else if (value.n == 0)
                r = fail_user(&inner, -EINVAL, "the file is empty");
        else
                r = setting_set(c, key, value, &inner);
        free_secret(text);
        if (r == 0) /* for --print-config: not where a weaker key came from */
                c->origins[key - settings] = (struct config_origin){ .source = FROM_DEFAULT };
        return r < 0 ? fail_user(e, r, "api_key_file %s: %s", c->api_key_file, inner.msg) : 0;
}

static int check_pairs(const struct config *c, struct err *e)
{
        const struct {
                const char *low, *high;
                uint64_t a, b;
        } pairs[] = {
                { "default_cpu", "max_cpu", c->default_cpu, c->max_cpu },
                { "default_memory", "max_memory", c->default_memory, c->max_memory },
                { "default_storage", "max_storage", c->default_storage, c->max_storage },
                { "default_ttl_seconds", "max_ttl_seconds", c->default_ttl_seconds,
                  c->max_ttl_seconds },
                { "default_exec_timeout_seconds", "max_exec_timeout_seconds",
                  c->default_exec_timeout_seconds, c->max_exec_timeout_seconds },
                { "pool_size", "max_sandboxes", c->pool_size, c->max_sandboxes },
        };
        for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
                if (pairs[i].a <= pairs[i].b)
                        continue;
                _cleanup_free_ char *a = setting_text(c, setting_find(str_c(pairs[i].low)));
                _cleanup_free_ char *b = setting_text(c, setting_find(str_c(pairs[i].high)));
                return fail_user(e, -EINVAL, "%s (%s) is larger than %s (%s)", pairs[i].low,
                                 a ? a : "?", pairs[i].high, b ? b : "?");
        }
        return 0;
}

static int check_whole(const struct config *c, struct err *e)
{
        if (!c->state_dir)
                return fail_user(e, -EINVAL,
                                 "no home directory to keep state in; name one with --state-dir");
        if (!c->listen || !c->image || !c->cgroup_root)
                return fail_host(e, -ENOMEM, "out of memory");
        int r = check_pairs(c, e);
        if (r == 0)
                r = config_check_images(c, e);
        if (r < 0)
                return r;
        if (!c->api_key && !config_listen_is_loopback(c))
                return fail_user(e, -EPERM,
                                 "listening on %s would let anyone who reaches it run code here: "
                                 "set an API key (api_key_file) or listen on 127.0.0.1 or a unix "
                                 "socket", c->listen);
        return 0;
}

int config_load(struct config *c, int argc, char **argv, struct err *e)
{
        const char *file = NULL;
        int r = scan_flags(c, argc, argv, &file, e);
        if (r < 0 || c->help)
                return r;
        r = load_file(c, file, e);
        if (r == 0)
                r = load_env(c, e);
        if (r == 0)
                r = load_flags(c, argc, argv, e);
        if (r == 0)
                r = load_key_file(c, e);
        return r < 0 ? r : check_whole(c, e);
}
