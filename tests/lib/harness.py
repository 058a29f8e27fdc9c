"""Drives a real cloche server over real HTTP. Standard library only.

A test file defines functions test_*(...) and ends with harness.main(globals()). A test that
names a parameter `server` gets the file's shared server (started once, checked for
leftovers at the end). Raise Skip("why") where the host lacks something."""
import http.client
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("CLOCHE_BIN", os.path.join(ROOT, "build", "cloche"))
SANITIZED = "asan" in BIN
SLOW = 6 if SANITIZED else 1  # how much more time things may take


class Skip(Exception):
    pass


def eventually(check, what, seconds=10):
    """Waits until check() is true: for states that only the outside shows (processes, files)."""
    end = time.monotonic() + seconds * SLOW
    while True:
        if check():
            return
        if time.monotonic() > end:
            raise AssertionError("never came true: " + what)
        time.sleep(0.02)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return "<%d %r>" % (self.status, self.body[:300])


class Server:
    """A cloche of its own: state directory, port, log."""

    def __init__(self, *flags, env=None, start=True, wrapper=(), state=None, port=None):
        self.port = port or free_port()
        self.state = state or tempfile.mkdtemp(prefix="cloche-test-")
        self.flags = list(flags)
        self.env = env or {}
        self.wrapper = list(wrapper)
        self.process = None
        self.key = None
        self.log_path = tempfile.mktemp(prefix="cloche-log-")
        if start:
            self.start()

    def argv(self):
        return self.wrapper + [BIN, "serve", "--listen", "127.0.0.1:%d" % self.port,
                               "--state-dir", self.state] + self.flags

    def start(self, expect_ready=True):
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "ASAN_OPTIONS": "detect_leaks=1"}
        env.update(self.env)
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(self.argv(), stdout=self.log, stderr=self.log, env=env,
                                        stdin=subprocess.DEVNULL)
        if expect_ready:
            self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError("the server left with %s:\n%s" % (self.process.returncode, self.read_log()))
            try:
                return self.request("GET", "/healthz", timeout=5).status == 200
            except OSError:
                return False
        eventually(ready, "the server answers", 20)

    def read_log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def stop(self, sig=signal.SIGTERM, seconds=30):
        if self.process and self.process.poll() is None:
            self.process.send_signal(sig)
        if self.process:
            self.process.wait(seconds * SLOW)
        return self.process.returncode if self.process else None

    def close(self):
        """Ends the server with all its sandboxes and removes its files."""
        if self.process and self.process.poll() is None:
            for box in self.list_pods():
                pass
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.flags = [f for f in self.flags] + ["--on-exit", "delete", "--pool-size", "0"]
        try:
            self.start()
            self.stop()
        except AssertionError:
            pass
        shutil.rmtree(self.state, ignore_errors=True)
        if os.path.exists(self.log_path):
            os.unlink(self.log_path)

    def list_pods(self):
        run = os.path.join(self.state, "run")
        return sorted(n[:-5] for n in os.listdir(run) if n.endswith(".sock")) if os.path.isdir(run) else []

    # --- HTTP -----------------------------------------------------------------
    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def request(self, method, path, body=None, headers=None, timeout=60, conn=None):
        c = conn or self.connect(timeout)
        h = dict(headers or {})
        if self.key and "Authorization" not in h:
            h["Authorization"] = "Bearer " + self.key
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            h.setdefault("Content-Type", "application/json")
        c.request(method, path, body=body, headers=h)
        r = c.getresponse()
        out = Reply(r.status, dict(r.getheaders()), r.read())
        if not conn:
            c.close()
        return out

    def raw(self, data, timeout=10, shut=False):
        """Sends bytes as they are and returns everything until the server closes (or times out)."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout * SLOW)
        with s:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    got += piece
            except (socket.timeout, ConnectionResetError):
                pass
            return got

    # --- NoxRunner -------------------------------------------------------------
    def put(self, box, **fields):
        fields.setdefault("ttlSeconds", 600)
        return self.request("PUT", "/v1/sandboxes/" + box, fields)

    def make(self, box, **fields):
        r = self.put(box, **fields)
        assert r.status == 200, r
        return r.json

    def exec(self, box, *cmd, **fields):
        """The exec's JSON; asserts a 200."""
        r = self.exec_reply(box, *cmd, **fields)
        assert r.status == 200, r
        return r.json

    def exec_reply(self, box, *cmd, http_timeout=120, **fields):
        fields["cmd"] = list(cmd)
        return self.request("POST", "/v1/sandboxes/%s/exec" % box, fields, timeout=http_timeout)

    def sh(self, box, script, **fields):
        return self.exec(box, "sh", "-c", script, **fields)

    def python(self, box, source, **fields):
        return self.exec(box, "python3", "-c", source, **fields)

    def delete(self, box):
        return self.request("DELETE", "/v1/sandboxes/" + box)

    def stats(self):
        return self.request("GET", "/-/stats").json

    # --- what is left on the host ------------------------------------------------
    def tree(self):
        """pids of everything that descends from this server (agents survive their keeper,
        so they are found by their cgroup, too)."""
        return agents_of(self)

    def assert_healthy(self):
        """After an attack: it answers, and a fresh sandbox works."""
        start = time.monotonic()
        r = self.request("GET", "/healthz")
        assert r.status == 200 and r.body == b"OK", r
        took = time.monotonic() - start
        assert took < 1.0 * SLOW, "healthz took %.2f s" % took
        name = "fresh-%d" % time.monotonic_ns()
        self.make(name)
        r = self.exec(name, "echo", "alive")
        assert r["stdout"] == "alive\n", r
        assert self.delete(name).status == 204


def cgroup_roots():
    roots = []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ")
            kind = right.split()[0]
            if kind in ("cgroup", "cgroup2"):
                roots.append(left.split()[4])
    return roots


def cgroup_group(server):
    """cloche-XXXXXXXX, as serve_setup.c names it after the state directory."""
    h = 0xcbf29ce484222325
    for b in os.path.realpath(server.state).encode():
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return "cloche-%08x" % ((h ^ (h >> 32)) & 0xffffffff)


def cgroup_slots(server):
    """Directories of slots that exist, in any hierarchy."""
    found = set()
    for root in cgroup_roots():
        base = os.path.join(root, cgroup_group(server))
        try:
            found.update(n for n in os.listdir(base) if n.startswith("s") and n[1:].isdigit())
        except FileNotFoundError:
            pass  # never made, or just removed
    return found


def cgroup_pids(server):
    """Every process in any of the server's slots."""
    pids = set()
    for root in cgroup_roots():
        base = os.path.join(root, cgroup_group(server))
        for directory, _, files in os.walk(base):
            for name in ("cgroup.procs",):
                if name in files:
                    try:
                        with open(os.path.join(directory, name)) as f:
                            pids.update(int(x) for x in f.read().split())
                    except OSError:
                        pass
    return pids


def agents_of(server):
    return {p for p in cgroup_pids(server)}


def main(names):
    wanted = sys.argv[1:]
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and callable(f)
             and (not wanted or any(w in n for w in wanted))]
    passed = failed = skipped = 0
    shared = None
    flags = names.get("SERVER_FLAGS", [])
    for name, fn in tests:
        start = time.monotonic()
        try:
            if "server" in inspect.signature(fn).parameters:
                if shared is None or shared.process.poll() is not None:
                    shared = Server(*flags)
                fn(shared)
            else:
                fn()
            passed += 1
            verdict = "ok  "
        except Skip as why:
            skipped += 1
            verdict = "SKIP"
            print("SKIP %s: %s" % (name, why))
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            failed += 1
            verdict = "FAIL"
            traceback.print_exc(file=sys.stdout)
            if shared:
                print("--- the server's log, its end:\n" + shared.read_log()[-3000:])
        print("%s %s (%.2f s)" % (verdict, name, time.monotonic() - start), flush=True)
    if shared:
        log = shared.read_log()
        shared.close()
        if "ERROR: AddressSanitizer" in log or "runtime error:" in log or "LeakSanitizer" in log:
            failed += 1
            print("FAIL sanitizer report:\n" + log[-6000:])
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    sys.exit(1 if failed else 0)
