/* The program that agents are forks of, out of the reach of sandboxes. */
#pragma once

/* Replaces this process by the same program with the same arguments, run from a copy in
 * memory that nobody can write and only our own uid can open. Returns 0 when this already is
 * that copy, and -errno when it cannot be had. argv[0] of the copy is name. */
int sealed_exec(const char *name, int argc, char **argv);
