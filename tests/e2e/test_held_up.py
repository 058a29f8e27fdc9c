#!/usr/bin/env python3
"""Processes that stand still: an agent, a worker or the keeper that is stopped. Every request is
answered within a bound, DELETE works, and when they go on nothing has been lost."""
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, eventually

GIVE_UP = 10  # api/noxrunner/exec.c
KEEPER_WAIT = 20  # base/limits.h
STALL = 2
SERVER_FLAGS = ["--pool-size", "0", "--stall-seconds", str(STALL), "--heartbeat-seconds", "60"]


def agent_pid(server, pod):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(server.state, "run", pod + ".sock"))
        return struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def comm(pid):
    try:
        with open("/proc/%d/comm" % pid) as f:
            return f.read().strip()
    except OSError:
        return "?"


def keeper_of(server):
    with open("/proc/%d/task/%d/children" % (server.process.pid, server.process.pid)) as f:
        return [int(p) for p in f.read().split() if comm(int(p)) == "cloche-keeper"][0]


class stopped:
    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *why):
        try:
            os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # deleted meanwhile


def in_thread(fn, *args, **kw):
    """Runs fn; .result is what it gave, or what it raised; .took the seconds."""
    def run():
        start = time.monotonic()
        try:
            t.result = fn(*args, **kw)
        except BaseException as e:
            t.result = e
        t.took = time.monotonic() - start
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


def done(t, seconds):
    t.join(seconds * harness.SLOW)
    assert not t.is_alive(), "no answer after %d seconds" % seconds
    return t.result


def tarball(size):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        info = tarfile.TarInfo("file")
        info.size = size
        t.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


def upload(server, box, data):
    return server.request("POST", "/v1/sandboxes/%s/files/upload" % box, data)


def download(server, box):
    return server.request("GET", "/v1/sandboxes/%s/files/download?src=/workspace" % box)


# --- the agent ------------------------------------------------------------------------------
def test_exec_of_a_stopped_agent(server):
    made = server.make("still")
    with stopped(agent_pid(server, made["podName"])):
        t = in_thread(server.exec, "still", "sh", "-c", "echo ran >> runs", timeoutSeconds=1)
        got = done(t, 1 + GIVE_UP + 5)
        assert t.took > 1 + GIVE_UP - 1, "it was given up early: %.1f s" % t.took
        assert (got["exitCode"], got["reason"]) == (124, "timeout"), got
        assert "does not answer" in got["stderr"] and "timed out after 1 seconds" in got["stderr"], got
    assert server.exec("still", "echo", "x")["stdout"] == "x\n"
    assert server.stats()["sandboxes"] == 1
    assert server.delete("still").status == 204


def test_transfers_of_a_stopped_agent(server):
    made = server.make("still")
    server.sh("still", "echo x > f")
    with stopped(agent_pid(server, made["podName"])):
        threads = [in_thread(upload, server, "still", tarball(10)), in_thread(download, server, "still"),
                   in_thread(upload, server, "still", tarball(20 << 20))]
        for t in threads:
            got = done(t, STALL + 10)
            # the large one is answered before it is sent as a whole, which some clients cannot see
            assert isinstance(got, OSError) and t is threads[2] or got.status == 500, got
            assert t.took > STALL - 0.5, t.took
            assert isinstance(got, OSError) or "does not answer" in got.json["error"], got
    assert upload(server, "still", tarball(10)).status == 200
    assert download(server, "still").status == 200
    assert server.delete("still").status == 204


def test_transfers_of_a_stopped_worker(server):
    """Commands have the worker's uid and may stop it; that must not hold a client for ever."""
    server.make("hostile")
    server.sh("hostile", "head -c 30000000 /dev/urandom > big")
    slow = socket.create_connection(("127.0.0.1", server.port), 30 * harness.SLOW)
    slow.sendall(b"GET /v1/sandboxes/hostile/files/download?src=/workspace HTTP/1.1\r\nHost: localhost\r\n\r\n")
    slow.recv(1)  # it has begun, and now waits for us: that is no stall
    stop = 'for p in /proc/[0-9]*; do read n < $p/comm; [ "$n" = cloche-files ] && kill -STOP ${p#/proc/} && echo ok; done'
    eventually(lambda: server.sh("hostile", stop)["stdout"], "the worker is stopped")
    start = time.monotonic()
    while slow.recv(1 << 20):
        pass  # what was under way comes, then the end
    assert time.monotonic() - start < STALL * 3 * harness.SLOW + 5
    slow.close()
    assert server.delete("hostile").status == 204


def test_a_slow_client_is_no_stall(server):
    server.make("slow")
    server.sh("slow", "head -c 20000000 /dev/urandom > big")
    s = socket.create_connection(("127.0.0.1", server.port), 30 * harness.SLOW)
    s.sendall(b"GET /v1/sandboxes/slow/files/download?src=/workspace HTTP/1.1\r\nHost: localhost\r\n"
              b"Connection: close\r\n\r\n")
    end = time.monotonic() + STALL * 2.5
    eventually(lambda: time.monotonic() > end, "the client takes its time")
    got = 0
    while True:
        piece = s.recv(1 << 20)
        if not piece:
            break
        got, last = got + len(piece), piece[-5:]
    s.close()
    assert got > 20000000 and last == b"0\r\n\r\n", (got, last)
    assert server.delete("slow").status == 204


def test_delete_of_a_stopped_agent(server):
    made = server.make("still")
    with stopped(agent_pid(server, made["podName"])):
        t = in_thread(server.exec, "still", "true", timeoutSeconds=60)
        eventually(lambda: server.stats()["connections"] == 2, "it waits")
        assert done(in_thread(server.delete, "still"), 5).status == 204
        assert done(t, 5)["reason"] == "killed", t.result
    server.assert_healthy()


def test_restart_with_a_stopped_agent(server):
    made = {n: server.make(n) for n in ("still", "other")}
    with stopped(agent_pid(server, made["still"]["podName"])):
        server.process.kill()
        server.process.wait()
        start = time.monotonic()
        server.start()
        assert time.monotonic() - start < 5 * harness.SLOW
        assert server.exec("other", "true")["exitCode"] == 0
    assert server.exec("still", "hostname")["stdout"].strip() == made["still"]["podName"]
    assert [server.delete(n).status for n in made] == [204, 204]


# --- the keeper -----------------------------------------------------------------------------
def test_requests_while_the_keeper_is_stopped(server):
    server.make("old")
    server.make("used")
    with stopped(keeper_of(server)):
        threads = [in_thread(server.put, "new"), in_thread(server.put, "new"), in_thread(server.delete, "old")]
        assert server.exec("used", "true")["exitCode"] == 0, "what needs no keeper goes on"
        for t in threads:
            got = done(t, KEEPER_WAIT + 8)
            assert got.status == 503 and "keeper does not answer" in got.json["error"], got
    eventually(lambda: server.stats()["inTransit"] == 0, "what was asked for is done")
    assert server.exec("new", "true")["exitCode"] == 0
    assert server.exec_reply("old", "true").status == 404
    assert [server.delete(n).status for n in ("new", "used")] == [204, 204]


def test_sigterm_while_the_keeper_is_stopped():
    server = Server("--pool-size", "2", "--grace-seconds", "0")
    try:
        made = server.make("kept")
        eventually(lambda: len(server.list_pods()) == 3, "the pool is full")
        with stopped(keeper_of(server)):
            server.process.terminate()
            try:
                assert server.process.wait((KEEPER_WAIT + 10) * harness.SLOW) == 1
            except subprocess.TimeoutExpired:
                raise AssertionError("a stopped keeper keeps the server from leaving")
        assert "keeper does not answer" in server.read_log(), server.read_log()[-500:]
        server.flags += ["--pool-size", "0"]
        server.start()
        assert server.exec("kept", "hostname")["stdout"].strip() == made["podName"]
        eventually(lambda: server.list_pods() == [made["podName"]], "the pool is swept")
    finally:
        server.close()


harness.main(globals())
