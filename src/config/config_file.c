/* The file: "key = value" lines, '#' begins a comment at the start of a line or after a
 * blank, and one section, [images], which comes last. */
#include "config/config_table.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/quantity.h"

#define FILE_MAX_BYTES (1024 * 1024)

int config_slurp(const char *path, size_t max, char **ret, struct err *e)
{
        /* Not blocking: a FIFO by that name must not hang the start. */
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0)
                return fail_user(e, -errno, "cannot read %s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return fail_user(e, -EINVAL, "%s is not a regular file", path);
        _cleanup_free_ char *text = malloc(max + 2);
        if (!text)
                return fail_host(e, -ENOMEM, "out of memory");
        size_t n = 0;
        for (;;) {
                ssize_t got = read(fd, text + n, max + 1 - n);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return fail_user(e, -errno, "cannot read %s: %s", path, strerror(errno));
                if (got == 0)
                        break;
                n += (size_t)got;
                if (n > max)
                        return fail_user(e, -EFBIG, "%s is larger than %zu bytes", path, max);
        }
        if (memchr(text, 0, n))
                return fail_user(e, -EINVAL, "%s holds a NUL byte and is no text file", path);
        text[n] = '\0';
        *ret = steal_ptr(&text);
        return 0;
}

static bool is_blank(char c)
{
        return c == ' ' || c == '\t' || c == '\r';
}

static struct str trim(struct str s)
{
        while (s.n && is_blank(s.p[0])) {
                s.p++;
                s.n--;
        }
        while (s.n && is_blank(s.p[s.n - 1]))
                s.n--;
        return s;
}

static struct str without_comment(struct str s)
{
        for (size_t i = 0; i < s.n; i++)
                if (s.p[i] == '#' && (i == 0 || is_blank(s.p[i - 1])))
                        s.n = i;
        return s;
}

struct reader {
        struct config *c;
        const char *path;
        unsigned line;
        bool in_images;
};

/* Puts file and line before a sentence that says only what is wrong. */
static int at_line(const struct reader *r, int code, const char *what, const struct err *inner,
                   struct err *e)
{
        return fail_user(e, code, "%s:%u: %s%s%s", r->path, r->line, what, *what ? ": " : "",
                         inner->msg);
}

static int read_section(struct reader *r, struct str line, struct err *e)
{
        char shown[ECHO_BYTES];
        if (!str_eq(line, "[images]"))
                return fail_user(e, -EINVAL,
                                 "%s:%u: unknown section '%s'; the only section is [images], and "
                                 "settings stand above it", r->path, r->line,
                                 echo_value(line, shown));
        r->in_images = true;
        return 0;
}

static int read_image(struct reader *r, struct str key, struct str value, struct err *e)
{
        struct err inner = { 0 };
        if (setting_find(key))
                return fail_user(e, -EINVAL,
                                 "%s:%u: '%.*s' is a setting and must stand above [images]",
                                 r->path, r->line, (int)key.n, key.p);
        int x = config_add_image(r->c, key, value, r->line, &inner);
        return x < 0 ? at_line(r, x, "", &inner, e) : 0;
}

static int read_setting(struct reader *r, struct str key, struct str value, struct err *e)
{
        char shown[ECHO_BYTES];
        const struct setting *s = setting_find(key);
        if (!s)
                return fail_user(e, -EINVAL, "%s:%u: unknown setting '%s'; did you mean '%s'?",
                                 r->path, r->line, echo_value(key, shown),
                                 setting_nearest(key)->name);
        struct config_origin *origin = &r->c->origins[s - settings];
        if (origin->source == FROM_FILE)
                return fail_user(e, -EEXIST, "%s:%u: '%s' was already set in line %u", r->path,
                                 r->line, s->name, origin->line);
        struct err inner = { 0 };
        int x = setting_set(r->c, s, value, &inner);
        if (x < 0)
                return at_line(r, x, s->name, &inner, e);
        *origin = (struct config_origin){ FROM_FILE, r->line };
        return 0;
}

static int read_line(struct reader *r, struct str line, struct err *e)
{
        line = trim(without_comment(line));
        if (line.n == 0)
                return 0;
        if (line.p[0] == '[')
                return read_section(r, line, e);
        const char *equals = memchr(line.p, '=', line.n);
        if (!equals)
                /* Not echoed: it may be a key whose '=' was forgotten. */
                return fail_user(e, -EINVAL, "%s:%u: the line is not of the form 'name = value'",
                                 r->path, r->line);
        size_t at = (size_t)(equals - line.p);
        struct str key = trim((struct str){ line.p, at });
        struct str value = trim((struct str){ equals + 1, line.n - at - 1 });
        return r->in_images ? read_image(r, key, value, e) : read_setting(r, key, value, e);
}

int config_read_file(struct config *c, const char *path, struct err *e)
{
        _cleanup_free_ char *text = NULL;
        int r = config_slurp(path, FILE_MAX_BYTES, &text, e);
        if (r < 0)
                return r;
        free(c->file);
        c->file = strdup(path);
        if (!c->file)
                return fail_host(e, -ENOMEM, "out of memory");
        struct reader reader = { .c = c, .path = path };
        for (const char *p = text; *p;) {
                size_t n = strcspn(p, "\n");
                reader.line++;
                r = read_line(&reader, (struct str){ p, n }, e);
                if (r < 0)
                        return r;
                p += n + (p[n] == '\n');
        }
        return 0;
}
