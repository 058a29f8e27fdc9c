#!/usr/bin/env python3
"""The command line: verbs, settings and where they come from, and what is said when a start
cannot work. Every refusal is one sentence on stderr and exit status 1."""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness
from harness import BIN, ROOT, Server


def cloche(*args, env=None, wrapper=(), cwd=None):
    base = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    base.update(env or {})
    return subprocess.run(list(wrapper) + [BIN] + list(args), capture_output=True, text=True, env=base,
                          stdin=subprocess.DEVNULL, timeout=20 * harness.SLOW, cwd=cwd)


def scratch():
    return tempfile.TemporaryDirectory(prefix="cloche-cli-")


def conf(directory, text):
    path = os.path.join(directory, "c.conf")
    with open(path, "w") as f:
        f.write(text)
    return path


def one_sentence(r, *parts):
    """Refused with 1, nothing on stdout, one line that names what is wrong."""
    assert r.returncode == 1, r
    assert r.stdout == "", r
    lines = r.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("cloche: "), r.stderr
    for part in parts:
        assert part in lines[0], (part, lines[0])
    return lines[0]


# --- verbs ---------------------------------------------------------------------------------
def test_version():
    for args in (["version"], ["--version"]):
        r = cloche(*args)
        assert r.returncode == 0 and r.stderr == "", r
        assert re.match(r"cloche \d+\.\d+\.\d+\n", r.stdout), r.stdout
        for library in ("libuv", "sqlite", "libseccomp", "libarchive"):
            assert re.search(r"^  %s +\d" % library, r.stdout, re.M), r.stdout


def test_help():
    for args in (["help"], ["--help"], ["-h"], []):
        r = cloche(*args)
        assert r.returncode == 0 and r.stderr == "", r
        assert "usage: cloche VERB" in r.stdout, r
        for verb in ("serve", "check", "version", "help"):
            assert re.search(r"^  %s " % verb, r.stdout, re.M), r.stdout


def test_unknown_verb():
    r = cloche("server")
    assert r.returncode == 2 and r.stdout == "", r
    assert "'server'" in r.stderr and "cloche help" in r.stderr, r.stderr


def test_check():
    r = cloche("check")
    assert r.returncode == 0, r
    lines = r.stdout.splitlines()
    assert all(re.match(r"(ok|weak|missing) ", x) for x in lines), r.stdout
    assert re.match(r"ok +verdict +cloche can serve here", lines[-1]), lines[-1]
    for what in ("kernel", "namespaces", "user namespaces", "overlayfs", "idmapped mounts", "cgroup memory",
                 "cgroup v2", "seccomp", "Landlock", "state directory"):
        assert any(what in x for x in lines), what
    for x in lines:  # what is not there comes with how to get it
        assert x.startswith("ok") or "to get it: " in x, x


def test_check_json():
    r = cloche("check", "--json")
    assert r.returncode == 0, r
    found = json.loads(r.stdout)
    assert all(set(x) == {"name", "status", "detail", "remedy"} for x in found), found
    assert {x["status"] for x in found} <= {"ok", "weak", "missing"}
    assert found[-1]["name"] == "verdict" and found[-1]["status"] == "ok"
    lines = cloche("check").stdout.splitlines()
    assert len(lines) == len(found)
    for x, line in zip(found, lines):  # the same findings in both forms
        assert re.match(r"%s +%s " % (x["status"], re.escape(x["name"])), line), (x, line)


def test_check_bad_config():
    r = cloche("check", "--pool-size", "many")
    assert r.returncode == 1, r
    assert re.search(r"^missing +configuration .*--pool-size", r.stdout, re.M), r.stdout
    assert re.search(r"^missing +verdict +cloche cannot serve here", r.stdout, re.M), r.stdout
    r = cloche("check", "--json", "--no-such", "1")
    assert r.returncode == 1
    assert json.loads(r.stdout)[-1]["status"] == "missing", r.stdout


def test_check_leaves_nothing():
    with scratch() as d:
        state = os.path.join(d, "state")
        p = subprocess.Popen([BIN, "check", "--state-dir", state], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        assert p.wait(20 * harness.SLOW) == 0
        assert not os.path.exists(state)
    left = [os.path.join(r, n) for r in harness.cgroup_roots() for n in os.listdir(r) if n.endswith("-%d" % p.pid)]
    assert not left, left


def test_check_help():
    r = cloche("check", "--help")
    assert r.returncode == 0 and "usage: cloche check" in r.stdout, r


# --- settings -------------------------------------------------------------------------------
def test_serve_help():
    r = cloche("serve", "--help")
    assert r.returncode == 0 and r.stderr == "", r
    for flag in ("--listen", "--state-dir", "--on-exit", "--print-config", "--config", "--pool-size"):
        assert flag in r.stdout, flag
    assert "keep | delete" in r.stdout


def test_short_help():
    for verb in ("serve", "check"):
        short, long = cloche(verb, "-h"), cloche(verb, "--help")
        assert short.returncode == 0 and short.stdout == long.stdout, short
        assert long.stdout.startswith("usage: cloche %s " % verb), long.stdout


def test_serve_help_wins_over_a_bad_setting():
    r = cloche("serve", "--help", "--pool-size", "many")
    assert r.returncode == 0 and "--pool-size" in r.stdout, r


def test_help_names_every_setting_of_the_file():
    shown = cloche("serve", "--help").stdout
    with open(os.path.join(ROOT, "etc", "cloche.conf")) as f:
        names = re.findall(r"^#(\w+) =", f.read(), re.M)
    assert len(names) > 30
    for name in names:
        assert "--" + name.replace("_", "-") + " " in shown, name


def test_print_config_sources():
    with scratch() as d:
        path = conf(d, "# first line\npool_size = 7\ngrace_seconds = 3   # why\n\ndefault_memory = 512Mi\n")
        r = cloche("serve", "--print-config", "--config", path, "--grace-seconds", "5", "--listen=127.0.0.1:9",
                   env={"CLOCHE_DEFAULT_MEMORY": "1Gi", "CLOCHE_MAX_SANDBOXES": "12", "CLOCHE_SERVICE_HOST": "x"})
        assert r.returncode == 0 and r.stderr == "", r
        rows = dict(re.findall(r"^(#?\w+) = (.*)$", r.stdout, re.M))

        def row(name, value, source):
            got = re.match(r"(.*?) *# (.*)$", rows[name])
            assert (got[1], got[2]) == (value, source), (name, rows[name])
        row("pool_size", "7", "file %s:2" % path)
        row("grace_seconds", "5", "flag --grace-seconds")
        row("default_memory", "1Gi", "environment CLOCHE_DEFAULT_MEMORY")
        row("max_sandboxes", "12", "environment CLOCHE_MAX_SANDBOXES")
        row("listen", "127.0.0.1:9", "flag --listen")
        row("on_exit", "keep", "default")
        row("state_dir", "/var/lib/cloche" if os.geteuid() == 0 else rows["state_dir"].split()[0], "default")


def test_print_config_is_a_config_again():
    with scratch() as d:
        first = cloche("serve", "--print-config", "--pool-size", "9", "--default-cpu", "1500m").stdout
        again = cloche("serve", "--print-config", "--config", conf(d, first))
        assert again.returncode == 0, again

        def values(text):
            return re.findall(r"^(\w+) = (.*?) *#", text, re.M)
        assert values(first) == values(again.stdout)
        assert "default_cpu = 1.5" in first or "default_cpu = 1500m" in first


def test_print_config_hides_the_key():
    key = "verysecretverysecret"
    for args, env in ((["--api-key", key], {}), ([], {"CLOCHE_API_KEY": key})):
        r = cloche("serve", "--print-config", *args, env=env)
        assert r.returncode == 0 and key not in r.stdout + r.stderr, r
        assert re.search(r"^#api_key = \(set\)", r.stdout, re.M), r.stdout


def test_config_by_environment():
    with scratch() as d:
        path = conf(d, "pool_size = 3\n")
        r = cloche("serve", "--print-config", env={"CLOCHE_CONFIG": path})
        assert "file %s:1" % path in r.stdout, r


def test_example_config_is_valid():
    path = os.path.join(ROOT, "etc", "cloche.conf")
    r = cloche("serve", "--print-config", "--config", path)
    assert r.returncode == 0, r
    assert "# file " not in r.stdout, "in the example everything is commented out"
    with scratch() as d:  # and with the comments taken off it means the defaults
        with open(path) as f:
            text = re.sub(r"^#(\w+ =)", r"\1", f.read(), flags=re.M)
        text = re.sub(r"^(api_key(_file)?|image_fallback) =.*$", "", text, flags=re.M)
        on = cloche("serve", "--print-config", "--config", conf(d, text))
        assert on.returncode == 0, on
        strip = lambda t: re.findall(r"^(\w+ = .*?) *#", t, re.M)
        assert strip(on.stdout) == strip(r.stdout)


# --- refusals --------------------------------------------------------------------------------
def test_unknown_flag():
    one_sentence(cloche("serve", "--pool-sise", "3"), "--pool-sise", "--pool-size")
    one_sentence(cloche("serve", "pool-size"), "'pool-size'")
    one_sentence(cloche("serve", "--pool-size"), "needs a value")
    one_sentence(cloche("serve", "--pool_size", "3"), "--pool_size")


def test_bad_values():
    one_sentence(cloche("serve", "--pool-size", "-1"), "--pool-size")
    one_sentence(cloche("serve", "--pool-size", "1e3"), "--pool-size", "1e3")
    one_sentence(cloche("serve", "--on-exit", "stop"), "--on-exit", "keep", "delete")
    one_sentence(cloche("serve", "--default-memory", "1Zi"), "--default-memory", "1Zi")
    one_sentence(cloche("serve", "--state-dir", "here"), "--state-dir", "absolute")
    one_sentence(cloche("serve", "--listen", "example.org:80"), "--listen")
    one_sentence(cloche("serve", "--listen", "127.0.0.1:70000"), "--listen")
    one_sentence(cloche("serve", "--image", "none"), "none")
    one_sentence(cloche("serve", env={"CLOCHE_GRACE_SECONDS": "soon"}), "environment CLOCHE_GRACE_SECONDS", "soon")


def test_bad_file():
    with scratch() as d:
        for text, line, *parts in (
                ("pool_size = 1\nnothing\n", 2, "name = value"),
                ("\n\npoolsize = 1\n", 3, "poolsize", "did you mean 'pool_size'"),
                ("pool_size = 1\n# x\npool_size = 2\n", 3, "line 1"),
                ("pool_size = lots\n", 1, "pool_size", "lots"),
                ("[imagse]\n", 1, "[images]"),
                ("[images]\nx = relative\n", 2, "'x'", "absolute path"),
                ("[images]\npool_size = 3\n", 2, "above [images]")):
            path = conf(d, text)
            one_sentence(cloche("serve", "--config", path), "%s:%d: " % (path, line), *parts)
        os.unlink(path)
        one_sentence(cloche("serve", "--config", path), path, "No such file")
        one_sentence(cloche("serve", "--config", d), d, "regular file")
        path = conf(d, "api_key ThisIsASecretKey1234\n")
        assert "ThisIsASecret" not in one_sentence(cloche("serve", "--config", path)), "secrets are not echoed"


def test_open_listen_needs_a_key():
    for where in ("0.0.0.0:0", ":0", "[::]:8080"):
        one_sentence(cloche("serve", "--listen", where), "API key", "127.0.0.1")


def test_short_key():
    said = one_sentence(cloche("serve", "--api-key", "short-key"), "16")
    assert "short-key" not in said, said


def test_listen_in_use():
    with scratch() as d, socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        where = "127.0.0.1:%d" % s.getsockname()[1]
        one_sentence(cloche("serve", "--listen", where, "--state-dir", os.path.join(d, "s")),
                     "cannot listen on " + where, "in use")


def test_unwritable_state_dir():
    with scratch() as d:
        file = conf(d, "")
        one_sentence(cloche("serve", "--state-dir", os.path.join(file, "s")), "state directory", "Not a directory")
        one_sentence(cloche("serve", "--state-dir", "/proc/cloche"), "state directory /proc/cloche")
        one_sentence(cloche("serve", "--state-dir", file), file)


def test_unwritable_state_dir_of_another():
    if os.geteuid() != 0:
        raise harness.Skip("needs root to become somebody else")
    with scratch() as d:
        os.chmod(d, 0o755)
        one_sentence(cloche("serve", "--state-dir", os.path.join(d, "s"), wrapper=[
            "setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]),
            "cannot make the state directory", "Permission denied")


def test_missing_image():
    with scratch() as d:
        path = conf(d, "[images]\nlost = %s/not-there\n" % d)
        one_sentence(cloche("serve", "--config", path, "--state-dir", os.path.join(d, "s")), "not-there")


# --- the first line --------------------------------------------------------------------------
def test_startup_line():
    server = Server("--pool-size", "0")
    try:
        line = server.read_log().splitlines()[0]
        assert "is ready" in line and "info" in line, line
        assert "listen=http://127.0.0.1:%d " % server.port in line, line
        assert "engine=embedded " in line or "engine=\"embedded" in line, line
        assert "image=host" in line and "state=" + server.state in line, line
        assert "this_host=" in line, line
        assert 'stop="Ctrl-C or kill %d"' % server.process.pid in line, line
    finally:
        server.close()


def test_startup_line_names_the_port():
    """Also when the kernel chose it: whoever starts it with port 0 reads it there."""
    server = Server("--pool-size", "0", start=False)
    server.flags += ["--listen", "[::1]:0"]
    try:
        server.start(expect_ready=False)
        harness.eventually(lambda: "is ready" in server.read_log(), "it has started")
        where = re.search(r"listen=http://\[::1\]:(\d+) ", server.read_log())
        assert where, server.read_log()
        with socket.create_connection(("::1", int(where.group(1))), timeout=10) as s:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200 OK")
    finally:
        server.stop()
        server.flags = server.flags[:2]
        server.close()


def test_startup_line_json_and_unix_socket():
    with scratch() as d:
        sock = os.path.join(d, "s.sock")
        state = os.path.join(d, "state")
        p = subprocess.Popen([BIN, "serve", "--listen", "unix:" + sock, "--state-dir", state, "--log-format", "json",
                              "--pool-size", "0"], stderr=subprocess.PIPE, text=True,
                             env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
        try:
            line = json.loads(p.stderr.readline())
            assert line["level"] == "info" and "ready" in line["msg"], line
            assert line["listen"] == "unix:" + sock and line["image"] == "host", line
            assert line["engine"].startswith("embedded") and "kill %d" % p.pid in line["stop"], line
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(sock)
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                got = s.recv(100)
                assert got.startswith(b"HTTP/1.1 200 OK"), got
            assert os.stat(sock).st_mode & 0o077 == 0, "only for its user"
            assert os.stat(state).st_mode & 0o077 == 0
        finally:
            p.terminate()
            rest = p.stderr.read()
            assert p.wait(10) == 0, rest
        for x in rest.splitlines():
            assert json.loads(x)["msg"], x


def test_started_with_closed_standard_files():
    """Else its log would go into whatever file or socket of its own gets the number 2."""
    server = Server("--pool-size", "0", wrapper=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"])
    try:
        for n in ("0", "1", "2"):
            assert os.readlink("/proc/%d/fd/%s" % (server.process.pid, n)) == "/dev/null", n
        assert server.request("PUT", "/v1/sandboxes/a", {}).status == 200
        assert server.stop() == 0
    finally:
        server.close()


def test_key_is_not_in_the_log_or_in_the_keeper():
    """Agents are forks of the keeper: what it forgot they never had."""
    key = "k3y-k3y-k3y-k3y-k3y-k3y"
    server = Server("--pool-size", "1", env={"CLOCHE_API_KEY": key}, start=False)
    server.key = key
    try:
        server.start()
        assert server.request("PUT", "/k/%s/v1/sandboxes/a" % key, {}).status == 200
        assert server.request("GET", "/-/stats?key=" + key).status == 200
        assert key not in server.read_log()
        below = [int(p) for p in harness.cgroup_pids(server)]
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open("/proc/%s/stat" % name) as f:
                        if int(f.read().rpartition(")")[2].split()[1]) == server.process.pid:
                            below.append(int(name))
                except OSError:
                    pass
        assert len(below) >= 2, below
        for pid in below:
            for file in ("environ", "cmdline"):
                with open("/proc/%d/%s" % (pid, file), "rb") as f:
                    assert key.encode() not in f.read(), (pid, file)
    finally:
        server.close()


harness.main(globals())
