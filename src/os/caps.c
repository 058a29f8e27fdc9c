#include "os/caps.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t caps_agent_mask(void)
{
        return 1ull << CAP_KILL     /* end commands, which have another uid */
               | 1ull << CAP_SETUID /* become the sandbox's user before exec */
               | 1ull << CAP_SETGID;
}

int caps_lock(void)
{
        /* Inheritable and ambient sets survive exec when forgotten (CVE-2022-29162). */
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
                return -errno;
        for (int cap = 0; cap < 64; cap++)
                if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
                        if (errno == EINVAL) /* past the kernel's last one */
                                break;
                        return -errno;
                }
        unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                             SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED | SECBIT_KEEP_CAPS_LOCKED;
        return prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0 ? -errno : 0;
}

int caps_set(uint64_t mask)
{
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2] = {
                { .effective = (uint32_t)mask, .permitted = (uint32_t)mask },
                { .effective = (uint32_t)(mask >> 32), .permitted = (uint32_t)(mask >> 32) },
        };
        return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

uint64_t caps_effective(void)
{
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2] = { 0 };
        if (syscall(SYS_capget, &head, data) < 0)
                return 0;
        return data[0].effective | (uint64_t)data[1].effective << 32;
}
