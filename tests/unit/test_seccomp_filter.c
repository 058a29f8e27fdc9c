/* Every call is made with arguments that no kernel accepts, so that a hole in the filter
 * shows as another errno and does no harm even as root. */
#include "os/seccomp_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static struct seccomp_filter filter;

static int run_child(void (*fn)(void))
{
        int status = -1;
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                (void)setsid();
                CHECK_INT(seccomp_filter_load(&filter), 0);
                fn();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        return status;
}

#define ROW(call, error) { #call, SYS_##call, error }
static const struct { const char *name; long nr; int error; } denied[] = {
        ROW(mount, EPERM), ROW(umount2, EPERM), ROW(pivot_root, EPERM), ROW(chroot, EPERM), ROW(fsopen, EPERM),
        ROW(fsconfig, EPERM), ROW(fsmount, EPERM), ROW(fspick, EPERM), ROW(open_tree, EPERM), ROW(move_mount, EPERM),
        ROW(mount_setattr, EPERM), ROW(unshare, EPERM), ROW(setns, EPERM), ROW(ptrace, EPERM),
        ROW(process_vm_readv, EPERM), ROW(process_vm_writev, EPERM), ROW(process_madvise, EPERM),
        ROW(pidfd_getfd, EPERM), ROW(kcmp, EPERM), ROW(bpf, EPERM), ROW(perf_event_open, EPERM),
        ROW(userfaultfd, EPERM), ROW(io_uring_setup, ENOSYS), ROW(io_uring_enter, ENOSYS),
        ROW(io_uring_register, ENOSYS), ROW(keyctl, EPERM), ROW(add_key, EPERM), ROW(request_key, EPERM),
        ROW(kexec_load, EPERM), ROW(init_module, EPERM), ROW(finit_module, EPERM), ROW(delete_module, EPERM),
        ROW(reboot, EPERM), ROW(swapon, EPERM), ROW(swapoff, EPERM), ROW(acct, EPERM), ROW(quotactl, EPERM),
        ROW(settimeofday, EPERM), ROW(clock_settime, EPERM), ROW(clock_adjtime, EPERM), ROW(adjtimex, EPERM),
        ROW(open_by_handle_at, EPERM), ROW(name_to_handle_at, EPERM), ROW(sethostname, EPERM),
        ROW(setdomainname, EPERM), ROW(vhangup, EPERM), ROW(move_pages, EPERM), ROW(migrate_pages, EPERM),
        ROW(mbind, EPERM), ROW(set_mempolicy, EPERM), ROW(fanotify_init, EPERM), ROW(memfd_secret, EPERM),
#ifdef __x86_64__
        ROW(iopl, EPERM), ROW(ioperm, EPERM), ROW(modify_ldt, EPERM), ROW(uselib, ENOSYS), ROW(ustat, ENOSYS),
        ROW(sysfs, ENOSYS), ROW(_sysctl, ENOSYS), ROW(kexec_file_load, EPERM),
#endif
};

static void call_denied(void)
{
        for (size_t i = 0; i < sizeof denied / sizeof denied[0]; i++) {
                long r = syscall(denied[i].nr, -1, -1, -1, -1, -1, -1);
                if (r != -1 || errno != denied[i].error) {
                        printf("%s: %ld, %s\n", denied[i].name, r, strerror(errno));
                        CHECK(!"it is denied");
                }
        }
}

static void test_denied_calls(void)
{
        CHECK_INT(run_child(call_denied), 0);
}

static void check_refused(long r, int error, const char *what)
{
        if (r != -1 || errno != error) {
                printf("%s: %ld, %s\n", what, r, r < 0 ? strerror(errno) : "allowed");
                CHECK(!"it is refused");
        }
}

#define REFUSED(expr, error) check_refused((long)(expr), error, #expr)

static void call_with_arguments(void)
{
        static const unsigned long ns[] = { CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET,
                                            CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP };
        for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++)
                REFUSED(syscall(SYS_clone, ns[i] | SIGCHLD, 0, 0, 0, 0), EPERM);
        REFUSED(syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0), EPERM);
        REFUSED(syscall(SYS_ioctl, 0, (unsigned long)TIOCSTI, "x"), EPERM);
        REFUSED(syscall(SYS_ioctl, 0, TIOCSTI | 1ul << 32, "x"), EPERM); /* the kernel drops the upper half */
        REFUSED(syscall(SYS_ioctl, 0, (unsigned long)TIOCLINUX, "x"), EPERM);
        static const int family[] = { AF_VSOCK, AF_ALG, AF_PACKET, AF_KEY, AF_TIPC, AF_RDS, AF_BLUETOOTH, AF_CAN };
        for (size_t i = 0; i < sizeof family / sizeof family[0]; i++)
                REFUSED(socket(family[i], SOCK_DGRAM, 0), EAFNOSUPPORT);
        REFUSED(syscall(SYS_socket, AF_VSOCK | 1ul << 32, SOCK_STREAM, 0), EAFNOSUPPORT);
        REFUSED(socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER), EPROTONOSUPPORT);
        REFUSED(socket(AF_NETLINK, SOCK_RAW, NETLINK_AUDIT), EPROTONOSUPPORT);
        REFUSED(socket(AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT), EPROTONOSUPPORT);
        REFUSED(mknod("/nonexistent/dev", S_IFCHR | 0600, 0x103), EPERM);
        REFUSED(mknod("/nonexistent/dev", S_IFBLK | 0600, 0x103), EPERM);
        REFUSED(syscall(SYS_socketpair, AF_TIPC, SOCK_STREAM, 0, NULL), EAFNOSUPPORT);
        REFUSED(syscall(SYS_socketpair, 1ul << 32 | AF_VSOCK, SOCK_STREAM, 0, NULL), EAFNOSUPPORT);
        static const int modules[] = { IPPROTO_DCCP, 115, IPPROTO_SCTP, IPPROTO_UDPLITE, 256 };
        for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
                REFUSED(syscall(SYS_socket, AF_INET, 15, modules[i]), EPROTONOSUPPORT);
                REFUSED(syscall(SYS_socket, AF_INET6, 15, modules[i]), EPROTONOSUPPORT);
        }
        REFUSED(syscall(SYS_socket, AF_NETLINK, 15, 31), EPROTONOSUPPORT);
        REFUSED(syscall(SYS_prlimit64, 1, RLIMIT_NOFILE, 1ul, NULL), EPERM);
        REFUSED(syscall(SYS_prlimit64, 1ul << 32 | 1, RLIMIT_NOFILE, 1ul, NULL), EPERM);
        REFUSED(syscall(SYS_personality, (unsigned long)ADDR_NO_RANDOMIZE), EPERM);
        REFUSED(syscall(SYS_personality, (unsigned long)READ_IMPLIES_EXEC), EPERM);
        REFUSED(syscall(SYS_personality, (unsigned long)(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC)), EPERM);
}

static void test_denied_arguments(void)
{
        CHECK_INT(run_child(call_with_arguments), 0);
}

/* The type alone leads to a module, too; 0x10 is no flag of the kernel's. */
static void load_by_other_ways(void)
{
        static const unsigned long ioctls[] = { SIOCGIFVLAN, SIOCSIFVLAN, SIOCGIFBR,
                                                SIOCSIFBR,   SIOCBRADDBR, SIOCBRDELBR };
        static const int family[] = { AF_INET, AF_INET6 };
        for (size_t i = 0; i < sizeof family / sizeof family[0]; i++) {
                REFUSED(syscall(SYS_socket, family[i], 0x10 | SOCK_DCCP, 0), ESOCKTNOSUPPORT);
                REFUSED(syscall(SYS_socket, family[i], 0x10 | SOCK_PACKET, 0), ESOCKTNOSUPPORT);
        }
        for (size_t i = 0; i < sizeof ioctls / sizeof ioctls[0]; i++) {
                REFUSED(syscall(SYS_ioctl, -1, ioctls[i], NULL), ENOPKG);
                REFUSED(syscall(SYS_ioctl, -1, ioctls[i] | 1ul << 32, NULL), ENOPKG);
        }
        REFUSED(syscall(SYS_ioctl, -1, (unsigned long)TIOCSETD, NULL), EPERM);
        /* The rules before these hold, and what is no module is not meant. */
        REFUSED(syscall(SYS_socket, AF_VSOCK, 0x10 | SOCK_STREAM, 0), EAFNOSUPPORT);
        REFUSED(syscall(SYS_socket, AF_INET, 0x10 | SOCK_STREAM, 0), EINVAL);
        REFUSED(syscall(SYS_socket, AF_UNIX, 0x10 | SOCK_SEQPACKET, 0), EINVAL);
        REFUSED(syscall(SYS_ioctl, -1, (unsigned long)SIOCGIFCONF, NULL), EBADF);
}

static void test_bug_modules_by_type_and_ioctl(void)
{
        CHECK_INT(run_child(load_by_other_ways), 0);
}

/* The query 0xffffffff passes; another value with the top bit set sets what it says. */
static void persona_with_top_bit(void)
{
        REFUSED(syscall(SYS_personality, 0x80000000ul | ADDR_NO_RANDOMIZE), EPERM);
        REFUSED(syscall(SYS_personality, 0x80000000ul | READ_IMPLIES_EXEC), EPERM);
        long now = syscall(SYS_personality, 0xfffffffful);
        CHECK(now >= 0 && !(now & (ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC)));
}

static void test_bug_personality_top_bit(void)
{
        CHECK_INT(run_child(persona_with_top_bit), 0);
}

static void do_ordinary_things(void)
{
        int p[2], status = -1;
        CHECK(getpid() > 0);
        CHECK_INT(pipe2(p, O_CLOEXEC), 0);
        CHECK(socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
        CHECK(socket(AF_INET, SOCK_STREAM, 0) >= 0 || errno != EAFNOSUPPORT);
        CHECK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) >= 0);
        void *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(m != MAP_FAILED && munmap(m, 4096) == 0);
        CHECK(syscall(SYS_personality, 0xfffffffful) >= 0);
        CHECK(syscall(SYS_personality, 0ul) >= 0);
        struct rlimit files;
        CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_NOFILE, &files) == 0);
        char name[] = "/tmp/cloche-test-fifo-XXXXXX";
        int fd = mkstemp(name);
        CHECK(fd >= 0 && unlink(name) == 0);
        CHECK_INT(mknod(name, S_IFIFO | 0600, 0), 0);
        CHECK_INT(unlink(name), 0);
        struct winsize w;
        CHECK(ioctl(fd, TIOCGWINSZ, &w) < 0 && errno == ENOTTY);
        pid_t pid = fork();
        if (pid == 0) {
                (void)execl("/bin/sh", "sh", "-c", "x=$(echo hi | tr h H); test \"$x\" = Hi", (char *)NULL);
                _exit(9);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_ordinary_things_work(void)
{
        CHECK_INT(run_child(do_ordinary_things), 0);
}

#ifdef __x86_64__
static long int80(long nr)
{
        long r;
        __asm__ volatile("int $0x80" : "=a"(r) : "0"(nr), "b"(0L), "c"(0L), "d"(0L) : "memory", "r8", "r9", "r10", "r11");
        return r;
}

static void other_tables(void)
{
        CHECK_INT((int)int80(20), -ENOSYS); /* getpid of the 32-bit table */
        CHECK_INT((int)int80(21), -ENOSYS); /* mount of the 32-bit table */
}

static void x32_table(void)
{
        REFUSED(syscall(0x40000000 + SYS_getpid), ENOSYS);
        REFUSED(syscall(0x40000000 + SYS_mount, -1, -1, -1, -1, -1), ENOSYS);
}
#endif

static void test_other_call_tables(void)
{
#ifdef __x86_64__
        int status = run_child(other_tables);
        if (WIFSIGNALED(status))
                SKIP("this kernel has no 32-bit calls");
        CHECK_INT(status, 0);
        CHECK_INT(run_child(x32_table), 0);
#else
        SKIP("only x86-64 has other tables");
#endif
}

/* What the filter sets cannot be unset, and its children have it. */
static void inherited(void)
{
        int status = -1;
        pid_t pid = fork();
        if (pid == 0)
                _exit(syscall(SYS_unshare, 0) < 0 && errno == EPERM ? 0 : 1);
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_inherited(void)
{
        CHECK_INT(run_child(inherited), 0);
}

static void test_build_and_free(void)
{
        struct seccomp_filter f = { 0 };
        struct err e = { 0 };
        CHECK_INT(seccomp_filter_build(&f, &e), 0);
        CHECK(f.insns && f.count > 50 && f.count <= 4096);
        CHECK_INT(f.count, filter.count);
        seccomp_filter_free(&f);
        CHECK(f.insns == NULL && f.count == 0);
}

int main(void)
{
        struct err e = { 0 };
        if (seccomp_filter_build(&filter, &e) < 0) {
                printf("%s\n", e.msg);
                return 1;
        }
        RUN(test_build_and_free);
        RUN(test_denied_calls);
        RUN(test_denied_arguments);
        RUN(test_bug_personality_top_bit);
        RUN(test_bug_modules_by_type_and_ioctl);
        RUN(test_ordinary_things_work);
        RUN(test_other_call_tables);
        RUN(test_inherited);
        seccomp_filter_free(&filter);
        return check_done();
}
