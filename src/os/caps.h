/* Capabilities: which ones an agent keeps, and that a command has none. */
#pragma once

#include <stdint.h>

/* What an agent needs in its own user namespace, as a bit mask. */
uint64_t caps_agent_mask(void);
/* Drops the whole bounding set, clears inheritable and ambient, locks securebits so that
 * uid 0 means nothing and nothing can be regained by exec. 0 or -errno. */
int caps_lock(void);
/* Sets effective and permitted to mask. 0 or -errno. */
int caps_set(uint64_t mask);
/* The effective set of this process; 0 when it cannot be read. */
uint64_t caps_effective(void);
