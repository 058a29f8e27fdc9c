#include "os/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/caps.h"
#include "os/seccomp_filter.h"

/* The constants of ABI 1 to 3 by name, later ones by value: Debian 12's headers are older
 * than its users' kernels. */
#ifndef LANDLOCK_ACCESS_FS_REFER
#define LANDLOCK_ACCESS_FS_REFER (1ULL << 13)
#endif
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif

struct ruleset_attr { /* the kernel's, up to ABI 6 */
        uint64_t fs, net, scoped;
};
#define SCOPE_ABSTRACT_UNIX (1ULL << 0)
#define SCOPE_SIGNAL (1ULL << 1)

static int allow(int ruleset, const char *path, uint64_t access)
{
        _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? 0 : -errno;
        struct landlock_path_beneath_attr rule = { .allowed_access = access, .parent_fd = fd };
        return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

static int restrict_files(const char *state_dir)
{
        /* What is read at run time: time zones, and /proc/self for sanitizers' reports. */
        static const char *const readable[] = { "/etc/localtime", "/usr/share/zoneinfo", "/proc/self" };
        long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
        if (abi < 1)
                return 1;
        uint64_t read = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
        uint64_t all = (1ULL << 13) - 1; /* everything of ABI 1 */
        if (abi >= 2)
                all |= LANDLOCK_ACCESS_FS_REFER;
        if (abi >= 3)
                all |= LANDLOCK_ACCESS_FS_TRUNCATE;
        struct ruleset_attr attr = { .fs = all };
        size_t size = sizeof attr.fs;
        if (abi >= 6) {
                attr.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
                size = sizeof attr;
        }
        _cleanup_close_ int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
        if (ruleset < 0)
                return -errno;
        uint64_t files = read | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |
                         LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                         (abi >= 3 ? LANDLOCK_ACCESS_FS_TRUNCATE : 0);
        int r = allow(ruleset, state_dir, files);
        for (size_t i = 0; r == 0 && i < ARRAY_SIZE(readable); i++)
                r = allow(ruleset, readable[i], i == 0 ? LANDLOCK_ACCESS_FS_READ_FILE : read);
        if (r == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
                r = -errno;
        return r;
}

int lockdown_server(const char *state_dir, struct err *e)
{
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return fail_host(e, -errno, "no_new_privs: %s", strerror(errno));
        int landlock = restrict_files(state_dir);
        if (landlock < 0)
                return fail_host(e, landlock, "cannot restrict the server's files: %s", strerror(-landlock));
        /* Dropping the bounding set needs a capability; without root there is none to drop. */
        int r = caps_effective() ? caps_lock() : 0;
        if (r == 0)
                r = caps_set(0);
        if (r < 0)
                return fail_host(e, r, "cannot drop capabilities: %s", strerror(-r));
#ifndef CLOCHE_SANITIZE /* the leak checker works by ptrace */
        struct seccomp_filter f;
        r = seccomp_filter_build(&f, e);
        if (r == 0 && (r = seccomp_filter_load(&f)) < 0)
                (void)fail_host(e, r, "cannot load the seccomp filter: %s", strerror(-r));
        if (r == 0) {
                seccomp_filter_free(&f);
                /* Landlock looks at files that have a path: not at a memfd. */
                r = seccomp_forbid_exec();
                if (r < 0)
                        (void)fail_host(e, r, "cannot forbid exec: %s", strerror(-r));
        }
#endif
        return r < 0 ? r : landlock;
}
