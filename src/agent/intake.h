/* The server's DATA frames as one stream of tar bytes: gzip is undone on the way, told
 * apart from a plain tar by its magic. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/gzip.h"
#include "base/buf.h"
#include "base/err.h"

#define INTAKE_READ_BYTES (256u * 1024)  /* asked of conn at once */
#define INTAKE_BLOCK_BYTES (256u * 1024) /* handed on at once */

struct intake {
        int conn;
        struct buf frames; /* as read from conn */
        size_t pos;        /* first byte of frames not taken yet */
        const char *in;    /* what is left of the current DATA payload */
        size_t in_n;
        bool started, ended;
        struct inflater *gz; /* NULL for a plain tar */
        char *block;
        uint64_t total, total_max; /* handed on, all in all */
        uint64_t call_left; /* what the current step may still read */
        bool gone;          /* the other end closed without END */
        int failed;
        struct err *err;
};


int intake_open(struct intake *s, int conn, uint64_t total_max, struct err *e);
void intake_close(struct intake *s);
/* The next bytes of the tar stream, valid until the next call: a length, 0 at its end,
 * or negative with err set (and from then on always). */
ssize_t intake_bytes(struct intake *s, const void **ret);
/* Reads and drops what still comes, up to a bound. */
void intake_drain(struct intake *s);
