#include "os/rootfs_dev.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"
#include "os/sys.h"

struct node {
        const char *name;
        unsigned major, minor;
};

static const struct node nodes[] = {
        { "null", 1, 3 }, { "zero", 1, 5 },    { "full", 1, 7 },
        { "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 },
};

static const char *const links[][2] = {
        { "/proc/self/fd", "fd" },       { "/proc/self/fd/0", "stdin" },
        { "/proc/self/fd/1", "stdout" }, { "/proc/self/fd/2", "stderr" },
        { "pts/ptmx", "ptmx" },
};

/* A device of the host, bound over an empty file: without CAP_MKNOD there is no other way. */
static int bind_node(int dev, const struct node *n, int host_dev)
{
        _cleanup_close_ int tree = sys_open_tree(host_dev, n->name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0)
                return -errno;
        _cleanup_close_ int at = openat(dev, n->name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (at < 0 || sys_move_mount(tree, "", dev, n->name, MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return -errno;
        return 0;
}

int rootfs_dev_fill(int dev, int host_dev)
{
        for (unsigned i = 0; i < ARRAY_SIZE(nodes); i++) {
                const struct node *n = &nodes[i];
                int r = 0;
                if (host_dev >= 0)
                        r = bind_node(dev, n, host_dev);
                else if (mknodat(dev, n->name, S_IFCHR | 0666, makedev(n->major, n->minor)) < 0)
                        r = -errno;
                if (r < 0)
                        return r;
        }
        for (unsigned i = 0; i < ARRAY_SIZE(links); i++)
                if (symlinkat(links[i][0], dev, links[i][1]) < 0)
                        return -errno;
        return mkdirat(dev, "shm", 0755) < 0 || mkdirat(dev, "pts", 0755) < 0 ? -errno : 0;
}
