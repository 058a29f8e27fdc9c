#!/usr/bin/env python3
"""A stand-in for the real NoxRunner client, written from the contract (A1, A2, A5, A6, A7): the same
bytes on the wire, the same tests for success. Used as a black box against a server without a key and
one with a key in the base URL, as the real client can send no header."""
import atexit
import io
import json
import os
import socket
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, SLOW

KEY = "compat-0123456789abcdef"


class ClientError(Exception):
    pass


class ClientHTTPError(ClientError):
    def __init__(self, status, message, body):
        super().__init__("HTTP %d: %s: %s" % (status, message, body))
        self.status, self.body = status, body


class Client:
    """One connection per call, no retries, no header but urllib's own."""

    def __init__(self, base_url, timeout=30):
        self.base_url, self.timeout = base_url.rstrip("/"), timeout
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method, path, body=None, content_type=None):
        request = urllib.request.Request(self.base_url + path, data=body, method=method)
        if content_type:
            request.add_header("Content-Type", content_type)
        elif body == b"":  # urllib would invent a form's type; the real client's touch has none
            request.add_unredirected_header("Content-Length", "0")
            request.data = None
        try:
            with self.opener.open(request, timeout=self.timeout) as r:
                return r.status, r.read(), r.headers
        except urllib.error.HTTPError as e:
            raise ClientHTTPError(e.code, e.reason, e.read().decode("utf-8", "replace"))
        except urllib.error.URLError as e:
            raise ClientError("Network error: %s" % e.reason)
        except Exception as e:
            raise ClientError(str(e))

    def health_check(self):
        try:
            status, body, _ = self.call("GET", "/healthz")
            return status == 200 and b"OK" in body
        except Exception:
            return False

    def create_sandbox(self, session_id, ttl_seconds=900, image=None, cpu_limit=None, memory_limit=None,
                       ephemeral_storage_limit=None):
        fields = {"ttlSeconds": ttl_seconds}
        for key, value in (("image", image), ("cpuLimit", cpu_limit), ("memoryLimit", memory_limit),
                           ("ephemeralStorageLimit", ephemeral_storage_limit)):
            if value:
                fields[key] = value
        _, body, _ = self.call("PUT", "/v1/sandboxes/" + session_id, json.dumps(fields).encode(), "application/json")
        return json.loads(body) if body else {}

    def touch(self, session_id):
        return self.call("POST", "/v1/sandboxes/%s/touch" % session_id, b"")[0] == 200

    def exec(self, session_id, cmd, workdir="/workspace", env=None, timeout_seconds=30):
        fields = {"cmd": cmd, "workdir": workdir, "timeoutSeconds": timeout_seconds}
        if env:
            fields["env"] = env
        _, body, _ = self.call("POST", "/v1/sandboxes/%s/exec" % session_id, json.dumps(fields).encode(), "application/json")
        try:
            return json.loads(body)
        except ValueError as e:
            raise ClientError(str(e))

    def exec_shell(self, session_id, command, workdir="/workspace", env=None, timeout_seconds=30, shell="sh"):
        if shell not in ("sh", "bash"):
            raise ValueError(shell)
        return self.exec(session_id, [shell, "-c", command], workdir, env, timeout_seconds)

    def upload_files(self, session_id, files, dest="/workspace"):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as t:
            for name, data in files.items():
                data = data.encode() if isinstance(data, str) else data
                info = tarfile.TarInfo(name)
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))
        query = urllib.parse.urlencode({"dest": dest})
        return self.call("POST", "/v1/sandboxes/%s/files/upload?%s" % (session_id, query), out.getvalue(),
                         "application/x-tar")[0] == 200

    def download_files(self, session_id, src="/workspace"):
        return self.call("GET", "/v1/sandboxes/%s/files/download?%s" % (session_id, urllib.parse.urlencode({"src": src})))[1]

    def download_workspace(self, session_id, local_dir, src="/workspace"):
        """True only when something that is no directory came; skips what it holds for unsafe."""
        try:
            data = self.download_files(session_id, src)
            got = 0
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as t:
                for m in t.getmembers():
                    if m.name.startswith("/") or ".." in m.name or m.isdir():
                        continue
                    t.extract(m, local_dir, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
                    got += 1
            return got > 0
        except Exception:
            return False

    def delete_sandbox(self, session_id):
        return self.call("DELETE", "/v1/sandboxes/" + session_id)[0] in (200, 204)

    def wait_for_pod_ready(self, session_id, timeout=30, interval=2):
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            try:
                if self.exec(session_id, ["echo", "ready"], timeout_seconds=5)["stdout"].strip() == "ready":
                    return True
            except Exception:
                pass
            threading.Event().wait(interval)
        return False

    def cd(self, session_id, workdir, to):
        """The interactive shell's `cd`: the new working directory, or None."""
        r = self.exec(session_id, ["sh", "-c", "test -d %s && echo EXISTS" % to], workdir="/", timeout_seconds=5)
        return to if "EXISTS" in r["stdout"] else None


def refused(status, fn, *args, **kw):
    try:
        fn(*args, **kw)
    except ClientHTTPError as e:
        assert e.status == status, e
        assert "error" in json.loads(e.body), e.body
        return e.body
    raise AssertionError("it was not refused")


_servers = {}


def both():
    """(name, client): plain, and with the key as a prefix of the base URL."""
    if not _servers:
        plain = Server()
        keyed = Server(env={"CLOCHE_API_KEY": KEY}, start=False)
        keyed.key = KEY
        keyed.start()
        _servers.update(plain=plain, keyed=keyed)
        for server in (plain, keyed):
            atexit.register(server.close)
    return [("plain", Client("http://127.0.0.1:%d/" % _servers["plain"].port)),
            ("keyed", Client("http://127.0.0.1:%d/k/%s/" % (_servers["keyed"].port, KEY)))]


def test_what_it_sends():
    """The stand-in is only worth something if its bytes are those of A1 and A2."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = Client("http://127.0.0.1:%d/prefix/" % listener.getsockname()[1], timeout=10)
    seen = []

    def serve(count):
        for _ in range(count):
            c, _ = listener.accept()
            with c:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += c.recv(65536)
                seen.append(head.partition(b"\r\n\r\n")[0].decode().split("\r\n"))
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    t = threading.Thread(target=serve, args=(4,))
    t.start()
    assert client.touch("a")
    client.create_sandbox("..", image="x")
    client.call("GET", "/v1/sandboxes/a/files/download?" + urllib.parse.urlencode({"src": "/workspace/x y/\u00e9"}))
    assert client.delete_sandbox("a%2Fb")
    t.join()
    listener.close()
    lines = [s[0] for s in seen]
    assert lines == ["POST /prefix/v1/sandboxes/a/touch HTTP/1.1", "PUT /prefix/v1/sandboxes/.. HTTP/1.1",
                     "GET /prefix/v1/sandboxes/a/files/download?src=%2Fworkspace%2Fx+y%2F%C3%A9 HTTP/1.1",
                     "DELETE /prefix/v1/sandboxes/a%2Fb HTTP/1.1"], lines
    for s in seen:
        names = {h.partition(":")[0] for h in s[1:]}
        assert {"Accept-Encoding", "Host", "User-Agent", "Connection"} <= names and "Authorization" not in names, s
    assert "Content-Length: 0" in seen[0] and not [h for h in seen[0] if h.startswith("Content-Type")]
    assert "Content-Type: application/json" in seen[1]
    assert not [h for h in seen[3] if h.startswith("Content-Length")]


def test_life():
    for name, c in both():
        assert c.health_check()
        made = c.create_sandbox("life", ttl_seconds=600, cpu_limit="1", memory_limit="512Mi", ephemeral_storage_limit="256Mi")
        assert made["podName"] and made["expiresAt"].endswith("Z")
        assert c.create_sandbox("life")["podName"] == made["podName"]
        assert c.wait_for_pod_ready("life", timeout=5, interval=0.1)
        assert c.touch("life") is True
        r = c.exec("life", ["python3", "-c", "import os; print(os.environ['X'], os.getcwd())"], env={"X": "v"})
        assert (r["exitCode"], r["stdout"], r["stderr"]) == (0, "v /workspace\n", "") and r["durationMs"] >= 0, r
        assert c.delete_sandbox("life") is True
        refused(404, c.delete_sandbox, "life")
        refused(404, c.touch, "life")
        refused(404, c.exec, "life", ["true"])
        refused(404, c.upload_files, "life", {"a": "b"})
        refused(404, c.download_files, "life")
        assert not c.wait_for_pod_ready("life", timeout=0.2, interval=0.1)


def test_wait_for_one_that_comes_later():
    for name, c in both():
        threading.Timer(0.3, lambda: c.create_sandbox("later")).start()
        assert c.wait_for_pod_ready("later", timeout=10, interval=0.1)
        assert c.delete_sandbox("later")


def test_errors():
    for name, c in both():
        refused(400, c.create_sandbox, "bad", ttl_seconds=0)
        refused(400, c.create_sandbox, "bad", memory_limit="lots")
        assert "image_fallback" in refused(400, c.create_sandbox, "bad", image="sandbox-runner:1.0.0")
        for session in ("", ".", "..", "a%2Fb", "%00"):
            refused(400, c.create_sandbox, session)
        refused(404, c.create_sandbox, "a/b")
        c.create_sandbox("err")
        refused(400, c.exec, "err", [])
        refused(400, c.exec, "err", ["true"], timeout_seconds=0)
        refused(400, c.exec, "err", ["true"], workdir="/no/such")
        refused(404, c.download_files, "err", "/workspace/none")
        r = c.exec("err", ["no-such-command"])
        assert r["exitCode"] == 127 and "no-such-command" in r["stderr"]
        assert c.delete_sandbox("err")


def test_refusals_of_large_requests():
    """urllib sends the whole body before it looks for an answer: who refuses early must go on
    reading for a while, or the client sees a broken pipe instead of the reason."""
    big = os.urandom(30 << 20)
    for name, c in both():
        refused(404, c.upload_files, "nobody", {"big": big})
        c.create_sandbox("large")
        refused(413, c.exec, "large", ["echo", "x" * (9 << 20)])
        c.create_sandbox("small", ephemeral_storage_limit="1Mi")
        refused(507, c.upload_files, "small", {"big": big})
        assert c.delete_sandbox("large") and c.delete_sandbox("small")


def test_ids_as_it_sends_them():
    for name, c in both():
        pods = {i: c.create_sandbox(i)["podName"] for i in ("a:b@c", "a%20b", "user-1_x.y~z", "UPPER", "upper")}
        assert len(set(pods.values())) == len(pods)
        assert c.create_sandbox("upper?tail")["podName"] == pods["upper"]
        assert c.create_sandbox("upper#tail")["podName"] == pods["upper"]
        for i in pods:
            assert c.delete_sandbox(i)


def test_shell():
    for name, c in both():
        c.create_sandbox("sh")
        assert c.exec_shell("sh", "echo $0 $((6*7)) | cat; exit 3")["exitCode"] == 3
        assert c.exec_shell("sh", "a=(1 2 3); echo ${a[1]}", shell="bash")["stdout"] == "2\n"
        c.exec_shell("sh", "mkdir -p sub/deep; echo here > sub/deep/f")
        # the interactive shell's `cd`, with workdir '/'
        assert c.cd("sh", "/workspace", "/workspace/sub/deep") and c.cd("sh", "/", "/usr") and not c.cd("sh", "/", "/none")
        assert c.exec_shell("sh", "cat f; pwd", workdir="/workspace/sub/deep")["stdout"] == "here\n/workspace/sub/deep\n"
        assert c.exec_shell("sh", "pwd", workdir="/")["stdout"] == "/\n"
        assert c.delete_sandbox("sh")


FILES = {"main.py": "print('hi')\n", "data/\u00e9 \u4e2d.txt": "caf\u00e9", "data/deep/" + "n" * 150: b"long", "bin": bytes(range(256)) * 100,
         "empty": ""}


def test_files():
    for name, c in both():
        c.create_sandbox("files")
        assert c.upload_files("files", FILES) is True
        assert c.upload_files("files", {"x": "1"}, dest="/workspace/x y/\u00e9") is True
        assert c.exec("files", ["python3", "main.py"])["stdout"] == "hi\n"
        with tempfile.TemporaryDirectory() as d:
            assert c.download_workspace("files", d) is True
            for path, data in dict(FILES, **{"x y/\u00e9/x": "1"}).items():
                with open(os.path.join(d, path), "rb") as f:
                    assert f.read() == (data.encode() if isinstance(data, str) else data), path
        with tarfile.open(fileobj=io.BytesIO(c.download_files("files")), mode="r:gz") as t:  # as `noxrc download`
            names = t.getnames()
        assert all(not n.startswith(("/", "./")) for n in names) and "main.py" in names, names
        with tempfile.TemporaryDirectory() as d:
            assert c.download_workspace("files", d, src="/workspace/data/deep") is True
            assert os.listdir(d) == ["n" * 150]
        # nothing but one file by its own name
        with tempfile.TemporaryDirectory() as d:
            assert c.download_workspace("files", d, src="/workspace/main.py") is True
            assert os.listdir(d) == ["main.py"]
        # names that it sends as they are
        assert c.upload_files("files", {"/abs.txt": "a", "../up.txt": "u", "ok.txt": "o"}) is True
        r = c.exec_shell("files", "cat /workspace/abs.txt /workspace/ok.txt; ls /abs.txt /up.txt /workspace/up.txt")
        assert r["stdout"] == "ao" and r["exitCode"] != 0, r
        assert c.delete_sandbox("files")


def test_workspace_that_holds_odd_things():
    """None of them may make the client's extraction fail as a whole."""
    for name, c in both():
        c.create_sandbox("odd")
        with tempfile.TemporaryDirectory() as d:
            assert c.download_workspace("odd", d) is False  # empty: the client calls that a failure
        c.exec_shell("odd", "echo x > f; ln -s f good; ln -s /etc/passwd abs; ln -s ../../etc/passwd out; mkfifo p; mkdir e; "
                            "ln -s nowhere dangling; ln f hard; chmod 755 f; printf '#' > b..c")
        with tempfile.TemporaryDirectory() as d:
            assert c.download_workspace("odd", d) is True
            with open(d + "/good") as f:
                assert f.read() == "x\n"
            assert os.stat(d + "/f").st_mode & 0o777 == 0o755
            left = set(os.listdir(d))
            assert {"f", "good", "hard"} <= left and not {"abs", "out", "p"} & left, left
        assert c.delete_sandbox("odd")


def test_timeouts():
    for name, c in both():
        c.create_sandbox("slow")
        r = c.exec("slow", ["sh", "-c", "echo part; sleep 30"], timeout_seconds=1)
        assert (r["exitCode"], r["stdout"]) == (124, "part\n") and "timed out after 1 seconds" in r["stderr"], r
        assert c.delete_sandbox("slow")


def test_the_trap():
    """A8: the client's socket timeout is shorter than the command, and the heartbeat carries it over."""
    server = Server("--heartbeat-seconds", "1", "--pool-size", "0", env={"CLOCHE_API_KEY": KEY}, start=False)
    server.key = KEY
    server.start()
    try:
        c = Client("http://127.0.0.1:%d/k/%s" % (server.port, KEY), timeout=2 * SLOW)
        c.create_sandbox("trap")
        r = c.exec("trap", ["sh", "-c", "sleep %d; echo survived" % (3 * SLOW)], timeout_seconds=30 * SLOW)
        assert r["stdout"] == "survived\n", r
        r = c.exec("trap", ["sleep", "60"], timeout_seconds=3 * SLOW)
        assert r["exitCode"] == 124, r
    finally:
        server.close()


def test_wrong_key():
    both()
    for base in ("", "/k/", "/k/wrong-0123456789abcdef", "/k/" + KEY[:-1]):
        c = Client("http://127.0.0.1:%d%s" % (_servers["keyed"].port, base))
        try:
            c.create_sandbox("x")
        except ClientHTTPError as e:
            assert e.status in (401, 404) and "error" in json.loads(e.body), e
        else:
            raise AssertionError("it went through with " + base)
    assert Client("http://127.0.0.1:%d" % _servers["keyed"].port).health_check()


def test_no_server():
    c = Client("http://127.0.0.1:%d" % harness.free_port())
    assert c.health_check() is False
    try:
        c.create_sandbox("x")
    except ClientError as e:
        assert "Network error" in str(e)
    else:
        raise AssertionError("who answered?")


def test_nothing_is_left():
    """The last: both servers are as they were, and the key was written nowhere."""
    for name, server in _servers.items():
        server.assert_healthy()
        stats = server.stats()
        assert stats["sandboxes"] == 0, (name, stats)
        assert KEY not in server.read_log()


harness.main(globals())
