/* `cloche check`: what this host offers, what is missing and how to get it. */
#pragma once

/* argv[0] is the verb. The exit status: 0 when this host can serve with this
 * configuration, 1 when not. */
int check_main(int argc, char **argv);
