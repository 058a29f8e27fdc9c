/* What server and keeper say to each other: fixed messages over a SEQPACKET pair, fds by
 * SCM_RIGHTS. The keeper checks every field as if an enemy had sent it. */
#pragma once

#include <stdint.h>

#define BOX_NAME_BYTES 24 /* "sbx-0123456789" and room */

enum keeper_op {
        KEEPER_NONE,
        KEEPER_READY,   /* keeper's first word: what it can do */
        KEEPER_CREATE,  /* + listening socket (bound); answer + pidfd */
        KEEPER_ADOPT,   /* + pidfd: a sandbox of an earlier server */
        KEEPER_DESTROY, /* + pidfd; answered when nothing of it is left */
        KEEPER_KILL,    /* end all commands of a sandbox, not its agent */
        KEEPER_SWEEP,   /* remove what no adopted sandbox owns */
        KEEPER_OP_MAX
};

struct keeper_request {
        uint32_t op;
        uint32_t slot;   /* ADOPT, DESTROY */
        uint64_t cookie; /* comes back in the answer */
        char name[BOX_NAME_BYTES];
        uint32_t image;
        uint32_t cpu_millis;
        uint64_t memory, storage, inodes, pids;
};

struct keeper_reply {
        uint32_t op;
        uint32_t slot;
        uint64_t cookie;
        int32_t code; /* 0 or -errno */
        int32_t pid;
        /* READY only: where each controller is (enum cg_where), and what is there */
        uint8_t where[4];
        uint8_t unified, idmap, privileged;
        char msg[256];
};
