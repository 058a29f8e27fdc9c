#!/usr/bin/env python3
"""D: other sandboxes (76-81), and E: the network that is not there (85, 87)."""
import os
import socket
import subprocess
import threading
import common
import harness
from common import attacks, eventually, expect

SERVER_FLAGS = ["--log-level", "warn"]


class Background:
    """A Python program that stays in a sandbox while another one is asked."""

    def __init__(self, server, name, source, seconds=10):
        self.replies = []
        self.ready = "/workspace/ready-%d" % id(self)
        self.thread = threading.Thread(daemon=True, target=lambda: self.replies.append(server.python(
            name, common.PRELUDE + source + "\nopen(%r, 'w').close()\ntime.sleep(%d)\n" % (self.ready, seconds),
            timeoutSeconds=seconds + 5)))
        self.thread.start()
        eventually(lambda: self.replies or server.exec(name, "test", "-e", self.ready)["exitCode"] == 0, "the other side is ready")
        assert not self.replies, self.replies


@attacks(76, 81)
def test_76_81_processes_and_uids(server, box):
    word = "66601"
    box.sh("(sleep %s >/dev/null 2>&1 &)" % word)
    mine = [p for p in harness.cgroup_pids(server) if word in common.read("/proc/%d/cmdline" % p)]
    theirs = [p for p in harness.cgroup_pids(server)
              if common.read("/proc/%d/cmdline" % p) == "sleep\0003600\0"]
    assert len(mine) == 1 and len(theirs) == 1, (mine, theirs)

    def ids(pid):
        return [l.split()[1] for l in common.read("/proc/%d/status" % pid).splitlines() if l.startswith(("Uid", "Gid"))]
    assert ids(mine[0]) != ids(theirs[0]), "two sandboxes share a host uid: %r" % ids(mine[0])
    for i in ids(mine[0]) + ids(theirs[0]):
        assert int(i) > 65536, i
    for ns in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        a, b, h = [os.readlink("/proc/%s/ns/%s" % (p, ns)) for p in (mine[0], theirs[0], "self")]
        assert len({a, b, h}) == 3, (ns, a, b, h)
    got = box.run("""
out["seen"] = [p for p in os.listdir("/proc") if p.isdigit() and attempt(readfile, "/proc/%%s/cmdline" %% p) == "sleep\\0003600\\0"]
out["kill by host pid"] = attempt(os.kill, %d, 9)
out["kill all"] = attempt(os.kill, -1, 9)  # the own ones: pid 1 reaps them
time.sleep(0.3)
hit = 0
for p in range(2, 40000):
    if p == os.getpid(): continue
    try: os.kill(p, 9); hit += 1
    except OSError: pass
out["hit"] = hit
out["pidfd_open"] = call(434, %d, 0)
""" % (theirs[0], theirs[0]))
    expect(got, {"seen": [], "kill by host pid": {"ESRCH"}, "pidfd_open": {"ESRCH", "EINVAL"}, "hit": 0})


@attacks(77)
def test_77_abstract_sockets(server, box):
    Background(server, "neighbour", """
s = socket.socket(socket.AF_UNIX); s.bind("\\0cloche-abstract"); s.listen()
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); d.bind("\\0cloche-dgram")
os.unlink("/workspace/sock") if os.path.exists("/workspace/sock") else None
p = socket.socket(socket.AF_UNIX); p.bind("/tmp/sock"); p.listen()
""", 2)
    host = socket.socket(socket.AF_UNIX)
    host.bind("\0cloche-host-%d" % os.getpid())
    host.listen()
    got = box.run("""
def connect(kind, a):
    socket.socket(socket.AF_UNIX, kind).connect(a)
    return "connected"
out["stream"] = attempt(connect, socket.SOCK_STREAM, "\\0cloche-abstract")
out["dgram"] = attempt(connect, socket.SOCK_DGRAM, "\\0cloche-dgram")
out["host's"] = attempt(connect, socket.SOCK_STREAM, "\\0cloche-host-%d")
out["path"] = attempt(connect, socket.SOCK_STREAM, "/tmp/sock")
out["listed"] = "cloche" in readfile("/proc/net/unix", 1 << 20)
s = socket.socket(socket.AF_UNIX); s.bind("\\0cloche-abstract")
out["own bind"] = "bound"
""" % os.getpid())
    host.close()
    expect(got, {"stream": "ECONNREFUSED", "dgram": "ECONNREFUSED", "host's": "ECONNREFUSED", "path": "ENOENT",
                 "listed": False, "own bind": "bound"})
    server.sh("neighbour", "rm -f /workspace/ready-* /tmp/sock")


@attacks(78)
def test_78_socket_families(server, box):
    got = box.run("""
def sock(f, t, p=0):
    s = socket.socket(f, t, p); s.close(); return "opened"
for n, f in (("VSOCK", 40), ("ALG", 38), ("PACKET", 17), ("KEY", 15), ("TIPC", 30), ("RDS", 21), ("BLUETOOTH", 31),
             ("CAN", 29), ("NFC", 39), ("XDP", 44), ("SMC", 43), ("X25", 9), ("APPLETALK", 5), ("AX25", 3), ("NETROM", 6),
             ("ROSE", 11), ("LLC", 26), ("IEEE802154", 36), ("PHONET", 35), ("PPPOX", 24), ("KCM", 41), ("QIPCRTR", 42),
             ("MCTP", 45), ("RXRPC", 33), ("ISDN", 34), ("IB", 27), ("MPLS", 28), ("CAIF", 37), ("ATMPVC", 8), ("ATMSVC", 20)):
    for t in (1, 2, 3, 5): out["%s %d" % (n, t)] = attempt(sock, f, t)
out["ALG high bits"] = call(41, 38 | 1 << 32, 5, 0)
out["raw ICMP"] = attempt(sock, 2, 3, 1)
out["raw IPv6"] = attempt(sock, 10, 3, 58)
out["raw 255"] = attempt(sock, 2, 3, 255)
out["ping"] = attempt(sock, 2, 2, 1)
out["SCTP"] = attempt(sock, 2, 1, 132)
out["MPTCP"] = attempt(sock, 2, 1, 262)
for p in range(1, 23): out["NETLINK %d" % p] = attempt(sock, 16, 3, p)
out["NETLINK 9 high bits"] = call(41, 16, 3, 9 | 1 << 40)
# routes may be asked for, not changed
def add_address():
    s = socket.socket(16, 3, 0); s.bind((0, 0))
    m = struct.pack("<IHHIIBBBBI", 32, 20, 0x605, 1, 0, 2, 24, 0, 0, 1) + struct.pack("<HH4s", 8, 2, bytes([10, 0, 0, 9]))
    s.send(m); r = s.recv(4096)
    return name(-struct.unpack_from("<i", r, 16)[0])
out["RTM_NEWADDR"] = attempt(add_address)
import fcntl
s = socket.socket(2, 2)
out["SIOCSIFADDR"] = attempt(fcntl.ioctl, s, 0x8916, b"lo".ljust(16, b"\\0") + struct.pack("<HH4s8x", 2, 0, bytes([10, 1, 1, 1])))
out["SO_BINDTODEVICE lo"] = "tried"
out["SO_MARK"] = attempt(s.setsockopt, 1, 36, 7)
out["IP_TRANSPARENT"] = attempt(s.setsockopt, 0, 19, 1)
out["iptables"] = attempt(s.getsockopt, 0, 64, 84)
""")
    want = {}
    for k in got:
        if k.startswith("NETLINK"):
            want[k] = {"EPROTONOSUPPORT"}
        elif k in ("SO_BINDTODEVICE lo", "MPTCP"):
            continue
        else:
            want[k] = {"EAFNOSUPPORT", "EPERM", "EACCES", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EINVAL", "ENOPROTOOPT"}
    expect(got, want)


@attacks(79)
def test_79_sysv_and_posix_ipc(server, box):
    r = server.python("neighbour", common.PRELUDE + """
shm = call(29, 0x5eed, 4096, 0o1666); sem = call(64, 0x5eed, 1, 0o1666); msg = call(68, 0x5eed, 0o1666)
mq = call(240, "cloche-mq", 0o102, 0o666, None)
open("/dev/shm/shared", "w").write("mine")
print(shm, sem, msg, mq)""")
    assert "E" not in r["stdout"], r
    got = box.run("""
out["shm"] = call(29, 0x5eed, 0, 0)
out["sem"] = call(64, 0x5eed, 0, 0)
out["msg"] = call(68, 0x5eed, 0)
out["mq"] = call(240, "cloche-mq", 0, 0, None)
out["/dev/shm"] = attempt(readfile, "/dev/shm/shared")
out["shmat by id"] = [call(30, i, 0, 0) for i in range(8)]
""")
    expect(got, {"shm": "ENOENT", "sem": "ENOENT", "msg": "ENOENT", "mq": "ENOENT", "/dev/shm": "ENOENT",
                 "shmat by id": lambda r: set(r) == {"EINVAL"}})


@attacks(81)
def test_81_private_files_of_a_host_user(server, box):
    """/usr is shown, but not what a user of the host who has the sandbox's number keeps there."""
    uid = int(box.sh("id -u")["stdout"])
    cases = {"/usr/local/cloche-canary-%d-%d-%o" % (os.getpid(), owner, mode): (owner, mode)
             for owner in (0, uid) for mode in (0o600, 0o440, 0o604)}
    try:
        for path, (owner, mode) in cases.items():
            with open(path, "w") as f:
                f.write("private")
            os.chown(path, owner, owner)
            os.chmod(path, mode)
        got = {case: box.exec("cat", path)["stdout"] for path, case in cases.items()}
    except OSError as e:
        raise common.Skip("cannot write to /usr: %s" % e)
    finally:
        for path in filter(os.path.exists, cases):
            os.unlink(path)
    assert got == {case: "private" if case[1] == 0o604 else "" for case in got}, got


SHARED_FILES = ["/usr/bin/env", "/dev/null", "/dev/zero", "/proc/keys"]


@attacks(80)
def test_80_locks_on_shared_files(server, box):
    """A lock that is held inside: do another sandbox and the host see it?"""
    Background(server, "neighbour", """
import fcntl
files = [open(p) for p in %r]
for f in files: fcntl.flock(f, fcntl.LOCK_EX)
""" % SHARED_FILES, 2)
    got = box.run("""
import fcntl
for p in %r:
    f = open(p)
    out["flock " + p] = attempt(fcntl.flock, f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    out["lease " + p] = attempt(fcntl.fcntl, f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
""" % SHARED_FILES)
    host = [subprocess.run(["flock", "-n", p, "true"]).returncode for p in SHARED_FILES if os.path.exists(p)]
    server.sh("neighbour", "rm -f /workspace/ready-*")
    no = {"EACCES", "EROFS", "EAGAIN", "EPERM", "EINVAL"}
    expect(got, {k: no if k.startswith("lease") else None for k in got})
    assert set(host) == {0}, "a lock crosses to the host: %r" % host


@attacks(80)
def test_80_watching_shared_devices(server, box):
    """inotify on /dev and on a masked file: does it show when others open them?"""
    watcher = Background(server, box.name, """
ino = call(294, 0o4000)
for p in ("/dev", "/dev/null", "/dev/pts", "/proc/keys"): call(254, ino, p, 0x21)  # IN_OPEN, IN_ACCESS
def look():
    try: print(os.read(ino, 65536))
    except BlockingIOError: print("nothing")
    sys.stdout.flush()
import atexit; atexit.register(look)
""", 1)
    server.sh("neighbour", "head -c 1 /dev/zero > /dev/null; cat /proc/keys")
    watcher.thread.join()
    assert watcher.replies[0]["stdout"] == "nothing\n", "a sandbox sees what others open: %r" % watcher.replies


@attacks(80)
def test_80_watching_shared_files(server, box):
    """inotify on /usr/bin: do the programs that others run show?"""
    watcher = threading.Thread(target=lambda: seen.append(box.run("""
import select
ino = call(294, 0o4000)
call(254, ino, "/usr/bin", 0x21)  # IN_OPEN, IN_ACCESS
open("/workspace/ready", "w").close()
names = set()
end = time.time() + 1.0
while time.time() < end:
    if select.select([ino], [], [], 0.1)[0]:
        d = os.read(ino, 65536)
        while d:
            n = struct.unpack_from("<iIII", d)[3]
            names.add(d[16:16 + n].rstrip(b"\\0").decode()); d = d[16 + n:]
out["names"] = sorted(names)
""")))
    seen = []
    watcher.start()
    eventually(lambda: os.path.exists("/proc") and server.exec(box.name, "test", "-e", "/workspace/ready")["exitCode"] == 0, "it watches")
    server.exec("neighbour", "/usr/bin/factor", "12")
    subprocess.run(["/usr/bin/tsort", "/dev/null"])
    watcher.join()
    leaks = [n for n in seen[0]["names"] if n in ("factor", "tsort")]
    assert not leaks, "a sandbox sees what others run: %s (factor: another sandbox, tsort: the host)" % leaks


LEAVE = {
    "flow label": """
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
req = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("!I", 0x12345) + struct.pack("<BBHHHI", 0, 255, 1, 100, 100, 0)
out["made"] = attempt(s.setsockopt, 41, 32, req)
assert "12345" in readfile("/proc/net/ip6_flowlabel"), out
""",
    "time-wait": """
t = socket.socket(); t.bind(("127.0.0.1", 777)); t.listen()
c = socket.create_connection(("127.0.0.1", 777)); a = t.accept()[0]; a.close(); c.close()
""",
    "files and ipc": """
for d in ("/workspace", "/tmp", "/dev/shm", "/var/tmp"): writefile(d + "/left", "x")
call(29, 0x5eed, 4096, 0o1666)
""",
}


@attacks(81)
def test_81_reused_slots_remember_nothing(server, box):
    """What a sandbox leaves in its namespaces must not meet the next one in the same slot."""
    look = """
out["slot"] = [l for l in readfile("/proc/self/cgroup").splitlines() if "pids" in l]
for n in ("ip6_flowlabel", "tcp", "tcp6", "udp", "unix", "igmp"):
    left = readfile("/proc/net/" + n).splitlines()[1:]
    if n == "igmp": left = [l for l in left if len(l.split()) == 2 and "010000E0" not in l]
    if n == "unix": left = [l for l in left if "@" in l]
    if left: out[n] = left
out["files"] = [f for d in ("/workspace", "/tmp", "/dev/shm", "/var/tmp") for f in os.listdir(d)]
out["shm"] = readfile("/proc/sysvipc/shm").count("\\n") - 1
"""
    found, reused = [], set()
    for what, source in LEAVE.items():
        for _ in range(15):  # whether a slot is used again depends on the host's traffic
            server.canary.settle(1)
            first = common.Box(server, "first", memoryLimit="1Gi")  # not the pool's shape: takes a slot itself
            slot = first.run(source + 'out["slot"] = [l for l in readfile("/proc/self/cgroup").splitlines() if "pids" in l]')["slot"]
            first.gone()
            second = common.Box(server, "second", memoryLimit="1Gi")
            got = second.run(look)
            second.gone()
            if got.pop("slot") == slot:
                reused.add(what)
                if got != {"files": [], "shm": 0}:
                    found.append("after %s the next sandbox finds %r" % (what, got))
                break
    assert not found, "; ".join(found)
    if not reused:
        raise common.Skip("no slot was used again")


@attacks(85)
def test_85_nothing_outside_is_reachable(server, box):
    got = box.run("""
def tcp(family, addr):
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2); s.connect(addr); return "connected"
def udp(family, addr):
    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(2); s.connect(addr); s.send(b"x"); return "sent"
for a in ("1.1.1.1", "8.8.8.8", "10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254", "100.100.100.200", "224.0.0.1", "255.255.255.255"):
    out["tcp " + a] = attempt(tcp, socket.AF_INET, (a, 80))
    out["udp " + a] = attempt(udp, socket.AF_INET, (a, 53))
for a in ("2606:4700:4700::1111", "fd00:ec2::254", "fe80::1", "ff02::1", "::ffff:1.1.1.1"):
    out["tcp " + a] = attempt(tcp, socket.AF_INET6, (a, 80))
    out["udp " + a] = attempt(udp, socket.AF_INET6, (a, 53))
out["icmp"] = attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
try: socket.getaddrinfo("example.com", 80); out["dns"] = "resolved"
except socket.gaierror: out["dns"] = "refused"
out["interfaces"] = [n for _, n in socket.if_nameindex()]
out["routes"] = readfile("/proc/net/route").count("\\n")
t = socket.socket(); t.bind(("127.0.0.1", 80)); t.listen()
c = socket.create_connection(("127.0.0.1", 80)); a, _ = t.accept(); a.send(b"hello")
out["own loopback"] = c.recv(10).decode()
t6 = socket.socket(socket.AF_INET6); t6.bind(("::1", 0)); t6.listen()
out["own loopback 6"] = attempt(tcp, socket.AF_INET6, t6.getsockname()[:2])
""")
    no = {"ENETUNREACH", "EHOSTUNREACH", "EACCES", "EPERM", "EADDRNOTAVAIL", "EINVAL"}
    want = {k: no for k in got if k.startswith(("tcp", "udp", "icmp"))}
    want.update({"dns": "refused", "own loopback": "hello", "own loopback 6": "connected", "routes": 1,
                 "interfaces": lambda n: n == ["lo"] or "lo" in n and all(x.startswith(("lo", "tunl", "sit", "ip6", "gre", "erspan")) for x in n)})
    expect(got, want)


@attacks(87)
def test_87_the_hosts_loopback(server, box):
    """The server's own port, a listener of the host, and the neighbour's listener."""
    heard = []
    listener = socket.socket()
    listener.bind(("0.0.0.0", 0))
    listener.listen()
    listener.settimeout(0.2)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", 0))
    udp.settimeout(0.2)
    Background(server, "neighbour", "s = socket.socket(); s.bind(('0.0.0.0', 7788)); s.listen()", 2)
    addresses = ["127.0.0.1", "0.0.0.0", "127.1.2.3"] + subprocess.run(
        ["hostname", "-I"], capture_output=True, text=True).stdout.split()[:4]
    got = box.run("""
def tcp(a, p):
    s = socket.socket(socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM); s.settimeout(2); s.connect((a, p)); return "connected"
for a in %r:
    for n, p in (("server", %d), ("listener", %d), ("neighbour", 7788)):
        out["%%s at %%s" %% (n, a)] = attempt(tcp, a, p)
for a in %r:
    s = socket.socket(socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_DGRAM)
    attempt(s.sendto, b"hello", (a, %d))
""" % (addresses, server.port, listener.getsockname()[1], addresses, udp.getsockname()[1]))
    for s in (listener, udp):
        try:
            heard.append(s.accept() if s is listener else s.recvfrom(10))
        except socket.timeout:
            pass
        s.close()
    assert not heard, heard
    expect(got, {k: {"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EINVAL"} for k in got})
    server.sh("neighbour", "rm -f /workspace/ready-*")


common.main(globals())
