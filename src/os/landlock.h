/* The server's own cage: it parses bytes from strangers, so it keeps no power that it does
 * not use. */
#pragma once

#include "base/err.h"

/* From here on this process can write below state_dir only, read little else, and execute
 * nothing; it has no capability and cannot get one. Returns 0, or 1 when the kernel has no
 * Landlock (the rest is in force then). */
int lockdown_server(const char *state_dir, struct err *e);
