/* Structured logs: one line each, JSON or text, on stderr. Values are escaped, so
 * that nothing a stranger sends can forge a line or drive a terminal. Only program
 * code logs (cli, the server's loop, keeper main); library code returns errors. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_LEVEL_MAX };

void log_setup(enum log_level least, bool json, const char *process);
bool log_level_from(const char *name, enum log_level *ret);
const char *log_level_name(enum log_level level);
bool log_enabled(enum log_level level);

/* Fields come as (key, value) pairs of C strings, closed by NULL:
 *      log_line(LOG_INFO, "sandbox created", "id", id, "pod", pod, NULL); */
void log_line(enum log_level level, const char *msg, ...) __attribute__((sentinel));
