# SPDX-License-Identifier: BSD-2-Clause
"""Tests of the benchmarks themselves.
  bench_test.py play BUILD PART [PEER..]   the part runs on the simulated driver: every peer named
                                           has figures, all of
                                           them sensible, and a page can be made of them
  bench_test.py page                       the published page is what its figures make, and a wrong
                                           one is noticed
  bench_test.py once                       a program that two peers share is built once
  bench_test.py frugal                     what is made of the processes of part frugal, whose
                                           figures are given, and one of which failed"""
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
import bench_frugal  # noqa: E402
import bench_peers  # noqa: E402
import bench_results  # noqa: E402
import bench_store  # noqa: E402
import trainer  # noqa: E402

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


class Given:
    """Statistics of a process, as they are given."""

    def __init__(self, **figures):
        self.figures = figures

    def total(self, name):
        return self.figures.get(name, 0)


def processes(native_s, expandable, shim, failure=""):
    """A round: live is 1000 bytes everywhere; of two peers what they reserve is given."""
    runs = []
    for peer, reserved, took_s in ((bench_frugal.NATIVE, 1500, native_s),
                                   (bench_frugal.EXPANDABLE, expandable, native_s),
                                   (bench_frugal.SHIM, shim, 3.0)):
        run = trainer.Run("bert", peer, 2, figures={"seconds": [took_s / 2] * 2})
        if peer.preload:
            run.failure = failure
            run.statistics = Given(reserved_peak_bytes=reserved, requested_peak_bytes=1000,
                                   at_peak_requested_bytes=reserved - 7, at_peak_cut_bytes=7)
        else:
            run.figures.update(requested_peak_bytes=1000, reserved_peak_bytes=reserved)
        runs.append(run)
    return runs


def frugal():
    rounds = [processes(2.0, 1040, 1030), processes(3.0, 1010, 1020), processes(6.0, 1200, 1060),
              processes(9.0, 1200, 1060, "no end")]
    rows = list(bench_frugal.rows_of("bert", rounds))

    def figure(unit, peer=bench_frugal.SHIM):
        return bench_store.find(rows, group="frugal", peer=peer.name, unit=unit)[0]
    over, native = figure("over live"), figure("over live", bench_frugal.NATIVE)
    want = {"value": 1.03, "low": 1.02, "high": 1.06, "rounds": 3, "bound": 1.05, "within": 2,
            "below": 2, "beside": 3, "worst": "live 1.03 KiB, cut chunks 7 B; after 0 ns, "
                                              "0 looks for idle chunks refused"}
    wrong = [f"{key} is {over.get(key)!r}, not {value!r}" for key, value in want.items()
             if over.get(key) != value]
    if native["value"] != 1.5 or native["rounds"] != 4 or "bound" in native:
        wrong.append(f"native: {native}")
    times = figure("over native")
    if (times["low"], times["value"], times["high"]) != (0.5, 1.0, 1.5):
        wrong.append(f"times against other rounds: {times}")
    skipped = bench_store.find(rows, group="skipped")
    if not skipped or "1 of 4 processes: no end" not in skipped[0]["note"]:
        wrong.append("a process that failed goes unnoticed")
    text = bench_results.page(rows)
    lines = ("| bert | gpucache | 3 | 1.030 (1.020 to 1.060) |", "- bert, gpucache: live",
             "at most 1.05: 2 of 3; below expandable: 2 of 3; time at most 1.00: met")
    wrong += [f"the page lacks {words!r}" for words in lines if words not in text]
    print("\n".join(wrong) or f"{len(rows)} rows")
    return 1 if wrong else 0


if __name__ == "__main__":
    CHECKS = {"play": play, "page": page, "once": once, "frugal": frugal}
    sys.exit(CHECKS[sys.argv[1]](*sys.argv[2:]))
