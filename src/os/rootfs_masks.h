/* What of /proc a sandbox does not see. */
#pragma once

#include <stdint.h>

/* Bit i: row i exists on this kernel and is open to others than its owner. */
uint64_t rootfs_masks_present(void);
/* Covers the present rows below proc_fd (the sandbox's fresh /proc): files by "nothing" in
 * box, directories by its "empty". Makes /proc/sys read-only. 0 or -errno. */
int rootfs_masks_apply(uint64_t present, int proc_fd, int box);
