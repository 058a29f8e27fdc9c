/* Scope cleanup and steal: an owner is a variable, and giving it away is visible. */
#pragma once

#include <stdlib.h>
#include <unistd.h>

static inline void closep(int *fd)
{
        if (*fd >= 0)
                (void)close(*fd);
}

static inline void freep(void *p)
{
        free(*(void **)p);
}

static inline int steal_fd(int *fd)
{
        int taken = *fd;
        *fd = -1;
        return taken;
}

/* For fds that live in structs: close once, remember that it is closed. */
static inline void close_fd(int *fd)
{
        if (*fd >= 0)
                (void)close(*fd);
        *fd = -1;
}

static inline void *steal_ptr_(void *pp)
{
        void **p = pp;
        void *taken = *p;
        *p = NULL;
        return taken;
}

#define steal_ptr(pp) ((__typeof__(*(pp)))steal_ptr_(pp))
#define _cleanup_(f) __attribute__((cleanup(f)))
#define _cleanup_close_ _cleanup_(closep)
#define _cleanup_free_ _cleanup_(freep)
#define _printf_(a, b) __attribute__((format(printf, a, b)))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
