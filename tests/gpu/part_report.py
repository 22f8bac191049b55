# SPDX-License-Identifier: BSD-2-Clause
"""Traces of real programs, and what gpucache report says of them: which libraries asked for memory,
and what a program with faults that are known does wrong. What the recorder costs a training. The
pages go to the folder that TEST_PAGES names."""
import collections
import concurrent.futures
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time

import bench_parts
import bench_peers
import bench_store
import part_frameworks as frameworks
import part_lend
import part_libraries
import suite as base
from parked import MIB, Parked, ending, one_gpu, program
from trainer import CACHE_OFF, EXACT

PAGES_MOST, PAGE_BYTES = 6, 4 << 20
PARKS = 2  # the text has the last ten things that happened, flushes among them
# What a trace has of each allocation, by the value of TRACE_STACKS, and how many percent of a
# training it may cost.
LEVELS = {"owner": ("0", 0.3), "stacks": ("16", 1.0), "Python frames": ("16,python", 2.0)}
PEERS = ("PyTorch", "memray")  # work_torch.py has their recorders
EVENT_NS = 12  # at most, in a pair
SETTLES = 2  # steps of each turn that do not count: a recorder meets call paths for the first time
ROUNDS, QUICK_ROUNDS = 120, 25  # of pairs
LOST = re.compile(r"events, (none|[\d,.]+) lost")
GROWS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# What the report of report_program.c must say.
FAULTS = {
    "leak": r"Does it leak\?\s+leak_a_block grew by ",
    "churn": r"Freed and asked for again\n.*\n *960 .* churn_a_block ",
    "cause of the peak": r"256 MiB of it, \d+%, were asked for by make_the_peak \(",
    "live at the end": r"Live at the end\n.*\n *96 MiB +96 +leak_a_block .*\n.*hold_the_weights",
}


class Recorder:
    """The tool, and the traces and pages that it makes."""

    def __init__(self, suite):
        self.suite = suite
        self.tool = [sys.executable, os.path.join(os.path.dirname(os.path.dirname(suite.lib)),
                                                  "scripts", "gpucache")]
        self.folder = os.path.join(suite.build, "traces")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)

    def path(self, label, kind):
        return os.path.join(self.folder, f"{label}.{kind}")

    def record(self, label, command, env, timeout=90):
        """The trace of a program under gpucache run --trace. Raises RuntimeError if that fails."""
        path = self.path(label, "gct")
        done = self.suite.run([*self.tool, "run", "--trace", path, "--", *command],
                              dict(self.suite.bare_env, **env), timeout)
        if done.rc == base.EXIT_SKIP:
            raise base.Skip((done.out.strip() or done.err.strip() or "skipped").splitlines()[-1])
        if done.rc != 0 or not os.path.exists(path):
            raise RuntimeError(f"exit {done.rc} under run --trace: {frameworks.last_line(done)}")
        return path

    def report(self, label, *traces):
        """Makes the page and returns the text, and the libraries that had memory: {name: the most
        bytes}. The page is of all traces, the rest of the first."""
        made = {kind: self.path(label, kind) for kind in ("txt", "json", "html")}

        def make(kind):
            its = traces if kind == "html" else traces[:1]
            done = self.suite.run([*self.tool, "report", *its, "-o", made[kind]],
                                  self.suite.bare_env, 90)
            if done.rc != 0:
                raise RuntimeError(f"report {kind}: exit {done.rc}: {frameworks.last_line(done)}")
        with concurrent.futures.ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(make, made))
        with open(made["txt"], encoding="utf-8") as file:
            text = file.read()
        rows = frameworks.read_json(made["json"]).get("traceEvents", [])
        owners = collections.Counter()
        for row in rows:
            if row["name"] == "live by library":
                owners |= collections.Counter(row["args"])
        return text, owners

    def copy_pages(self):
        folder = os.environ.get("TEST_PAGES")
        names = [f"{label}.html" for label in ("faults", "torch-cache-on", "torch-cache-off", "jax",
                                               "lend", "parked", "cublas", "nccl")]
        pages = [os.path.join(self.folder, name) for name in names]
        pages = [page for page in pages if os.path.exists(page)]
        small = [page for page in pages if os.path.getsize(page) < PAGE_BYTES][:PAGES_MOST]
        if folder:
            os.makedirs(folder, exist_ok=True)
            for page in small:
                shutil.copy(page, folder)
        most = max(map(os.path.getsize, pages), default=0)
        self.suite.row("pages", "", f"{len(pages)}, at most {most >> 10} KiB", "",
                       f"ok: {len(small)} copied" if folder else "ok: TEST_PAGES names no folder")


def missing(owners, wanted):
    """What of this had no memory. A name with bars: one of these."""
    return [name for name in wanted if not any(owner.startswith(part) for owner in owners
                                               for part in name.split("|"))]


def lost(text):
    found = LOST.search(text)
    return f"FAIL: {found[1]} events lost" if found and found[1] != "none" else \
        "" if found else "FAIL: the report has no count of events"


def note(suite, name, text, owners, wanted):
    """A row for a report: its libraries, and that no event is missing."""
    events = re.search(r"([\d,.]+) events", text)
    gone = missing(owners, wanted)
    verdict = lost(text) or (f"FAIL: no memory of {', '.join(gone)}, but of {sorted(owners)}"
                             if gone else f"ok: {', '.join(sorted(owners))}")
    suite.row(name, "", f"{events[1] if events else 'no'} events", "", verdict)


# --- programs

def viewed(suite, recorder, python, label):
    """PyTorch's own viewer reads what the report makes of the trace. It counts what each segment
    has itself, and fails where that is not its size."""
    made = recorder.path(label, "pickle")
    done = suite.run([*recorder.tool, "report", recorder.path(label, "gct"), "-o", made],
                     suite.bare_env, 90)
    if done.rc == 0:
        done = suite.run([python, frameworks.script("work_viz.py"), made], suite.bare_env, 90)
    suite.row(f"torch.cuda._memory_viz of {label}", verdict=f"ok: {done.out.strip()}"
              if done.rc == 0 else f"FAIL: {frameworks.last_line(done)}")


def faults(suite, recorder):
    command = [suite.compile("report_program", ["report_program.c"], "-g", "-fno-inline",
                             "-fno-optimize-sibling-calls", shared_cudart=True)]
    text, owners = recorder.report("faults", recorder.record("faults", command, {}))
    note(suite, "a program with faults", text, owners, ["report_program"])
    for name, wanted in FAULTS.items():
        suite.row(f"a program with faults: {name}", verdict="ok" if re.search(wanted, text)
                  else f"FAIL: the report does not say /{wanted}/")


def torch(suite, recorder, cache, env):
    python = frameworks.python_with(suite, "torch")
    command = [python, frameworks.script("work_torch.py"), "/dev/null", "--steps", "8",
               "--repeats", "1", "gpt"]
    label = f"torch-cache-{cache}"
    text, owners = recorder.report(label, recorder.record(label, command, {**EXACT, **env}))
    note(suite, f"PyTorch, cache {cache}", text, owners,
         ["libc10_cuda.so|libtorch_cuda.so", "libcublas"])
    viewed(suite, recorder, python, label)


def jax(suite, recorder):
    command = frameworks.package(suite, "jax", "/dev/null", 60)
    text, owners = recorder.report("jax", recorder.record("jax", command, GROWS))
    note(suite, "JAX", text, owners, ["xla_|libjax|jaxlib|pjrt"])


def library(suite, recorder, name, env, kind=""):
    """Returns the libraries that had memory. kind: of a second row for the library."""
    if suite.simulate:
        raise base.Skip("NVIDIA's libraries need a real GPU")
    command = [part_libraries.build_c(suite, name), "/dev/null"]
    label = f"{name}-{kind}" if kind else name
    text, owners = recorder.report(label, recorder.record(label, command, env))
    note(suite, f"a program on {label.replace('-', ', ')}", text, owners,
         [f"lib{name}.so", f"lib_{name}"])
    return owners


def nccl(suite, recorder):
    """The same program twice, one after the other: they need the memory of one. By default NCCL
    has its memory by cuMemCreate where it can, beside the pool. Then it may make fewer buffers, but
    what it makes is its own in the report."""
    env = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
    both = (library(suite, recorder, "nccl", {**env, "NCCL_CUMEM_ENABLE": "0"}),
            library(suite, recorder, "nccl", env, "cuMem"))
    most = [sum(size for owner, size in owners.items() if owner.startswith("libnccl.so"))
            for owners in both]
    suite.row("memory of libnccl, cudaMalloc and cuMem", f"{most[0] / MIB:.1f} MiB",
              f"{most[1] / MIB:.1f} MiB", "", "ok" if 4 * most[1] >= most[0] else
              "FAIL: most of cuMem is not there")


def lend(suite, recorder):
    """Two processes in turns, each with 60 % of the GPU."""
    path = recorder.path("lend-%p", "gct")
    with part_lend.workers(suite, sys.executable, "driver", 2, True,
                           {"GPUCACHE_TRACE": path}) as there:
        times = part_lend.take_turns(there, part_lend.share_of(there[0], part_lend.TWO), 1)
        traces = [path.replace("%p", str(worker.process.pid)) for worker in there]
    first, _ = recorder.report("lend", *traces)
    second, _ = recorder.report("lend-second", *traces[::-1])
    said = [f"the {which} process does not say {words!r}" for which, text in (("first", first),
                                                                              ("second", second))
            for words in ("other processes were asked", "lent ") if words not in text]
    with open(recorder.path("lend", "html"), encoding="utf-8") as file:
        page = file.read()
    said += [f"the page has no PID {worker.process.pid}" for worker in there
             if str(worker.process.pid) not in page]
    said += [] if times else ["a process ran out of memory"]
    suite.row("two processes that lend", verdict=lost(first) or lost(second) or (
        f"FAIL: {'; '.join(said)}" if said else "ok: both say what they asked for and lent"))


def parked(suite, recorder):
    path = recorder.path("parked", "gct")
    with one_gpu(suite) as env, tempfile.TemporaryDirectory() as folder:
        with ending(Parked(suite, folder, [program(suite)], "started", GPUCACHE_TRACE=path,
                           **env)) as (p,):
            p.do("fill 64")
            for _ in range(PARKS):
                p.park()
                p.do("touch")
            time.sleep(0.5)  # the wake is recorded once the program has gone on
            p.do("end")
    text, _ = recorder.report("parked", path)
    counts = [len(re.findall(words, text)) for words in ("went to the host", "came back from the")]
    suite.row("a process that is parked", "", f"{counts[0]} out, {counts[1]} back", "",
              lost(text) or ("ok" if counts == [PARKS, PARKS] else
                             f"FAIL: {PARKS} of each were made"))


# --- what it costs

def recorded(p, recorder, way, name, line):
    """What it answers while it is recorded in this way. None: not."""
    trace = recorder.path(f"cost-{name}", "gct") if way else "none"
    if way in LEVELS:
        p.set(f"TRACE_STACKS={LEVELS[way][0]}")
        p.set(f"TRACE={trace}")
        time.sleep(0.02)
    said = p.do(f"{line} {way} {trace}" if way in PEERS else line)
    if way in LEVELS:
        p.set("TRACE=none")
    if os.path.exists(trace):
        os.remove(trace)
    return said


def record_turn(p, recorder, way, number):
    """One turn of the training."""
    said = recorded(p, recorder, way, number, "go")
    if said != "turn":
        raise base.Skip(said) if way in PEERS else RuntimeError("the training does not go on")


def event_ns(p, recorder, ways, rounds):
    """What an event costs: a pair of an allocation and a free has two. Each round has a pair of
    each way, and one without a recorder beside it. {way: (ns, error)}"""
    more = {way: [] for way in ways}
    for number in range(rounds):
        off = float(recorded(p, recorder, None, number, "pairs"))
        for way, found in more.items():
            found.append((float(recorded(p, recorder, way, number, "pairs")) - off) / 2)
    return {way: (statistics.median(found), bench_store.median_error(found))
            for way, found in more.items()}


def judge(share, error, most):
    """Of a value that was measured with an error, both as the most is."""
    if share + error <= most:
        return "met"
    return "MISSED" if share - error > most else "not told apart"


def pair_of(p, path, request):
    """The time of a pair of malloc and free, recorded to this path or not."""
    if path:
        p.set(f"TRACE={path}")
        time.sleep(0.02)
    taken = float(p.do(request).split()[0])
    if path:
        p.set("TRACE=none")
        os.remove(path)
    return taken


def pairs(suite, recorder):
    """What an event costs where a program does nothing but malloc and free: the least that it can.
    The file is on the disk and in memory."""
    command = [bench_peers.Programs(suite).path("driver"), "pairs", "malloc"]
    request = bench_parts.Case("pair", MIB, 1, 0, "legacy").request(suite)
    rounds = QUICK_ROUNDS if suite.quick or suite.simulate else ROUNDS
    for place, path in ("disk", recorder.path("pair", "gct")), ("/dev/shm", "/dev/shm/pair.gct"):
        with tempfile.TemporaryDirectory() as folder, \
                ending(Parked(suite, folder, command, before=request)) as (p,):
            p.set("TRACE_STACKS=0")
            offs, more = [], []
            for _ in range(rounds):
                offs.append(pair_of(p, None, request))
                more.append((pair_of(p, path, request) - offs[-1]) / 2)
        ns, error = statistics.median(more), bench_store.median_error(more)
        suite.row(f"an event of a pair, owner, {place}", base.nanoseconds(statistics.median(offs)),
                  f"{ns:.1f} ns", "", f"measured: error {error:.1f} ns; target {EVENT_NS} ns, "
                  f"{judge(ns, error, EVENT_NS)}")


def events_made(p):
    """Allocations and frees of the process, which come to the same number."""
    p.ask("look")
    return 2 * sum(pool["num_allocs"] for pool in p.page.state()[0]["pools"])


def turns_of(p, recorder, ways, pairs):
    """Each way by turns with off, within one process: {way: [(off, on), ..]}, a turn as the seconds
    of each of its steps; and why others are missing. The first turn was made before. The two turns
    of a pair follow each other, because the speed of a machine drifts: off on, on off, .."""
    missing = {}
    turns = []
    for number in range(pairs):
        for way in ways:
            for is_on in (number % 2 == 1, number % 2 == 0):
                if way in missing:
                    continue
                try:
                    record_turn(p, recorder, way if is_on else None, 2 * number + is_on)
                    turns.append((way, is_on))
                except base.Skip as reason:
                    missing[way] = str(reason)
    p.say("end")
    while not (line := p.hear()).startswith("done "):
        pass
    steps = json.loads(line.removeprefix("done "))["step_seconds"][1:]
    taken = {way: ([], []) for way in ways if way not in missing}
    for (way, is_on), value in zip(turns, steps, strict=True):
        taken.get(way, ([], []))[is_on].append(value)
    return {way: list(zip(*both)) for way, both in taken.items()}, missing


def usual_seconds(turn):
    """Of a step: some take long by chance."""
    return statistics.median(turn[SETTLES:])


def on_of_off(taken):
    """How many percent more time a step takes, and the standard error."""
    more = [(usual_seconds(on) / usual_seconds(off) - 1) * 100 for off, on in taken]
    return statistics.median(more), bench_store.median_error(more)


def cost(suite, recorder, cache, env, ways, pairs, steps):
    command = [frameworks.python_with(suite, "torch"), frameworks.script("work_torch.py"),
               "/dev/null", "--turns", "--warm", "2", "--steps", str(steps), "gpt"]
    with tempfile.TemporaryDirectory() as folder:
        with ending(Parked(suite, folder, command, **EXACT, **env)) as (p,):
            before = events_made(p)
            p.do("go")
            events = (events_made(p) - before) / steps
            each = event_ns(p, recorder, [way for way in ways if way in LEVELS],
                            QUICK_ROUNDS if suite.quick else ROUNDS)
            taken, missing = turns_of(p, recorder, ways, pairs)
    step_ns = statistics.median(usual_seconds(off) for both in taken.values()
                                for off, _ in both) * 1e9
    for way in ways:
        name = f"PyTorch, cache {cache}: recorded on, of off: " + (
            f"{way}'s own recorder" if way in PEERS else way)
        if way in missing:
            suite.row(name, verdict=f"skip: {missing[way]}")
            continue
        more, error = on_of_off(taken[way])
        suite.row(name, "", f"{more:+.2f} %", "",
                  f"measured: error {error:.2f} %, {pairs} pairs of {steps} steps")
        if way in LEVELS:
            ns, error = each[way]
            share, doubt = (value * events / step_ns * 100 for value in each[way])
            most = LEVELS[way][1]
            suite.row(f"{name}: an event", "", f"{ns:.0f} ns", "",
                      f"measured: error {error:.0f} ns; {events:,.0f} events a step are {share:.2f}"
                      f" % of {step_ns / 1e6:.1f} ms; target {most} %, "
                      f"{judge(share, doubt, most)}")


def report(suite):
    recorder = Recorder(suite)
    frameworks.side_by_side(suite, {
        "a program with faults": lambda: faults(suite, recorder),
        "PyTorch, cache on": lambda: torch(suite, recorder, "on", {}),
        "PyTorch, cache off": lambda: torch(suite, recorder, "off", CACHE_OFF),
        "JAX": lambda: jax(suite, recorder),
        "a program on cublas": lambda: library(suite, recorder, "cublas", {}),
        "a program on nccl": lambda: nccl(suite, recorder),
        "a process that is parked": lambda: parked(suite, recorder)})
    frameworks.guarded(suite, "two processes that lend", lambda: lend(suite, recorder))
    frameworks.guarded(suite, "an event of a pair", lambda: pairs(suite, recorder))
    frameworks.guarded(suite, "what the recorder costs, cache off", lambda: cost(
        suite, recorder, "off", CACHE_OFF, tuple(LEVELS), *((8, 10) if suite.quick else (36, 20))))
    if not suite.quick:
        frameworks.guarded(suite, "what the recorder costs, cache on", lambda: cost(
            suite, recorder, "on", {}, ("Python frames", *PEERS), 12, 20))
    recorder.copy_pages()
