# SPDX-License-Identifier: BSD-2-Clause
"""Tests that the parts that compare processes notice a difference. Programs that only allocate,
on the simulated driver, stand in for PyTorch's; some are wrong on purpose. check_parts.py BUILD"""
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
import bench_store  # noqa: E402
import part_frameworks as frameworks  # noqa: E402
import part_programs  # noqa: E402
import part_torch  # noqa: E402
import suite as base  # noqa: E402

# Speaks the protocol of trainer.py; wrong in the ways that WRONG names.
STAND_IN = '''
import ctypes, json, os, sys
steps, preloaded = int(sys.argv[sys.argv.index("--steps") + 1]), "LD_PRELOAD" in os.environ
wrong = os.environ.get("WRONG", "") if preloaded else ""
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
def must(code):
    if code:
        sys.exit(f"CUDA error {code}")
must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
def repeat():
    for i in range(steps):
        for n in range(0 if wrong == "idle" else 120):
            p = ctypes.c_uint64()
            must(cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(512 * n + 512)))
            must(cuda.cuMemFree_v2(p))
repeat()
print("ready", os.getpid(), flush=True)
count = 0
while sys.stdin.readline() == "go\\n":
    repeat()
    count += 1
    if wrong == "dies":
        os.abort()
    print("turn", flush=True)
print(count, 1.5 if wrong == "losses" else 1.0)
print("done", json.dumps({"seconds": [0.25] * count, "waited": [0.0] * count,
                          "reserved_peak_bytes": 1 << 20, "allocated_peak_bytes": 1 << 19}),
      flush=True)
sys.exit(3 if wrong == "end" else 0)
'''
# What is wrong under the shim, and what the part has to say then.
CASES = {"": None, "losses": "FAIL: line 1", "idle": "FAIL: 0 allocations served",
         "dies": "FAIL: no 'turn'", "end": "FAIL: status 3"}


def judged(good, words):
    """Says whether it is as it should; 1 if not."""
    print(f"{'as it should' if good else 'WRONG'}: {words}", flush=True)
    return not good


def stand_in(folder, text):
    """From now on this program runs where a part starts one of PyTorch's."""
    program = os.path.join(folder, "stand_in.py")
    with open(program, "w") as file:
        file.write(text)
    frameworks.python_with = lambda *_: sys.executable
    frameworks.script = lambda _: program


def verdicts(build, folder, wrong):
    suite = base.Suite(folder, True, build, False)
    suite.build_library()
    suite.part = "torch"
    suite.bare_env["WRONG"] = wrong
    part_torch.torch(suite)
    rows = bench_store.load(os.path.join(folder, "torch.json"))
    return [row.verdict for row in suite.rows], rows


# One program, bare and preloaded: what `compared` has to say.
PROGRAM = """
import ctypes, os
wrong = os.environ.get("WRONG", "") if "LD_PRELOAD" in os.environ else ""
cuda, context, p = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
for n in range(3 if wrong == "idle" else 10):
    assert not cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(4096))
    assert not cuda.cuMemFree_v2(p)
print("wrong" if wrong == "losses" else "right")
if wrong in ("dies", "end"):
    os.abort()
"""
SAID = {"": "ok: 10 served", "losses": "FAIL: output", "idle": "FAIL: 3 allocations served",
        "dies": "FAIL: exit 0 bare", "end": "FAIL: exit 0 bare"}


def said_of_one(build, folder, wrong):
    suite = base.Suite(folder, True, build, False)
    suite.build_library()
    frameworks.compared(suite, "one", "one", [sys.executable, "-c", PROGRAM], {"WRONG": wrong},
                        at_least=10)
    return suite.rows[-1].verdict


def benchmark_is_whole(build, folder):
    """Its rows: several processes of a peer compared pair by pair, and each process's report still
    there."""
    suite = base.Suite(folder, False, build, False)
    suite.build_library()
    rows = part_torch.rows_of(suite)
    pairs = [row for row in rows if row["unit"] == "over native"]
    said = [(row["peer"], row["value"], row["rounds"], row["error"]) for row in pairs]
    peers = (part_torch.SHIM, part_torch.NATIVE_EXPANDABLE)
    return said == [(peer.name, 1.0, part_torch.PROCESSES, 0.0) for peer in peers] and \
        any(row["peer"] == part_torch.SHIM.name and row["unit"] == "bytes" and row["value"] > 0
            for row in rows)


def scenes_are_whole(build, folder):
    """The tree that a machine with a GPU configures has the programs of this build."""
    suite = base.Suite(folder, True, build, False)
    trees = build, part_programs.scenes_tree(suite)
    lists = [json.loads(suite.must(["meson", "introspect", "--tests", tree], "meson introspect"))
             for tree in trees]
    here, there = [{test["name"] for test in tests
                    if {"preload", "misuse"} & part_programs.suites_of(test)} for tests in lists]
    return len(here) > 100 and here == there


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        failed += judged(scenes_are_whole(sys.argv[1], folder), "the programs of the suite")
        stand_in(folder, STAND_IN)
        part_torch.QUICK = part_torch.WORKLOADS = ("gpt",)
        part_torch.PROCESSES = 3
        failed += judged(benchmark_is_whole(sys.argv[1], folder), "the benchmark's rows")
        for wrong, expected in CASES.items():
            said, rows = verdicts(sys.argv[1], folder, wrong)
            faults = [verdict for verdict in said if verdict.startswith("FAIL")]
            good = any(fault.startswith(expected) for fault in faults) if expected else not faults
            peers = {row["peer"] for row in rows if row["unit"] == "ms"}
            good = good and "cudaMalloc" in peers
            good = good and ("gpucache" in peers) == (wrong not in ("dies", "end"))
            failed += judged(good, f"{wrong or 'nothing'} wrong, the part says {said}")
            one = said_of_one(sys.argv[1], folder, wrong)
            failed += judged(one.startswith(SAID[wrong]), f"one program, {one}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
