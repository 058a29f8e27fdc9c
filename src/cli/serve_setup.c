/* Theory of operation. setup_keeper forks once; the child closes the server's lock, takes
 * one of its own (so that a keeper that is still leaving is waited for), and forgets
 * everything secret: environment, command line, API key. Agents are its forks. */
#include "cli/serve_setup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "keeper/keeper.h"
#include "keeper/slot.h"
#include "os/sys.h"

#define KEEPER_LOCK_SECONDS 10
#define SERVER_LOCK_SECONDS 1
#define SPARE_SLOTS 64 /* beside max_sandboxes: the pool, and those on their way out */

static int make_dirs(const char *path)
{
        char part[4096];
        if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
                return -ENAMETOOLONG;
        for (char *p = part + 1;; p++) {
                if (*p != '/' && *p != '\0')
                        continue;
                char kept = *p;
                *p = '\0';
                if (mkdir(part, 0700) < 0 && errno != EEXIST)
                        return -errno;
                *p = kept;
                if (!kept)
                        return 0;
        }
}

static void on_alarm(int sig)
{
        (void)sig; /* only to interrupt flock */
}

/* Waits for the lock, but not longer than that. 0 or -errno. */
static int lock_within(int fd, unsigned seconds)
{
        struct sigaction wake = { .sa_handler = on_alarm }, old;
        (void)sigaction(SIGALRM, &wake, &old);
        (void)alarm(seconds);
        int r = flock(fd, LOCK_EX) < 0 ? -errno : 0;
        (void)alarm(0);
        (void)sigaction(SIGALRM, &old, NULL);
        return r;
}

static int take_lock(struct setup *s, const struct config *c, struct err *e)
{
        _cleanup_free_ char *path = NULL;
        if (asprintf(&path, "%s/lock", c->state_dir) < 0)
                return fail_host(e, -ENOMEM, "no memory");
        _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
                return fail_host(e, -errno, "cannot open %s: %s", path, strerror(errno));
        /* Children of a server that was just killed (probes, its keeper) may hold its lock
         * for another moment. */
        if (lock_within(fd, SERVER_LOCK_SECONDS) < 0)
                return fail_user(e, -EBUSY, "another cloche serves from %s already; stop it, or use another --state-dir",
                                 c->state_dir);
        s->lock_fd = steal_fd(&fd);
        return 0;
}

/* The store is never synced, so after a crash of the machine it may be damaged; but no sandbox
 * outlives that either. A store of an earlier boot is worth nothing. */
static int forget_earlier_boot(const struct setup *s, const char *boot_path, struct err *e)
{
        static const char *const parts[] = { "", "-wal", "-journal" };
        char now[64], was[64];
        if (file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", now, sizeof now) <= 0)
                return 0;
        int r = file_read(AT_FDCWD, boot_path, was, sizeof was);
        if (r >= 0 && strcmp(was, now) == 0)
                return 0;
        for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(parts); i++) {
                char path[4096];
                (void)snprintf(path, sizeof path, "%s%s", s->store_path, parts[i]);
                (void)unlink(path);
        }
        _cleanup_close_ int fd = open(boot_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ssize_t n = fd < 0 ? -1 : write(fd, now, strlen(now));
        if (n != (ssize_t)strlen(now))
                return fail_host(e, n < 0 ? -errno : -ENOSPC, "cannot write %s: %s", boot_path,
                                 strerror(n < 0 ? errno : ENOSPC));
        return 0;
}

int setup_state(struct setup *s, const struct config *c, struct err *e)
{
        *s = (struct setup){ .lock_fd = -1, .config = c };
        struct rlimit nofile;
        if (getrlimit(RLIMIT_NOFILE, &nofile) == 0) {
                nofile.rlim_cur = nofile.rlim_max;
                (void)setrlimit(RLIMIT_NOFILE, &nofile);
        }
        if (asprintf(&s->run_dir, "%s/run", c->state_dir) < 0 || asprintf(&s->scratch, "%s/stage", c->state_dir) < 0 ||
            asprintf(&s->store_path, "%s/store.db", c->state_dir) < 0 ||
            asprintf(&s->keeper_lock, "%s/keeper.lock", c->state_dir) < 0)
                return fail_host(e, -ENOMEM, "no memory");
        int r = make_dirs(c->state_dir);
        if (r == 0)
                r = make_dirs(s->run_dir);
        if (r == 0)
                r = make_dirs(s->scratch);
        if (r < 0)
                return fail_host(e, r, "cannot make the state directory %s: %s", c->state_dir, strerror(-r));
        _cleanup_free_ char *boot = NULL;
        if (asprintf(&boot, "%s/boot", c->state_dir) < 0)
                return fail_host(e, -ENOMEM, "no memory");
        r = take_lock(s, c, e);
        return r < 0 ? r : forget_earlier_boot(s, boot, e);
}

/* --- images ----------------------------------------------------------------------------- */

static int add_image(struct setup *s, const char *name, const char *path, struct err *e)
{
        if (setup_image_index(s, name) >= 0)
                return 0;
        if (s->image_count == ROOTFS_MAX_IMAGES)
                return fail_user(e, -E2BIG, "more than %d images are configured", ROOTFS_MAX_IMAGES);
        int r = image_open(s->config->state_dir, name, path, &s->images[s->image_count], e);
        if (r == 0)
                s->image_count++;
        return r;
}

int setup_images(struct setup *s, const struct config *c, struct err *e)
{
        int r = add_image(s, CONFIG_HOST_IMAGE, NULL, e);
        for (size_t i = 0; r == 0 && i < c->image_count; i++) {
                const char *name, *path;
                r = config_image_find(c, str_c(c->images[i].name), &name, &path, e);
                if (r == 0 && path)
                        r = add_image(s, name, path, e);
        }
        return r;
}

int setup_image_index(const struct setup *s, const char *name)
{
        for (size_t i = 0; i < s->image_count; i++)
                if (strcmp(s->images[i].name, name) == 0)
                        return (int)i;
        return -ENOENT;
}

void setup_sweep_images(const struct setup *s)
{
        struct err e = { 0 };
        if (image_sweep(s->config->state_dir, s->images, s->image_count, &e) < 0)
                log_line(LOG_WARN, "cannot remove old images", "error", e.msg, NULL);
}

/* --- the keeper --------------------------------------------------------------------------- */

struct child {
        struct setup *s;
        int argc;
        char **argv;
};

static void in_keeper(void *user)
{
        extern char **environ;
        struct child *c = user;
        close_fd(&c->s->lock_fd);
        int fd = open(c->s->keeper_lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* held for life */
        if (fd < 0 || lock_within(fd, KEEPER_LOCK_SECONDS) < 0) {
                fprintf(stderr, "cloche: the keeper of an earlier server does not leave\n");
                _exit(1);
        }
        for (char **p = environ; *p; p++)
                explicit_bzero(*p, strlen(*p));
        for (int i = 1; i < c->argc; i++)
                explicit_bzero(c->argv[i], strlen(c->argv[i]));
        if (c->s->config->api_key)
                explicit_bzero(c->s->config->api_key, strlen(c->s->config->api_key));
}

/* Two servers with different state directories must not share cgroups; one directory by
 * two spellings must. */
static void group_name(const struct config *c, char *out, size_t size)
{
        uint64_t h = 0xcbf29ce484222325ull;
        _cleanup_free_ char *real = realpath(c->state_dir, NULL);
        for (const char *p = real ? real : c->state_dir; *p; p++)
                h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
        (void)snprintf(out, size, "%s-%08x", c->cgroup_root, (unsigned)(h ^ h >> 32));
}

void setup_place(const struct config *c, char *out, size_t size)
{
        char group[64];
        group_name(c, group, sizeof group);
        if (geteuid() == 0)
                (void)snprintf(out, size, "uid_base %llu and cgroup %s", (unsigned long long)c->uid_base, group);
        else
                (void)snprintf(out, size, "user %u and cgroup %s", (unsigned)geteuid(), group);
}

int setup_keeper(struct setup *s, const struct config *c, int argc, char **argv, int *ret_sock, struct err *e)
{
        static struct rootfs_image roots[ROOTFS_MAX_IMAGES];
        const char *binds[IMAGE_HOST_BINDS_MAX];
        size_t bind_count = image_host_binds(binds);
        for (size_t i = 0; i < s->image_count; i++) {
                roots[i] = (struct rootfs_image){ .root = s->images[i].path };
                for (size_t b = 0; s->images[i].is_host && b < bind_count && b < ROOTFS_MAX_BINDS; b++)
                        roots[i].binds[roots[i].bind_count++] = binds[b];
        }
        char group[64];
        group_name(c, group, sizeof group);
        struct child child = { s, argc, argv };
        struct keeper_config k = {
                .images = roots,
                .image_count = (unsigned)s->image_count,
                .scratch = s->scratch,
                .cgroup_group = group,
                .uid_base = (uid_t)c->uid_base,
                /* not fewer than an earlier server with a higher limit may have used */
                .slots = (unsigned)((c->max_sandboxes > LIMIT_BOXES ? c->max_sandboxes : LIMIT_BOXES) +
                                    c->pool_size) + SPARE_SLOTS,
                .privileged = geteuid() == 0,
                .in_child = in_keeper,
                .user = &child,
        };
        /* A range that wrapped around would be the host's own ids. */
        if (k.privileged && c->uid_base + (uint64_t)k.slots * SLOT_UIDS > UINT32_MAX)
                return fail_user(e, -ERANGE, "uid_base %llu leaves no room for %u sandboxes of %u ids each",
                                 (unsigned long long)c->uid_base, k.slots, SLOT_UIDS);
        pid_t pid;
        int r = keeper_start(&k, ret_sock, &pid, e);
        if (r < 0)
                return r;
        if (chdir(s->run_dir) < 0)
                return fail_host(e, -errno, "cannot enter %s: %s", s->run_dir, strerror(errno));
        return 0;
}

/* --- the socket ----------------------------------------------------------------------------- */

/* A socket file is all that is left of a server that died: nobody listens. */
static bool is_abandoned(const struct sockaddr_storage *a, socklen_t n)
{
        struct stat st;
        if (stat(((const struct sockaddr_un *)a)->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
                return false;
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        return fd >= 0 && connect(fd, (const struct sockaddr *)a, n) < 0 && errno == ECONNREFUSED;
}

int setup_listen(const struct config *c, struct err *e)
{
        struct sockaddr_storage a;
        socklen_t n;
        int one = 1, zero = 0;
        int r = config_parse_listen(c->listen, &a, &n, e);
        if (r < 0)
                return r;
        _cleanup_close_ int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return fail_host(e, -errno, "no socket: %s", strerror(errno));
        if (a.ss_family == AF_UNIX && is_abandoned(&a, n))
                (void)unlink(((struct sockaddr_un *)&a)->sun_path);
        if (a.ss_family != AF_UNIX)
                (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (a.ss_family == AF_INET6)
                (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
        mode_t old = umask(0077);
        r = bind(fd, (struct sockaddr *)&a, n);
        (void)umask(old);
        if (r < 0 || listen(fd, 1024) < 0)
                return fail_host(e, -errno, "cannot listen on %s: %s", c->listen, strerror(errno));
        return steal_fd(&fd);
}

void setup_where(const struct config *c, int listen_fd, char *out, size_t size)
{
        char ip[INET6_ADDRSTRLEN] = "";
        struct sockaddr_storage a = { 0 };
        socklen_t n = sizeof a;
        (void)getsockname(listen_fd, (struct sockaddr *)&a, &n);
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
        if (a.ss_family == AF_INET && inet_ntop(AF_INET, &v4->sin_addr, ip, sizeof ip))
                (void)snprintf(out, size, "http://%s:%u", ip, ntohs(v4->sin_port));
        else if (a.ss_family == AF_INET6 && inet_ntop(AF_INET6, &v6->sin6_addr, ip, sizeof ip))
                (void)snprintf(out, size, "http://[%s]:%u", ip, ntohs(v6->sin6_port));
        else
                (void)snprintf(out, size, "%s", c->listen);
}

void setup_free(struct setup *s)
{
        for (size_t i = 0; i < s->image_count; i++)
                image_free(&s->images[i]);
        free(s->run_dir);
        free(s->scratch);
        free(s->store_path);
        free(s->keeper_lock);
        if (s->config)
                close_fd(&s->lock_fd);
}
