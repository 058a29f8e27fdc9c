/* A deny-list that answers EPERM or ENOSYS (0: done, as far as the caller can tell) and never kills: allow-lists age badly (a new
 * libc brings new calls, users answer by allowing everything). Each row names the attack.
 * ENOSYS is for calls whose callers fall back when the kernel lacks them. */
#include "os/seccomp_filter.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

/* The kernel looks at 32 bits of personality's argument, so must we. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ARG0_LOW offsetof(struct seccomp_data, args[0])
#else
#define ARG0_LOW (offsetof(struct seccomp_data, args[0]) + 4)
#endif

struct deny {
        const char *name; /* by name: a call this libseccomp does not know is passed over */
        int error;
        const char *attack;
};

static const struct deny denied[] = {
        { "mount", EPERM, "rearrange the file system" },
        { "umount2", EPERM, "uncover what a mount hides" },
        { "pivot_root", EPERM, "leave the root" },
        { "chroot", EPERM, "mkdir, chroot, .. : leave the root" },
        { "fsopen", EPERM, "CVE-2022-0185: heap overflow in legacy parameters" },
        { "fsconfig", EPERM, "the same" },
        { "fsmount", EPERM, "mount by the new interface" },
        { "fspick", EPERM, "reconfigure a mounted file system" },
        { "open_tree", EPERM, "copy mounts" },
        { "open_tree_attr", EPERM, "copy mounts" },
        { "move_mount", EPERM, "mount by the new interface" },
        { "mount_setattr", EPERM, "make read-only mounts writable" },
        { "unshare", EPERM, "new namespaces: fresh capabilities, kernel bugs behind them" },
        { "setns", EPERM, "enter other namespaces through /proc/PID/ns or passed fds" },
        { "ptrace", EPERM, "take over another process" },
        { "process_vm_readv", EPERM, "read another process" },
        { "process_vm_writev", EPERM, "write another process" },
        { "process_madvise", EPERM, "act on another process's memory" },
        { "pidfd_getfd", EPERM, "steal fds" },
        { "kcmp", EPERM, "compare kernel pointers" },
        { "bpf", EPERM, "kernel attack surface, hoarding maps" },
        { "perf_event_open", EPERM, "kernel attack surface, side channels" },
        { "userfaultfd", EPERM, "stretches kernel races" },
        { "io_uring_setup", ENOSYS, "kernel attack surface that seccomp cannot see into" },
        { "io_uring_enter", ENOSYS, "the same" },
        { "io_uring_register", ENOSYS, "the same" },
        { "io_setup", ENOSYS, "fs.aio-max-nr is shared with the host" },
        { "keyctl", EPERM, "keyrings outlive the sandbox and are shared by uid" },
        { "add_key", EPERM, "the same" },
        { "request_key", EPERM, "starts a helper on the host" },
        { "kexec_load", EPERM, "another kernel" },
        { "kexec_file_load", EPERM, "another kernel" },
        { "init_module", EPERM, "kernel code" },
        { "finit_module", EPERM, "kernel code" },
        { "delete_module", EPERM, "kernel code" },
        { "reboot", EPERM, "ends the host" },
        { "swapon", EPERM, "host memory" },
        { "swapoff", EPERM, "host memory" },
        { "acct", EPERM, "host accounting" },
        { "quotactl", EPERM, "host quotas" },
        { "quotactl_fd", EPERM, "host quotas" },
        { "nfsservctl", ENOSYS, "gone from the kernel" },
        { "settimeofday", EPERM, "host clock" },
        { "clock_settime", EPERM, "host clock" },
        { "clock_adjtime", EPERM, "host clock" },
        { "adjtimex", EPERM, "host clock" },
        { "stime", EPERM, "host clock" },
        { "iopl", EPERM, "ports" },
        { "ioperm", EPERM, "ports" },
        { "open_by_handle_at", EPERM, "shocker: open host inodes by number" },
        { "name_to_handle_at", EPERM, "its first half" },
        { "lookup_dcookie", EPERM, "profiling" },
        { "syslog", EPERM, "kernel log" },
        { "sethostname", EPERM, "shared by all commands of the sandbox" },
        { "setdomainname", EPERM, "the same" },
        { "vhangup", EPERM, "terminals" },
        { "modify_ldt", EPERM, "kernel attack surface" },
        { "vm86", EPERM, "kernel attack surface" },
        { "vm86old", EPERM, "kernel attack surface" },
        { "move_pages", EPERM, "page placement of others" },
        { "migrate_pages", EPERM, "page placement of others" },
        { "mbind", EPERM, "NUMA attack surface" },
        { "set_mempolicy", EPERM, "NUMA attack surface" },
        { "fanotify_init", EPERM, "watches whole file systems" },
        { "memfd_secret", EPERM, "memory that cannot be reclaimed" },
        { "sync", 0, "writes out the host's disks, all of them; nothing of a sandbox is on one" },
        { "uselib", ENOSYS, "old attack surface" },
        { "ustat", ENOSYS, "old attack surface" },
        { "_sysctl", ENOSYS, "old attack surface" },
        { "sysfs", ENOSYS, "old attack surface" },
};

/* READ_IMPLIES_EXEC and ADDR_NO_RANDOMIZE weaken a process against others' input; asking
 * with 0xffffffff, which has their bits as well, is fine. By hand, in front of what the
 * library makes: a rule of its cannot look at one argument twice, and the 62 rules that say
 * the same made the filter half as large again, which every birth pays for. */
static const struct sock_filter personality_rule[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARG0_LOW),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, READ_IMPLIES_EXEC | ADDR_NO_RANDOMIZE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
};

/* Calls of which only some arguments are denied. */
static int add_argument_rules(scmp_filter_ctx ctx)
{
        int r = 0;
        /* Namespaces by clone. clone3's flags sit in memory that seccomp cannot read; it
         * stays allowed (the agent itself needs it to start commands inside their cgroup)
         * because its only way to a namespace without capabilities is CLONE_NEWUSER, and
         * the sandbox's user namespace has max_user_namespaces 0 (os/userns.c). */
        static const uint64_t ns[] = { CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWPID, CLONE_NEWNET,
                                       CLONE_NEWIPC,  CLONE_NEWUTS, CLONE_NEWCGROUP };
        for (unsigned i = 0; i < ARRAY_SIZE(ns) && r == 0; i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, ns[i], ns[i]));
        /* TIOCSTI types into the terminal's reader (CVE-2017-5226), TIOCLINUX pastes, TIOCSETD
         * makes the host load a line discipline (CVE-2017-2636).
         * The kernel looks at 32 bits of the request, so must we. */
        static const unsigned tty[] = { TIOCSTI, TIOCLINUX, TIOCSETD };
        for (unsigned i = 0; i < ARRAY_SIZE(tty) && r == 0; i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, tty[i]));
        /* Any socket will do to have these modules of the host loaded: 8021q and bridge. */
        static const unsigned links[] = { SIOCGIFVLAN, SIOCSIFVLAN, SIOCGIFBR, SIOCSIFBR, SIOCBRADDBR, SIOCBRDELBR };
        for (unsigned i = 0; i < ARRAY_SIZE(links) && r == 0; i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOPKG), SCMP_SYS(ioctl), 1,
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, links[i]));
        /* All socket families but unix, inet, inet6 and netlink: they reach the host's kernel
         * or hypervisor beside the network namespace, exist only as attack surface, or make
         * the host load a module. */
        for (unsigned family = 0; family < AF_NETLINK && r == 0; family++)
                if (family != AF_UNIX && family != AF_INET && family != AF_INET6)
                        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                                             SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, family));
        if (r == 0) /* compares 64 bits: whatever is in the upper half is above, too */
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                                     SCMP_A0(SCMP_CMP_GT, AF_NETLINK));
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socketpair), 1,
                                     SCMP_A0(SCMP_CMP_NE, AF_UNIX));
        /* Types that choose by themselves: the kernel takes AF_INET with SOCK_PACKET for AF_PACKET,
         * and finds DCCP by its type when no protocol is named. The rest of the argument is flags. */
        static const unsigned types[] = { SOCK_DCCP, SOCK_PACKET };
        for (unsigned i = 0; i < ARRAY_SIZE(types) && r == 0; i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ESOCKTNOSUPPORT), SCMP_SYS(socket), 1,
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xf, types[i]));
        /* Protocols over IP that are modules of the host, loaded for whoever asks. */
        static const unsigned modules[] = { IPPROTO_DCCP, 115 /* L2TP */, IPPROTO_SCTP, IPPROTO_UDPLITE,
                                            256 /* SMC */ };
        static const unsigned inet[] = { AF_INET, AF_INET6 };
        for (unsigned i = 0; i < ARRAY_SIZE(modules) * ARRAY_SIZE(inet) && r == 0; i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, inet[i % ARRAY_SIZE(inet)]),
                                     SCMP_A2(SCMP_CMP_MASKED_EQ, 0xffffffffu, modules[i / ARRAY_SIZE(inet)]));
        /* Netlink other than routes: audit, netfilter (CVE-2024-1086), kobject events. */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, AF_NETLINK),
                                     SCMP_A2(SCMP_CMP_NE, NETLINK_ROUTE));
        /* Device nodes. FIFOs and sockets are fine. */
        static const unsigned dev[] = { S_IFCHR, S_IFBLK };
        for (unsigned i = 0; i < ARRAY_SIZE(dev) && r == 0; i++) {
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mknodat), 1,
                                     SCMP_A2(SCMP_CMP_MASKED_EQ, S_IFMT, dev[i]));
#ifdef __NR_mknod
                if (r == 0)
                        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mknod), 1,
                                             SCMP_A1(SCMP_CMP_MASKED_EQ, S_IFMT, dev[i]));
#endif
        }
        /* The core limit stays at 1 (see agent.c): 0 would let a core_pattern that is a pipe
         * start a program on the host. */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(setrlimit), 1,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, RLIMIT_CORE));
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 2,
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, RLIMIT_CORE),
                                     SCMP_A2(SCMP_CMP_NE, 0));
        /* Limits of the agent. Without root it has the commands' uid: one that may open no
         * file any more finds nothing to kill at a deadline, and accepts nobody. */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 2,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, 1), SCMP_A2(SCMP_CMP_NE, 0));
        return r;
}

static int export_program(scmp_filter_ctx ctx, struct seccomp_filter *ret)
{
        _cleanup_close_ int fd = memfd_create("seccomp", MFD_CLOEXEC);
        if (fd < 0)
                return -errno;
        int r = seccomp_export_bpf(ctx, fd);
        if (r < 0)
                return r;
        off_t size = lseek(fd, 0, SEEK_END);
        if (size <= 0 || (size_t)size + sizeof personality_rule > BPF_MAXINSNS * sizeof(struct sock_filter))
                return -EINVAL;
        struct sock_filter *insns = malloc(sizeof personality_rule + (size_t)size);
        if (!insns)
                return -ENOMEM;
        memcpy(insns, personality_rule, sizeof personality_rule);
        if (pread(fd, insns + ARRAY_SIZE(personality_rule), (size_t)size, 0) != size) {
                free(insns);
                return -EIO;
        }
        ret->insns = insns;
        ret->count = (unsigned short)(ARRAY_SIZE(personality_rule) + (size_t)size / sizeof(struct sock_filter));
        return 0;
}

int seccomp_filter_build(struct seccomp_filter *ret, struct err *e)
{
        scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
        if (!ctx)
                return fail_host(e, -ENOMEM, "cannot make a seccomp filter");
        /* 32-bit and x32 calls would pass by a filter written for one table. */
        int r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
        if (r == 0)
                r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
        for (unsigned i = 0; i < ARRAY_SIZE(denied) && r == 0; i++) {
                int nr = seccomp_syscall_resolve_name(denied[i].name);
                if (nr == __NR_SCMP_ERROR || nr < 0)
                        continue;
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO((uint32_t)denied[i].error), nr, 0);
        }
        if (r == 0)
                r = add_argument_rules(ctx);
        if (r == 0)
                r = export_program(ctx, ret);
        seccomp_release(ctx);
        if (r < 0)
                return fail_host(e, r, "cannot build the seccomp filter: %s", strerror(-r));
        return 0;
}

void seccomp_filter_free(struct seccomp_filter *f)
{
        free(f->insns);
        *f = (struct seccomp_filter){ 0 };
}

int seccomp_filter_load(const struct seccomp_filter *f)
{
        struct sock_fprog prog = { .len = f->count, .filter = f->insns };
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        return prctl(PR_SET_SECCOMP, 2 /* SECCOMP_MODE_FILTER */, &prog) < 0 ? -errno : 0;
}

int seccomp_forbid_exec(void)
{
        scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
        if (!ctx)
                return -ENOMEM;
        int r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(execve), 0);
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(execveat), 0);
        if (r == 0)
                r = seccomp_load(ctx);
        seccomp_release(ctx);
        return r;
}
