/* Amounts as people write them in requests and in the configuration: cpu ("1", "500m",
 * "1.5") and bytes ("1Gi", "512Mi", "1.5G", "1048576"), in Kubernetes' notation. Strict:
 * a limit that is half understood is a limit that does not hold. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define QUANTITY_TEXT_BYTES 32
#define ECHO_BYTES 48

/* Both return -EINVAL for what is no quantity and -ERANGE for one past 64 bits. */
int quantity_cpu(struct str s, uint64_t *ret_millis, struct err *e);
int quantity_bytes(struct str s, uint64_t *ret, struct err *e);

/* The same, and -ERANGE outside of MIN_… and MAX_… of limits.h. */
int quantity_cpu_limit(struct str s, uint64_t *ret_millis, struct err *e);
int quantity_memory_limit(struct str s, uint64_t *ret, struct err *e);
int quantity_storage_limit(struct str s, uint64_t *ret, struct err *e);

/* The shortest exact spelling; both parsers read it back to the same number. Return out. */
const char *quantity_cpu_text(uint64_t millis, char out[QUANTITY_TEXT_BYTES]);
const char *quantity_bytes_text(uint64_t bytes, char out[QUANTITY_TEXT_BYTES]);

/* What a stranger sent, fit to stand in a sentence: printable ASCII, 40 characters at
 * most, then "...". Returns out. */
const char *echo_value(struct str s, char out[ECHO_BYTES]);
