/* The sandbox's user is no one to the host's root-owned files of /proc already; the masks
 * hide what is readable for all, and are the second lock on what is not. A file of nothing
 * is bound over files and an empty directory over directories. Each mask is a mount of its
 * own, made read-only and moved into place: one that is made to be copied would have to be
 * thrown away at the end, which waits for an RCU grace period. */
#include "os/rootfs_masks.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/sys.h"

struct mask {
        const char *path; /* below /proc */
        bool directory;
};

static const struct mask masks[] = {
        { "acpi", true },          /* hardware */
        { "bus", true },           /* hardware */
        { "fs", true },            /* file systems of the host */
        { "irq", true },           /* hardware */
        { "scsi", true },          /* hardware */
        { "sysrq-trigger", false }, /* reboots */
        { "kcore", false },        /* the host's memory */
        { "kallsyms", false },     /* kernel addresses */
        { "keys", false },         /* keyrings */
        { "key-users", false },
        { "timer_list", false },   /* kernel addresses, other processes */
        { "sched_debug", false },  /* other processes */
        { "latency_stats", false },
        { "interrupts", false },   /* keystroke timing */
        { "softirqs", false },     /* the same */
        { "modules", false },
        { "cmdline", false },      /* the host's boot parameters */
        { "config.gz", false },    /* which attack to choose */
        { "diskstats", false },    /* the host's disks */
        { "partitions", false },
};
static_assert(ARRAY_SIZE(masks) <= 64, "one bit each");

uint64_t rootfs_masks_present(void)
{
        uint64_t bits = 0;
        for (unsigned i = 0; i < ARRAY_SIZE(masks); i++) {
                char path[64];
                struct stat st;
                (void)snprintf(path, sizeof path, "/proc/%s", masks[i].path);
                /* What only the host's root may open needs no mask: that uid does not
                 * exist in a sandbox, not even for its own root. */
                if (stat(path, &st) == 0 && (st.st_mode & 0007))
                        bits |= 1ull << i;
        }
        return bits;
}

static int cover(int box, const char *source, int proc_fd, const char *path)
{
        struct mount_attr ro = { .attr_set = MOUNT_ATTR_RDONLY };
        _cleanup_close_ int tree = sys_open_tree(box, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH, &ro, sizeof ro) < 0 ||
            sys_move_mount(tree, "", proc_fd, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return -errno;
        return 0;
}

static int lock_sysctls(int proc_fd)
{
        struct mount_attr ro = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID |
                                             MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC };
        _cleanup_close_ int tree = sys_open_tree(proc_fd, "sys", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH, &ro, sizeof ro) < 0 ||
            sys_move_mount(tree, "", proc_fd, "sys", MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return -errno;
        return 0;
}

int rootfs_masks_apply(uint64_t present, int proc_fd, int box)
{
        for (unsigned i = 0; i < ARRAY_SIZE(masks); i++) {
                if (!(present & 1ull << i))
                        continue;
                int r = cover(box, masks[i].directory ? "empty" : "nothing", proc_fd, masks[i].path);
                if (r < 0 && r != -ENOENT)
                        return r;
        }
        return lock_sysctls(proc_fd);
}
