/* Addresses to listen on. Numbers and "localhost" only: what a name means depends on the
 * day's resolver, and whether an address is loopback decides if a key is needed. */
#include "config/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include "base/quantity.h"

union address {
        struct sockaddr_storage storage;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
};

static int bad_listen(const char *s, struct err *e)
{
        char shown[ECHO_BYTES];
        return fail_user(e, -EINVAL,
                         "'%s' is not an address to listen on; write '127.0.0.1:8080', "
                         "'[::1]:8080', 'localhost:8080', ':8080' for all addresses, or "
                         "'unix:/path' (names are not looked up)",
                         echo_value(str_c(s), shown));
}

static int parse_unix(const char *path, union address *a, socklen_t *ret_n, struct err *e)
{
        size_t n = strlen(path);
        if (path[0] != '/' || n >= sizeof a->un.sun_path)
                return fail_user(e, -EINVAL,
                                 "a unix socket needs an absolute path of at most %zu bytes, as "
                                 "'unix:/run/cloche.sock'", sizeof a->un.sun_path - 1);
        a->un.sun_family = AF_UNIX;
        memcpy(a->un.sun_path, path, n + 1);
        *ret_n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
        return 0;
}

static bool host_has_ipv6(void)
{
        _cleanup_close_ int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        return fd >= 0;
}

/* host without brackets; false when it is no address */
static bool fill_host(struct str host, bool bracketed, union address *a)
{
        char text[INET6_ADDRSTRLEN];
        if (host.n >= sizeof text)
                return false;
        memcpy(text, host.p, host.n);
        text[host.n] = '\0';
        if (bracketed || (host.n == 0 && host_has_ipv6())) {
                a->in6.sin6_family = AF_INET6; /* "::" takes IPv4 too */
                return inet_pton(AF_INET6, host.n ? text : "::", &a->in6.sin6_addr) == 1;
        }
        a->in.sin_family = AF_INET;
        const char *numeric = host.n == 0                      ? "0.0.0.0"
                              : strcmp(text, "localhost") == 0 ? "127.0.0.1"
                                                               : text;
        return inet_pton(AF_INET, numeric, &a->in.sin_addr) == 1;
}

int config_parse_listen(const char *s, struct sockaddr_storage *ret, socklen_t *ret_n,
                        struct err *e)
{
        union address a = { 0 };
        socklen_t n = 0;
        if (strncmp(s, "unix:", 5) == 0) {
                int r = parse_unix(s + 5, &a, &n, e);
                if (r < 0)
                        return r;
        } else {
                const char *colon = strrchr(s, ':');
                uint64_t port;
                if (!colon || !str_to_u64(str_c(colon + 1), 65535, &port))
                        return bad_listen(s, e);
                struct str host = { s, (size_t)(colon - s) };
                bool bracketed = host.n >= 2 && host.p[0] == '[' && host.p[host.n - 1] == ']';
                if (bracketed)
                        host = (struct str){ host.p + 1, host.n - 2 };
                if ((bracketed && host.n == 0) || !fill_host(host, bracketed, &a))
                        return bad_listen(s, e);
                if (a.storage.ss_family == AF_INET6)
                        a.in6.sin6_port = htons((uint16_t)port);
                else
                        a.in.sin_port = htons((uint16_t)port);
                n = a.storage.ss_family == AF_INET6 ? sizeof a.in6 : sizeof a.in;
        }
        *ret = a.storage;
        *ret_n = n;
        return 0;
}

bool config_listen_is_loopback(const struct config *c)
{
        union address a;
        socklen_t n;
        if (!c->listen || config_parse_listen(c->listen, &a.storage, &n, NULL) < 0)
                return false;
        if (a.storage.ss_family == AF_UNIX)
                return true;
        if (a.storage.ss_family == AF_INET)
                return ntohl(a.in.sin_addr.s_addr) >> 24 == 127;
        /* ::ffff:127.0.0.1 is IPv4's loopback in other clothes. */
        const struct in6_addr *six = &a.in6.sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}
