/* What is in a sandbox's /dev. */
#pragma once

/* Fills the empty directory dev: device nodes, links, mount points. With host_dev >= 0 the
 * nodes are bound from that directory; else they are made, which needs CAP_MKNOD. The caller's
 * umask must be 0. 0 or -errno. */
int rootfs_dev_fill(int dev, int host_dev);
