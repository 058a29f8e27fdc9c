#!/usr/bin/env python3
"""`make bench`: what cloche costs, beside the floor and the peers, in one table.

Starts its own servers (own state directories, free loopback ports) on a copy of
build/cloche, measures with build/bench/bench, and takes everything away again. Nothing
here asserts a time: it prints what it saw beside what the project aims at.

usage: bench.py [--quick | --full] [--only SECTION[,SECTION]] [--json FILE]
sections: latency throughput memory transfers

What the columns mean: `median` and `p99` are wall clock; `x` is the ratio to the floor of
the same interleaved run (bare vfork+exec of /bin/true on the host), or to what the row
says; `aim` is the project's, "was" is what the design's own measurements saw."""
import argparse
import glob
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
import harness  # noqa: E402

SECTIONS = ("latency", "throughput", "memory", "transfers")
NAMESPACES = 1000
CGROUPS = 250
TREE_BYTES = 205_000_000
# crun refuses to run, with or without cgroups, where controllers are left in a v2 hierarchy
# beside v1 ones; in a mount namespace that does not show the v2 one, it does.
WITHOUT_V2 = ["unshare", "--mount", "sh", "-c", 'umount /sys/fs/cgroup/unified && exec "$@"', "sh"]
# How much of each: rounds of latency, slices and seconds of throughput, live sandboxes and
# samples at each number of them, transfers and the size of their tree.
EFFORT = {
    "quick": {"rounds": 40, "slices": 1, "seconds": 0.5, "live": (10, 100, 1000), "samples": 20,
              "transfers": 1, "tree": TREE_BYTES // 2},
    "normal": {"rounds": 300, "slices": 3, "seconds": 1.5, "live": (10, 100, 1000), "samples": 100,
               "transfers": 3, "tree": TREE_BYTES},
    "full": {"rounds": 1000, "slices": 5, "seconds": 2.0, "live": (10, 100, 1000, 5000), "samples": 200,
             "transfers": 5, "tree": TREE_BYTES},
}


class Failed(Exception):
    """A section cannot go on; the others can."""


# --- the table ----------------------------------------------------------------------------

class Table:
    """Rows are printed as they come; all of them go into the JSON."""
    WIDTHS = (54, 12, 12, 9)

    def __init__(self):
        self.rows = []
        self.notes = []

    def line(self, what, median, p99, x, aim):
        w = self.WIDTHS
        print("%-*s %*s %*s %*s  %s" % (w[0], what, w[1], median, w[2], p99, w[3], x, aim), flush=True)

    def section(self, title, median="median", p99="p99", x="x floor"):
        print()
        self.line(title, median, p99, x, "aim")
        print("-" * (sum(self.WIDTHS) + 24))
        self.title = title

    def row(self, key, what, median="", p99="", x="", aim="", **data):
        self.line(what, median, p99, x, aim)
        self.rows.append(dict(key=key, section=self.title, what=what, aim=aim, **data))

    def note(self, text):
        print("  . " + text, flush=True)
        self.notes.append(text)


def us(v):
    return "%.0f us" % v if v < 9950 else "%.1f ms" % (v / 1000)


def times(v):
    return "%.2fx" % v if v < 9.95 else "%.1fx" % v


# --- the machine ---------------------------------------------------------------------------

def meminfo():
    with open("/proc/meminfo") as f:
        return {k: int(v.split()[0]) for k, v in (line.split(":") for line in f)}


def used_kib(m):
    """What is in use and cannot be dropped: page cache counts as free, tmpfs and slab do not."""
    return m["MemTotal"] - m["MemFree"] - m["Buffers"] - (m["Cached"] - m["Shmem"])


def settled_meminfo(seconds=3):
    """Namespaces and pages are given back late: waits until the used memory stands still."""
    end, calm, last = time.monotonic() + seconds, 0, None
    while time.monotonic() < end and calm < 4:
        m = meminfo()
        calm = calm + 1 if last is not None and abs(used_kib(m) - last) < 512 else 0
        last = used_kib(m)
        time.sleep(0.25)
    return meminfo()


def status_kib(pid, field):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^%s:\s+(\d+)" % field, f.read(), re.M).group(1))


def children(pid):
    found = []
    for path in glob.glob("/proc/%d/task/*/children" % pid):
        with open(path) as f:
            found += [int(p) for p in f.read().split()]
    return found


def machine():
    model = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo").read())
    u = os.uname()
    load = os.getloadavg()
    return {"kernel": u.release, "arch": u.machine, "cores": os.cpu_count(),
            "cpu": model.group(1) if model else "?", "memoryMiB": meminfo()["MemTotal"] // 1024, "load": load,
            "processes": len(glob.glob("/proc/[0-9]*")), "uid": os.getuid()}


def run(argv, timeout=60, **kw):
    """returncode, stdout + stderr; never raises for what the program does."""
    try:
        p = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=timeout, **kw)
        return p.returncode, p.stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as e:
        return -1, str(e)


# --- the run --------------------------------------------------------------------------------

class Bench:
    def __init__(self, effort, table, built):
        self.effort, self.table = effort, table
        self.dir = tempfile.mkdtemp(prefix="cloche-bench-")
        os.chmod(self.dir, 0o755)
        # A rebuild in the middle of the run must not change what is measured.
        harness.BIN = shutil.copy(os.path.join(built, "cloche"), os.path.join(self.dir, "cloche"))
        self.tool = shutil.copy(os.path.join(built, "bench", "bench"), os.path.join(self.dir, "bench"))
        self.servers = []
        self.started = 0
        self.cleanups = []
        self.wrapper = []  # of the peers, and with them of the stop-watch of their run
        self.errors = 0

    def server(self, *flags):
        self.started += 1
        s = harness.Server("--log-level", "warn", "--on-exit", "delete", *flags, start=False,
                           state=os.path.join(self.dir, "state%d" % self.started))
        s.log_path = s.state + ".log"
        self.servers.append(s)
        return s.start()

    def stop(self, s):
        """Every sandbox must be gone when the server is; what is left is said."""
        try:
            s.stop(seconds=60)
        except subprocess.TimeoutExpired:
            self.table.note("PROBLEM: a server did not end within 60 s of SIGTERM")
            s.close()
        try:  # the keeper tidies up for some milliseconds after its server has ended
            harness.eventually(lambda: not harness.cgroup_pids(s) and not harness.cgroup_slots(s), "nothing is left", 5)
        except AssertionError:
            self.errors += 1
            self.table.note("PROBLEM: 5 s after a server ended, %d processes and %d cgroups of it are left"
                            % (len(harness.cgroup_pids(s)), len(harness.cgroup_slots(s))))
            s.close()
        log = s.read_log().strip() if os.path.exists(s.log_path) else ""
        if log:
            lines = log.splitlines()
            self.table.note("the server logged %d warnings; the last: %s" % (len(lines), lines[-1][:200]))
        if os.path.exists(s.log_path):
            os.unlink(s.log_path)
        self.servers.remove(s)

    def close(self):
        for s in list(self.servers):
            s.close()
        for fn in reversed(self.cleanups):
            fn()
        shutil.rmtree(self.dir, ignore_errors=True)

    def measure(self, *args, timeout, wrapper=()):
        """Runs the stop-watch; the lines it printed, split."""
        try:
            p = subprocess.run([*wrapper, self.tool] + [str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed("bench %s was not done after %d s" % (args[0], timeout))
        for line in p.stderr.decode(errors="replace").splitlines():
            self.table.note("PROBLEM: " + line)
        if p.returncode != 0:
            raise Failed("bench %s left with %d" % (" ".join(map(str, args)), p.returncode))
        return [line.split("\t") for line in p.stdout.decode().splitlines()]

    def latency(self, rows, rounds, rest_ms=8, wrapper=()):
        """rows: (key, what, kind, port, every, argv). {key: (median, p99, samples, errors)}."""
        path = os.path.join(self.dir, "rows")
        with open(path, "w") as f:
            for key, _, kind, port, every, argv in rows:
                f.write("\t".join([kind, key, str(port), str(every)] + argv) + "\n")
        out = {}
        for key, n, median, p99, errors in self.measure("latency", rounds, rest_ms, path, timeout=120 + rounds * 2,
                                                        wrapper=wrapper):
            out[key] = (float(median), float(p99), int(n), int(errors))
            self.errors += int(errors)
        return out


# --- the peers' root and bundles --------------------------------------------------------------

def make_root(directory):
    """/bin/true and what it is linked with, in directories of their own: what every peer and
    cloche (as an image) run on."""
    for d in ("dev", "proc", "sys", "tmp", "etc", "workspace", "usr/bin", "usr/lib", "usr/lib64"):
        os.makedirs(os.path.join(directory, d))
    for link in ("bin", "lib", "lib64"):
        os.symlink("usr/" + link, os.path.join(directory, link))
    shutil.copy2("/bin/true", os.path.join(directory, "usr/bin/true"))
    for path in sorted(set(re.findall(r"(/\S+) \(0x", run(["ldd", "/bin/true"])[1]))):
        to = directory + (path if path.startswith("/usr/") else "/usr" + path)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(path, to)


def make_bundle(bench, runtime, root):
    """An OCI bundle from the runtime's own `spec`; the path."""
    bundle = tempfile.mkdtemp(prefix="bundle-", dir=bench.dir)
    code, text = run([runtime, "spec"], cwd=bundle)
    if code != 0:
        raise Failed("%s spec: %s" % (runtime, text.strip()[:120]))
    path = os.path.join(bundle, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["process"]["terminal"] = False
    config["process"]["args"] = ["/bin/true"]
    config["root"] = {"path": root, "readonly": True}
    with open(path, "w") as f:
        json.dump(config, f)
    return bundle


def oci_peer(bench, runtime, root, no_cgroups=False):
    """argv of a run that works, and what to say about it."""
    program = shutil.which(runtime)
    bundle = make_bundle(bench, runtime, root)
    states = tempfile.mkdtemp(prefix="run-", dir=bench.dir)

    def argv(*options):
        return [program, "--root", states, *options, "run", "--bundle", bundle,
                "cloche-%s-@N@" % os.path.basename(bundle)]

    def clean():
        for name in os.listdir(states):
            run(bench.wrapper + [program, "--root", states, "delete", "-f", name])
    bench.cleanups.append(clean)
    if no_cgroups:
        options = ["--cgroup-manager=disabled"]
        for wrapper in ([], WITHOUT_V2):
            if run(wrapper + [a.replace("@N@", "try%d" % len(wrapper)) for a in argv(*options)])[0] == 0:
                bench.wrapper = bench.wrapper or wrapper
                return argv(*options), ""
        raise Failed("--cgroup-manager=disabled does not help")
    first = None
    for wrapper in ([], WITHOUT_V2):
        code, why = run(wrapper + [a.replace("@N@", "try%d" % len(wrapper)) for a in argv()])
        if code == 0:
            bench.wrapper = bench.wrapper or wrapper
            return argv(), ("%s refuses this host (%s): peers and floor run in a mount namespace without "
                            "/sys/fs/cgroup/unified" % (runtime, first)) if first else ""
        first = first or (why.strip().splitlines() or ["exit %d" % code])[-1][:120]
    raise Failed(first)


def bwrap_peer(root):
    argv = [shutil.which("bwrap"), "--unshare-all", "--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev",
            "/bin/true"]
    code, why = run(argv)
    if code != 0:
        raise Failed(why.strip()[:160])
    return argv, ""


def podman_peer(root):
    argv = [shutil.which("podman"), "run", "--rm", "--network", "none", "--read-only", "--ulimit",
            "nofile=20000:20000", "--ulimit", "nproc=30000:30000", "--rootfs", root, "/bin/true"]
    code, why = run(argv)
    if code != 0:
        raise Failed(why.strip()[-160:])
    return argv, ""


def docker_peer(bench, root):
    docker = shutil.which("docker")
    if run([docker, "info"], timeout=15)[0] != 0 or run([docker, "ps"], timeout=15)[0] != 0:
        raise Failed("the client is here, but no engine answers")
    image = "cloche-bench-%d" % os.getpid()
    code, why = run(["sh", "-c", 'tar -C "$1" -c . | "$2" import - "$3"', "sh", root, docker, image])
    if code != 0:
        raise Failed(why.strip()[-160:])
    bench.cleanups.append(lambda: run([docker, "rmi", "-f", image]))
    argv = [docker, "run", "--rm", "--network", "none", "--read-only", image, "/bin/true"]
    code, why = run(argv)
    if code != 0:
        raise Failed(why.strip()[-160:])
    return argv, ""


def find_peers(bench, root):
    """Rows for the peers that work here; notes about all that do not."""
    peers = (("bwrap", "bwrap --unshare-all, read-only bind", 1, "was 6.3x", lambda: bwrap_peer(root)),
             ("crun", "crun run", 1, "was 10.7x", lambda: oci_peer(bench, "crun", root)),
             ("crun-bare", "crun run, cgroups disabled", 1, "was 9.4x", lambda: oci_peer(bench, "crun", root, True)),
             ("runc", "runc run", 1, "was 26x", lambda: oci_peer(bench, "runc", root)),
             ("podman", "podman run --rm", 5, "was 150x", lambda: podman_peer(root)),
             ("docker", "docker run --rm", 5, "was 260x to 280x", lambda: docker_peer(bench, root)))
    rows, notes, aims = [], [], {}
    for name, what, every, was, make in peers:
        if not shutil.which(name.split("-")[0]):
            notes.append("%s: skipped, it is not installed" % name)
            continue
        try:
            argv, note = make()
        except Failed as e:
            notes.append("%s: skipped, it does not work here: %s" % (name, e))
            continue
        rows.append((name, what, "spawn", 0, every, argv))
        aims[name] = was
        if note:
            notes.append(note)
    with open("/proc/mounts") as f:
        if "favordynmods" not in f.read():
            notes.append("crun and runc attach by cgroup.procs, which waits for an RCU grace period on this kernel "
                         "(about 7 ms; `favordynmods`, on when the \"was\" figures were taken, avoids it)")
    return rows, notes, aims


# --- sections -----------------------------------------------------------------------------------

def section_latency(bench):
    t = bench.table
    root = os.path.join(bench.dir, "root")
    make_root(root)
    config = os.path.join(bench.dir, "bench.conf")
    with open(config, "w") as f:
        f.write("image = bench\n[images]\nbench = %s\n" % root)
    peers, notes, aims = find_peers(bench, root)
    servers = [bench.server("--config", config), bench.server("--config", config, "--pool-size", "0"), bench.server()]
    warm, cold, host = [s.port for s in servers]
    rows = [("floor", "floor: vfork+exec of /bin/true on the host", "floor", 0, 1, []),
            ("health", "GET /healthz", "health", warm, 1, []),
            ("exec", "exec in a live sandbox", "exec", warm, 1, []),
            ("put", "PUT of a new sandbox, pool", "put", warm, 1, []),
            ("delete", "DELETE", "delete", warm, 1, []),
            ("put-cold", "PUT of a new sandbox, no pool", "put", cold, 1, []),
            ("delete-cold", "DELETE, no pool", "delete", cold, 1, []),
            ("cycle", "PUT+exec+DELETE, pool", "cycle", warm, 1, []),
            ("cycle-cold", "PUT+exec+DELETE, no pool", "cycle", cold, 1, []),
            ("exec-host", "exec in a live sandbox, image host", "exec", host, 1, []),
            ("cycle-host", "PUT+exec+DELETE, pool, image host", "cycle", host, 1, [])] + peers
    aims.update({"exec": "<= 1.3x", "cycle": "<= 2x", "cycle-cold": "<= 4x"})
    t.section("LATENCY, one after the other")
    got = bench.latency(rows, bench.effort["rounds"], wrapper=bench.wrapper)
    base = got["floor"][0]
    for key, what, *_ in rows:
        median, p99, n, errors = got[key]
        if not n:
            t.row(key, what, "failed", "", "", aims.get(key, ""), errors=errors)
            continue
        t.row(key, what + (" (%d errors)" % errors if errors else ""), us(median), us(p99), times(median / base),
              aims.get(key, ""), medianUs=median, p99Us=p99, ratio=median / base, samples=n, errors=errors)
    t.note("%d rounds in random order, one connection a row, 8 ms of rest before every step" % bench.effort["rounds"])
    t.note("cloche (as an image) and the peers run on the same root: a tree with /bin/true, its libraries and "
           "nothing else; `image host` is the default image")
    t.note("peers do one fresh sandbox, /bin/true, teardown: to compare with PUT+exec+DELETE")
    for note in notes:
        t.note(note)
    for s in servers:
        bench.stop(s)


def section_throughput(bench):
    t, e = bench.table, bench.effort
    s = bench.server()
    modes = (("floor", "floor: vfork+exec of /bin/true"), ("exec", "exec in a live sandbox"),
             ("cycle", "PUT+exec+DELETE, fresh sandbox"), ("health", "GET /healthz"))
    connections = (1, 8, 64)
    seen = {(mode, n): [] for mode, _ in modes for n in connections}
    for _ in range(e["slices"]):
        for n in connections:
            for mode, _ in modes:
                line = bench.measure("throughput", s.port, e["seconds"], n, mode, timeout=90 + e["seconds"])[0]
                seen[mode, n].append([float(v) for v in line])
    t.section("THROUGHPUT, per second", "per second", "p99 of one", "x floor")
    for mode, what in modes:
        for n in connections:
            rate, median, p99, _ = (statistics.median(v) for v in zip(*seen[mode, n]))
            errors = int(sum(v[3] for v in seen[mode, n]))
            bench.errors += errors
            floor = statistics.median(v[0] for v in seen["floor", n])
            t.row("%s-%d" % (mode, n), "%s, %d connection%s%s" % (what, n, "s" if n > 1 else "",
                                                                " (%d errors)" % errors if errors else ""),
                  "%.0f" % rate, us(p99), times(rate / floor), ">= 900" if (mode, n) == ("cycle", 8) else "",
                  perSecond=rate, medianUs=median, p99Us=p99, ratio=rate / floor, errors=errors)
    t.note("%d interleaved slices of %.1f s each; the floor uses as many threads as the others connections; "
           "x is the share of the floor's rate" % (e["slices"], e["seconds"]))
    t.note("the client shares the %d cores with server and sandboxes" % os.cpu_count())
    bench.stop(s)


def weigh_namespaces(bench, count):
    """KiB for each bare network namespace: by MemAvailable, by what is in use."""
    before = settled_meminfo(5)
    p = subprocess.Popen([bench.tool, "netns", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    try:
        if p.stdout.readline() != b"ready\n":
            raise Failed(p.stderr.read().decode().strip())
        after = settled_meminfo()
    finally:
        p.stdin.close()
        p.wait(60)
    return ((before["MemAvailable"] - after["MemAvailable"]) / count, (used_kib(after) - used_kib(before)) / count)


def weigh_cgroups(count):
    """KiB for each bare memory cgroup, the same two ways. Not a constant: the kernel gives every
    memory cgroup 520 bytes (1 KiB of slab) for each 64 superblocks that ever lived at once since
    boot (struct shrinker_info_unit), so it grows with sandboxes and never shrinks again."""
    base = "/sys/fs/cgroup/memory/cloche-bench-%d" % os.getpid()
    if not os.path.isdir("/sys/fs/cgroup/memory"):
        raise Failed("there is no cgroup v1 memory hierarchy here")
    before = settled_meminfo(5)
    made = []
    try:
        for path in [base] + ["%s/%d" % (base, n) for n in range(count)]:
            os.mkdir(path)
            made.append(path)
        after = settled_meminfo()
    except OSError as e:
        raise Failed(str(e))
    finally:
        for path in reversed(made):
            os.rmdir(path)
    return ((before["MemAvailable"] - after["MemAvailable"]) / count, (used_kib(after) - used_kib(before)) / count)


def show_weight(bench, s, before, after, count, netns):
    t = bench.table
    available = (before["MemAvailable"] - after["MemAvailable"]) / count
    used = (used_kib(after) - used_kib(before)) / count
    for key, what, v, n in (("available", "MemAvailable", available, netns and netns[0]),
                            ("used", "memory in use without page cache", used, netns and netns[1])):
        t.row("box-" + key, "an idle sandbox, by " + what, "%.0f KiB" % v, "", "", "<= 370 KiB", kib=v)
        if netns:
            t.row("netns-" + key, "  a bare network namespace, the same way", "%.0f KiB" % n, "", "", "was 220 KiB",
                  kib=n)
            t.row("beside-" + key, "  a sandbox beside its network namespace", "%.0f KiB" % (v - n), "", "",
                  "<= 150 KiB", kib=v - n)
    fields = ("AnonPages", "Slab", "KernelStack", "PageTables", "Percpu", "Shmem")
    t.note("of it: " + ", ".join("%s %.0f" % (f, (after[f] - before[f]) / count) for f in fields) + " KiB")
    server = status_kib(s.process.pid, "VmRSS")
    keepers = sum(status_kib(p, "VmRSS") for p in children(s.process.pid))
    t.row("server-rss", "the server's resident memory with %d sandboxes" % count, "%.1f MB" % (server / 976.6), "", "",
          "< 20 MB", kib=server)
    t.row("keeper-rss", "  its keeper's", "%.1f MB" % (keepers / 976.6), "", "", "", kib=keepers)


def section_memory(bench):
    t, e = bench.table, bench.effort
    t.section("MEMORY, %d idle sandboxes" % NAMESPACES, "each", "", "")
    netns = cgroup = None
    try:
        netns = weigh_namespaces(bench, NAMESPACES)
    except Failed as why:
        t.note("bare network namespaces: skipped: %s" % why)
    try:
        cgroup = weigh_cgroups(CGROUPS)
    except Failed as why:
        t.note("bare memory cgroups: skipped: %s" % why)
    s = bench.server("--pool-size", "0")
    live, grown = 0, []
    before = settled_meminfo(5)
    rows = [("floor", "", "floor", 0, 1, []), ("put", "", "put", s.port, 1, []),
            ("delete", "", "delete", s.port, 1, []), ("exec", "", "exec", s.port, 1, [])]
    for target in e["live"]:
        errors = int(bench.measure("fill", s.port, live, target, timeout=300)[0][0])
        bench.errors += errors
        if errors:
            raise Failed("%d of %d sandboxes could not be made" % (errors, target - live))
        live = target
        if live == NAMESPACES:
            show_weight(bench, s, before, settled_meminfo(), live, netns)
            if cgroup:
                t.row("cgroup", "a bare memory cgroup, before there were sandboxes", "%.0f KiB" % cgroup[1], "", "",
                      "", kib=cgroup[1])
                t.note("a memory cgroup grows by 1 KiB with each 64 superblocks that ever lived at once since boot: "
                       "figures taken after a run with more sandboxes are higher until the machine is restarted")
        grown.append((live, bench.latency(rows, e["samples"], rest_ms=5)))
    begin = time.monotonic()
    bench.errors += int(bench.measure("drain", s.port, 0, live, timeout=300)[0][0])
    drained = time.monotonic() - begin
    t.section("THE NEXT CREATE, no pool", "median", "p99", "x at 10")
    for key, what, aim in (("put", "PUT of a new sandbox", "flat"), ("delete", "DELETE", ""),
                           ("exec", "exec in a live sandbox", ""), ("floor", "floor", "")):
        for n, got in grown:
            median, p99, _, errors = got[key]
            first = grown[0][1][key][0]
            t.row("%s-at-%d" % (key, n), "%s with %d live" % (what, n), us(median), us(p99),
                  times(median / first) if first else "", aim, medianUs=median, p99Us=p99, errors=errors,
                  ratio=median / first if first else None)
    t.note("deleting all %d over 4 connections took %.1f s" % (live, drained))
    bench.stop(s)


def make_tree(directory, limit):
    """Copies files of the host (headers, Python, documentation) up to a size; bytes, files."""
    sources = ["/usr/include"] + sorted(glob.glob("/usr/lib/python3*")) + ["/usr/share"]
    total = files = 0
    for source in sources:
        for at, dirs, names in os.walk(source):
            dirs.sort()
            for name in sorted(names):
                path = os.path.join(at, name)
                if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > 8_000_000:
                    continue
                to = directory + path
                os.makedirs(os.path.dirname(to), exist_ok=True)
                shutil.copy(path, to)
                total += os.path.getsize(to)
                files += 1
                if total >= limit:
                    return total, files
    return total, files


def upload(s, box, body, dest):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
    begin = time.monotonic()
    c.request("POST", "/v1/sandboxes/%s/files/upload?dest=%s" % (box, dest), body=body,
              headers={"Content-Type": "application/x-tar"})
    r = c.getresponse()
    text = r.read()
    took = time.monotonic() - begin
    c.close()
    if r.status != 200:
        raise Failed("upload answered %d: %r" % (r.status, text[:200]))
    return took, json.loads(text)


def download(s, box, src, to):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
    piece = bytearray(1 << 20)
    with open(to, "wb") as f:
        begin = time.monotonic()
        c.request("GET", "/v1/sandboxes/%s/files/download?src=%s" % (box, src))
        r = c.getresponse()
        if r.status != 200:
            raise Failed("download answered %d: %r" % (r.status, r.read()[:200]))
        while True:
            n = r.readinto(piece)
            if not n:
                break
            f.write(memoryview(piece)[:n])
        took = time.monotonic() - begin
    c.close()
    return took


def timed_shell(script, *args):
    begin = time.monotonic()
    code, out = run(["bash", "-o", "pipefail", "-c", script, "bash", *args], timeout=180)
    if code != 0:
        raise Failed("%s: %s" % (script, out.strip()[:160]))
    return time.monotonic() - begin


def section_transfers(bench):
    t, e = bench.table, bench.effort
    shm = tempfile.mkdtemp(prefix="cloche-bench-", dir="/dev/shm")
    bench.cleanups.append(lambda: shutil.rmtree(shm, ignore_errors=True))
    tree, packed, out, got = (os.path.join(shm, n) for n in ("tree", "tree.tar.gz", "out", "got.tar.gz"))
    os.mkdir(tree)
    size, files = make_tree(tree, e["tree"])
    igzip = shutil.which("igzip")
    run(["sh", "-c", 'tar -C "$1" -c . | %s > "$2"' % ("igzip -1" if igzip else "gzip -1"), "sh", tree, packed])
    with open(packed, "rb") as f:
        body = f.read()
    s = bench.server()
    s.make("bulk", memoryLimit="4Gi", ephemeralStorageLimit="3Gi", cpuLimit=str(os.cpu_count()), ttlSeconds=3600)
    packers = ["gzip"] + (["igzip"] if igzip else [])
    seen = {}
    for n in range(e["transfers"]):
        if n:
            s.sh("bulk", "rm -rf /workspace/t%d" % (n - 1))
        took, answer = upload(s, "bulk", body, "/workspace/t%d" % n)
        seen.setdefault("upload", []).append(took)
        seen.setdefault("download", []).append(download(s, "bulk", "/workspace/t%d" % n, got))
        for p in packers:
            pack = p + (" -1" if p == "igzip" else "")
            seen.setdefault("pack-" + p, []).append(timed_shell('tar -C "$1" -c . | %s > "$2"' % pack, tree, got + p))
            os.unlink(got + p)
            os.mkdir(out)
            seen.setdefault("unpack-" + p, []).append(timed_shell('%s -dc < "$1" | tar -x -C "$2"' % p, packed, out))
            shutil.rmtree(out)
    listed = run(["sh", "-c", 'gzip -dc < "$1" | tar -t | grep -vc "/$"' if not igzip else
                  'igzip -dc < "$1" | tar -t | grep -vc "/$"', "sh", got])[1].strip()
    t.section("TRANSFERS, %.0f MB in %d files" % (size / 1e6, files), "median", "slowest", "x igzip")
    rows = (("download", "download (GET files/download)", ">= 250 MB/s", "pack-igzip"),
            ("pack-gzip", "  tar -c | gzip", "was 33 MB/s", "pack-igzip"),
            ("pack-igzip", "  tar -c | igzip -1", "was 288 MB/s", "pack-igzip"),
            ("upload", "upload (POST files/upload)", ">= 200 MB/s", "unpack-igzip"),
            ("unpack-gzip", "  gzip -dc | tar -x", "was 181 MB/s", "unpack-igzip"),
            ("unpack-igzip", "  igzip -dc | tar -x", "was 296 MB/s", "unpack-igzip"))
    for key, what, aim, beside in rows:
        if key not in seen:
            t.note("%s: skipped, igzip is not installed" % what.strip())
            continue
        rate = size / 1e6 / statistics.median(seen[key])
        ratio = statistics.median(seen[beside]) / statistics.median(seen[key]) if beside in seen else None
        t.row(key, what, "%.0f MB/s" % rate, "%.0f MB/s" % (size / 1e6 / max(seen[key])), times(ratio) if ratio else "",
              aim, mbPerSecond=rate, ratio=ratio)
    t.note("MB/s of file content; %d round%s; all trees on tmpfs; sent %.0f MB, received %.0f MB of tar.gz; the sandbox "
           "has %d cores" % (e["transfers"], "s" if e["transfers"] > 1 else "", len(body) / 1e6,
                             os.path.getsize(got) / 1e6, os.cpu_count()))
    t.note("the server's memory at its highest: %.1f MB" % (status_kib(s.process.pid, "VmHWM") / 976.6))
    if answer["uploaded"] < files or listed != str(files):  # directories are counted as well
        bench.errors += 1
        t.note("PROBLEM: of %d files %s were uploaded and %s came back" % (files, answer.get("uploaded"), listed))
    s.delete("bulk")
    bench.stop(s)
    shutil.rmtree(shm, ignore_errors=True)


# --- main ------------------------------------------------------------------------------------------

def arguments():
    p = argparse.ArgumentParser(description="What cloche costs, beside the floor and the peers.")
    p.add_argument("--quick", action="store_true", help="fewer rounds; under a minute")
    p.add_argument("--full", action="store_true", help="more rounds, and up to 5,000 sandboxes")
    p.add_argument("--only", metavar="SECTION", help="one or more of: " + ",".join(SECTIONS))
    p.add_argument("--json", metavar="FILE", help="also write the numbers there")
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="where cloche and bench/bench are")
    a = p.parse_args()
    if a.quick and a.full:
        p.error("--quick or --full, not both")
    a.only = a.only.split(",") if a.only else list(SECTIONS)
    for s in a.only:
        if s not in SECTIONS:
            p.error("no section %r; there are: %s" % (s, ", ".join(SECTIONS)))
    a.effort = "quick" if a.quick else "full" if a.full else "normal"
    return a


def leave(number, _frame):
    """Ends the run through its clean-up, which a second signal must not cut short."""
    for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(n, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    signal.signal(signal.SIGINT, leave)
    m = machine()
    begin = time.monotonic()
    print("cloche bench (%s): Linux %s %s, %d cores (%s), %d MiB, %d processes, uid %d"
          % (a.effort, m["kernel"], m["arch"], m["cores"], m["cpu"], m["memoryMiB"], m["processes"], m["uid"]))
    print("load average at the start: %.2f %.2f %.2f" % m["load"])
    if m["load"][0] > 0.5:
        print("WARNING: the machine is busy; times and memory are noisy, trust only the ratios, and those little")
    table = Table()
    bench = Bench(EFFORT[a.effort], table, a.build)
    failed = []
    try:
        for name in SECTIONS:
            if name not in a.only:
                continue
            try:
                globals()["section_" + name](bench)
            except (Failed, AssertionError, OSError, http.client.HTTPException, subprocess.SubprocessError) as e:
                failed.append(name)
                table.note("PROBLEM: the rest of %s was given up: %s: %s" % (name, type(e).__name__, str(e)[:500]))
                for s in list(bench.servers):
                    log = s.read_log().strip().splitlines()[-5:]
                    for line in log:
                        table.note("the server's log: " + line[:300])
                    s.close()
                    bench.servers.remove(s)
    finally:
        bench.close()
    took = time.monotonic() - begin
    print("\n%.0f s, %d failed requests or runs%s; load average at the end: %.2f"
          % (took, bench.errors, ", given up: " + " ".join(failed) if failed else "", os.getloadavg()[0]))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"machine": m, "effort": a.effort, "seconds": took, "errors": bench.errors, "failed": failed,
                       "rows": table.rows, "notes": table.notes}, f, indent=1)
            f.write("\n")
    return 1 if failed or bench.errors else 0


if __name__ == "__main__":
    sys.exit(main())
