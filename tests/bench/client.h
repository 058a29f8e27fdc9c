/* A small blocking HTTP/1.1 keep-alive client for the benchmark: its own cost must stay
 * below what it measures. */
#pragma once

#include <stddef.h>

struct client {
        int fd;
        char buf[64 * 1024];
        size_t len;
};

int client_connect(struct client *c, int port);
void client_close(struct client *c);
/* Sends and reads one whole answer (with Content-Length, or without a body). The status, or
 * -1; reads give up after 30 seconds. *ret_body points into the client's buffer,
 * NUL-terminated. */
int client_call(struct client *c, const char *method, const char *path, const char *body, const char **ret_body);
