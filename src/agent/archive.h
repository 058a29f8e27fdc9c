/* Tar streams in and out of a sandbox. These run in a worker process inside the sandbox
 * with the sandbox user's own rights, so the worst that a hostile archive can reach is
 * what the sandbox's user could reach anyway. They block; nobody waits on them but the
 * operation's own connection.
 *
 * untar_run: conn carries DATA frames (gzip or plain tar, told apart by magic; other
 * compressions are refused), then END. Answers one DONE (FIELD_COUNT, FIELD_SKIPPED_COUNT,
 * FIELD_SKIPPED…) or one FAIL (FIELD_CODE errno, FIELD_BLAME, FIELD_MESSAGE).
 * tar_run: answers DATA frames of gzip'd pax tar, then END; or FAIL at any point (before
 * the first DATA when path is missing).
 * root_fd is the directory that paths are resolved in (the sandbox's /). The return value
 * is the worker's exit code. */
#pragma once

#include <stdint.h>

struct untar_request {
        const char *dest;      /* absolute, inside root_fd; made (0755) when missing */
        uint64_t max_bytes;    /* unpacked, all members together */
        uint64_t max_members;
};

int untar_run(int root_fd, int conn, const struct untar_request *req);
int tar_run(int root_fd, int conn, const char *src);
