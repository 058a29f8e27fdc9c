/* A sandbox's file system, in two steps:
 *
 *   rootfs_stage   once, in the keeper: a mount namespace that holds nothing but an empty
 *                  tmpfs and the images. Every sandbox copies this small
 *                  table of mounts and never the host's.
 *   rootfs_birth   for each sandbox, in its first process: overlay over the image with a
 *                  tmpfs of the sandbox's size above it, /proc with masks, /dev; then the
 *                  new root becomes /.
 *
 * All mounts are made in the keeper's user namespace and belong to a mount namespace that
 * the sandbox's user namespace has no power over: nothing inside can undo them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define ROOTFS_MAX_IMAGES 64
#define ROOTFS_MAX_BINDS 8

struct rootfs_image {
        const char *root;                    /* directory that becomes / */
        const char *binds[ROOTFS_MAX_BINDS]; /* host directories shown read-only, "/usr" */
        unsigned bind_count;
};

struct rootfs_stage {
        unsigned image_count;
        struct {
                unsigned bind_count;
                char binds[ROOTFS_MAX_BINDS][64]; /* inside path, "/usr" */
                bool idmap; /* its root can be shown with shifted owners; its binds never are */
        } images[ROOTFS_MAX_IMAGES];
        bool privileged; /* real root: idmapped mounts */
        bool own_dev;    /* each sandbox gets device nodes of its own */
        uint64_t proc_masks; /* bit i: row i of the mask table exists on this kernel */
};

struct rootfs_plan {
        unsigned image;
        int userns_fd;          /* whose ids the image is shown with */
        uid_t base_uid;         /* the sandbox's root, in the keeper's ids */
        uid_t user_uid;         /* the sandbox's user, in the keeper's ids */
        uint64_t storage, inodes;
        unsigned cpus;          /* shown in /sys/devices/system/cpu */
};

/* scratch: an existing directory to build on. Afterwards the process's / is the stage. */
int rootfs_stage(struct rootfs_stage *ret, const struct rootfs_image *images, unsigned count,
                 const char *scratch, bool privileged, int probe_userns_fd, struct err *e);
/* *ret_info_fd: directory with the files behind /proc/meminfo and /proc/cpuinfo, which the
 * agent keeps up to date. Must run in a new mount and pid namespace, as pid 1. */
int rootfs_birth(const struct rootfs_stage *stage, const struct rootfs_plan *plan,
                 int *ret_info_fd, struct err *e);
