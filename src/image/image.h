/* Where a rootfs comes from: the host's own /usr, a directory, or a tarball that is
 * unpacked once into STATE_DIR/images. Everything here blocks (it copies and runs tar):
 * it is for the start of the server, not for its loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define IMAGE_HOST_BINDS_MAX 8
#define IMAGE_SANDBOX_UID 1000 /* user "sandbox" inside; owns /workspace */

struct image {
        char *name;
        char *path; /* absolute, a directory; may hold any byte but NUL */
        bool is_host; /* path is a skeleton: bind the host's /usr over its usr */
};

/* path NULL means the host image. Unpacks or builds what is missing below
 * STATE_DIR/images, which it makes. */
int image_open(const char *state_dir, const char *name, const char *path, struct image *ret,
               struct err *e);
void image_free(struct image *i);

/* Builds (or finds up to date) the skeleton root of the host image as NAME in parent. An
 * outdated one is exchanged atomically and set aside as ".old-..." for image_sweep(),
 * since sandboxes that were made on it may still live. */
int image_make_host_skeleton(int parent, const char *name, struct err *e);
/* Directories of the host to bind read-only over the skeleton's of the same name: "/usr"
 * first, then those that are no links into it ("/bin" on hosts without a merged /usr).
 * Returns how many; the strings are static. */
size_t image_host_binds(const char *ret[IMAGE_HOST_BINDS_MAX]);

/* Removes from STATE_DIR/images everything but the directories of these images. Only for
 * when no sandbox lives: a mounted image must not lose its files. */
int image_sweep(const char *state_dir, const struct image *keep, size_t n, struct err *e);

#define _cleanup_image_ _cleanup_(image_free)
