/* The one binary: finds the verb. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/check.h"
#include "cli/serve.h"
#include "cli/version.h"

struct verb {
        const char *name;
        int (*main)(int argc, char **argv);
        const char *help;
};

static int help_main(int argc, char **argv);

static const struct verb verbs[] = {
        { "serve", serve_main, "serve sandboxes over HTTP (cloche serve --help lists the settings)" },
        { "check", check_main, "say what this host offers, what is missing and how to get it" },
        { "version", version_main, "print the version" },
        { "help", help_main, "print this" },
};

static int help_main(int argc, char **argv)
{
        (void)argc;
        (void)argv;
        printf("usage: cloche VERB [OPTIONS]\n\n");
        for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
                printf("  %-8s %s\n", verbs[i].name, verbs[i].help);
        return 0;
}

/* Whoever starts us may have closed them. Then the first files and sockets of our own would
 * get these numbers, and the log would be written into one of them. */
static void hold_standard_fds(void)
{
        int fd;
        do
                fd = open("/dev/null", O_RDWR);
        while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd >= 0)
                (void)close(fd);
}

int main(int argc, char **argv)
{
        hold_standard_fds();
        const char *name = argc > 1 ? argv[1] : "help";
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
                name = "help";
        if (strcmp(name, "--version") == 0)
                name = "version";
        for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
                if (strcmp(name, verbs[i].name) == 0)
                        return verbs[i].main(argc > 1 ? argc - 1 : argc, argc > 1 ? argv + 1 : argv);
        fprintf(stderr, "cloche: there is no verb '%s'; see cloche help\n", name);
        return 2;
}
