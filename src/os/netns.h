/* Is a network namespace that a sandbox had still as it was made? */
#pragma once

#include <stdbool.h>

/* Remembers what a fresh one looks like. net_fd: a namespace nobody used yet. */
int netns_baseline(int proc_fd, int own_net_fd, int net_fd);
/* True only when nothing can be told from a fresh one: no packet ever crossed lo, no
 * counter moved, no socket is left. The last tenant's processes must all be gone. */
bool netns_untouched(int proc_fd, int own_net_fd, int net_fd);
