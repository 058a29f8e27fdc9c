/* What `cloche serve` does before it serves: directories, lock, images, keeper, socket. */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "image/image.h"
#include "os/rootfs.h"

struct setup {
        int lock_fd;
        char *run_dir, *scratch, *store_path, *keeper_lock;
        struct image images[ROOTFS_MAX_IMAGES];
        size_t image_count;
        const struct config *config;
};

/* Makes the state directory and takes its lock: one server for each. */
int setup_state(struct setup *s, const struct config *c, struct err *e);
int setup_images(struct setup *s, const struct config *c, struct err *e);
void setup_sweep_images(const struct setup *s);
/* The index of a resolved image name in the keeper's list; -ENOENT. */
int setup_image_index(const struct setup *s, const char *name);
/* What must stay the same while sandboxes live: a changed uid range would overlap with theirs,
 * in other cgroups nobody would find theirs. */
void setup_place(const struct config *c, char *out, size_t size);
/* Forks the keeper, then moves into the run directory. argv is wiped in the keeper: agents
 * show its command line to their sandboxes. */
int setup_keeper(struct setup *s, const struct config *c, int argc, char **argv, int *ret_sock, struct err *e);
/* The listening socket, or -errno. */
int setup_listen(const struct config *c, struct err *e);
/* Where a client finds that socket, as a URL: also when the port was 0. */
void setup_where(const struct config *c, int listen_fd, char *out, size_t size);
void setup_free(struct setup *s);
