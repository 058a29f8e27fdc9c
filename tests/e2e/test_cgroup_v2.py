#!/usr/bin/env python3
"""What stands in the cgroup trees while sandboxes live: the unified one for the processes
(agent, one group for each exec, cgroup.kill), and the limits wherever their controllers are,
v1 or v2."""
import os
import socket
import struct
import sys
import threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Skip, eventually

SERVER_FLAGS = ["--pool-size", "0", "--default-pids", "200"]
MI = 1024 * 1024


def mounts():
    """{controller or "unified": mount point}, as /proc/self/mountinfo has them."""
    found = {}
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ")
            kind, _, options = right.split(None, 2)
            point = left.split()[4]
            if kind == "cgroup2":
                found.setdefault("unified", point)
            elif kind == "cgroup":
                for word in options.split()[0].split(","):
                    found.setdefault(word, point)
    return found


def unified(server):
    root = mounts().get("unified")
    if os.geteuid() != 0 or not root:
        raise Skip("no unified hierarchy that we may write to")
    path = os.path.join(root, harness.cgroup_group(server))
    assert os.path.isdir(path), path + " was not made"
    return path


def read(*path):
    with open(os.path.join(*path)) as f:
        return f.read().strip()


def procs(*path):
    return [int(x) for x in read(*path, "cgroup.procs").split()]


def comm(pid):
    try:
        return read("/proc/%d" % pid, "comm")
    except OSError:
        return "?"


def slot_of(server, pod):
    """The directory of the slot whose agent listens on that sandbox's socket."""
    base = unified(server)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(server.state, "run", pod + ".sock"))
        agent = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    for name in os.listdir(base):
        if name[0] == "s" and name[1:].isdigit() and agent in procs(base, name, "agent"):
            return os.path.join(base, name)
    raise AssertionError("the agent of %s is in no slot" % pod)


def groups_with(slot, name):
    """eN of the slot that hold a process of that name."""
    found = []
    for e in sorted(os.listdir(os.path.join(slot, "cmd"))):
        if e[0] == "e" and e[1:].isdigit():
            try:
                if name in [comm(p) for p in procs(slot, "cmd", e)]:
                    found.append(e)
            except OSError:  # removed meanwhile
                pass
    return found


def in_thread(fn, *args, **kw):
    def run():
        try:
            t.result = fn(*args, **kw)
        except BaseException as e:
            t.result = e
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


# --- the unified tree ---------------------------------------------------------------------------
def test_agent_and_execs_have_groups(server):
    made = server.make("g")
    slot = slot_of(server, made["podName"])
    agent = procs(slot, "agent")
    assert [comm(p) for p in agent] == ["cloche-agent"], agent
    assert procs(slot) == [] and procs(slot, "cmd") == [], "processes are in the leaves only"
    first = in_thread(server.sh, "g", "sleep 1; echo a")
    second = in_thread(server.sh, "g", "sleep 1; sleep 0.1 & wait; echo b")
    eventually(lambda: len(groups_with(slot, "sleep")) == 2, "each exec has a group of its own")
    groups = groups_with(slot, "sleep")
    for e in groups:
        names = sorted(comm(p) for p in procs(slot, "cmd", e))
        assert names == ["sh", "sleep"], (e, names)
        for pid in procs(slot, "cmd", e):
            line = [x for x in read("/proc/%d" % pid, "cgroup").splitlines() if x.startswith("0::")][0]
            assert line.endswith("/cmd/" + e), line
    for t, text in ((first, "a\n"), (second, "b\n")):
        t.join(20)
        assert isinstance(t.result, dict) and t.result["stdout"] == text, t.result
    assert all(procs(slot, "cmd", e) == [] for e in os.listdir(slot + "/cmd") if e[0] == "e" and e[1:].isdigit())
    assert procs(slot, "agent") == agent
    assert server.delete("g").status == 204


def test_file_workers_stay_with_the_agent(server):
    """An upload that stands still: its worker is in the agent's group."""
    made = server.make("w")
    slot = slot_of(server, made["podName"])
    c = server.connect()
    c.putrequest("POST", "/v1/sandboxes/w/files/upload")
    c.putheader("Content-Length", "1000000")
    c.endheaders()
    c.send(b"\0" * 512)
    eventually(lambda: "cloche-files" in [comm(p) for p in procs(slot, "agent")], "the worker is in agent/")
    c.close()
    eventually(lambda: len(procs(slot, "agent")) == 1, "it ends with its connection")
    assert server.delete("w").status == 204


def test_inside_reaches_no_cgroups(server):
    """No cgroup file system inside, and the sandbox's own groups are not below any other."""
    server.make("i")
    r = server.sh("i", "grep -c cgroup /proc/mounts; ls -A /sys/fs/cgroup 2>/dev/null; "
                       "find / -xdev -name 'cgroup.procs' 2>/dev/null | head -1")
    assert r["stdout"] == "0\n", r
    unified_line = server.sh("i", "grep ^0:: /proc/self/cgroup")["stdout"].strip()
    assert unified_line.startswith("0::/") and "cloche" not in unified_line, unified_line
    assert server.delete("i").status == 204


def test_timeout_empties_the_group(server):
    made = server.make("t")
    slot = slot_of(server, made["podName"])
    server.sh("t", "setsid sleep 900 >/dev/null 2>&1 &")
    eventually(lambda: len(groups_with(slot, "sleep")) == 1, "the background process runs")
    kept = groups_with(slot, "sleep")
    r = in_thread(server.sh, "t", "trap '' TERM; setsid sleep 901 & (setsid sleep 901 &) ; "
                                  "sh -c 'kill -STOP $$' & sleep 901", timeoutSeconds=1)
    eventually(lambda: len(groups_with(slot, "sleep")) == 2, "it runs in a group of its own")
    mine = (set(groups_with(slot, "sleep")) - set(kept)).pop()
    eventually(lambda: len(procs(slot, "cmd", mine)) >= 5, "all of it")
    pids = procs(slot, "cmd", mine)
    r.join(20)
    assert isinstance(r.result, dict) and r.result["reason"] == "timeout", r.result
    assert not [p for p in pids if os.path.exists("/proc/%d" % p) and comm(p) == "sleep"], "cgroup.kill took them all"
    path = os.path.join(slot, "cmd", mine)
    assert not os.path.isdir(path) or "populated 0" in read(path, "cgroup.events")
    assert groups_with(slot, "sleep") == kept, "the earlier background process is not touched"
    # what comes after a kill is not killed at birth (since Linux 6.14 groups remember)
    for i in range(5):
        assert server.sh("t", "echo %d" % i)["stdout"] == "%d\n" % i
    assert server.delete("t").status == 204


def test_kill_from_outside(server):
    """What the keeper does for an agent that is held up: later commands must not feel it, also
    in groups where only a background process was killed."""
    slot = slot_of(server, server.make("k")["podName"])
    for _ in range(3):
        server.sh("k", "setsid sleep 900 >/dev/null 2>&1 &")
    t = in_thread(server.exec, "k", "sleep", "900")
    eventually(lambda: len(groups_with(slot, "sleep")) == 4, "four groups are lived in")
    for e in groups_with(slot, "sleep"):
        with open(os.path.join(slot, "cmd", e, "cgroup.kill"), "w") as f:
            f.write("1")
    t.join(20)
    assert isinstance(t.result, dict) and t.result["signal"] == 9, t.result
    for _ in range(6):
        r = server.exec("k", "true")
        assert r["reason"] == "exited", r
    assert server.delete("k").status == 204


def test_many_timeouts_leave_few_groups(server):
    made = server.make("m")
    slot = slot_of(server, made["podName"])
    for turn in range(2):
        ts = [in_thread(server.exec, "m", "sleep", "900", timeoutSeconds=1) for _ in range(12)]
        for t in ts:
            t.join(20)
            assert isinstance(t.result, dict) and t.result["reason"] == "timeout", t.result
    for i in range(3):
        server.exec("m", "true")
    left = [e for e in os.listdir(slot + "/cmd") if e[0] == "e" and e[1:].isdigit()]
    assert len(left) <= 13, left
    assert server.delete("m").status == 204


def test_delete_empties_the_slot(server):
    made = server.make("d")
    slot = slot_of(server, made["podName"])
    server.sh("d", "for i in 1 2 3; do setsid sleep 900 >/dev/null 2>&1 & done")
    assert server.delete("d").status == 204
    assert not os.path.isdir(slot) or "populated 0" in read(slot, "cgroup.events"), "at once, not later"


def test_limits_are_not_the_sandbox_s(server):
    """What is delegated to the agent's uid: making groups below cmd, not changing limits."""
    made = server.make("o")
    slot = slot_of(server, made["podName"])
    owner = os.stat(os.path.join(slot, "cmd")).st_uid
    assert owner >= 524288, owner
    assert os.stat(slot).st_uid == 0
    for file in ("cgroup.kill", "cgroup.freeze", "cgroup.max.descendants"):
        assert os.stat(os.path.join(slot, file)).st_uid == 0, file
    for name, point in mounts().items():
        if name in ("memory", "pids", "cpu"):
            base = os.path.join(point, harness.cgroup_group(server), os.path.basename(slot))
            for file in os.listdir(base):
                assert os.stat(os.path.join(base, file)).st_uid == 0, (base, file)
    other = server.make("o2")
    assert os.stat(slot_of(server, other["podName"]) + "/cmd").st_uid != owner
    for name in ("o", "o2"):
        assert server.delete(name).status == 204


# --- limits, wherever their controllers are ----------------------------------------------------
def limits_of(server, slot):
    """(memory, pids, cpu in thousandths) as the kernel has them."""
    m, name = mounts(), os.path.basename(slot)

    def v1(controller, file):
        return int(read(m[controller], harness.cgroup_group(server), name, file))
    have = read(slot, "cmd", "cgroup.controllers").split()
    memory = int(read(slot, "cmd", "memory.max")) if "memory" in have else v1("memory", "memory.limit_in_bytes")
    pids = int(read(slot, "cmd", "pids.max")) if "pids" in have else v1("pids", "pids.max")
    if "cpu" in have:
        quota, period = map(int, read(slot, "cmd", "cpu.max").split())
    else:
        quota, period = v1("cpu", "cpu.cfs_quota_us"), v1("cpu", "cpu.cfs_period_us")
    return memory, pids, quota * 1000 // period


def members(server, slot, controller):
    """Who is counted for a controller."""
    m = mounts()
    if controller in read(slot, "cmd", "cgroup.controllers").split():
        return [p for e in os.listdir(slot + "/cmd") if e[0] == "e" and e[1:].isdigit() for p in procs(slot, "cmd", e)]
    return procs(m[controller], harness.cgroup_group(server), os.path.basename(slot))


def test_limits_are_set(server):
    for i, (fields, want) in enumerate((
            ({}, (2048 * MI, 200, 1000)),
            ({"memoryLimit": "256Mi", "cpuLimit": "500m"}, (256 * MI, 200, 500)),
            ({"memoryLimit": "1G", "cpuLimit": "1.5"}, (1000000000 // 4096 * 4096, 200, 1500)))):
        name = "l%d" % i
        slot = slot_of(server, server.make(name, **fields)["podName"])
        got = limits_of(server, slot)
        assert got == want, (fields, got, want)
        t = in_thread(server.exec, name, "sleep", "900", timeoutSeconds=1)
        for controller in ("memory", "pids", "cpu"):
            eventually(lambda: "sleep" in [comm(p) for p in members(server, slot, controller)],
                       "commands are counted for " + controller)
        t.join(20)
        assert limits_of(server, slot) == want, "a timeout changes no limit"
    for i in range(3):
        assert server.delete("l%d" % i).status == 204


def test_reused_slot_gets_the_new_limits(server):
    """Slots are used again; going down, up, and down again must all take."""
    seen = {}
    for i, (memory, cpu) in enumerate(((512, 2000), (64, 250), (1024, 1000), (64, 500), (2048, 100))):
        made = server.make("r%d" % i, memoryLimit="%dMi" % memory, cpuLimit="%dm" % cpu)
        slot = slot_of(server, made["podName"])
        seen[slot] = seen.get(slot, 0) + 1
        assert limits_of(server, slot) == (memory * MI, 200, cpu), (i, limits_of(server, slot))
        # fill its memory a little: what is left must not hinder the next one's lower limit
        r = server.sh("r%d" % i, "head -c 40M /dev/zero > f; wc -c < f; sleep 900 >/dev/null 2>&1 &")
        assert r["stdout"].strip() == str(40 * MI), r
        assert server.delete("r%d" % i).status == 204
    assert max(seen.values()) > 1, "no slot was used again: nothing was tested"
    # PUT of a living one does not change its limits
    slot = slot_of(server, server.make("same", memoryLimit="128Mi")["podName"])
    server.make("same", memoryLimit="64Mi")
    assert limits_of(server, slot)[0] == 128 * MI
    assert server.delete("same").status == 204


def test_limits_work(server):
    server.make("work", memoryLimit="64Mi")
    r = server.python("work", "x = bytearray(200 * 1024 * 1024)")
    assert r["reason"] == "oom" and r["exitCode"] == 137, r
    r = server.python("work", "import os, time\nn = 0\ntry:\n  while n < 1000:\n    if os.fork() == 0: time.sleep(9)\n"
                              "    n += 1\nexcept BlockingIOError: print('stopped', n, flush=True)", timeoutSeconds=5)
    word, count = r["stdout"].split()
    assert word == "stopped" and 150 < int(count) <= 200, r
    assert server.delete("work").status == 204
    server.make("slow", cpuLimit="200m")
    r = server.python("slow", "import os, time\ns = time.monotonic()\nwhile time.monotonic() - s < 1: pass\n"
                              "print(sum(os.times()[:2]))")
    assert float(r["stdout"]) < 0.45 * harness.SLOW, r
    assert server.delete("slow").status == 204


def test_processes_without_a_pids_controller():
    """A host that has cgroups but none for pids: the limit is kept by other means."""
    point = mounts().get("pids")
    if os.geteuid() != 0 or not point:
        raise Skip("the pids controller cannot be hidden here")
    hide = ["unshare", "--mount", "sh", "-c", 'umount "$0" && exec "$@"', point]
    server = harness.Server("--pool-size", "0", "--default-pids", "60", wrapper=hide)
    try:
        assert "cgroup pids missing:" in server.read_log(), server.read_log()
        server.make("bomb")
        r = server.python("bomb", "import os, time\nn = 0\ntry:\n  while n < 200:\n    if os.fork() == 0: time.sleep(9)\n"
                                  "    n += 1\n  print('never', n, flush=True)\n"
                                  "except BlockingIOError: print('stopped', n, flush=True)", timeoutSeconds=3)
        word, count = r["stdout"].split()
        assert word == "stopped" and 30 < int(count) <= 60, r
        assert server.delete("bomb").status == 204
    finally:
        server.close()


def test_limits_after_adoption(server):
    """A restarted server's keeper knows slots only by number; limits and reuse still hold."""
    made = server.make("a", memoryLimit="96Mi", cpuLimit="300m")
    slot = slot_of(server, made["podName"])
    server.process.kill()
    server.process.wait()
    server.start()
    assert limits_of(server, slot) == (96 * MI, 200, 300)
    assert server.python("a", "x = bytearray(200 * 1024 * 1024)")["reason"] == "oom"
    assert server.delete("a").status == 204
    again = slot_of(server, server.make("b", memoryLimit="160Mi", cpuLimit="2")["podName"])
    assert limits_of(server, again) == (160 * MI, 200, 2000)
    assert server.delete("b").status == 204


harness.main(globals())
