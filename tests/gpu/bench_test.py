# SPDX-License-Identifier: BSD-2-Clause
"""Tests of the benchmarks themselves.
  bench_test.py play BUILD PART [PEER..]   the part runs on the simulated driver: every peer named
                                           has figures, all of
                                           them sensible, and a page can be made of them
  bench_test.py page                       the published page is what its figures make, and a wrong
                                           one is noticed
  bench_test.py once                       a program that two peers share is built once"""
import concurrent.futures
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_peers  # noqa: E402
import bench_results  # noqa: E402
import bench_store  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def faults(rows, part, peers):
    """What is wrong with the rows of a part, as lines."""
    group = "pairs" if part == "busy" else part
    found = bench_store.find(rows, group=group)
    if not found:
        yield f"no figures of {part}"
    for entry in found:
        if entry["name"] == "released":
            continue
        if not entry["value"] > 0:
            yield f"not above nothing: {entry}"
        steps = [entry[key] for key in ("p10", "p50", "p90", "p99", "max") if group == "pairs"]
        if steps != sorted(steps):
            yield f"percentiles out of order: {entry}"
    for peer in peers:
        if not bench_store.find(found, peer=peer):
            yield f"no figures of {peer}"


def play(build, part, *peers):
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        file = os.path.join(scratch, "rows.json")
        result = subprocess.run([sys.executable, os.path.join(HERE, "bench"), "--quick", "--only",
                                 part, "--simulate", build,
                                 "--json", file, os.path.join(scratch, "build")],
                                capture_output=True, text=True)
        if result.returncode:
            print(result.stdout, result.stderr)
            return 1
        rows = bench_store.load(file)
        wrong = list(faults(rows, part, peers))
        # The test itself: a peer that is not there has to be missed.
        if not any("nobody" in line for line in faults(rows, part, ["nobody"])):
            wrong.append("a missing peer goes unnoticed")
        made = bench_results.made(rows)
        least = 0 if part in ("start", "machine") else 1000
        if not all(made.values()) or len(made["RESULTS.md"]) < least:
            wrong.append("no page could be made")
    print("\n".join(wrong) or f"{len(rows)} rows")
    return 1 if wrong else 0


class SlowPrograms(bench_peers.Programs):
    """Notes what is built, and takes its time."""

    def __init__(self):
        super().__init__(None)
        self.asked = []

    def try_build(self, name, route):
        key = f"bench-{name}-{route}"
        self.asked.append(key)
        time.sleep(0.05)
        return key


def once():
    programs = SlowPrograms()
    routes = ["torch", "torch", "static", "torch", "static"]
    with concurrent.futures.ThreadPoolExecutor(len(routes)) as pool:
        paths = list(pool.map(lambda route: programs.path("pairs", route), routes))
    good = sorted(programs.asked) == sorted(set(paths)) and \
        paths == [f"bench-pairs-{route}" for route in routes]
    print(f"asked for {paths}, built {programs.asked}")
    return 0 if good else 1


def page():
    if not os.path.exists(os.path.join(bench_results.FOLDER, bench_results.JSON)):
        print("no figures are published")
        return 77
    if bench_results.check():
        print("make the page again: tests/gpu/bench --results")
        return 1
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for name in (bench_results.JSON, bench_results.PAGE, bench_results.DRAWING):
            shutil.copy(os.path.join(bench_results.FOLDER, name), scratch)
        doctored = os.path.join(scratch, bench_results.JSON)
        rows = bench_store.load(doctored)
        for entry in rows:
            entry["value"] *= 2
        with open(doctored, "w") as file:
            json.dump(rows, file)
        with contextlib.redirect_stdout(io.StringIO()):
            noticed = bench_results.check(scratch)
    print("the page is what its figures make" if noticed else "other figures go unnoticed")
    return 0 if noticed else 1


if __name__ == "__main__":
    sys.exit({"play": play, "page": page, "once": once}[sys.argv[1]](*sys.argv[2:]))
