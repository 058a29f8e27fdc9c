#include "client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int client_connect(struct client *c, int port)
{
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons((unsigned short)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        struct timeval patience = { .tv_sec = 30 };
        int one = 1;
        c->len = 0;
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a) < 0)
                return -1;
        (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        return 0;
}

void client_close(struct client *c)
{
        if (c->fd >= 0)
                (void)close(c->fd);
        c->fd = -1;
}

static int fill(struct client *c)
{
        if (c->len + 1 >= sizeof c->buf)
                return -1;
        ssize_t n = read(c->fd, c->buf + c->len, sizeof c->buf - 1 - c->len);
        if (n <= 0)
                return -1;
        c->len += (size_t)n;
        c->buf[c->len] = '\0';
        return 0;
}

int client_call(struct client *c, const char *method, const char *path, const char *body, const char **ret_body)
{
        char req[4096];
        int n = snprintf(req, sizeof req, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", method,
                         path, strlen(body), body);
        if (n < 0 || n >= (int)sizeof req || send(c->fd, req, (size_t)n, MSG_NOSIGNAL) != n)
                return -1;
        c->len = 0;
        char *end = NULL;
        do
                if (fill(c) < 0)
                        return -1;
        while (!(end = strstr(c->buf, "\r\n\r\n")));
        size_t head = (size_t)(end - c->buf) + 4, want = 0;
        char *cl = strcasestr(c->buf, "\r\nContent-Length:");
        if (cl && cl < end)
                want = strtoul(cl + 17, NULL, 10);
        else if (strcasestr(c->buf, "chunked"))
                return -1; /* nothing measured here answers in chunks */
        while (c->len < head + want)
                if (fill(c) < 0)
                        return -1;
        if (ret_body)
                *ret_body = c->buf + head;
        return atoi(c->buf + 9);
}
