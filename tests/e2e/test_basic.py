#!/usr/bin/env python3
"""The first minute: what the README's tour does."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness


def test_tour(server):
    made = server.make("demo", ttlSeconds=900)
    assert made["podName"].startswith("sbx-") and len(made["podName"]) == 14
    r = server.exec("demo", "python3", "-c", "print(40+2)")
    assert (r["exitCode"], r["stdout"], r["stderr"]) == (0, "42\n", "")
    assert r["reason"] == "exited" and r["signal"] == 0
    assert server.delete("demo").status == 204
    assert server.delete("demo").status == 404
    server.assert_healthy()


harness.main(globals())
