#!/usr/bin/env python3
"""A: processes and processors (1-20)."""
import os
import signal
import threading
import time
import common
import harness
from common import attacks, eventually, expect

SERVER_FLAGS = ["--log-level", "warn"]


def host_pids(server, word):
    """pids, as the host counts, of processes in the server's slots with word in their argv."""
    return [p for p in harness.cgroup_pids(server) if word in common.read("/proc/%d/cmdline" % p)]


@attacks(1)
def test_01_fork_bomb(server, box):
    r = box.exec("bash", "-c", ":(){ :|:& };: ; sleep 60", timeoutSeconds=1)
    assert r["reason"] == "timeout" and r["exitCode"] == 124, r
    box.alive()


@attacks(1)
def test_01_fork_bomb_python(server, box):
    got = box.run("""
n = 0
pids = []
try:
    while n < 5000:
        p = os.fork()
        if p == 0:
            signal.pause(); os._exit(0)
        pids.append(p); n += 1
    out["error"] = None
except OSError as e:
    out["error"] = name(e.errno)
out["n"] = n
for p in pids: os.kill(p, 9)
""")
    assert got["error"] == "EAGAIN" and got["n"] < 513, got
    box.alive()


@attacks(1)
def test_01_fork_bomb_outlives_its_exec_until_delete(server, box):
    """The bomb stays as background; the sandbox may be full, but it can be deleted."""
    box.reply("bash", "-c", "bomb() { while :; do bomb & done; }; bomb & sleep 0.5", timeoutSeconds=20)
    r = box.reply("echo", "x", timeoutSeconds=5)
    assert r.status in (200, 409, 429, 500, 503), r
    start = time.monotonic()
    box.gone()
    assert time.monotonic() - start < 5 * harness.SLOW


@attacks(2)
def test_02_thread_bomb(server, box):
    got = box.run("""
import threading
threading.stack_size(65536)
n = 0
try:
    while n < 5000:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start(); n += 1
except RuntimeError as e:
    out["error"] = str(e)
out["n"] = n
sys.stdout.write("\\nOUT " + json.dumps(out) + "\\n"); sys.stdout.flush(); os._exit(0)
""")
    assert "start new thread" in got["error"] and got["n"] < 513, got
    box.alive()


@attacks(3)
def test_03_vfork_and_clone3_storm(server, box):
    source = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <signal.h>
#include <errno.h>
#include <stdio.h>
#include <stdint.h>
int main(void) {
        int made = 0, refused = 0;
        for (int i = 0; i < 3000; i++) {
                struct { uint64_t a[11]; } args = { { 0, 0, 0, 0, SIGCHLD } };
                long p = syscall(SYS_clone3, &args, sizeof args);
                if (p == 0) _exit(0);
                if (p > 0) made++; else refused++;
        }
        while (waitpid(-1, 0, WNOHANG) > 0);
        for (int i = 0; i < 3000; i++) {
                pid_t p = vfork();
                if (p == 0) _exit(0);
                if (p > 0) { made++; waitpid(p, 0, 0); }
        }
        printf("%d %d\n", made, refused);
        return 0;
}
"""
    r = box.sh("cat > s.c <<'X'\n%s\nX\ngcc -O1 s.c -o s && ./s" % source, timeoutSeconds=30)
    if "gcc: not found" in r["stderr"]:
        raise common.Skip("no gcc in /usr")
    made, refused = map(int, r["stdout"].split())
    assert made > 3000 and refused > 0, r
    box.alive()


@attacks(4)
def test_04_zombie_flood(server, box):
    """Children that are never reaped fill the limit; they go with their parent."""
    got = box.run("""
n = 0
try:
    while n < 5000:
        if os.fork() == 0: os._exit(0)
        n += 1
except OSError as e:
    out["error"] = name(e.errno)
out["n"] = n
""")
    assert got["error"] == "EAGAIN" and got["n"] < 513, got
    r = box.sh("cat /proc/[0-9]*/stat | grep -c ') Z '")
    assert r["stdout"] == "0\n", "zombies are left inside: %r" % r
    # orphans become pid 1's, which must reap them
    box.sh("i=0; while [ $i -lt 300 ]; do (true &) ; i=$((i+1)); done", timeoutSeconds=20)
    eventually(lambda: box.sh("cat /proc/[0-9]*/stat | grep -c ') Z '")["stdout"] == "0\n", "pid 1 reaps orphans")


@attacks(5, 6, 7)
def test_05_07_background_lives_on_until_the_sandbox_goes(server, box):
    """Double fork, setsid, nohup: a finished exec leaves it alone, delete ends it."""
    box.sh("(setsid sleep 55501 >/dev/null 2>&1 &) ; nohup sleep 55502 >/dev/null 2>&1 & exit 0")
    box.run("""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        os.execvp("sleep", ["sleep", "55503"])
    os._exit(0)
os.wait()
""")
    for n in ("55501", "55502", "55503"):
        assert len(host_pids(server, n)) == 1, n
    box.gone()
    for n in ("55501", "55502", "55503"):
        assert not host_pids(server, n), n


@attacks(6, 7, 8)
def test_06_08_timeout_leaves_nothing_running(server, box):
    """setsid, setpgid, double fork, SIGTERM and SIGHUP ignored, stopped: all end."""
    r = box.exec("python3", "-c", common.PRELUDE + """
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
def child(n):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setpgid(0, 0)
            if n % 2: os.kill(os.getpid(), signal.SIGSTOP)
            os.execvp("sleep", ["sleep", "5560%d" % n])
        os._exit(0)
for n in range(6): child(n)
time.sleep(600)
""", timeoutSeconds=1)
    assert r["reason"] == "timeout" and r["exitCode"] == 124, r
    assert not host_pids(server, "5560"), host_pids(server, "5560")
    box.alive()


@attacks(9)
def test_09_stop(server, box):
    """SIGSTOP of the own group, and of pid 1, which only looks like an ordinary process."""
    r = box.sh("kill -STOP 1; kill -KILL 1; kill -TERM 1; kill -STOP 0; echo resumed", timeoutSeconds=1)
    assert r["reason"] == "timeout", r
    assert r["stderr"].count("ermitted") == 3, r
    box.alive()


@attacks(10)
def test_10_kill_everything(server, box):
    """kill -9 -1 takes the sandbox's own processes only."""
    box.sh("(sleep 55700 >/dev/null 2>&1 &)")
    r = box.exec("python3", "-c", "import os; os.kill(-1, 9); print('alone')")
    assert r["stdout"] == "alone\n" and r["exitCode"] == 0, r
    assert not host_pids(server, "55700")
    r = box.exec("sh", "-c", "kill -9 $$")
    assert r["reason"] == "signaled" and r["signal"] == 9 and r["exitCode"] == 137, r
    box.alive()


STORM = r"""
#include <signal.h>
#include <stdio.h>
#include <time.h>
int main(void) {
        time_t end = time(0) + %d;
        unsigned long hits = 0;
        while (time(0) < end)
                hits += kill(-1, %d) == 0;
        printf("%%lu\n", hits);
        return 0;
}
"""


def storm(server, box, sig, seconds):
    """Commands that are started while a process inside signals all it can; what came back."""
    r = box.sh("cat > s.c <<'X'\n%s\nX\ngcc -O1 s.c -o s" % (STORM % (seconds, sig)), timeoutSeconds=30)
    if r["exitCode"] != 0:
        raise common.Skip("no gcc in /usr")
    replies, said = [], []
    attacker = threading.Thread(daemon=True, target=lambda: said.append(box.reply("./s", timeoutSeconds=seconds + 10)))
    attacker.start()
    while attacker.is_alive():
        # In a thread: heartbeats would keep a socket's time-out from ever coming.
        one = threading.Thread(daemon=True, target=lambda: replies.append(box.reply("true", timeoutSeconds=1)))
        one.start()
        one.join(6 * harness.SLOW)
        assert not one.is_alive(), "after %d commands one with a time-out of 1 s hangs" % len(replies)
    assert said and int(said[0].json["stdout"]) > 0, "the storm hit nothing: %r" % said
    return replies


@attacks(9, 10, cpuLimit="2")
def test_10_kill_storm_during_starts(server, box):
    """SIGKILL may hit a command between fork and exec: the answer must make sense."""
    replies = storm(server, box, 9, 2)
    odd = [r for r in replies if r.status != 200 or
           (r.json["reason"], r.json["exitCode"]) not in (("signaled", 137), ("exited", 0))]
    assert not odd, "%d of %d answers are odd: %r" % (len(odd), len(replies), odd[:3])
    hit = sum(r.json["reason"] == "signaled" for r in replies)
    assert hit, "no command was hit"
    box.alive()


@attacks(9, cpuLimit="2")
def test_09_stop_storm_during_starts(server, box):
    """SIGSTOP between vfork and exec must not stop the agent, which waits for that exec."""
    replies = storm(server, box, int(signal.SIGSTOP), 3)
    assert any(r.status == 200 and r.json["reason"] == "timeout" for r in replies), "no command was hit"
    bad = [r for r in replies if r.status != 200]
    assert not bad, "%d of %d: %r" % (len(bad), len(replies), bad[:3])
    box.alive()


@attacks(11)
def test_11_pid_1_dies(server, box):
    """The agent's end is the sandbox's end: nothing survives, the server says so."""
    lost = server.stats()["lost"]
    before = set(harness.cgroup_pids(server))
    t = threading.Thread(target=box.reply, args=("sleep", "55800"), kwargs={"timeoutSeconds": 20})
    t.start()
    eventually(lambda: host_pids(server, "55800"), "the command runs")
    leader = host_pids(server, "55800")[0]
    agent = int(common.read("/proc/%d/stat" % leader).rsplit(")", 1)[1].split()[1])
    assert agent in before and common.read("/proc/%d/comm" % agent) == "cloche-agent\n"
    os.kill(agent, signal.SIGKILL)
    t.join(10)
    assert not t.is_alive(), "the exec still waits for a dead sandbox"
    eventually(lambda: not host_pids(server, "55800"), "its commands are gone")
    eventually(lambda: box.reply("true").status == 404, "the sandbox is unknown")
    eventually(lambda: server.stats()["lost"] == lost + 1, "the loss is counted")


@attacks(12)
def test_12_timeout_at_the_moment_of_exit(server, box):
    """Both outcomes are right; a hang, an error or a third outcome is not."""
    got = []

    def one(i):
        got.append(box.exec("sleep", "%.4f" % (0.980 + i * 0.001), timeoutSeconds=1))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(30)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == len(threads)
    for r in got:
        assert (r["reason"], r["exitCode"]) in (("exited", 0), ("timeout", 124)), r
    box.alive()


@attacks(13)
def test_13_five_hundred_short_execs(server, box):
    """No fd, pid or cgroup is left by any of them, in the server or in the agent."""
    conn = server.connect()

    def many(n):
        for _ in range(n):
            r = server.request("POST", "/v1/sandboxes/%s/exec" % box.name, {"cmd": ["true"]}, conn=conn)
            assert r.status == 200 and r.json["exitCode"] == 0, r
    box.sh("(sleep 55900 >/dev/null 2>&1 &)")
    many(20)
    agent = int(common.read("/proc/%d/stat" % host_pids(server, "55900")[0]).rsplit(")", 1)[1].split()[1])

    def groups():
        base = [os.path.join(r, harness.cgroup_group(server)) for r in harness.cgroup_roots()]
        return sum(len(dirs) for b in base for _, dirs, _ in os.walk(b))
    was = len(common.fds(agent)), groups(), len(common.fds(server.process.pid))
    many(500)
    now = len(common.fds(agent)), groups(), len(common.fds(server.process.pid))
    conn.close()
    # The server may hold a few more: the pool has a pidfd for each ready sandbox.
    eventually(lambda: (len(common.fds(agent)), groups()) == was[:2] and
               len(common.fds(server.process.pid)) <= was[2] + 4,
               "agent's fds, cgroups, server's fds: %r, were %r" % (now, was))


@attacks(14, cpuLimit="500m")
def test_14_busy_loops_keep_to_their_share(server, box):
    got = box.run("""
end = time.time() + 1.2
kids = []
for _ in range(8):
    p = os.fork()
    if p == 0:
        while time.time() < end: pass
        os._exit(0)
    kids.append(p)
for p in kids: os.waitpid(p, 0)
t = os.times()
out["cpu"] = t.children_user + t.children_system
out["wall"] = time.time() - end + 1.2
""")
    assert got["cpu"] < 0.5 * got["wall"] + 0.25, got


@attacks(14)
def test_14_neighbour_keeps_its_share(server, box):
    t = threading.Thread(target=box.reply, args=("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait"),
                         kwargs={"timeoutSeconds": 2})
    t.start()
    try:
        worst = 0
        for _ in range(10):
            start = time.monotonic()
            assert server.exec("neighbour", "true")["exitCode"] == 0
            worst = max(worst, time.monotonic() - start)
        assert worst < 1 * harness.SLOW, "the neighbour waited %.2f s" % worst
    finally:
        t.join()


@attacks(15, 16, 17, 18)
def test_15_18_priorities_and_limits(server, box):
    got = box.run("""
import resource
out["15 nice -20"] = attempt(os.nice, -20)
out["15 setpriority of pid 1"] = attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)
for n, policy in (("FIFO", os.SCHED_FIFO), ("RR", os.SCHED_RR)):
    out["15 SCHED_" + n] = attempt(os.sched_setscheduler, 0, policy, os.sched_param(1))
attr = struct.pack("<IIQiIQQQ", 48, 6, 0, 0, 0, 10000000, 30000000, 30000000)
out["15 SCHED_DEADLINE"] = call(314, 0, attr, 0)
out["15 ioprio realtime"] = call(251, 1, 0, (1 << 13) | 0)
for n in ("NOFILE", "CORE", "NPROC", "SIGPENDING", "MSGQUEUE", "MEMLOCK", "RTPRIO", "NICE"):
    which = getattr(resource, "RLIMIT_" + n)
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY:
        out["16 raise " + n] = "infinite already"
        continue
    try:
        resource.setrlimit(which, (hard + 1, hard + 1)); out["16 raise " + n] = "raised"
    except (ValueError, OSError) as e:
        out["16 raise " + n] = "refused"
try: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3)); out["16 prlimit of pid 1"] = "done"
except OSError as e: out["16 prlimit of pid 1"] = name(e.errno)
out["17 own oom_score_adj"] = attempt(writefile, "/proc/self/oom_score_adj", "-1000")
out["17 own oom_score_adj -1"] = attempt(writefile, "/proc/self/oom_score_adj", "-1")
out["17 pid 1's oom_score_adj"] = attempt(writefile, "/proc/1/oom_score_adj", "1000")
out["17 pid 1's oom_adj"] = attempt(writefile, "/proc/1/oom_adj", "15")
out["18 affinity of pid 1"] = attempt(os.sched_setaffinity, 1, {0})
attempt(os.sched_setaffinity, 0, range(64))
end = time.time() + 0.6; kids = []
for _ in range(4):
    p = os.fork()
    if p == 0:
        while time.time() < end: pass
        os._exit(0)
    kids.append(p)
for p in kids: os.waitpid(p, 0)
t = os.times()
out["18 processors used beyond the own"] = t.children_user + t.children_system < 1.25 * 0.6 + 0.2
""")
    no = {"EPERM", "EACCES"}
    want = {k: no for k in got}
    want.update({k: {"refused", "infinite already"} for k in got if k.startswith("16 raise")})
    want["18 processors used beyond the own"] = True  # the quota holds whatever the mask
    expect(got, want)
    for n in ("NOFILE", "CORE"):
        assert got["16 raise " + n] == "refused", got


@attacks(19, 20)
def test_19_20_timers_and_signals(server, box):
    got = box.run("""
import select, resource
# timers of every kind until refused, with a bound
n = 0
while n < 300000:
    t = ctypes.c_int()
    if libc.timer_create(1, None, ctypes.byref(t)) < 0: break
    n += 1
out["posix timers"] = n
fds = []
try:
    while len(fds) < 20000: fds.append(call(283, 1, 0)) if not fds or isinstance(fds[-1], int) else 1/0
except ZeroDivisionError: pass
out["timerfds"] = len(fds)
for f in fds:
    if isinstance(f, int): os.close(f)
# a queue of blocked realtime signals
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
info = ctypes.create_string_buffer(128)
ctypes.cast(info, ctypes.POINTER(ctypes.c_int))[0] = 40
ctypes.cast(info, ctypes.POINTER(ctypes.c_int))[2] = -1
n = 0
while n < 300000 and libc.syscall(129, os.getpid(), 40, info) == 0: n += 1
out["queued"] = n
out["limit"] = resource.getrlimit(resource.RLIMIT_SIGPENDING)[0]
out["queue ends"] = name(ctypes.get_errno())
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
signal.signal(signal.SIGALRM, lambda *a: None)
end = time.time() + 0.3
while time.time() < end: pass
signal.setitimer(signal.ITIMER_REAL, 0)
# while the queue is full here, the neighbour's is not: see below
""", timeoutSeconds=60)
    assert got["posix timers"] <= got["limit"] and got["queued"] <= got["limit"], got
    r = server.python("neighbour", "import signal,os;signal.signal(40,lambda *a:print('got it'));os.kill(os.getpid(),40)")
    assert r["stdout"] == "got it\n", r


common.main(globals())
