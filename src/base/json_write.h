/* Writing JSON. Parsing is jansson's; writing is ours because command output is
 * arbitrary bytes that libraries refuse, and because escaping a megabyte of it is
 * the dearest step of an exec's answer. Invalid UTF-8 becomes U+FFFD. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Appends the escaped bytes without quotes. Each invalid byte sequence becomes one
 * U+FFFD per byte that cannot start or continue a character. */
void json_escape(struct buf *b, const char *p, size_t n);

/* A flat writer: commas are its business, nesting is the caller's. */
struct json {
        struct buf *b;
        bool comma;
};

void json_open(struct json *j, char bracket);
void json_close(struct json *j, char bracket);
void json_key(struct json *j, const char *key);
void json_str(struct json *j, const char *p, size_t n);
void json_cstr(struct json *j, const char *s);
void json_int(struct json *j, int64_t v);
void json_bool(struct json *j, bool v);
/* key and value in one line */
void json_kv(struct json *j, const char *key, const char *s);
void json_kv_int(struct json *j, const char *key, int64_t v);
void json_kv_bool(struct json *j, const char *key, bool v);
