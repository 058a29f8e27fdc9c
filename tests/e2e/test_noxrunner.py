#!/usr/bin/env python3
"""NoxRunner v1 over real HTTP: every endpoint, every status, every row of the contract's A9."""
import calendar
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.parse
import urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, eventually, SLOW

_count = [0]
_names = []


def fresh(server=None, **fields):
    """A name that nobody else has; with a server, a live sandbox of that name."""
    _count[0] += 1
    name = "t%d-%d" % (os.getpid(), _count[0])
    _names.append(name)
    if server:
        server.make(name, **fields)
    return name


def marker():
    """A number that only one command line of this machine holds."""
    _count[0] += 1
    return "7%d.%d%04d" % (os.getpid(), time.time_ns() % 10**9, _count[0])


def host_pids(mark):
    """Processes of the host, zombies aside, whose command line holds mark."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                if mark.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def error_of(reply, status):
    """Asserts the shape of an error and returns its text."""
    assert reply.status == status, reply
    assert reply.headers["Content-Type"] == "application/json", reply.headers
    body = reply.json
    assert list(body) == ["error"] and isinstance(body["error"], str) and body["error"], body
    return body["error"]


def parallel(count, fn):
    """fn(i) in count threads at once; returns the results, raises the first failure."""
    results, failures = [None] * count, []
    gate = threading.Barrier(count)

    def run(i):
        try:
            gate.wait()
            results[i] = fn(i)
        except BaseException as e:
            failures.append(e)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    return results


class Background:
    """fn() in a thread; result() joins and hands it over."""

    def __init__(self, fn):
        self.out = self.failed = None
        self.thread = threading.Thread(target=self.run, args=(fn,))
        self.thread.start()

    def run(self, fn):
        try:
            self.out = fn()
        except BaseException as e:
            self.failed = e

    def result(self):
        self.thread.join()
        if self.failed:
            raise self.failed
        return self.out


def expiry_of(made):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["expiresAt"]), made
    return calendar.timegm(time.strptime(made["expiresAt"], "%Y-%m-%dT%H:%M:%SZ"))


def put_raw(server, box, body, headers=None):
    return server.request("PUT", "/v1/sandboxes/" + box, body, headers)


def exec_raw(server, box, body):
    return server.request("POST", "/v1/sandboxes/%s/exec" % box, body)


# --- health, paths, methods ------------------------------------------------------------


def test_health(server):
    r = server.request("GET", "/healthz")
    assert (r.status, r.body) == (200, b"OK")
    assert r.headers["Content-Type"] == "text/plain"
    r = server.request("GET", "/healthz?x=1")
    assert (r.status, r.body) == (200, b"OK")


def test_head_health(server):
    c = server.connect()
    c.request("HEAD", "/healthz")
    r = c.getresponse()
    assert r.status == 200 and r.read() == b"" and r.getheader("Content-Length") == "2"
    c.request("GET", "/healthz")  # the connection is in step after a HEAD
    assert c.getresponse().read() == b"OK"
    c.close()


def test_unknown_paths(server):
    for path in ("/", "/v1", "/v1/", "/v1/sandboxes", "/v1/sandboxes/a/b", "/v1/sandboxes/a/exec/",
                 "/v1/sandboxes/a/exec/b", "/v1/sandboxes/a/files", "/v1/sandboxes/a/files/",
                 "/V1/sandboxes/a", "/healthz/", "//healthz", "/v2/sandboxes/a", "/v1//sandboxes/a"):
        for method in ("GET", "PUT", "POST", "DELETE"):
            error_of(server.request(method, path), 404)


def test_wrong_method(server):
    for path, allowed in (("/healthz", {"GET", "HEAD"}), ("/v1/sandboxes/a", {"PUT", "DELETE"}),
                          ("/v1/sandboxes/a/touch", {"POST"}), ("/v1/sandboxes/a/exec", {"POST"}),
                          ("/v1/sandboxes/a/files/upload", {"POST"}),
                          ("/v1/sandboxes/a/files/download", {"GET"})):
        for method in ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"):
            if method in allowed:
                continue
            r = server.request(method, path)
            error_of(r, 405)
            assert set(r.headers["Allow"].split(", ")) == allowed, (path, r.headers)


def test_request_id(server):
    seen = set()
    for _ in range(3):
        seen.add(server.request("GET", "/healthz").headers["X-Request-ID"])
    assert len(seen) == 3 and all(len(i) >= 8 for i in seen)
    for given in ("abc", "x" * 128, "a b;c=d\"e\\"):
        assert server.request("GET", "/healthz", headers={"X-Request-ID": given}).headers["X-Request-ID"] == given
    for bad in ("x" * 129, "\u00e9", ""):
        got = server.request("GET", "/healthz", headers={"X-Request-ID": bad.encode("utf-8")}).headers["X-Request-ID"]
        assert got != bad and re.fullmatch(r"[\x21-\x7e]{8,}", got), got
    twice = server.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       b"X-Request-ID: one\r\nX-Request-ID: two\r\n\r\n")
    assert b"X-Request-ID: one" not in twice and b"X-Request-ID: two" not in twice and b"X-Request-ID: " in twice
    # also on what fails
    given = {"X-Request-ID": "mine-1"}
    for method, path, body in (("GET", "/nope", None), ("DELETE", "/v1/sandboxes/nope", None), ("PUT", "/healthz", None),
                               ("PUT", "/v1/sandboxes/nope", b"{")):
        r = server.request(method, path, body, headers=given)
        assert r.status >= 400 and r.headers["X-Request-ID"] == "mine-1", r.headers
    assert "request_id=mine-1" in server.read_log()


def test_host_and_origin(server):
    """Without a key, a web page must not reach us: neither directly nor by DNS rebinding."""
    port = server.port
    for host in ("evil.example", "evil.example:%d" % port, "localhost.evil.example", "127.0.0.1.evil.example"):
        error_of(put_raw(server, "rebound", b"{}", {"Host": host}), 403)
    for origin in ("http://evil.example", "null", "https://localhost:%d" % port, "http://localhost:1",
                   "http://localhost:%d.evil.example" % port):
        error_of(put_raw(server, "rebound", b"{}", {"Host": "localhost:%d" % port, "Origin": origin}), 403)
    error_of(server.delete("rebound"), 404)  # none of them made one
    for host in ("localhost", "LOCALHOST:%d" % port, "127.0.0.1:%d" % port, "[::1]:%d" % port, "app.localhost"):
        assert server.request("GET", "/healthz", headers={"Host": host}).status == 200, host
    host = "localhost:%d" % port
    assert server.request("GET", "/healthz", headers={"Host": host, "Origin": "http://" + host}).status == 200


# --- PUT -------------------------------------------------------------------------------


def test_put_answer(server):
    name = fresh()
    before = time.time()
    r = put_raw(server, name, b'{"ttlSeconds":900}')
    assert r.status == 200 and r.headers["Content-Type"] == "application/json"
    made = r.json
    assert sorted(made) == ["expiresAt", "podName"]
    assert re.fullmatch(r"sbx-[0-9a-f]{10}", made["podName"]), made
    assert before + 900 - 1.5 <= expiry_of(made) <= time.time() + 900 + 1, made
    assert server.make(name)["podName"] == made["podName"]
    assert server.make(fresh())["podName"] != made["podName"]
    assert server.delete(name).status == 204
    assert server.make(name)["podName"] != made["podName"]  # another life, another pod


def test_put_is_idempotent(server):
    name = fresh()
    first = server.make(name, ttlSeconds=100, memoryLimit="128Mi", cpuLimit="1")
    server.sh(name, "echo kept > file; mkdir d; echo too > d/e")
    again = server.make(name, ttlSeconds=5000, memoryLimit="64Mi", cpuLimit="2", ephemeralStorageLimit="1Mi")
    assert again["podName"] == first["podName"]
    assert abs(expiry_of(again) - time.time() - 5000) < 3  # time starts anew, with the new ttl
    r = server.sh(name, "cat file d/e; grep MemTotal /proc/meminfo; nproc")
    assert r["stdout"].split() == ["kept", "too", "MemTotal:", "131072", "kB", "1"], r  # limits stay
    shorter = server.make(name, ttlSeconds=50)
    assert abs(expiry_of(shorter) - time.time() - 50) < 3
    # what is wrong is wrong also when the sandbox exists
    error_of(server.put(name, memoryLimit="lots"), 400)
    error_of(server.put(name, ttlSeconds=0), 400)
    assert server.exec(name, "cat", "file")["stdout"] == "kept\n"


def test_ttl_values(server):
    name = fresh()
    for body in (b"", b"{}", b'{"ttlSeconds":null}', b'{"image":"host"}', b'  {"ttlSeconds" : 900 }\n'):
        r = put_raw(server, name, body)
        assert r.status == 200 and abs(expiry_of(r.json) - time.time() - 900) < 3, (body, r)
    assert server.put(name, ttlSeconds=31536000).status == 200
    bad = fresh()
    for ttl in ("0", "-1", "1.5", "900.0", '"900"', "true", "[]", "{}", "31536001", "9223372036854775807",
                "9223372036854775808", "-9223372036854775809", "1e18", "1e3", "9999999999999999999999", "NaN", "-0"):
        error_of(put_raw(server, bad, b'{"ttlSeconds":%s}' % ttl.encode()), 400)
    error_of(server.delete(bad), 404)  # nothing was made


def test_unknown_fields_are_ignored(server):
    name = fresh()
    r = server.put(name, future={"a": [1, {"b": None}]}, x=None, TTLSECONDS=-1, y=1.5)
    assert r.status == 200, r
    r = server.exec(name, "echo", "hi", shell=True, future=[1], stdin="abc")
    assert r["stdout"] == "hi\n"


BAD_JSON = {
    "deep nesting": b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}",
    "deep objects": b'{"a":' * 100000 + b"1" + b"}" * 100000,
    "open arrays": b"[" * 100000,
    "duplicate keys": b'{"ttlSeconds":1,"ttlSeconds":900}',
    "duplicate by escape": b'{"ttlSeconds":1,"ttlSecond\\u0073":900}',
    "duplicate below": b'{"x":{"a":1,"a":2}}',
    "1e999": b'{"x":1e999}',
    "-1e999": b'{"x":-1e999}',
    "2^64+1": b'{"x":18446744073709551617}',
    "lone high": b'{"x":"\\ud800"}',
    "lone low": b'{"x":"\\udc00"}',
    "swapped pair": b'{"x":"\\udc00\\ud800"}',
    "high then text": b'{"x":"\\ud800abc"}',
    "raw surrogate": b'{"x":"\xed\xa0\x80"}',
    "invalid utf-8": b'{"x":"\xff"}',
    "overlong": b'{"x":"\xc0\xaf"}',
    "utf-8 cut short": b'{"x":"\xe2\x82"}',
    "beyond unicode": b'{"x":"\xf4\x90\x80\x80"}',
    "bom": b'\xef\xbb\xbf{"ttlSeconds":900}',
    "utf-16": '{"ttlSeconds":900}'.encode("utf-16"),
    "trailing comma": b'{"ttlSeconds":900,}',
    "trailing comma in array": b'{"x":[1,]}',
    "escaped NUL": b'{"x":"a\\u0000b"}',
    "escaped NUL in a key": b'{"a\\u0000b":1}',
    "raw NUL": b'{"x":"a\x00b"}',
    "NUL behind": b'{"ttlSeconds":900}\x00',
    "text behind": b'{"ttlSeconds":900} x',
    "two values": b'{"ttlSeconds":900}{}',
    "raw newline in string": b'{"x":"a\nb"}',
    "single quotes": b"{'ttlSeconds':900}",
    "no quotes": b"{ttlSeconds:900}",
    "comment": b'{"ttlSeconds":900/* x */}',
    "leading zero": b'{"x":0900}',
    "plus": b'{"x":+9}',
    "hex": b'{"x":0x10}',
    "point": b'{"x":.5}',
    "point behind": b'{"x":5.}',
    "NaN": b'{"x":NaN}',
    "Infinity": b'{"x":Infinity}',
    "True": b'{"x":True}',
    "bad escape": b'{"x":"\\q"}',
    "short escape": b'{"x":"\\u12"}',
    "array": b"[]", "string": b'"x"', "number": b"1", "null": b"null", "true": b"true",
    "white space": b" \n", "cut": b'{"ttlSeconds":9', "open": b"{", "form": b"ttlSeconds=900",
}


def test_bad_json(server):
    live = fresh(server)
    name = fresh()
    for what, body in BAD_JSON.items():
        for reply in (put_raw(server, name, body), exec_raw(server, live, body)):
            assert reply.status == 400, (what, reply)
            error_of(reply, 400)
    error_of(server.delete(name), 404)
    server.assert_healthy()


def test_json_of_many_values(server):
    """Small on the wire, huge and slow once parsed, and one thread serves all."""
    name = fresh(server)
    for unit in (b"{},", b"[],", b"1,", b'"",', b'"\\"",'):
        body = b'{"cmd":["true"],"x":[%s0]}' % (unit * ((4 << 20) // len(unit)))
        for reply in (exec_raw(server, name, body), put_raw(server, name, body)):
            assert "values" in error_of(reply, 400), reply
    r = exec_raw(server, name, b'{"cmd":["true","%s","%s\\\\"]}' % (b"," * 131000, b'\\"[' * 60000))
    assert r.status == 200 and r.json["exitCode"] == 0, r  # no value begins in a string
    r = exec_raw(server, name, {"cmd": ["true"] + ["a"] * 65535, "env": {"A%d" % i: "" for i in range(4096)}})
    assert r.status == 200 and r.json["exitCode"] == 0, r  # as much as a command may have


def test_odd_but_valid_json(server):
    name = fresh(server)
    r = exec_raw(server, name, b'\t\r\n {"cmd":["echo","\\ud83d\\ude00\\u00e9\xe2\x82\xac\\/"],"x":-0,"y":1E-2} \n')
    assert r.status == 200 and r.json["stdout"] == "\U0001f600\u00e9\u20ac/\n", r
    r = server.request("POST", "/v1/sandboxes/%s/exec" % name, b'{"cmd":["echo","form"]}',
                       {"Content-Type": "application/x-www-form-urlencoded"})  # what curl -d says
    assert r.status == 200 and r.json["stdout"] == "form\n"


def test_body_too_large(server):
    name = fresh(server)
    # said at once when the length tells, and otherwise when it is passed
    got = server.raw(b"POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: a.localhost\r\nContent-Length: %d\r\n\r\n"
                     % (name.encode(), (8 << 20) + 1))
    assert got.startswith(b"HTTP/1.1 413 ") and b'{"error":' in got, got
    got = server.raw(b"POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: a.localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                     % name.encode() + b"400000\r\n" + b" " * (4 << 20) + b"\r\n400001\r\n" + b" " * (4 << 20) + b" \r\n")
    assert got.startswith(b"HTTP/1.1 413 ") and b'{"error":' in got, got
    r = exec_raw(server, name, b'{"cmd":["true"],"x":"' + b"a" * ((8 << 20) - 1000) + b'"}')
    assert r.status == 200 and r.json["exitCode"] == 0
    server.assert_healthy()


# --- session ids -------------------------------------------------------------------------


def test_session_ids_refused(server):
    for segment in ("", ".", "..", "%2e", "%2E%2e", ".%2e", "a%2Fb", "%2f", "..%2f..%2fetc", "%2e%2e%2f", "%00", "a%00b",
                    "%ff", "%c0%af", "%ed%a0%80", "%", "a%", "%4", "%zz", "%%20", "a" * 1025, "%c3%a9" * 513):
        for method, tail in (("PUT", ""), ("DELETE", ""), ("POST", "/touch"), ("POST", "/exec"),
                             ("POST", "/files/upload"), ("GET", "/files/download")):
            body = b'{"cmd":["true"]}' if method in ("PUT", "POST") else None
            r = server.request(method, "/v1/sandboxes/" + segment + tail, body)
            assert r.status == 400, (method, segment[:40], tail, r)
            error_of(r, 400)


def test_session_ids_any_string(server):
    pods = {}
    for segment in ("a:b@c", "a%20b", "a%2520b", "a+b", "A%20B", "...", "..a", "%C3%A9", "%F0%9F%98%80", "x" * 1024,
                    "%61" * 1023, "%c3%a9" * 512, "a%0d%0aX-Evil:%201", "%1b[31m", "%7f", "-", "run", "lock", "store.db",
                    "default", "con", "a;b", "a=b", "a&b", "~", "'%22", "%5c..%5c", "*", "sbx-0123456789"):
        r = server.put(segment)
        assert r.status == 200, (segment[:40], r)
        assert "X-Evil" not in r.headers
        pods[segment] = r.json["podName"]
    assert len(set(pods.values())) == len(pods)
    # one id however it is written
    assert server.make("%61%3ab%40c")["podName"] == pods["a:b@c"]
    assert server.make("%c3%a9")["podName"] == pods["%C3%A9"]
    assert server.make("%2b")["podName"] == server.make("+")["podName"]
    assert server.make("a%20b?ttlSeconds=1&x=%zz")["podName"] == pods["a%20b"]
    assert server.exec("%41%20B", "echo", "x")["stdout"] == "x\n"
    assert server.delete("%2b").status == 204
    for segment in pods:
        assert server.delete(segment).status == 204, segment
    error_of(server.delete("a%20b"), 404)


def test_session_id_case(server):
    assert server.make("CaseD")["podName"] != server.make("cased")["podName"]
    assert server.delete("CaseD").status == 204
    error_of(server.exec_reply("CaseD", "true"), 404)
    assert server.exec("cased", "true")["exitCode"] == 0
    server.delete("cased")


def test_session_id_raw_bytes(server):
    """UTF-8 sent without escapes is the same id, or refused: never another one."""
    pod = server.make("%C3%BC")["podName"]
    got = server.raw("PUT /v1/sandboxes/\u00fc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
                     .encode())
    assert got.startswith(b"HTTP/1.1 400 ") or pod.encode() in got, got
    server.delete("%C3%BC")


def test_unknown_id(server):
    for method, tail, body in (("POST", "/exec", b'{"cmd":["true"]}'), ("POST", "/touch", None),
                               ("POST", "/files/upload", b""), ("GET", "/files/download", None), ("DELETE", "", None)):
        error_of(server.request(method, "/v1/sandboxes/nobody" + tail, body), 404)
    # none of these made one
    error_of(server.delete("nobody"), 404)


# --- exec ----------------------------------------------------------------------------------


def test_exec_answer(server):
    r = server.exec(fresh(server), "sh", "-c", "echo out; echo err >&2; exit 3")
    assert sorted(r) == ["durationMs", "exitCode", "reason", "signal", "stderr", "stderrTruncated", "stdout",
                         "stdoutTruncated"]
    assert (r["exitCode"], r["stdout"], r["stderr"], r["reason"], r["signal"]) == (3, "out\n", "err\n", "exited", 0)
    assert r["stdoutTruncated"] is False and r["stderrTruncated"] is False
    assert isinstance(r["durationMs"], int) and 0 <= r["durationMs"] < 5000 * SLOW


def test_output_streams_by_name(server):
    """Programs that log to a file are told to log to /dev/stdout."""
    name = fresh(server)
    r = server.sh(name, "echo a > /dev/stdout; echo b > /dev/stderr; echo c >> /proc/self/fd/1; cat < /dev/stdin; "
                        "cat /proc/$$/fd/1")
    assert (r["stdout"], r["stderr"].splitlines()[0]) == ("a\nc\n", "b"), r
    assert "ermission denied" in r["stderr"], "what was written is the agent's to read: %r" % r


def test_exit_codes(server):
    name = fresh(server)
    for code in (0, 1, 2, 42, 124, 126, 127, 128, 137, 255):
        r = server.sh(name, "exit %d" % code)
        assert (r["exitCode"], r["reason"], r["signal"]) == (code, "exited", 0), r


def test_command_not_found(server):
    name = fresh(server)
    for cmd in ("no-such-command", "/no/such", "./nothing", "/etc/passwd/x"):
        r = server.exec(name, cmd, "arg")
        assert (r["exitCode"], r["stdout"], r["reason"]) == (127, "", "exited"), r
        assert r["stderr"] == "Command not found: %s\n" % cmd, r


def test_not_executable(server):
    name = fresh(server)
    server.sh(name, "echo 'echo hi' > plain; printf 'garbage' > bad; chmod 755 bad; "
                    "printf '#!/no/interpreter\\n' > lost; chmod 755 lost")
    for cmd in ("./plain", "/workspace", "/etc/passwd"):
        r = server.exec(name, cmd)
        assert (r["exitCode"], r["stdout"], r["reason"]) == (126, "", "exited") and cmd in r["stderr"], r
    r = server.exec(name, "./bad")
    assert r["exitCode"] == 126 and r["stderr"], r
    assert server.exec(name, "./lost")["exitCode"] in (126, 127)
    r = server.exec(name, "plain", env={"PATH": "/workspace"})
    assert r["exitCode"] == 126, r


def test_killed_by_signal(server):
    name = fresh(server)
    for sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGPIPE, signal.SIGABRT,
                signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN, 64):
        r = server.sh(name, "echo before; kill -%d $$; sleep 1" % sig)
        assert (r["exitCode"], r["signal"], r["reason"]) == (128 + sig, sig, "signaled"), (sig, r)
        assert r["stdout"] == "before\n"


def test_signals_start_at_their_defaults(server):
    """Neither ignored nor blocked: whatever the server and its helpers do with theirs."""
    r = server.sh(fresh(server), "grep -E '^Sig(Ign|Blk)' /proc/self/status; umask")
    assert r["stdout"].split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16, "0022"], r


def test_signals_ignored_by_the_servers_parent():
    """`nohup cloche serve &` must not make every sandbox deaf to SIGHUP and SIGINT."""
    server = Server("--pool-size", "0", wrapper=["env", "--ignore-signal=HUP,INT,QUIT,USR2"])
    try:
        server.make("a")
        r = server.exec("a", "grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
        assert r["stdout"].split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16], r
    finally:
        server.close()


def test_cmd_refused(server):
    name = fresh(server)
    for cmd in ([], None, "echo hi", {}, 1, True, [1], ["echo", 1], ["echo", None], ["echo", ["x"]], [""], ["", "x"],
                ["echo", {"a": "b"}], [True]):
        error_of(exec_raw(server, name, {"cmd": cmd}), 400)
    error_of(exec_raw(server, name, b"{}"), 400)
    error_of(exec_raw(server, name, b""), 400)
    error_of(exec_raw(server, name, b'{"cmd":["echo","a\\u0000b"]}'), 400)
    assert server.exec(name, "echo", "", "x")["stdout"] == " x\n"  # only cmd[0] must say something


def test_cmd_too_large(server):
    name = fresh(server)
    r = server.exec(name, "sh", "-c", 'printf %s "$1" | wc -c', "x", "a" * 131000)
    assert r["stdout"].strip() == "131000", r
    for cmd in (["echo", "a" * 131072], ["echo"] + ["a"] * 65536, ["echo"] + ["a" * 100000] * 17):
        error_of(exec_raw(server, name, {"cmd": cmd}), 400)
    error_of(exec_raw(server, name, {"cmd": ["true"], "env": {"A": "a" * 131072}}), 400)
    error_of(exec_raw(server, name, {"cmd": ["true"], "env": {"A%d" % i: "" for i in range(4097)}}), 400)
    r = server.exec(name, "sh", "-c", "echo $#", "x", *["a"] * 20000)
    assert r["stdout"] == "20000\n"


def test_env(server):
    name = fresh(server)
    r = server.exec(name, "env", env={"X": "a b\n$HOME", "HOME": "/tmp", "EMPTY": "", "\u00e9": "\u20ac"})
    lines = r["stdout"]
    assert "X=a b\n$HOME\n" in lines and "\nHOME=/tmp\n" in "\n" + lines and "EMPTY=\n" in lines and "\u00e9=\u20ac\n" in lines, r
    assert lines.count("HOME=/") == 1, r  # replaced, not added
    base = dict(line.split("=", 1) for line in server.exec(name, "env")["stdout"].splitlines())
    assert base["HOME"] == "/workspace" and "/usr/bin" in base["PATH"], base
    assert not [k for k in base if k.startswith("CLOCHE") or k.startswith("ASAN")], base  # nothing of the server's
    r = server.exec(name, "only-here", env={"PATH": "/nowhere"})
    assert r["exitCode"] == 127
    server.sh(name, "mkdir bin; printf '#!/bin/sh\\necho mine\\n' > bin/only-here; chmod 755 bin/only-here")
    assert server.exec(name, "only-here", env={"PATH": "/workspace/bin:/usr/bin:/bin"})["stdout"] == "mine\n"
    assert server.exec(name, "true", env={})["exitCode"] == 0
    assert server.exec(name, "true", env=None)["exitCode"] == 0
    for env in ({"A": 1}, {"A": None}, {"A": True}, {"A": ["x"]}, ["A=b"], "A=b", 1, {"": "x"}, {"A=B": "x"}, {"=x": "y"}):
        error_of(exec_raw(server, name, {"cmd": ["env"], "env": env}), 400)


def test_stdin_is_null(server):
    name = fresh(server)
    r = server.sh(name, "cat; readlink /proc/self/fd/0; ls /proc/self/fd")
    assert r["exitCode"] == 0 and r["stdout"].split()[0] == "/dev/null", r
    # ls opens the directory itself as 3; nothing else leaks in
    assert r["stdout"].split()[1:] == ["0", "1", "2", "3"], r


def test_no_shell_expansion(server):
    name = fresh(server)
    r = server.exec(name, "echo", "$X", "$(id)", "`id`", "*", "~", ";", "|", ">", "a  b", env={"X": "no"})
    assert r["stdout"] == "$X $(id) `id` * ~ ; | > a  b\n"


def test_output_bytes(server):
    name = fresh(server)
    r = server.python(name, "import os; os.write(1, b'a\\xff\\xfeb\\xc3\\xa9\\xe2\\x82z\\xed\\xa0\\x80'); os.write(2, b'\\x80')")
    assert r["stdout"].startswith("a\ufffd\ufffdb\u00e9\ufffd") and "z" in r["stdout"], r
    assert r["stdout"].replace("\ufffd", "") == "ab\u00e9z" and r["stderr"] == "\ufffd", r
    r = server.python(name, "import os; os.write(1, b'a\\r\\nb\\rc\\x00d\\x1b[0m\\x7f\\\\\"\\t\\x08')")
    assert r["stdout"] == "a\r\nb\rc\0d\x1b[0m\x7f\\\"\t\x08", r
    r = server.python(name, "import os; os.write(1, '\\u2028\\U0001f600\\ufeff'.encode())")
    assert r["stdout"] == "\u2028\U0001f600\ufeff"


def test_output_limit(server):
    name = fresh(server)
    mib = 1 << 20
    r = server.python(name, "import os,sys; sys.stdout.write('x' * %d)" % mib)
    assert r["stdout"] == "x" * mib and r["stdoutTruncated"] is False
    r = server.python(name, "import sys; sys.stdout.write('HEAD' + 'x' * 5000000 + 'TAIL'); sys.stderr.write('e')")
    assert r["stdoutTruncated"] is True and r["stderrTruncated"] is False and r["stderr"] == "e"
    out = r["stdout"]
    assert out.startswith("HEADxxx") and out.endswith("xxxTAIL") and mib <= len(out) <= mib + 200, len(out)
    left = re.search(r"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", out)
    assert left and int(left.group(1)) == 5000008 - mib, left
    r = server.python(name, "import sys; sys.stderr.write('x' * %d)" % (mib + 1))
    assert r["stderrTruncated"] is True and r["stdoutTruncated"] is False and " 1 bytes left out" in r["stderr"]


def test_output_flood_keeps_memory_flat(server):
    def rss():
        with open("/proc/%d/status" % server.process.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024
    name = fresh(server)
    server.exec(name, "true")
    before = rss()
    r = server.sh(name, "head -c 400000000 /dev/zero | tr '\\0' y; echo end")
    assert r["stdout"].endswith("yend\n") and r["stdoutTruncated"] is True
    assert rss() - before < (20 << 20) * SLOW, (before, rss())


def test_output_limit_setting():
    server = Server("--output-bytes", "2000", "--pool-size", "0")
    try:
        server.make("a")
        r = server.python("a", "print('a' * 1500 + 'b' * 1500, end='')")
        assert r["stdoutTruncated"] is True
        assert r["stdout"] == "a" * 1000 + "\n[... 1000 bytes left out ...]\n" + "b" * 1000
        assert server.python("a", "print('a' * 1999)")["stdoutTruncated"] is False
        # a character cut by the limit is no invalid JSON
        assert server.python("a", "print('\\u20ac' * 5000)")["stdoutTruncated"] is True
    finally:
        server.close()


def test_workdir(server):
    name = fresh(server)

    def pwd(workdir):
        return server.exec(name, "pwd", workdir=workdir)["stdout"].rstrip("\n")
    assert server.exec(name, "pwd")["stdout"] == "/workspace\n"
    for given, real in (("/workspace", "/workspace"), ("/workspace/", "/workspace"), (None, "/workspace"),
                        ("", "/workspace"), ("/", "/"), ("/usr", "/usr"), ("/tmp", "/tmp"),
                        ("/workspace/new/deep", "/workspace/new/deep"), ("rel/\u00e9 x", "/workspace/rel/\u00e9 x"),
                        (".", "/workspace"), ("..", "/"), ("/workspace/new/../new", "/workspace/new"),
                        ("rel/", "/workspace/rel"), ("/workspace//dd//e/", "/workspace/dd/e")):
        assert pwd(given) == real, (given, pwd(given))
    r = server.sh(name, "stat -c %U:%a /workspace/new/deep rel; id -un")
    owner = r["stdout"].split()[-1]
    assert r["stdout"].split()[:2] == ["%s:755" % owner] * 2, r
    server.sh(name, "ln -s /usr link; echo > file; mkdir -m 0 closed; ln -s /missing dangling")
    assert pwd("link") == "/usr"
    for bad in ("/no/such", "/usr/new", "/tmp/new", "file", "/workspace/file/x", "closed", "../new2", "/workspace/../etc/new",
                "/workspace/no/../x", "dangling", "a" * 300, "x/" * 3000, "/proc/self/fd/3", "/proc/1/root"):
        assert server.exec_reply(name, "pwd", workdir=bad).status == 400, bad
        error_of(server.exec_reply(name, "pwd", workdir=bad), 400)
    for bad in (1, True, [], {}):
        error_of(server.exec_reply(name, "pwd", workdir=bad), 400)
    error_of(exec_raw(server, name, b'{"cmd":["pwd"],"workdir":"a\\u0000b"}'), 400)


def test_workspace_is_the_users(server):
    name = fresh(server)
    r = server.sh(name, "id -u; stat -c %u /workspace; pwd; echo x > f && mkdir d && cat f; id -G")
    uid, owner, pwd, text, groups = r["stdout"].split()
    assert (r["exitCode"], pwd, text) == (0, "/workspace", "x") and uid == owner and uid != "0" and groups == uid, r


def test_programs(server):
    name = fresh(server)
    r = server.sh(name, "for p in sh bash python3 echo cat head ls mkdir pwd printenv sleep test rm cp mv grep sed env; do "
                        "command -v $p > /dev/null || echo missing $p; done")
    assert (r["exitCode"], r["stdout"]) == (0, ""), r
    # nothing is blocked by name: the isolation does it
    assert server.sh(name, "touch x && rm x && mkdir y && rmdir y && chmod 755 . && dd if=/dev/zero of=z count=1")["exitCode"] == 0


def test_exec_timeout_values(server):
    name = fresh(server)
    for t in ("0", "-1", "1.5", '"5"', "86401", "9223372036854775807", "1e18", "true", "[]", "99999999999999999999"):
        error_of(exec_raw(server, name, b'{"cmd":["true"],"timeoutSeconds":%s}' % t.encode()), 400)
    for t in (1, 86400, None):
        assert server.exec(name, "true", timeoutSeconds=t)["exitCode"] == 0


def test_exec_timeout(server):
    name = fresh(server)
    quiet = Background(lambda: server.exec(name, "sleep", "60", timeoutSeconds=1))
    start = time.monotonic()
    r = server.sh(name, "echo partial; echo whole line >&2; printf half >&2; sleep 60; echo never", timeoutSeconds=1)
    took = time.monotonic() - start
    assert (r["exitCode"], r["reason"], r["stdout"]) == (124, "timeout", "partial\n"), r
    assert r["stderr"] == "whole line\nhalf\nCommand timed out after 1 seconds\n", r
    assert 1.0 <= took < 2.0 * SLOW and 900 <= r["durationMs"] < 2000 * SLOW, (took, r)
    r = quiet.result()
    assert r["stderr"] == "Command timed out after 1 seconds\n" and r["stdout"] == ""


TREE = r'''
import os, signal, subprocess, sys, time
mark = sys.argv[1]
def daemon(script, **kw):
    subprocess.Popen(["sh", "-c", script + "; : " + mark], **kw)
daemon("sleep 600")
daemon("sleep 600", start_new_session=True)
daemon("trap '' TERM HUP INT; sleep 600")
daemon("kill -STOP $$")
daemon("nohup sleep 600 > /dev/null 2>&1")
daemon("setsid sh -c 'trap \"\" TERM; kill -STOP $$; : %s'" % mark)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        os.execvp("sh", ["sh", "-c", "sleep 600; : " + mark])
    os._exit(0)
sys.stdout.write("up\n")
sys.stdout.flush()
time.sleep(600)
'''


def test_timeout_takes_the_whole_tree(server):
    name = fresh(server)
    earlier, beside, mine = marker(), marker(), marker()
    server.sh(name, "setsid sleep %s > /dev/null 2>&1 &" % earlier)
    other = Background(lambda: server.sh(name, "sleep %s & sleep 2.5; kill -0 $! && echo lived; kill $!" % beside))
    eventually(lambda: host_pids(beside), "the other exec runs")
    timed = Background(lambda: server.exec(name, "python3", "-c", TREE, mine, timeoutSeconds=2))
    eventually(lambda: len(host_pids(mine)) >= 8, "the tree stands")
    r = timed.result()
    assert host_pids(mine) == [], "something outlived its exec"  # at once: the answer waited for it
    assert (r["exitCode"], r["reason"], r["stdout"]) == (124, "timeout", "up\n"), r
    assert len(host_pids(earlier)) == 1  # an earlier exec's background process is none of its business
    assert other.result()["stdout"] == "lived\n"
    assert server.delete(name).status == 204
    assert host_pids(earlier) == []


def test_background_process_lives_on(server):
    name, mark = fresh(server), marker()
    start = time.monotonic()
    r = server.sh(name, "(while :; do echo tick; echo tock >&2; sleep 0.05; done; : %s) & echo started" % mark)
    assert time.monotonic() - start < 5 * SLOW  # it holds our pipes, and we do not wait for it
    assert r["exitCode"] == 0 and r["stdout"].startswith("started\n"), r
    assert len(host_pids(mark)) == 1
    r = server.sh(name, "nohup setsid sh -c 'echo $$ > pid; sleep %s' > /dev/null 2>&1 &" % mark)
    eventually(lambda: len(host_pids(mark)) >= 3, "both run")
    # later execs see it and can end it
    r = server.sh(name, "kill $(cat pid) && echo killed")
    assert r["stdout"] == "killed\n"
    assert server.sh(name, "echo still")["stdout"] == "still\n"
    alive = host_pids(mark)
    assert alive, "the loop must still run: what it writes is dropped, not refused"
    assert server.delete(name).status == 204
    assert host_pids(mark) == []


def test_execs_are_concurrent(server):
    name = fresh(server, cpuLimit="2")
    start = time.monotonic()
    out = parallel(20, lambda i: server.sh(name, "sleep 0.5; echo %d" % i))
    assert [r["stdout"] for r in out] == ["%d\n" % i for i in range(20)]
    assert time.monotonic() - start < 4 * SLOW


def test_execs_per_sandbox_setting():
    server = Server("--execs-per-sandbox", "3", "--pool-size", "0")
    try:
        server.make("a")
        mark = marker()
        running = [Background(lambda: server.sh("a", "sleep 30; : %s" % mark)) for _ in range(3)]
        eventually(lambda: len(host_pids(mark)) == 3, "three run")
        r = server.exec_reply("a", "true")
        server.delete("a")
        for b in running:
            assert b.result()["reason"] == "killed"
        error_of(r, 503)
    finally:
        server.close()


def test_client_that_leaves_kills_the_tree(server):
    name, mark = fresh(server), marker()
    body = json.dumps({"cmd": ["sh", "-c", "setsid sh -c 'trap \"\" TERM; sleep %s' & sleep %s" % (mark, mark)]}).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
              % (name.encode(), len(body), body))
    eventually(lambda: len(host_pids(mark)) >= 3, "it runs")
    s.close()
    eventually(lambda: not host_pids(mark), "all of it is gone")
    assert server.exec(name, "echo", "fine")["stdout"] == "fine\n"


# --- the 30 second trap ------------------------------------------------------------------


def test_heartbeat():
    server = Server("--heartbeat-seconds", "1", "--pool-size", "0")
    try:
        server.make("a")

        server.make("doomed")

        def patient(cmd, limit, box="a"):
            """As the real client: urllib, each recv may take 2 s."""
            body = json.dumps({"cmd": cmd, "workdir": "/workspace", "timeoutSeconds": limit}).encode()
            q = urllib.request.Request("http://127.0.0.1:%d/v1/sandboxes/%s/exec" % (server.port, box), body,
                                       {"Content-Type": "application/json"}, method="POST")
            start = time.monotonic()
            with urllib.request.urlopen(q, timeout=2 * SLOW) as r:
                raw = r.read()
                return r, raw, time.monotonic() - start
        slow = Background(lambda: patient(["sh", "-c", "sleep 3; echo done"], 30))
        mark = marker()
        start = time.monotonic()
        doomed = Background(lambda: patient(["sleep", mark], 30, "doomed"))
        body = b'{"cmd":["sh","-c","sleep 1.4; echo old"]}'
        old = Background(lambda: server.raw(b"POST /v1/sandboxes/a/exec HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s"
                                            % (len(body), body)))
        late = Background(lambda: patient(["sh", "-c", "echo some; sleep 60"], 3))
        eventually(lambda: time.monotonic() - start > 1.3 and host_pids(mark), "a beat is out")
        assert server.delete("doomed").status == 204
        r, raw, took = slow.result()
        assert took >= 2.9 and r.status == 200 and r.headers["Content-Type"] == "application/json"
        assert raw[:1] == b" " and len(raw) - len(raw.lstrip()) >= 2, raw
        assert json.loads(raw)["stdout"] == "done\n"
        r, raw, _ = late.result()
        j = json.loads(raw)
        assert (j["exitCode"], j["reason"], j["stdout"]) == (124, "timeout", "some\n")
        # a quick one is a plain answer
        r, raw, _ = patient(["echo", "quick"], 30)
        assert raw[:1] == b"{" and r.headers["Content-Length"] == str(len(raw))
        # what is wrong is still said by its status
        error_of(server.exec_reply("a", "pwd", workdir="/none"), 400)
        # a deletion after the first beat is told in the body, since the status is out
        assert json.loads(doomed.result()[1])["reason"] == "killed"
        # HTTP/1.0 knows no chunks: the body ends with the connection
        head, _, rest = old.result().partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower() and json.loads(rest)["stdout"] == "old\n", rest
    finally:
        server.close()


# --- touch, expiry, delete -----------------------------------------------------------------


def test_touch(server):
    name = fresh(server, ttlSeconds=1)
    r = server.request("POST", "/v1/sandboxes/%s/touch" % name, headers={"Content-Length": "0"})
    assert r.status == 200, r  # a 204 would be a failure to the real client
    start = time.monotonic()

    def kept_alive():
        assert server.request("POST", "/v1/sandboxes/%s/touch" % name).status == 200
        return time.monotonic() - start > 1.6
    eventually(kept_alive, "more than its time has passed")
    assert server.exec(name, "echo", "here")["stdout"] == "here\n"
    eventually(lambda: server.exec_reply(name, "true").status == 404, "left alone it expires", 5)
    error_of(server.request("POST", "/v1/sandboxes/%s/touch" % name), 404)


def test_expiry(server):
    mark = marker()
    before = server.stats()["expired"]
    name = fresh()
    made = server.make(name, ttlSeconds=1)
    server.sh(name, "echo x > file; setsid sleep %s > /dev/null 2>&1 &" % mark)
    running = Background(lambda: server.exec_reply(name, "sleep", mark))
    eventually(lambda: len(host_pids(mark)) >= 2, "it runs")
    eventually(lambda: made["podName"] not in server.list_pods(), "its socket is gone", 5)
    eventually(lambda: not host_pids(mark), "its processes are gone", 5)
    assert expiry_of(made) <= time.time() + 1
    r = running.result()
    assert r.status == 200 and (r.json["reason"], r.json["exitCode"], r.json["signal"]) == ("killed", 137, 9), r
    for method, tail, body in (("POST", "/exec", b'{"cmd":["true"]}'), ("POST", "/touch", None),
                               ("POST", "/files/upload", b""), ("GET", "/files/download", None), ("DELETE", "", None)):
        error_of(server.request(method, "/v1/sandboxes/" + name + tail, body), 404)
    assert server.stats()["expired"] > before
    again = server.make(name)
    assert again["podName"] != made["podName"]
    assert server.exec(name, "ls", "-A")["stdout"] == ""


def test_delete(server):
    mark = marker()
    name = fresh()
    pod = server.make(name)["podName"]
    assert pod in server.list_pods()
    server.exec(name, "python3", "-c", TREE.replace("time.sleep(600)", ""), mark)
    assert len(host_pids(mark)) >= 6
    r = server.delete(name)
    assert (r.status, r.body) == (204, b"") and "Content-Length" not in r.headers
    assert host_pids(mark) == [] and pod not in server.list_pods()  # it returns when all is gone
    error_of(server.delete(name), 404)
    error_of(server.exec_reply(name, "true"), 404)


def test_delete_during_exec(server):
    name, mark = fresh(server), marker()
    running = Background(lambda: server.exec_reply(name, "sh", "-c", "echo hi; sleep %s" % mark))
    eventually(lambda: host_pids(mark), "it runs")
    assert server.exec_reply(name, "sleep", "0.2").status == 200
    assert server.delete(name).status == 204
    assert host_pids(mark) == []
    r = running.result()
    assert r.json["durationMs"] >= 200, r
    assert r.status == 200 and (r.json["reason"], r.json["exitCode"], r.json["signal"]) == ("killed", 137, 9), r
    assert r.json["stderr"].strip(), r
    server.assert_healthy()


def test_delete_during_upload(server):
    name = fresh(server)
    s = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    s.sendall(b"POST /v1/sandboxes/%s/files/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n%s"
              % (name.encode(), tarfile.TarInfo("x").tobuf() + b"\0" * 1024))
    eventually(lambda: [p for p in harness.cgroup_pids(server) if b"cloche-files" in comm(p)], "the worker is at it")
    assert server.delete(name).status == 204
    got = s.recv(65536)
    s.close()
    assert b"HTTP/1.1 500 " in got and b'"error"' in got, got
    server.assert_healthy()


def comm(pid):
    try:
        with open("/proc/%d/comm" % pid, "rb") as f:
            return f.read()
    except OSError:
        return b""


def test_two_deletes_at_once(server):
    name = fresh(server)
    server.sh(name, "sleep 100 > /dev/null 2>&1 &")
    got = parallel(8, lambda i: server.delete(name).status)
    assert 204 in got and set(got) <= {204, 404}, got
    error_of(server.delete(name), 404)


def test_concurrent_puts_make_one(server):
    name = fresh()
    before = server.stats()
    got = parallel(50, lambda i: server.put(name, ttlSeconds=900, memoryLimit="256Mi"))
    assert {r.status for r in got} == {200}, got
    assert len({r.json["podName"] for r in got}) == 1
    after = server.stats()
    assert after["created"] - before["created"] == 1 and after["sandboxes"] - before["sandboxes"] == 1
    assert server.delete(name).status == 204
    error_of(server.delete(name), 404)


def test_storm_on_one_id(server):
    """Abuse 125: fifty clients create, use and delete the same id as fast as they can."""
    name = fresh()
    before = server.stats()["sandboxes"]
    statuses = set()

    def client(i):
        conn = server.connect()
        for turn in range(6):
            kind = (i + turn) % 3
            if kind == 0:
                r = server.request("PUT", "/v1/sandboxes/" + name, {"ttlSeconds": 60}, conn=conn)
                assert r.status == 200, r
            elif kind == 1:
                r = server.request("POST", "/v1/sandboxes/%s/exec" % name, {"cmd": ["echo", "x"]}, conn=conn)
                assert r.status in (200, 404) or (r.status == 503 and b"error" in r.body), r
                if r.status == 200:
                    j = r.json
                    assert j["stdout"] == "x\n" or j["reason"] == "killed", j
            else:
                r = server.request("DELETE", "/v1/sandboxes/" + name, conn=conn)
                assert r.status in (204, 404), r
            statuses.add(r.status)
        conn.close()
    parallel(50, client)
    assert {200, 204} <= statuses, statuses
    server.delete(name)
    error_of(server.delete(name), 404)
    eventually(lambda: server.stats()["inTransit"] == 0, "all transitions are over")
    assert server.stats()["sandboxes"] == before
    server.assert_healthy()


def test_lost_agent(server):
    """An agent that dies takes its sandbox along: 404, and the id is free again."""
    name = fresh()
    before = harness.cgroup_pids(server)
    pod = server.make(name, memoryLimit="100Mi")["podName"]
    mark = marker()
    running = Background(lambda: server.exec_reply(name, "sleep", mark))
    eventually(lambda: host_pids(mark), "it runs")
    inner = host_pids(mark)[0]
    agent = parent_agent(inner)
    os.kill(agent, signal.SIGKILL)
    r = running.result()
    assert (r.status == 200 and r.json["reason"] == "killed") or r.status in (500, 503), r
    eventually(lambda: server.exec_reply(name, "true").status == 404, "the sandbox is known to be lost")
    assert host_pids(mark) == []
    assert server.make(name)["podName"] != pod
    assert server.exec(name, "echo", "new")["stdout"] == "new\n"


def parent_agent(pid):
    """Walks up to the process that is 1 in the sandbox."""
    while True:
        with open("/proc/%d/status" % pid) as f:
            text = f.read()
        if re.search(r"NSpid:.*\t1$", text, re.M):
            return pid
        pid = int(re.search(r"PPid:\s+(\d+)", text).group(1))
        assert pid > 1


def test_too_many_sandboxes():
    server = Server("--max-sandboxes", "2", "--pool-size", "0")
    try:
        server.make("a")
        server.make("b")
        r = server.put("c")
        assert "max_sandboxes" in error_of(r, 503) and r.headers["Retry-After"]
        assert server.put("a").status == 200
        assert server.delete("a").status == 204
        assert server.put("c").status == 200
    finally:
        server.close()


def test_not_ready(server):
    """A sandbox that cannot be reached is 503, and nothing ran."""
    name = fresh()
    pod = server.make(name)["podName"]
    path = os.path.join(server.state, "run", pod + ".sock")
    os.rename(path, path + ".away")
    try:
        error_of(server.exec_reply(name, "true"), 503)
        error_of(server.request("GET", "/v1/sandboxes/%s/files/download" % name), 503)
        error_of(server.request("POST", "/v1/sandboxes/%s/files/upload" % name, b""), 503)
    finally:
        os.rename(path + ".away", path)
    assert server.exec(name, "echo", "again")["stdout"] == "again\n"


# --- limits ------------------------------------------------------------------------------------


def test_limit_syntax(server):
    name = fresh()
    bad = {"cpuLimit": ["", "0", "0m", "9m", "-1", "abc", "1x", "1.5m", "1.2345", ".5", "1.", "1e3", " 1", "1 ", "1025",
                        "99999999999999999999", "m", "NaN", "0x1"],
           "memoryLimit": ["", "0", "1", "3Mi", "-1Gi", "lots", "1gi", "1GB", "1.5", "1 Gi", "Gi", "1e9", "100Pi",
                           "99999999999999999999", "1GiB", "1g", "+1Gi", "0x10000000", "65Ti"],
           "ephemeralStorageLimit": ["", "0", "1", "63Ki", "-1", "big", "1Gi ", "100Pi", "18446744073709551616"]}
    for key, values in bad.items():
        for value in values:
            text = error_of(server.put(name, **{key: value}), 400)
            assert key in text and len(text.split()) >= 5, text  # a sentence that names the field
        for value in (1, 1.5, True, [], {}):
            assert key in error_of(server.put(name, **{key: value}), 400)
    error_of(server.put(name, image=1), 400)
    error_of(server.delete(name), 404)
    for fields in ({"cpuLimit": "500m"}, {"cpuLimit": "1.5"}, {"cpuLimit": "0.25"}, {"memoryLimit": "1G"},
                   {"memoryLimit": "67108864"}, {"memoryLimit": "0.5Gi"}, {"ephemeralStorageLimit": "2Gi"},
                   {"cpuLimit": None, "memoryLimit": None, "image": None}):
        name = fresh(server, **fields)
        assert server.exec(name, "true")["exitCode"] == 0
        server.delete(name)


def test_limits_have_a_ceiling():
    server = Server("--max-cpu", "2", "--max-memory", "4Gi", "--max-storage", "2Gi", "--pool-size", "0",
                    "--default-memory", "300Mi", "--default-storage", "4Mi", "--default-cpu", "2", "--default-pids", "40")
    try:
        assert "max_cpu" in error_of(server.put("a", cpuLimit="2.5"), 400)
        assert "max_memory" in error_of(server.put("a", memoryLimit="5Gi"), 400)
        assert "max_storage" in error_of(server.put("a", ephemeralStorageLimit="3Gi"), 400)
        server.make("a")  # the defaults of the configuration
        r = server.sh("a", "grep MemTotal /proc/meminfo; nproc; df -k --output=size /workspace | tail -1; "
                           "head -c 6000000 /dev/zero > big; stat -c %s big")
        words = r["stdout"].split()
        assert words[1] == str(300 * 1024) and words[3] == "2" and words[4] == "4096" and int(words[5]) <= 4 << 20, r
        assert "No space left" in r["stderr"]
        r = server.python("a", "import os, time\nn = 0\ntry:\n    while n < 200:\n        if os.fork() == 0:\n"
                               "            time.sleep(30); os._exit(0)\n        n += 1\n"
                               "except OSError as e:\n    print(e.errno)\nprint(n, flush=True)\n"
                               "import signal; os.kill(os.getpid(), signal.SIGKILL)", timeoutSeconds=10)
        errno, n = r["stdout"].split()
        assert errno == "11" and 20 <= int(n) <= 40, r
        # it is full: the next exec says so, and does not hang
        r = server.exec_reply("a", "sh", "-c", "sleep 0.1; echo room")
        assert r.status in (200, 400, 503), r
        server.delete("a")
        server.assert_healthy()
    finally:
        server.close()


def test_memory_limit(server):
    name, mark = fresh(server, memoryLimit="64Mi"), marker()
    server.sh(name, "sleep %s > /dev/null 2>&1 &" % mark)
    r = server.python(name, "print('start', flush=True); x = bytearray(200 << 20); print(len(x))")
    assert (r["reason"], r["signal"], r["exitCode"], r["stdout"]) == ("oom", 9, 137, "start\n"), r
    r = server.sh(name, "python3 -c 'x = bytearray(200 << 20)'; exit $?")  # a child of the leader
    assert (r["reason"], r["exitCode"]) == ("oom", 137), r
    r = server.sh(name, "kill -9 $$")  # killed, but not for memory
    assert (r["reason"], r["signal"]) == ("signaled", 9), r
    assert server.exec(name, "echo", "alive")["stdout"] == "alive\n"
    assert server.python(name, "x = bytearray(20 << 20); print(len(x))")["exitCode"] == 0
    server.assert_healthy()


def test_storage_limit(server):
    name = fresh(server, ephemeralStorageLimit="8Mi", memoryLimit="256Mi")
    r = server.python(name, """
import errno, os
for d in ("/workspace", "/tmp", "/dev/shm"):
    n = 0
    try:
        with open(d + "/big", "wb", buffering=0) as f:
            while n < 100 << 20:
                n += f.write(bytes(65536))
    except OSError as e:
        print(d, errno.errorcode[e.errno], n)
    if d != "/dev/shm":
        os.unlink(d + "/big")
""")
    for line in r["stdout"].splitlines():
        d, code, n = line.split()
        assert code == "ENOSPC" and 1 << 20 < int(n) <= 8 << 20, r
    assert len(r["stdout"].splitlines()) == 3, r
    r = server.sh(name, "rm /dev/shm/big; echo ok > f && cat f; i=0; while true > e$i; do i=$((i+1)); done; echo $i")
    assert r["stdout"].split()[0] == "ok" and int(r["stdout"].split()[1]) < 8192, r  # inodes are bounded, too
    assert server.exec(name, "echo", "alive")["stdout"] == "alive\n"
    server.assert_healthy()


def test_cpu_limit(server):
    """Cpu time used against time passed; two processes share one quota. Above the quota is always
    wrong; below it may be this machine's load, so that is tried again."""
    spin = "import time\nt = time.monotonic()\nwhile time.monotonic() - t < 1: pass\nprint(time.process_time())"
    half, pair, fifth = (fresh(server, cpuLimit=c) for c in ("500m", "500m", "200m"))

    def measured():
        one = Background(lambda: server.python(half, spin))
        two = Background(lambda: server.sh(pair, "for i in 1 2; do python3 -c '%s' & done; wait" % spin))
        low = Background(lambda: server.python(fifth, spin))
        used = [sum(float(x) for x in b.result()["stdout"].split()) for b in (one, two, low)]
        assert used[0] < 0.7 and used[1] < 0.85 and used[2] < 0.4, used
        return used[0] > 0.3 and used[1] > 0.3 and used[2] > 0.08
    eventually(measured, "they get what they may have", 20)


def test_shown_limits(server):
    name = fresh(server, memoryLimit="192Mi", cpuLimit="500m")
    r = server.sh(name, "nproc; grep -c ^processor /proc/cpuinfo; awk '/^MemTotal/ {print $2}' /proc/meminfo; "
                        "free -k | awk '/^Mem/ {print $2, $3, $7}'; python3 -c 'import os; print(os.cpu_count(), os.sysconf(\"SC_NPROCESSORS_ONLN\"))'")
    words = r["stdout"].split()
    assert words[:3] == ["1", "1", str(192 * 1024)], r
    total, used, available = int(words[3]), int(words[4]), int(words[5])
    assert total == 192 * 1024 and 0 <= used < total and 0 < available <= total, r
    two = fresh(server, cpuLimit="1500m")
    r = server.sh(two, "nproc; grep -c ^processor /proc/cpuinfo")
    want = str(min(2, os.cpu_count()))
    assert r["stdout"].split() == [want, want], r


# --- images --------------------------------------------------------------------------------------


def tiny_rootfs(where, text):
    """/bin/sh with its libraries, and a file that tells this image from others."""
    libs = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    files = [os.path.realpath("/bin/sh")] + re.findall(r"(/\S+)", libs)
    for f in files:
        to = where + ("/bin/sh" if f == files[0] else f)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(os.path.realpath(f), to)
        os.chmod(to, 0o755)
    os.makedirs(where + "/etc", exist_ok=True)
    with open(where + "/etc/which", "w") as f:
        f.write(text + "\n")
    os.chmod(where, 0o755)


def test_images():
    top = tempfile.mkdtemp(prefix="cloche-images-")
    os.chmod(top, 0o755)
    server = None
    try:
        tiny_rootfs(top + "/dir", "directory")
        tiny_rootfs(top + "/src", "tarball")
        with tarfile.open(top + "/img.tar.gz", "w:gz") as t:
            t.add(top + "/src", arcname=".")
        conf = top + "/cloche.conf"
        with open(conf, "w") as f:
            f.write("pool_size = 0\n[images]\ntiny = %s/dir\npacked = %s/img.tar.gz\n"
                    "python:3.11-slim = tiny\nghcr.io/a/b@sha256:0 = python:3.11-slim\nmine = host\n" % (top, top))
        server = Server("--config", conf)
        read = "read x < /etc/which; echo $x"

        def which(box, image):
            server.make(box, image=image)
            return server.sh(box, read)["stdout"].strip()
        assert which("a", "tiny") == "directory"
        assert which("b", "packed") == "tarball"
        assert which("c", "python:3.11-slim") == "directory"
        assert which("d", "ghcr.io/a/b@sha256:0") == "directory"
        r = server.sh("a", "pwd; echo x > file; echo $HOME; [ -d /proc/self ] && [ -c /dev/null ] && echo mounted; "
                           "echo evil > /etc/which; echo new > /bin/new; [ -e /usr/bin/python3 ] || echo own")
        assert r["stdout"].split() == ["/workspace", "/workspace", "mounted", "own"], r
        with open(top + "/dir/etc/which") as f:
            assert f.read() == "directory\n"
        assert not os.path.exists(top + "/dir/bin/new") and not os.path.exists(top + "/dir/workspace/file")
        server.make("e", image="mine")
        assert server.python("e", "print(1)")["stdout"] == "1\n"
        assert server.exec("a", "python3", "-c", "print(1)")["exitCode"] == 127  # really another root
        # the image of a live sandbox stays
        server.make("a", image="host")
        assert server.exec("a", "python3")["exitCode"] == 127
        for name in ("debian:99", "../dir", "/etc", top + "/dir", "Tiny", "host/x", "a" * 10000, "\u00e9\x1b"):
            text = error_of(server.put("x", image=name), 400)
            for known in ("host", "tiny", "packed", "python:3.11-slim", "image_fallback"):
                assert known in text, (name[:50], text)
        assert server.put("y", image="").status == 200  # as none given
        server.close()
        # unknown names may be mapped
        with open(conf, "w") as f:
            f.write("pool_size = 0\nimage = packed\nimage_fallback = tiny\n[images]\ntiny = %s/dir\npacked = %s/img.tar.gz\n"
                    % (top, top))
        server = Server("--config", conf)
        assert which("a", "whatever:1.0") == "directory"
        assert which("b", None) == "tarball"
        assert which("c", "packed") == "tarball"
    finally:
        if server:
            server.close()
        shutil.rmtree(top)


def test_unknown_image_by_default(server):
    text = error_of(server.put(fresh(), image="python:3.10"), 400)
    assert "python:3.10" in text and "host" in text and "image_fallback" in text, text


def test_nothing_is_left(server):
    """The last of this file: every sandbox of every test can go, and takes everything along."""
    for name in _names:
        assert server.delete(name).status in (204, 404), name
    stats = server.stats()
    assert stats["sandboxes"] == 0, stats
    eventually(lambda: server.stats()["inTransit"] == 0, "the pool is full again")
    eventually(lambda: len(server.list_pods()) <= 4, "only the pool's sockets are left")
    server.assert_healthy()


harness.main(globals())
