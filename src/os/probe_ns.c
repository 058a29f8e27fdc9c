/* Probes of namespaces and mounts. Theory of operation: every function named try_... runs
 * in a child of probe_child(), with the caller's privileges; it enters namespaces of its
 * own, mounts there, and dies, which undoes all of it. Grandchildren die with the child
 * (PDEATHSIG) and are reaped by it or, when it is gone, by init. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "os/probe_internal.h"
#include "os/sys.h"

#define NOBODY 65534
#define MAP_BASE 524288 /* any range: the namespace is gone at once */
#define MAP_COUNT 65536

static int write_map(const char *proc, const char *file, const char *text)
{
        char path[64];
        (void)snprintf(path, sizeof path, "/proc/%s/%s", proc, file);
        return file_write(AT_FDCWD, path, text);
}

int probe_enter_userns(void)
{
        char uid_line[48], gid_line[48];
        (void)snprintf(uid_line, sizeof uid_line, "0 %u 1", (unsigned)geteuid());
        (void)snprintf(gid_line, sizeof gid_line, "0 %u 1", (unsigned)getegid());
        if (unshare(CLONE_NEWUSER) < 0)
                return -errno;
        int r = write_map("self", "setgroups", "deny");
        if (r == 0)
                r = write_map("self", "uid_map", uid_line);
        return r == 0 ? write_map("self", "gid_map", gid_line) : r;
}

int probe_enter_private(bool privileged)
{
        int r = privileged ? 0 : probe_enter_userns();
        if (r < 0)
                return r;
        if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m") < 0)
                return -errno;
        return 0;
}

/* --- namespaces --- */

static const struct {
        const char *name;
        int flag;
} kinds[] = {
        { "mount", CLONE_NEWNS }, { "pid", CLONE_NEWPID }, { "net", CLONE_NEWNET },
        { "ipc", CLONE_NEWIPC },  { "uts", CLONE_NEWUTS }, { "cgroup", CLONE_NEWCGROUP },
};

struct ns_try {
        int flag;
        bool privileged;
};

/* A pid namespace takes only children: the first of them must be pid 1. */
static int try_pid_one(void)
{
        int status;
        pid_t pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0)
                _exit(getpid() == 1 ? 0 : 1);
        if (waitpid(pid, &status, 0) < 0)
                return -errno;
        return status == 0 ? 0 : -EIO;
}

static int try_namespace(void *arg)
{
        const struct ns_try *t = arg;
        int r = t->privileged ? 0 : probe_enter_userns();
        if (r < 0)
                return r;
        if (unshare(t->flag) < 0)
                return -errno;
        return t->flag == CLONE_NEWPID ? try_pid_one() : 0;
}

void probe_namespaces(const struct probe_host *h, struct probe_result *r)
{
        char good[96] = "", bad[160] = "";
        int least = 0;
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
                struct ns_try t = { kinds[i].flag, h->privileged };
                int x = probe_child(try_namespace, &t);
                size_t n = strlen(x < 0 ? bad : good);
                if (x == 0) {
                        (void)snprintf(good + n, sizeof good - n, "%s%s", n ? " " : "",
                                       kinds[i].name);
                        continue;
                }
                least = x;
                (void)snprintf(bad + n, sizeof bad - n, "%s%s", n ? " " : "", kinds[i].name);
        }
        if (!*bad)
                probe_ok(r, "%s%s", good, h->privileged ? "" : " (inside a user namespace)");
        else if (least == -EPERM && !h->privileged)
                probe_bad(r, PROBE_MISSING,
                          "%s: %s; sandboxes cannot be separated without them\n"
                          "run as root, or allow user namespaces (see there)",
                          bad, strerror(-least));
        else
                probe_bad(r, PROBE_MISSING,
                          "%s: %s; sandboxes cannot be separated without them\n"
                          "a kernel with CONFIG_NAMESPACES and all its kinds; in a container: "
                          "CAP_SYS_ADMIN and a seccomp profile that allows unshare",
                          bad, strerror(-least));
}

/* --- user namespaces --- */

/* The grandchild of the next function: in a new user namespace, until its end of the
 * socket is closed. */
static void hold_userns(int ready, int go)
{
        char c = 0;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int code = unshare(CLONE_NEWUSER) < 0 ? -errno : 0;
        (void)!write(ready, &code, sizeof code);
        (void)!read(go, &c, 1);
        _exit(0);
}

/* A user namespace that maps a range of uids, which needs CAP_SETUID here; a namespace fd
 * or -errno. */
static int ranged_userns(void)
{
        int ready[2], go[2], code = -EIO, fd = -1;
        char proc[24], line[48], path[64];
        if (pipe2(ready, O_CLOEXEC) < 0 || pipe2(go, O_CLOEXEC) < 0)
                return -errno; /* the child that this runs in ends: nothing leaks */
        pid_t pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0) {
                (void)close(go[1]);
                hold_userns(ready[1], go[0]);
        }
        (void)close(ready[1]);
        if (read(ready[0], &code, sizeof code) != (ssize_t)sizeof code)
                code = -EIO;
        (void)snprintf(proc, sizeof proc, "%d", (int)pid);
        (void)snprintf(line, sizeof line, "0 %d %d", MAP_BASE, MAP_COUNT);
        if (code == 0)
                code = write_map(proc, "uid_map", line);
        if (code == 0)
                code = write_map(proc, "gid_map", line);
        (void)snprintf(path, sizeof path, "/proc/%s/ns/user", proc);
        if (code == 0 && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
                code = -errno;
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        (void)close(ready[0]);
        (void)close(go[0]);
        (void)close(go[1]);
        return code < 0 ? code : fd;
}

static int try_ranged(void *arg)
{
        (void)arg;
        int fd = ranged_userns();
        if (fd < 0)
                return fd;
        /* Entering shows that the map works: uid 0 inside is MAP_BASE outside. */
        if (setns(fd, CLONE_NEWUSER) < 0 || setresuid(0, 0, 0) < 0)
                return -errno;
        return 0;
}

static int try_unprivileged(void *arg)
{
        (void)arg;
        if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
                               setresuid(NOBODY, NOBODY, NOBODY) < 0))
                return -errno;
        /* After a change of uid /proc/self belongs to root until this is said. */
        (void)prctl(PR_SET_DUMPABLE, 1);
        return probe_enter_userns();
}

static const char *userns_sysctls(char out[160])
{
        static const char *const names[] = { "kernel/unprivileged_userns_clone",
                                             "user/max_user_namespaces",
                                             "kernel/apparmor_restrict_unprivileged_userns" };
        size_t n = 0;
        out[0] = '\0';
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                char path[96], value[32];
                (void)snprintf(path, sizeof path, "/proc/sys/%s", names[i]);
                if (file_read(AT_FDCWD, path, value, sizeof value) <= 0)
                        continue;
                value[strcspn(value, "\n")] = '\0';
                int put = snprintf(out + n, 160 - n, "%s%s=%s", n ? ", " : "",
                                   strchr(names[i], '/') + 1, value);
                n = put > 0 && n + (size_t)put < 160 ? n + (size_t)put : n;
        }
        return out;
}

void probe_user_namespaces(const struct probe_host *h, struct probe_result *r)
{
        char sysctls[160];
        int ranged = h->privileged ? probe_child(try_ranged, NULL) : -EPERM;
        int plain = probe_child(try_unprivileged, NULL);
        (void)userns_sysctls(sysctls);
        const char *ordinary = plain == 0 ? "works" : strerror(-plain);
        if (h->privileged && ranged == 0)
                probe_ok(r, "a uid range for each sandbox: works; for ordinary users: %s (%s)",
                         ordinary, sysctls);
        else if (!h->privileged && plain == 0)
                probe_ok(r, "for ordinary users: works, with one uid (%s)", sysctls);
        else
                probe_bad(r, PROBE_MISSING,
                          "%s (%s); sandboxes would have real uids of the host\n"
                          "sysctl user.max_user_namespaces=100000 and, where they exist, "
                          "kernel.unprivileged_userns_clone=1 and "
                          "kernel.apparmor_restrict_unprivileged_userns=0; in a container: a "
                          "seccomp profile that allows unshare",
                          strerror(h->privileged ? -ranged : -plain), sysctls);
}

/* --- mounts --- */

static int try_overlay(void *arg)
{
        const struct probe_host *h = arg;
        int r = probe_enter_private(h->privileged);
        if (r < 0)
                return r;
        if (mkdir("/tmp/lower", 0755) < 0 || mkdir("/tmp/upper", 0755) < 0 ||
            mkdir("/tmp/work", 0755) < 0 || mkdir("/tmp/all", 0755) < 0 ||
            mkdir("/tmp/lower/old", 0755) < 0)
                return -errno;
        if (mount("overlay", "/tmp/all", "overlay", 0,
                  h->privileged ? "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work"
                                : "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,"
                                  "userxattr") < 0)
                return -errno;
        /* Removing from below needs a whiteout, which not every upper file system has. */
        if (mkdir("/tmp/all/new", 0755) < 0 || rmdir("/tmp/all/old") < 0)
                return -errno;
        return access("/tmp/upper/new", F_OK) == 0 && access("/tmp/lower/old", F_OK) == 0 ? 0
                                                                                          : -EIO;
}

void probe_overlayfs(const struct probe_host *h, struct probe_result *r)
{
        struct probe_host copy = *h;
        int x = probe_child(try_overlay, &copy);
        if (x == 0)
                probe_ok(r, "works on tmpfs%s", h->privileged ? "" : " (inside a user namespace)");
        else
                probe_bad(r, PROBE_MISSING,
                          "%s; sandboxes have no writable root without it\n%s", strerror(-x),
                          x == -ENODEV ? "modprobe overlay (CONFIG_OVERLAY_FS)"
                          : h->privileged
                                  ? "in a container: CAP_SYS_ADMIN, and an AppArmor profile that "
                                    "allows mount"
                                  : "run as root, or use a kernel from 5.11 on, which allows it "
                                    "in user namespaces");
}

static int try_mount_api(void *arg)
{
        const struct probe_host *h = arg;
        int r = probe_enter_private(h->privileged);
        if (r < 0)
                return r;
        int fs = sys_fsopen("tmpfs", FSOPEN_CLOEXEC);
        if (fs < 0 || sys_fsconfig(fs, FSCONFIG_SET_STRING, "size", "64k", 0) < 0 ||
            sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
                return -errno;
        int mnt = sys_fsmount(fs, FSMOUNT_CLOEXEC, 0);
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY };
        if (mnt < 0 || sys_mount_setattr(mnt, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0 ||
            sys_move_mount(mnt, "", AT_FDCWD, "/tmp", MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return -errno;
        int tree = sys_open_tree(AT_FDCWD, "/tmp", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        return tree < 0 ? -errno : 0;
}

void probe_mount_api(const struct probe_host *h, struct probe_result *r)
{
        struct probe_host copy = *h;
        int x = probe_child(try_mount_api, &copy);
        if (x == 0)
                probe_ok(r, "fsopen, fsmount, move_mount, open_tree, mount_setattr: work");
        else
                probe_bad(r, PROBE_MISSING, "%s; sandboxes are put together with it\n%s",
                          strerror(-x),
                          x == -ENOSYS ? "a kernel from 5.12 on, or in a container a seccomp "
                                         "profile that knows these calls"
                                       : "run as root or allow user namespaces (see there)");
}

static int idmap_tree(const char *path, int userns)
{
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP,
                                   .userns_fd = (uint64_t)userns };
        int tree = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
                return -errno;
        struct stat st;
        if (fstatat(tree, "", &st, AT_EMPTY_PATH) < 0)
                return -errno;
        /* Root's files must now look like the range's first uid. */
        return st.st_uid == MAP_BASE ? 0 : -EIO;
}

static int try_idmap(void *arg)
{
        int r = probe_enter_private(true);
        if (r < 0)
                return r;
        int userns = ranged_userns();
        return userns < 0 ? userns : idmap_tree(arg, userns);
}

void probe_idmap(const struct probe_host *h, struct probe_result *r)
{
        char on_tmpfs[] = "/tmp", on_usr[] = "/usr";
        if (!h->privileged) {
                probe_bad(r, PROBE_WEAK,
                          "only root has them; all sandboxes share one uid of the host\n"
                          "run as root");
                return;
        }
        int a = probe_child(try_idmap, on_tmpfs), b = probe_child(try_idmap, on_usr);
        if (a == 0 && b == 0)
                probe_ok(r, "work on tmpfs and on the file system of /usr");
        else
                probe_bad(r, PROBE_WEAK,
                          "tmpfs: %s, file system of /usr: %s; where they fail, files of images "
                          "belong to nobody inside\n"
                          "a kernel from 6.3 on for tmpfs, 5.12 for ext4, 5.15 for btrfs; images "
                          "on one of these",
                          a ? strerror(-a) : "works", b ? strerror(-b) : "works");
}
