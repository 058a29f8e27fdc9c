/* The one error idiom: functions return 0 (or a value) on success and -errno on
 * failure; a struct err, where given, carries the sentence for a person. Library
 * code returns, program code logs: nothing does both. */
#pragma once

#include "base/cleanup.h"

/* Whose fault it is decides between 4xx and 5xx, and between log levels. */
enum err_blame { ERR_HOST, ERR_USER };

struct err {
        int code; /* -errno, 0 when unset */
        enum err_blame blame;
        char msg[384];
};

/* Both return code, so that a failing function ends in one line. e may be NULL. */
int fail_host(struct err *e, int code, const char *fmt, ...) _printf_(3, 4);
int fail_user(struct err *e, int code, const char *fmt, ...) _printf_(3, 4);
