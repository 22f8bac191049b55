# SPDX-License-Identifier: BSD-2-Clause
"""Tests of the benchmarks themselves.
  bench_test.py play BUILD PART [PEER..]   the part runs on the simulated driver: every peer named
                                           has figures, all of
                                           them sensible, and a page can be made of them
  bench_test.py page                       the published page is what its figures make, and a wrong
                                           one is noticed
  bench_test.py once                       a program that two peers share is built once
  bench_test.py frugal                     what is made of the processes of part frugal, whose
                                           figures are given, and one of which failed; in one
                                           file and in two that --results joins
  bench_test.py rounds                     part frugal plays the rounds that it is told to, and
                                           leaves the figures of each as soon as it has them
  bench_test.py arguments                  numbers, names and files without sense are refused in
                                           one line, before anything is measured
  bench_test.py refill BUILD               what is made of given receipts and times; flushes of a
                                           process on the simulated driver have receipts"""
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
import bench_refill  # noqa: E402
import bench_results  # noqa: E402
import bench_store  # noqa: E402
import bench_targets  # noqa: E402
import part_frameworks  # noqa: E402
import suite as base  # noqa: E402
import trainer  # noqa: E402
from bench_testing import published, script  # noqa: E402

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
    if not noticed or not bench_store.find(rows, group="memory"):
        return 0 if noticed else 1
    left = [row for row in rows if (row.get("size_bytes"), row.get("form")) !=
            (32 << 30, "after churn")]
    told = "Not measured with 32 GiB: gpucache after churn." in bench_results.page(left)
    print("" if told else "the table does not say which of its lines are missing")
    return 0 if told else 1


class Given:
    """Statistics of a process, as they are given."""

    def __init__(self, **figures):
        self.figures = figures

    def total(self, name):
        return self.figures.get(name, 0)


def processes(native_s, expandable, shim, failure="", slow_s=0.0, again=1.0):
    """A round of four steps: live is 1000 bytes everywhere; what two peers reserve is given.
    slow_s: more for the first step of the shim, whose steps take 0.75 s. again: so many times as
    long takes native's second process."""
    runs = []
    for peer, reserved, steps in ((bench_frugal.NATIVE, 1500, [native_s / 4] * 4),
                                  (bench_frugal.EXPANDABLE, expandable, [native_s / 4] * 4),
                                  (bench_frugal.SHIM, shim, [0.75 + slow_s, 0.75, 0.75, 0.75]),
                                  (bench_frugal.AGAIN, 1500, [native_s * again / 4] * 4)):
        run = trainer.Run("bert", peer, 4, figures={"seconds": steps})
        if peer.preload:
            run.failure = failure
            run.statistics = Given(reserved_peak_bytes=reserved, requested_peak_bytes=1000,
                                   at_peak_requested_bytes=reserved - 7, at_peak_cut_bytes=7)
        else:
            run.figures.update(requested_peak_bytes=1000, reserved_peak_bytes=reserved)
        runs.append(run)
    return runs


ROUNDS = [processes(2.0, 1040, 1032), processes(3.0, 1010, 1020, slow_s=3.0),
          processes(6.0, 1200, 1062), processes(1.5, 1200, 1050),
          processes(9.0, 1200, 1060, "no end")]
SAID = ("| bert | gpucache | 4 | 1.041 (1.020, 1.029, 1.053, 1.062) |",
        "1.75 (0.50, 1.25, 2.00, 2.00) | 1.25 (0.50, 0.88, 1.62, 2.00)",
        "at most 1.05: 3 of 4; below expandable: 3 of 4; time at most 1.00: missed",
        "in every process, 1.3 in those of ViT on four streams | bert 1.062; 1 failed | "
        "1.01 × the target |",
        "segments in every process | in 3 of 4; 1 failed | not in 1 of them |",
        "time of PyTorch's native allocator | bert 1.75 ± 0.44; all 1.32 ± 0.43 | met, as far as "
        "can be told of all |",
        "| bert | PyTorch native | 5 | 1.500 (1.500, 1.500, 1.500, 1.500) |",
        "- bert, gpucache: live 1.03 KiB, cut chunks 7 B; after 0 ns, 0 looks for idle chunks",
        "- bert, gpucache, seed 5: no end")


def frugal_rows(seeds, machine="GPU one; system 1"):
    return [row for seed in seeds for row in bench_frugal.rows_of(ROUNDS[seed - 1], seed, machine)]


def timed(ratios, workload="bert"):
    """Rounds in which the shim takes so many times as long as native."""
    return [{**row, "name": workload} for seed, ratio in enumerate(ratios, 1) for row in
            bench_frugal.rows_of(processes(3 / ratio, 1040, 1032), seed, "GPU one; system 1")]


def targets():
    """What is wrong with the lines of the targets that odd rounds make."""
    both, wrong = frugal_rows([1, 5]), []
    for what, rows, words in (
            ("a failed process", both, "| bert 1.032; 1 failed | not in 1 that failed |"),
            ("a failed process beside", both, "| in 1 of 1; 1 failed | not in 1 that failed |"),
            ("all failed", frugal_rows([5]), "ViT on four streams |  | not measured |"),
            ("as much as the one beside", bench_frugal.rows_of(processes(3.0, 1032, 1032), 1, ""),
             "below expandable segments in every process | in 0 of 1 | not in 1 of them |"),
            ("another bound", timed([1.0], "vit") + [{**row, "name": "vit"}
                                                     for row in frugal_rows([3])],
             "ViT on four streams | vit 1.062 | met |"),
            ("nothing beside", [row for row in timed([1.0])
                                if row["peer"] != bench_frugal.EXPANDABLE.name],
             "below expandable segments in every process |  | not measured |"),
            ("no native", [{key: row[key] for key in row if key != "over_native"}
                           for row in timed([1.0])],
             "time of PyTorch's native allocator |  | not measured |"),
            ("within the error", timed([0.9, 1.2]),
             "| bert 1.05 ± 0.19; all 1.04 ± 0.15 | met, as far as can be told of all |"),
            ("beyond it too", timed([0.9, 1.2]) + timed([1.5, 1.5], "graphs"),
             "| bert 1.05 ± 0.19, graphs 1.50 ± 0.00; all 1.25 ± 0.15 | 1.25 × the target |"),
            ("less than two digits tell", timed([1.004, 1.004]),
             "| bert 1.00 ± 0.00; all 1.00 ± 0.00 | met |")):
        lines = "\n".join(bench_targets.table(rows))
        if words not in lines:
            wrong.append(f"{what}: no {words!r} in\n{lines}")
    return wrong


def odd_files():
    """What is wrong after files that --results cannot use: it leaves everything as it was."""
    rows, wrong = frugal_rows([1]), []
    odd = {"empty": "", "cut": bench_store.dump(rows)[:200], "no list": "{}", "no figures": "[]",
           "no lines": "[3]",
           "a row without a unit": json.dumps([{k: rows[0][k] for k in rows[0] if k != "unit"}]),
           "no seed": json.dumps([{k: row[k] for k in row if k != "seed"} for row in rows]),
           "no workload": json.dumps([{**row, "name": "nosuch"} for row in rows]),
           "no memory": json.dumps([{**row, "live_bytes": 0} for row in rows]),
           "a word for a figure": json.dumps([{**rows[0], "value": "many"}]),
           "a list for a name": json.dumps([{**rows[0], "name": []}]),
           "a word for a seed": json.dumps([{**rows[0], "seed": "one"}]),
           "columns without rows": '[{"columns": ["group"]}]',
           "rows that are none": '[{"columns": ["group"], "rows": 3}]',
           "no percentiles": json.dumps([{**rows[0], "group": "pairs", "stream": "single",
                                          "name": "pair"}]),
           "no end of brackets": "[" * 100000, "no number": json.dumps([{**rows[0],
                                                                         "value": float("nan")}])}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        published(scratch, rows)
        before = contents_of(scratch)
        for name, text in odd.items():
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(text)
                file.flush()
                status, _, said = told(lambda: bench_results.publish([file.name], scratch))
            if status != 2 or file.name not in said or contents_of(scratch) != before:
                wrong.append(f"{name}: status {status}, {said!r}, "
                             f"{'the same' if contents_of(scratch) == before else 'changed'}")
        status, said, _ = published(scratch, [{**row, "name": "nosuch"} for row in rows])
        if status != 2 or "no workload 'nosuch'" not in said:
            wrong.append(f"a workload that has no bounds: status {status}, {said!r}")
        os.unlink(os.path.join(scratch, bench_results.JSON))
        for name, call in (("made", lambda: bench_results.publish([], scratch)),
                           ("checked", lambda: bench_results.check(scratch))):
            status, _, said = told(call)
            if status != 2 or bench_results.JSON not in said:
                wrong.append(f"no {bench_results.JSON}, {name}: status {status}, {said!r}")
    return wrong


def told(call):
    """(status, stdout, stderr) of a call; the status is an exception if one got through."""
    with contextlib.redirect_stdout(io.StringIO()) as out, \
            contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = call()
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = repr(error)
    return status, out.getvalue(), err.getvalue()


def contents_of(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            found[name] = file.read()
    return found


def frugal():
    wrong = []
    again = [{**row, "reserved_bytes": 9999} for row in frugal_rows([2])]
    other = frugal_rows([3], "GPU two; system 1")
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        status, _, whole = published(scratch, frugal_rows([1, 2, 3, 4, 5]))
        wrong += [f"the page lacks {words!r}" for words in SAID if words not in whole]
        orders = {"two files": ([1, 2], [3, 4, 5]), "the later first": ([4, 5], [1, 2, 3])}
        for name, files in orders.items():
            joined = published(scratch, *map(frugal_rows, files))
            if joined != (status, "", whole):
                wrong.append(f"{name} make another page: {joined}")
        if published(scratch, again, frugal_rows([1, 2, 3, 4, 5]))[2] != whole:
            wrong.append("a seed that was measured again counts twice")
        status, said, page_then = published(scratch, frugal_rows([1, 2]), other)
        if status != 2 or '"GPU one" and of "GPU two"' not in said or page_then != whole:
            wrong.append(f"two machines in one table: status {status}, {said!r}")
        met = published(scratch, frugal_rows([1, 3]))[2]
        if "time at most 1.00: met" not in met:
            wrong.append(f"a median of 1.00 is missed:\n{met}")
        apart = [row for again in (1.2, 1.3)
                 for row in bench_frugal.rows_of(processes(2.4, 1040, 1032, again=again),
                                                 round(again * 10), "GPU one; system 1")]
        if "time at most 1.00: missed by less than native differs" not in \
                published(scratch, apart)[2]:
            wrong.append("1.25 is missed where native's second process takes 1.2 and 1.3")
        alone = [row for row in frugal_rows([1, 2, 3, 4])
                 if (row["peer"], row["seed"]) != (bench_frugal.EXPANDABLE.name, 2)]
        if "below expandable: 3 of 3" not in published(scratch, alone)[2]:
            wrong.append("a process without one of the same round beside it counts")
    wrong += odd_files() + targets()
    print("\n".join(wrong) or "as it should be")
    return 1 if wrong else 0


# In place of work_frugal.py: it reserves what its seed says, and is broken off by a cue.
WORKER = """import json, os, sys
seed = int(sys.argv[sys.argv.index("--seed") + 1])
workloads = sys.argv[sys.argv.index("--steps") + 2:]
for at, workload in enumerate(workloads):
    print("ready", at, flush=True)
    while sys.stdin.readline() == "go\\n":
        print("turn", flush=True)
    mine = seed + workloads[:at].count(workload)
    figures = {"requested_peak_bytes": 1000, "reserved_peak_bytes": 1000 + mine}
    if "GPUCACHE_STATS" in os.environ:
        path = os.environ["GPUCACHE_STATS"].removeprefix("exit:").replace("%p", str(at))
        json.dump({"pools": [figures]}, open(path, "w"))
    print("done", json.dumps({"seconds": [1.0, 1.0], **figures}), flush=True)
    print("gone", 0, flush=True)
"""


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


# Arguments of bench, of run and of sweep.py that are refused, each with a part of the line.
REFUSED = {
    "bench": ((("--rounds", "0"), "--rounds: 0 is no number from 1 on"),
              (("--rounds", "-3"), "--rounds: -3 is no number from 1 on"),
              (("--rounds", "two"), "--rounds: two is no number from 1 on"),
              (("--seed", "-1"), "--seed: -1 is no number from 0 on"),
              (("--seed", "1.5"), "--seed: 1.5 is no number from 0 on"),
              (("--only", "nosuch"), "no such part: nosuch (have: replay, "),
              (("--only", "frugal,"), "no such part: '' (have: replay, "),
              (("--only", ""), "no such part: '' (have: replay, "),
              (("--simulate", "/nosuch"), "/nosuch: there is no simulated driver"),
              (("--library", "/nosuch.so"), "/nosuch.so: no such file"),
              (("--json", "/nosuch/file"), "/nosuch/file: no such file or directory")),
    "run": ((("--only", "nosuch"), "no such part: nosuch (have: identity, "),
            (("--skip", "nosuch"), "no such part: nosuch (have: identity, "),
            (("--only", ""), "no such part: '' (have: identity, "),
            (("--match", "("), "--match: ( is no regular expression"),
            (("--simulate", "/nosuch"), "/nosuch: there is no simulated driver")),
    "../bench/sweep.py": ((("--seeds", "0", "replay"), "--seeds: 0 is no number from 1 on"),
                          (("--kinds", "nosuch", "replay"), "no such kind: nosuch (have: "),
                          (("--kinds", "", "replay"), "no such kind: '' (have: ")),
    "../bench/instructions.py": ((("--at-most", "4K", "p", "l"), "--at-most: 4K is not SIZE=N"),
                                 (("--at-most", "4K=-", "p", "l"), "4K=- is not SIZE=N")),
}


def arguments():
    wrong = []
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for name, cases in REFUSED.items():
            module = script(os.path.join(HERE, name))
            for words, sentence in cases:
                sys.argv = [name, *words] + ([scratch] if name in ("bench", "run") else [])
                status, _, said = told(module.main)
                last = said.rstrip("\n").rpartition("\n")[2]
                if status != 2 or sentence not in last:
                    wrong.append(f"{name} {' '.join(words)}: status {status}, {said!r}")
    print("\n".join(wrong) or "as it should be")
    return 1 if wrong else 0


def rounds():
    bench = script(os.path.join(HERE, "bench"))
    left = []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        suite = base.Suite(scratch, False, None, False)
        suite.lib, worker = os.path.join(scratch, "none.so"), os.path.join(scratch, "worker.py")
        for path, text in ((suite.lib, ""), (worker, WORKER)):
            with open(path, "w") as file:
                file.write(text)
        bench_frugal.PACKAGES = ("json",)
        part_frameworks.script = lambda name: worker
        with contextlib.redirect_stdout(io.StringIO()):
            _, failed = bench.measure(suite, None, ["frugal"], {"frugal": {"seed": 5, "rounds": 2}},
                                      lambda rows: left.append(bench_store.find(rows,
                                                                                group="frugal")))
    want = [(workload, peer.name, seed, 1000 + seed) for seed in (5, 6)
            for workload in bench_frugal.BOUNDS for peer in bench_frugal.PEERS]
    have = [(row["name"], row["peer"], row["seed"], row.get("reserved_bytes")) for row in left[-1]]
    each = [len(rows) for rows in left]
    good = not failed and have == want and each[:3] == [4, 8, 12]
    print(f"{failed} failed, left {each}, rows {have}")
    return 0 if good else 1


def refill(build):
    def receipt(returned, live, left, took_ns):
        return {"ns": took_ns, "gpus": [{"returned_bytes": returned, "allocated_bytes": live,
                                         "partly_live_bytes": left}]}
    receipts = [receipt(4 << 20, 2 << 20, 1 << 20, 1000), receipt(8 << 20, 4 << 20, 1 << 20, 3000),
                {"ns": 7, "gpus": []}]
    rows = bench_refill.rows_of("gpt2", [0.1, 0.1, 0.1, 0.1], [0.1, 0.4, 0.2, 0.1], receipts)
    text = bench_results.page(rows)
    want = ("| gpt2 | 2 | 3 MiB (2 MiB to 4 MiB) | 6 MiB (4 MiB to 8 MiB) | 1 MiB (1 MiB to 1 MiB) "
            "| 0.375 (0.250 to 0.500) | 2 us (1 us to 3 us) | 100 ms | 200 ms | 300 ms |")
    bench_refill.BEFORE_S = 0.1
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        suite = base.Suite(scratch, False, build, False)
        suite.lib, worker = os.path.join(build, "shim", "libgpucache.so"), f"{scratch}/worker.py"
        with open(worker, "w") as file:
            file.write(HOLDER)
        seconds, receipts = bench_refill.play(suite, [sys.executable, worker], "gpt2", True)
    held = [(gpu["allocated_bytes"], gpu["partly_live_bytes"]) for receipt in receipts
            for gpu in receipt["gpus"]]
    good = want in text and seconds == [1.0] and held and \
        all(live == 24 << 20 and 0 < left <= live for live, left in held)
    print(f"live, left: {held}" if good else f"{held}, {receipts}\n{text}")
    return 0 if good else 1


if __name__ == "__main__":
    CHECKS = {"play": play, "page": page, "once": once, "frugal": frugal, "rounds": rounds,
              "arguments": arguments, "refill": refill}
    sys.exit(CHECKS[sys.argv[1]](*sys.argv[2:]))
