#!/usr/bin/env python3
"""Ends and beginnings: SIGTERM, SIGKILL of each kind of process, adoption, sweeping, and a
crash loop under load. After each, nothing may be lost that was acknowledged and nothing may
be left that belongs to nobody."""
import contextlib
import http.client
import io
import os
import random
import select
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tarfile
import threading
import time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, eventually

CUT = (OSError, http.client.HTTPException)  # how a killed server looks to its client


# --- what the host shows -----------------------------------------------------------------
def parent_of(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return int(f.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def keeper_of(server):
    for name in os.listdir("/proc"):
        if name.isdigit() and parent_of(int(name)) == server.process.pid:
            return int(name)
    return None


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def agent_pid(server, pod):
    """Who listens on the sandbox's socket, by the kernel's word."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(server.state, "run", pod + ".sock"))
        return struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def unified(server):
    for root in harness.cgroup_roots():
        if os.path.exists(os.path.join(root, "cgroup.controllers")):
            return os.path.join(root, harness.cgroup_group(server))
    return None


def assert_only(server, pods, seconds=10):
    """Exactly these sandboxes exist, in the run directory and as agents in the cgroups. For
    servers with --pool-size 0 and sandboxes without background processes."""
    pods = sorted(pods)

    def exact():
        try:
            return server.list_pods() == pods and \
                harness.cgroup_pids(server) == {agent_pid(server, p) for p in pods}
        except OSError:
            return False
    try:
        eventually(exact, "only the known sandboxes are left", seconds)
    except AssertionError:
        raise AssertionError("expected %s, got sockets %s and processes %s" % (
            pods, server.list_pods(), {p: comm(p) for p in harness.cgroup_pids(server)}))
    with open("/proc/self/mountinfo") as f:
        assert server.state not in f.read(), "a mount is left on the host"


def comm(pid):
    try:
        with open("/proc/%d/comm" % pid) as f:
            return f.read().strip()
    except OSError:
        return "?"


def assert_nothing(server):
    eventually(lambda: not harness.cgroup_pids(server), "no process is left in the cgroups")
    eventually(lambda: not harness.cgroup_slots(server), "no slot is left in the cgroups")
    assert server.list_pods() == [], server.list_pods()


def until(seconds):
    """Where in time a crash hits is what is tested: finer than eventually's 20 ms, and
    without holding the interpreter, in which the clients' threads run."""
    select.select([], [], [], seconds)


def clean(server):
    """Also after a failure nothing of a test may stay on the host."""
    server.close()
    for pid in harness.cgroup_pids(server):
        os.kill(pid, signal.SIGKILL)
    for root in harness.cgroup_roots():
        for path, _, _ in os.walk(os.path.join(root, harness.cgroup_group(server)), topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def full_pool(server, count):
    """So many sockets, all of them listened on."""
    def full():
        try:
            return len([agent_pid(server, p) for p in server.list_pods()]) == count
        except OSError:
            return False
    eventually(full, "the pool is full")


def crash(server):
    server.process.kill()
    server.process.wait()


def tarball(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            t.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def in_thread(fn, *args, **kw):
    """Runs fn; .result is what it gave, or what it raised."""
    def run():
        try:
            t.result = fn(*args, **kw)
        except BaseException as e:
            t.result = e
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


def with_server(*flags, **kw):
    """A server of its own for a test, taken away in any case."""
    def wrap(fn):
        def run():
            server = Server(*flags, **kw)
            try:
                fn(server)
            except BaseException:
                print("--- its log, the end:\n" + server.read_log()[-2500:])
                raise
            finally:
                clean(server)
        run.__name__ = fn.__name__
        return run
    return wrap


def running(server, what):
    """Waits until a command of that name runs in one of the sandboxes."""
    eventually(lambda: any(comm(p) == what for p in harness.cgroup_pids(server)), what + " runs")


# --- SIGTERM --------------------------------------------------------------------------------
@with_server("--pool-size", "2")
def test_sigterm_keeps_sandboxes(server):
    made = server.make("keep")
    server.sh("keep", "echo hello > file; mkdir d; (while :; do date +%s%N > beat; sleep 0.05; done) >/dev/null 2>&1 &")
    eventually(lambda: server.sh("keep", "cat beat")["stdout"], "the background process beats")
    assert server.stop() == 0
    assert "stopped" in server.read_log()
    assert server.list_pods() == [made["podName"]], "only the sandbox stays: the pool goes"
    assert harness.cgroup_slots(server) and len(harness.cgroup_slots(server)) == 1, harness.cgroup_slots(server)
    last = [""]
    server.start()
    assert server.sh("keep", "cat file; ls -d d")["stdout"] == "hello\nd\n"
    assert server.make("keep")["podName"] == made["podName"]

    def beats():
        now = server.sh("keep", "cat beat")["stdout"]
        went_on, last[0] = bool(now and last[0] and now != last[0]), now
        return went_on
    eventually(beats, "the background process still beats")
    assert server.delete("keep").status == 204


@with_server("--pool-size", "2", "--on-exit", "delete")
def test_sigterm_delete_removes_all(server):
    for i in range(5):
        server.make("d%d" % i)
    server.sh("d0", "setsid sleep 1000 >/dev/null 2>&1 &")
    assert server.stop() == 0
    assert_nothing(server)
    server.start()
    assert [server.exec_reply("d%d" % i, "true").status for i in range(5)] == [404] * 5


@with_server("--pool-size", "0")
def test_sigint_is_sigterm(server):
    server.make("a")
    assert server.stop(signal.SIGINT) == 0
    server.start()
    assert server.exec("a", "true")["exitCode"] == 0


@with_server("--pool-size", "0")
def test_sigterm_waits_for_exec(server):
    server.make("a")
    t = in_thread(server.exec, "a", "sh", "-c", "sleep 0.7; echo done")
    running(server, "sleep")
    server.process.terminate()
    eventually(lambda: "stopping" in server.read_log(), "the log says so")
    try:
        socket.create_connection(("127.0.0.1", server.port), 2).close()
        raise AssertionError("a stopping server still takes connections")
    except OSError:
        pass
    assert server.process.poll() is None
    t.join(20)
    assert isinstance(t.result, dict) and t.result["stdout"] == "done\n", t.result
    assert server.process.wait(5) == 0


def cut_short(server, end):
    server.make("a")
    server.sh("a", "echo kept > f")
    t = in_thread(server.exec, "a", "sleep", "1000")
    running(server, "sleep")
    end()
    assert server.process.wait(4 * harness.SLOW) == 0
    t.join(5)
    assert isinstance(t.result, CUT), t.result
    eventually(lambda: not any(comm(p) == "sleep" for p in harness.cgroup_pids(server)),
               "the command ends: nobody waits for it any more")
    server.start()
    assert server.sh("a", "cat f")["stdout"] == "kept\n"


@with_server("--pool-size", "0")
def test_second_sigterm_cuts(server):
    def twice():
        server.process.terminate()
        eventually(lambda: "stopping" in server.read_log(), "it heard the first")
        assert server.process.poll() is None
        server.process.terminate()
    cut_short(server, twice)


@with_server("--pool-size", "0", "--grace-seconds", "0")
def test_grace_zero_cuts(server):
    cut_short(server, server.process.terminate)


@with_server("--pool-size", "0", "--grace-seconds", "1")
def test_grace_over_cuts(server):
    cut_short(server, server.process.terminate)
    assert "grace time is over" in server.read_log()


def test_sigterm_while_the_pool_fills():
    """At every moment of the start: it leaves with 0 and takes its pool along."""
    server = Server("--pool-size", "6", start=False)
    try:
        for i in range(14):
            server.start()
            until(i * 0.0015)
            left = server.stop()
            assert left == 0, "left with %s after %d\n%s" % (left, i, server.read_log()[-800:])
            assert_nothing(server)
    finally:
        clean(server)


def test_sigterm_delete_with_puts_on_their_way():
    """on_exit = delete means all, also those that were just being made."""
    server = Server("--pool-size", "0", "--on-exit", "delete", "--grace-seconds", "0", start=False)
    try:
        for turn in range(4):
            server.start()
            puts = [in_thread(server.put, "p%d" % i) for i in range(12)]
            until(0.002 + 0.004 * turn)
            left = server.stop()
            assert left == 0, "left with %s\n%s" % (left, server.read_log()[-800:])
            for t in puts:
                t.join(10)
            assert_nothing(server)
    finally:
        clean(server)


# --- SIGKILL -------------------------------------------------------------------------------
def fill(server, count=4):
    made = {}
    for i in range(count):
        made["k%d" % i] = server.make("k%d" % i, ttlSeconds=300 + i)
        server.sh("k%d" % i, "echo mark-%d > m" % i)
    return made


def assert_adopted(server, made):
    for i, (name, was) in enumerate(made.items()):
        assert server.sh(name, "cat m; hostname")["stdout"] == "mark-%d\n%s\n" % (i, was["podName"])
    log = server.read_log()
    assert "adopted=%d lost=0" % len(made) in log, log[-1500:]


def rows(server):
    """What the store holds; only while no server runs."""
    with contextlib.closing(sqlite3.connect(os.path.join(server.state, "store.db"))) as db:
        return {bytes(i).decode(): (n, e) for n, i, e in
                db.execute("SELECT name, id, expires_ms FROM sandboxes")}


@with_server("--pool-size", "3")
def test_sigkill_server(server):
    made = fill(server)
    server.sh("k1", "(while :; do date +%s%N > beat; sleep 0.05; done) >/dev/null 2>&1 &")
    keeper = keeper_of(server)
    before = rows_of_crash(server)
    eventually(lambda: not alive(keeper), "the keeper leaves by itself")
    for was in made.values():
        assert alive(agent_pid(server, was["podName"])), "the agents live"
    server.start()
    assert_adopted(server, made)
    beat = server.sh("k1", "cat beat")["stdout"]
    eventually(lambda: server.sh("k1", "cat beat")["stdout"] not in ("", beat), "background processes go on")
    assert rows_of_crash(server) == before, "names and deadlines are what they were"
    server.start()
    for name, was in made.items():
        again = server.make(name, ttlSeconds=300)
        assert again["podName"] == was["podName"]
    assert [server.delete(n).status for n in made] == [204] * len(made)


def rows_of_crash(server):
    crash(server)
    return rows(server)


@with_server("--pool-size", "0")
def test_expires_at_survives(server):
    """Touch tells the ttl that was asked for at first; the deadline is not moved by a restart."""
    was = server.make("a", ttlSeconds=4000)
    crash(server)
    name, expires = rows(server)["a"]
    server.start()
    assert name == was["podName"]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires // 1000))
    assert was["expiresAt"] == stamp, (was, stamp)
    server.exec("a", "true")
    crash(server)
    assert rows(server)["a"] == (name, expires)
    server.start()
    assert server.request("POST", "/v1/sandboxes/a/touch").status == 200
    crash(server)
    assert rows(server)["a"][1] > expires, "touch was stored"
    assert rows(server)["a"][1] - expires < 60000
    server.start()


@with_server("--pool-size", "3")
def test_sigkill_sweeps_the_pool(server):
    made = server.make("a")
    full_pool(server, 4)
    pooled = set(server.list_pods()) - {made["podName"]}
    crash(server)
    assert len(server.list_pods()) == 4, "pooled ones outlive a crash at first"
    server.flags += ["--pool-size", "0"]
    server.start()
    assert_only(server, [made["podName"]])
    assert not pooled & set(server.list_pods())
    eventually(lambda: server.stats()["inTransit"] == 0, "all ends are done")
    assert server.exec("a", "true")["exitCode"] == 0


@with_server("--pool-size", "0")
def test_sigkill_server_and_keeper(server):
    made = fill(server)
    keeper = keeper_of(server)
    server.process.send_signal(signal.SIGSTOP)  # so that it cannot leave in order
    os.kill(keeper, signal.SIGKILL)
    crash(server)
    server.start()
    assert_adopted(server, made)
    assert_only(server, [m["podName"] for m in made.values()])
    for name in made:
        assert server.delete(name).status == 204
    assert_only(server, [])


@with_server("--pool-size", "2")
def test_sigkill_keeper(server):
    """Without its keeper a server can make nothing: it says so and leaves; nothing is lost."""
    made = fill(server)
    os.kill(keeper_of(server), signal.SIGKILL)
    assert server.process.wait(5 * harness.SLOW) == 1
    assert "keeper died" in server.read_log()
    server.flags += ["--pool-size", "0"]
    server.start()
    assert_adopted(server, made)
    assert_only(server, [m["podName"] for m in made.values()])


@with_server("--pool-size", "0")
def test_sigkill_keeper_with_work_in_its_queue(server):
    """The same while requests to it are unread: its end then shows as an error, not as an end."""
    made = fill(server, 2)
    keeper = keeper_of(server)
    os.kill(keeper, signal.SIGSTOP)
    put = in_thread(server.put, "never")
    eventually(lambda: server.stats()["inTransit"] == 1, "the request is on its way")
    os.kill(keeper, signal.SIGKILL)
    try:
        assert server.process.wait(5 * harness.SLOW) == 1
    except subprocess.TimeoutExpired:
        raise AssertionError("a server without a keeper goes on: PUT gives %s" % server.put("more"))
    put.join(10)
    assert "keeper died" in server.read_log()
    server.start()
    assert_adopted(server, made)
    assert server.exec_reply("never", "true").status == 404
    assert_only(server, [m["podName"] for m in made.values()])


@with_server("--pool-size", "0")
def test_sigkill_keeper_while_it_adopts(server):
    """A start that fails half way must not take live sandboxes for dead ones."""
    made = {"n%d" % i: server.make("n%d" % i)["podName"] for i in range(250)}
    for turn in range(3):
        crash(server)
        server.start(expect_ready=False)
        fds = "/proc/%d/fd" % server.process.pid
        keeper = []
        eventually(lambda: keeper.append(keeper_of(server)) or keeper[-1] and comm(keeper[-1]) == "cloche-keeper",
                   "its keeper is there")
        while server.process.poll() is None and len(os.listdir(fds)) < 30 + 20 * turn:
            until(0.0002)  # one more for each that is adopted
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper[-1], signal.SIGKILL)
        assert server.process.wait(20) == 1, server.read_log()[-800:]
        assert "did not outlive" not in server.read_log(), server.read_log()[-800:]
    server.start()
    assert {n: server.exec(n, "hostname")["stdout"].strip() for n in made} == made


@with_server("--pool-size", "0")
def test_restart_with_too_few_descriptors(server):
    made = fill(server, 40)
    crash(server)
    server.wrapper = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh"]
    server.start(expect_ready=False)
    assert server.process.wait(20) == 1
    assert "ulimit -n" in server.read_log(), server.read_log()[-500:]
    server.wrapper = []
    server.start()
    assert_adopted(server, made)


@with_server("--pool-size", "0")
def test_expired_meanwhile(server):
    kept = server.make("kept")
    server.make("short", ttlSeconds=1)
    server.make("quiet", ttlSeconds=1)
    server.sh("short", "setsid sleep 1000 >/dev/null 2>&1 &")
    crash(server)
    end = time.time() + 1.1
    eventually(lambda: time.time() > end, "their time is over")
    assert len(server.list_pods()) == 3, "nobody is there to end them"
    server.start()
    assert server.exec_reply("short", "true").status == 404
    assert_only(server, [kept["podName"]])  # "quiet", too, without being asked for
    assert server.exec_reply("quiet", "true").status == 404
    assert server.request("POST", "/v1/sandboxes/quiet/touch").status == 404
    assert server.delete("quiet").status == 404
    assert server.make("short")["podName"] != kept["podName"]
    assert server.sh("short", "ls")["stdout"] == ""


@with_server("--pool-size", "0")
def test_stale_sockets_and_groups_are_swept(server):
    kept = server.make("kept")
    crash(server)
    run = os.path.join(server.state, "run")
    with socket.socket(socket.AF_UNIX) as s:  # bound and never listened on: half-made
        s.bind(os.path.join(run, "sbx-0000000000.sock"))
    open(os.path.join(run, "sbx-1111111111.sock"), "w").close()
    stray, group = None, unified(server)
    if group and os.geteuid() == 0:  # a process that no row tells of, in a slot that no row tells of
        os.makedirs(os.path.join(group, "s77", "cmd", "e0"))
        stray = subprocess.Popen(["sleep", "1000"])
        with open(os.path.join(group, "s77", "cmd", "e0", "cgroup.procs"), "w") as f:
            f.write(str(stray.pid))
    server.start()
    if stray:
        assert stray.wait(5) == -signal.SIGKILL
        assert "s77" not in harness.cgroup_slots(server)
    assert_only(server, [kept["podName"]])


@with_server("--pool-size", "0")
def test_swept_slots_are_usable(server):
    """Agents without a row and without a socket can only be found by their cgroup. What comes
    to their slots afterwards must not suffer from how they ended."""
    if not unified(server):
        raise harness.Skip("no unified cgroup hierarchy: nothing tells whose those processes are")
    made = fill(server, 6)
    server.sh("k0", "setsid sleep 1000 >/dev/null 2>&1 &")
    crash(server)
    pids = [agent_pid(server, m["podName"]) for m in made.values()]
    with contextlib.closing(sqlite3.connect(os.path.join(server.state, "store.db"))) as db:
        db.execute("DELETE FROM sandboxes")
        db.commit()
    for pod in server.list_pods():
        os.unlink(os.path.join(server.state, "run", pod + ".sock"))
    server.start()
    # a process leaves its cgroup a moment before it is gone
    eventually(lambda: not any(map(alive, pids)), "no agent that belongs to nobody lives on")
    assert harness.cgroup_slots(server) == set(), harness.cgroup_slots(server)
    assert [server.put("n%d" % i).status for i in range(8)] == [200] * 8
    for i in range(8):
        assert server.exec("n%d" % i, "echo", "x")["stdout"] == "x\n"


@with_server("--pool-size", "0")
def test_row_whose_agent_died_meanwhile(server):
    made = fill(server, 3)
    crash(server)
    os.kill(agent_pid(server, made["k1"]["podName"]), signal.SIGKILL)
    server.start()
    assert "adopted=2 lost=1" in server.read_log()
    assert [server.exec_reply("k%d" % i, "cat", "m").status for i in range(3)] == [200, 404, 200]
    assert_only(server, [made["k0"]["podName"], made["k2"]["podName"]])
    assert server.make("k1")["podName"] != made["k1"]["podName"]


@with_server("--pool-size", "0")
def test_sigkill_agent(server):
    made = fill(server, 3)
    t = in_thread(server.exec_reply, "k1", "sleep", "1000")
    running(server, "sleep")
    victim = made["k1"]["podName"]
    os.kill(agent_pid(server, victim), signal.SIGKILL)
    t.join(10)
    assert t.result.status == 200 and t.result.json["reason"] == "killed", t.result
    eventually(lambda: server.exec_reply("k1", "true").status == 404, "the sandbox is lost")
    assert_only(server, [made["k0"]["podName"], made["k2"]["podName"]])
    line = [x for x in server.read_log().splitlines() if "agent" in x and "died" in x]
    assert len(line) == 1 and "k1" in line[0] and victim in line[0] and "lost" in line[0], line
    assert server.stats()["lost"] == 1
    for i in (0, 2):
        assert server.sh("k%d" % i, "cat m")["stdout"] == "mark-%d\n" % i
    again = server.make("k1")
    assert again["podName"] != victim
    assert server.sh("k1", "ls")["stdout"] == ""
    # an adopted sandbox's agent is watched in the same way
    crash(server)
    server.start()
    os.kill(agent_pid(server, again["podName"]), signal.SIGKILL)
    eventually(lambda: server.exec_reply("k1", "true").status == 404, "the adopted sandbox is lost")
    assert_only(server, [made["k0"]["podName"], made["k2"]["podName"]])
    server.assert_healthy()


@with_server("--pool-size", "2")
def test_pooled_agent_killed(server):
    """A sandbox that died in the pool is not handed out."""
    full_pool(server, 2)
    pids = [agent_pid(server, pod) for pod in server.list_pods()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, pids)), "they are dead")
    for i in range(3):
        server.make("p%d" % i)
        assert server.exec("p%d" % i, "echo", "x")["stdout"] == "x\n"


# --- two at once --------------------------------------------------------------------------
@with_server("--pool-size", "0")
def test_second_server_is_refused(server):
    made = server.make("a")
    other = Server("--pool-size", "0", start=False, state=server.state)
    other.start(expect_ready=False)
    assert other.process.wait(10) == 1
    said = other.read_log()
    os.unlink(other.log_path)
    assert "another cloche serves from " + server.state in said, said
    assert said.count("\n") == 1, said
    assert server.exec("a", "true")["exitCode"] == 0
    assert_only(server, [made["podName"]])


@with_server("--pool-size", "0")
def test_restart_while_old_keeper_leaves(server):
    made = fill(server, 2)
    keeper = keeper_of(server)
    os.kill(keeper, signal.SIGSTOP)
    try:
        crash(server)
        server.start(expect_ready=False)
        new = []
        eventually(lambda: new.append(1) or len(new) > 15, "a while passes")
        assert server.process.poll() is None, server.read_log()
        try:
            server.request("GET", "/healthz", timeout=1)
            raise AssertionError("it serves beside the old keeper")
        except OSError:
            pass
    finally:
        os.kill(keeper, signal.SIGCONT)
    server.wait_ready()
    assert not alive(keeper)
    assert_adopted(server, made)
    server.assert_healthy()


# --- the store and the settings ---------------------------------------------------------------
def refused(server):
    server.start(expect_ready=False)
    assert server.process.wait(15) == 1
    return server.read_log()


@with_server("--pool-size", "0")
def test_newer_store_is_refused(server):
    made = fill(server, 2)
    crash(server)
    path = os.path.join(server.state, "store.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")
    said = refused(server)
    assert "store.db is of another version (99)" in said, said
    for was in made.values():
        assert alive(agent_pid(server, was["podName"])), "a refused start touches no sandbox"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=1")
    server.start()
    assert_adopted(server, made)


def test_broken_store_is_refused():
    server = Server(start=False)
    with open(os.path.join(server.state, "store.db"), "wb") as f:
        f.write(os.urandom(8192))
    said = refused(server)
    assert "store" in said and said.startswith("cloche: "), said
    shutil.rmtree(server.state)
    os.unlink(server.log_path)


@with_server("--pool-size", "0")
def test_broken_store_after_a_reboot(server):
    """Rows are never synced: what a crash of the machine left of them must not hinder the next start."""
    server.make("a")
    server.delete("a")
    assert server.stop() == 0
    with open(os.path.join(server.state, "boot"), "w") as f:
        f.write("another boot\n")
    with open(os.path.join(server.state, "store.db"), "wb") as f:
        f.write(os.urandom(8192))
    server.start()
    server.assert_healthy()


@with_server("--pool-size", "0")
def test_fewer_sandboxes_allowed_than_live(server):
    """max_sandboxes bounds new ones; it must not end those that live."""
    for i in range(80):
        server.make("m%d" % i)
    for i in range(3, 80 - 3):
        assert server.delete("m%d" % i).status == 204
    left = ["m0", "m1", "m2", "m77", "m78", "m79"]
    crash(server)
    server.flags += ["--max-sandboxes", "2"]
    server.start()
    assert [server.exec_reply(n, "true").status for n in left] == [200] * 6
    assert server.put("one-more").status == 503
    server.flags = server.flags[:-2]


@with_server("--pool-size", "0")
def test_state_dir_by_another_name(server):
    """The same directory, spelled differently, is the same server."""
    made = fill(server, 2)
    crash(server)
    real, first_group = server.state, harness.cgroup_group(server)
    server.state = real + "/"
    try:
        server.start()
        assert_adopted(server, made)
        for name in made:
            assert server.delete(name).status == 204
        assert server.stop() == 0
    finally:
        server.state = real
    left = [r for r in harness.cgroup_roots() if os.path.isdir(os.path.join(r, first_group, "s0"))]
    server.start()  # sweeps them: a failure above shall not litter the host
    assert not left, "groups of the first spelling are left: %s" % left


@with_server("--pool-size", "2")
def test_settings_that_sandboxes_hang_on(server):
    """Another uid range could overlap with that of a live sandbox; other cgroups would leave its
    own behind. Both are refused while one lives, and nothing is touched."""
    made = fill(server, 2)
    first = harness.cgroup_group(server)
    plain = list(server.flags)
    changes = [["--cgroup-root", "cloche-other"]]
    if os.geteuid() == 0:
        changes.append(["--uid-base", "1000000000"])
    for change in changes:
        crash(server)
        server.flags = plain + change
        said = refused(server)
        assert "and this start is to use" in said and first in said, said[-600:]
    server.flags = plain
    server.start()
    assert_adopted(server, made)
    assert [server.delete(n).status for n in made] == [204, 204]
    assert server.stop() == 0
    server.flags = plain + changes[-1]
    server.start()  # nothing lives: a new beginning
    server.assert_healthy()
    assert server.stop() == 0
    server.flags = plain


# --- crashes everywhere -----------------------------------------------------------------------
def test_sigkill_during_create():
    """Abuse 126: a create is cut at many points; the next server has it whole or not at all."""
    server = Server("--pool-size", "0")
    known = {}
    try:
        start = time.monotonic()
        for i in range(4):
            server.make("measure")
            server.delete("measure")
        whole = (time.monotonic() - start) / 4
        for i in range(36):
            name = "c%d" % i
            t = in_thread(server.put, name)
            until(whole * i / 24)  # to well past its end
            crash(server)
            t.join(10)
            acked = t.result if isinstance(t.result, harness.Reply) else None
            assert acked is None or acked.status == 200, acked
            server.start()
            found = server.exec_reply(name, "hostname")
            assert found.status in (200, 404), found
            if acked:
                assert found.status == 200 and found.json["stdout"].strip() == acked.json["podName"], found
            if found.status == 200:
                known[name] = found.json["stdout"].strip()
            assert_only(server, known.values())
        assert 0 < len(known) < 36, "the points were badly chosen: %d of 36 came to life" % len(known)
        for name in known:
            assert server.delete(name).status == 204
        assert_only(server, [])
    except BaseException:
        print("--- its log, the end:\n" + server.read_log()[-2500:])
        raise
    finally:
        clean(server)


def test_sigkill_during_delete():
    server = Server("--pool-size", "0")
    try:
        server.make("stays")
        for i in range(16):
            made = server.make("d")
            t = in_thread(server.delete, "d")
            until(0.0003 * i)
            crash(server)
            t.join(10)
            server.start()
            acked = isinstance(t.result, harness.Reply)
            again = server.exec_reply("d", "hostname")
            assert again.status == 404 if acked else again.status in (200, 404), (t.result, again)
            if again.status == 200:
                assert again.json["stdout"].strip() == made["podName"]
                assert server.delete("d").status == 204
            assert_only(server, [server.make("stays")["podName"]])
    finally:
        clean(server)


class Client(threading.Thread):
    """Does what it likes with its own ids and remembers what was acknowledged."""

    def __init__(self, server, number, stop):
        super().__init__(daemon=True)
        self.server, self.stop = server, stop
        self.random = random.Random(number * 7919 + 1)
        self.ids = ["t%d-%d" % (number, i) for i in range(5)]
        self.pod = {}      # id: podName, if it must be there
        self.deleted = set()  # must not be there
        self.files = {}    # id: {name: text} that must be in it
        self.failure = None
        self.acks = self.cuts = 0

    def run(self):
        try:
            while not self.stop.is_set():
                op = self.random.choice([self.put, self.put, self.mark, self.mark, self.upload, self.delete])
                try:
                    op(self.random.choice(self.ids))
                    self.acks += 1
                except ConnectionRefusedError:
                    self.stop.wait(0.005)
                except CUT:
                    self.cuts += 1
        except BaseException as e:
            self.failure = e

    def put(self, name):
        was_deleted = name in self.deleted
        self.deleted.discard(name)  # an unanswered PUT may have made it
        r = self.server.put(name)
        assert r.status == 200, ("PUT", name, r)
        pod = r.json["podName"]
        assert self.pod.get(name, pod) == pod, ("another sandbox by the same id", name, self.pod[name], pod)
        if was_deleted:
            self.files[name] = {}
        self.files.setdefault(name, {})
        self.pod[name] = pod

    def mark(self, name):
        text = "%d" % self.random.getrandbits(40)
        r = self.server.exec_reply(name, "sh", "-c", "printf %s > f-%s; cat f-%s" % (text, text, text))
        self.check(r, name)
        if r.status == 200:
            if r.json["reason"] == "killed":
                raise AssertionError(("killed without reason", name, r))
            assert r.json["stdout"] == text, (name, r)
            if name in self.pod:
                self.files[name]["f-" + text] = text

    def upload(self, name):
        text = "%d" % self.random.getrandbits(40)
        r = self.server.request("POST", "/v1/sandboxes/%s/files/upload" % name, tarball(**{"u-" + text: text}))
        self.check(r, name)
        if r.status == 200 and name in self.pod:
            self.files[name]["u-" + text] = text

    def delete(self, name):
        if self.random.random() < 0.4:
            return
        pod = self.pod.pop(name, None)
        self.files.pop(name, None)
        r = self.server.delete(name)
        assert r.status in (204, 404), ("DELETE", name, r)
        assert r.status == 204 or not pod, ("was acknowledged and not there", name, pod, r)
        self.deleted.add(name)

    def check(self, r, name):
        assert r.status in (200, 404), (name, r)
        if r.status == 404:
            assert name not in self.pod, ("was acknowledged and is not there", name, self.pod[name], r)
        else:
            assert name not in self.deleted, ("was deleted and is there", name, r)

    def verify(self):
        for name in self.ids:
            r = self.server.exec_reply(name, "sh", "-c", "hostname; grep -H '' f-* u-* 2>/dev/null; :")
            self.check(r, name)
            if name not in self.pod:
                if r.status == 200:  # a PUT or DELETE without an answer: either is right
                    self.pod[name] = r.json["stdout"].split()[0]
                continue
            pod, *lines = r.json["stdout"].split()
            assert pod == self.pod[name], (name, pod, self.pod[name])
            got = dict(x.split(":", 1) for x in lines)
            for file, text in self.files[name].items():
                assert got.get(file) == text, ("a file is lost", name, file, got.get(file))


def test_crash_loop_under_load():
    server = Server("--pool-size", "2", "--log-level", "warn")
    stop, dice = threading.Event(), random.Random(126)
    clients = [Client(server, n, stop) for n in range(5)]
    try:
        for c in clients:
            c.start()
        for turn in range(22):
            # some crashes come while it still starts, most under load
            point = dice.uniform(0, 0.05) if turn % 4 == 3 else dice.uniform(0.05, 0.35)
            if turn % 4 != 3:
                server.wait_ready()
            end = time.monotonic() + point * harness.SLOW
            while time.monotonic() < end:
                stop.wait(0.001)
            broken = [c.failure for c in clients if c.failure]
            assert not broken, broken
            assert server.process.poll() is None, "it left by itself:\n" + server.read_log()[-2000:]
            keeper = keeper_of(server) if turn % 5 == 4 else None
            if keeper:
                server.process.send_signal(signal.SIGSTOP)  # so that it cannot leave in order
                os.kill(keeper, signal.SIGKILL)
            crash(server)
            server.start(expect_ready=False)
        server.wait_ready()
        stop.set()
        for c in clients:
            c.join(60)
            assert not c.is_alive(), "a client hangs"
            assert not c.failure, c.failure
        crash(server)  # what the last one knew is not enough
        server.flags += ["--pool-size", "0"]
        server.start()
        for c in clients:
            c.verify()
        pods = [p for c in clients for p in c.pod.values()]
        assert_only(server, pods, 20)
        assert server.stats()["sandboxes"] == len(pods)
        acks, cuts = sum(c.acks for c in clients), sum(c.cuts for c in clients)
        print("  %d operations acknowledged, %d cut, %d sandboxes found again" % (acks, cuts, len(pods)))
        assert acks > 100 and cuts > 5 and pods, "there was no load"
        for c in clients:
            for name in c.pod:
                assert server.delete(name).status == 204
        assert_only(server, [])
        assert server.stop() == 0
        assert_nothing(server)
    except BaseException:
        stop.set()
        print("--- its log, the end:\n" + server.read_log()[-3000:])
        raise
    finally:
        clean(server)


harness.main(globals())
