/* Theory of operation: a tarball is unpacked by the host's tar, a child of this process
 * with the caller's privileges. It gets the open tarball as stdin, a pipe as stderr (its
 * complaint becomes our sentence), a clean environment and the target as its working
 * directory; image_open() waits for it. Nobody else sees the target until it is renamed. */
#include "image/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "image/tree.h"

#define TAR_MAGIC_AT 257
#define COMPLAINT_BYTES 200

void image_free(struct image *i)
{
        free(i->name);
        free(i->path);
        *i = (struct image){ 0 };
}

/* With its parents: a new user has no ~/.local/state yet. */
static int make_state_dir(const char *path)
{
        char part[PATH_MAX];
        size_t n = strlen(path);
        if (n >= sizeof part) {
                errno = ENAMETOOLONG;
                return -1;
        }
        for (size_t i = 1; i < n; i++)
                if (path[i] == '/') {
                        memcpy(part, path, i);
                        part[i] = '\0';
                        if (mkdir(part, 0755) < 0 && errno != EEXIST)
                                return -1;
                }
        return mkdir(path, 0700) < 0 && errno != EEXIST ? -1 : 0;
}

static int open_images_dir(const char *state_dir, int *ret, struct err *e)
{
        if (make_state_dir(state_dir) < 0)
                return fail_host(e, -errno, "cannot make %s: %s", state_dir, strerror(errno));
        _cleanup_close_ int state = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (state < 0)
                return fail_host(e, -errno, "cannot open %s: %s", state_dir, strerror(errno));
        if (mkdirat(state, "images", 0700) < 0 && errno != EEXIST)
                return fail_host(e, -errno, "cannot make %s/images: %s", state_dir,
                                 strerror(errno));
        int fd = openat(state, "images", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return fail_host(e, -errno, "cannot open %s/images: %s", state_dir,
                                 strerror(errno));
        *ret = fd;
        return 0;
}

/* --- tarballs --- */

enum packing { PACKED_NOT, PACKED_PLAIN, PACKED_GZIP };

static enum packing packing_of(int fd)
{
        unsigned char head[TAR_MAGIC_AT + 5];
        ssize_t n = pread(fd, head, sizeof head, 0);
        if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b)
                return PACKED_GZIP;
        if (n == (ssize_t)sizeof head && memcmp(head + TAR_MAGIC_AT, "ustar", 5) == 0)
                return PACKED_PLAIN;
        return PACKED_NOT;
}

/* FNV-1a: tells versions of one operator's files apart, no more is asked of it. */
static uint64_t mix(uint64_t h, const void *p, size_t n)
{
        for (size_t i = 0; i < n; i++)
                h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3ull;
        return h;
}

/* Where this state of this file is unpacked: a changed tarball gets another name. */
static void unpacked_name(const char *name, const char *path, const struct stat *st,
                          char out[NAME_MAX + 1])
{
        uint64_t h = mix(0xcbf29ce484222325ull, path, strlen(path) + 1);
        h = mix(h, &st->st_size, sizeof st->st_size);
        h = mix(h, &st->st_mtim.tv_sec, sizeof st->st_mtim.tv_sec);
        h = mix(h, &st->st_mtim.tv_nsec, sizeof st->st_mtim.tv_nsec);
        h = mix(h, &st->st_ino, sizeof st->st_ino);
        int n = snprintf(out, NAME_MAX + 1, "tar-%.64s-%016llx", name, (unsigned long long)h);
        for (int i = 0; i < n; i++)
                if (out[i] == '/')
                        out[i] = '_';
}

static int prepare_spawn(posix_spawn_file_actions_t *acts, posix_spawnattr_t *attr, int tarball,
                         int target, int complaint)
{
        sigset_t none, all;
        sigemptyset(&none);
        sigfillset(&all);
        int r = posix_spawn_file_actions_adddup2(acts, tarball, 0);
        if (r == 0)
                r = posix_spawn_file_actions_addopen(acts, 1, "/dev/null", O_WRONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(acts, complaint, 2);
        if (r == 0)
                r = posix_spawn_file_actions_addfchdir_np(acts, target);
        if (r == 0)
                r = posix_spawnattr_setsigmask(attr, &none);
        if (r == 0)
                r = posix_spawnattr_setsigdefault(attr, &all);
        if (r == 0)
                r = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        return -r;
}

/* complaint is for the child's stderr; -errno when it cannot be started. */
static int spawn_tar(int tarball, enum packing packing, int target, int complaint, pid_t *ret)
{
        char *argv[12];
        size_t n = 0;
        const char *words[] = {
                "tar", "--extract", "--file=-", "--numeric-owner", "--preserve-permissions",
                /* Devices are not wanted; /dev is a fresh one in each sandbox. */
                "--anchored", "--exclude=dev/*", "--exclude=./dev/*",
                geteuid() == 0 ? "--same-owner" : "--no-same-owner",
                packing == PACKED_GZIP ? "--gzip" : NULL,
        };
        for (size_t i = 0; i < ARRAY_SIZE(words); i++)
                if (words[i])
                        argv[n++] = (char *)(uintptr_t)words[i];
        argv[n] = NULL;
        /* Not the server's environment: TAR_OPTIONS or LD_PRELOAD are not for root's tar. */
        char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin", lang[] = "LC_ALL=C";
        char *env[] = { path, lang, NULL };
        posix_spawn_file_actions_t acts;
        posix_spawnattr_t attr;
        if (posix_spawn_file_actions_init(&acts) != 0)
                return -ENOMEM;
        if (posix_spawnattr_init(&attr) != 0) {
                posix_spawn_file_actions_destroy(&acts);
                return -ENOMEM;
        }
        int r = prepare_spawn(&acts, &attr, tarball, target, complaint);
        if (r == 0)
                r = -posix_spawn(ret, "/usr/bin/tar", &acts, &attr, argv, env);
        if (r == -ENOENT)
                r = -posix_spawn(ret, "/bin/tar", &acts, &attr, argv, env);
        posix_spawn_file_actions_destroy(&acts);
        posix_spawnattr_destroy(&attr);
        return r;
}

/* Keeps the first line of what the child says, and reads on so that it never blocks. */
static void read_complaint(int fd, char out[COMPLAINT_BYTES])
{
        char chunk[512];
        size_t have = 0;
        for (;;) {
                ssize_t n = read(fd, chunk, sizeof chunk);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        break;
                for (ssize_t i = 0; i < n && have < COMPLAINT_BYTES - 1; i++)
                        out[have++] = chunk[i];
        }
        out[have] = '\0';
        out[strcspn(out, "\n")] = '\0';
        for (char *p = out; *p; p++)
                if (*p < ' ' || *p > '~')
                        *p = '?';
}

static int run_tar(int tarball, enum packing packing, int target, const char *path,
                   struct err *e)
{
        int ends[2], status = 0;
        pid_t pid;
        char complaint[COMPLAINT_BYTES];
        if (pipe2(ends, O_CLOEXEC) < 0)
                return fail_host(e, -errno, "cannot make a pipe: %s", strerror(errno));
        _cleanup_close_ int reading = ends[0], writing = ends[1];
        int r = spawn_tar(tarball, packing, target, writing, &pid);
        if (r < 0)
                return fail_host(e, r, "cannot start tar to unpack %s: %s", path, strerror(-r));
        close_fd(&writing);
        read_complaint(reading, complaint);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return fail_host(e, -errno, "lost tar while unpacking %s", path);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                return 0;
        return fail_host(e, -EIO, "tar could not unpack %s: %s", path,
                         complaint[0] ? complaint : "it was killed");
}

/* Sandboxes of every uid walk through the root; and it must be a root. */
static int check_unpacked(int dir, const char *path, struct err *e)
{
        int r = tree_strip_devices(dir, e);
        if (r < 0)
                return r;
        if (faccessat(dir, "usr", F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
            faccessat(dir, "bin", F_OK, AT_SYMLINK_NOFOLLOW) < 0)
                return fail_user(e, -EINVAL,
                                 "%s does not hold a root file system: there is neither usr nor "
                                 "bin at its top", path);
        if (fchmod(dir, 0755) < 0 || syncfs(dir) < 0)
                return fail_host(e, -errno, "cannot finish unpacking %s: %s", path,
                                 strerror(errno));
        return 0;
}

static int unpack(int images, int tarball, enum packing packing, const char *path,
                  const char *name, struct err *e)
{
        char temporary[NAME_MAX + 1];
        (void)snprintf(temporary, sizeof temporary, ".tmp-%.200s-%d", name, (int)getpid());
        int r = tree_remove(images, temporary);
        if (r < 0 || mkdirat(images, temporary, 0700) < 0)
                return fail_host(e, r < 0 ? r : -errno, "cannot make a directory to unpack %s",
                                 path);
        _cleanup_close_ int dir =
                openat(images, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir < 0 || lseek(tarball, 0, SEEK_SET) < 0)
                return fail_host(e, -errno, "cannot unpack %s: %s", path, strerror(errno));
        r = run_tar(tarball, packing, dir, path, e);
        if (r == 0)
                r = check_unpacked(dir, path, e);
        if (r == 0 && renameat2(images, temporary, images, name, RENAME_NOREPLACE) < 0 &&
            errno != EEXIST)
                r = fail_host(e, -errno, "cannot put image %s in place: %s", name,
                              strerror(errno));
        /* Gone after the rename; here on failure, or when another was faster. */
        (void)tree_remove(images, temporary);
        return r;
}

static int open_tarball(const char *state_dir, const char *name, const char *path, int fd,
                        char **ret_path, struct err *e)
{
        struct stat st;
        char dir[NAME_MAX + 1];
        _cleanup_close_ int images = -1;
        if (fstat(fd, &st) < 0)
                return fail_host(e, -errno, "cannot look at %s: %s", path, strerror(errno));
        enum packing packing = packing_of(fd);
        if (packing == PACKED_NOT)
                return fail_user(e, -EINVAL,
                                 "image '%s': %s is neither a directory nor a tar archive (plain "
                                 "or gzip)", name, path);
        int r = open_images_dir(state_dir, &images, e);
        if (r < 0)
                return r;
        unpacked_name(name, path, &st, dir);
        if (faccessat(images, dir, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
                r = unpack(images, fd, packing, path, dir, e);
                if (r < 0)
                        return r;
        }
        if (asprintf(ret_path, "%s/images/%s", state_dir, dir) < 0)
                return fail_host(e, -ENOMEM, "out of memory");
        return 0;
}

/* --- opening --- */

static int open_directory(const char *name, const char *path, char **ret_path, struct err *e)
{
        struct stat st, root;
        char *real = realpath(path, NULL);
        if (!real || stat(real, &st) < 0 || stat("/", &root) < 0) {
                int code = -errno;
                free(real);
                return fail_user(e, code, "image '%s': %s: %s", name, path, strerror(-code));
        }
        /* By its inode: a bind mount or a link could be the host's root by another name. */
        if (st.st_dev == root.st_dev && st.st_ino == root.st_ino) {
                free(real);
                return fail_user(e, -EINVAL,
                                 "image '%s': %s is the host's root, which would show all its "
                                 "files to sandboxes; use the built-in image 'host'", name, path);
        }
        *ret_path = real;
        return 0;
}

static int open_host(const char *state_dir, char **ret_path, struct err *e)
{
        _cleanup_close_ int images = -1;
        int r = open_images_dir(state_dir, &images, e);
        if (r == 0)
                r = image_make_host_skeleton(images, "host", e);
        if (r < 0)
                return r;
        if (asprintf(ret_path, "%s/images/host", state_dir) < 0)
                return fail_host(e, -ENOMEM, "out of memory");
        return 0;
}

static int open_path(const char *state_dir, const char *name, const char *path, char **ret_path,
                     struct err *e)
{
        struct stat st;
        if (path[0] != '/')
                return fail_user(e, -EINVAL, "image '%s': '%s' is not an absolute path", name,
                                 path);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fail_user(e, -errno, "image '%s': cannot open %s: %s", name, path,
                                 strerror(errno));
        if (S_ISDIR(st.st_mode))
                return open_directory(name, path, ret_path, e);
        if (S_ISREG(st.st_mode))
                return open_tarball(state_dir, name, path, fd, ret_path, e);
        return fail_user(e, -EINVAL, "image '%s': %s is neither a directory nor a file", name,
                         path);
}

int image_open(const char *state_dir, const char *name, const char *path, struct image *ret,
               struct err *e)
{
        _cleanup_image_ struct image i = { .name = strdup(name), .is_host = !path };
        if (!i.name)
                return fail_host(e, -ENOMEM, "out of memory");
        int r = path ? open_path(state_dir, name, path, &i.path, e)
                     : open_host(state_dir, &i.path, e);
        if (r < 0)
                return r;
        *ret = i;
        i = (struct image){ 0 };
        return 0;
}

static bool is_kept(const char *state_dir, const char *entry, const struct image *keep, size_t n)
{
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/images/%s", state_dir, entry) >= (int)sizeof path)
                return true;
        for (size_t i = 0; i < n; i++)
                if (strcmp(keep[i].path, path) == 0)
                        return true;
        return false;
}

int image_sweep(const char *state_dir, const struct image *keep, size_t n, struct err *e)
{
        _cleanup_close_ int images = -1;
        int r = open_images_dir(state_dir, &images, e);
        if (r < 0)
                return r;
        DIR *d = fdopendir(images);
        if (!d)
                return fail_host(e, -errno, "cannot list %s/images", state_dir);
        (void)steal_fd(&images);
        r = 0;
        for (const struct dirent *de; (de = readdir(d));) {
                if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0 ||
                    is_kept(state_dir, de->d_name, keep, n))
                        continue;
                int x = tree_remove(dirfd(d), de->d_name);
                if (x < 0 && r == 0)
                        r = fail_host(e, x, "cannot remove the outdated image %s: %s", de->d_name,
                                      strerror(-x));
        }
        (void)closedir(d);
        return r;
}
