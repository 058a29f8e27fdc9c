/* One row a setting. Numbers come from base/limits.h, which says why they are so; the
 * help text is what --help prints, and etc/cloche.conf says more. */
#include "config/config_table.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"

/* In the order of enum log_level. */
static const char *const log_levels[] = { "debug", "info", "warn", "error", NULL };
static const char *const log_formats[] = { "text", "json", NULL };
static const char *const on_exits[] = { "keep", "delete", NULL };
static const char *const engines[] = { "embedded", NULL };
static_assert(ARRAY_SIZE(log_levels) == LOG_LEVEL_MAX + 1, "a word for each");
static_assert(ARRAY_SIZE(log_formats) == LOG_FORMAT_MAX + 1, "a word for each");
static_assert(ARRAY_SIZE(on_exits) == ON_EXIT_MAX + 1, "a word for each");

#define AT(field) .offset = offsetof(struct config, field)
#define TEXT(field, kind, value, part, words)                                            \
        { .name = #field, .type = kind, AT(field), .text = value, .section = part,       \
          .help = words }
#define CHOICE(field, list, index, part, words)                                          \
        { .name = #field, .type = SET_CHOICE, AT(field), .choices = list,                \
          .number = index, .section = part, .help = words }
#define NUMBER(field, kind, value, least, most, part, words)                             \
        { .name = #field, .type = kind, AT(field), .number = value, .min = least,        \
          .max = most, .section = part, .help = words }

/* Bounds that are not limits of ours but of the thing itself. */
#define ANY_BYTES (1ull << 50)
#define DAY 86400
#define YEARS_100 (36500ll * DAY)

const struct setting settings[] = {
        TEXT(listen, SET_LISTEN, "127.0.0.1:8080", "server", "where to listen"),
        TEXT(state_dir, SET_PATH, "/var/lib/cloche", "server",
             "directory for the store, images and sockets"),
        TEXT(api_key, SET_SECRET, NULL, "server",
             "key that clients must send (prefer api_key_file: flags show in ps)"),
        TEXT(api_key_file, SET_PATH, NULL, "server", "file that holds the key"),
        CHOICE(log_level, log_levels, LOG_INFO, "server", "least level that is logged"),
        CHOICE(log_format, log_formats, LOG_FORMAT_TEXT, "server", "one line each, as"),
        CHOICE(on_exit, on_exits, ON_EXIT_KEEP, "server",
               "what happens to sandboxes when the server ends"),
        NUMBER(grace_seconds, SET_SECONDS, DEFAULT_GRACE_SECONDS, 0, DAY, "server",
               "how long running requests may finish on SIGTERM"),
        CHOICE(engine, engines, 0, "server", "how sandboxes come to life"),
        TEXT(cgroup_root, SET_NAME, "cloche", "server",
             "name of the cgroup above all sandboxes"),
        /* Below 65536 are the users of the host and its nobody. */
        NUMBER(uid_base, SET_COUNT, 524288, 65536, 4000000000u, "server",
               "first host uid for sandboxes, when run as root"),

        TEXT(image, SET_IMAGE, CONFIG_HOST_IMAGE, "sandboxes", "image when none is asked for"),
        TEXT(image_fallback, SET_IMAGE, NULL, "sandboxes",
             "image for requests that name an unknown one; empty: refuse them"),
        NUMBER(max_sandboxes, SET_COUNT, LIMIT_BOXES, 1, 100000, "sandboxes",
               "how many may live at once"),
        NUMBER(pool_size, SET_COUNT, DEFAULT_POOL_SIZE, 0, 1000, "sandboxes",
               "ready sandboxes of the default shape; 0: none"),
        NUMBER(default_cpu, SET_CPU, DEFAULT_CPU_MILLIS, MIN_CPU_MILLIS, MAX_CPU_MILLIS,
               "sandboxes", "cores of a sandbox that asks for none"),
        NUMBER(max_cpu, SET_CPU, MAX_CPU_MILLIS, MIN_CPU_MILLIS, MAX_CPU_MILLIS, "sandboxes",
               "most cores that a request may ask for"),
        NUMBER(default_memory, SET_BYTES, DEFAULT_MEMORY_BYTES, MIN_MEMORY_BYTES,
               MAX_MEMORY_BYTES, "sandboxes", "memory of a sandbox that asks for none"),
        NUMBER(max_memory, SET_BYTES, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES,
               "sandboxes", "most memory that a request may ask for"),
        NUMBER(default_storage, SET_BYTES, DEFAULT_STORAGE_BYTES, MIN_STORAGE_BYTES,
               MAX_STORAGE_BYTES, "sandboxes", "storage of a sandbox that asks for none"),
        NUMBER(max_storage, SET_BYTES, MAX_STORAGE_BYTES, MIN_STORAGE_BYTES,
               MAX_STORAGE_BYTES, "sandboxes", "most storage that a request may ask for"),
        NUMBER(default_pids, SET_COUNT, DEFAULT_PIDS, 8, 4194304, "sandboxes",
               "processes and threads in a sandbox"),
        NUMBER(default_ttl_seconds, SET_SECONDS, DEFAULT_TTL_SECONDS, 1, YEARS_100,
               "sandboxes", "life of a sandbox that asks for none"),
        NUMBER(max_ttl_seconds, SET_SECONDS, LIMIT_TTL_SECONDS, 1, YEARS_100, "sandboxes",
               "longest life that a request may ask for"),

        NUMBER(default_exec_timeout_seconds, SET_SECONDS, DEFAULT_EXEC_TIMEOUT_SECONDS, 1,
               YEARS_100, "execs", "when a command that names no timeout is killed"),
        NUMBER(max_exec_timeout_seconds, SET_SECONDS, LIMIT_EXEC_TIMEOUT_SECONDS, 1, YEARS_100,
               "execs", "longest timeout that a request may ask for"),
        NUMBER(output_bytes, SET_BYTES, LIMIT_OUTPUT_BYTES, 1024, 1ull << 30, "execs",
               "how much is kept of each stream of a command"),
        NUMBER(execs_per_sandbox, SET_COUNT, LIMIT_EXECS_PER_BOX, 1, LIMIT_EXECS_PER_BOX, "execs",
               "commands that run at once in one sandbox"),
        NUMBER(heartbeat_seconds, SET_SECONDS, EXEC_HEARTBEAT_MS / 1000, 1, DAY, "execs",
               "white space is sent this often while a command runs"),

        NUMBER(upload_bytes, SET_BYTES, LIMIT_UPLOAD_BYTES, 1024, ANY_BYTES, "transfers",
               "largest upload, as sent"),
        NUMBER(unpacked_bytes, SET_BYTES, LIMIT_UNPACKED_BYTES, 1024, ANY_BYTES, "transfers",
               "largest upload, unpacked"),
        NUMBER(upload_members, SET_COUNT, LIMIT_UPLOAD_MEMBERS, 1, 1000000000, "transfers",
               "most files in an upload"),
        NUMBER(stall_seconds, SET_SECONDS, LIMIT_STALL_SECONDS, 1, DAY, "transfers",
               "a transfer in which the sandbox does nothing is given up after"),

        NUMBER(json_body_bytes, SET_BYTES, LIMIT_JSON_BODY_BYTES, 1024, 1ull << 30, "http",
               "largest JSON body"),
        NUMBER(head_bytes, SET_BYTES, LIMIT_HEAD_BYTES, 1024, 16ull << 20, "http",
               "largest request head"),
        NUMBER(header_count, SET_COUNT, LIMIT_HEADER_COUNT, 8, 10000, "http",
               "most headers of a request"),
        NUMBER(connections, SET_COUNT, LIMIT_CONNECTIONS, 1, 1000000, "http",
               "most connections at once"),
        NUMBER(head_timeout_seconds, SET_SECONDS, LIMIT_HEAD_TIMEOUT_MS / 1000, 1, DAY, "http",
               "a request head must be complete after"),
        NUMBER(idle_timeout_seconds, SET_SECONDS, LIMIT_IDLE_TIMEOUT_MS / 1000, 1, DAY, "http",
               "an idle connection is closed after"),
        NUMBER(body_timeout_seconds, SET_SECONDS, LIMIT_BODY_TIMEOUT_MS / 1000, 1, DAY, "http",
               "a body that stands still is given up after"),
        NUMBER(write_timeout_seconds, SET_SECONDS, LIMIT_WRITE_TIMEOUT_MS / 1000, 1, DAY,
               "http", "a reader that takes nothing is given up after"),
};

const size_t setting_count = ARRAY_SIZE(settings);
static_assert(ARRAY_SIZE(settings) <= CONFIG_SETTINGS_MAX, "raise CONFIG_SETTINGS_MAX");

const struct setting *setting_find(struct str name)
{
        for (size_t i = 0; i < setting_count; i++)
                if (str_eq(name, settings[i].name))
                        return &settings[i];
        return NULL;
}

static char fold(char c)
{
        return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

/* "default_ttl" is a whole name cut short, however many letters that is. */
static bool is_beginning(struct str a, const char *b)
{
        for (size_t i = 0; i < a.n; i++)
                if (fold(a.p[i]) != b[i])
                        return false;
        return a.n >= 3;
}

/* Edit distance (Levenshtein), with one row of the matrix. Dashes and capitals count as
 * what they stand for. */
static size_t distance(struct str a, const char *b)
{
        size_t row[SETTING_NAME_BYTES], n = strlen(b);
        assert(n < SETTING_NAME_BYTES);
        for (size_t j = 0; j <= n; j++)
                row[j] = j;
        for (size_t i = 0; i < a.n; i++) {
                char ch = fold(a.p[i]);
                size_t diagonal = row[0];
                row[0] = i + 1;
                for (size_t j = 0; j < n; j++) {
                        size_t best = diagonal + (ch != b[j]);
                        if (row[j] + 1 < best)
                                best = row[j] + 1;
                        if (row[j + 1] + 1 < best)
                                best = row[j + 1] + 1;
                        diagonal = row[j + 1];
                        row[j + 1] = best;
                }
        }
        return row[n];
}

const struct setting *setting_nearest(struct str name)
{
        const struct setting *best = &settings[0];
        size_t least = SIZE_MAX;
        if (name.n > SETTING_NAME_BYTES)
                name.n = SETTING_NAME_BYTES; /* no name is that long: enough to compare */
        for (size_t i = 0; i < setting_count; i++) {
                size_t d = is_beginning(name, settings[i].name)
                                   ? 1
                                   : distance(name, settings[i].name);
                if (d < least) {
                        least = d;
                        best = &settings[i];
                }
        }
        return best;
}

const char *setting_env(const struct setting *s, char out[SETTING_NAME_BYTES])
{
        size_t at = strlen("CLOCHE_");
        memcpy(out, "CLOCHE_", at);
        for (const char *p = s->name; *p && at < SETTING_NAME_BYTES - 1; p++)
                out[at++] = (char)toupper((unsigned char)*p);
        out[at] = '\0';
        return out;
}

const char *setting_flag(const struct setting *s, char out[SETTING_NAME_BYTES])
{
        size_t at = 2;
        memcpy(out, "--", 2);
        for (const char *p = s->name; *p && at < SETTING_NAME_BYTES - 1; p++)
                out[at++] = *p == '_' ? '-' : *p;
        out[at] = '\0';
        return out;
}
