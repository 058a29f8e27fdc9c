/* System calls that Debian 12's libc does not wrap, and a few file helpers that every
 * file of this layer needs. Return values are the kernel's: -1 and errno. */
#pragma once

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
/* Questions to a pidfd, since 6.11 and 6.13; on older kernels /proc answers the same, ten
 * times as slowly. */
#ifndef PIDFD_GET_NET_NAMESPACE
#define PIDFD_GET_NET_NAMESPACE _IO(0xff, 4)
#define PIDFD_GET_USER_NAMESPACE _IO(0xff, 9)
#endif
struct sys_pidfd_info { /* the first published size */
        uint64_t mask, cgroup;
        uint32_t pid, rest[11];
};
#define SYS_PIDFD_GET_INFO _IOWR(0xff, 11, struct sys_pidfd_info)

static inline int sys_open_tree(int dfd, const char *path, unsigned flags)
{
        return (int)syscall(SYS_open_tree, dfd, path, flags);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path,
                                 unsigned flags)
{
        return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_mount_setattr(int dfd, const char *path, unsigned flags,
                                    struct mount_attr *attr, size_t size)
{
        return (int)syscall(SYS_mount_setattr, dfd, path, flags, attr, size);
}

static inline int sys_fsopen(const char *fs, unsigned flags)
{
        return (int)syscall(SYS_fsopen, fs, flags);
}

static inline int sys_fsconfig(int fd, unsigned cmd, const char *key, const void *value, int aux)
{
        return (int)syscall(SYS_fsconfig, fd, cmd, key, value, aux);
}

static inline int sys_fsmount(int fd, unsigned flags, unsigned attr)
{
        return (int)syscall(SYS_fsmount, fd, flags, attr);
}

static inline int sys_pivot_root(const char *new_root, const char *put_old)
{
        return (int)syscall(SYS_pivot_root, new_root, put_old);
}

static inline int sys_openat2(int dfd, const char *path, uint64_t flags, uint64_t mode,
                              uint64_t resolve)
{
        struct open_how how = { .flags = flags, .mode = mode, .resolve = resolve };
        return (int)syscall(SYS_openat2, dfd, path, &how, sizeof how);
}

static inline int sys_pidfd_open(int pid, unsigned flags)
{
        return (int)syscall(SYS_pidfd_open, pid, flags);
}

static inline int sys_pidfd_send_signal(int pidfd, int sig)
{
        return (int)syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0);
}

static inline int sys_close_range(unsigned first, unsigned last, unsigned flags)
{
        return (int)syscall(SYS_close_range, first, last, flags);
}

/* Writes text to dfd/path in one write. 0 or -errno. */
int file_write(int dfd, const char *path, const char *text);
/* Reads up to size-1 bytes and NUL-terminates. Length or -errno. */
int file_read(int dfd, const char *path, char *out, size_t size);
