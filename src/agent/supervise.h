/* Execs where no cgroup can hold them together (a server without root). */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "os/loop.h"
#include "agent/spawn.h"

struct supervised {
        struct source src; /* fd -1: no supervisor */
};

/* Like spawn_command, with a supervisor process between; the pid is the supervisor's. On
 * failure everything is reaped and s tells why. */
pid_t supervise_start(struct supervised *sup, struct spawn *s);
/* The leader's wait status, if it has been reported. */
bool supervise_status(struct supervised *sup, int *ret_status);
void supervise_close(struct supervised *sup);
/* Kills all descendants of the supervisor, which then ends by itself. */
void supervise_kill(pid_t pid);
/* Kills everything in the sandbox but the agent. */
void supervise_panic(void);
