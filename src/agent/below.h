/* Names and paths below a directory that strangers may not leave. */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "os/sys.h"

/* Of a member of an archive: links are followed while they stay below. */
#define BELOW_DEST (RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
/* Of a path that a request names: absolute, and .. at the top stays at the top. */
#define BELOW_ROOT (RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
#define BELOW_DIR (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* A stranger's name as a path: no slash in front, no empty part, no ".". NULL, or the
 * reason why it cannot be one. */
const char *below_clean(const char *name, char out[LIMIT_PATH_BYTES]);
/* Does a symbolic link at path with this target stay below, going by the names alone? */
bool below_target(const char *path, const char *target);
/* The descriptor or -errno. */
int below_open(int base, const char *path, int flags, uint64_t resolve);
/* Opens the directory path (as BELOW_DIR) and makes what is missing of it, mode 0755.
 * path is written to and restored. */
int below_make(int base, char *path, uint64_t resolve);
