# SPDX-License-Identifier: BSD-2-Clause
"""Tests that the parts that park real programs notice what is wrong. A program that calls the
simulated driver stands in for theirs; some are wrong on purpose. check_park.py BUILD"""
import os
import sys
import tempfile
import threading
import types

sys.dont_write_bytecode = True
import parked  # noqa: E402
import part_beside  # noqa: E402
import part_cycle  # noqa: E402
import part_frames  # noqa: E402
import part_report  # noqa: E402
import part_served  # noqa: E402
import suite as base  # noqa: E402
from check_parts import judged, stand_in  # noqa: E402

# Speaks as a server, a program with steps and a rank do; wrong in the ways that WRONG names.
STAND_IN = '''
import ctypes, glob, http.server, json, os, sys, threading, time, zlib
wrong = os.environ.get("WRONG", "") if "LD_PRELOAD" in os.environ else ""
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
p, passing = ctypes.c_uint64(), ctypes.c_uint64()
SIZE = 4 << 20
def must(code):
    if code:
        sys.exit(f"CUDA error {code}")
must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
must(cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(SIZE)))
must(cuda.cuMemsetD8_v2(p, 1, ctypes.c_size_t(SIZE)))
def work(number):
    """What lies on the GPU, which each call changes."""
    out = (ctypes.c_char * 4096)()
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemsetD8_v2(ctypes.c_uint64(p.value + number), number % 256, ctypes.c_size_t(1)))
    must(cuda.cuMemcpyDtoH_v2(out, p, ctypes.c_size_t(4096)))
    if number == 4:
        if wrong == "dies":
            os.abort()
        if wrong == "hangs":
            time.sleep(60)
        if wrong == "bytes":
            return bytes(out)[::-1]
    return bytes(out)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = work(int(self.path.strip("/")))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
port = 0
if any(word.isdigit() and int(word) > 2 for word in sys.argv[1:]):  # MiB of a model
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", os.getpid(), port, flush=True)
seconds = []
for number, line in enumerate(sys.stdin):
    word = line.split()[0]
    answer = {"id": "00", "join": "joined", "capture": "captured"}.get(word)
    if word in ("sum", "replay"):
        answer = "right" if work(number)[number] == number else "1 number is wrong"
        if number == 4 and wrong == "bytes":
            answer = "1 number is wrong"
    recorded = glob.glob(os.environ.get("TRACES", "") + "/cost-*.gct")
    if word == "pairs":  # one that is recorded takes more time
        answer = str(1024 if recorded else 1000)
    if word == "go":
        peer, path = (line.split() + ["", ""])[1:3]
        for _ in range(150):
            must(cuda.cuMemAlloc_v2(ctypes.byref(passing), ctypes.c_size_t(SIZE)))
            must(cuda.cuMemFree_v2(passing))
        answer = "no such recorder" if peer == "memray" else "turn"
        if peer == "PyTorch":
            open(path, "w").close()
        if answer == "turn":
            more = 1.02 if peer else 1.01 if recorded else 1
            seconds.append([9 * more ** 9, 1, (2e-4 if len(seconds) != 1 else 7e-3) * more])
    if word == "end":
        print("done", json.dumps({"step_seconds": seconds}), flush=True)
        break
    print(answer or f"{number} {zlib.crc32(work(number))}", flush=True)
'''
# What is wrong under the library, and what each of the parts has to say then.
CASES = {
    "served": {"": None, "bytes": "FAIL: 1 differ", "dies": "FAIL: "},
    "steps": {"": None, "bytes": "FAIL: 1 losses differ",
              "dies": "FAIL: it ended with status -6, in step 4"},
    "frames": {"": None, "bytes": "FAIL: step 4", "dies": "FAIL: it ended with status -6",
               "off": "FAIL: parked 0 of"},
    "many": {"": None, "bytes": "FAIL: step 4", "dies": "FAIL: it ended with status -6"},
    "ranks": {"": None, "bytes": "FAIL: rank 0 answers 'sum'", "dies": "FAIL: it ended",
              "hangs": "FAIL: it says nothing for 10 s", "off": None},
}


def play(suite, part, program):
    """Plays a part with the program that stands in for its own."""
    command = [sys.executable, program]
    if part == "served":
        part_served.park_served(suite)
    elif part == "steps":
        part_cycle.park_torch(suite)
    elif part == "frames":
        part_frames.one(suite, "stand-in", command, {}, 6)
    elif part == "many":
        part_frames.many_jobs = lambda *_: [(command, "ready", part_frames.take_steps,
                                             part_frames.bare_lines(suite, command, {}, 6))] * 2
        part_frames.park_many(suite)
    else:
        part_beside.one_case(suite, "stand-in", command, "sum", {}, 2, 6)


def verdicts(build, folder, part, wrong):
    suite = base.Suite(folder, True, build, False)
    suite.build_library()
    suite.part = part
    suite.bare_env["WRONG"] = wrong
    if wrong == "off":
        suite.shim_env = lambda own=suite.shim_env, **extra: own(**{**extra,
                                                                    "GPUCACHE_PARK": "off"})
    try:
        play(suite, part, os.path.join(folder, "stand_in.py"))
    except Exception as error:  # as the suite's run has it
        suite.row(part, verdict=f"FAIL: {type(error).__name__}: {error}")
    return [row.verdict for row in suite.rows]


def cost_is_judged(build, folder):
    """Turns that are recorded take 1 or 2 % longer, and their first steps still more. One step of
    the others takes long by chance. 100 events of 12 ns are 0.6 % of a step."""
    suite = base.Suite(folder, True, build, False)
    suite.build_library()
    recorder = part_report.Recorder(suite)
    part_report.cost(suite, recorder, "off", {"TRACES": recorder.folder},
                     ("owner", "Python frames", "PyTorch", "memray"), 12, 3)
    owner, owner_event, frames, frames_event, torch, memray = suite.rows
    return owner.shim == frames.shim == "+1.00 %" and torch.shim == "+2.00 %" and \
        "error 0.00 %" in torch.verdict and memray.verdict == "skip: no such recorder" and \
        owner_event.shim == "12 ns" and "are 0.60 % of 0.2 ms" in owner_event.verdict and \
        owner_event.verdict.endswith("MISSED") and frames_event.verdict.endswith("met")


def report_is_judged():
    """Of owners, and of events that were lost."""
    some = "PID 1, 20 events, 3 lost\n"
    return part_report.missing({"libc10_cuda.so"}, ["libc10_cuda|libtorch"]) == [] and \
        part_report.missing({"libc10_cuda.so"}, ["libcublas"]) == ["libcublas"] and \
        part_report.lost(some) == "FAIL: 3 events lost" and part_report.lost("").startswith("FAIL")\
        and part_report.lost("PID 1, 20 events, none lost\n") == "" \
        and [part_report.judge(share, 0.1, 1) for share in (-1, 0.8, 0.95, 1.2)] == \
        ["met", "met", "not told apart", "MISSED"]


class Late(parked.Parked):
    """A process that is said to be parked half a second before it is."""

    def park(self):
        self.parking = threading.Timer(0.5, super().park)
        self.parking.start()
        return parked.MIB, 0.1, 0.1

    def do(self, line, seconds=90):
        if line == "touch":
            self.parking.join()
        return super().do(line, seconds)


def early_replies_are_noticed(build, folder):
    """Only the memory of the one that speaks too early is not there at its reply."""
    suite = base.Suite(folder, True, build, False)
    suite.build_library()
    verdicts = []
    for kind in parked.Parked, Late:
        part_cycle.Parked = kind
        part_cycle.large(suite, folder, parked.GIB // 8)
        verdicts.append([row.verdict for row in suite.rows if row.verdict.startswith("FAIL")])
        suite.rows.clear()
    part_cycle.Parked = parked.Parked
    return verdicts == [[], ["FAIL: memory stays"]]


def targets_are_judged():
    """Of a GPU; times of a simulated one mean nothing."""
    gpu, simulated = types.SimpleNamespace(simulate=None), types.SimpleNamespace(simulate="build")
    return [parked.on_target(gpu, seconds, 0.5) for seconds in (0.5, 0.51)] == \
        ["; target 0.5 s, met", "; target 0.5 s, MISSED"] and \
        parked.on_target(gpu, 2, 1.8, "out") == "; target out 1.8 s, MISSED" and \
        parked.on_target(gpu, 2, None) == parked.on_target(simulated, 2, 1) == ""


def main():
    failed = judged(report_is_judged(), "owners and lost events")
    failed += judged(targets_are_judged(), "targets of a park")
    part_beside.HANGS_S = 10
    with tempfile.TemporaryDirectory() as folder:
        stand_in(folder, STAND_IN)
        failed += judged(early_replies_are_noticed(sys.argv[1], folder), "early replies")
        failed += judged(cost_is_judged(sys.argv[1], folder), "what the recorder costs")
        for part, cases in CASES.items():
            for wrong, expected in cases.items():
                said = verdicts(sys.argv[1], folder, part, wrong)
                faults = [verdict for verdict in said if verdict.startswith("FAIL")]
                good = any(fault.startswith(expected) for fault in faults) if expected else \
                    said and not faults
                failed += judged(good, f"{part}, {wrong or 'nothing'} wrong: {said}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
