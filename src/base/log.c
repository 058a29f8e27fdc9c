#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <assert.h>
#include <errno.h>

#include "base/buf.h"
#include "base/json_write.h"
#include "base/now.h"

static const char *const level_names[] = { "debug", "info", "warn", "error" };
static_assert(ARRAY_SIZE(level_names) == LOG_LEVEL_MAX, "a name for each level");

static struct {
        enum log_level least;
        bool json;
        const char *process;
} conf = { LOG_INFO, false, "cloche" };

void log_setup(enum log_level least, bool json, const char *process)
{
        conf.least = least;
        conf.json = json;
        conf.process = process;
}

bool log_level_from(const char *name, enum log_level *ret)
{
        for (unsigned i = 0; i < LOG_LEVEL_MAX; i++)
                if (strcmp(name, level_names[i]) == 0) {
                        *ret = (enum log_level)i;
                        return true;
                }
        return false;
}

const char *log_level_name(enum log_level level)
{
        return level_names[level];
}

bool log_enabled(enum log_level level)
{
        return level >= conf.least;
}

/* key=value, quoted when it holds anything but plain printable characters */
static void text_value(struct buf *b, const char *v)
{
        bool plain = *v != '\0';
        for (const char *p = v; *p; p++)
                if (*p <= ' ' || *p >= 0x7f || *p == '"' || *p == '=' || *p == '\\')
                        plain = false;
        if (plain) {
                buf_adds(b, v);
                return;
        }
        buf_addc(b, '"');
        /* json_escape keeps valid UTF-8; C1 controls in it (U+0080..9F) drive
         * terminals, so in text logs every non-ASCII byte is written as \xNN. */
        for (const char *p = v; *p; p++) {
                if ((unsigned char)*p >= 0x7f)
                        buf_addf(b, "\\x%02x", (unsigned char)*p);
                else
                        json_escape(b, p, 1);
        }
        buf_addc(b, '"');
}

void log_line(enum log_level level, const char *msg, ...)
{
        if (level < conf.least)
                return;
        int saved = errno;
        _cleanup_buf_ struct buf b = { 0 };
        char when[40];
        format_utc_ms(now_wall_ms(), when, sizeof when);
        va_list ap;
        va_start(ap, msg);
        if (conf.json) {
                struct json j = { .b = &b };
                json_open(&j, '{');
                json_kv(&j, "time", when);
                json_kv(&j, "level", level_names[level]);
                json_kv(&j, "process", conf.process);
                json_kv(&j, "msg", msg);
                for (const char *k; (k = va_arg(ap, const char *));) {
                        const char *v = va_arg(ap, const char *);
                        json_kv(&j, k, v ? v : "");
                }
                json_close(&j, '}');
        } else {
                buf_addf(&b, "%s %-5s %s: ", when, level_names[level], conf.process);
                buf_adds(&b, msg);
                for (const char *k; (k = va_arg(ap, const char *));) {
                        const char *v = va_arg(ap, const char *);
                        buf_addf(&b, " %s=", k);
                        text_value(&b, v ? v : "");
                }
        }
        va_end(ap);
        buf_addc(&b, '\n');
        if (buf_ok(&b))
                (void)!write(STDERR_FILENO, b.data, b.len);
        errno = saved;
}
