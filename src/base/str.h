/* Counted strings for bytes that come from strangers. They become C strings only
 * through str_dup_c(), which refuses embedded NULs: "allowed\0.evil" cannot pass. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct str {
        const char *p;
        size_t n;
};

#define STR(literal) ((struct str){ (literal), sizeof(literal) - 1 })

struct str str_c(const char *s);
bool str_eq(struct str a, const char *b);
/* ASCII case folded, for header names and the like. */
bool str_eq_fold(struct str a, const char *b);
bool str_has_prefix(struct str s, const char *prefix);
/* Takes the time that the longer of both needs, whatever they hold: for secrets. */
bool str_eq_secret(struct str a, struct str b);
/* A NUL-terminated copy; NULL on an embedded NUL or without memory. */
char *str_dup_c(struct str s);
/* Strict decimal: digits only, no sign, no blanks, no overflow past max. */
bool str_to_u64(struct str s, uint64_t max, uint64_t *ret);
/* Percent-decodes src into dst (room for src.n bytes). '+' becomes a space when
 * plus is set. False on a malformed escape. */
bool str_unescape(struct str src, bool plus, char *dst, size_t *ret_n);
/* Is this valid UTF-8 (no surrogates, no overlong forms)? */
bool str_is_utf8(struct str s);
