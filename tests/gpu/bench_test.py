# SPDX-License-Identifier: BSD-2-Clause
"""Tests of the benchmarks themselves.
  bench_test.py play BUILD PART [PEER..]  the part runs on the simulated driver: every peer named
                                          has sensible figures, of which a page can be made
  bench_test.py page                      the published page is what its figures make; others, and
                                          figures of which none can be made, are noticed
  bench_test.py once                      a program that two peers share is built once
  bench_test.py frugal                    part frugal plays the rounds that it is told to; what is
                                          made of them, of failed ones, and of several files
  bench_test.py refill BUILD              flushes of a process on the simulated driver
  bench_test.py arguments                 what makes no sense is refused before anything is
                                          measured"""
import concurrent.futures
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "bench")]
import bench_frugal  # noqa: E402
import bench_peers  # noqa: E402
import bench_refill  # noqa: E402
import bench_results  # noqa: E402
import bench_store  # noqa: E402
import part_frameworks  # noqa: E402
import suite as base  # noqa: E402
from bench_store import find  # noqa: E402


def script(name):
    """A script, perhaps without an ending, as a module."""
    loader = importlib.machinery.SourceFileLoader("script", os.path.join(HERE, name))
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader("script", loader))
    loader.exec_module(made)
    return made


def told(call, *arguments):
    """(status, what it said) of a call; the status is an exception if one got through."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            status = call(*arguments)
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = repr(error)
    return status, said.getvalue()


def faults(rows, part, peers):
    """What is wrong with the rows of a part, as lines."""
    found = find(rows, group="pairs" if part == "busy" else part)
    yield from (f"not above nothing: {entry}" for entry in found
                if not entry["value"] > 0 and entry["name"] != "released")
    for entry in found:
        steps = [entry[key] for key in ("p10", "p50", "p90", "p99", "max") if "p10" in entry]
        if steps != sorted(steps):
            yield f"percentiles out of order: {entry}"
    yield from (f"no figures of {peer}" for peer in peers if not find(found, peer=peer))


def play(scratch, build, part, *peers):
    file = os.path.join(scratch, "rows.json")
    result = subprocess.run([sys.executable, os.path.join(HERE, "bench"), "--quick", "--only", part,
                             "--simulate", build, "--json", file, os.path.join(scratch, "build")],
                            capture_output=True, text=True)
    if result.returncode:
        return [result.stdout, result.stderr]
    rows = bench_store.load(file)
    wrong = list(faults(rows, part, peers))
    if not list(faults(rows, part, ["nobody"])):
        wrong.append("a missing peer goes unnoticed")
    if part != "start" and len(bench_results.page(rows)) < 1000:
        wrong.append("no page could be made")
    return wrong


class SlowPrograms(bench_peers.Programs):
    """Notes what is built, and takes its time."""
    asked = []

    def try_build(self, route):
        self.asked.append(route)
        time.sleep(0.05)
        return route


def once(scratch):
    programs, routes = SlowPrograms(None), ["torch", "torch", "static", "torch", "static"]
    with concurrent.futures.ThreadPoolExecutor(len(routes)) as pool:
        paths = list(pool.map(programs.path, routes))
    return [] if paths == routes and sorted(programs.asked) == ["static", "torch"] else \
        [f"asked for {paths}, built {programs.asked}"]


def contents(folder):
    return [open(os.path.join(folder, name)).read()
            for name in (bench_results.JSON, bench_results.PAGE)]


def page(scratch):
    if bench_results.check():
        return ["make the page again: tests/gpu/bench --results"]
    rows, wrong = bench_store.load(os.path.join(bench_results.FOLDER, bench_results.JSON)), []
    source, other = (os.path.join(scratch, name) for name in (bench_results.JSON, "other"))
    bench_store.save(source, rows)
    if bench_results.publish([], scratch) or contents(scratch) != contents(bench_results.FOLDER):
        wrong.append("the same figures make another page")
    before, text = contents(scratch), bench_store.dump(rows)
    for odd in ("", text[:200], "{}", "[]", "[3]", "[" * 100000, '[{"group": "pairs", "rows": 3}]',
                text.replace('"name", ', ""), text.replace('"threads": 1', '"threads": NaN'),
                text.replace('"bert"', '"nosuch"'), text.replace("[140]", '["many"]')):
        with open(other, "w") as file:
            file.write(odd)
        status, said = told(bench_results.publish, [other], scratch)
        os.unlink(other)
        if status != 2 or other not in said or contents(scratch) != before:
            wrong.append(f"{odd[:60]}: status {status}, {said!r}")
    bench_store.save(other, [bench_store.row("machine", "libgpucache", "", 0, "", note="f00d",
                                             parts="busy, torch"), *find(rows, group="pairs"),
                             *bench_store.skipped("torch", {"": "no PyTorch"})])
    text = bench_results.page(bench_results.merged([source, other]))
    if not all(words in text for words in ("free (f00d)\n", "\n| overlap, torch, ", "| busy |",
                                           "## PyTorch (760d0e3", "| gpt |")):
        wrong.append(f"figures of another version than their table says:\n{text}")
    bench_store.save(source, [{**entry, "value": entry["value"] * 2} for entry in rows])
    if told(bench_results.check, scratch)[0] != 1:
        wrong.append("other figures go unnoticed")
    return wrong


# In place of work_frugal.py: it reserves, and takes the time, that its seed says.
WORKER = """import json, os, sys
seed = int(sys.argv[sys.argv.index("--seed") + 1])
workloads = sys.argv[sys.argv.index("--steps") + 2:]
for at, workload in enumerate(workloads):
    print("ready", at, flush=True)
    while sys.stdin.readline() == "go\\n":
        print("turn", flush=True)
    mine = seed + workloads[:at].count(workload)
    figures = {"requested_peak_bytes": 1000, "reserved_peak_bytes": 1000 + 10 * mine}
    seconds = [1.0, 1.0, 1.0]
    if sys.argv[0] in os.environ.get("LD_PRELOAD", "") and "--warm 2" in " ".join(sys.argv):
        seconds = [2.0, 2.0, 2.0]
    elif "GPUCACHE_STATS" in os.environ:
        seconds = [1.0, 1.0, 4.0] if mine == 5 else [0.5, 0.5, 0.5]
    if "GPUCACHE_STATS" in os.environ:
        path = os.environ["GPUCACHE_STATS"].removeprefix("exit:").replace("%p", str(at))
        json.dump({"pools": [figures]}, open(path, "w"))
    print("done", json.dumps({"seconds": seconds, **figures}), flush=True)
    print("gone", int(seed == 7 and "GPUCACHE_STATS" in os.environ), flush=True)
"""
# Of a step of this worker under a library that is measured beside, after two steps to get warm.
WARM_SECONDS = 2
SAID = ("| bert | gpucache | 2 | 1.055 (1.050, 1.053, 1.058, 1.060) | 1.03 KiB | 1.25 s | 1.25 "
        "(0.50, 0.88, 1.62, 2.00) | 0.75 (0.50, 0.62, 0.88, 1.00) | at most 1.05: 1 of 2; below "
        "expandable: 0 of 2; time at most 1.00: missed |",
        "vit 1.25 ± 0.94; all 1.00 ± 0.23 | met |",
        "| bert 1.060, graphs 1.060, mask_rcnn 1.060, gpt2 1.060, vit 1.060; 5 failed | 1.01 × the",
        "in 0 of 10; 5 failed | not in 10 of them |", "- bert, gpucache, seed 7: status 1 at its")


def frugal(scratch):
    suite = base.Suite(scratch, False, None, False)
    suite.lib, worker = os.path.join(scratch, "none.so"), os.path.join(scratch, "worker.py")
    for path, text in ((suite.lib, ""), (worker, WORKER)):
        with open(path, "w") as file:
            file.write(text)
    bench_frugal.PACKAGES, part_frameworks.script = ("json",), lambda name: worker
    left, files = [], [os.path.join(scratch, f"{number}.json") for number in (5, 7, 6)]
    for seed, rounds, file in ((5, 2, files[0]), (7, 1, files[1])):
        status, said = told(lambda: bench_store.save(file, script("bench").measure(
            suite, None, ["frugal"], {"frugal": {"seed": seed, "rounds": rounds}},
            lambda rows: left.append(find(rows, group="frugal")))[0]))
        if status:
            return [f"{status}, {said}"]
    have = [(row["name"], row["peer"], row["seed"], row["reserved_bytes"]) for row in left[10]]
    wrong = [] if have == [
        (workload, peer.name, seed, 1000 + 10 * seed) for seed in (5, 6)
        for workload in bench_frugal.BOUNDS for peer in bench_frugal.PEERS] else [str(have)]
    if [len(rows) for rows in left[:3]] != [4, 8, 12]:
        wrong.append("figures are left late")
    beside = [row for rows in bench_frugal.frugal(suite, None, 5, 1, ["vit"], 2, [worker])
              for row in rows]
    if [row["peer"] for row in beside] != [*(peer.name for peer in bench_frugal.PEERS),
                                           f"gpucache {worker}"] or \
            not all(row["name"] == "vit" and row["step_ns"] == 1e9 * WARM_SECONDS for row in beside
                    if row["peer"].startswith("gpucache /")):
        wrong.append(f"another library, after 2 steps: {beside}")
    text = bench_results.page(bench_results.merged([files[1], files[0], files[1]]))
    wrong += [f"no {words!r} in\n{text}" for words in SAID if words not in text]
    bench_store.save(files[2], [{**row, "machine": "another"} for row in left[0]])
    if {row["machine"] for row in find(bench_results.merged(files), group="frugal")} != {"another"}:
        wrong.append("two machines in one table")
    return wrong


# The same, with memory of the simulated driver: every other block of 3 MiB stays; then there is
# time for a flush.
HOLDER = """import ctypes, json, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, pointers = ctypes.c_void_p(), [ctypes.c_uint64() for _ in range(16)]
cuda.cuInit(0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
for pointer in pointers:
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(3 << 20))
for pointer in pointers[::2]:
    cuda.cuMemFree_v2(pointer)
print("ready", os.getpid(), flush=True)
sys.stdin.readline()
time.sleep(1)
print("turn", flush=True)
sys.stdin.readline()
print("done", json.dumps({"seconds": [1.0]}), flush=True)
print("gone", 0, flush=True)
"""


def refill(scratch, build):
    suite, worker = base.Suite(scratch, False, build, False), os.path.join(scratch, "worker.py")
    suite.lib, bench_refill.BEFORE_S = os.path.join(build, "shim", "libgpucache.so"), 0.1
    with open(worker, "w") as file:
        file.write(HOLDER)
    seconds, receipts = bench_refill.play(suite, [sys.executable, worker], "gpt2", True)
    rows = bench_refill.rows_of("gpt2", [0.1, 0.1], [0.1, 0.4], receipts)
    live, left, lost = (find(rows, form=form)[0]["value"] for form in
                        ("live", "left", "lost by a step"))
    good = seconds == [1.0] and round(live / (1 << 20)) == 24 and \
        0 < left <= live and lost == 3e8 and bench_results.page(rows).count("| gpt2 |") == 1
    return [] if good else [f"{seconds}, {rows}"]


# What is refused, with a part of the line that says so.
REFUSED = {
    "bench": (("--rounds 0", "--rounds: 0 is no number from 1 on"),
              ("--seed 1.5", "--seed: 1.5 is no number from 0 on"),
              ("--only nosuch", "no such part: nosuch (have: replay, "),
              ("--only frugal,", "no such part: '' (have: replay, "),
              ("--simulate /nosuch", "/nosuch: there is no simulated driver"),
              ("--library /nosuch.so", "/nosuch.so: no such file"),
              ("--against /nosuch.so", "/nosuch.so: no such file"),
              ("--workloads vit,x", "no such workload: x (have: bert, "),
              ("--json /nosuch/file", "/nosuch/file: no such file or directory")),
    "run": (("--skip nosuch", "no such part: nosuch (have: identity, "),
            ("--match (", "--match: ( is no regular expression"),
            ("--simulate /nosuch", "/nosuch: there is no simulated driver")),
    "../bench/sweep.py": (("--seeds 0 replay", "--seeds: 0 is no number from 1 on"),
                          ("--kinds nosuch replay", "no such kind: nosuch (have: ")),
    "../bench/instructions.py": (("--at-most 4K p l", "--at-most: 4K is not SIZE=N"),)}


def arguments(scratch):
    wrong = []
    for name, cases in REFUSED.items():
        for words, sentence in cases:
            sys.argv = [name, *words.split()] + [scratch] * (name in ("bench", "run"))
            status, said = told(script(name).main)
            if status != 2 or sentence not in said.rstrip("\n").rpartition("\n")[2]:
                wrong.append(f"{name} {words}: status {status}, {said!r}")
    return wrong


if __name__ == "__main__":
    CHECKS = {"play": play, "page": page, "once": once, "frugal": frugal, "refill": refill,
              "arguments": arguments}
    with tempfile.TemporaryDirectory(prefix="bench-") as FOLDER:
        WRONG = CHECKS[sys.argv[1]](FOLDER, *sys.argv[2:])
    print("\n".join(WRONG) or "as it should be")
    sys.exit(1 if WRONG else 0)
