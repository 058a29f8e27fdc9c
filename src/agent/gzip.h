/* Streaming gzip with ISA-L: level 1 out, anything in. Ten times zlib's speed at nearly
 * its ratio (ARCHITECTURE.md has the figures), and the checks are ISA-L's own: a wrong
 * CRC or length is an error, never a shorter file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct inflater;

struct inflater *inflater_new(void);
void inflater_freep(struct inflater **z);
/* Takes from *in (*n bytes) what it can and fills out: the bytes written, or -EBADMSG when the
 * stream is not gzip or its check fails. 0 with *n at 0 means that it wants more. Several
 * members one after another are one stream; zero bytes after the last are padding, any
 * other byte is an error. */
int inflater_run(struct inflater *z, const char **in, size_t *n, void *out, size_t cap);
/* May the input end here? Only between members: anything else is a cut stream. */
bool inflater_at_end(const struct inflater *z);

/* What a deflater hands on; negative ends the stream with that error. */
typedef int (*deflater_sink)(void *arg, const void *p, size_t n);

struct deflater;

/* Calls sink with block_bytes at a time, the last one shorter. */
struct deflater *deflater_new(size_t block_bytes, deflater_sink sink, void *arg);
void deflater_freep(struct deflater **z);
int deflater_run(struct deflater *z, const void *p, size_t n);
/* Writes the trailer and hands on what is left. */
int deflater_finish(struct deflater *z);

#define _cleanup_inflater_ _cleanup_(inflater_freep)
#define _cleanup_deflater_ _cleanup_(deflater_freep)
