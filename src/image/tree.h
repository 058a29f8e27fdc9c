/* Trees of files on the host: removing one, copying the public part of one. All access is
 * relative to directory fds and follows no link by accident. */
#pragma once

#include <stdbool.h>

#include "base/err.h"

/* Removes name and all below it; 0 also when there is none. */
int tree_remove(int dir, const char *name);

/* Copies a file, link or directory of the host into dst, skipping whatever could hold a
 * secret: what not everybody may read, sockets and devices, private keys, oversized
 * files. Modes become 0644, 0755; owners the caller's. With links_as_they_are links are
 * copied verbatim; without, a link stays a link only if it leads within its own directory
 * or into /usr (which sandboxes see), and otherwise becomes the file behind it. A source
 * that is not there is no error. */
int tree_copy_public(int src, const char *name, int dst, const char *dst_name,
                     bool links_as_they_are, struct err *e);

/* Removes device nodes below dir. */
int tree_strip_devices(int dir, struct err *e);
