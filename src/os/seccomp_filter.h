/* The system calls that nothing inside a sandbox may make. */
#pragma once

#include <linux/filter.h>

#include "base/err.h"

struct seccomp_filter {
        struct sock_filter *insns;
        unsigned short count;
};

/* Builds the filter once; loading it is then a copy. */
int seccomp_filter_build(struct seccomp_filter *ret, struct err *e);
void seccomp_filter_free(struct seccomp_filter *f);
/* Sets no_new_privs and installs it on this thread and all its children. 0 or -errno. */
int seccomp_filter_load(const struct seccomp_filter *f);
/* For a process that has nothing to execute; also on this thread and its children. */
int seccomp_forbid_exec(void);
