/* The event loop of agent and keeper: epoll, one timer, sources that are called back. */
#pragma once

#include <stdint.h>

struct source {
        int fd;
        void (*fn)(struct source *s, uint32_t events);
};

int loop_open(void);
int loop_add(struct source *s, uint32_t events);
int loop_mod(struct source *s, uint32_t events);
/* Takes s out and closes its fd. Events already fetched for it are dropped. */
void loop_remove(struct source *s);
/* A listener that has no fd to accept with: not watched until another source is removed,
 * which gives one back. There can be one at a time. */
void loop_rest(struct source *s);
/* Wakes up at the given monotonic time at the latest (0: never); fn then runs. */
void loop_set_deadline(uint64_t at_ns, void (*fn)(void));
void loop_run(void) __attribute__((noreturn));
