#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "config_bed.h"

static void test_listen(void)
{
        static const struct {
                const char *text;
                int family, port;
                bool loopback;
        } rows[] = {
                { "127.0.0.1:8080", AF_INET, 8080, true },
                { "127.9.9.9:1", AF_INET, 1, true },
                { "localhost:80", AF_INET, 80, true },
                { "[::1]:8080", AF_INET6, 8080, true },
                { "[::ffff:127.0.0.1]:80", AF_INET6, 80, true },
                { "unix:/run/cloche.sock", AF_UNIX, 0, true },
                { "127.0.0.1:0", AF_INET, 0, true },
                { "0.0.0.0:65535", AF_INET, 65535, false },
                { "10.0.0.1:80", AF_INET, 80, false },
                { "128.0.0.1:80", AF_INET, 80, false },
                { "[::]:80", AF_INET6, 80, false },
                { "[::ffff:10.0.0.1]:80", AF_INET6, 80, false },
                { ":80", -1, 80, false },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct sockaddr_storage a = { 0 };
                socklen_t n = 0;
                struct config c = { .listen = strdup(rows[i].text) };
                CHECK_INT(config_parse_listen(rows[i].text, &a, &n, NULL), 0);
                if (rows[i].family >= 0)
                        CHECK_INT(a.ss_family, rows[i].family);
                if (a.ss_family != AF_UNIX)
                        CHECK_INT(ntohs(((struct sockaddr_in *)&a)->sin_port), rows[i].port);
                else
                        CHECK_STR(((struct sockaddr_un *)&a)->sun_path, "/run/cloche.sock");
                CHECK(n > 0 && n <= sizeof a);
                CHECK_INT(config_listen_is_loopback(&c), rows[i].loopback);
                free(c.listen);
        }
        static const char *const bad[] = {
                "", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                "127.0.0.1: 80", "127.1:80", "example.com:80", "::1:80", "[::1]", "[]:80",
                "[::1:80", "[127.0.0.1]:80", "[::1]x:80", "unix:", "unix:run/x", "*:80",
                "http://127.0.0.1:80", "127.0.0.1:80x", "[fe80::1%lo]:80",
        };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct sockaddr_storage a;
                socklen_t n;
                struct err e = { 0 };
                if (config_parse_listen(bad[i], &a, &n, &e) >= 0)
                        printf("taken: '%s'\n", bad[i]);
                CHECK_INT(config_parse_listen(bad[i], &a, &n, &e), -EINVAL);
                CHECK(strlen(e.msg) > 20);
        }
        char deep[200] = "unix:/";
        memset(deep + 6, 'x', 150);
        struct sockaddr_storage a;
        socklen_t n;
        CHECK_INT(config_parse_listen(deep, &a, &n, NULL), -EINVAL);
}

/* What cannot be read is not said to be safe. */
static void test_loopback_of_nonsense(void)
{
        char nonsense[] = "127.0.0.1";
        CHECK(!config_listen_is_loopback(&(struct config){ .listen = NULL }));
        CHECK(!config_listen_is_loopback(&(struct config){ .listen = nonsense }));
}

static void test_unix_bound(void)
{
        struct sockaddr_un *u = &(struct sockaddr_un){ 0 };
        struct sockaddr_storage a = { 0 };
        socklen_t n = 77;
        char text[5 + sizeof u->sun_path + 1] = "unix:/";
        memset(text + 6, 'x', sizeof u->sun_path - 2);
        CHECK_INT(config_parse_listen(text, &a, &n, NULL), 0); /* the longest with its NUL */
        CHECK_INT(n, sizeof *u);
        CHECK_STR(((struct sockaddr_un *)&a)->sun_path, text + 5);
        text[5 + sizeof u->sun_path - 1] = 'x';
        struct err e = { 0 };
        n = 77;
        CHECK_INT(config_parse_listen(text, &a, &n, &e), -EINVAL);
        CHECK_INT(n, 77); /* set only on success */
        CHECK(strstr(e.msg, "107 bytes"));
}

int main(void)
{
        bed_begin();
        RUN(test_listen);
        RUN(test_loopback_of_nonsense);
        RUN(test_unix_bound);
        bed_end();
        return check_done();
}
