/* /proc/meminfo and /proc/cpuinfo as the sandbox sees them: its limits, not the host's. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

void info_setup(int info_fd, uint64_t memory, int usage_fd);
void info_write_cpus(const char *block, unsigned cpus);
/* Brings meminfo up to date; called before each command starts. */
void info_refresh(void);
/* The text for a sandbox of that size of which used bytes are in use (pure). */
void info_format_memory(struct buf *out, uint64_t memory, uint64_t used);
