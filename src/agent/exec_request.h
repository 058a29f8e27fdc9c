/* What an EXEC frame asks for, checked. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct exec_request {
        char **argv;   /* NULL-terminated; argv[0] is there */
        char **envp;   /* the sandbox's base environment with the request's over it */
        char *workdir; /* absolute */
        uint64_t timeout_ms;
        size_t output_cap;
};

int exec_request_parse(struct str payload, struct exec_request *ret, struct err *e);
void exec_request_free(struct exec_request *q);
