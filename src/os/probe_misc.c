/* Probes of the kernel's smaller gifts and of the host's size. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "base/limits.h"
#include "os/caps.h"
#include "os/probe_internal.h"
#include "os/sys.h"

/* What one idle sandbox takes of the host (design/measurements: 4 fds in the keeper, the
 * agent and a command, 400 KiB with its network namespace). */
#define BOX_FDS 4
#define BOX_PIDS 3
#define BOX_KIB 400
#define FDS_BESIDES (LIMIT_CONNECTIONS + 256)
#define PIDS_BESIDES 1000

void probe_kernel(const struct probe_host *h, struct probe_result *r)
{
        struct utsname u;
        unsigned major = 0, minor = 0;
        (void)h;
        if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2) {
                probe_bad(r, PROBE_WEAK, "of unknown version\nLinux 5.14 or later");
                return;
        }
        unsigned version = major * 1000 + minor;
        if (version >= 5014)
                probe_ok(r, "Linux %.64s %.32s", u.release, u.machine);
        else if (version >= 5012)
                probe_bad(r, PROBE_WEAK, "Linux %.64s lacks cgroup.kill; ending a sandbox takes "
                          "longer\nLinux 5.14 or later", u.release);
        else
                probe_bad(r, PROBE_MISSING, "Linux %.64s lacks mount_setattr and perhaps more of "
                          "what is needed\nLinux 5.14 or later", u.release);
}

static const struct {
        const char *name;
        unsigned number;
        bool optional;
} wanted[] = {
        { "CAP_SYS_ADMIN", CAP_SYS_ADMIN, false },
        { "CAP_SETUID", CAP_SETUID, false },
        { "CAP_SETGID", CAP_SETGID, false },
        { "CAP_SETPCAP", CAP_SETPCAP, false },
        { "CAP_CHOWN", CAP_CHOWN, false },
        { "CAP_FOWNER", CAP_FOWNER, false },
        { "CAP_DAC_OVERRIDE", CAP_DAC_OVERRIDE, false },
        { "CAP_KILL", CAP_KILL, false },
        { "CAP_MKNOD", CAP_MKNOD, false },
        { "CAP_NET_ADMIN", CAP_NET_ADMIN, false },
        { "CAP_SYS_CHROOT", CAP_SYS_CHROOT, false },
        { "CAP_SYS_PTRACE", CAP_SYS_PTRACE, true },
        { "CAP_SYS_RESOURCE", CAP_SYS_RESOURCE, true },
};

void probe_user(const struct probe_host *h, struct probe_result *r)
{
        uint64_t have = caps_effective();
        char missing[200] = "";
        bool needed = false;
        (void)h;
        if (geteuid() != 0) {
                probe_bad(r, PROBE_WEAK,
                          "uid %u, not root: sandboxes share this uid outside, and cgroup limits "
                          "may not be enforced\nrun as root",
                          (unsigned)geteuid());
                return;
        }
        for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
                size_t n = strlen(missing);
                if (have & (1ull << wanted[i].number))
                        continue;
                needed = needed || !wanted[i].optional;
                (void)snprintf(missing + n, sizeof missing - n, "%s%s", n ? " " : "",
                               wanted[i].name);
        }
        if (!*missing)
                probe_ok(r, "root with all capabilities that are needed");
        else
                probe_bad(r, PROBE_WEAK, "root without %s; %s\n"
                          "in a container: add them (docker run --cap-add)", missing,
                          needed ? "see below what then fails"
                                 : "file and process limits cannot be raised");
}

/* A filter that answers EPERM to getppid, which otherwise cannot fail. */
static int try_seccomp(void *arg)
{
        (void)arg;
        struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { ARRAY_SIZE(code), code };
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
            syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
                return -errno;
        return syscall(SYS_getppid) == -1 && errno == EPERM ? 0 : -EIO;
}

void probe_seccomp(const struct probe_host *h, struct probe_result *r)
{
        (void)h;
        int x = probe_child(try_seccomp, NULL);
        if (x == 0)
                probe_ok(r, "a filter was loaded and answers");
        else
                probe_bad(r, PROBE_MISSING, "%s; sandboxes could use every system call\n"
                          "a kernel with CONFIG_SECCOMP_FILTER", strerror(-x));
}

void probe_landlock(const struct probe_host *h, struct probe_result *r)
{
        (void)h;
        long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
        if (abi > 0)
                probe_ok(r, "ABI %ld", abi);
        else
                probe_bad(r, PROBE_WEAK, "%s; a second fence around files is not there\n"
                          "a kernel from 5.13 on with CONFIG_SECURITY_LANDLOCK, and landlock in "
                          "the boot parameter lsm=", strerror(errno));
}

void probe_pidfd(const struct probe_host *h, struct probe_result *r)
{
        (void)h;
        _cleanup_close_ int fd = sys_pidfd_open(getpid(), 0);
        if (fd >= 0 && sys_pidfd_send_signal(fd, 0) == 0)
                probe_ok(r, "works");
        else
                probe_bad(r, PROBE_MISSING, "%s; processes could not be told from their "
                          "successors\na kernel from 5.3 on, or in a container a seccomp profile "
                          "that knows pidfd_open", strerror(errno));
}

void probe_memfd(const struct probe_host *h, struct probe_result *r)
{
        (void)h;
        _cleanup_close_ int fd = memfd_create("cloche-check", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0)
                probe_ok(r, "works, with seals");
        else
                probe_bad(r, PROBE_MISSING, "%s\na kernel with CONFIG_MEMFD_CREATE",
                          strerror(errno));
}

static uint64_t read_number(const char *path)
{
        char text[32];
        unsigned long long v;
        if (file_read(AT_FDCWD, path, text, sizeof text) <= 0 || sscanf(text, "%llu", &v) != 1)
                return UINT64_MAX; /* not limited, as far as can be seen */
        return v;
}

static uint64_t room(uint64_t all, uint64_t besides, uint64_t each)
{
        return all > besides ? (all - besides) / each : 0;
}

void probe_limits(const struct probe_host *h, struct probe_result *r)
{
        struct rlimit files = { 0 };
        (void)h;
        (void)getrlimit(RLIMIT_NOFILE, &files);
        uint64_t pid_max = read_number("/proc/sys/kernel/pid_max");
        uint64_t threads = read_number("/proc/sys/kernel/threads-max");
        uint64_t by_files = room(files.rlim_max, FDS_BESIDES, BOX_FDS);
        uint64_t by_pids = room(pid_max < threads ? pid_max : threads, PIDS_BESIDES, BOX_PIDS);
        uint64_t boxes = by_files < by_pids ? by_files : by_pids;
        char found[160];
        (void)snprintf(found, sizeof found,
                       "RLIMIT_NOFILE %llu, pid_max %llu: room for about %llu sandboxes",
                       (unsigned long long)files.rlim_max, (unsigned long long)pid_max,
                       (unsigned long long)boxes);
        if (boxes >= LIMIT_BOXES)
                probe_ok(r, "%s", found);
        else
                probe_bad(r, PROBE_WEAK, "%s, %d are allowed by default\n"
                          "ulimit -Hn %d (LimitNOFILE= of the service); sysctl "
                          "kernel.pid_max=4194304; or a lower max_sandboxes", found, LIMIT_BOXES,
                          FDS_BESIDES + LIMIT_BOXES * BOX_FDS);
}

void probe_memory(const struct probe_host *h, struct probe_result *r)
{
        char text[4096];
        unsigned long long kib = 0;
        (void)h;
        const char *line = NULL;
        if (file_read(AT_FDCWD, "/proc/meminfo", text, sizeof text) > 0)
                line = strstr(text, "MemAvailable:");
        if (!line || sscanf(line, "MemAvailable: %llu", &kib) != 1) {
                probe_bad(r, PROBE_WEAK, "/proc/meminfo cannot be read\nmount /proc");
                return;
        }
        unsigned long long idle = kib / BOX_KIB, full = (kib << 10) / DEFAULT_MEMORY_BYTES;
        if ((kib << 10) >= DEFAULT_MEMORY_BYTES)
                probe_ok(r, "%llu MiB available: room for about %llu idle sandboxes, or %llu that "
                         "use all of the default limit", kib / 1024, idle, full);
        else
                probe_bad(r, PROBE_WEAK, "%llu MiB available, less than the default limit of one "
                          "sandbox\nfree memory, or a lower default_memory", kib / 1024);
}

/* The directory itself, or the nearest one above it that exists. */
static void nearest_dir(const char *path, char out[4096])
{
        struct stat st;
        (void)snprintf(out, 4096, "%s", path);
        while (stat(out, &st) < 0 && errno == ENOENT) {
                char *slash = strrchr(out, '/');
                if (!slash || slash == out) {
                        (void)snprintf(out, 4096, "/");
                        return;
                }
                *slash = '\0';
        }
}

/* Really makes something: access() knows nothing of read-only mounts' ways. */
static int try_writing(const char *dir)
{
        char path[4096];
        _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        if (snprintf(path, sizeof path, "%s/.cloche-check-XXXXXX", dir) >= (int)sizeof path)
                return -ENAMETOOLONG;
        if (!mkdtemp(path))
                return -errno;
        return rmdir(path) < 0 ? -errno : 0;
}

void probe_state_dir(const struct probe_host *h, struct probe_result *r)
{
        char dir[4096];
        nearest_dir(h->state_dir, dir);
        int x = try_writing(dir);
        if (x == 0)
                probe_ok(r, "%.160s %s", h->state_dir,
                         strcmp(dir, h->state_dir) == 0 ? "is writable" : "can be made");
        else
                probe_bad(r, PROBE_MISSING, "%.120s: %s; there is nowhere to keep the store\n"
                          "name another with --state-dir, or chown it to uid %u", dir,
                          strerror(-x), (unsigned)geteuid());
}
