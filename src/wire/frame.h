/* Frames between server and agent: a fixed head, then a payload. Both ends are on one
 * machine (or behind one trusted connection), yet every frame is checked as if it came
 * from an enemy: a sandbox may have taken over its agent. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#define FRAME_HEAD_BYTES 8
#define FRAME_MAX_PAYLOAD (4u * 1024 * 1024) /* an exec request with all its argv */
#define FRAME_DATA_BYTES (128u * 1024)       /* how much a DATA frame carries at most */

/* A connection carries one operation: the first frame names it. */
enum frame_type {
        FRAME_NONE,
        /* server to agent, first frame */
        FRAME_PING,  /* -> HELLO */
        FRAME_EXEC,  /* -> STDOUT, STDERR, GAP…, then EXIT or FAIL */
        FRAME_UNTAR, /* then DATA… END from the server; -> DONE or FAIL */
        FRAME_TAR,   /* -> DATA… END, or FAIL (also after DATA) */
        /* both ways */
        FRAME_DATA,
        FRAME_END,
        /* agent to server */
        FRAME_HELLO,
        FRAME_STDOUT,
        FRAME_STDERR,
        FRAME_EXIT,
        FRAME_DONE,
        FRAME_FAIL,
        FRAME_TYPE_MAX
};

struct frame {
        enum frame_type type;
        struct str payload;
};

const char *frame_name(enum frame_type type);

/* Appends a whole frame. */
void frame_add(struct buf *out, enum frame_type type, const void *payload, size_t n);
/* Begins a frame whose payload is appended by the caller; frame_finish fills in the
 * length. Returns the mark to hand to frame_finish. */
size_t frame_begin(struct buf *out, enum frame_type type);
void frame_finish(struct buf *out, size_t mark);
/* Writes just the head for n payload bytes that follow by other means. */
void frame_head(unsigned char head[FRAME_HEAD_BYTES], enum frame_type type, uint32_t n);

/* Takes the next whole frame out of data: 1 and *ret (pointing into data) with
 * *ret_used, 0 when more bytes are needed, -EPROTO when it is no frame. */
int frame_take(const char *data, size_t n, struct frame *ret, size_t *ret_used);

/* Blocking helpers for worker processes that own a connection. */
int frame_write(int fd, enum frame_type type, const void *payload, size_t n);
/* Reads one frame into b (replaced). 1, 0 at a clean end of stream, negative. */
int frame_read(int fd, struct buf *b, struct frame *ret);

/* --- payloads: tagged fields, u16 tag, u32 length, bytes ------------------------ */
enum field {
        FIELD_NONE,
        FIELD_ARG,          /* repeated, in order */
        FIELD_ENV,          /* "K=V", repeated */
        FIELD_WORKDIR,
        FIELD_TIMEOUT_MS,   /* u64 */
        FIELD_OUTPUT_CAP,   /* u64, bytes kept of each stream */
        FIELD_PATH,
        FIELD_MAX_BYTES,    /* u64 */
        FIELD_MAX_MEMBERS,  /* u64 */
        FIELD_CODE,         /* u64: exit code, or errno of a FAIL */
        FIELD_SIGNAL,       /* u64 */
        FIELD_REASON,       /* u64, enum exit_reason */
        FIELD_DURATION_NS,  /* u64 */
        FIELD_STDOUT_TOTAL, /* u64, bytes written by the command; more than kept: truncated */
        FIELD_STDERR_TOTAL,
        FIELD_MESSAGE,
        FIELD_COUNT,        /* u64: members written */
        FIELD_SKIPPED_COUNT,
        FIELD_SKIPPED,      /* repeated: "name: why" */
        FIELD_NAME,
        FIELD_BLAME,        /* u64, enum err_blame */
        FIELD_MEMORY,       /* u64 bytes: what /proc/meminfo shows */
        FIELD_CPU_MILLIS,   /* u64 */
        FIELD_MAX
};

void field_add(struct buf *out, enum field tag, const void *p, size_t n);
void field_add_str(struct buf *out, enum field tag, const char *s);
void field_add_u64(struct buf *out, enum field tag, uint64_t v);

/* Walks a payload: 1 and the field, 0 at the end, -EPROTO. */
int field_next(struct str *payload, enum field *ret_tag, struct str *ret_value);
bool field_u64(struct str value, uint64_t *ret);

/* What a FAIL frame says. Missing fields have a default; msg is always a C string. */
struct fail_frame {
        uint64_t code; /* errno */
        enum err_blame blame;
        char msg[512];
};
void frame_parse_fail(struct str payload, struct fail_frame *ret);

/* How a command ended. The strings are the API's words. */
enum exit_reason {
        EXIT_EXITED,
        EXIT_SIGNALED,
        EXIT_TIMEOUT,
        EXIT_OOM,
        EXIT_KILLED,
        EXIT_REASON_MAX
};

const char *exit_reason_name(enum exit_reason r);
