/* Time. Deadlines are monotonic; the wall clock is only for what people and the
 * store see (a deadline must mean the same after a restart). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define NS_PER_MS 1000000ull
#define NS_PER_SEC 1000000000ull

uint64_t now_ns(void);      /* CLOCK_MONOTONIC */
int64_t now_wall_ms(void);  /* since 1970 */
/* "2026-01-02T12:34:56Z"; out needs 24 bytes. */
void format_utc(int64_t wall_ms, char *out, size_t size);
/* "2026-01-02T12:34:56.789Z", for logs. */
void format_utc_ms(int64_t wall_ms, char *out, size_t size);
