#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

static int fail_v(struct err *e, enum err_blame blame, int code, const char *fmt, va_list ap)
{
        if (e) {
                e->code = code;
                e->blame = blame;
                (void)vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        }
        return code;
}

int fail_host(struct err *e, int code, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int r = fail_v(e, ERR_HOST, code, fmt, ap);
        va_end(ap);
        return r;
}

int fail_user(struct err *e, int code, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int r = fail_v(e, ERR_USER, code, fmt, ap);
        va_end(ap);
        return r;
}
