/* The rows behind struct config, for the files of this folder and their test. */
#pragma once

#include "config/config.h"

enum setting_type {
        SET_LISTEN,
        SET_PATH,   /* absolute */
        SET_SECRET, /* never printed */
        SET_CHOICE,
        SET_NAME,   /* one directory name */
        SET_IMAGE,
        SET_COUNT,
        SET_SECONDS,
        SET_BYTES,
        SET_CPU,
        SETTING_TYPE_MAX
};

/* The environment variable CLOCHE_<NAME> and the flag --<name> are the name respelled,
 * so that the three cannot drift apart. */
struct setting {
        const char *name;
        enum setting_type type;
        size_t offset;          /* of its field in struct config */
        const char *text;       /* default of a text; NULL: none, and empty is allowed */
        uint64_t number;        /* default of a number */
        uint64_t min, max;
        const char *const *choices;
        const char *section;
        const char *help;
};

extern const struct setting settings[];
extern const size_t setting_count;

#define SETTING_NAME_BYTES 64

/* NULL when there is none of that name. */
const struct setting *setting_find(struct str name);
/* The valid name that is spelled most like this one. */
const struct setting *setting_nearest(struct str name);
const char *setting_env(const struct setting *s, char out[SETTING_NAME_BYTES]);
const char *setting_flag(const struct setting *s, char out[SETTING_NAME_BYTES]);

/* Parses, checks and stores one value; the sentence says what is wrong with the value
 * and not where it stood. */
int setting_set(struct config *c, const struct setting *s, struct str value, struct err *e);
/* The value in force as the file would spell it (also a secret). NULL without memory. */
char *setting_text(const struct config *c, const struct setting *s);
int setting_default(struct config *c, const struct setting *s);

int config_read_file(struct config *c, const char *path, struct err *e);
/* Every alias ends at an image, the default and the fallback exist. */
int config_check_images(const struct config *c, struct err *e);
int config_add_image(struct config *c, struct str name, struct str target, unsigned line,
                     struct err *e);
bool config_image_name_ok(struct str name);
/* The whole of a small text file, without NULs. */
int config_slurp(const char *path, size_t max, char **ret, struct err *e);
