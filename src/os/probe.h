/* What this host offers, found out by trying: each probe does the thing itself, mostly in
 * a child with namespaces of its own, and leaves nothing behind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum probe_status { PROBE_OK, PROBE_WEAK, PROBE_MISSING, PROBE_STATUS_MAX };

#define PROBE_MAX 32

struct probe_result {
        const char *name;
        enum probe_status status;
        bool essential;   /* without it there is no serving */
        char detail[256]; /* what was found, and what it costs if it is not ok */
        char remedy[256]; /* how to get it; empty when ok */
};

struct probe_report {
        struct probe_result results[PROBE_MAX];
        size_t count;
        bool can_serve;
};

const char *probe_status_name(enum probe_status s);
/* Takes some 50 ms; forks, so call it before threads are made. */
void probe_all(const char *state_dir, struct probe_report *ret);
/* For the start-up line: what is weak or missing and what was found, as "a weak: why; b
 * missing: why"; empty when all is well, NULL without memory. The caller frees it. */
char *probe_summary(const struct probe_report *report);
