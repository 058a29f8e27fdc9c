/* Messages with at most one fd attached, over SEQPACKET. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* 0 or -errno (-EAGAIN on a full non-blocking socket). fd -1: none. */
int fdpass_send(int sock, const void *msg, size_t n, int fd);
/* Bytes received, 0 at the end, -errno. *ret_fd is -1 without one, also when there is no
 * room for it in this process; more than one fd, or a truncated message, is -EPROTO and
 * nothing is leaked. */
ssize_t fdpass_recv(int sock, void *msg, size_t n, int *ret_fd);
