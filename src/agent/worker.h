/* File work: a process with the sandbox user's rights that owns its connection. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/str.h"
#include "wire/frame.h"

struct conn;

/* tasks: the v1 cgroups of the sandbox's commands, as in struct cg_agent. */
void worker_setup(uid_t user_uid, const int *tasks);
/* Hands c to a new worker for a TAR or UNTAR request. */
void worker_start(struct conn *c, enum frame_type type, struct str payload);
/* A child of the agent was reaped; true when it was a worker. */
bool worker_child_gone(pid_t pid);
