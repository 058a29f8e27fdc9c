#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "os/rootfs.h"
#include "os/rootfs_dev.h"
#include "os/rootfs_masks.h"
#include "os/sys.h"

/* Can device nodes be made here? A container may keep CAP_MKNOD from its root. */
static bool can_mknod(void)
{
        if (mknod("node", S_IFCHR | 0600, makedev(1, 3)) < 0)
                return false;
        (void)unlink("node");
        return true;
}

/* Where they cannot, one /dev for all: a tmpfs of ours that has the host's bound into it. */
static int stage_dev(int host_dev, struct err *e)
{
        mode_t mask = umask(0);
        if (mkdir("dev", 0755) < 0 ||
            mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=64k") < 0)
                return fail_host(e, -errno, "cannot make /dev: %s", strerror(errno));
        _cleanup_close_ int dev = open("dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = dev < 0 ? -errno : rootfs_dev_fill(dev, host_dev);
        (void)umask(mask);
        return r < 0 ? fail_host(e, r, "cannot fill /dev: %s", strerror(-r)) : 0;
}

static bool can_idmap(int tree, int userns_fd)
{
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd };
        _cleanup_close_ int copy = sys_open_tree(tree, "", OPEN_TREE_CLONE | AT_EMPTY_PATH | OPEN_TREE_CLOEXEC);
        return copy >= 0 && sys_mount_setattr(copy, "", AT_EMPTY_PATH, &attr, sizeof attr) == 0;
}

/* Puts a read-only copy of a host directory at `at` on the stage. */
static int stage_tree(int tree, const char *at, struct err *e)
{
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };
        if (mkdir(at, 0755) < 0 ||
            sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0 ||
            sys_move_mount(tree, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return fail_host(e, -errno, "cannot stage %s: %s", at, strerror(errno));
        return 0;
}

static int open_host_tree(const char *path, struct err *e)
{
        /* Opened once: what a symlink on the way points to later does not matter. */
        _cleanup_close_ int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        int tree = dir < 0 ? -1 : sys_open_tree(dir, "", OPEN_TREE_CLONE | AT_EMPTY_PATH | OPEN_TREE_CLOEXEC);
        if (tree < 0)
                return fail_host(e, -errno, "cannot open image directory %s: %s", path, strerror(errno));
        return tree;
}

struct trees {
        int root[ROOTFS_MAX_IMAGES];
        int bind[ROOTFS_MAX_IMAGES][ROOTFS_MAX_BINDS];
};

/* All fds of the host are taken before the root changes. */
static int open_trees(struct trees *t, const struct rootfs_image *images, unsigned count, struct err *e)
{
        for (unsigned i = 0; i < count; i++) {
                t->root[i] = open_host_tree(images[i].root, e);
                if (t->root[i] < 0)
                        return t->root[i];
                for (unsigned b = 0; b < images[i].bind_count; b++) {
                        t->bind[i][b] = open_host_tree(images[i].binds[b], e);
                        if (t->bind[i][b] < 0)
                                return t->bind[i][b];
                }
        }
        return 0;
}

static int stage_images(struct rootfs_stage *s, struct trees *t, const struct rootfs_image *images,
                        int userns_fd, struct err *e)
{
        if (mkdir("img", 0755) < 0)
                return fail_host(e, -errno, "cannot make the stage: %s", strerror(errno));
        for (unsigned i = 0; i < s->image_count; i++) {
                char at[64];
                s->images[i].idmap = s->privileged && userns_fd >= 0 && can_idmap(t->root[i], userns_fd);
                (void)snprintf(at, sizeof at, "img/%u", i);
                int r = stage_tree(t->root[i], at, e);
                for (unsigned b = 0; r == 0 && b < images[i].bind_count; b++) {
                        (void)snprintf(at, sizeof at, "img/%u-%u", i, b);
                        (void)snprintf(s->images[i].binds[b], sizeof s->images[i].binds[b], "%s",
                                       images[i].binds[b]);
                        r = stage_tree(t->bind[i][b], at, e);
                }
                if (r < 0)
                        return r;
                s->images[i].bind_count = images[i].bind_count;
        }
        return 0;
}

static void close_trees(struct trees *t)
{
        for (unsigned i = 0; i < ROOTFS_MAX_IMAGES; i++) {
                close_fd(&t->root[i]);
                for (unsigned b = 0; b < ROOTFS_MAX_BINDS; b++)
                        close_fd(&t->bind[i][b]);
        }
}

static int build(struct rootfs_stage *s, struct trees *t, const struct rootfs_image *images,
                 const char *scratch, int userns_fd, struct err *e)
{
        static const char *const dirs[] = { "box", "lower", "new", "empty" };
        _cleanup_close_ int host_dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
        int r = open_trees(t, images, s->image_count, e);
        if (r < 0)
                return r;
        if (mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=256k") < 0 ||
            chdir(scratch) < 0)
                return fail_host(e, -errno, "cannot mount on %s: %s", scratch, strerror(errno));
        for (unsigned i = 0; i < ARRAY_SIZE(dirs); i++)
                if (mkdir(dirs[i], 0755) < 0)
                        return fail_host(e, -errno, "cannot make the stage: %s", strerror(errno));
        for (unsigned i = 0; i < ROOTFS_MAX_BINDS; i++) {
                char name[16];
                (void)snprintf(name, sizeof name, "lower%u", i);
                if (mkdir(name, 0755) < 0)
                        return fail_host(e, -errno, "cannot make the stage: %s", strerror(errno));
        }
        s->own_dev = s->privileged && can_mknod();
        r = s->own_dev ? 0 : stage_dev(host_dev, e);
        if (r == 0)
                r = stage_images(s, t, images, userns_fd, e);
        if (r < 0)
                return r;
        /* An unprivileged user namespace may mount a proc only where one is fully visible:
         * the host's stays on the stage until rootfs_birth has mounted the sandbox's. */
        if (!s->privileged) {
                _cleanup_close_ int proc = sys_open_tree(AT_FDCWD, "/proc", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
                if (proc < 0 || mkdir("proc", 0700) < 0 ||
                    sys_move_mount(proc, "", AT_FDCWD, "proc", MOVE_MOUNT_F_EMPTY_PATH) < 0)
                        return fail_host(e, -errno, "cannot stage /proc: %s", strerror(errno));
        }
        if (sys_pivot_root(".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
                return fail_host(e, -errno, "cannot leave the host's root: %s", strerror(errno));
        /* Finished: births mount on it, and nothing writes to it any more. */
        struct mount_attr ro = { .attr_set = MOUNT_ATTR_RDONLY };
        if (sys_mount_setattr(AT_FDCWD, "/", 0, &ro, sizeof ro) < 0)
                return fail_host(e, -errno, "cannot make the stage read-only: %s", strerror(errno));
        return 0;
}

int rootfs_stage(struct rootfs_stage *ret, const struct rootfs_image *images, unsigned count,
                 const char *scratch, bool privileged, int probe_userns_fd, struct err *e)
{
        struct rootfs_stage s = { .image_count = count, .privileged = privileged };
        if (count == 0 || count > ROOTFS_MAX_IMAGES)
                return fail_host(e, -E2BIG, "%u images are configured, at most %d are possible",
                                 count, ROOTFS_MAX_IMAGES);
        s.proc_masks = rootfs_masks_present();
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return fail_host(e, -errno, "cannot make a mount namespace: %s", strerror(errno));
        struct trees t;
        memset(&t, 0xff, sizeof t); /* every fd -1 */
        int r = build(&s, &t, images, scratch, probe_userns_fd, e);
        close_trees(&t);
        if (r == 0)
                *ret = s;
        return r;
}
