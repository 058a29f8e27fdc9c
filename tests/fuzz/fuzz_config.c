/* Fuzzes the configuration file. What it accepts can be printed and is within its ranges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/config_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
        if (!ok)
                abort();
}

static void check_settings(const struct config *c)
{
        for (size_t i = 0; i < setting_count; i++) {
                char *text = setting_text(c, &settings[i]);
                must(text != NULL);
                must(memchr(text, '\n', strlen(text)) == NULL); /* it has to fit on a line again */
                free(text);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static FILE *nowhere;
        char path[64];
        struct config c;
        struct err e = { 0 };
        int fd = memfd_create("config", MFD_CLOEXEC);
        if (!nowhere)
                nowhere = fopen("/dev/null", "w");
        must(fd >= 0 && nowhere && write(fd, data, size) == (ssize_t)size);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        config_init(&c);
        int r = config_read_file(&c, path, &e);
        must(r <= 0 && (r == 0 || e.msg[0]));
        if (r == 0) {
                check_settings(&c);
                (void)config_check_images(&c, &e);
                config_print(&c, nowhere);
        }
        config_free(&c);
        (void)close(fd);
        struct sockaddr_storage a;
        socklen_t n = 0;
        char *text = strndup((const char *)data, size);
        must(text != NULL);
        if (config_parse_listen(text, &a, &n, &e) == 0)
                must(n > 0 && n <= sizeof a);
        free(text);
        return 0;
}
