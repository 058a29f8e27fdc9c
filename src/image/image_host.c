/* The host image's skeleton: a root directory with an empty usr to bind the host's over,
 * the host's links into it, and an /etc of our own making. From the host's /etc comes only
 * what programs in /usr need to run and what every user may read: the linker's cache,
 * alternatives, public certificates, interpreters' site files. Tables say what. */
#include "image/image.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/buf.h"
#include "image/tree.h"

#define SKELETON_VERSION 2 /* raise it when a table below changes, or what of it is copied */
#define STAMP "etc/cloche-image"

static const struct {
        const char *path;
        mode_t mode;
        bool user; /* belongs to the sandbox's user */
} dirs[] = {
        { "usr", 0755, false },
        { "etc", 0755, false },
        { "etc/ssl", 0755, false },
        { "etc/pki", 0755, false },
        { "etc/pki/tls", 0755, false },
        { "etc/pki/ca-trust", 0755, false },
        { "dev", 0755, false },
        { "proc", 0555, false },
        { "sys", 0755, false },
        { "sys/devices", 0755, false },
        { "sys/devices/system", 0755, false },
        { "sys/devices/system/cpu", 0755, false }, /* nproc and JVMs look here */
        { "tmp", 01777, false },
        { "var", 0755, false },
        { "var/tmp", 01777, false },
        { "var/lib", 0755, false },
        { "var/cache", 0755, false },
        { "var/log", 0755, false },
        { "run", 0755, false },
        { "home", 0755, false },
        { "root", 0700, false },
        { "opt", 0755, false },
        { "mnt", 0755, false },
        { "media", 0755, false },
        { "srv", 0755, false },
        { "workspace", 0755, true },
};

/* Top-level names that are links into /usr on a merged host. */
static const char *const usr_links[] = { "/bin",   "/sbin",  "/lib",
                                         "/lib32", "/lib64", "/libx32" };
static_assert(ARRAY_SIZE(usr_links) < IMAGE_HOST_BINDS_MAX, "room for each and usr");

static const struct {
        const char *path, *text;
} files[] = {
        { "etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"
                        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
                        "sandbox:x:1000:1000:sandbox:/workspace:/bin/bash\n" },
        { "etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nsandbox:x:1000:\n" },
        { "etc/hosts", "127.0.0.1 localhost sandbox\n"
                       "::1 localhost ip6-localhost ip6-loopback\n" },
        { "etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
                               "services: files\nprotocols: files\nnetworks: files\n" },
        { "etc/hostname", "sandbox\n" },
        { "etc/resolv.conf", "" },
        { "etc/timezone", "Etc/UTC\n" },
        { "etc/shells", "/bin/sh\n/bin/bash\n" },
        { "etc/profile", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
                         "export PATH\n" },
};

static const struct {
        const char *path, *target;
} links[] = {
        { "etc/localtime", "/usr/share/zoneinfo/Etc/UTC" },
        { "etc/mtab", "/proc/self/mounts" },
        { "var/run", "/run" },
        { "var/lock", "/run/lock" },
};

/* Never ssl/private, and never a file that could name a password: gitconfig, npmrc,
 * pip.conf, maven, apt and the like stay outside. */
static const struct {
        const char *pattern; /* below the host's /etc */
        bool verbatim;       /* links stay as they are, wherever they lead */
} copies[] = {
        { "ld.so.cache", false },
        { "ld.so.conf", false },
        { "ld.so.conf.d", false },
        { "alternatives", true }, /* /usr/bin/vi, java, awk... lead through here */
        { "os-release", false },
        { "debian_version", false },
        { "ssl/certs", false },
        { "ssl/openssl.cnf", false },
        { "ca-certificates", false },
        { "ca-certificates.conf", false },
        { "pki/tls/certs", false },
        { "pki/tls/cert.pem", false },
        { "pki/tls/openssl.cnf", false },
        { "pki/ca-trust/extracted", false },
        { "mime.types", false },
        { "services", false },
        { "protocols", false },
        { "locale.alias", false },
        { "fonts", false },
        { "python3*", false },
        { "java-*", false },
};

static int cannot(struct err *e, const char *what, const char *path)
{
        int code = -errno;
        return fail_host(e, code, "host image: cannot %s %s: %s", what, path, strerror(errno));
}

static int make_dirs(int root, struct err *e)
{
        for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
                if (mkdirat(root, dirs[i].path, 0700) < 0 ||
                    fchmodat(root, dirs[i].path, dirs[i].mode, 0) < 0)
                        return cannot(e, "make", dirs[i].path);
                if (dirs[i].user && geteuid() == 0 &&
                    fchownat(root, dirs[i].path, IMAGE_SANDBOX_UID, IMAGE_SANDBOX_UID, 0) < 0)
                        return cannot(e, "chown", dirs[i].path);
        }
        return 0;
}

static int make_file(int root, const char *path, const char *text, struct err *e)
{
        _cleanup_close_ int fd = openat(root, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        size_t n = strlen(text);
        if (fd < 0 || fchmod(fd, 0644) < 0)
                return cannot(e, "make", path);
        ssize_t put = write(fd, text, n);
        if (put >= 0 && (size_t)put != n)
                errno = ENOSPC;
        return put == (ssize_t)n ? 0 : cannot(e, "write", path);
}

static int make_files(int root, struct err *e)
{
        for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
                int r = make_file(root, files[i].path, files[i].text, e);
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < ARRAY_SIZE(links); i++)
                if (symlinkat(links[i].target, root, links[i].path) < 0)
                        return cannot(e, "make", links[i].path);
        return 0;
}

/* 'l' and its target, 'd', or 0 when the host has none. */
static char host_kind(const char *path, char target[PATH_MAX])
{
        struct stat st;
        if (lstat(path, &st) < 0)
                return 0;
        if (S_ISDIR(st.st_mode))
                return 'd';
        ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, PATH_MAX - 1) : -1;
        if (n < 0)
                return 0;
        target[n] = '\0';
        return 'l';
}

static int make_usr_links(int root, struct err *e)
{
        for (size_t i = 0; i < ARRAY_SIZE(usr_links); i++) {
                char target[PATH_MAX];
                const char *name = usr_links[i] + 1;
                char kind = host_kind(usr_links[i], target);
                if (kind == 'l' && symlinkat(target, root, name) < 0)
                        return cannot(e, "make", name);
                if (kind == 'd' &&
                    (mkdirat(root, name, 0755) < 0 || fchmodat(root, name, 0755, 0) < 0))
                        return cannot(e, "make", name);
        }
        return 0;
}

size_t image_host_binds(const char *ret[IMAGE_HOST_BINDS_MAX])
{
        size_t n = 0;
        ret[n++] = "/usr";
        for (size_t i = 0; i < ARRAY_SIZE(usr_links); i++) {
                char target[PATH_MAX];
                if (host_kind(usr_links[i], target) == 'd')
                        ret[n++] = usr_links[i];
        }
        return n;
}

static int copy_etc(int root, struct err *e)
{
        _cleanup_close_ int etc = openat(root, "etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_close_ int host = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (etc < 0 || host < 0)
                return cannot(e, "open", "/etc");
        for (size_t i = 0; i < ARRAY_SIZE(copies); i++) {
                char pattern[64];
                glob_t found = { 0 };
                (void)snprintf(pattern, sizeof pattern, "/etc/%s", copies[i].pattern);
                if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
                        continue; /* this host has none */
                int r = 0;
                for (size_t k = 0; r == 0 && k < found.gl_pathc; k++) {
                        const char *name = found.gl_pathv[k] + strlen("/etc/");
                        r = tree_copy_public(host, name, etc, name, copies[i].verbatim, e);
                }
                globfree(&found);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What a change of the host would show in: a new library, package or certificate. */
static char *make_stamp(void)
{
        static const char *const watched[] = { "/etc/ld.so.cache", "/etc/alternatives",
                                               "/etc/ssl/certs", "/usr" };
        struct buf b = { 0 };
        buf_addf(&b, "cloche host image, version %d\n", SKELETON_VERSION);
        for (size_t i = 0; i < ARRAY_SIZE(watched); i++) {
                struct stat st = { 0 };
                (void)stat(watched[i], &st);
                buf_addf(&b, "%s %lld.%09ld\n", watched[i], (long long)st.st_mtim.tv_sec,
                         st.st_mtim.tv_nsec);
        }
        return buf_steal(&b);
}

static bool has_stamp(int parent, const char *name, const char *stamp)
{
        char path[PATH_MAX], have[1024];
        if (snprintf(path, sizeof path, "%s/" STAMP, name) >= (int)sizeof path)
                return false;
        _cleanup_close_ int fd = openat(parent, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return false;
        ssize_t n = read(fd, have, sizeof have);
        return n >= 0 && (size_t)n == strlen(stamp) && memcmp(have, stamp, (size_t)n) == 0;
}

static int build(int parent, const char *name, const char *stamp, struct err *e)
{
        if (mkdirat(parent, name, 0755) < 0)
                return cannot(e, "make", name);
        _cleanup_close_ int root =
                openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (root < 0 || fchmod(root, 0755) < 0)
                return cannot(e, "open", name);
        int r = make_dirs(root, e);
        if (r == 0)
                r = make_files(root, e);
        if (r == 0)
                r = make_usr_links(root, e);
        if (r == 0)
                r = copy_etc(root, e);
        if (r == 0)
                r = make_file(root, STAMP, stamp, e);
        if (r == 0 && syncfs(root) < 0) /* the stamp must not outlive what it vouches for */
                r = cannot(e, "sync", name);
        return r;
}

int image_make_host_skeleton(int parent, const char *name, struct err *e)
{
        _cleanup_free_ char *stamp = make_stamp();
        char fresh[NAME_MAX + 1];
        if (!stamp)
                return fail_host(e, -ENOMEM, "out of memory");
        if (has_stamp(parent, name, stamp))
                return 0;
        /* After the exchange below the outdated one stands under this name. */
        if (snprintf(fresh, sizeof fresh, ".old-%s-%lld-%d", name, (long long)time(NULL),
                     (int)getpid()) >= (int)sizeof fresh)
                return fail_host(e, -ENAMETOOLONG, "host image: the name is too long");
        int r = tree_remove(parent, fresh);
        if (r < 0)
                return fail_host(e, r, "host image: cannot remove %s: %s", fresh, strerror(-r));
        r = build(parent, fresh, stamp, e);
        if (r < 0) {
                (void)tree_remove(parent, fresh);
                return r;
        }
        if (renameat2(parent, fresh, parent, name, RENAME_NOREPLACE) == 0 ||
            (errno == EEXIST && renameat2(parent, fresh, parent, name, RENAME_EXCHANGE) == 0))
                return 0;
        r = cannot(e, "put in place", name);
        (void)tree_remove(parent, fresh);
        return r;
}
