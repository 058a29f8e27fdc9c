#!/usr/bin/env python3
"""The HTTP edge with raw sockets (abuse.md G 111-115, 120, 122, 123): smuggling, slowness, limits, keys, logs."""
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, eventually, free_port, SLOW

HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"
KEY = "k3y-0123456789abcdefXYZ"


def status(answer):
    m = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert m, answer[:300]
    return int(m.group(1))


def answers(stream):
    """Splits what a connection sent into (status, headers, body), trusting only the framing."""
    out = []
    while stream:
        head, sep, rest = stream.partition(b"\r\n\r\n")
        assert sep, stream[:200]
        lines = head.split(b"\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (x.partition(b":") for x in lines[1:])}
        n = int(headers.get(b"content-length", b"0"))
        out.append((status(lines[0] + b" "), headers, rest[:n]))
        stream = rest[n:]
    return out


def connect(server, timeout=10):
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout * SLOW)


def read_all(s):
    got = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return got
            got += piece
    except ConnectionResetError:
        return got


def closed_within(server, s, seconds, what):
    """Waits for the server to end the connection; returns what it said before."""
    start = time.monotonic()
    s.settimeout(seconds * SLOW)
    try:
        got = read_all(s)
    except socket.timeout:
        raise AssertionError("the connection stays open: " + what)
    return got, time.monotonic() - start


# --- smuggling (113) -------------------------------------------------------------------------

POST = b"POST /v1/sandboxes/x/touch HTTP/1.1\r\n" + HOST
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
EVIL = b"GET /evil HTTP/1.1\r\n" + HOST + b"\r\n"

SMUGGLING = {
    "CL and TE": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "TE and CL": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + EVIL,
    "two CL": POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + EVIL,
    "two equal CL": POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + EVIL,
    "CL list": POST + b"Content-Length: 0, 0\r\n\r\n" + EVIL,
    "CL plus": POST + b"Content-Length: +0\r\n\r\n" + EVIL,
    "CL minus": POST + b"Content-Length: -1\r\n\r\n" + EVIL,
    "CL hex": POST + b"Content-Length: 0x0\r\n\r\n" + EVIL,
    "CL empty": POST + b"Content-Length: \r\n\r\n" + EVIL,
    "CL inner space": POST + b"Content-Length: 1 2\r\n\r\n" + EVIL,
    "CL underflow": POST + b"Content-Length: 18446744073709551616\r\n\r\n" + EVIL,
    "CL 2^63": POST + b"Content-Length: 9223372036854775808\r\n\r\n" + EVIL,
    "CL letters": POST + b"Content-Length: zero\r\n\r\n" + EVIL,
    "space before colon": POST + b"Content-Length : 0\r\n\r\n" + EVIL,
    "tab before colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "TE xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + EVIL,
    "TE gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "TE chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + EVIL,
    "TE identity": POST + b"Transfer-Encoding: identity\r\n\r\n" + EVIL,
    "TE twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "TE quoted": POST + b"Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" + EVIL,
    "TE vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + EVIL,
    "TE folded": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "obs-fold": GET + b"X: a\r\n b\r\n\r\n" + EVIL,
    "fold first": b"GET /healthz HTTP/1.1\r\n X: a\r\n" + HOST + b"\r\n" + EVIL,
    "NUL in a value": GET + b"X: a\0b\r\n\r\n" + EVIL,
    "NUL in a name": GET + b"X\0: a\r\n\r\n" + EVIL,
    "bare LF": b"GET /healthz HTTP/1.1\nHost: localhost\n\n" + EVIL,
    "one bare LF": GET + b"X: a\nY: b\r\n\r\n" + EVIL,
    "bare CR": GET + b"X: a\rY: b\r\n\r\n" + EVIL,
    "LF CR": GET + b"X: a\n\rY: b\r\n\r\n" + EVIL,
    "CR CR LF": GET + b"X: a\r\r\n\r\n" + EVIL,
    "end by LF": GET + b"X: a\r\n\n" + EVIL,
    "no colon": GET + b"Garbage\r\n\r\n" + EVIL,
    "empty name": GET + b": x\r\n\r\n" + EVIL,
    "name with space": GET + b"A B: x\r\n\r\n" + EVIL,
    "two Hosts": GET + HOST + b"\r\n" + EVIL,
    "no Host": b"GET /healthz HTTP/1.1\r\n\r\n" + EVIL,
    "Host with slash": b"GET /healthz HTTP/1.1\r\nHost: a/b\r\n\r\n" + EVIL,
    "TE in HTTP/1.0": b"POST /v1/sandboxes/x/touch HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "two spaces": b"GET  /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + EVIL,
    "tab for space": b"GET\t/healthz\tHTTP/1.1\r\n" + HOST + b"\r\n" + EVIL,
    "space behind": b"GET /healthz HTTP/1.1 \r\n" + HOST + b"\r\n" + EVIL,
    "fragment": b"GET /healthz#x HTTP/1.1\r\n" + HOST + b"\r\n" + EVIL,
    "control in target": b"GET /health\x01z HTTP/1.1\r\n" + HOST + b"\r\n" + EVIL,
    "space in target": b"GET /heal thz HTTP/1.1\r\n" + HOST + b"\r\n" + EVIL,
}

CHUNK = b"PUT /v1/sandboxes/smuggled HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
BAD_CHUNKS = {
    "0x": b"0x2\r\n{}\r\n0\r\n\r\n", "plus": b"+2\r\n{}\r\n0\r\n\r\n", "minus": b"-2\r\n{}\r\n0\r\n\r\n",
    "space before": b" 2\r\n{}\r\n0\r\n\r\n", "space behind": b"2 \r\n{}\r\n0\r\n\r\n", "empty": b"\r\n{}\r\n0\r\n\r\n",
    "bare LF": b"2\n{}\n0\n\n", "LF behind size": b"2\n{}\r\n0\r\n\r\n", "no CRLF behind data": b"2\r\n{}0\r\n\r\n",
    "LF behind data": b"2\r\n{}\n0\r\n\r\n", "two other bytes": b"2\r\n{}XX0\r\n\r\n", "huge": b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "underflow": b"10000000000000002\r\n{}\r\n0\r\n\r\n", "zeros": b"0" * 500 + b"2\r\n{}\r\n0\r\n\r\n",
    "NUL extension": b"2;a=\0\r\n{}\r\n0\r\n\r\n", "LF in extension": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "endless extension": b"2;" + b"a" * 100000 + b"\r\n{}\r\n0\r\n\r\n", "letters": b"xyz\r\n{}\r\n0\r\n\r\n",
    "CR in trailer": b"2\r\n{}\r\n0\r\nA: b\rC: d\r\n\r\n", "endless trailer": b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 50000 + b"\r\n",
}


def test_smuggling(server):
    for what, data in SMUGGLING.items():
        got = server.raw(data, timeout=3)
        parts = answers(got)
        assert len(parts) == 1, (what, got)  # nothing behind it was taken for a request
        assert parts[0][0] in (400, 501) and parts[0][1][b"connection"] == b"close", (what, got)
        assert list(json.loads(parts[0][2])) == ["error"], (what, got)
    assert "/evil" not in server.read_log()
    server.assert_healthy()


def test_smuggling_by_chunks(server):
    for what, data in BAD_CHUNKS.items():
        parts = answers(server.raw(CHUNK + data + EVIL, timeout=3))
        assert len(parts) == 1 and parts[0][0] == 400 and parts[0][1][b"connection"] == b"close", (what, parts)
    assert "/evil" not in server.read_log()
    assert server.delete("smuggled").status == 404  # and no half body was acted upon
    server.assert_healthy()


def test_chunks(server):
    """What is odd but right: extensions, trailers, many sizes, capitals; and the next request is in step."""
    for body in (b"2\r\n{}\r\n0\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"2;name=value;x=\"y\"\r\n{}\r\n0;last\r\nTrailer: t\r\nB: c\r\n\r\n",
                 b"002\r\n{}\r\n000\r\n\r\n", b"A\r\n{        }\r\n0\r\n\r\n"):
        got = answers(server.raw(CHUNK + body + GET + CLOSE + b"\r\n"))
        assert [p[0] for p in got] == [200, 200] and got[1][2] == b"OK", (body, got)
    s = connect(server)
    for byte in CHUNK + b"2\r\n{}\r\n0\r\n\r\n":  # one byte at a time
        s.sendall(bytes([byte]))
    assert status(s.recv(65536)) == 200
    s.close()
    assert server.delete("smuggled").status == 204


def test_body_on_get_and_delete(server):
    """A body that nobody asked for is skipped by its framing."""
    for framing in (b"Content-Length: 44\r\n\r\n" + b"GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\nabcd"[:44].ljust(44, b"x"),
                    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"):
        got = answers(server.raw(b"GET /healthz HTTP/1.1\r\n" + HOST + framing + GET + CLOSE + b"\r\n"))
        assert [p[0] for p in got] == [200, 200], got
    got = answers(server.raw(b"DELETE /v1/sandboxes/none HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello" + GET + CLOSE + b"\r\n"))
    assert [p[0] for p in got] == [404, 200], got
    assert "/evil" not in server.read_log()


# --- limits and garbage (114) -----------------------------------------------------------------


def test_header_limits(server):
    pad = 64 * 1024 - len(GET + b"X: \r\n\r\n")
    assert status(server.raw(GET + CLOSE + b"X: " + b"a" * (pad - len(CLOSE)) + b"\r\n\r\n")) == 200
    assert status(server.raw(GET + b"X: " + b"a" * (pad + 2000) + b"\r\n\r\n")) == 431
    assert status(server.raw(GET + b"X" * 70000 + b": a\r\n\r\n")) == 431
    assert status(server.raw(GET + b"".join(b"X%d: a\r\n" % i for i in range(10000)) + b"\r\n")) == 431
    assert status(server.raw(GET + CLOSE + b"".join(b"X%d: a\r\n" % i for i in range(126)) + b"\r\n")) == 200
    assert status(server.raw(GET + CLOSE + b"".join(b"X%d: a\r\n" % i for i in range(127)) + b"\r\n")) == 431
    assert status(server.raw(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n" + HOST + b"\r\n")) == 414
    assert status(server.raw(b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")) == 404
    for n in (1, 2, 3):  # a head that never ends is not waited for
        assert status(server.raw(b"A" * (64 * 1024 + n))) in (400, 414)
    server.assert_healthy()


def test_garbage(server):
    for what, data, wanted in (
            ("method", b"B@D /healthz HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
            ("unknown method", b"BREW /healthz HTTP/1.1\r\n" + HOST + b"\r\n", {405, 501}),
            ("lower case", b"get /healthz HTTP/1.1\r\n" + HOST + b"\r\n", {400, 405, 501}),
            ("long method", b"G" * 5000 + b" / HTTP/1.1\r\n" + HOST + b"\r\n", {400, 405, 501}),
            ("HTTP/0.9", b"GET /healthz\r\n\r\n", {400}), ("no version", b"GET /healthz \r\n\r\n", {400}),
            ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {505}), ("HTTP/3.0", b"GET / HTTP/3.0\r\n" + HOST + b"\r\n", {505}),
            ("HTTP/1.2", b"GET / HTTP/1.2\r\n" + HOST + b"\r\n", {505}), ("HTTP/11", b"GET / HTTP/11\r\n\r\n", {400}),
            ("http/1.1", b"GET / http/1.1\r\n\r\n", {400}), ("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), {400}),
            ("zeros", bytes(1000), {400}), ("ff", b"\xff" * 1000 + b"\r\n\r\n", {400}), ("empty lines", b"\r\n\r\n\r\n\r\n", {400}),
            ("relative target", b"GET healthz HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
            ("CONNECT", b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + b"\r\n", {501}),
            ("user in target", b"GET http://a@b/healthz HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
            ("other scheme", b"GET ftp://localhost/healthz HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
            ("asterisk GET", b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
            ("asterisk OPTIONS", b"OPTIONS * HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", {200, 204, 404, 405}),
            ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", {400})):
        got = server.raw(data, timeout=3)
        assert status(got) in wanted, (what, got)
        assert len(answers(got)) == 1
    server.assert_healthy()


def test_absolute_form_and_leading_line(server):
    got = server.raw(b"GET http://localhost:%d/healthz HTTP/1.1\r\n" % server.port + HOST + CLOSE + b"\r\n")
    assert status(got) == 200 and got.endswith(b"OK")
    got = server.raw(b"\r\nGET /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")  # RFC 9112, 2.2
    assert status(got) == 200 and got.endswith(b"OK")


def test_http_1_0(server):
    got = server.raw(b"GET /healthz HTTP/1.0\r\n\r\n")  # closes by itself, no Host needed
    assert got.startswith(b"HTTP/1.1 200 OK\r\n") and got.endswith(b"\r\n\r\nOK") and b"chunked" not in got
    got = answers(server.raw(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n"))
    assert len(got) == 2 and got[0][1][b"connection"] == b"keep-alive", got
    server.make("old")
    body = b'{"cmd":["echo","x"]}'
    got = server.raw(b"POST /v1/sandboxes/old/exec HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert json.loads(got.partition(b"\r\n\r\n")[2])["stdout"] == "x\n"
    got = server.raw(b"GET /v1/sandboxes/old/files/download HTTP/1.0\r\n\r\n")
    assert status(got) == 200 and b"chunked" not in got and got.partition(b"\r\n\r\n")[2][:2] == b"\x1f\x8b"
    server.delete("old")


# --- pipelining, Expect, Upgrade (115) ------------------------------------------------------------


def test_pipelining(server):
    server.make("pipe")
    body = b'{"cmd":["sh","-c","sleep 0.2; echo first"]}'
    got = answers(server.raw(b"POST /v1/sandboxes/pipe/exec HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
                             + GET + b"\r\n" + b"GET /nope HTTP/1.1\r\n" + HOST + b"\r\n" + GET + CLOSE + b"\r\n"))
    assert [p[0] for p in got] == [200, 200, 404, 200], got  # in order, though the first took longest
    assert json.loads(got[0][2])["stdout"] == "first\n"
    many = answers(server.raw((GET + b"\r\n") * 2000 + GET + CLOSE + b"\r\n", timeout=20))
    assert len(many) == 2001 and {p[0] for p in many} == {200}
    server.delete("pipe")


def test_pipeliner_that_never_reads(server):
    """Answers do not pile up in the server for somebody who takes none."""
    def rss():
        with open("/proc/%d/status" % server.process.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) << 10
    before = rss()
    s = connect(server, 1)
    s.settimeout(0.5)
    sent = 0
    try:
        while sent < 64 << 20:
            sent += s.send((GET + b"\r\n") * 1000)
    except (socket.timeout, ConnectionError):
        pass
    assert sent < 64 << 20, "it took everything and kept the answers"
    if not harness.SANITIZED:  # the sanitizer keeps freed memory for a while
        assert rss() - before < 16 << 20, (before, rss())
    s.close()
    server.assert_healthy()


def test_expect(server):
    s = connect(server)
    s.sendall(b"PUT /v1/sandboxes/exp HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert s.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    s.sendall(b"{}")
    assert status(s.recv(65536)) == 200
    # refused before the body: no 100, and the connection ends, since nobody knows what comes next
    s.sendall(b"PUT /v1/sandboxes/exp HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n")
    got = read_all(s)
    assert status(got) == 413 and b"100 Continue" not in got, got
    s.close()
    got = server.raw(b"POST /v1/sandboxes/%2e/exec HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", timeout=5)
    assert status(got) == 400 and b"100 Continue" not in got, got
    assert status(server.raw(GET + b"Expect: the-unexpected\r\n\r\n")) == 417
    # who does not wait is served as well
    got = server.raw(b"PUT /v1/sandboxes/exp HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}")
    assert b"200 OK" in got, got
    server.delete("exp")


def test_upgrade_is_ignored(server):
    got = answers(server.raw(GET + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"))
    assert [p[0] for p in got] == [200], got
    got = server.raw(GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n\x00\x01\x02garbage\r\n\r\n", timeout=3)
    assert status(got) == 200 and b"101 " not in got.split(b"\r\n")[0]
    assert [p[0] for p in answers(got)] in ([200], [200, 400]), got
    server.assert_healthy()


def test_keep_alive(server):
    s = connect(server)
    for path in (b"/healthz", b"/nope", b"/v1/sandboxes/%2e", b"/healthz"):
        s.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert status(s.recv(65536)) in (200, 404, 405, 400)
    s.close()


# --- slowness (111), many connections (112) ----------------------------------------------------------


def test_slow_peers():
    server = Server("--head-timeout-seconds", "1", "--idle-timeout-seconds", "2", "--body-timeout-seconds", "1",
                    "--write-timeout-seconds", "2", "--pool-size", "0")
    try:
        silent = connect(server)
        half = connect(server)
        half.sendall(b"GET /healthz HT")
        drip = connect(server)
        drip.sendall(GET)
        idle = connect(server)
        idle.sendall(GET + b"\r\n")
        assert status(idle.recv(65536)) == 200
        body = connect(server)
        body.sendall(b"PUT /v1/sandboxes/slow HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n{")

        # one header byte every 100 ms keeps nobody's connection open
        start = time.monotonic()
        last = [0.0]

        def dripping():
            if time.monotonic() - last[0] > 0.1:
                last[0] = time.monotonic()
                try:
                    drip.sendall(b"X")
                except OSError:
                    return True
            drip.setblocking(False)
            try:
                return b"408" in drip.recv(65536)
            except BlockingIOError:
                return False
            except OSError:
                return True
            finally:
                drip.setblocking(True)
        eventually(dripping, "the dripping head is refused", 4)
        assert time.monotonic() - start >= 0.9
        got, _ = closed_within(server, half, 4, "half a request line")
        assert status(got) == 408, got
        got, _ = closed_within(server, silent, 4, "a silent connection")
        assert got == b"" or status(got) == 408
        got, _ = closed_within(server, body, 4, "half a body")
        assert status(got) == 408, got
        got, _ = closed_within(server, idle, 6, "an idle connection")
        assert got == b"", got  # a 408 here could be taken for the answer to a request just being sent

        # a body that comes slowly but comes is waited for
        ok = connect(server)
        text = b'{"ttlSeconds":60}'
        ok.sendall(b"PUT /v1/sandboxes/slow HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(text))
        sent, at = [0], [time.monotonic()]

        def trickle():
            if time.monotonic() - at[0] > 0.25:
                ok.sendall(text[sent[0]:sent[0] + 3])
                sent[0] += 3
                at[0] = time.monotonic()
            return sent[0] >= len(text)
        eventually(trickle, "all is sent", 10)
        assert status(ok.recv(65536)) == 200
        ok.close()

        # a command may be quiet for longer than any of these
        r = server.sh("slow", "sleep 2.2; echo done")
        assert r["stdout"] == "done\n"

        # a reader that takes nothing is given up
        server.sh("slow", "head -c 30M /dev/urandom > big")
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        lazy.connect(("127.0.0.1", server.port))
        lazy.sendall(b"GET /v1/sandboxes/slow/files/download HTTP/1.1\r\n" + HOST + b"\r\n")
        eventually(lambda: server.stats()["connections"] >= 2, "it is being served")
        eventually(lambda: server.stats()["connections"] == 1, "the lazy reader is cut", 8)
        lazy.close()
        server.assert_healthy()
    finally:
        server.close()


def test_many_idle_connections(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    conns = []
    try:
        for _ in range(3000):
            conns.append(connect(server))
        eventually(lambda: server.stats()["connections"] >= 3000, "all are accepted")
        server.assert_healthy()
        for s in conns[::300]:
            s.sendall(GET + b"\r\n")
            assert status(s.recv(65536)) == 200
    finally:
        for s in conns:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually(lambda: server.stats()["connections"] <= 5, "all are let go")


def test_too_many_connections():
    server = Server("--connections", "10", "--pool-size", "0")
    try:
        held = [connect(server) for _ in range(10)]
        for s in held:
            s.sendall(GET + b"\r\n")
            assert status(s.recv(65536)) == 200
        extra = connect(server)
        try:
            extra.sendall(GET + b"\r\n")
        except OSError:
            pass
        got = read_all(extra)
        assert status(got) == 503 and b"error" in got, got
        held.pop().close()
        eventually(lambda: status(server.raw(GET + CLOSE + b"\r\n")) == 200, "there is room again")
        for s in held:
            s.close()
    finally:
        server.close()


def test_out_of_descriptors():
    """accept with EMFILE, more than once: nobody spins, and it goes on when there are some again."""
    server = Server("--pool-size", "0", wrapper=["prlimit", "--nofile=64:64"])
    try:
        conns = []
        for wave in range(3):
            for _ in range(80):
                conns.append(connect(server))
            begin = time.monotonic()
            eventually(lambda: time.monotonic() - begin > 0.2, "it has seen them")

        def cpu():
            with open("/proc/%d/stat" % server.process.pid) as f:
                words = f.read().rpartition(")")[2].split()
            return int(words[11]) + int(words[12])
        start, begin = cpu(), time.monotonic()
        eventually(lambda: time.monotonic() - begin > 0.5, "half a second passes")
        spun = cpu() - start
        for s in conns:
            s.close()

        def answers_again():
            try:
                return server.request("GET", "/healthz", timeout=1).status == 200
            except OSError:
                return False
        eventually(answers_again, "it answers again", 5)
        assert spun < 25 * SLOW, "it spins: %d ticks in half a second" % spun
    finally:
        server.close()


# --- injection (122, 123) ----------------------------------------------------------------------------


def test_output_cannot_inject(server):
    """What a command prints stays inside one JSON string, whatever it looks like."""
    server.make("inj")
    text = "\n\ndata: evil\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\"}{\"exitCode\":1,\"stdout\":\"\u2028\u2029</script>\x00\x1b]0;x\x07"
    # argv holds no NUL: let the command make it
    r = server.exec("inj", "python3", "-c", "import sys; sys.stdout.write(%r)" % text)
    assert r["stdout"] == text and r["exitCode"] == 0
    raw = server.exec_reply("inj", "python3", "-c", "import sys; sys.stdout.write(%r)" % text).body
    assert not re.search(rb"[\x00-\x1f]", raw), raw
    server.delete("inj")


def test_header_injection(server):
    for path in ("/v1/sandboxes/a%0d%0aX-Evil:%20yes%0d%0a%0d%0aHTTP/1.1%20200", "/%0d%0aX-Evil:yes", "/v1/sandboxes/x%0aX-Evil:y/touch"):
        for method in ("GET", "POST", "DELETE"):
            got = server.raw(b"%s %s HTTP/1.1\r\n" % (method.encode(), path.encode()) + HOST + CLOSE + b"\r\n")
            assert len(answers(got)) == 1 and b"x-evil" not in answers(got)[0][1], got


HOSTILE = b"/\x80\x9b31m\xc2\x9b31m\xff%1b[31m%0a2026-01-01%20error%20forged\"quote\\back"


def test_log_lines():
    for form in ("text", "json"):
        server = Server("--log-format", form, "--log-level", "debug", "--pool-size", "1")
        try:
            before = len(server.read_log().splitlines())
            server.raw(b"GET " + HOSTILE + b" HTTP/1.1\r\n" + HOST + CLOSE + b"X-Request-ID: a\"b\\c=d e\r\n\r\n")
            server.raw(b"GET " + b"/x" * 3000 + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
            server.raw(b"\x1b[31m garbage\n\nforged\r\n\r\n")
            server.make("a%0aforged%20line%1b[31m%22")
            server.sh("a%0aforged%20line%1b[31m%22", "ln -s /etc 'x\x1b[31m\ny'")
            server.request("GET", "/v1/sandboxes/a%0aforged%20line%1b[31m%22/files/download")
            assert server.delete("a%0aforged%20line%1b[31m%22").status == 204
            with open(server.log_path, "rb") as f:
                raw = f.read()
            assert raw.endswith(b"\n") and raw.count(b"\n") > before + 5
            lines = raw.split(b"\n")[:-1]
            for line in lines:
                assert not re.search(rb"[\x00-\x1f\x7f]", line), line
                if form == "json":
                    entry = json.loads(line.decode("utf-8"))
                    assert {"time", "level", "msg"} <= set(entry), entry
                    assert not re.search("[\x80-\x9f]", line.decode("utf-8")), line
                else:
                    assert re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info |warn |error) \S+: ", line), line
                    assert not re.search(rb"[\x80-\xff]", line), line
                assert len(line) < 4096, len(line)
            if form == "json":
                done = [json.loads(l) for l in lines if b'"msg":"request"' in l]
                assert any(e["request_id"] == "a\"b\\c=d e" and e["status"] in ("404", 404) for e in done), done
                assert all({"method", "path", "status", "request_id", "peer"} <= set(e) for e in done)
        finally:
            server.close()


# --- keys (120) ---------------------------------------------------------------------------------------


def with_key(**kw):
    return Server("--pool-size", "0", "--log-level", "debug", env={"CLOCHE_API_KEY": KEY}, **kw)


def test_key():
    server = with_key()
    try:
        def put(headers=None, prefix="", path="/v1/sandboxes/a"):
            return server.request("PUT", prefix + path, b"{}", headers)
        # the three places
        for r in (put({"Authorization": "Bearer " + KEY}), put({"authorization": "bearer " + KEY}),
                  put({"OPEN-SANDBOX-API-KEY": KEY}), put({"open-sandbox-api-key": KEY}), put(prefix="/k/" + KEY),
                  put({"Authorization": "Bearer wrong"}, prefix="/k/" + KEY)):
            assert r.status == 200, r
        # none of these is the key
        wrong = [None, {"Authorization": KEY}, {"Authorization": "Basic " + KEY}, {"Authorization": "Bearer "}, {"Authorization": "Bearer"},
                 {"Authorization": "Bearer " + KEY[:-1]}, {"Authorization": "Bearer " + KEY + "x"}, {"Authorization": "Bearer " + KEY.lower()},
                 {"Authorization": "Bearer  " + KEY}, {"Authorization": "Bearer\t" + KEY}, {"Authorization": ""},
                 {"OPEN-SANDBOX-API-KEY": ""}, {"OPEN-SANDBOX-API-KEY": KEY[1:]}, {"OPEN-SANDBOX-API-KEY": "Bearer " + KEY},
                 {"X-API-Key": KEY}, {"Cookie": "key=" + KEY}]
        for headers in wrong:
            r = put(headers)
            assert r.status == 401, (headers, r)
            assert list(r.json) == ["error"] and r.headers["WWW-Authenticate"] == "Bearer" and r.headers["X-Request-ID"]
            assert KEY not in r.body.decode() and KEY not in str(r.headers)
        for prefix in ("/k/", "/k/wrong", "/k/" + KEY[:-1], "/k/" + KEY + "x", "/K/" + KEY, "//k/" + KEY, "/k//" + KEY):
            assert put(prefix=prefix).status in (401, 404), prefix
        assert put(path="/v1/sandboxes/a?key=%s&api_key=%s" % (KEY, KEY)).status == 401
        # two are one too many
        for twice in (b"Authorization: Bearer " + KEY.encode() + b"\r\nAuthorization: Bearer wrong\r\n",
                      b"Authorization: Bearer wrong\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n",
                      b"OPEN-SANDBOX-API-KEY: " + KEY.encode() + b"\r\nOPEN-SANDBOX-API-KEY: " + KEY.encode() + b"\r\n"):
            got = server.raw(b"PUT /v1/sandboxes/a HTTP/1.1\r\n" + HOST + CLOSE + twice + b"Content-Length: 2\r\n\r\n{}")
            assert status(got) == 401, got
        # every path but the health check needs it, also those that do not exist
        for method, path in (("GET", "/nope"), ("GET", "/-/stats"), ("POST", "/v1/sandboxes/a/exec"), ("DELETE", "/v1/sandboxes/a"),
                             ("POST", "/v1/sandboxes/a/touch"), ("POST", "/v1/sandboxes/a/files/upload"), ("POST", "/healthz/x"),
                             ("GET", "/v1/sandboxes/a/files/download"), ("GET", "/v1/sandboxes/%2e"), ("OPTIONS", "/v1/sandboxes/a")):
            assert server.request(method, path).status == 401, (method, path)
        for path in ("/healthz", "/k/%s/healthz" % KEY):
            r = server.request("GET", path)
            assert (r.status, r.body) == (200, b"OK")
        # with a key, names other than localhost are fine: the key is the proof
        assert put({"Host": "sandbox.example", "Origin": "https://sandbox.example", "Authorization": "Bearer " + KEY}).status == 200
        # the whole protocol through the prefix
        base = "/k/%s/v1/sandboxes/b" % KEY
        assert server.request("PUT", base, b"{}").status == 200
        assert server.request("POST", base + "/exec", b'{"cmd":["echo","k"]}').json["stdout"] == "k\n"
        assert server.request("POST", base + "/touch").status == 200
        assert server.request("GET", base + "/files/download?src=/workspace").status == 200
        assert server.request("DELETE", base).status == 204
        # the sandbox knows nothing of it
        r = server.request("POST", "/k/%s/v1/sandboxes/a/exec" % KEY, json.dumps({"cmd": ["sh", "-c", "env; cat /proc/*/environ /proc/*/cmdline"]}))
        assert r.status == 200 and KEY not in r.json["stdout"]
        with open("/proc/%d/cmdline" % server.process.pid) as f:
            assert KEY not in f.read()
    finally:
        server.key = KEY
        log = server.read_log()
        server.close()
    assert log.count("status=401") >= len(wrong) and KEY not in log, [l for l in log.splitlines() if KEY in l]


def test_key_is_in_no_log():
    """However the request goes wrong."""
    key = KEY.encode()
    escaped = key.replace(b"k", b"%6B").replace(b"-", b"%2d")
    for form in ("text", "json"):
        server = Server("--pool-size", "0", "--log-level", "debug", "--log-format", form, "--body-timeout-seconds", "1",
                        env={"CLOCHE_API_KEY": KEY})
        try:
            for data in (b"GET /k/" + key + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key + b"/ HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + escaped + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET //k/" + escaped + b"/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key + b"/k/" + escaped + b"/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /v1/sandboxes/" + escaped + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key[:-1] + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",  # one letter is missing
                         b"GET /k/" + key + b"?x=1 HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key + b"/k/" + key + b"/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET http://localhost/k/" + key + b"/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"BREW /k/" + key + b"/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"PATCH /k/" + key + b"/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key + b"/healthz HTTP/1.1\r\n" + HOST + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key + b"/healthz HTTP/2.0\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /k/" + key + b"/healthz#f HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /healthz?key=" + key + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"PUT /k/" + key + b"/v1/sandboxes/a HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: 99999999\r\n\r\n",
                         b"PUT /k/" + key + b"/v1/sandboxes/a HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: 9\r\n\r\n{",
                         b"PUT /k/" + key + b"/v1/sandboxes/a HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: 1\r\n\r\n{",
                         b"PUT /k/" + key + b"/v1/sandboxes/a HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n",
                         b"GET /k/" + key + b"/v1/sandboxes/%zz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
                         b"GET /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"Authorization: Bearer " + key + b"\r\n\r\n",
                         b"GET /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"Authorization: Bearer " + key + b"\x01\r\n\r\n"):
                got = server.raw(data, timeout=5)
                assert key not in got, got
        finally:
            server.key = KEY
            log = server.read_log()
            server.close()
        log = urllib.parse.unquote(log)
        assert KEY[:-1] not in log, (form, [l for l in log.splitlines() if KEY[:-1] in l])


def serve(*args, env=None):
    e = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    e.update(env or {})
    return subprocess.run([harness.BIN, "serve"] + list(args), env=e, capture_output=True, text=True, timeout=20 * SLOW)


def test_print_config_hides_the_key():
    r = serve("--print-config", env={"CLOCHE_API_KEY": KEY})
    assert r.returncode == 0 and KEY not in r.stdout + r.stderr, r
    assert re.search(r"api_key = .*CLOCHE_API_KEY", r.stdout), r.stdout  # that there is one, and where from
    r = serve("--print-config", "--api-key", KEY)
    assert r.returncode == 0 and KEY not in r.stdout + r.stderr
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(KEY + "\n")
        f.flush()
        r = serve("--print-config", "--api-key-file", f.name)
        assert r.returncode == 0 and KEY not in r.stdout + r.stderr and f.name in r.stdout


def test_key_file():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(KEY + "\n")
        f.flush()
        server = Server("--pool-size", "0", "--api-key-file", f.name)
        try:
            assert server.request("GET", "/-/stats").status == 401
            assert server.request("GET", "/-/stats", headers={"Authorization": "Bearer " + KEY}).status == 200
        finally:
            server.key = KEY
            server.close()


def test_bad_keys_are_refused():
    for key in ("short", "x" * 15, "with blank in the middle", "with/slash/in/it/0123", "caf\u00e9-0123456789abcdef", "tab\t0123456789abcdef"):
        r = serve("--print-config", env={"CLOCHE_API_KEY": key})
        assert r.returncode == 1 and key not in r.stderr and "api_key" in r.stderr.lower().replace("-", "_"), (key, r)


def test_listening_without_a_key():
    with tempfile.TemporaryDirectory() as state:
        for where in ("0.0.0.0:%d", ":%d", "[::]:%d", "192.0.2.1:%d", "[::ffff:10.0.0.1]:%d"):
            r = serve("--state-dir", state, "--listen", where % free_port())
            assert r.returncode == 1 and r.stdout == "", r
            assert r.stderr.startswith("cloche: ") and r.stderr.count("\n") == 1, r.stderr
            assert "API key" in r.stderr and len(r.stderr.split()) > 8, r.stderr  # one sentence that says what to do
        for where in ("localhost", "nowhere:80", "127.0.0.1:99999", "127.0.0.1:-1", "unix:relative"):
            r = serve("--state-dir", state, "--listen", where)
            assert r.returncode == 1 and r.stderr.count("\n") == 1, r


def test_listening_everywhere_with_a_key():
    server = Server("--pool-size", "0", env={"CLOCHE_API_KEY": KEY}, start=False)
    server.flags += ["--listen", "0.0.0.0:%d" % server.port]  # the last one counts
    try:
        server.start()
        assert server.request("GET", "/-/stats").status == 401
        assert server.request("GET", "/-/stats", headers={"Authorization": "Bearer " + KEY}).status == 200
    finally:
        server.key = KEY
        server.close()


def test_unix_socket():
    with tempfile.TemporaryDirectory() as d:
        server = Server("--pool-size", "0", start=False)
        server.flags += ["--listen", "unix:%s/s" % d]
        server.start(expect_ready=False)
        try:
            def ask(more=b"", host=HOST):
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(5)
                    s.connect(d + "/s")
                    s.sendall(b"GET /healthz HTTP/1.1\r\n" + host + more + CLOSE + b"\r\n")
                    return read_all(s)

            def ready():
                try:
                    return ask().endswith(b"OK")
                except OSError:
                    return False
            eventually(ready, "it answers on its socket")
            assert status(ask(host=b"Host: cloche\r\n")) == 200  # curl --unix-socket s http://cloche/
            assert status(ask(b"Origin: http://evil.example\r\n")) == 403  # a proxy may stand in front
            assert os.stat(d + "/s").st_mode & 0o007 == 0, oct(os.stat(d + "/s").st_mode)  # whoever connects can run code
        finally:
            server.stop()
            server.flags = server.flags[:2]
            server.close()


def test_nothing_is_left(server):
    """After all of the above the shared server is as it was."""
    server.assert_healthy()
    stats = server.stats()
    assert stats["sandboxes"] == 0, stats
    eventually(lambda: server.stats()["inTransit"] == 0, "the pool is full again")


harness.main(globals())
