# SPDX-License-Identifier: BSD-2-Clause
"""Tests of part spent, for bench_test.py: rows and a page are made of given figures; the part runs
a program that stands in for work_frugal.py. spent_test.py has those of spent.c. Each check yields
lines: what is wrong."""
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import unittest.mock

import bench_frugal
import bench_results
import bench_spent
import bench_store
import part_frameworks
import part_profile
import part_torch
import spent_test
import suite as base
from bench_testing import published, script

HERE = os.path.dirname(os.path.abspath(__file__))
NATIVE, _, SHIM = bench_spent.PEERS
MEMORY = """cuMemAlloc cuMemAlloc_v2 cuMemFree cuMemFree_v2 cuMemCreate
cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemAddressReserve cuMemAddressFree
cuCtxRecordEvent cuCtxWaitEvent cuEventQuery cuEventSynchronize""".split()
OTHERS = """cudaMalloc cudaFree cudaMallocHost cuMemAllocHost cuArrayDestroy
cuMemAllocHost_v2 cuMemFreeHost cuMemAllocAsync cuMemFreeAsync cuMemAllocManaged
cuMemAllocPitch_v2 cuMemGetInfo_v2
cuMemMapArrayAsync cuMemcpyAsync cuMemAddress cuMemGetAccess cuEventRecord cuEventCreate
cuEventDestroy_v2 cuEventQuery_v cuCtxGetCurrent cuCtxSynchronize cuStreamSynchronize
cuThreadExchangeStreamCaptureMode cuStreamWaitEvent cuLaunchKernel kernels busy_ns dropped
cuMemMap_ns cuMemMap_max_ns xcuMemAlloc""".split()


def names(_):
    yield from (f"{name} is no call for memory" for name in MEMORY
                if not bench_spent.is_counted(name))
    yield from (f"{name} is a call for memory" for name in OTHERS if bench_spent.is_counted(name))


def calls(**figures):
    """{CALL: (number, ns, longest)} as spent.c writes it."""
    return {name + end: figure for name, triple in figures.items()
            for end, figure in zip(("", "_ns", "_max_ns"), triple)}


GPU = {"kernels": 40, "busy_ns": 4000000, "dropped": 0,
       **calls(cuLaunchKernel=(9, 900, 200), cuMemAllocHost_v2=(1, 99100, 99100))}
POOLED = calls(cuMemMap=(3, 6000, 2500), cuMemAddressReserve=(1, 4000, 4000),
               cuEventQuery=(10, 20000, 9000), cuMemRelease=(1, 290, 290), cuMemUnmap=(1, 310, 310))


def given(seconds, *more, workload="vit"):
    """What a process prints."""
    spent_of = dict(GPU)
    for part in more:
        spent_of.update(part)
    return {"workload": workload, "seconds": seconds, "spent": spent_of}


def a_row(peer, seed, seconds, *more, workload="vit"):
    return bench_spent.row_of(peer, workload, given(seconds, *more, workload=workload), seed, "one")


def seeds():
    """Rows of three seeds; native's process of the third one failed."""
    malloc = calls(cuMemAlloc_v2=(1, 5000, 5000))
    return [[a_row(SHIM, 1, [0.004, 0.002], POOLED), a_row(NATIVE, 1, [0.001] * 2, malloc, {
                "busy_ns": 5000000})],
            [a_row(SHIM, 2, [0.004] * 2, calls(cuEventQuery=(2, 8000, 7000))),
             a_row(NATIVE, 2, [0.002] * 2, malloc)],
            [a_row(SHIM, 3, [0.005] * 2, calls(cuMemMap=(1, 30000, 30000))),
             bench_spent.row_of(NATIVE, "vit", {"failure": "no end"}, 3, "one"),
             a_row(NATIVE, 3, [0.005], malloc, workload="bert")]]


# In this order. The call that is not named takes 0.9 %.
ONE = ("| vit | PyTorch native | 1 | 1 ms | 2.5 ms | 1.000 | 2.5 us | 0.25% | 50 us | "
       "0.5 cuMemAlloc_v2 of 5 us (5 us) |",
       "| vit | gpucache | 1 | 3 ms | 2 ms | 0.800 | 15.3 us | 0.51% | 50 us | 5 cuEventQuery of "
       "2 us (9 us), 1.5 cuMemMap of 2 us (2.5 us), 0.5 cuMemAddressReserve of 4 us (4 us), "
       "0.5 cuMemUnmap of 310 ns (310 ns) |")
ALL = ("| bert | PyTorch native | 1 | 5 ms |",
       "| vit | PyTorch native | 2 | 1.5 ms | 2.25 ms | 1.000 | 2.5 us | 0.19% |",
       "| vit | gpucache | 3 | 4 ms | 2 ms | 0.900 | 15 us | 0.30% | 50 us | 0.667 cuMemMap of "
       "9 us (30 us), 2 cuEventQuery of 2.33 us (9 us), 0.167 cuMemAddressReserve of 4 us (4 us) |",
       "Processes that failed\n\n- vit, PyTorch native, seed 3: no end\n")


def rows(folder):
    """The rows of a process hold its figures; several files make one table."""
    row = seeds()[0][0]
    wanted = {**POOLED, "value": bench_store.rounded(30600 / 2), "unit": "ns", "kernels": 40,
              "other_calls": 5.0, "other_ns": 50000.0, "steps": 2, "seed": 1, "machine": "one"}
    wrong = {key: row.get(key) for key in wanted if row.get(key) != wanted[key]}
    if wrong or "cuLaunchKernel" in row:
        yield f"a row has {wrong}, {row}"
    for what, figures, words in (
            ("lost records", given([0.1], {"dropped": 1}), "1 records of CUPTI are lost"),
            ("no kernels", given([0.1], {"kernels": 0}), "no figures of the GPU"),
            ("a GPU that is not busy", given([0.1], {"busy_ns": 0}), "no figures of the GPU"),
            ("no steps", given([]), "no figures of the GPU"),
            ("a failure", {**given([0.1]), "failure": "why"}, "why")):
        row = bench_spent.row_of(SHIM, "vit", figures, 7, "one")
        if (row.get("failure"), row["seed"], row["value"]) != (words, 7, 0):
            yield f"{what}: {row}"
    for lost, words in ((2, None), (3, "3 records of CUPTI are lost")):
        row = bench_spent.row_of(SHIM, "vit", given([0.1], {"dropped": lost, "kernels": 2000}), 7,
                                 "one")
        if row.get("failure") != words:
            yield f"{lost} of 2000 are lost: {row}"
    said = "\n".join(map(json.dumps, (given([0.1], workload="bert"),
                                      {"workload": "graphs", "status": 3})))
    late = bench_spent.rows_of(SHIM, base.Result(None, said, "a word", 400.0), 7, "one")
    if [row.get("failure") for row in late] != [None, "no figures, status 3: a word",
                                                *["no figures, ran too long: a word"] * 3]:
        yield f"a process that ran too long: {late}"
    first, second, third = seeds()
    for what, files, lines in (("one seed", [first], ONE), ("three", [first, second, third], ALL),
                               ("the last first", [third, second, first], ALL),
                               ("measured again", [second, first, second, third], ALL),
                               ("a failure made good", [[{**first[0], "failure": "old"}], first],
                                ONE)):
        status, said, page = published(folder, *files)
        if status or said:
            yield f"{what}: status {status}, {said}"
        places = [page.find(line) for line in lines]
        if min(places) < 0 or places != sorted(places):
            yield f"{what}: not {lines}, at {places}, in\n{page}"
    status, said, _ = published(folder, first, [{**row, "machine": "two"} for row in second])
    if status != 2 or "part spent" not in said:
        yield f"two machines in one table: status {status}, {said!r}"
    status, said, _ = published(folder, [{**first[0], "name": "nosuch"}])
    if status != 2 or "no workload 'nosuch'" not in said:
        yield f"an unknown workload: status {status}, {said!r}"
    if "random shapes goes" in bench_results.page([]):
        yield "a section without rows"


# In place of work_frugal.py. It leaves its arguments and its environment in a file; workloads fail
# in every way.
WORKER = """import json, os, sys
print("a package says something")
with open(os.path.join(os.path.dirname(__file__), "asked"), "a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
expandable = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
workloads = sys.argv[sys.argv.index("--spent") + 2:]
for at, workload in enumerate(workloads):
    figures = {"workload": workload, "seconds": [0.001], "spent": %s}
    if workload == "graphs":
        figures = {"workload": workload, "status": -11}
    elif workload == "mask_rcnn":
        continue
    print(json.dumps(figures)[:None if at < 4 else -3], flush=True)
    if expandable:
        print("{", file=sys.stderr)
        sys.exit("broken off")
""" % GPU


def outcome(row):
    return row.get("failure", row.get("busy_ns"))


def part(folder):
    """The part plays what it is told to with each peer, and leaves rows of all workloads."""
    suite = base.Suite(os.path.join(folder, "part"), False, None, False)
    suite.lib, worker = (os.path.join(folder, name) for name in ("none.so", "worker.py"))
    for path, text in ((suite.lib, ""), (worker, WORKER)):
        with open(path, "w") as file:
            file.write(text)
    bench = script(os.path.join(HERE, "bench"))
    bench_frugal.PACKAGES = ("json",)
    part_frameworks.script = {"work_frugal.py": worker}.get
    part_profile.with_cupti = "suite {1} {2}".format
    sys.argv, left, told = ["bench", "--seed", "5"], [], []
    with contextlib.redirect_stdout(io.StringIO()) as shown, \
            contextlib.redirect_stderr(io.StringIO()):
        _, failed = bench.measure(suite, None, ["spent"], bench.of_parts(bench.arguments()),
                                  lambda found: left.append(bench_store.find(found, group="spent")))
        suite.quick = True
        quick = list(bench_spent.spent(suite, None))
        # As the program calls it, which looks for a GPU first.
        bench.prepare, base.Suite.has_gpu = (lambda *_: None), (lambda _: True)
        bench.measure = lambda *given_to: told.append(given_to[3]) or ([], 0)
        sys.argv += ["--only", "spent", suite.build]
        bench.main()
    if failed or [len(found) for found in left] != [5, 10, 15, 15]:
        yield f"{failed} failed, left {[len(found) for found in left]}"
    gone, silent = "no figures, status {}: {}".format, 4e6
    for peer, wanted in zip(bench_spent.PEERS, (
            (silent, gone(-11, ""), gone(0, ""), silent, gone(0, "")),
            (silent, *[gone(1, "broken off")] * 4),
            (silent, gone(-11, ""), gone(0, ""), silent, gone(0, "")))):
        found = bench_store.find(left[-1], peer=peer.name, seed=5)
        same = [outcome(row) == want or isinstance(want, str) and str(outcome(row)).startswith(want)
                for row, want in zip(found, wanted)]
        if [row["name"] for row in found] != list(bench_frugal.BOUNDS) or not all(same):
            yield f"{peer.name}: {[(row['name'], outcome(row)) for row in found]}"
    if "- mask_rcnn, gpucache, seed 5: no figures, status 0" not in shown.getvalue():
        yield f"the failures are not shown: {shown.getvalue()}"
    if [len(found) for found in quick] != [5, 5, 5] or {row["seed"] for row in quick[0]} != {1}:
        yield f"--quick leaves {quick}"
    if told != [{"frugal": {"seed": 5, "rounds": None}, "spent": {"seed": 5}}]:
        yield f"the parts are told {told}"
    with open(os.path.join(folder, "asked")) as file:
        asked = [json.loads(line) for line in file]
    yield from (f"{peer.name}: {line}" for steps, seed, found in ((48, 5, asked[:3]),
                                                                 (12, 1, asked[3:]))
                for peer, (words, env) in zip(bench_spent.PEERS, found)
                for line in why_not_asked(peer, words, env, steps, seed, suite.lib))


def why_not_asked(peer, words, env, steps, seed, library):
    """What is wrong with the arguments and the environment of a process."""
    wanted = ["--warm", "16", "--steps", str(steps), "--seed", str(seed), "--spent",
              "suite spent.so spent.c", *bench_frugal.BOUNDS]
    if words != wanted:
        yield f"the arguments are {words}"
    beside = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "2",
              "LD_PRELOAD": library if peer.preload else None, **peer.env}
    for name in {**beside, **part_torch.SHIM.env, **part_torch.NATIVE_EXPANDABLE.env}:
        if env.get(name) != beside.get(name):
            yield f"{name} is {env.get(name)}"


class Library:
    """In place of spent.c: each function answers with its code."""

    def __init__(self, begun, ended):
        self.begun, self.ended = begun, ended

    def spent_begin(self):
        return self.begun

    def spent_end(self, name):
        with open(name, "w") as file:
            file.write("kernels 3\nbusy_ns 4\n")
        return self.ended


def program(_):
    """work_frugal.py, without PyTorch: what it measures, and when counting fails."""
    with unittest.mock.patch.dict(sys.modules, {name: unittest.mock.MagicMock()
                                                for name in ("torch", "torch.nn")}):
        work = importlib.import_module("work_frugal")
    work.OPTIONS.steps, played = 4, []
    seconds, loss = work.play("bert", lambda i: played.append(i) or i, 3,
                              lambda: played.append("counted"))
    if (played, len(seconds), loss) != ([0, 1, 2, "counted", 3, 4, 5, 6], 4, 6):
        yield f"steps: {played}, {seconds}, {loss}"
    for begun, ended, wanted in ((0, 0, {"kernels": 3, "busy_ns": 4}), (7, 0, "CUPTI answers 7"),
                                 (0, 9, "CUPTI answers 9"), (0, -1, "cannot be written")):
        with unittest.mock.patch("ctypes.CDLL", lambda _: Library(begun, ended)):
            counted = work.Spent("library")
        try:
            counted.begin()
            found = counted.end()
        except SystemExit as end:
            found = end.code
        if found != wanted and not (isinstance(found, str) and str(wanted) in found):
            yield f"codes {begun} and {ended}: {found}"
    sys.argv = ["work_frugal.py", "--turns", "--spent", "library", "vit"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            work.main()
        except SystemExit as end:
            if end.code != 2 or "--spent is not for --turns" not in said.getvalue():
                yield f"--spent with --turns: exit {end.code}, {said.getvalue()}"


def spent():
    wrong = []
    for check in (spent_test.counting, spent_test.real_library, names, rows, program, part):
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            wrong += check(scratch)
    print("\n".join(wrong) or "as it should be")
    return 1 if wrong else 0
