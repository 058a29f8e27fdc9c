"""What every abuse test shares: a sandbox to attack from, canaries outside of it, and the
look at what is left when it is gone.

A test is a function decorated with @attacks(numbers..., **fields of the PUT) that takes
(server, box). It runs the real attack inside. The decorator then checks that

  1. the canaries are untouched: files and a process of the host, its sysctls, its mounts,
     the binary of the server, and another sandbox with a file and a process;
  2. the server answers and a fresh sandbox works;
  3. after DELETE nothing remains: processes, mounts, sockets, fds, exec cgroups.

The numbers are those of the project's list of abuses (A 1-20 processes, B 21-41 memory and
disk, C 42-75 privilege, D 76-84 other sandboxes, E 85-94 network)."""
import errno
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Skip, eventually

POOL = 4  # DEFAULT_POOL_SIZE of base/limits.h
MAX_IDLE = 32  # of keeper/slot.c: slots that are kept for the next sandbox

SYSCTLS = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/domainname",
           "kernel/panic", "kernel/sysrq", "kernel/randomize_va_space", "kernel/threads-max",
           "kernel/pid_max", "kernel/shmmax", "vm/overcommit_memory", "vm/drop_caches",
           "vm/swappiness", "fs/file-max", "fs/suid_dumpable", "fs/pipe-max-size",
           "user/max_user_namespaces", "net/ipv4/ip_forward"]
USR_FILES = ["/usr/bin/env", "/usr/bin/true", "/usr/bin/python3"]

numbers_run = {}  # attack number: names of the tests that run it


# --- the host, before and after -----------------------------------------------------------
def read(path):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError as e:
        return "error %d" % e.errno


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def children(pid):
    return [int(p) for p in read("/proc/%d/task/%d/children" % (pid, pid)).split() if p.isdigit()]


def keeper_of(server):
    for pid in children(server.process.pid):
        if read("/proc/%d/comm" % pid) == "cloche-keeper\n":
            return pid
    raise AssertionError("the server has no keeper")


def fds(pid):
    """The targets of pid's fds, sorted; numbers that differ from run to run are left out."""
    out = []
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            out.append(os.readlink("/proc/%d/fd/%s" % (pid, fd)).split(":[")[0])
        except OSError:
            pass
    return sorted(out)


def settled_fds(pid):
    """fds when the connections of the last requests are closed."""
    least = fds(pid)
    for _ in range(20):
        time.sleep(0.02)
        now = fds(pid)
        least = now if len(now) < len(least) else least
    return least


def more_than(now, was):
    """What now has beyond was, both lists with repetitions."""
    more = list(now)
    for f in was:
        if f in more:
            more.remove(f)
    return more


def mounts(pid="self"):
    return read("/proc/%s/mountinfo" % pid)


def host_processes_of(server):
    return {p: read("/proc/%d/comm" % p).strip() for p in harness.cgroup_pids(server)}


class Canary:
    """Made once for a server: what no attack may change."""

    def __init__(self, server):
        self.server = server
        self.dir = tempfile.mkdtemp(prefix="cloche-canary-")
        self.file = os.path.join(self.dir, "file")
        with open(self.file, "w") as f:
            f.write("host canary")
        os.chmod(self.dir, 0o777)  # so that only the sandbox's walls protect it
        os.chmod(self.file, 0o666)
        self.process = subprocess.Popen(["sleep", "3600"])
        server.make("neighbour", ttlSeconds=3600)
        r = server.sh("neighbour", "echo mine > /workspace/canary; (sleep 3600 >/dev/null 2>&1 &) ; true")
        assert r["exitCode"] == 0, r
        self.keeper = keeper_of(server)
        self.settle()
        self.server_fds = settled_fds(server.process.pid)
        self.keeper_fds = [f for f in fds(self.keeper) if f not in ("user", "net")]
        self.keeper_mounts = mounts(self.keeper)
        self.processes = sorted(host_processes_of(server).values())
        self.pods = len(server.list_pods())
        self.state = self.host()

    def settle(self, others=0):
        """Until the pool is full again and only the neighbour and that many others are there
        beside it: what is counted before and after would differ by what the pool still lacks."""
        # In this order: a socket is there as soon as its sandbox is being made.
        eventually(lambda: len(self.server.list_pods()) == POOL + 1 + others and
                   self.server.stats()["inTransit"] == 0,
                   "the neighbour, %d others and %d ready sandboxes are all there is" % (others, POOL))

    def host(self):
        s = {"sysctl " + k: read("/proc/sys/" + k) for k in SYSCTLS}
        s["mounts"] = mounts()
        s["file"] = read(self.file)
        s["dir"] = sorted(os.listdir(self.dir))
        s["process"] = self.process.poll()
        s["niceness"] = os.getpriority(os.PRIO_PROCESS, self.process.pid)
        s["server"] = digest(harness.BIN)
        for f in USR_FILES:
            s[f] = digest(f)
        s["cores"] = sorted(n for d in ("/", "/tmp", os.getcwd(), self.server.state)
                            for n in os.listdir(d) if n == "core" or n.startswith("core."))
        return s

    def check(self):
        now = self.host()
        for k, was in self.state.items():
            assert now[k] == was, "the host's %s changed: %r, was %r" % (k, now[k], was)
        # a jump of the clock would show between the two
        assert abs((time.time() - time.monotonic()) - CLOCK) < 2, "the host's clock was set"
        r = self.server.sh("neighbour", "cat /workspace/canary; ls /workspace; "
                                        "for p in /proc/[0-9]*; do cat $p/comm; done | grep -c sleep")
        assert r["stdout"] == "mine\ncanary\n1\n", "the neighbour was touched: %r" % r

    def check_nothing_left(self):
        server = self.server
        self.settle()

        def same_processes():
            return sorted(host_processes_of(server).values()) == self.processes
        try:
            eventually(same_processes, "", 5)
        except AssertionError:
            raise AssertionError("processes are left: %r, were %r" % (host_processes_of(server), self.processes))
        assert len(server.list_pods()) == self.pods, "sockets are left: %r" % server.list_pods()

        def plain():
            return [f for f in fds(self.keeper) if f not in ("user", "net")]
        for what, look, was in (("server", lambda: fds(server.process.pid), self.server_fds),
                                ("keeper", plain, self.keeper_fds)):
            try:
                eventually(lambda: not more_than(look(), was), "", 5)
            except AssertionError:
                raise AssertionError("the %s has more fds than before: %r" % (what, more_than(look(), was)))
        spare = len(fds(self.keeper)) - len(self.keeper_fds)
        assert spare <= 2 * MAX_IDLE, "the keeper holds %d namespaces" % spare
        assert mounts(self.keeper) == self.keeper_mounts, "mounts are left in the keeper's namespace"
        live = len(self.processes)
        slots = harness.cgroup_slots(server)
        assert len(slots) <= live + MAX_IDLE, "%d slots are left" % len(slots)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.unlink(self.file)
        os.rmdir(self.dir)


CLOCK = time.time() - time.monotonic()


def canary(server):
    """The server's canary; a server that was started anew gets a new one."""
    c = getattr(server, "canary", None)
    if c is None:
        c = server.canary = Canary(server)
        close = server.close

        def close_both():
            c.close()
            close()
        server.close = close_both
    return c


# --- a sandbox to attack from ----------------------------------------------------------------
class Box:
    def __init__(self, server, name, **fields):
        self.server, self.name = server, name
        self.pod = server.make(name, **fields)["podName"]

    def sh(self, script, **fields):
        return self.server.sh(self.name, script, **fields)

    def exec(self, *cmd, **fields):
        return self.server.exec(self.name, *cmd, **fields)

    def reply(self, *cmd, **fields):
        return self.server.exec_reply(self.name, *cmd, **fields)

    def run(self, source, **fields):
        """Runs Python inside, below PRELUDE; what it put into `out` comes back as a dict."""
        fields.setdefault("timeoutSeconds", 30)
        r = self.server.python(self.name, PRELUDE + source + "\nfinish()\n", **fields)
        marks = [l for l in r["stdout"].splitlines() if l.startswith("OUT ")]
        assert marks, "the attack gave no result: %r" % r
        return json.loads(marks[-1][4:])

    def alive(self):
        r = self.exec("echo", "still here")
        assert r["stdout"] == "still here\n", r

    def gone(self):
        assert self.server.delete(self.name).status == 204
        assert self.server.delete(self.name).status == 404
        path = os.path.join(self.server.state, "run", self.pod + ".sock")
        assert not os.path.exists(path), path


# Attacks by number: names as in asm/unistd_64.h. call() gives a result or "EPERM", "ENOSYS"…
PRELUDE = r'''
import ctypes, errno, json, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
out = {}
def name(e):
    return errno.errorcode.get(e, "E%d" % e)
def call(nr, *args):
    a = []
    for x in args:
        if isinstance(x, str): x = x.encode()
        if isinstance(x, bytes): x = ctypes.create_string_buffer(x)
        if isinstance(x, int): x = ctypes.c_ulong(x & (2 ** 64 - 1))
        a.append(x)
    ctypes.set_errno(0)
    libc.syscall.restype = ctypes.c_long
    r = libc.syscall(ctypes.c_long(nr), *a)
    return name(ctypes.get_errno()) if r == -1 else r
def attempt(fn, *a, **k):
    """What fn returns, or the name of its errno."""
    try:
        r = fn(*a, **k)
        return r if isinstance(r, (int, str, list, dict, type(None), bool, float)) else repr(r)
    except OSError as e:
        return name(e.errno) if e.errno else repr(e)
def readfile(p, n=4096):
    with open(p, "rb", buffering=0) as f:
        return f.read(n).decode("latin-1")
def writefile(p, text):
    with open(p, "wb", buffering=0) as f:
        return f.write(text.encode() if isinstance(text, str) else text)
def in_child(fn):
    """fn in a forked child, for what would end or spoil this process: its exit status."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try: code = fn() or 0
        finally: os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def finish():
    sys.stdout.write("\nOUT " + json.dumps(out) + "\n"); sys.stdout.flush()
'''

_count = [0]


def attacks(*numbers, **fields):
    def wrap(fn):
        for n in numbers:
            numbers_run.setdefault(n, []).append(fn.__name__)

        @functools.wraps(fn)
        def test(server):
            c = canary(server)
            _count[0] += 1
            box = Box(server, "attacker-%d" % _count[0], **fields)
            try:
                fn(server, box)
            except BaseException:
                server.delete(box.name)  # one failure must not make all others fail
                raise
            c.check()
            server.assert_healthy()
            if server.request("POST", "/v1/sandboxes/%s/touch" % box.name).status != 404:
                box.gone()
            c.check_nothing_left()
        test.__signature__ = __import__("inspect").Signature(
            [__import__("inspect").Parameter("server", __import__("inspect").Parameter.POSITIONAL_OR_KEYWORD)])
        test.__dict__.pop("__wrapped__", None)
        return test
    return wrap


def expect(got, want):
    """Every row of want: a value, a set of allowed values, or a predicate."""
    wrong = []
    for k, w in want.items():
        if k not in got:
            wrong.append("%s: did not run" % k)
            continue
        g = got[k]
        ok = w(g) if callable(w) else g in w if isinstance(w, (set, tuple)) else g == w
        if not ok:
            wrong.append("%s: %r, expected %s" % (k, g, "something else" if callable(w) else w))
    assert not wrong, "attacks that went wrong:\n  " + "\n  ".join(wrong)


def main(names):
    print("attacks: %s" % ", ".join(str(n) for n in sorted(numbers_run)))
    harness.main(names)
