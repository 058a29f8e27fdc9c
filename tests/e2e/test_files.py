#!/usr/bin/env python3
"""Upload and download (A4, A5): what real clients send, what hostile ones send, and how much."""
import gzip
import hashlib
import io
import json
import os
import random
import re
import socket
import stat
import sys
import tarfile
import tempfile
import threading
import time
import urllib.parse
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import Server, eventually, SLOW

_count = [0]


def fresh(server, **fields):
    _count[0] += 1
    name = "f%d-%d" % (os.getpid(), _count[0])
    server.make(name, **fields)
    return name


def error_of(reply, status):
    assert reply.status == status, reply
    body = reply.json
    assert list(body) == ["error"] and body["error"], body
    return body["error"]


def client_tar(files, mode="w:gz"):
    """As the real client packs: pax, regular files only, 0644, mtime 0, owner 0, no directories."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as t:
        for name, data in files.items():
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def members_tar(members, format=tarfile.PAX_FORMAT, mode="w"):
    """members: (name, dict of TarInfo attributes, data)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as t:
        for name, attributes, data in members:
            info = tarfile.TarInfo(name)
            info.mode = 0o644
            for k, v in attributes.items():
                setattr(info, k, v)
            info.size = len(data) if info.isreg() else 0
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def upload(server, box, data, dest=None, raw_query=None, **kw):
    query = raw_query if raw_query is not None else "?" + urllib.parse.urlencode({"dest": dest}) if dest is not None else ""
    return server.request("POST", "/v1/sandboxes/%s/files/upload%s" % (box, query), data,
                          {"Content-Type": "application/x-tar"}, **kw)


def uploaded(server, box, data, dest=None):
    r = upload(server, box, data, dest)
    assert r.status == 200, r
    return r.json


def download(server, box, src=None):
    query = "?" + urllib.parse.urlencode({"src": src}) if src is not None else ""
    return server.request("GET", "/v1/sandboxes/%s/files/download%s" % (box, query))


class Member(tarfile.TarInfo):
    """With its content, as .data."""


def downloaded(server, box, src=None):
    """{name: Member} of what came."""
    r = download(server, box, src)
    assert r.status == 200 and r.headers["Content-Type"] == "application/x-tar", r
    found = {}
    with tarfile.open(fileobj=io.BytesIO(r.body), mode="r:gz", tarinfo=Member) as t:
        for m in t:
            m.data = t.extractfile(m).read() if m.isreg() else None
            assert m.name not in found
            found[m.name] = m
    return found


def rss(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024


# --- what real clients send ------------------------------------------------------------------


def test_round_trip(server):
    name = fresh(server)
    files = {"a.txt": "hello\n", "d/e/f.txt": "deep", "empty": b"", "bin": bytes(range(256)), "x y/\u00e9 \u4e2d\U0001f600.txt": "uni",
             "l" * 120 + "/" + "m" * 200: "long", "/".join(["p" * 50] * 8): "longer", "b..c": "dots", "..hidden": "h", ".dot": "d",
             "tab\tnew\nline": "odd", "back\\slash": "bs", "-rf": "dash", "'\"$(x)": "quote"}
    assert uploaded(server, name, client_tar(files)) == {"uploaded": len(files), "skippedCount": 0, "skipped": []}
    got = downloaded(server, name)
    assert {n: m.data.decode("latin-1") for n, m in got.items()} == \
        {n: (d if isinstance(d, bytes) else d.encode()).decode("latin-1") for n, d in files.items()}
    for m in got.values():
        assert (m.isreg(), m.uid, m.gid, m.mode, m.mtime) == (True, 0, 0, 0o644, 0), m.get_info()
        assert not m.name.startswith("/") and not m.name.startswith("./")
    r = server.sh(name, "cat a.txt d/e/f.txt 'x y/\u00e9 \u4e2d\U0001f600.txt'; stat -c '%U %a' a.txt d d/e 'x y'; id -un")
    out = r["stdout"].split("\n")
    me = out[-2]
    assert out[0] == "hello" and out[1] == "deepuni" + me + " 644" and out[2:5] == [me + " 755"] * 3, r
    # what is there can be changed and removed by the sandbox
    assert server.sh(name, "echo more >> a.txt && rm -r d && mv 'x y' z")["exitCode"] == 0


def test_bytes_that_are_no_utf8(server):
    name = fresh(server)
    server.python(name, "import os; open(b'/workspace/caf\\xe9', 'w').write('latin'); os.symlink(b'caf\\xe9', b'/workspace/l\\xff')")
    r = download(server, name)
    with tarfile.open(fileobj=io.BytesIO(r.body), mode="r:gz", encoding="utf-8", errors="surrogateescape") as t:
        names = sorted(os.fsencode(n) for n in t.getnames())
    assert names == [b"caf\xe9", b"l\xff"], names


def test_upload_replaces(server):
    name = fresh(server)
    server.sh(name, "echo old > f; chmod 600 f; mkdir d; echo x > d/keep; ln -s f link; ln f hard")
    assert uploaded(server, name, client_tar({"f": "new", "d/more": "m", "link": "own"}))["uploaded"] == 3
    r = server.sh(name, "cat f; cat d/keep d/more; cat hard; [ -L link ] || cat link; stat -c %a f; ls -A")
    assert r["stdout"] == "newx\nmold\nown644\nd\nf\nhard\nlink\n", r
    # the last of two members of one name wins, as in the real client's archives
    assert uploaded(server, name, members_tar([("f", {}, b"one"), ("f", {}, b"two")]))["uploaded"] == 2
    assert server.exec(name, "cat", "f")["stdout"] == "two"
    # a file where a directory is, and the other way round: said, not done
    r = uploaded(server, name, client_tar({"d": "file", "f/x": "below a file", "ok": "ok"}))
    assert (r["uploaded"], r["skippedCount"]) == (1, 2) and len(r["skipped"]) == 2, r
    assert server.sh(name, "cat f d/keep ok")["stdout"] == "twox\nok"


def test_formats(server):
    name = fresh(server)
    long = "n" * 90 + "/" + "o" * 180
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        for mode in ("w", "w:gz"):
            server.sh(name, "rm -rf /workspace/*")
            data = members_tar([("dir", {"type": tarfile.DIRTYPE, "mode": 0o750}, b""), ("dir/f", {"mode": 0o755}, b"x" * 1000),
                                (long, {}, b"long"), ("link", {"type": tarfile.SYMTYPE, "linkname": "dir/f"}, b""),
                                ("hard", {"type": tarfile.LNKTYPE, "linkname": "dir/f"}, b""),
                                ("./dotted/./x", {}, b"."), ("none/", {"type": tarfile.DIRTYPE, "mode": 0o755}, b"")],
                               format, mode)
            r = uploaded(server, name, data)
            assert r["uploaded"] == 7 and r["skippedCount"] == 0, (format, mode, r)
            r = server.sh(name, "stat -c '%%n %%a %%F %%h' dir dir/f link none; cat link | wc -c; cat '%s' dotted/x" % long)
            assert r["stdout"].splitlines() == ["dir 750 directory 2", "dir/f 755 regular file 2", "link 777 symbolic link 1",
                                                "none 755 directory 2", "1000", "long."], r
    ustar = members_tar([("a" * 90 + "/" + "b" * 90, {}, b"prefix")], tarfile.USTAR_FORMAT)
    assert uploaded(server, name, ustar)["uploaded"] == 1
    # several gzip streams in a row are one
    half = members_tar([("one", {}, b"1" * 5000), ("two", {}, b"2")])
    assert uploaded(server, name, gzip.compress(half[:700]) + gzip.compress(half[700:]))["uploaded"] == 2


def test_empty_archives(server):
    name = fresh(server)
    for data in (client_tar({}), client_tar({}, "w"), b"\0" * 1024, gzip.compress(b"\0" * 1024)):
        assert uploaded(server, name, data) == {"uploaded": 0, "skippedCount": 0, "skipped": []}
    assert downloaded(server, name) == {}


def test_invalid_archives(server):
    name = fresh(server)
    good = client_tar({"canary": "x" * 100000})
    plain = client_tar({"canary": "x" * 100000}, "w")
    broken = bytearray(plain)
    broken[150] ^= 1  # the checksum
    noise = bytes(random.Random(1).randrange(256) for _ in range(4000))
    for what, data in {"nothing": b"", "text": b"hello world\n" * 100, "noise": noise, "short": b"x", "zip": b"PK\x03\x04" + noise,
                       "cut gzip": good[:-20], "cut earlier": good[:len(good) // 2], "gzip head only": good[:10],
                       "two bytes": b"\x1f\x8b", "gzip of text": gzip.compress(b"hello " * 500),
                       "gzip of nothing": gzip.compress(b""), "bad crc": good[:-8] + b"\0\0\0\0" + good[-4:],
                       "checksum": bytes(broken), "cut tar": plain[:50000], "xz": b"\xfd7zXZ\0" + noise,
                       "bz2": b"BZh9" + noise, "gzip then noise": good[:60] + noise}.items():
        r = upload(server, name, data)
        assert r.status == 400, (what, r)
        error_of(r, 400)
    assert server.exec(name, "ls", "-A")["stdout"] == "", "a failed upload left something"
    assert uploaded(server, name, good)["uploaded"] == 1
    server.assert_healthy()


# --- hostile archives -------------------------------------------------------------------------


def canaries():
    return {p: os.path.exists(p) for p in ("/tmp/cloche-canary", "/cloche-canary", "/etc/cloche-canary", "/workspace")}


def test_members_that_would_leave(server):
    before = canaries()
    name = fresh(server)
    server.sh(name, "mkdir dest; echo safe > outside")
    hostile = members_tar([
        ("../outside", {}, b"evil"), ("a/../../outside", {}, b"evil"), ("/tmp/cloche-canary", {}, b"abs"),
        ("//etc/cloche-canary", {}, b"abs"), ("..", {}, b"x"), ("good/../good2", {}, b"x"), ("./../outside", {}, b"evil"),
        ("fine", {}, b"fine")])
    r = uploaded(server, name, hostile, "/workspace/dest")
    # absolute names lose their '/', names with '..' are left out and named
    assert (r["uploaded"], r["skippedCount"]) == (3, 5), r
    for part in ("../outside", "a/../../outside", "good/../good2"):
        assert any(part in s for s in r["skipped"]), r
    r = server.sh(name, "cat outside; cd dest; find . -type f | sort; cat tmp/cloche-canary; ls /tmp /etc | grep canary")
    assert r["stdout"] == "safe\n./etc/cloche-canary\n./fine\n./tmp/cloche-canary\nabs", r
    assert canaries() == before


def test_links_out(server):
    before = canaries()
    name = fresh(server)
    server.sh(name, "mkdir dest; echo safe > outside; mkdir outdir")
    sym, hard = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}
    hostile = members_tar([
        ("l1", dict(sym, linkname="/tmp"), b""), ("l1/cloche-canary", {}, b"evil"),
        ("l2", dict(sym, linkname=".."), b""), ("l2/outside", {}, b"evil"),
        ("l3", dict(sym, linkname="../outdir"), b""), ("l3/x", {}, b"evil"),
        ("sub/l4", dict(sym, linkname="../../outside"), b""),
        ("l5", dict(sym, linkname="sub/../.."), b""),
        ("h1", dict(hard, linkname="/etc/passwd"), b""), ("h2", dict(hard, linkname="../outside"), b""),
        ("h3", dict(hard, linkname="nothing"), b""),
        ("inside", dict(sym, linkname="sub/ok"), b""), ("sub/ok", {}, b"ok"), ("h4", dict(hard, linkname="sub/ok"), b""),
        ("h5", dict(hard, linkname="inside"), b""),  # a hard link to a link
        ("self", dict(sym, linkname="self"), b""), ("self/x", {}, b"loop"),
    ])
    r = uploaded(server, name, hostile, "dest")
    text = "\n".join(r["skipped"])
    assert r["skippedCount"] == len(r["skipped"]) and all(s.partition(": ")[2] for s in r["skipped"]), r
    for n in ("l1", "l2", "l3", "sub/l4", "l5", "h1", "h2", "h3", "h5", "self/x"):
        assert re.search("^%s: " % re.escape(n), text, re.M), (n, r)
    r = server.sh(name, "cat outside; ls outdir; cd dest; find . -type l | sort; cat inside h4; "
                        "find . -links +1 -type f | sort; grep -rl evil /workspace /tmp /etc /dev/shm /var 2>/dev/null")
    out = r["stdout"].split("\n")
    assert out[0] == "safe" and out[1:3] == ["./inside", "./self"], r
    assert out[3].startswith("okok") and "./h4" in r["stdout"], r
    # the content of members whose link was refused went to plain directories below dest, if anywhere
    assert all(line.startswith("/workspace/dest/") for line in out if line.startswith("/")), r
    # existing links of the sandbox are not followed out either, but those that stay are
    server.sh(name, "cd dest; ln -s /tmp out; ln -s sub in; ln -s /workspace/dest/sub abs")
    r = uploaded(server, name, client_tar({"out/cloche-canary": "evil", "in/through": "t"}), "dest")
    assert r["uploaded"] == 1 and "out/cloche-canary" in r["skipped"][0], r
    assert server.sh(name, "cat dest/sub/through; ls /tmp")["stdout"] == "t"
    assert canaries() == before


def test_special_members(server):
    name = fresh(server)
    hostile = members_tar([
        ("fifo", {"type": tarfile.FIFOTYPE}, b""), ("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b""),
        ("disk", {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0}, b""),
        ("suid", {"mode": 0o6755, "uid": 0, "uname": "root"}, b"#!/bin/sh\nid -u\n"), ("sticky", {"mode": 0o1777}, b""),
        ("sgdir", {"type": tarfile.DIRTYPE, "mode": 0o2755}, b""), ("locked", {"mode": 0}, b"x"),
        ("far", {"mtime": 10**12, "uid": 2**31, "gid": 2**31}, b"f"), ("past", {"mtime": -5}, b"p"),
    ])
    r = uploaded(server, name, hostile)
    assert r["skippedCount"] == 3 and {s.split(":")[0] for s in r["skipped"]} == {"fifo", "null", "disk"}, r
    r = server.sh(name, "stat -c '%n %a %U' *; id -un; ./suid; cat locked")
    out = r["stdout"].splitlines()
    me = [l for l in out if " " not in l][0]
    assert all(l.endswith(" " + me) for l in out if " " in l), r
    modes = {l.split()[0]: l.split()[1] for l in out if " " in l}
    assert modes["suid"] == "755" and modes["sticky"] == "777" and modes["sgdir"] == "755", r
    assert out[-1] == server.exec(name, "id", "-u")["stdout"].strip() + "x" or out[-1] == "x", r
    assert set(downloaded(server, name)) == {"suid", "sticky", "sgdir", "locked", "far", "past"}


def test_many_skipped_are_counted(server):
    name = fresh(server)
    r = uploaded(server, name, members_tar([("../%d" % i, {}, b"") for i in range(100)] + [("x", {}, b"")]))
    assert r["uploaded"] == 1 and r["skippedCount"] == 100 and 1 <= len(r["skipped"]) <= 100, r


def test_bombs(server):
    """Ratio and size are bounded by the sandbox's storage; the server does not care."""
    name = fresh(server, ephemeralStorageLimit="16Mi")
    info = tarfile.TarInfo("bomb")
    info.size = 300 << 20
    data = gzip.compress(info.tobuf() + bytes(info.size), 9)
    before = rss(server.process.pid)
    r = upload(server, name, data)
    error_of(r, 507)
    assert rss(server.process.pid) - before < (20 << 20) * SLOW
    assert server.exec(name, "ls", "-A")["stdout"] == ""  # no half file
    # a member that claims more than it has
    for size in (2**40, 2**62):
        info.size = size
        r = upload(server, name, info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
        assert 400 <= r.status < 508 and r.status != 500, r
        error_of(r, r.status)
    assert server.exec(name, "ls", "-A")["stdout"] == ""
    # a pax path of 4 MB
    record = b"path=" + b"x" * (4 << 20) + b"\n"
    n = len(record) + 1
    n += len(str(n + len(str(n))))
    head = tarfile.TarInfo("pax")
    head.type, head.size = tarfile.XHDTYPE, n
    pax = b"%d " % n + record
    r = upload(server, name, head.tobuf() + pax + bytes(-len(pax) % 512) + tarfile.TarInfo("x").tobuf() + bytes(1024))
    assert r.status in (200, 400), r
    assert r.status == 400 or r.json["skippedCount"] >= 1, r
    server.assert_healthy()


def test_upload_limits():
    server = Server("--upload-bytes", "100000", "--unpacked-bytes", "200000", "--upload-members", "10", "--pool-size", "0")
    try:
        server.make("a")
        assert uploaded(server, "a", client_tar({str(i): "x" for i in range(10)}))["uploaded"] == 10
        assert error_of(upload(server, "a", client_tar({str(i): "x" for i in range(11)})), 400)
        r = upload(server, "a", client_tar({"big": bytes(200001)}))
        assert r.status in (400, 413), r
        r = upload(server, "a", random.Random(2).randbytes(100001))
        error_of(r, 413)
        assert uploaded(server, "a", client_tar({"ok": bytes(190000)}))["uploaded"] == 1
        server.assert_healthy()
    finally:
        server.close()


SWAP = r'''
import ctypes, os
libc = ctypes.CDLL(None)
os.chdir("/workspace/race")
os.makedirs("a", exist_ok=True)
if not os.path.islink("b"):
    os.symlink("/workspace/out", "b")
print("up", flush=True)
while not os.path.exists("/workspace/stop"):
    libc.renameat2(-100, b"a", -100, b"b", 2)
'''


def test_directory_swapped_for_link(server):
    """Abuse 104: while files go to race/a/, the sandbox swaps race/a with a link that leads out."""
    name = fresh(server)
    server.sh(name, "mkdir race out; echo safe > out/canary")
    swapper = threading.Thread(target=lambda: server.python(name, SWAP, timeoutSeconds=60))
    swapper.start()
    try:
        eventually(lambda: server.sh(name, "[ -L race/b ] || [ -L race/a ]")["exitCode"] == 0, "it swaps")
        placed = skipped = 0
        for turn in range(25):
            files = {"a/%d-%d" % (turn, i): "x" for i in range(40)}
            files.update({"a/canary": "evil"})
            r = uploaded(server, name, client_tar(files, "w"), "race")
            placed += r["uploaded"]
            skipped += r["skippedCount"]
        assert placed + skipped == 25 * 41 and placed > 0, (placed, skipped)
    finally:
        server.sh(name, "touch stop")
        swapper.join()
    r = server.sh(name, "cat out/canary; ls out | wc -l; ls race | wc -l; find race -type f | wc -l")
    assert r["stdout"].split()[:3] == ["safe", "1", "2"], (r, skipped)
    assert 0 < int(r["stdout"].split()[3]) <= 25 * 41
    server.assert_healthy()


# --- where to --------------------------------------------------------------------------------------


def test_dest(server):
    name = fresh(server)
    data = client_tar({"f": "x"})
    for query, path in (("", "/workspace/f"), ("?dest=%2Fworkspace%2Fx+y%2F%C3%A9", "/workspace/x y/\u00e9/f"),
                        ("?dest=/workspace/a%2Bb", "/workspace/a+b/f"), ("?dest=rel/deep", "/workspace/rel/deep/f"),
                        ("?dest=/tmp/new/dir/", "/tmp/new/dir/f"), ("?dest=/", "/f"), ("?dest=", "/workspace/f"),
                        ("?other=1&dest=/workspace/two&x", "/workspace/two/f"), ("?d%65st=/workspace/three", "/workspace/three/f"),
                        ("?dest=/workspace/../tmp/up", "/tmp/up/f"), ("?dest=//workspace//four//", "/workspace/four/f")):
        server.sh(name, "rm -f /workspace/f /f")
        r = upload(server, name, data, raw_query=query, dest="x")
        if path == "/f" and r.status != 200:
            error_of(r, 400)  # the root is not the user's to write to
            continue
        assert r.status == 200, (query, r)
        assert server.exec(name, "cat", path)["stdout"] == "x", query
    server.sh(name, "echo > file; ln -s /tmp link; ln -s /nowhere dangling; mkdir -m 500 ro")
    assert upload(server, name, data, "link").status == 200
    assert server.exec(name, "cat", "/tmp/f")["stdout"] == "x"
    for query in ("?dest=%", "?dest=%zz", "?dest=a%00b", "?dest=" + "a" * 300, "?dest=/" + "a/" * 3000, "?dest=/workspace/file",
                  "?dest=file/x", "?dest=/proc/new", "?dest=dangling", "?dest=dangling/x", "?dest=/usr/new", "?dest=/dev/null", "?dest=ro/x"):
        r = upload(server, name, data, raw_query=query, dest="x")
        error_of(r, 400)
    server.assert_healthy()


# --- download ----------------------------------------------------------------------------------------


def test_download_what(server):
    name = fresh(server)
    assert downloaded(server, name) == {}  # empty, and still an archive
    server.sh(name, "mkdir -p d/e empty; echo 1 > a; echo 22 > d/b; echo 333 > d/e/c; chmod 751 a; touch -d @86400 a; chmod 700 empty")
    got = downloaded(server, name)
    assert {n for n, m in got.items() if m.isreg()} == {"a", "d/b", "d/e/c"}, sorted(got)
    assert (got["a"].mode, got["a"].mtime, got["a"].data) == (0o751, 86400, b"1\n")
    assert set(got) - {"a", "d/b", "d/e/c"} <= {"empty"}
    assert set(downloaded(server, name, "d")) == set(downloaded(server, name, "/workspace/d/")) == {"b", "e/c"}
    one = downloaded(server, name, "/workspace/d/e/c")
    assert list(one) == ["c"] and one["c"].data == b"333\n"
    assert list(downloaded(server, name, "a")) == ["a"]
    assert downloaded(server, name, "") .keys() == got.keys()
    assert "passwd" in downloaded(server, name, "/etc")
    for missing in ("/workspace/none", "none", "/no/such/dir", "a/b", "d/none"):
        r = download(server, name, missing)
        assert r.status in (404, 400) if missing == "a/b" else r.status == 404, (missing, r)
        error_of(r, r.status)
    for query in ("?src=%", "?src=a%00b", "?src=/" + "x/" * 3000):
        error_of(server.request("GET", "/v1/sandboxes/%s/files/download%s" % (name, query)), 400)


def test_download_links(server):
    name = fresh(server)
    server.sh(name, "mkdir -p src/d other; echo secret > other/s; echo in > src/d/f; cd src; ln -s d/f ok; ln -s ../src/d/f round; "
                    "ln -s d dir; ln -s /etc/passwd abs; ln -s ../other/s up; ln -s ../../d/f d/deep; ln -s ../d/f d/fine; "
                    "ln -s gone dangling; ln -s loop loop; ln d/f hard")
    got = downloaded(server, name, "src")
    links = {n: m.linkname for n, m in got.items() if m.issym()}
    assert links.items() >= {"ok": "d/f", "dir": "d", "d/fine": "../d/f", "dangling": "gone"}.items(), links
    for out in ("abs", "up", "d/deep", "round"):
        assert out not in got, out
    assert {n for n, m in got.items() if m.isreg()} == {"d/f", "hard"}, got
    assert not [m for m in got.values() if m.islnk() or not (m.isreg() or m.issym())]
    assert b"secret" not in b"".join(m.data or b"" for m in got.values())
    # an archive that extracts with the strictest filter
    with tempfile.TemporaryDirectory() as d:
        with tarfile.open(fileobj=io.BytesIO(download(server, name, "src").body), mode="r:gz") as t:
            t.extractall(d, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        with open(d + "/ok") as f:
            assert f.read() == "in\n"
    # src itself may be a link inside the sandbox: it is resolved there
    server.sh(name, "ln -s src alias; ln -s /etc away")
    assert set(downloaded(server, name, "alias")) == set(got)
    assert "passwd" in downloaded(server, name, "away")


def test_download_special_files(server):
    name = fresh(server)
    server.python(name, "import os, socket; os.mkfifo('/workspace/fifo'); s = socket.socket(socket.AF_UNIX); "
                        "s.bind('/workspace/sock'); open('/workspace/plain', 'w').write('p'); os.mkfifo('/workspace/fifo2')")
    assert set(downloaded(server, name)) == {"plain"}
    for src in ("fifo", "sock", "/dev/null", "/dev/zero", "/dev/tty", "/proc/kmsg", "/proc", "/proc/self/environ"):
        start = time.monotonic()
        r = download(server, name, src)
        assert r.status in (400, 404), (src, r)
        error_of(r, r.status)
        assert time.monotonic() - start < 3 * SLOW
    server.assert_healthy()


def test_download_unreadable(server):
    """What the sandbox's user cannot read is left out, not invented."""
    name = fresh(server)
    server.sh(name, "echo x > f; echo y > g; chmod 0 g; mkdir -m 0 closed")
    got = downloaded(server, name)
    assert got["f"].data == b"x\n" and ("g" not in got or got["g"].data == b"y\n")
    assert server.request("GET", "/v1/sandboxes/%s/files/download?src=/root" % name).status in (200, 400, 403, 404)


def test_modes_and_times(server):
    name = fresh(server)
    modes = (0o644, 0o755, 0o600, 0o700, 0o444, 0o555, 0o777, 0o640)
    uploaded(server, name, members_tar([("m%o" % m, {"mode": m, "mtime": 1000000000 + m}, b"x") for m in modes]))
    got = downloaded(server, name)
    for m in modes:
        # the owner can always read and write what was uploaded
        assert got["m%o" % m].mode == m | 0o600 and got["m%o" % m].mtime == 1000000000 + m, (oct(m), got["m%o" % m].get_info())


def test_sizes(server):
    name = fresh(server)
    rng = random.Random(7)
    files = {str(n): rng.randbytes(n) for n in (0, 1, 511, 512, 513, 65535, 65536, 65537, 131072, 262143, 262144, 262145, 1 << 20)}
    for mode in ("w", "w:gz"):
        server.sh(name, "rm -f *")
        assert uploaded(server, name, client_tar(files, mode))["uploaded"] == len(files)
        got = downloaded(server, name)
        assert {n: m.data for n, m in got.items()} == files
    for n in ("0", "1", "65537"):
        assert downloaded(server, name, n)[n].data == files[n]


def test_sparse_and_growing(server):
    name = fresh(server)
    server.sh(name, "truncate -s 300M hole; printf end >> hole; printf start | dd of=hole conv=notrunc 2>/dev/null")
    r = download(server, name)
    assert len(r.body) < 4 << 20
    with tarfile.open(fileobj=io.BytesIO(r.body), mode="r:gz") as t:
        m = t.getmember("hole")
        f = t.extractfile(m)
        assert m.size == (300 << 20) + 3 and f.read(6) == b"start\0"
        f.seek(-4, 2)
        assert f.read() == b"\0end"
    server.sh(name, "rm hole; (while [ ! -e stop ]; do head -c 20000 /dev/zero >> grow; done) > /dev/null 2>&1 &")
    eventually(lambda: server.sh(name, "[ -s grow ]")["exitCode"] == 0, "it grows")
    last = 0
    for _ in range(5):
        size = len(downloaded(server, name)["grow"].data)  # whole, at the size that it had
        assert size >= last, (size, last)
        last = size
    server.sh(name, "touch stop")
    server.assert_healthy()


# --- much, slowly, half ---------------------------------------------------------------------------------


def test_100_mb(server):
    name = fresh(server, ephemeralStorageLimit="400Mi", memoryLimit="1Gi")
    block = random.Random(3).randbytes(1 << 20)
    data = block * 100
    before = rss(server.process.pid)
    assert uploaded(server, name, client_tar({"big": data}, "w"))["uploaded"] == 1
    r = server.sh(name, "stat -c %s big; sha256sum big")
    assert r["stdout"].split()[:2] == [str(len(data)), hashlib.sha256(data).hexdigest()], r
    got = downloaded(server, name, "big")["big"].data
    assert got == data
    assert rss(server.process.pid) - before < (20 << 20) * SLOW, (before, rss(server.process.pid))


def test_slow_reader(server):
    """A reader that stops makes the producer stop; 350 MB pass through a server that does not grow."""
    name = fresh(server, ephemeralStorageLimit="400Mi", memoryLimit="1Gi", cpuLimit="2")
    server.sh(name, "head -c 350M /dev/urandom > big", timeoutSeconds=60)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.settimeout(60)
    s.connect(("127.0.0.1", server.port))
    before, most = rss(server.process.pid), 0
    s.sendall(b"GET /v1/sandboxes/%s/files/download?src=big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % name.encode())
    first = s.recv(65536)
    assert first.startswith(b"HTTP/1.1 200 ")

    def worker_state():
        for p in harness.cgroup_pids(server):
            try:
                with open("/proc/%d/stat" % p) as f:
                    text = f.read()
                if "(cloche-files)" in text:
                    words = text.rpartition(")")[2].split()
                    return words[0], int(words[11]) + int(words[12])
            except OSError:
                pass
        return None
    # nothing is read: the packer falls asleep and its clock stands still
    seen = []

    def stands_still():
        seen.append(worker_state())
        return len(seen) > 10 and seen[-10] is not None and seen[-1] == seen[-10] and seen[-1][0] == "S"
    eventually(stands_still, "the packer waits for its reader")
    start = time.monotonic()
    assert server.exec(name, "echo", "beside")["stdout"] == "beside\n"  # nobody else waits
    assert time.monotonic() - start < 2 * SLOW
    total = len(first)
    while True:
        piece = s.recv(1 << 20)
        if not piece:
            break
        total += len(piece)
        if total % 16 == 0:
            most = max(most, rss(server.process.pid))
    s.close()
    most = max(most, rss(server.process.pid))
    assert total > 350 << 20, total
    assert most - before < (20 << 20) * SLOW, (before, most)


def test_reader_that_leaves(server):
    name = fresh(server)
    server.sh(name, "head -c 30M /dev/urandom > big")
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"GET /v1/sandboxes/%s/files/download HTTP/1.1\r\nHost: localhost\r\n\r\n" % name.encode())
    assert s.recv(1000)
    s.close()
    eventually(lambda: not workers(server), "the packer is gone")
    server.assert_healthy()


def test_download_cut_short(server):
    """Half an archive never looks like a whole one: the last chunk is missing, or bytes of the gzip are."""
    name = fresh(server)
    server.sh(name, "head -c 60M /dev/urandom > big")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.settimeout(30)
    s.connect(("127.0.0.1", server.port))
    s.sendall(b"GET /v1/sandboxes/%s/files/download HTTP/1.1\r\nHost: localhost\r\n\r\n" % name.encode())
    got = s.recv(65536)
    assert got.startswith(b"HTTP/1.1 200 ") and b"chunked" in got
    assert server.delete(name).status == 204
    end = b""
    try:
        while True:
            piece = s.recv(1 << 20)
            if not piece:
                break
            end = (end + piece)[-64:]
    except ConnectionResetError:
        pass
    s.close()
    assert not end.endswith(b"0\r\n\r\n"), end
    # the same for a file that gets shorter while it is read
    name = fresh(server)
    server.sh(name, "head -c 60M /dev/urandom > big")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.settimeout(30)
    s.connect(("127.0.0.1", server.port))
    s.sendall(b"GET /v1/sandboxes/%s/files/download HTTP/1.1\r\nHost: localhost\r\n\r\n" % name.encode())
    assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
    server.sh(name, "truncate -s 0 big")
    end = b""
    try:
        while True:
            piece = s.recv(1 << 20)
            if not piece:
                break
            end = (end + piece)[-64:]
    except ConnectionResetError:
        pass
    s.close()
    assert not end.endswith(b"0\r\n\r\n"), end
    server.assert_healthy()


def workers(server):
    found = []
    for p in harness.cgroup_pids(server):
        try:
            with open("/proc/%d/comm" % p) as f:
                if f.read().strip() == "cloche-files":
                    found.append(p)
        except OSError:
            pass
    return found


def start_upload(server, name, length):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW)
    s.sendall(b"POST /v1/sandboxes/%s/files/upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
              % (name.encode(), length))
    return s


def test_slow_uploader(server):
    name = fresh(server)
    data = client_tar({"a": "first", "b": random.Random(5).randbytes(3000), "c": "last"})
    s = start_upload(server, name, len(data))
    for i in range(0, len(data), 97):
        s.sendall(data[i:i + 97])
        if i % (97 * 8) == 0:
            pause = time.monotonic()
            eventually(lambda: time.monotonic() - pause > 0.15, "a breath")
        if i == 97 * 5:  # in the middle, others are served
            server.assert_healthy()
    got = b""
    while True:
        piece = s.recv(65536)
        if not piece:
            break
        got += piece
    s.close()
    assert got.startswith(b"HTTP/1.1 200 ") and b'"uploaded":3' in got, got
    assert server.exec(name, "cat", "a", "c")["stdout"] == "firstlast"


def test_uploader_too_slow():
    server = Server("--body-timeout-seconds", "1", "--pool-size", "0")
    try:
        server.make("a")
        data = client_tar({"x": bytes(100000)}, "w")
        s = start_upload(server, "a", len(data))
        s.sendall(data[:50000])
        got = s.recv(65536)
        s.close()
        assert got.startswith(b"HTTP/1.1 408 ") and b'"error"' in got, got
        eventually(lambda: not workers(server), "the worker is gone")
        assert server.exec("a", "ls", "-A")["stdout"] == ""
    finally:
        server.close()


def test_aborted_upload_leaves_no_part(server):
    name = fresh(server)
    server.sh(name, "echo old > big")
    data = client_tar({"small": "s", "big": random.Random(6).randbytes(2 << 20)}, "w")
    s = start_upload(server, name, len(data))
    s.sendall(data[:len(data) // 2])
    eventually(lambda: server.sh(name, "ls -A | wc -l")["stdout"].strip() == "3", "half of it is there under another name")
    s.close()
    eventually(lambda: not workers(server), "the worker is gone")
    r = server.sh(name, "ls -A; cat big")
    assert r["stdout"] == "big\nsmall\nold\n", r
    server.assert_healthy()


def test_storage_exceeded(server):
    name = fresh(server, ephemeralStorageLimit="2Mi")
    error_of(upload(server, name, client_tar({"a": bytes(100000), "b": bytes(8 << 20)}, "w")), 507)
    r = server.sh(name, "ls -A; echo more > c && cat c")
    assert r["stdout"] == "a\nmore\n" or r["stdout"] == "a\nc\nmore\n", r
    # the inodes run out before the bytes do
    r = upload(server, name, client_tar({"n%d" % i: "" for i in range(5000)}))
    error_of(r, 507)
    server.assert_healthy()
    assert server.delete(name).status == 204


def test_many_transfers(server):
    name = fresh(server)
    data = client_tar({"d/%d" % i: "x" * i for i in range(50)})
    failures = []

    def run(i):
        try:
            for turn in range(4):
                assert uploaded(server, name, data, "t%d" % i)["uploaded"] == 50
                got = downloaded(server, name, "t%d" % i)
                assert {n: len(m.data) for n, m in got.items()} == {"d/%d" % k: k for k in range(50)}
        except BaseException as e:
            failures.append(e)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    # The last frame is out a moment before the worker that sent it is reaped.
    eventually(lambda: not workers(server), "no worker is left")


harness.main(globals())
