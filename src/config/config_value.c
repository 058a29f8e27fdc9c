/* From text to a field of struct config and back, by the setting's type. */
#include "config/config_table.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/quantity.h"

#define KEY_LEAST_BYTES 16 /* guessing 16 random printable bytes is out of reach */

static void *field(struct config *c, const struct setting *s)
{
        return (char *)c + s->offset;
}

static const void *const_field(const struct config *c, const struct setting *s)
{
        return (const char *)c + s->offset;
}

/* What no value may hold whatever its type, since --print-config could not write it. */
static int check_plain(struct str v, struct err *e)
{
        char shown[ECHO_BYTES];
        for (size_t i = 0; i < v.n; i++)
                if ((unsigned char)v.p[i] < ' ' || v.p[i] == 0x7f)
                        return fail_user(e, -EINVAL, "the value holds a control character");
        if (v.n && (v.p[0] == '"' || v.p[0] == '\''))
                return fail_user(e, -EINVAL, "values are written without quotes");
        if (v.n && (v.p[0] == ' ' || v.p[v.n - 1] == ' ' || memmem(v.p, v.n, " #", 2)))
                return fail_user(e, -EINVAL,
                                 "'%s' begins or ends with a blank or holds ' #', which begins "
                                 "a comment", echo_value(v, shown));
        return 0;
}

static int check_key(struct str v, struct err *e)
{
        bool plain = true;
        for (size_t i = 0; i < v.n; i++)
                if (v.p[i] <= ' ' || v.p[i] >= 0x7f || v.p[i] == '/')
                        plain = false;
        /* The key may stand in a path (/k/KEY/...) and in a header. */
        if (v.n < KEY_LEAST_BYTES || !plain)
                return fail_user(e, -EINVAL,
                                 "an API key needs at least %d printable ASCII characters, "
                                 "without blanks and '/' (openssl rand -hex 24 makes a good one)",
                                 KEY_LEAST_BYTES);
        return 0;
}

static int check_path(struct str v, struct err *e)
{
        char shown[ECHO_BYTES];
        if (v.p[0] != '/' || v.n >= 4096)
                return fail_user(e, -EINVAL, "'%s' is not an absolute path",
                                 echo_value(v, shown));
        return 0;
}

static int check_name(struct str v, struct err *e)
{
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._-";
        char shown[ECHO_BYTES];
        bool ok = v.n <= 64 && v.p[0] != '.';
        for (size_t i = 0; i < v.n; i++)
                ok = ok && strchr(allowed, v.p[i]);
        if (!ok)
                return fail_user(e, -EINVAL,
                                 "'%s' is not a name: letters, digits, '.', '_' and '-' are "
                                 "allowed, and no '.' in front", echo_value(v, shown));
        return 0;
}

static int check_text(const struct setting *s, struct str v, struct err *e)
{
        char shown[ECHO_BYTES];
        switch (s->type) {
        case SET_SECRET:
                return check_key(v, e);
        case SET_PATH:
                return check_path(v, e);
        case SET_NAME:
                return check_name(v, e);
        case SET_IMAGE:
                if (!config_image_name_ok(v))
                        return fail_user(e, -EINVAL, "'%s' is not an image name",
                                         echo_value(v, shown));
                return 0;
        default: { /* SET_LISTEN */
                _cleanup_free_ char *copy = str_dup_c(v);
                struct sockaddr_storage a;
                socklen_t n;
                return copy ? config_parse_listen(copy, &a, &n, e) : -ENOMEM;
        }
        }
}

static int set_text(struct config *c, const struct setting *s, struct str v, struct err *e)
{
        char **at = field(c, s), *copy = NULL;
        if (v.n == 0 && s->text)
                return fail_user(e, -EINVAL, "a value is missing");
        if (v.n > 0) {
                int r = check_text(s, v, e);
                if (r < 0)
                        return r;
                copy = str_dup_c(v);
                if (!copy)
                        return fail_host(e, -ENOMEM, "out of memory");
        }
        free(*at);
        *at = copy;
        return 0;
}

static int set_choice(struct config *c, const struct setting *s, struct str v, struct err *e)
{
        char shown[ECHO_BYTES];
        _cleanup_buf_ struct buf list = { 0 };
        for (unsigned i = 0; s->choices[i]; i++) {
                if (str_eq(v, s->choices[i])) {
                        *(unsigned *)field(c, s) = i;
                        return 0;
                }
                buf_addf(&list, "%s%s", i ? ", " : "", s->choices[i]);
        }
        const char *words = buf_cstr(&list);
        return fail_user(e, -EINVAL, "'%s' is not one of: %s", echo_value(v, shown),
                         words ? words : "");
}

static const char *number_text(const struct setting *s, uint64_t v,
                               char out[QUANTITY_TEXT_BYTES])
{
        if (s->type == SET_CPU)
                return quantity_cpu_text(v, out);
        if (s->type == SET_BYTES)
                return quantity_bytes_text(v, out);
        (void)snprintf(out, QUANTITY_TEXT_BYTES, "%llu", (unsigned long long)v);
        return out;
}

static int set_number(struct config *c, const struct setting *s, struct str v, struct err *e)
{
        char shown[ECHO_BYTES], least[QUANTITY_TEXT_BYTES], most[QUANTITY_TEXT_BYTES];
        uint64_t n;
        int r = 0;
        if (s->type == SET_CPU)
                r = quantity_cpu(v, &n, e);
        else if (s->type == SET_BYTES)
                r = quantity_bytes(v, &n, e);
        else if (!str_to_u64(v, UINT64_MAX, &n))
                r = fail_user(e, -EINVAL, "'%s' is not a %s", echo_value(v, shown),
                              s->type == SET_SECONDS ? "number of seconds (digits only)"
                                                     : "whole number (digits only)");
        if (r < 0)
                return r;
        if (n < s->min || n > s->max)
                return fail_user(e, -ERANGE, "'%s' is out of range: from %s to %s are possible",
                                 echo_value(v, shown), number_text(s, s->min, least),
                                 number_text(s, s->max, most));
        *(uint64_t *)field(c, s) = n;
        return 0;
}

static bool is_text(const struct setting *s)
{
        return s->type == SET_LISTEN || s->type == SET_PATH || s->type == SET_SECRET ||
               s->type == SET_NAME || s->type == SET_IMAGE;
}

int setting_set(struct config *c, const struct setting *s, struct str value, struct err *e)
{
        int r = s->type == SET_SECRET ? 0 : check_plain(value, e);
        if (r < 0)
                return r;
        if (is_text(s))
                return set_text(c, s, value, e);
        return s->type == SET_CHOICE ? set_choice(c, s, value, e) : set_number(c, s, value, e);
}

int setting_default(struct config *c, const struct setting *s)
{
        if (is_text(s))
                return set_text(c, s, str_c(s->text ? s->text : ""), NULL);
        if (s->type == SET_CHOICE)
                *(unsigned *)field(c, s) = (unsigned)s->number;
        else
                *(uint64_t *)field(c, s) = s->number;
        return 0;
}

char *setting_text(const struct config *c, const struct setting *s)
{
        char out[QUANTITY_TEXT_BYTES];
        if (is_text(s)) {
                const char *text = *(char *const *)const_field(c, s);
                return strdup(text ? text : "");
        }
        if (s->type == SET_CHOICE)
                return strdup(s->choices[*(const unsigned *)const_field(c, s)]);
        return strdup(number_text(s, *(const uint64_t *)const_field(c, s), out));
}
