#!/usr/bin/env python3
"""The server as a real unprivileged user: no cgroups, one host uid for everything. What is
promised then must hold; what is weaker must be said."""
import atexit
import contextlib
import io
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, Skip, eventually

UID = 20000 + os.getpid() % 30000  # nobody else's, so that its processes can be counted
WRAPPER = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--"]
PIDS = 48
shared = {}


def owned_dir():
    path = tempfile.mkdtemp(prefix="cloche-user-")
    os.chown(path, UID, UID)
    return path


def reachable_binary():
    """As that user; a copy when a directory above is closed to others."""
    if subprocess.run(WRAPPER + [harness.BIN, "version"], capture_output=True).returncode == 0:
        return
    directory = tempfile.mkdtemp(prefix="cloche-bin-")
    atexit.register(shutil.rmtree, directory, True)
    os.chmod(directory, 0o755)
    shutil.copy(harness.BIN, directory)
    harness.BIN = os.path.join(directory, os.path.basename(harness.BIN))


def need_user():
    if "why" not in shared:
        shared["why"] = None
        if os.geteuid() != 0:
            shared["why"] = "needs root to become another user"
        elif subprocess.run(WRAPPER + ["unshare", "-Ur", "true"], capture_output=True).returncode != 0:
            shared["why"] = "unprivileged user namespaces are off on this host"
        else:
            reachable_binary()
    if shared["why"]:
        raise Skip(shared["why"])


def start(*flags):
    need_user()
    home = owned_dir()
    server = Server(*flags, wrapper=WRAPPER, state=owned_dir(), env={"HOME": home}, start=False)
    server.home = home
    try:
        return server.start()
    except BaseException:
        end(server)
        raise


def end(server):
    server.close()
    shutil.rmtree(server.home, ignore_errors=True)


def box():
    """The server that most tests share."""
    if "server" not in shared:
        shared["server"] = start("--pool-size", "1", "--default-pids", str(PIDS))
    return shared["server"]


def processes():
    """{pid: (comm, cmdline)} of everything that lives under our uid on the host."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or os.stat("/proc/" + name).st_uid not in (UID, 0):
                continue
            with open("/proc/%s/status" % name) as f:
                status = dict(x.rstrip("\n").split(":\t", 1) for x in f if ":\t" in x)
            if status["Uid"].split()[0] != str(UID) or status["State"][0] in "ZX":
                continue
            with open("/proc/%s/cmdline" % name, "rb") as f:
                found[int(name)] = (status["Name"], f.read().decode().replace("\0", " ").strip())
        except (OSError, KeyError):
            pass
    return found


def lives(*cmdline):
    return [p for p, (_, c) in processes().items() if c == " ".join(cmdline)]


def agents():
    return sorted(p for p, (n, _) in processes().items() if n == "cloche-agent")


@atexit.register
def last_resort():
    if "server" in shared:
        end(shared["server"])
    if os.geteuid() == 0:
        for pid in processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def in_thread(fn, *args, **kw):
    def run():
        try:
            t.result = fn(*args, **kw)
        except BaseException as e:
            t.result = e
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


# --- the ordinary things ----------------------------------------------------------------------
def test_starts_and_says_what_is_weaker():
    server = box()
    log = server.read_log()
    first = log.splitlines()[0]
    assert "is ready" in first and "without root" in first, first
    assert "weaker" in log and "uid" in log and "memory and cpu" in log, log
    with open("/proc/%d/status" % server.process.pid) as f:
        assert "\nUid:\t%d\t%d\t%d\t%d\n" % (UID, UID, UID, UID) in f.read()


def test_default_state_dir():
    """Without a flag it is in the user's home."""
    need_user()
    home = owned_dir()
    r = subprocess.run(WRAPPER + [harness.BIN, "serve", "--print-config"], env={"HOME": home, "PATH": os.environ["PATH"]},
                       capture_output=True, text=True)
    assert "state_dir = %s/.local/state/cloche " % home in r.stdout, r
    shutil.rmtree(home)


def test_check():
    need_user()
    r = subprocess.run(WRAPPER + [harness.BIN, "check", "--state-dir", "/tmp/cloche-%d" % UID],
                       env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert r.returncode == 0, r
    assert "weak" in r.stdout and "verdict" in r.stdout, r.stdout


def test_round():
    server = box()
    made = server.make("round")
    r = server.sh("round", "id -u; id -g; pwd; hostname; echo x > f; stat -c %u f /workspace; echo err >&2; exit 3")
    assert r["stdout"].split() == ["1000", "1000", "/workspace", made["podName"], "1000", "1000"], r
    assert (r["stderr"], r["exitCode"], r["reason"]) == ("err\n", 3, "exited"), r
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        info = tarfile.TarInfo("dir/up")
        info.size = 5
        t.addfile(info, io.BytesIO(b"hello"))
    r = server.request("POST", "/v1/sandboxes/round/files/upload", out.getvalue())
    assert r.status == 200, r
    assert server.sh("round", "cat dir/up; stat -c %u dir/up")["stdout"] == "hello1000\n"
    r = server.request("GET", "/v1/sandboxes/round/files/download")
    assert r.status == 200, r
    with tarfile.open(fileobj=io.BytesIO(r.body)) as t:
        names = {n.lstrip("./"): n for n in t.getnames()}
        assert t.extractfile(names["dir/up"]).read() == b"hello"
    assert server.request("POST", "/v1/sandboxes/round/touch").status == 200
    assert server.python("round", "print(40+2)")["stdout"] == "42\n"
    assert server.delete("round").status == 204
    assert server.exec_reply("round", "true").status == 404
    server.assert_healthy()


# --- deadlines without cgroups ------------------------------------------------------------------
ESCAPES = """
setsid sleep 7001 &
(setsid sh -c 'sleep 7002 & exec sleep 7003' &) &
(trap '' TERM INT HUP QUIT; sleep 7004) &
python3 -c '
import os, signal, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
os.execvp("sleep", ["sleep", "7005"])'
sh -c 'kill -STOP $$; sleep 7006' &
python3 -c '
import ctypes, os
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "7007"])
os.wait()' &
sleep 7008
"""


def test_timeout_ends_the_tree_and_nothing_else():
    server = box()
    server.make("tree")
    server.sh("tree", "setsid sleep 6001 >/dev/null 2>&1 & sleep 6002 >/dev/null 2>&1 &")
    other = in_thread(server.sh, "tree", "sleep 3; echo survived")
    eventually(lambda: lives("sleep", "3"), "the other command runs")
    start = time.monotonic()
    r = server.sh("tree", ESCAPES, timeoutSeconds=1)
    took = time.monotonic() - start
    assert r["reason"] == "timeout" and r["exitCode"] == 124, r
    left = {c for _, c in processes().values() if c.startswith("sleep 70")}
    assert not left, "outlived its deadline: %s" % left
    assert took < 2 * harness.SLOW, "%.1f s" % took
    inside = server.sh("tree", "grep -l 'stopped' /proc/[0-9]*/status 2>/dev/null; :")["stdout"]
    assert inside == "", "a stopped process is left: " + inside
    assert lives("sleep", "6001") and lives("sleep", "6002"), "earlier background processes live on"
    other.join(20)
    assert isinstance(other.result, dict) and other.result["stdout"] == "survived\n", other.result
    assert server.delete("tree").status == 204
    assert not lives("sleep", "6001") and not lives("sleep", "6002")


FORKER = """
import os, sys
for i in range(1 if len(sys.argv) < 2 else int(sys.argv[1])):
    if os.fork() == 0:
        while True:           # a new pid each time; its parent is gone at once
            if os.fork(): os._exit(0)
            os.setsid()
os.execvp("sleep", ["sleep", "7100"])
"""


def test_timeout_catches_a_running_fork_chain():
    server = box()
    server.make("chain")
    for chains in (1, 3):
        r = server.exec("chain", "python3", "-c", FORKER, str(chains), timeoutSeconds=1)
        assert r["reason"] == "timeout", r
        eventually(lambda: not [c for _, c in processes().values() if "os.fork() == 0" in c or c == "sleep 7100"],
                   "the chain of forks ends with its command (%d)" % chains, 2)
    assert server.sh("chain", "echo ok")["stdout"] == "ok\n"
    assert server.delete("chain").status == 204


KILL_SUPERVISOR = """
import os, signal, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    for s in range(1, 65):
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
    os.execvp("sleep", ["sleep", sys.argv[2] + "0"])
for p in os.listdir("/proc"):
    try:
        if open("/proc/%s/comm" % p).read().strip() == "cloche-exec":
            os.kill(int(p), getattr(signal, sys.argv[1]))
    except (OSError, ValueError): pass
os.execvp("sleep", ["sleep", sys.argv[2] + "1"])
"""


def end_of_supervisor(name, sig, number):
    server = box()
    server.make(name)
    start = time.monotonic()
    r = server.exec(name, "python3", "-c", KILL_SUPERVISOR, sig, number, timeoutSeconds=1)
    assert time.monotonic() - start < 8 * harness.SLOW
    eventually(lambda: not lives("sleep", number + "0") and not lives("sleep", number + "1"),
               "nothing outlives the deadline (the exec said %s)" % r, 3)
    assert server.sh(name, "echo ok")["stdout"] == "ok\n", "the sandbox is still good"
    count = server.sh(name, "cat /proc/[0-9]*/comm | grep -c cloche-exec")["stdout"].strip()
    assert count == "1", "supervisors are left: " + count
    assert server.delete(name).status == 204


def test_killed_supervisor():
    end_of_supervisor("sup-kill", "SIGKILL", "720")


def test_stopped_supervisor():
    end_of_supervisor("sup-stop", "SIGSTOP", "721")


def test_client_leaves():
    """Nobody waits for the answer: the command ends."""
    server = box()
    server.make("left")
    c = server.connect()
    c.request("POST", "/v1/sandboxes/left/exec", b'{"cmd":["sh","-c","setsid sleep 7300 & sleep 7301"]}')
    eventually(lambda: lives("sleep", "7300") and lives("sleep", "7301"), "it runs")
    c.sock.close()
    c.close()
    eventually(lambda: not lives("sleep", "7300") and not lives("sleep", "7301"), "it ends", 3)
    assert server.delete("left").status == 204


# --- isolation ----------------------------------------------------------------------------------
def test_sees_only_its_own_processes():
    server = box()
    server.make("ps")
    server.make("ps2")
    server.sh("ps2", "sleep 6100 >/dev/null 2>&1 &")
    seen = server.sh("ps", "for p in /proc/[0-9]*; do cat $p/comm; done")["stdout"].split()
    assert set(seen) <= {"cloche-agent", "cloche-exec", "sh", "cat"}, seen
    assert server.sh("ps", "cat /proc/1/comm")["stdout"] == "cloche-agent\n"
    assert "6100" not in server.sh("ps", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["stdout"]
    for name in ("ps", "ps2"):
        assert server.delete(name).status == 204


def test_no_capabilities():
    server = box()
    server.make("caps")
    got = dict(x.split(":\t") for x in server.sh("caps", "cat /proc/self/status")["stdout"].splitlines() if ":\t" in x)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(got[name], 16) == 0, (name, got[name])
    assert got["NoNewPrivs"] == "1" and got["Seccomp"] == "2", got
    for attack in ("unshare -Ur true", "mount -t tmpfs x /mnt", "mount --bind /usr /mnt", "hostname evil",
                   "chown 0 /workspace", "nsenter -t 1 -m true", "mknod /tmp/n c 1 3", "ip link set lo down"):
        r = server.sh("caps", attack)
        assert r["exitCode"] != 0, attack
    assert server.delete("caps").status == 204


PID1 = """
import ctypes, os
for s in list(range(1, 65)):
    try: os.kill(1, s)
    except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):   # ATTACH, SEIZE
    print(request, libc.ptrace(request, 1, 0, 0))
for f in ("mem", "environ", "maps", "stack", "auxv", "syscall"):
    try:
        open("/proc/1/" + f, "rb").read(1)
        print("read", f)
    except OSError: pass
for f in ("root", "cwd", "exe", "ns/user", "ns/mnt"):
    try: print("link", f, os.readlink("/proc/1/" + f))
    except OSError: pass
try: print("fds", os.listdir("/proc/1/fd"))
except OSError: pass
import resource
for n in ("NOFILE", "CPU", "AS", "NPROC"):
    try: print("limit", n, resource.prlimit(1, getattr(resource, "RLIMIT_" + n), (1, 1)))
    except OSError: pass
"""


def test_agent_is_out_of_reach():
    """Commands share the agent's uid here: it must still be neither killed nor looked into."""
    server = box()
    made = server.make("pid1")
    r = server.python("pid1", PID1)
    assert r["stdout"].split("\n") == ["16 -1", "%d -1" % 0x4206, ""], r
    assert server.sh("pid1", "hostname")["stdout"].strip() == made["podName"]
    r = server.sh("pid1", "setsid sleep 6161 & sleep 6161", timeoutSeconds=1)
    assert r["reason"] == "timeout" and not lives("sleep", "6161"), "the agent cannot enforce deadlines any more: %r" % r
    server.sh("pid1", "kill -9 -1; kill -9 -- -1")  # the sandbox's own processes, at most
    assert server.sh("pid1", "echo alive")["stdout"] == "alive\n"
    assert server.make("pid1")["podName"] == made["podName"]
    assert server.delete("pid1").status == 204


def test_host_is_out_of_reach():
    server = box()
    server.make("host")
    victim = subprocess.Popen(WRAPPER + ["sleep", "6200"])  # the same uid, outside
    try:
        eventually(lambda: lives("sleep", "6200"), "the victim runs")
        server.python("host", "import os\nfor p in range(2, 70000):\n  try: os.kill(p, 9) if p != os.getpid() else 0\n"
                              "  except OSError: pass")
        assert victim.poll() is None, "a process of the same uid outside was killed"
        r = server.sh("host", "ls %s %s 2>&1; cat %s/store.db" % (server.state, server.home, server.state))
        assert r["exitCode"] != 0 and "SQLite" not in r["stdout"], r
        r = server.sh("host", "touch /usr/x /etc/x /bin/x 2>&1; ls -d /usr/x /etc/x 2>/dev/null")
        assert not os.path.exists("/usr/x") and not os.path.exists("/etc/x")
    finally:
        victim.kill()
        victim.wait()
    assert server.delete("host").status == 204


# --- limits --------------------------------------------------------------------------------------
def test_shown_limits_are_not_the_commands_to_write():
    server = box()
    server.make("shown", memoryLimit="64Mi")
    for i in range(2):
        r = server.sh("shown", "head -1 /proc/meminfo; for f in meminfo cpuinfo; do echo x > /proc/$f; chmod 0 /proc/$f; done; true")
        assert r["stdout"].split() == ["MemTotal:", "65536", "kB"] and r["stderr"].count("ead-only") == 4, r
    assert server.delete("shown").status == 204


def test_storage_limit():
    server = box()
    server.make("disk", ephemeralStorageLimit="16Mi")
    r = server.sh("disk", "head -c 12M /dev/zero > a && echo fits; head -c 12M /dev/zero > b")
    assert r["stdout"] == "fits\n" and "No space left" in r["stderr"], r
    r = server.sh("disk", "rm a b; echo again > c; cat c; head -c 64M /dev/zero > /tmp/x; head -c 64M /dev/zero > /dev/shm/x")
    assert r["stdout"] == "again\n" and r["stderr"].count("No space left") == 2, r
    assert server.delete("disk").status == 204


def test_pids_limit():
    server = box()
    server.make("forks")
    server.make("calm")
    r = server.python("forks", """
import os, signal, time
kids = []
try:
    while len(kids) < 400:
        pid = os.fork()
        if pid == 0:
            time.sleep(100)
            os._exit(0)
        kids.append(pid)
except BlockingIOError:
    print("stopped")
print(len(kids))
for k in kids: os.kill(k, 9)
""")
    words = r["stdout"].split()
    assert words and words[0] == "stopped" and PIDS // 2 <= int(words[1]) <= PIDS, r
    # held at the limit, its neighbour still works
    t = in_thread(server.python, "forks", "import os, time\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(100)\n"
                                          "except BlockingIOError: time.sleep(100)", timeoutSeconds=2)
    eventually(lambda: len(processes()) > PIDS // 2, "it is full")
    assert server.sh("calm", "(echo a; echo b) | sort | wc -l")["stdout"] == "2\n"
    t.join(20)
    assert isinstance(t.result, dict) and t.result["reason"] == "timeout", t.result
    assert server.sh("forks", "echo free")["stdout"] == "free\n"
    for name in ("forks", "calm"):
        assert server.delete(name).status == 204


# --- restarts ---------------------------------------------------------------------------------------
def test_restart_adopts():
    server = start("--pool-size", "2")
    try:
        made = {n: server.make(n) for n in ("r0", "r1")}
        server.sh("r0", "echo kept > f; sleep 6300 >/dev/null 2>&1 &")
        for how in (lambda: server.stop(), lambda: (server.process.kill(), server.process.wait())):
            how()
            assert lives("sleep", "6300"), "it goes on without a server"
            server.start()
            assert server.sh("r0", "cat f")["stdout"] == "kept\n"
            for name, was in made.items():
                assert server.make(name)["podName"] == was["podName"]
                assert server.sh(name, "hostname")["stdout"].strip() == was["podName"]
        assert server.read_log().count("adopted=2 lost=0") == 2, server.read_log()
        assert server.delete("r0").status == 204
        assert not lives("sleep", "6300")
        assert server.exec("r1", "true")["exitCode"] == 0
    finally:
        end(server)


def test_crashes_leave_no_orphans():
    """No cgroup helps to find what belongs to nobody: it must not come to be."""
    if "server" in shared:
        end(shared.pop("server"))
    server = start("--pool-size", "2")
    try:
        server.flags[1] = "0"
        server.process.kill()
        server.process.wait()
        server.start()
        eventually(lambda: not agents(), "the pool of the crashed server is swept")
        begin = time.monotonic()
        server.make("kept")
        whole = time.monotonic() - begin
        for i in range(24):
            t = in_thread(server.put if i % 3 else server.delete, "c%d" % (i - (i % 3 == 0)))
            select.select([], [], [], whole * i / 16)  # a point in time, not a wait
            keeper = [p for p, (n, _) in processes().items() if n == "cloche-keeper"]
            if i % 4 == 3:
                server.process.send_signal(signal.SIGSTOP)
                for pid in keeper:
                    with contextlib.suppress(ProcessLookupError):  # an old one, leaving
                        os.kill(pid, signal.SIGKILL)
            server.process.kill()
            server.process.wait()
            t.join(10)
            server.start()
            assert server.exec("kept", "true")["exitCode"] == 0
            count = server.stats()["sandboxes"]
            eventually(lambda: len(agents()) == server.stats()["sandboxes"] and server.stats()["inTransit"] == 0,
                       "as many agents as sandboxes after crash %d (%d, %s)" % (i, count, agents()), 3)
    finally:
        end(server)
    eventually(lambda: not processes(), "nothing is left: %s" % processes())


def test_stopped_orphan_is_swept():
    """A pooled sandbox that does not even say its slot is ended, too."""
    if "server" in shared:
        end(shared.pop("server"))
    server = start("--pool-size", "1")
    try:
        eventually(agents, "the pool is full")
        for pid in agents():
            os.kill(pid, signal.SIGSTOP)
        server.process.kill()
        server.process.wait()
        server.flags[1] = "0"
        server.start()
        eventually(lambda: not agents(), "nobody's sandbox is gone", 5)
    finally:
        end(server)


def test_delete_leaves_nothing():
    server = start("--pool-size", "0")
    try:
        before = set(processes())
        for i in range(4):
            server.make("n%d" % i)
            server.sh("n%d" % i, "for i in 1 2 3; do setsid sleep 6400 >/dev/null 2>&1 & done; (trap '' TERM; sleep 6401) >/dev/null 2>&1 &")
        eventually(lambda: len(lives("sleep", "6400")) == 12, "all of them have come to their exec")
        for i in range(4):
            assert server.delete("n%d" % i).status == 204
            assert len(lives("sleep", "6400")) == 3 * (3 - i), "DELETE answers when all is gone"
        eventually(lambda: set(processes()) == before, "only server and keeper are left")
        assert server.list_pods() == []
        server.make("last")
        assert server.stop() == 0
        server.flags += ["--on-exit", "delete"]
        server.start()
        assert server.stop() == 0
        eventually(lambda: not processes(), "nothing is left")
    finally:
        end(server)


harness.main(globals())
