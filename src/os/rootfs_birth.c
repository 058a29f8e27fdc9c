/* Runs once in the life of every sandbox, between the keeper's clone and the agent's
 * first instruction; each line here is on the path of a PUT. Old root and new root change
 * places by MS_MOVE and chroot, not pivot_root: the latter visits every process of the
 * machine (3.6 ms with 10,000 of them). What MS_MOVE leaves underneath is the keeper's
 * stage, which holds nothing but read-only images; it cannot be reached without
 * CAP_SYS_CHROOT or CAP_SYS_ADMIN, which nothing inside ever has. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/rootfs.h"
#include "os/rootfs_dev.h"
#include "os/rootfs_masks.h"
#include "os/sys.h"

/* One tmpfs for all that the sandbox can write, so that one size bounds it. */
static int make_box(const struct rootfs_plan *p, int *ret_box, struct err *e)
{
        char opts[128];
        (void)snprintf(opts, sizeof opts, "mode=0755,size=%llu,nr_inodes=%llu",
                       (unsigned long long)p->storage, (unsigned long long)p->inodes);
        if (mount("tmpfs", "/box", "tmpfs", MS_NOSUID | MS_NODEV, opts) < 0)
                return fail_host(e, -errno, "cannot mount the sandbox's storage: %s", strerror(errno));
        _cleanup_close_ int box = open("/box", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (box < 0 || mkdirat(box, "upper", 0755) < 0 || mkdirat(box, "work", 0700) < 0 ||
            mkdirat(box, "info", 0755) < 0 || mkdirat(box, "upper/workspace", 0755) < 0 ||
            mkdirat(box, "empty", 0555) < 0 || mknodat(box, "nothing", S_IFREG | 0444, 0) < 0 ||
            mkdirat(box, "shm", 0755) < 0 || fchmodat(box, "shm", 01777, 0) < 0)
                return fail_host(e, -errno, "cannot lay out the sandbox's storage: %s", strerror(errno));
        if (fchownat(box, "upper", p->base_uid, p->base_uid, 0) < 0 ||
            fchownat(box, "info", p->base_uid, p->base_uid, 0) < 0 ||
            fchownat(box, "upper/workspace", p->user_uid, p->user_uid, 0) < 0)
                return fail_host(e, -errno, "cannot give the sandbox its storage: %s", strerror(errno));
        *ret_box = steal_fd(&box);
        return 0;
}

/* A copy of a staged tree, with the sandbox's owners where that can be done. */
static int copy_tree(const char *from, int userns_fd, const char *to)
{
        _cleanup_close_ int tree = sys_open_tree(AT_FDCWD, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0)
                return -errno;
        if (userns_fd >= 0) {
                struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd };
                if (sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
                        return -errno;
        }
        /* A symlink in an image must not choose where we mount (CVE-2019-18837). */
        _cleanup_close_ int at = sys_openat2(AT_FDCWD, to, O_PATH | O_DIRECTORY | O_CLOEXEC, 0,
                                             RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
        if (at < 0)
                return -errno;
        return sys_move_mount(tree, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0 ? -errno : 0;
}

/* Shows a directory of the host through an overlay of its own. A plain bind would share the
 * host's inodes: locks would cross sandboxes, and inotify would tell each what the others
 * run. */
static int show_host_dir(const char *lower, const char *to)
{
        char lowerdir[64];
        (void)snprintf(lowerdir, sizeof lowerdir, "%s:/empty", lower); /* two make it read-only */
        _cleanup_close_ int fs = sys_fsopen("overlay", 1 /* FSOPEN_CLOEXEC */);
        if (fs < 0 || sys_fsconfig(fs, FSCONFIG_SET_STRING, "lowerdir", lowerdir, 0) < 0 ||
            sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
                return -errno;
        _cleanup_close_ int mnt = sys_fsmount(fs, FSMOUNT_CLOEXEC,
                                              MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
        _cleanup_close_ int at = sys_openat2(AT_FDCWD, to, O_PATH | O_DIRECTORY | O_CLOEXEC, 0,
                                             RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
        if (mnt < 0 || at < 0)
                return -errno;
        return sys_move_mount(mnt, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0 ? -errno : 0;
}

static int mount_overlay(const struct rootfs_stage *s, const struct rootfs_plan *p, struct err *e)
{
        char from[64];
        int userns = s->images[p->image].idmap ? p->userns_fd : -1;
        (void)snprintf(from, sizeof from, "/img/%u", p->image);
        int r = copy_tree(from, userns, "/lower");
        if (r < 0)
                return fail_host(e, r, "cannot show the image: %s", strerror(-r));
        const char *opts = s->privileged
                                   ? "lowerdir=/lower,upperdir=/box/upper,workdir=/box/work"
                                   : "lowerdir=/lower,upperdir=/box/upper,workdir=/box/work,userxattr";
        if (mount("overlay", "/new", "overlay", MS_NOSUID | MS_NODEV, opts) < 0)
                return fail_host(e, -errno, "cannot mount the overlay: %s", strerror(errno));
        for (unsigned b = 0; b < s->images[p->image].bind_count; b++) {
                char to[80], lower[32];
                (void)snprintf(from, sizeof from, "/img/%u-%u", p->image, b);
                (void)snprintf(to, sizeof to, "/new%s", s->images[p->image].binds[b]);
                (void)snprintf(lower, sizeof lower, "/lower%u", b);
                /* With the host's owners, who are nobody inside: shifted ones would give the
                 * sandbox's user what the host's user of that number keeps to himself. */
                r = copy_tree(from, -1, lower);
                if (r == 0)
                        r = show_host_dir(lower, to);
                if (r < 0)
                        return fail_host(e, r, "cannot show %s: %s", to + 4, strerror(-r));
        }
        return 0;
}

/* Mount points of an image may be missing, or may be symlinks set as a trap. */
static int ensure_dir(const char *path, mode_t mode, uid_t owner, struct err *e)
{
        struct stat st;
        if (lstat(path, &st) == 0)
                return S_ISDIR(st.st_mode) ? 0
                                           : fail_host(e, -ENOTDIR, "the image's %s is not a directory", path + 4);
        if (mkdir(path, mode) < 0 || lchown(path, owner, owner) < 0 || chmod(path, mode) < 0)
                return fail_host(e, -errno, "cannot make %s in the image: %s", path + 4, strerror(errno));
        return 0;
}

static int mount_proc(const struct rootfs_stage *s, int box, int info, struct err *e)
{
        static const char *const shown[] = { "meminfo", "cpuinfo" };
        struct mount_attr ro = { .attr_set = MOUNT_ATTR_RDONLY };
        if (mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
                return fail_host(e, -errno, "cannot mount /proc: %s", strerror(errno));
        if (!s->privileged && umount2("/proc", MNT_DETACH) < 0)
                return fail_host(e, -errno, "cannot take the host's /proc away: %s", strerror(errno));
        _cleanup_close_ int proc = open("/new/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
        int r = proc < 0 ? -errno : rootfs_masks_apply(s->proc_masks, proc, box);
        if (r < 0)
                return fail_host(e, r, "cannot mask /proc: %s", strerror(-r));
        for (unsigned i = 0; i < ARRAY_SIZE(shown); i++) {
                _cleanup_close_ int tree = sys_open_tree(info, shown[i], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
                /* Without root the files' owner, the agent, has the commands' uid. */
                if (tree < 0 ||
                    (!s->privileged && sys_mount_setattr(tree, "", AT_EMPTY_PATH, &ro, sizeof ro) < 0) ||
                    sys_move_mount(tree, "", proc, shown[i], MOVE_MOUNT_F_EMPTY_PATH) < 0)
                        return fail_host(e, -errno, "cannot show /proc/%s: %s", shown[i], strerror(errno));
        }
        return 0;
}

/* Fresh, so that no image can have put a symlink where a device is expected (CVE-2025-31133
 * and its family), and the sandbox's own: over shared inodes locks would cross sandboxes, and
 * inotify would tell each when the others open a device. A tree to be mounted, or -errno. */
static int make_dev(const struct rootfs_stage *s, int box)
{
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC, .attr_clr = MOUNT_ATTR_NODEV };
        _cleanup_close_ int dev = -1, tree = -1;
        if (s->own_dev) {
                dev = mkdirat(box, "dev", 0755) < 0 ? -1 : openat(box, "dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                int r = dev < 0 ? -errno : rootfs_dev_fill(dev, -1);
                if (r < 0)
                        return r;
                tree = sys_open_tree(dev, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
        } else {
                attr.attr_clr = 0; /* without root a mount keeps the attributes it was born with */
                tree = sys_open_tree(AT_FDCWD, "/dev", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
        }
        if (tree < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
                return -errno;
        return steal_fd(&tree);
}

static int mount_dev(const struct rootfs_stage *s, const struct rootfs_plan *p, int box, struct err *e)
{
        char opts[96];
        _cleanup_close_ int dev = make_dev(s, box);
        if (dev < 0)
                return fail_host(e, dev, "cannot make /dev: %s", strerror(-dev));
        _cleanup_close_ int shm = sys_open_tree(box, "shm", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (shm < 0 || sys_move_mount(dev, "", AT_FDCWD, "/new/dev", MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
            sys_move_mount(shm, "", AT_FDCWD, "/new/dev/shm", MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return fail_host(e, -errno, "cannot mount /dev: %s", strerror(errno));
        /* An instance of its own, with a bound on how many terminals can be hoarded. */
        (void)snprintf(opts, sizeof opts, "newinstance,ptmxmode=0666,mode=0620,max=64%s%u",
                       s->privileged ? ",gid=" : "", s->privileged ? p->base_uid + 5 : 0);
        if (!s->privileged)
                (void)snprintf(opts, sizeof opts, "newinstance,ptmxmode=0666,mode=0620,max=64");
        if (mount("devpts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, opts) < 0)
                return fail_host(e, -errno, "cannot mount /dev/pts: %s", strerror(errno));
        return 0;
}

/* libc and language runtimes look here for the number of processors. Written into the
 * upper layer: /sys itself is never mounted. */
static int show_cpus(const struct rootfs_plan *p, int box, struct err *e)
{
        static const char *const dirs[] = { "upper/sys", "upper/sys/devices", "upper/sys/devices/system",
                                            "upper/sys/devices/system/cpu" };
        static const char *const first = "upper/sys/devices/system/cpu/online";
        static const char *const others[] = { "upper/sys/devices/system/cpu/possible",
                                              "upper/sys/devices/system/cpu/present" };
        for (unsigned i = 0; i < ARRAY_SIZE(dirs); i++)
                if (mkdirat(box, dirs[i], 0755) < 0)
                        return fail_host(e, -errno, "cannot make /sys: %s", strerror(errno));
        char text[32];
        int n = p->cpus > 1 ? snprintf(text, sizeof text, "0-%u\n", p->cpus - 1)
                            : snprintf(text, sizeof text, "0\n");
        _cleanup_close_ int fd = openat(box, first, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
        if (fd < 0 || write(fd, text, (size_t)n) != n)
                return fail_host(e, -errno, "cannot show the processors: %s", strerror(errno));
        for (unsigned i = 0; i < ARRAY_SIZE(others); i++)
                if (linkat(box, first, box, others[i], 0) < 0)
                        return fail_host(e, -errno, "cannot show the processors: %s", strerror(errno));
        return 0;
}

static int make_info(const struct rootfs_plan *p, int box, int *ret_info, struct err *e)
{
        static const char *const names[] = { "meminfo", "cpuinfo" };
        _cleanup_close_ int info = openat(box, "info", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (info < 0)
                return fail_host(e, -errno, "cannot open the info files: %s", strerror(errno));
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                _cleanup_close_ int fd = openat(info, names[i], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
                if (fd < 0 || fchown(fd, p->base_uid, p->base_uid) < 0)
                        return fail_host(e, -errno, "cannot make %s: %s", names[i], strerror(errno));
        }
        *ret_info = steal_fd(&info);
        return 0;
}

int rootfs_birth(const struct rootfs_stage *stage, const struct rootfs_plan *plan,
                 int *ret_info_fd, struct err *e)
{
        static const struct { const char *path; mode_t mode; } points[] = {
                { "/new/proc", 0755 }, { "/new/dev", 0755 }, { "/new/tmp", 01777 },
        };
        _cleanup_close_ int box = -1, info = -1;
        int r = make_box(plan, &box, e);
        if (r == 0)
                r = make_info(plan, box, &info, e);
        if (r == 0)
                r = show_cpus(plan, box, e);
        if (r == 0)
                r = mount_overlay(stage, plan, e);
        for (unsigned i = 0; r == 0 && i < ARRAY_SIZE(points); i++)
                r = ensure_dir(points[i].path, points[i].mode, plan->base_uid, e);
        if (r == 0)
                r = mount_proc(stage, box, info, e);
        if (r == 0)
                r = mount_dev(stage, plan, box, e);
        if (r < 0)
                return r;
        /* /box and /lower stay mounted on the old root, where nobody can reach them: taking
         * them away would wait for an RCU grace period, each. */
        if (chdir("/new") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
            chdir("/") < 0)
                return fail_host(e, -errno, "cannot enter the new root: %s", strerror(errno));
        *ret_info_fd = steal_fd(&info);
        return 0;
}
