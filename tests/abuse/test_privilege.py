#!/usr/bin/env python3
"""C: privilege and system calls (42-75). Refused means an errno, never the end of the
sandbox."""
import os
import time
import common
import harness
from common import attacks, expect

SERVER_FLAGS = ["--log-level", "warn"]
NO = {"EPERM", "EACCES", "ENOSYS", "EROFS", "ENOENT"}


@attacks(42, 43, 70, 71)
def test_42_43_70_71_mounts(server, box):
    got = box.run("""
os.makedirs("m", exist_ok=True)
out["42 mount tmpfs"] = call(165, "none", "/workspace/m", "tmpfs", 0, None)
out["42 bind /proc/1/root"] = call(165, "/proc/1/root", "/workspace/m", None, 4096, None)
out["42 remount rw"] = call(165, None, "/usr", None, 32 | 4096, None)
out["70 bind over a mask"] = call(165, "/proc", "/workspace/m", None, 4096 | 16384, None)
out["71 remount /proc"] = call(165, None, "/proc", None, 32, "hidepid=0")
out["71 a new /proc"] = call(165, "proc", "/workspace/m", "proc", 0, None)
out["42 umount /proc/kcore"] = call(166, "/proc/kcore", 2)
out["42 umount /proc/sys"] = call(166, "/proc/sys", 2)
out["42 umount /"] = call(166, "/", 2)
out["42 pivot_root"] = call(155, "/workspace", "/workspace/m")
out["42 chroot"] = call(161, "/workspace/m")
out["43 fsopen"] = call(430, "tmpfs", 0)
out["43 fsconfig"] = call(431, 0, 0, None, None, 0)
out["43 fsmount"] = call(432, 0, 0, 0)
out["43 fspick"] = call(433, -100, "/", 0)
out["43 open_tree"] = call(428, -100, "/", 1)
out["43 move_mount"] = call(429, -100, "/proc", -100, "/workspace/m", 0)
out["43 mount_setattr"] = call(442, -100, "/usr", 0, struct.pack("<QQQQ", 0, 1, 0, 0), 32)
out["43 open_tree_attr"] = call(467, -100, "/", 1, None, 0)
# the old trick: a root that is not above the working directory, then up and up
fd = os.open("/", os.O_RDONLY)
out["42 .. from /"] = sorted(os.listdir("/" + "../" * 50)) == sorted(os.listdir("/"))
os.fchdir(fd); [os.chdir("..") for _ in range(50)]
out["42 chdir .."] = os.getcwd()
out["42 dev and ino of /.. are /'s"] = os.stat("/..").st_ino == os.stat("/").st_ino
""")
    want = {k: "EPERM" for k in got}
    want["43 open_tree_attr"] = {"EPERM", "ENOSYS"}
    want["42 .. from /"] = True
    want["42 chdir .."] = "/"
    want["42 dev and ino of /.. are /'s"] = True
    expect(got, want)


@attacks(44, 45)
def test_44_45_namespaces(server, box):
    got = box.run("""
flags = {"NEWUSER": 0x10000000, "NEWNS": 0x20000, "NEWPID": 0x20000000, "NEWNET": 0x40000000,
         "NEWIPC": 0x8000000, "NEWUTS": 0x4000000, "NEWCGROUP": 0x2000000, "NEWTIME": 0x80}
def clone3(f):
    a = struct.pack("<11Q", f, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    r = call(435, a, 88)
    if r == 0: os._exit(0)
    if isinstance(r, int): os.waitpid(r, 0)
    return r
def clone(f):
    r = call(56, f | 17, 0, 0, 0, 0)
    if r == 0: os._exit(0)
    if isinstance(r, int): os.waitpid(r, 0)
    return r
for n, f in flags.items():
    out["44 unshare " + n] = call(272, f)
    if n != "NEWTIME": out["44 clone " + n] = clone(f)
    out["44 clone3 " + n] = clone3(f)
    if n != "NEWUSER": out["44 clone3 NEWUSER and " + n] = clone3(f | flags["NEWUSER"])
out["44 plain clone3"] = clone3(0)
out["44 clone, high bits set"] = clone(0x10000000 | 1 << 40)
for n in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
    out["45 open /proc/1/ns/" + n] = attempt(os.open, "/proc/1/ns/" + n, os.O_RDONLY)
    fd = os.open("/proc/self/ns/" + n, os.O_RDONLY)
    out["45 setns own " + n] = call(308, fd, 0)
    out["45 NS_GET_PARENT of " + n] = call(16, fd, 0xb702)
    out["45 NS_GET_USERNS of " + n] = call(16, fd, 0xb701)
out["45 setns of a pidfd"] = call(308, call(434, 1, 0), 0x20000)
out["44 max_user_namespaces"] = attempt(writefile, "/proc/sys/user/max_user_namespaces", "1000")
""")
    want = {}
    for k in got:
        if "clone3" in k and "NEWUSER" in k:
            want[k] = "ENOSPC"  # user.max_user_namespaces is 0 inside
        elif k.startswith("45 open"):
            want[k] = {"EACCES", "EPERM"}
        elif "NS_GET" in k:
            want[k] = {"EPERM", "EINVAL", "ENOTTY"}
        else:
            want[k] = "EPERM"
    want["44 plain clone3"] = lambda r: isinstance(r, int)
    want["44 max_user_namespaces"] = {"EROFS", "EACCES", "EPERM"}
    # the owner of a namespace may be named when it is the own user namespace
    for k in got:
        if "NS_GET_USERNS" in k and isinstance(got[k], int):
            want.pop(k, None)
    expect(got, want)


@attacks(46, 66)
def test_46_66_pid_1(server, box):
    got = box.run("""
out["46 ptrace attach"] = call(101, 16, 1, 0, 0)
out["46 ptrace seize"] = call(101, 0x4206, 1, 0, 0)
out["46 ptrace traceme"] = call(101, 0, 0, 0, 0)
buf = ctypes.create_string_buffer(64)
iov = struct.pack("<QQ", ctypes.addressof(buf), 64)
out["46 process_vm_readv"] = call(310, 1, iov, 1, struct.pack("<QQ", 0x400000, 64), 1, 0)
out["46 process_vm_writev"] = call(311, 1, iov, 1, struct.pack("<QQ", 0x400000, 64), 1, 0)
pidfd = call(434, 1, 0)
for n in range(3, 12): out["46 pidfd_getfd %d" % n] = call(438, pidfd, n, 0)
out["46 kcmp"] = call(312, 1, os.getpid(), 0, 0, 0)
out["46 process_madvise"] = call(440, pidfd, iov, 1, 4, 0)
out["46 kill -9"] = attempt(os.kill, 1, 9)
out["46 kill -STOP"] = attempt(os.kill, 1, 19)
out["46 kill -SEGV"] = attempt(os.kill, 1, 11)
out["46 pidfd_send_signal"] = call(424, pidfd, 9, None, 0)
out["46 get_robust_list"] = call(274, 1, ctypes.byref(ctypes.c_ulong()), ctypes.byref(ctypes.c_ulong()))
for n in ("mem", "environ", "auxv", "maps", "smaps", "pagemap", "stack", "syscall", "personality", "io", "mountstats"):
    out["46 read /proc/1/" + n] = attempt(readfile, "/proc/1/" + n)
for n in ("mem", "clear_refs", "oom_score_adj", "uid_map", "gid_map", "setgroups", "comm", "timerslack_ns", "coredump_filter", "attr/current", "loginuid", "sched", "autogroup"):
    out["46 write /proc/1/" + n] = attempt(writefile, "/proc/1/" + n, "0")
for n in ("fd", "map_files", "fdinfo"): out["46 list /proc/1/" + n] = attempt(os.listdir, "/proc/1/" + n)
for n in ("exe", "root", "cwd", "fd/0", "fd/5"): out["46 readlink /proc/1/" + n] = attempt(os.readlink, "/proc/1/" + n)
for n in ("exe", "root", "cwd"): out["46 open /proc/1/" + n] = attempt(os.open, "/proc/1/" + n, os.O_RDONLY)
out["66 write /proc/1/exe"] = attempt(os.open, "/proc/1/exe", os.O_WRONLY)
out["66 truncate /proc/1/exe"] = attempt(os.truncate, "/proc/1/exe", 0)
out["66 write /proc/self/exe"] = attempt(os.open, "/proc/self/exe", os.O_WRONLY)
out["66 run /proc/1/exe"] = attempt(os.execv, "/proc/1/exe", ["cloche", "version"])
""")
    want = {k: NO for k in got}
    want["66 write /proc/self/exe"] = {"EROFS", "ETXTBSY", "EACCES"}
    for k in ("46 write /proc/1/comm", "46 write /proc/1/timerslack_ns"):
        want[k] = NO | {"EINVAL"}
    for k in ("46 write /proc/1/attr/current", "46 write /proc/1/sched", "46 write /proc/1/loginuid"):
        want[k] = NO | {"EINVAL", "ESRCH"}
    expect(got, want)
    box.alive()


@attacks(66)
def test_66_the_agent_s_own_program(server, box):
    """A command is the agent until its exec, so /proc/self/exe means the agent's program there:
    as the command, in a search path, as a script's interpreter, behind a link."""
    if harness.SANITIZED:
        raise common.Skip("a sanitized server runs from its file")
    box.sh("echo '#!/proc/self/exe version' > script; chmod +x script; ln -s /proc/self/exe link")
    for cmd, env in ((["/proc/self/exe", "version"], {}), (["/proc/thread-self/exe", "version"], {}),
                     (["exe", "version"], {"PATH": "/proc/self"}), (["./script"], {}), (["./link", "version"], {})):
        r = box.exec(*cmd, env=env)
        assert r["exitCode"] in (126, 127) and not r["stdout"], (cmd, r)
    path = os.path.realpath(harness.BIN)
    seen = box.sh("cat /proc/*/cmdline /proc/*/maps /proc/*/mountinfo /proc/*/environ | tr '\\0' ' '")["stdout"]
    assert os.path.dirname(path) not in seen, "the path of the server's program is visible inside"


@attacks(47, 48, 49, 50, 51, 52, 53, 54, 55, 62, 65)
def test_47_55_62_65_refused_calls(server, box):
    calls = {"47 bpf prog": "321, 5, b'\\0' * 120, 120", "47 bpf map": "321, 0, b'\\0' * 120, 120",
             "48 perf_event_open": "298, struct.pack('<IIQ', 1, 128, 0) + b'\\0' * 112, 0, -1, -1, 0",
             "49 userfaultfd": "323, 0", "49 userfaultfd user mode only": "323, 1",
             "50 io_uring_setup": "425, 8, b'\\0' * 128", "50 io_uring_enter": "426, 0, 0, 0, 0, None, 0",
             "50 io_uring_register": "427, -1, 0, None, 0",
             "51 keyctl": "250, 0, -4, 1", "51 keyctl join": "250, 1, 'x'", "51 add_key": "248, 'user', 'a', b'b', 1, -4",
             "51 request_key": "249, 'user', 'a', 'b', -4",
             "52 kexec_load": "246, 0, 0, None, 0", "52 kexec_file_load": "320, 0, 0, 0, None, 0",
             "52 init_module": "175, b'\\0' * 64, 64, ''", "52 finit_module": "313, 0, '', 0",
             "52 delete_module": "176, 'dummy', 0",
             "53 reboot": "169, 0xfee1dead, 672274793, 0, None", "53 swapon": "167, '/tmp/x', 0",
             "53 swapoff": "168, '/tmp/x'", "53 acct": "163, '/tmp/acct'", "53 quotactl": "179, 0x80000700, '/dev/vda', 0, None",
             "53 nfsservctl": "180, 0, None, None",
             "54 settimeofday": "164, struct.pack('<qq', 1, 0), None", "54 clock_settime": "227, 0, struct.pack('<qq', 1, 0)",
             "54 adjtimex": "159, struct.pack('<I', 0x4000) + b'\\0' * 300",
             "54 clock_adjtime": "305, 0, struct.pack('<I', 0x4000) + b'\\0' * 300",
             "55 iopl": "172, 3", "55 ioperm": "173, 0x70, 1, 1",
             "62 name_to_handle_at": "303, -100, '/', struct.pack('<Ii', 128, 0) + b'\\0' * 128, ctypes.byref(ctypes.c_int()), 0",
             "62 open_by_handle_at": "304, os.open('/', 0), struct.pack('<IiQ', 8, 1, 2), 0",
             "65 modify_ldt": "154, 0, b'\\0' * 64, 64", "65 modify_ldt write": "154, 1, b'\\0' * 16, 16",
             "53 sethostname": "170, 'owned', 5", "53 setdomainname": "171, 'owned', 5", "53 vhangup": "153",
             "53 syslog": "103, 10, None, 0", "53 fanotify_init": "300, 0, 0", "53 memfd_secret": "447, 0",
             "53 lookup_dcookie": "212, 0, None, 0", "53 move_pages": "279, 0, 0, None, None, None, 0",
             "53 migrate_pages": "256, 0, 0, None, None", "53 mbind": "237, 0, 0, 0, None, 0, 0",
             "53 uselib": "134, '/lib/x'", "53 ustat": "136, 0, None", "53 sysfs": "139, 3"}
    got = box.run("\n".join("out[%r] = call(%s)" % (k, v) for k, v in calls.items()))
    want = {k: "EPERM" for k in calls}
    want.update({k: "ENOSYS" for k in calls if "io_uring" in k or k.split()[1] in ("nfsservctl", "uselib", "ustat", "sysfs")})
    expect(got, want)


@attacks(55, 56, 67, 68, 69)
def test_55_56_67_69_devices_proc_and_sys(server, box):
    got = box.run("""
import stat
for n, kind, dev in (("mem", stat.S_IFCHR, (1, 1)), ("kmsg", stat.S_IFCHR, (1, 11)), ("vda", stat.S_IFBLK, (254, 0)),
                     ("null", stat.S_IFCHR, (1, 3)), ("fuse", stat.S_IFCHR, (10, 229)), ("kvm", stat.S_IFCHR, (10, 232))):
    for where in ("/workspace/", "/dev/", "/dev/shm/", "/tmp/"):
        out["56 mknod %s%s" % (where, n)] = attempt(os.mknod, where + n + "x", kind | 0o666, os.makedev(*dev))
for n in ("mem", "kmem", "port", "kmsg", "vda", "sda", "fuse", "kvm", "vsock", "loop0", "loop-control", "net/tun",
          "mapper/control", "uinput", "hpet", "vhost-net", "vhost-vsock", "userfaultfd", "cpu_dma_latency", "snapshot", "tty0", "ttyS0", "console"):
    out["56 open /dev/" + n] = attempt(os.open, "/dev/" + n, os.O_RDWR)
out["56 a file in /dev"] = attempt(os.open, "/dev/x", os.O_CREAT | os.O_RDWR)
out["56 unlink /dev/null"] = attempt(os.unlink, "/dev/null")
out["56 chmod /dev/null"] = attempt(os.chmod, "/dev/null", 0)
for n in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/sysrq", "vm/overcommit_memory", "vm/drop_caches",
          "fs/file-max", "fs/binfmt_misc/register", "net/ipv4/ip_forward", "user/max_user_namespaces", "kernel/ns_last_pid",
          "kernel/shmmax", "kernel/msgmax", "fs/mqueue/msg_max", "net/ipv4/ping_group_range", "kernel/yama/ptrace_scope"):
    out["67 write /proc/sys/" + n] = attempt(writefile, "/proc/sys/" + n, "1")
for n in ("sysrq-trigger", "mtrr", "kpageflags", "acpi/wakeup", "irq/0/smp_affinity", "bus/pci/devices", "scsi/scsi"):
    out["67 write /proc/" + n] = attempt(writefile, "/proc/" + n, "b")
for n in ("kcore", "kallsyms", "keys", "key-users", "timer_list", "sched_debug", "interrupts", "modules", "cmdline", "config.gz",
          "diskstats", "partitions", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "pagetypeinfo", "latency_stats"):
    out["68 read /proc/" + n] = attempt(readfile, "/proc/" + n, 100)
for n in ("acpi", "bus", "fs", "irq", "scsi"):
    out["68 list /proc/" + n] = attempt(os.listdir, "/proc/" + n)
out["68 iomem without addresses"] = all(l.split("-")[0].strip() == "00000000" for l in readfile("/proc/iomem", 4000).splitlines()[:5])
out["69 /sys"] = sorted(os.listdir("/sys"))
for n in ("kernel/uevent_helper", "fs/cgroup/cgroup.procs", "fs/cgroup/release_agent", "kernel/debug/x", "power/state", "x"):
    out["69 write /sys/" + n] = attempt(writefile, "/sys/" + n, "1")
out["69 cgroup mounts"] = "cgroup" in readfile("/proc/mounts", 65536)
""")
    want = {k: NO for k in got}
    for k in got:
        if k.startswith("67 write"):
            want[k] = NO | {"EISDIR", "EINVAL"}
        if k.startswith("68 read"):
            want[k] = NO | {""}  # masked by a file of nothing
        if k.startswith("68 list"):
            want[k] = lambda r: r == [] or r in NO
    want["68 iomem without addresses"] = True
    want["69 /sys"] = lambda r: r == ["devices"]
    want["69 cgroup mounts"] = False
    expect(got, want)


@attacks(68)
def test_68_no_host_processes_in_proc(server, box):
    host = {os.getpid(), server.process.pid, server.canary.process.pid, server.canary.keeper}
    got = box.run("out['pids'] = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())\n"
                  "out['kill'] = [attempt(os.kill, p, 0) for p in %r]" % sorted(p for p in host if p > 400))
    assert got["pids"][0] == 1 and len(got["pids"]) <= 3, got
    assert set(got["kill"]) <= {"ESRCH"}, got


@attacks(57, 58)
def test_57_58_setuid_and_capabilities(server, box):
    got = box.run("""
import shutil, subprocess
def status():
    return {l.split(":")[0]: l.split(":")[1].strip() for l in readfile("/proc/self/status").splitlines() if ":" in l}
st = status()
for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"): out["58 " + k] = int(st[k], 16)
out["58 NoNewPrivs"] = st["NoNewPrivs"]
out["58 Seccomp"] = st["Seccomp"]
out["58 ids"] = st["Uid"].split() + st["Gid"].split()
out["58 groups"] = st["Groups"]
out["58 securebits"] = call(157, 27, 0, 0, 0, 0)
out["58 ambient raise"] = call(157, 47, 2, 21, 0, 0)
out["58 capset"] = call(126, struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", *[0xffffffff] * 6))
out["58 keepcaps"] = call(157, 8, 1, 0, 0, 0)
for n, nr, args in (("setuid", 105, (0,)), ("setgid", 106, (0,)), ("setresuid", 117, (0, 0, 0)), ("setgroups", 116, (0, None)),
                    ("setfsuid", 122, (0,))):
    out["58 " + n] = call(nr, *args)
out["58 fsuid stays"] = call(122, -1)
out["58 chown to root"] = attempt(os.chown, "/workspace", 0, 0)
# setuid copies
for d in ("/workspace", "/tmp", "/dev/shm"):
    p = d + "/suid"
    shutil.copy("/usr/bin/id", p)
    os.chmod(p, 0o6755)
    out["57 suid copy in " + d] = subprocess.run([p, "-u"], capture_output=True, text=True).stdout.strip()
found = []
for b in ("su", "mount", "passwd", "sudo", "newgrp", "chsh", "gpasswd"):
    p = "/usr/bin/" + b
    if os.path.exists(p) and os.stat(p).st_mode & 0o4000: found.append(p)
out["57 setuid programs of the host"] = found
if "/usr/bin/mount" in found:
    out["57 host's mount"] = subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True).returncode
out["57 file capabilities"] = attempt(os.setxattr, "/workspace/suid", "security.capability",
                                      struct.pack("<5I", 0x2000001, 0xffffffff, 0, 0xffffffff, 0))
out["57 trusted xattr"] = attempt(os.setxattr, "/workspace/suid", "trusted.overlay.opaque", b"y")
out["57 idea of root"] = subprocess.run(["id"], capture_output=True, text=True).stdout.strip()
""")
    want = {k: 0 for k in got if k.startswith("58 Cap")}
    want.update({"58 NoNewPrivs": "1", "58 Seccomp": "2", "58 ids": ["1000"] * 8, "58 groups": "",
                 "58 securebits": lambda b: isinstance(b, int) and b & 1 and b & 0x40, "58 ambient raise": "EPERM", "58 capset": "EPERM",
                 "58 setuid": "EPERM", "58 setgid": "EPERM", "58 setresuid": "EPERM", "58 setgroups": "EPERM",
                 "58 fsuid stays": 1000, "58 chown to root": "EPERM", "57 file capabilities": "EPERM",
                 "57 trusted xattr": {"EPERM", "EOPNOTSUPP"}})
    want.update({k: "1000" for k in got if k.startswith("57 suid copy")})
    if "57 host's mount" in got:
        want["57 host's mount"] = lambda r: r != 0
    expect(got, want)


@attacks(59)
def test_59_personality(server, box):
    got = box.run("""
def persona(v):
    return lambda: 1 if not isinstance(call(135, v), str) and call(135, 0xffffffff) & 0x440000 else 0
for n, v in (("READ_IMPLIES_EXEC", 0x400000), ("ADDR_NO_RANDOMIZE", 0x40000), ("both", 0x440000),
             ("READ_IMPLIES_EXEC with the top bit", 0x80400000), ("ADDR_NO_RANDOMIZE with the top bit", 0x80040000),
             ("all but one bit", 0xfffffffe), ("high half", 1 << 40 | 0x400000)):
    out[n] = in_child(persona(v))
out["query"] = call(135, 0xffffffff)
""")
    want = {k: 0 for k in got}
    want["query"] = lambda r: isinstance(r, int)
    expect(got, want)


INT80 = r"""
#include <stdio.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <sys/mman.h>
static long int80(long nr, long a, long b, long c, long d, long e) {
        long r;
        __asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory", "r8", "r9", "r10", "r11");
        return r;
}
static long x32(long nr, long a, long b, long c) {
        long r;
        __asm__ volatile("syscall" : "=a"(r) : "a"(nr | 0x40000000), "D"(a), "S"(b), "d"(c) : "memory", "rcx", "r11");
        return r;
}
int main(void) {
        char *low = mmap((void *)0x10000000, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (low == MAP_FAILED) return 2;
        strcpy(low, "/workspace"); strcpy(low + 100, "tmpfs");
        printf("i386_getpid %ld\n", int80(20, 0, 0, 0, 0, 0));
        printf("i386_mount %ld\n", int80(21, (long)low + 100, (long)low, (long)low + 100, 0, 0));
        printf("i386_unshare %ld\n", int80(310, 0x10000000, 0, 0, 0, 0));
        printf("i386_ptrace %ld\n", int80(26, 16, 1, 0, 0, 0));
        printf("i386_keyctl %ld\n", int80(288, 0, -3, 1, 0, 0));
        printf("i386_chroot %ld\n", int80(61, (long)low, 0, 0, 0, 0));
        printf("i386_socketcall %ld\n", int80(102, 1, (long)low, 0, 0, 0));
        printf("x32_getpid %ld\n", x32(39, 0, 0, 0));
        printf("x32_unshare %ld\n", x32(272, 0x10000000, 0, 0));
        printf("x32_mount %ld\n", x32(165, 0, (long)low, 0));
        printf("x32_chroot %ld\n", x32(161, (long)low, 0, 0));
        printf("x32_ptrace %ld\n", x32(521, 16, 1, 0));
        return 0;
}
"""


@attacks(60)
def test_60_other_system_call_tables(server, box):
    r = box.sh("cat > a.c <<'X'\n%s\nX\ngcc -O1 a.c -o a && ./a" % INT80, timeoutSeconds=30)
    if "gcc: not found" in r["stderr"]:
        raise common.Skip("no gcc in /usr")
    rows = dict(l.split() for l in r["stdout"].splitlines())
    assert rows or r["signal"] == 11, r  # a kernel without the i386 entry answers by SIGSEGV
    for k, v in rows.items():
        assert int(v) in (-38, -1), "%s gave %s" % (k, v)
    assert len(rows) == 12, r


@attacks(61)
def test_61_stacked_filters(server, box):
    """A user's own filter works, and its listener cannot allow what ours denies."""
    got = box.run("""
def filt(*insns):
    raw = b"".join(struct.pack("<HBBI", *i) for i in insns)
    buf = ctypes.create_string_buffer(raw)
    return struct.pack("<HxxxxxxQ", len(insns), ctypes.addressof(buf)), buf
LD = (0x20, 0, 0, 0)
def own():
    prog, keep = filt(LD, (0x15, 0, 1, 39), (6, 0, 0, 0x50000 | 77), (6, 0, 0, 0x7fff0000))
    if call(317, 1, 0, prog) != 0: return 1
    return 0 if call(39) == name(77) else 2
out["own filter"] = in_child(own)
def listener():
    # USER_NOTIF for unshare (272): a supervisor could say "go on"; ours must answer first
    prog, keep = filt(LD, (0x15, 0, 1, 272), (6, 0, 0, 0x7fc00000), (6, 0, 0, 0x7fff0000))
    fd = call(317, 1, 8, prog)
    if isinstance(fd, str): return 3
    return 0 if call(272, 0x10000000) == "EPERM" else 4
signal.alarm(10)
out["listener"] = in_child(listener)
""")
    expect(got, {"own filter": 0, "listener": {0, 3}})


@attacks(63)
def test_63_splice_into_read_only_files(server, box):
    """The Dirty Pipe manner, and other ways to write to what is shared; the canary is /usr."""
    got = box.run("""
fd = os.open("/usr/bin/env", os.O_RDONLY)
r, w = os.pipe()
for _ in range(16): os.write(w, b"x" * 4096)
for _ in range(16): os.read(r, 4096)
out["splice"] = attempt(os.splice, fd, w, 1, offset_src=0)
out["write behind it"] = attempt(os.write, w, b"OWNED")
out["first bytes"] = os.pread(fd, 4, 0).decode("latin-1")
out["vmsplice"] = call(278, w, struct.pack("<QQ", ctypes.addressof(ctypes.create_string_buffer(64)), 64), 1, 8)
import mmap
out["open for writing"] = attempt(os.open, "/usr/bin/env", os.O_WRONLY)
try: mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_SHARED); out["mmap shared"] = "mapped"
except OSError as e: out["mmap shared"] = name(e.errno)
out["reopen through /proc"] = attempt(os.open, "/proc/self/fd/%d" % fd, os.O_RDWR)
out["own mem"] = "tried"
m = mmap.mmap(fd, 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
out["sendfile into it"] = attempt(os.sendfile, fd, r, None, 4)
out["copy_file_range"] = call(326, r, None, fd, None, 4, 0)
out["chmod"] = attempt(os.chmod, "/usr/bin/env", 0o777)
out["utime"] = attempt(os.utime, "/usr/bin/env")
out["rename"] = attempt(os.rename, "/usr/bin/env", "/usr/bin/env2")
out["create"] = attempt(os.open, "/usr/bin/zz", os.O_CREAT | os.O_WRONLY)
out["link out"] = attempt(os.link, "/usr/bin/env", "/workspace/env")
out["etc/passwd"] = attempt(os.open, "/etc/passwd", os.O_WRONLY)
""")
    expect(got, {"first bytes": "\x7fELF", "open for writing": {"EROFS", "EACCES"}, "mmap shared": {"EACCES", "EPERM"},
                 "reopen through /proc": {"EROFS", "EACCES"}, "chmod": {"EROFS", "EPERM"}, "utime": {"EROFS", "EACCES"},
                 "rename": {"EROFS", "EACCES"}, "create": {"EROFS", "EACCES"}, "link out": {"EXDEV", "EPERM", "EROFS"},
                 "etc/passwd": {"EACCES"}, "sendfile into it": {"EBADF", "EINVAL"}, "copy_file_range": {"EBADF", "EINVAL"}})


@attacks(64)
def test_64_typing_into_terminals(server, box):
    got = box.run("""
import fcntl, termios
m, s = os.openpty()
out["TIOCSTI"] = call(16, s, 0x5412, "x")
out["TIOCSTI with high bits"] = call(16, s, 0x5412 | 1 << 32, "x")
out["TIOCLINUX"] = call(16, s, 0x541c, b"\\x03")
out["TIOCLINUX with high bits"] = call(16, s, 0x541c | 5 << 32, b"\\x03")
out["TIOCCONS"] = call(16, s, 0x541d, 0)
out["/dev/tty"] = attempt(os.open, "/dev/tty", os.O_RDWR)
out["TIOCSCTTY"] = isinstance(call(16, s, 0x540e, 1), (int, str))
""")
    expect(got, {"TIOCSTI": "EPERM", "TIOCSTI with high bits": "EPERM", "TIOCLINUX": "EPERM",
                 "TIOCLINUX with high bits": "EPERM", "TIOCCONS": {"EPERM", "EBUSY"}, "/dev/tty": {"ENXIO"}})


@attacks(72)
def test_72_fds(server, box):
    """0, 1, 2 and nothing else; in the background and in a time-out's neighbour, too."""
    for script in ("ls /proc/self/fd", "(ls /proc/self/fd) | cat", "setsid ls /proc/self/fd"):
        seen = box.sh(script)["stdout"].split()
        assert seen in (["0", "1", "2", "3"],), (script, seen)
    got = box.run("out['fds'] = {f: attempt(os.readlink, '/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd')}")
    assert sorted(got["fds"])[:3] == ["0", "1", "2"] and len(got["fds"]) == 4, got
    assert got["fds"]["0"] == "/dev/null" and got["fds"]["1"].startswith("pipe:") and got["fds"]["2"].startswith("pipe:"), got
    # the other end of the own output: an anonymous pipe that can be reopened, but is only that
    got = box.run("out['reopen'] = attempt(os.open, '/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)")
    box.alive()


@attacks(73)
def test_73_working_directories(server, box):
    """CVE-2024-21626: a working directory by a leaked fd, and other tricks."""
    for fd in range(0, 40):
        r = box.reply("pwd", workdir="/proc/self/fd/%d" % fd)
        if r.status == 200:
            assert r.json["exitCode"] == 0 and not r.json["stdout"].startswith("(unreachable)"), (fd, r.json)
            r = box.exec("sh", "-c", "pwd; ls -di . ..; ls", workdir="/proc/self/fd/%d" % fd)
            raise AssertionError("fd %d is a directory: %r" % (fd, r))
        assert 400 <= r.status < 500, (fd, r)
    box.sh("ln -s loop loop; mkdir gone; ln -s / root; ln -s ../../../.. up")
    for d, ok in (("/workspace/loop", False), ("loop", False), ("root", True), ("up", True), ("../../../..", True),
                  ("/proc/1/root", False), ("/proc/1/cwd", False), ("/root", False), ("/workspace/" + "a/" * 3000, False)):
        r = box.reply("ls", workdir=d)
        assert (r.status == 200) == ok, (d, r)
        if ok:
            assert "workspace" in r.json["stdout"] and os.path.basename(harness.ROOT) not in r.json["stdout"].split(), r
    r = box.sh("cd gone && rmdir ../gone && ls . .. ; pwd -P; cat ../x; echo done")
    assert r["stdout"].endswith("done\n"), r


def test_74_environment():
    """The server's own environment and key are nowhere inside."""
    secret, key = "canary-7f3a9c", "key-0123456789abcdef"
    server = harness.Server("--log-level", "warn", env={"SECRET_CANARY": secret, "CLOCHE_API_KEY": key}, start=False)
    server.key = key
    server.start()
    try:
        server.make("other")
        server.exec("other", "sh", "-c", "(sleep 60 >/dev/null 2>&1 &)", env={"OTHERS": "other-env-5511"})
        box = common.Box(server, "attacker")
        got = box.run("""
seen = ""
import glob
for p in glob.glob("/proc/[0-9]*") + ["/proc/self", "/proc/thread-self"]:
    for n in ("environ", "cmdline", "comm", "stat", "status", "maps", "mountinfo", "cgroup", "limits", "wchan", "stack", "auxv"):
        try: out[p + "/" + n] = len(readfile(p + "/" + n, 1 << 20)); seen += readfile(p + "/" + n, 1 << 20)
        except OSError as e: pass
seen += repr(dict(os.environ))
for n in ("cmdline", "mounts", "version", "net/unix", "locks"):
    try: seen += readfile("/proc/" + n, 1 << 20)
    except OSError: pass
import subprocess
out["seen"] = seen
out["own"] = sorted(os.environ)
""")
        for word in (secret, key, "SECRET_CANARY", "CLOCHE_", "other-env", server.state, str(server.port)):
            assert word not in got["seen"], "%s is visible inside" % word
        assert set(got["own"]) <= {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "PWD", "LC_CTYPE"}, got["own"]
        server.assert_healthy()
        assert secret not in server.read_log() and key not in server.read_log()
    finally:
        server.close()


common.numbers_run.setdefault(74, []).append("test_74_environment")


@attacks(75)
def test_75_core_dumps(server, box):
    """None lands on the host or in the sandbox, and nobody can ask for one."""
    got = box.run("""
import resource
out["limit"] = resource.getrlimit(resource.RLIMIT_CORE)
try: resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); out["raise"] = "raised"
except (ValueError, OSError) as e: out["raise"] = "refused"
out["dumpable"] = call(157, 4, 1, 0, 0, 0)
out["abort"] = in_child(os.abort)
pid = os.fork()
if pid == 0: os.kill(os.getpid(), 11)
out["core bit"] = os.WCOREDUMP(os.waitpid(pid, 0)[1])
out["cores"] = [f for f in os.listdir(".") if "core" in f]
""")
    expect(got, {"raise": "refused", "abort": -6, "core bit": False, "cores": []})


@attacks(75)
def test_75_core_limit_cannot_be_lowered(server, box):
    """agent.c sets RLIMIT_CORE to 1 because a core_pattern that is a pipe is stopped by
    exactly 1 and by nothing else; with 0 the host's helper runs."""
    got = box.run("""
import resource
for what in ("setrlimit", "prlimit"):
    try: (resource.setrlimit(resource.RLIMIT_CORE, (0, 0)) if what == "setrlimit" else
          resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)))
    except (OSError, ValueError): pass
    out[what] = list(resource.getrlimit(resource.RLIMIT_CORE))
""")
    expect(got, {"setrlimit": [1, 1], "prlimit": [1, 1]})


common.main(globals())
