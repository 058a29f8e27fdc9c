#!/usr/bin/env python3
"""B: memory, disk, kernel objects (21-39, as far as a sandbox without network and mounts
can try them)."""
import fcntl
import socket
import struct
import tempfile
import time
import common
import harness
from common import attacks, expect

SERVER_FLAGS = ["--log-level", "warn"]


@attacks(21, memoryLimit="64Mi")
def test_21_memory_bomb(server, box):
    r = box.exec("python3", "-c", "b=[]\nwhile True: b.append(bytearray(1<<20))", timeoutSeconds=20)
    assert r["reason"] == "oom" and r["signal"] == 9 and r["exitCode"] == 137, r
    r = box.sh("python3 -c 'b=[]\nwhile True: b.append(bytearray(1<<20))'; exit $?", timeoutSeconds=20)
    assert r["reason"] == "oom" and r["exitCode"] == 137, r
    box.alive()
    assert box.sh("kill -9 $$")["reason"] == "signaled"  # an old oom is not this one's


@attacks(21, memoryLimit="64Mi")
def test_21_many_small_bombs(server, box):
    """Forked children that each take a bite: the OOM killer works inside only."""
    box.reply("python3", "-c", "import os\nfor i in range(60): os.fork() or [bytearray(4<<20), __import__('time').sleep(9)]",
              timeoutSeconds=2)
    box.alive()


@attacks(22, memoryLimit="48Mi", ephemeralStorageLimit="512Mi")
def test_22_tmpfs_counts_as_memory(server, box):
    for where in ("/dev/shm", "/tmp", "/workspace"):
        r = box.sh("dd if=/dev/zero of=%s/fill bs=1M count=400 2>&1; rm -f %s/fill" % (where, where), timeoutSeconds=20)
        size = box.sh("stat -c %%s %s/fill 2>/dev/null" % where)["stdout"]
        box.sh("rm -f %s/fill" % where)
        assert "400+0 records out" not in r["stdout"], "%s: 400 MiB fitted into 48: %r %s" % (where, r, size)
        box.alive()
    r = box.exec("python3", "-c", "import os\nfd = os.memfd_create('x')\nfor i in range(400): os.write(fd, bytes(1 << 20))\n"
                 "print('fitted')", timeoutSeconds=20)
    assert r["reason"] == "oom" and not r["stdout"], "a memfd of 400 MiB fitted into 48: %r" % r


@attacks(22, 25, memoryLimit="256Mi", ephemeralStorageLimit="8Mi")
def test_25_disk_fill(server, box):
    """All that can be written shares one limit, and its end is ENOSPC."""
    got = box.run("""
total = 0
for i, where in enumerate(("/workspace", "/tmp", "/var/tmp", "/dev/shm")):
    try:
        with open(where + "/fill", "wb", buffering=0) as f:
            while total < 64 << 20: total += f.write(bytes(65536))
    except OSError as e: out[where] = name(e.errno)
out["total"] = total
""")
    expect(got, {"/workspace": "ENOSPC", "/tmp": "ENOSPC", "/var/tmp": "ENOSPC", "/dev/shm": "ENOSPC",
                 "total": lambda n: n <= 8 << 20})
    box.sh("rm -f /workspace/fill /tmp/fill /var/tmp/fill /dev/shm/fill")
    assert box.sh("echo ok > /workspace/x && cat /workspace/x")["stdout"] == "ok\n"


@attacks(23, memoryLimit="64Mi")
def test_23_page_cache_pressure(server, box):
    """Reading far more than the limit from /usr: the cache is the sandbox's and is dropped."""
    r = box.sh("find /usr/lib /usr/bin -type f -size +200k 2>/dev/null | head -150 | xargs cat | wc -c", timeoutSeconds=20)
    assert r["exitCode"] == 0 and int(r["stdout"]) > 64 << 20, r
    box.alive()


def delayed(fd):
    """Is the file's data still to be given a place on the disk?"""
    ask = struct.pack("<QQIIII", 0, 2 ** 63 - 1, 0, 0, 8, 0) + bytes(8 * 56)
    got = fcntl.ioctl(fd, 0xC020660B, ask)  # FS_IOC_FIEMAP
    flags = [struct.unpack_from("<I", got, 32 + 56 * i + 40)[0] for i in range(struct.unpack_from("<I", got, 20)[0])]
    return any(f & 4 for f in flags)


@attacks(23)
def test_23_sync_is_not_the_host_s(server, box):
    """A sandbox that calls sync all the time must not keep the host's disks busy."""
    with tempfile.NamedTemporaryFile(dir=server.state) as f:
        f.write(bytes(1 << 20))
        f.flush()
        try:
            if not delayed(f.fileno()):
                raise common.Skip("this file system does not delay")
        except OSError as e:
            raise common.Skip("no FIEMAP here: %s" % e)
        r = box.exec("sync")
        assert r["exitCode"] == 0 and delayed(f.fileno()), "a sandbox's sync wrote out the host's files: %r" % r


@attacks(24, memoryLimit="64Mi")
def test_24_mlock_and_hugetlb(server, box):
    got = box.run("""
import mmap, resource
def lock():
    m = mmap.mmap(-1, 1 << 30)
    a = ctypes.addressof(ctypes.c_char.from_buffer(m))
    r = call(149, a, 1 << 30)
    return 1 if r == 0 else 0
out["mlock 1 GiB"] = in_child(lock)
out["mlockall"] = in_child(lambda: 1 if call(151, 3) == 0 and bytearray(200 << 20) else 0)
out["hugetlb"] = call(9, 0, 64 << 20, 3, 0x40022, -1, 0)
out["memfd hugetlb"] = in_child(lambda: 1 if isinstance(call(77, call(319, "h", 4), 512 << 20), int) and 0 else 0)
""")
    expect(got, {"mlock 1 GiB": {0, -9}, "mlockall": {0, -9, 99}, "hugetlb": {"ENOMEM", "EPERM", "EINVAL", "ENOENT"}})
    box.alive()


@attacks(26, ephemeralStorageLimit="64Mi")
def test_26_inode_flood(server, box):
    got = box.run("""
n = 0
os.mkdir("f"); os.chdir("f")
try:
    while n < 200000: os.close(os.open("f%d" % n, os.O_CREAT | os.O_WRONLY)); n += 1
    out["end"] = None
except OSError as e: out["end"] = name(e.errno)
out["n"] = n
""", timeoutSeconds=60)
    assert got["end"] == "ENOSPC" and got["n"] <= 16384, got
    assert box.sh("touch /tmp/x")["exitCode"] != 0
    start = time.monotonic()
    box.gone()
    assert time.monotonic() - start < 3 * harness.SLOW


@attacks(27)
def test_27_sparse_file(server, box):
    """8 EiB that are nowhere; asking for them as an archive does not hang the server."""
    got = box.run("""
fd = os.open("big", os.O_CREAT | os.O_RDWR)
out["truncate"] = attempt(os.ftruncate, fd, 2 ** 63 - 1)
out["size"] = os.fstat(fd).st_size
out["pwrite at the end"] = attempt(os.pwrite, fd, b"x", 2 ** 62)
out["fallocate"] = attempt(os.posix_fallocate, fd, 0, 2 ** 62)
""")
    assert got["fallocate"] in ("ENOSPC", "EFBIG", "EINTR"), got
    s = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    s.sendall(b"GET /v1/sandboxes/%s/files/download?path=/workspace HTTP/1.1\r\nHost: localhost\r\n\r\n" % box.name.encode())
    s.settimeout(1)
    end = time.monotonic() + 1
    try:
        assert s.recv(1 << 20).startswith(b"HTTP/1.1 200 ")
        while time.monotonic() < end and s.recv(1 << 20):
            pass
    except socket.timeout:
        pass
    s.close()  # the reader leaves in the middle of it: so must the worker

    def workers():
        return [p for p in harness.cgroup_pids(server) if common.read("/proc/%d/comm" % p) == "cloche-files\n"]
    common.eventually(lambda: not workers(), "the worker of a download that nobody reads ends", 3)
    box.alive()


@attacks(28)
def test_28_deep_directory(server, box):
    """Many times PATH_MAX: neither delete nor download may follow it down the stack."""
    got = box.run("""
n = 0
try:
    while n < 20000:
        os.mkdir("d" * 200); os.chdir("d" * 200); n += 1
except OSError as e: out["end"] = name(e.errno)
out["n"] = n
os.chdir("/workspace")
""", timeoutSeconds=60)
    assert got["n"] > 4000, got
    r = server.request("GET", "/v1/sandboxes/%s/files/download?path=/workspace" % box.name, timeout=60)
    assert r.status in (200, 400, 413, 500), r.status
    box.alive()
    start = time.monotonic()
    box.gone()
    assert time.monotonic() - start < 5 * harness.SLOW, "delete took %.1f s" % (time.monotonic() - start)


@attacks(29)
def test_29_wide_directory(server, box):
    got = box.run("""
n = 0
for where, upto in (("/workspace/w", 60000), ("/dev/shm/w", 200000)):
    os.mkdir(where); os.chdir(where)
    try:
        while n < upto: os.close(os.open("%d" % n, os.O_CREAT | os.O_WRONLY)); n += 1
    except OSError as e: out["end"] = name(e.errno)
out["n"] = n
""", timeoutSeconds=90)
    assert got["n"] == 200000, got
    start = time.monotonic()
    box.gone()
    assert time.monotonic() - start < 5 * harness.SLOW, "delete took %.1f s" % (time.monotonic() - start)


HOARD = """
def hoard(what, make, bound, keep_int=True):
    got = []
    try:
        while len(got) < bound:
            r = make()
            if isinstance(r, str): out[what + " end"] = r; break
            got.append(r)
        else: out[what + " end"] = "bound"
    except OSError as e: out[what + " end"] = name(e.errno)
    out[what] = len(got)
    for g in got:
        for fd in (g if isinstance(g, tuple) else (g,)):
            if isinstance(fd, int): os.close(fd)
    return got
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
out["nofile"] = hard
"""


@attacks(30, 31, 32, 35, 38, 39, memoryLimit="256Mi")
def test_30_39_hoards(server, box):
    got = box.run(HOARD + """
hoard("fds", lambda: os.open("/dev/null", os.O_RDONLY), 100000)
hoard("memfds", lambda: os.memfd_create("x"), 100000)
hoard("pipes", os.pipe, 100000)
def fat_pipe():
    p = os.pipe()
    r = attempt(lambda: __import__("fcntl").fcntl(p[1], 1031, 1 << 20))
    if not isinstance(r, int): os.close(p[0]); os.close(p[1]); return r
    return p
hoard("fat pipes", fat_pipe, 5000)
hoard("inotify", lambda: call(294, 0), 100000)
hoard("epoll", lambda: call(291, 0), 100000)
hoard("eventfd", lambda: call(290, 0, 0), 100000)
hoard("signalfd", lambda: call(289, -1, b"\\0" * 8, 8, 0), 100000)
def pty():
    m, s = os.openpty(); return (m, s)
hoard("ptys", pty, 5000)
hoard("socketpairs", lambda: tuple(x.detach() for x in socket.socketpair()), 100000)
hoard("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach(), 100000)
watches = 0
ino = call(294, 0)
os.mkdir("iw")
while watches < 3000:
    os.mkdir("iw/%d" % watches)
    if isinstance(call(254, ino, "iw/%d" % watches, 2), str): break
    watches += 1
out["watches"] = watches
""", timeoutSeconds=60)
    for k in ("fds", "memfds", "epoll", "eventfd", "signalfd", "udp", "pipes", "socketpairs"):
        assert got[k] <= got["nofile"] and got[k + " end"] != "bound", (k, got)
    assert got["ptys"] <= 64, got
    assert got["inotify"] <= 128, got
    assert got["fat pipes end"] != "bound", got
    # the neighbour has its own counts
    r = server.python("neighbour", "import os; m,s=os.openpty(); p=os.pipe(); os.memfd_create('x'); "
                                   "import ctypes; assert ctypes.CDLL(None).inotify_init1(0)>=0; print('fine')")
    assert r["stdout"] == "fine\n", r


@attacks(39, memoryLimit="32Mi")
def test_39_socket_buffers_count_as_memory(server, box):
    """Bytes in flight over the own loopback are memory, too; cgroup v1 has to be told so."""
    r = box.exec("python3", "-c", common.PRELUDE + """
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(100)
kept, total, block = [], 0, bytes(65536)
for i in range(30):
    c = socket.socket(); c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    c.connect(listener.getsockname()); kept += [c, listener.accept()[0]]
    c.setblocking(False)
    try:
        while total < 128 << 20: total += c.send(block)
    except OSError: pass
print(total >> 20)
""", timeoutSeconds=20)
    assert r["reason"] == "oom" or int(r["stdout"]) < 48, "%s MiB of buffers fitted beside 32: %r" % (r["stdout"], r)
    box.alive()


@attacks(30, memoryLimit="128Mi")
def test_30_fds_of_many_processes(server, box):
    """16384 each in many processes: the kernel's memory for them is the sandbox's."""
    with open("/proc/sys/fs/file-nr") as f:
        before = int(f.read().split()[0])
    r = box.reply("python3", "-c", common.PRELUDE + HOARD + """
for i in range(100):
    if os.fork() == 0:
        try:
            while True: os.open("/dev/null", os.O_RDONLY)
        except OSError: pass
        time.sleep(30); os._exit(0)
time.sleep(30)
""", timeoutSeconds=3)
    assert r.status == 200 and r.json["reason"] in ("timeout", "oom", "signaled"), r
    with open("/proc/sys/fs/file-max") as f:
        limit = int(f.read())
    with open("/proc/sys/fs/file-nr") as f:
        now = int(f.read().split()[0])
    assert now < limit / 2, (before, now, limit)
    box.alive()


@attacks(33)
def test_33_ipc_hoards(server, box):
    """In an ipc namespace of its own: whatever is taken goes with the sandbox."""
    def host():
        return [common.read("/proc/sysvipc/" + n) for n in ("shm", "sem", "msg")]
    before = host()
    got = box.run(HOARD + """
n = 0
while n < 10000 and isinstance(call(29, 0, 4096, 0o1666), int): n += 1
out["shm"] = n
n = 0
while n < 3000 and isinstance(call(64, 0, 10, 0o1666), int): n += 1
out["sem"] = n
n = 0
while n < 40000 and isinstance(call(68, 0, 0o1666), int): n += 1
out["msg"] = n
hoard("mq", lambda: call(240, "q%d" % len(out) + str(time.monotonic_ns()), 0o102, 0o600, None), 5000)
""", timeoutSeconds=60)
    assert got["mq end"] != "bound", got
    assert host() == before
    assert server.sh("neighbour", "cat /proc/sysvipc/shm | wc -l")["stdout"] == "1\n"


@attacks(34, 36, 37, 41)
def test_34_41_kernel_objects_refused(server, box):
    got = box.run("""
out["34 add_key"] = call(248, "user", "k", b"secret", 6, -3)
out["34 request_key"] = call(249, "user", "k", None, -3)
out["34 keyctl"] = call(250, 0, -3, 1)
out["36 bpf map"] = call(321, 0, struct.pack("<IIII", 2, 4, 4, 1024), 16)
out["37 mount"] = call(165, "none", "/tmp", "tmpfs", 0, None)
out["41 syslog"] = call(103, 3, b"x" * 100, 100)
out["41 kmsg"] = attempt(os.open, "/dev/kmsg", os.O_WRONLY)
out["41 proc kmsg"] = attempt(os.open, "/proc/kmsg", os.O_RDONLY)
""")
    expect(got, {**{k: "EPERM" for k in got}, "41 kmsg": "ENOENT", "41 proc kmsg": {"EPERM", "EACCES", "ENOENT"}})


common.main(globals())
