#include "image/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "image/tree.h"

static char top[] = "/tmp/cloche-test-image-XXXXXX";
static int top_fd;

static void put(int dir, const char *name, const char *text, mode_t mode)
{
        int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, text, strlen(text)) < 0 || fchmod(fd, mode) < 0) {
                perror(name);
                exit(1);
        }
        (void)close(fd);
}

static char *get(int dir, const char *name)
{
        static char text[4096];
        int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
                (void)close(fd);
        text[n > 0 ? n : 0] = '\0';
        return n < 0 ? NULL : text;
}

static struct stat look(int dir, const char *name)
{
        struct stat st = { 0 };
        (void)fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW);
        return st;
}

static bool there(int dir, const char *name)
{
        return look(dir, name).st_ino != 0;
}

static char *path_of(const char *name)
{
        static char paths[8][256];
        static unsigned next;
        char *p = paths[next++ % 8];
        (void)snprintf(p, 256, "%s/%s", top, name);
        return p;
}

static int entries(const char *name)
{
        DIR *d = opendir(path_of(name));
        int n = 0;
        if (!d)
                return -1;
        for (const struct dirent *de; (de = readdir(d));)
                n += strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0;
        (void)closedir(d);
        return n;
}

/* --- trees --- */

static void test_tree_remove(void)
{
        CHECK_INT(mkdirat(top_fd, "t", 0700), 0);
        CHECK_INT(mkdirat(top_fd, "t/sub", 0700), 0);
        put(top_fd, "outside", "stays", 0600);
        put(top_fd, "t/sub/file", "x", 0400);
        CHECK_INT(symlinkat("../outside", top_fd, "t/link"), 0);
        CHECK_INT(symlinkat("/tmp", top_fd, "t/sub/dirlink"), 0);
        CHECK_INT(mkdirat(top_fd, "t/closed", 0700), 0);
        put(top_fd, "t/closed/file", "x", 0600);
        CHECK_INT(fchmodat(top_fd, "t/closed", 0, 0), 0);
        CHECK_INT(tree_remove(top_fd, "t"), 0);
        CHECK(!there(top_fd, "t"));
        CHECK_STR(get(top_fd, "outside"), "stays"); /* links are not followed */
        CHECK_INT(tree_remove(top_fd, "t"), 0);
        CHECK_INT(tree_remove(top_fd, "outside"), 0);
        CHECK(access("/tmp", F_OK) == 0);
}

static void test_copy_leaves_secrets(void)
{
        CHECK_INT(mkdirat(top_fd, "src", 0755), 0);
        int src = openat(top_fd, "src", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        put(src, "cert.pem", "-----BEGIN CERTIFICATE-----\n", 0644);
        put(src, "tool", "#!/bin/sh\n", 0755);
        put(src, "both.pem", "cert\n-----BEGIN RSA PRIVATE KEY-----\n", 0644);
        put(src, "server.key", "x", 0644);
        put(src, "jmx.password", "x", 0644);
        put(src, "hidden.conf", "x", 0640);
        CHECK_INT(mkdirat(src, "private", 0755), 0);
        put(src, "private/a", "x", 0644);
        CHECK_INT(mkdirat(src, "closed", 0700), 0);
        put(src, "closed/a", "x", 0644);
        CHECK_INT(mkdirat(src, "open", 0755), 0);
        put(src, "open/a", "deep", 0644);
        CHECK_INT(mkfifoat(src, "fifo", 0666), 0);
        CHECK_INT(symlinkat("cert.pem", src, "hash.0"), 0);
        CHECK_INT(symlinkat("/usr/bin/env", src, "into-usr"), 0);
        CHECK_INT(symlinkat(path_of("elsewhere"), src, "elsewhere.pem"), 0);
        CHECK_INT(symlinkat(path_of("secret"), src, "secret.pem"), 0);
        CHECK_INT(symlinkat("/nonexistent/x", src, "dangling"), 0);
        put(top_fd, "elsewhere", "company", 0644);
        put(top_fd, "secret", "x", 0600);

        struct err e = { 0 };
        CHECK_INT(tree_copy_public(top_fd, "src", top_fd, "dst", false, &e), 0);
        CHECK_STR(e.msg, "");
        CHECK_STR(get(top_fd, "dst/cert.pem"), "-----BEGIN CERTIFICATE-----\n");
        CHECK_STR(get(top_fd, "dst/open/a"), "deep");
        CHECK_INT(look(top_fd, "dst/tool").st_mode & 07777, 0755);
        CHECK_INT(look(top_fd, "dst/cert.pem").st_mode & 07777, 0644);
        CHECK(S_ISLNK(look(top_fd, "dst/hash.0").st_mode));
        CHECK(S_ISLNK(look(top_fd, "dst/into-usr").st_mode));
        CHECK(S_ISREG(look(top_fd, "dst/elsewhere.pem").st_mode)); /* the file behind it */
        CHECK_STR(get(top_fd, "dst/elsewhere.pem"), "company");
        static const char *const absent[] = { "both.pem", "server.key", "jmx.password",
                                              "hidden.conf", "private", "closed", "fifo",
                                              "secret.pem", "dangling" };
        for (size_t i = 0; i < ARRAY_SIZE(absent); i++) {
                char name[64];
                (void)snprintf(name, sizeof name, "dst/%s", absent[i]);
                if (there(top_fd, name))
                        printf("copied: %s\n", name);
                CHECK(!there(top_fd, name));
        }
        /* Verbatim, as for /etc/alternatives: links stay whatever they lead to. */
        CHECK_INT(tree_copy_public(top_fd, "src", top_fd, "dst2", true, &e), 0);
        CHECK(S_ISLNK(look(top_fd, "dst2/secret.pem").st_mode));
        CHECK(S_ISLNK(look(top_fd, "dst2/dangling").st_mode));
        CHECK_INT(tree_copy_public(top_fd, "no-such", top_fd, "dst3", false, &e), 0);
        CHECK(!there(top_fd, "dst3"));
        (void)close(src);
        static const char *const mine[] = { "src", "dst", "dst2", "elsewhere", "secret" };
        for (size_t i = 0; i < ARRAY_SIZE(mine); i++)
                CHECK_INT(tree_remove(top_fd, mine[i]), 0);
}

/* --- the host image --- */

static void check_skeleton(int root)
{
        static const struct {
                const char *path;
                mode_t mode;
        } rows[] = { { "usr", 0755 },     { "tmp", 01777 },  { "var/tmp", 01777 },
                     { "root", 0700 },    { "etc", 0755 },   { "workspace", 0755 },
                     { "dev", 0755 },     { "proc", 0555 },  { "run", 0755 },
                     { "home", 0755 },    { "opt", 0755 },   { "sys/devices/system/cpu", 0755 },
                     { "var/lib", 0755 }, { "mnt", 0755 },   { "srv", 0755 } };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct stat st = look(root, rows[i].path);
                CHECK(S_ISDIR(st.st_mode));
                CHECK_INT(st.st_mode & 07777, rows[i].mode);
                if (geteuid() == 0)
                        CHECK_INT(st.st_uid, strcmp(rows[i].path, "workspace") == 0 ? 1000 : 0);
        }
        static const char *const links[] = { "/bin", "/sbin", "/lib", "/lib32", "/lib64",
                                             "/libx32" };
        for (size_t i = 0; i < ARRAY_SIZE(links); i++) {
                char here[256] = "", on_host[256] = "";
                (void)!readlinkat(root, links[i] + 1, here, sizeof here - 1);
                (void)!readlink(links[i], on_host, sizeof on_host - 1);
                CHECK_STR(here, on_host);
        }
        CHECK(strstr(get(root, "etc/passwd"), "sandbox:x:1000:1000:sandbox:/workspace:/bin/bash\n"));
        CHECK(strstr(get(root, "etc/hosts"), "127.0.0.1 localhost"));
        CHECK_STR(get(root, "etc/resolv.conf"), "");
        static const char *const never[] = { "etc/shadow",  "etc/gshadow",     "etc/ssl/private",
                                             "etc/ssh",     "etc/sudoers",     "etc/gitconfig",
                                             "etc/npmrc",   "etc/pip.conf",    "etc/machine-id",
                                             "etc/apt",     "etc/environment", "etc/cron.d",
                                             "etc/systemd", "etc/postgresql" };
        for (size_t i = 0; i < ARRAY_SIZE(never); i++)
                CHECK(!there(root, never[i]));
        if (access("/etc/ld.so.cache", R_OK) == 0)
                CHECK_INT(look(root, "etc/ld.so.cache").st_size,
                          look(AT_FDCWD, "/etc/ld.so.cache").st_size);
        if (access("/etc/alternatives", R_OK) == 0)
                CHECK(S_ISDIR(look(root, "etc/alternatives").st_mode));
        if (access("/etc/ssl/certs", R_OK) == 0)
                CHECK(S_ISDIR(look(root, "etc/ssl/certs").st_mode));
}

/* Does it work as a root? The host's /usr over it, then a shell that asks who it is. */
static int live_in(const char *root)
{
        char usr[300];
        int status = -1;
        pid_t pid = fork();
        if (pid != 0)
                return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status)
                               ? WEXITSTATUS(status)
                               : -1;
        (void)snprintf(usr, sizeof usr, "%s/usr", root);
        if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("/usr", usr, NULL, MS_BIND | MS_REC, NULL) < 0 || chroot(root) < 0 ||
            chdir("/") < 0)
                _exit(99);
        (void)execl("/bin/sh", "sh", "-c",
                    "test \"$(id -un 1000)\" = sandbox && test -z \"$(ls /home)\" && "
                    "test ! -e /etc/shadow && test \"$(date +%Z)\" = UTC && awk 'BEGIN{exit 0}'",
                    (char *)NULL);
        _exit(98);
}

static void test_host(void)
{
        struct err e = { 0 };
        mode_t before = umask(077); /* must not show in what is made */
        CHECK_INT(image_make_host_skeleton(top_fd, "host", &e), 0);
        (void)umask(before);
        CHECK_STR(e.msg, "");
        int root = openat(top_fd, "host", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CHECK(root >= 0);
        CHECK_INT(look(top_fd, "host").st_mode & 07777, 0755);
        check_skeleton(root);

        const char *binds[IMAGE_HOST_BINDS_MAX];
        size_t n = image_host_binds(binds);
        CHECK(n >= 1);
        CHECK_STR(binds[0], "/usr");
        for (size_t i = 1; i < n; i++)
                CHECK(S_ISDIR(look(AT_FDCWD, binds[i]).st_mode) &&
                      S_ISDIR(look(root, binds[i] + 1).st_mode));
        if (n == 1 && geteuid() == 0)
                CHECK_INT(live_in(path_of("host")), 0);

        /* The same again: found, not made anew. */
        ino_t first = look(top_fd, "host").st_ino;
        CHECK_INT(image_make_host_skeleton(top_fd, "host", &e), 0);
        CHECK(look(top_fd, "host").st_ino == first);
        CHECK_INT(entries("."), 1);
        /* The host changed: exchanged, and the old one stays whole until it is swept. */
        put(root, "etc/cloche-image", "another time\n", 0644);
        CHECK_INT(image_make_host_skeleton(top_fd, "host", &e), 0);
        CHECK(look(top_fd, "host").st_ino != first);
        CHECK_INT(entries("."), 2);
        CHECK(get(root, "etc/passwd"));
        (void)close(root);
}

static void test_open_host_and_sweep(void)
{
        struct image i = { 0 };
        struct err e = { 0 };
        char *state = path_of("state/of/ours");
        CHECK_INT(image_open(state, "host", NULL, &i, &e), 0);
        CHECK_STR(e.msg, "");
        CHECK(i.is_host);
        CHECK_STR(i.path, path_of("state/of/ours/images/host"));
        CHECK_INT(mkdirat(top_fd, "state/of/ours/images/.tmp-left", 0700), 0);
        CHECK_INT(mkdirat(top_fd, "state/of/ours/images/.old-host-1-2", 0700), 0);
        CHECK_INT(image_sweep(state, &i, 1, &e), 0);
        CHECK_INT(entries("state/of/ours/images"), 1);
        CHECK(there(top_fd, "state/of/ours/images/host/etc/passwd"));
        image_free(&i);
        CHECK_INT(image_sweep(state, NULL, 0, &e), 0);
        CHECK_INT(entries("state/of/ours/images"), 0);
}

/* --- directories and tarballs --- */

static void test_directories(void)
{
        struct image i = { 0 };
        struct err e = { 0 };
        CHECK_INT(mkdirat(top_fd, "deb", 0755), 0);
        CHECK_INT(symlinkat("deb", top_fd, "deb-link"), 0);
        CHECK_INT(symlinkat("/", top_fd, "root-link"), 0);
        CHECK_INT(image_open(top, "deb", path_of("deb"), &i, &e), 0);
        CHECK_STR(i.path, path_of("deb"));
        CHECK_STR(i.name, "deb");
        CHECK(!i.is_host);
        image_free(&i);
        CHECK_INT(image_open(top, "deb", path_of("deb-link"), &i, &e), 0);
        CHECK_STR(i.path, path_of("deb")); /* the link may move later, the image not */
        image_free(&i);
        static const char *const root[] = { "/", "//", "/usr/..", "/proc/self/root" };
        for (size_t k = 0; k < ARRAY_SIZE(root); k++) {
                CHECK_INT(image_open(top, "x", root[k], &i, &e), -EINVAL);
                CHECK(strstr(e.msg, "host's root"));
        }
        CHECK_INT(image_open(top, "x", path_of("root-link"), &i, &e), -EINVAL);
        CHECK_INT(image_open(top, "x", "relative", &i, &e), -EINVAL);
        CHECK_INT(image_open(top, "x", path_of("missing"), &i, &e), -ENOENT);
        CHECK(strstr(e.msg, "image 'x'") && strstr(e.msg, "missing"));
        CHECK_INT(image_open(top, "x", "/dev/null", &i, &e), -EINVAL);
        CHECK(!i.path); /* set only on success */
}

static void run_tar(const char *args)
{
        char line[1024];
        (void)snprintf(line, sizeof line, "cd %s && tar %s", top, args);
        CHECK_INT(system(line), 0);
}

static void make_tree(void)
{
        CHECK_INT(mkdirat(top_fd, "tree", 0755), 0);
        CHECK_INT(mkdirat(top_fd, "tree/usr", 0755), 0);
        CHECK_INT(mkdirat(top_fd, "tree/dev", 0755), 0);
        CHECK_INT(mkdirat(top_fd, "tree/srv", 0755), 0);
        put(top_fd, "tree/usr/hello", "hello", 0751);
        CHECK_INT(symlinkat("usr", top_fd, "tree/bin"), 0);
        if (geteuid() == 0) {
                CHECK_INT(fchownat(top_fd, "tree/usr/hello", 1234, 4321, 0), 0);
                /* May be refused in a container; then there is less to strip. */
                (void)mknodat(top_fd, "tree/dev/null", S_IFCHR | 0666, makedev(1, 3));
                (void)mknodat(top_fd, "tree/srv/disk", S_IFBLK | 0666, makedev(8, 0));
        }
}

static void check_unpacked(const struct image *i)
{
        int root = open(i->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CHECK(root >= 0);
        CHECK_STR(get(root, "usr/hello"), "hello");
        CHECK_INT(look(root, "usr/hello").st_mode & 07777, 0751);
        CHECK_INT(look(root, ".").st_mode & 07777, 0755);
        CHECK(S_ISLNK(look(root, "bin").st_mode));
        CHECK(there(root, "dev") && there(root, "srv"));
        CHECK(!there(root, "dev/null") && !there(root, "srv/disk"));
        if (geteuid() == 0) {
                CHECK_INT(look(root, "usr/hello").st_uid, 1234);
                CHECK_INT(look(root, "usr/hello").st_gid, 4321);
        }
        (void)close(root);
}

static void test_tarballs(void)
{
        struct err e = { 0 };
        make_tree();
        run_tar("-cf plain.img -C tree .");
        run_tar("-czf packed.tgz -C tree usr dev srv bin");
        CHECK_INT(mkdirat(top_fd, "st", 0700), 0);
        struct image a = { 0 }, b = { 0 }, again = { 0 };
        CHECK_INT(image_open(path_of("st"), "plain/1:2", path_of("plain.img"), &a, &e), 0);
        CHECK_STR(e.msg, "");
        CHECK_INT(image_open(path_of("st"), "packed", path_of("packed.tgz"), &b, &e), 0);
        CHECK_STR(e.msg, "");
        check_unpacked(&a);
        check_unpacked(&b);
        CHECK_INT(entries("st/images"), 2);

        ino_t first = look(AT_FDCWD, a.path).st_ino;
        CHECK_INT(image_open(path_of("st"), "plain/1:2", path_of("plain.img"), &again, &e), 0);
        CHECK_STR(again.path, a.path); /* reused */
        CHECK(look(AT_FDCWD, again.path).st_ino == first);
        image_free(&again);

        /* A new version of the tarball is another image; the old one goes when swept. */
        put(top_fd, "tree/usr/new", "new", 0644);
        run_tar("-cf plain.img -C tree .");
        CHECK_INT(image_open(path_of("st"), "plain/1:2", path_of("plain.img"), &again, &e), 0);
        CHECK(strcmp(again.path, a.path) != 0);
        CHECK_INT(entries("st/images"), 3);
        CHECK_INT(image_sweep(path_of("st"), (struct image[]){ again, b }, 2, &e), 0);
        CHECK_INT(entries("st/images"), 2);
        CHECK(access(a.path, F_OK) < 0 && access(again.path, F_OK) == 0);
        image_free(&a);
        image_free(&b);
        image_free(&again);
}

static void test_bad_tarballs(void)
{
        struct err e = { 0 };
        struct image i = { 0 };
        CHECK_INT(mkdirat(top_fd, "bad", 0700), 0);
        put(top_fd, "text.tar", "this is no archive", 0644);
        CHECK_INT(image_open(path_of("bad"), "x", path_of("text.tar"), &i, &e), -EINVAL);
        CHECK(strstr(e.msg, "neither a directory nor a tar archive"));
        put(top_fd, "empty.tar", "", 0644);
        CHECK_INT(image_open(path_of("bad"), "x", path_of("empty.tar"), &i, &e), -EINVAL);

        put(top_fd, "broken.tgz", "\037\213\010 and then nonsense", 0644);
        CHECK_INT(image_open(path_of("bad"), "x", path_of("broken.tgz"), &i, &e), -EIO);
        CHECK(strstr(e.msg, "tar could not unpack"));
        CHECK_INT(entries("bad/images"), 0); /* nothing half unpacked is left */

        run_tar("-cf nested.tar tree"); /* one directory too deep */
        CHECK_INT(image_open(path_of("bad"), "x", path_of("nested.tar"), &i, &e), -EINVAL);
        CHECK(strstr(e.msg, "neither usr nor bin"));
        CHECK_INT(entries("bad/images"), 0);

        CHECK_INT(truncate(path_of("packed.tgz"), 120), 0);
        CHECK(image_open(path_of("bad"), "x", path_of("packed.tgz"), &i, &e) < 0);
        CHECK_INT(entries("bad/images"), 0);
        CHECK(!i.path);
}

static void test_nothing_is_left(void)
{
        CHECK_INT(tree_remove(AT_FDCWD, top), 0);
        CHECK(access(top, F_OK) < 0);
}

int main(void)
{
        if (!mkdtemp(top))
                return 1;
        (void)chmod(top, 0755);
        top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        RUN(test_tree_remove);
        RUN(test_copy_leaves_secrets);
        RUN(test_host);
        RUN(test_open_host_and_sweep);
        RUN(test_directories);
        RUN(test_tarballs);
        RUN(test_bad_tarballs);
        RUN(test_nothing_is_left);
        return check_done();
}
