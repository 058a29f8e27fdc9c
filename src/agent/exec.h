/* Execs: commands with their output, deadline and end. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "agent/agent.h"
#include "base/str.h"

struct conn;
struct exec;

void exec_setup(const struct agent_params *p);
/* Starts what the EXEC frame's payload asks for. Answers over conn: at once with FAIL, or
 * later with its output and EXIT. NULL when it has been answered already. */
struct exec *exec_start(struct conn *c, struct str payload);
/* The connection is gone: nobody waits for this any more, so its tree ends. */
void exec_abandon(struct exec *x);
/* A child of the agent was reaped. */
void exec_child_gone(pid_t pid, int status);
/* After reaping: perhaps the tree of an exec that is being ended has emptied. */
void exec_check_ending(void);
