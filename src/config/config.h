/* What an operator can set, and where each value came from: a flag wins over the
 * environment, that over the file, that over the default. One table (config_table.c)
 * drives all four, the range checks and --print-config; etc/cloche.conf is the manual. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/str.h"

#define CONFIG_DEFAULT_FILE "/etc/cloche/cloche.conf"
#define CONFIG_HOST_IMAGE "host" /* built in: the host's own /usr */
#define CONFIG_SETTINGS_MAX 64   /* room for the table's rows */

enum config_source { FROM_DEFAULT, FROM_FILE, FROM_ENV, FROM_FLAG, CONFIG_SOURCE_MAX };
enum config_log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON, LOG_FORMAT_MAX };
enum config_on_exit { ON_EXIT_KEEP, ON_EXIT_DELETE, ON_EXIT_MAX };

struct config_origin {
        enum config_source source;
        unsigned line; /* FROM_FILE only */
};

struct config_image {
        char *name;
        char *target; /* an absolute path, or another image's name */
        unsigned line;
};

struct config {
        /* where and how it serves */
        char *listen;
        char *state_dir;
        char *api_key;      /* NULL without one; from api_key_file too */
        char *api_key_file; /* NULL without one */
        char *cgroup_root;
        uint64_t uid_base;
        unsigned engine;     /* only "embedded" for now */
        unsigned log_level;  /* enum log_level */
        unsigned log_format; /* enum config_log_format */
        unsigned on_exit;    /* enum config_on_exit */
        uint64_t grace_seconds;

        /* sandboxes */
        char *image;
        char *image_fallback; /* NULL: unknown images are refused */
        uint64_t max_sandboxes, pool_size;
        uint64_t default_cpu, max_cpu; /* thousandths of a core */
        uint64_t default_memory, max_memory;
        uint64_t default_storage, max_storage;
        uint64_t default_pids;
        uint64_t default_ttl_seconds, max_ttl_seconds;

        /* execs */
        uint64_t default_exec_timeout_seconds, max_exec_timeout_seconds;
        uint64_t output_bytes, execs_per_sandbox, heartbeat_seconds;

        /* transfers */
        uint64_t upload_bytes, unpacked_bytes, upload_members, stall_seconds;

        /* the HTTP edge */
        uint64_t json_body_bytes, head_bytes, header_count, connections;
        uint64_t head_timeout_seconds, idle_timeout_seconds;
        uint64_t body_timeout_seconds, write_timeout_seconds;

        struct config_image *images;
        size_t image_count;

        /* how it was asked for */
        char *file; /* the file that was read, NULL without one */
        bool print_config, help;
        struct config_origin origins[CONFIG_SETTINGS_MAX]; /* by row of the table */
};

/* All defaults, nothing allocated that config_free() does not know. Out of memory or
 * without a home for the state directory, config_load() says so. */
void config_init(struct config *c);
/* Reads file, environment and flags over the defaults, then checks the whole. argv[0] is
 * the verb and skipped. On failure c is only good for config_free(). */
int config_load(struct config *c, int argc, char **argv, struct err *e);
void config_free(struct config *c);

/* What is in force, in the file's syntax, each with where it came from. Secrets are
 * commented out and shown as "(set)". */
void config_print(const struct config *c, FILE *out);
/* The flags, one a line, for --help. */
void config_usage(FILE *out);

/* "127.0.0.1:8080", "[::1]:8080", "localhost:8080", ":8080" (all addresses) or
 * "unix:/path". Names are not looked up: what a name means may change. */
int config_parse_listen(const char *s, struct sockaddr_storage *ret, socklen_t *ret_n,
                        struct err *e);
/* 127.0.0.0/8, ::1 and unix sockets: nobody else's machine can connect. */
bool config_listen_is_loopback(const struct config *c);

/* Resolves a name as a request gave it (empty: the default image) through aliases and
 * image_fallback. *ret_name is the image behind the aliases; *ret_path its directory or
 * tarball, NULL for the built-in host. Both live as long as c. -ENOENT with a sentence
 * that lists the known images. */
int config_image_find(const struct config *c, struct str name, const char **ret_name,
                      const char **ret_path, struct err *e);

static inline void config_freep(struct config *c)
{
        config_free(c);
}
#define _cleanup_config_ _cleanup_(config_freep)
