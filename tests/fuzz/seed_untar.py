#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_untar: one small archive for each kind of member."""
import gzip
import io
import os
import subprocess
import tarfile
import tempfile

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "untar")
END = b"\0" * 1024


def member(name, type_=tarfile.REGTYPE, data=b"", link="", fmt=tarfile.USTAR_FORMAT, **pax):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.pax_headers = type_, len(data), link, pax
    head = info.tobuf(fmt, "utf-8", "surrogateescape")
    return head + data + b"\0" * (-len(data) % 512)


def sparse_by_tar(version):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "s"), "wb") as f:
            f.seek(100000)
            f.write(b"end")
            f.truncate(200000)
        fmt = ["--format=gnu"] if version == "gnu" else ["--format=pax", "--sparse-version=" + version]
        return subprocess.run(["tar", "c", "-b1", "-S", *fmt, "-C", d, "s"], check=True,
                              stdout=subprocess.PIPE).stdout


PAX, GNU = tarfile.PAX_FORMAT, tarfile.GNU_FORMAT
SEEDS = {
    "file": member("a/b", data=b"hello"),
    "dirs": member("d", tarfile.DIRTYPE) + member("d/f", data=b"x") + member("./", tarfile.DIRTYPE),
    "links": member("f", data=b"x") + member("l", tarfile.SYMTYPE, link="f")
             + member("h", tarfile.LNKTYPE, link="f") + member("l", data=b"y"),
    "escape": member("../x", data=b"x") + member("/abs", data=b"x")
              + member("up/canary", data=b"dead") + member("o", tarfile.SYMTYPE, link="../canary")
              + member("o", data=b"x") + member("h", tarfile.LNKTYPE, link="up/canary"),
    "special": member("c", tarfile.CHRTYPE) + member("p", tarfile.FIFOTYPE),
    "pax": member("n" * 120, data=b"x", fmt=PAX) + member("é/ü", data=b"x", fmt=PAX, mtime="1.5"),
    "gnulong": member("g" * 150, tarfile.SYMTYPE, link="h" * 120, fmt=GNU),
    "self": member("self/self/x", data=b"x") + member("self", data=b"x"),
    "sparse-gnu": sparse_by_tar("gnu")[:-1024],
    "sparse-0.0": sparse_by_tar("0.0")[:-1024],
    "sparse-0.1": sparse_by_tar("0.1")[:-1024],
    "sparse-1.0": sparse_by_tar("1.0")[:-1024],
}

os.makedirs(OUT, exist_ok=True)
for name, data in SEEDS.items():
    with open(os.path.join(OUT, name + ".tar"), "wb") as f:
        f.write(data + END)
for name in ("file", "links"):
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as z:
        z.write(SEEDS[name] + END)
    with open(os.path.join(OUT, name + ".tgz"), "wb") as f:
        f.write(packed.getvalue())
