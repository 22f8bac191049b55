# SPDX-License-Identifier: BSD-2-Clause
"""The parts that time calls: pairs of malloc and free, single calls, a pipeline, a flush, the first
memory of a process. Their programs are bench_pairs.c and so on."""
import dataclasses
import os
import statistics
import time

import bench_peers
import bench_store
import part_flush
import suite as base

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (512, MIB, 64 * MIB)
THREADS = (1, 4, 16)
BUSY = (1, 64)
STATISTICS = ("mean", "p10", "p50", "p90", "p99", "max")
# The peers that launch kernels in ways of their own: each is asked what a kernel alone costs.
LAUNCHERS = (bench_peers.BARE, bench_peers.TORCH, bench_peers.SHIM, bench_peers.SHIM_SHARED,
             bench_peers.SHIM_DRIVER)


@dataclasses.dataclass(frozen=True)
class Case:
    work: str       # pair, launch, kernel: see bench_pairs.c
    size_bytes: int
    threads: int
    busy: int
    stream: str     # own, legacy; single: legacy, in a program that never creates a stream

    def request(self, suite):
        # Few enough kernels for the queue that the driver has for a stream.
        count = 20000 if self.work == "pair" else max(64, 1024 // self.threads)
        ns, batches = (2_000_000, 1) if suite.quick else (2_500_000, 2)
        if suite.simulate:
            count, batches = 40, 1
        stream = "own" if self.stream == "own" else "legacy"
        return (f"{self.work} {self.size_bytes} {self.threads} {self.busy} {stream} {batches} "
                f"{count} {ns}")


def idle_cases():
    """Nothing in flight but what the pairs launch: of a program with the legacy stream alone, and
    of one with more streams."""
    single, many = [], []
    for threads in THREADS:
        for size in SIZES:
            single += [Case(work, size, threads, 0, "single") for work in ("pair", "launch")]
            many += [Case("launch", size, threads, 0, "own"), Case("pair", size, threads, 0, "own"),
                     Case("launch", size, threads, 0, "legacy")]
        single.append(Case("kernel", 0, threads, 0, "single"))
        many += [Case("kernel", 0, threads, 0, stream) for stream in ("own", "legacy")]
    return single, many


def busy_cases():
    """With long kernels in flight on other streams."""
    for streams in BUSY:
        for threads in THREADS:
            for size in SIZES:
                yield Case("launch", size, threads, streams, "own")
            if threads in (1, 16):
                yield Case("launch", MIB, threads, streams, "legacy")
                yield Case("pair", MIB, threads, streams, "own")
                yield Case("kernel", 0, threads, streams, "legacy")
            yield Case("kernel", 0, threads, streams, "own")


def fewer(cases):
    """The ends of each scale, and one scale of threads."""
    return [case for case in cases if case.busy in (0, 1) and case.size_bytes != 64 * MIB and
            (case.threads in (1, 16) or case.stream == "own" and case.size_bytes in (0, MIB)
             and not case.busy)]


def ask_all(suite, processes, cases, figures, seconds):
    end = time.monotonic() + 1.15 * seconds + 1
    for _ in bench_peers.rounds(suite, seconds):
        for case in cases:
            for peer in list(processes):
                if case.work == "kernel" and peer not in LAUNCHERS or time.monotonic() > end:
                    continue
                try:
                    words = processes[peer].ask(case.request(suite)).split()
                    figures.setdefault((case, peer), []).append([float(word) for word in words])
                except RuntimeError as error:
                    suite.log(f"  pairs: {peer}, {case}: {error}")
                    processes.pop(peer).kill()


def played(suite, programs, plan):
    """Rows of the cases, [(cases, seconds)] one after the other, every peer in one process
    throughout."""
    figures = {}
    processes, missing = bench_peers.start_all(suite, programs, "pairs")
    for cases, seconds in plan:
        ask_all(suite, processes, cases, figures, seconds)
    bench_peers.close_all(processes)
    rows = bench_store.skipped("pairs", missing)
    for (case, peer), values in figures.items():
        columns = {name: statistics.median(value[i] for value in values)
                   for i, name in enumerate(STATISTICS) if i}
        rows.append(bench_store.row("pairs", case.work, peer, [value[0] for value in values], "ns",
                                    case.threads, case.size_bytes, case.busy, stream=case.stream,
                                    **columns))
    return rows


def pairs(suite, programs):
    # Those of one stream first: no stream has been created then.
    single, many = idle_cases()
    plan = [(fewer(single), 2), (fewer(many), 4)] if suite.quick else [(single, 10), (many, 16)]
    return played(suite, programs, plan)


def busy(suite, programs):
    cases = list(busy_cases())
    return played(suite, programs, [(fewer(cases), 6) if suite.quick else (cases, 38)])


CALLS = ("mem-info", "wild", "foreign", "launch", "pair")
ROUTES = (("static", "static runtime"), ("shared", "shared runtime"), ("driver", "driver API"))


def calls(suite, programs):
    peers = [((name, preload), bench_peers.Peer(name, route, "malloc", preload))
             for route, name in ROUTES for preload in (False, True)]
    times, missing = {}, {}
    # Processes anew in between: what one of them has of luck with its processor, it keeps.
    for _ in range(1 if suite.simulate or suite.quick else 3):
        processes, missing = bench_peers.start_all(suite, programs, "calls", peers)
        for _ in range(1 if suite.simulate else 3):
            for call in CALLS:
                for key, process in processes.items():
                    times.setdefault((call, key), []).append(float(process.ask(call)))
        bench_peers.close_all(processes)
    rows = bench_store.skipped("calls", {name: why for (name, _), why in missing.items()})
    return rows + [bench_store.row("calls", call, bench_peers.SHIM if preload else "bare", values,
                                   "ns", route=route)
                   for (call, (route, preload)), values in times.items()]


OVERLAP_BYTES, COMPUTE_NS = 8 * MIB, 150_000


def overlap(suite, programs):
    """The time over that of the same program on memory that it allocated before."""
    items, size = (8, 64 * KIB) if suite.simulate else (100 if suite.quick else 200, OVERLAP_BYTES)
    cases = [(streams, paced) for streams in (2, 4) for paced in (0, 1)]

    def ask(process, mode, case):
        return int(process.ask(f"{mode} {case[0]} {case[1]} {items} {size} {COMPUTE_NS}"))
    processes, missing = bench_peers.start_all(suite, programs, "overlap")
    rows, times = bench_store.skipped("overlap", missing), {}
    if not suite.simulate:    # the first time, memory is new
        for process in processes.values():
            for case in cases:
                ask(process, "alloc", case)
    for _ in bench_peers.rounds(suite, 5 if suite.quick else 20, 9):
        for case in cases:
            for peer, process in processes.items():
                times.setdefault((case, peer), []).append([ask(process, mode, case)
                                                           for mode in ("fixed", "alloc")])
    bench_peers.close_all(processes)
    for ((streams, paced), peer), values in times.items():
        fixed, alloc = zip(*values)
        rows.append(bench_store.row("overlap", "paced" if paced else "ahead", peer,
                                    [mine / its for its, mine in values], "ratio", 1,
                                    OVERLAP_BYTES, streams, alloc_ns=statistics.median(alloc),
                                    fixed_ns=statistics.median(fixed)))
    return rows


COLD_TOTALS = (10 * GIB, 40 * GIB, GIB)
COLD_SIZES = (GIB, 64 * MIB, 2 * MIB, 256 * KIB)
# The others than bare and shim only here.
COLD_COMMON = (10 * GIB, 64 * MIB)


def cold_plan(suite):
    """(total, size, peer) in the order of running, a round."""
    if suite.simulate:
        return [(64 * MIB, size, peer) for size in (32 * MIB, 256 * KIB)
                for peer in bench_peers.PEERS]
    main = (bench_peers.BARE, bench_peers.SHIM)
    return [(total, size, peer) for total in COLD_TOTALS[:1 if suite.quick else None]
            for size in COLD_SIZES for peer in bench_peers.PEERS if peer.name in main] + \
        [(*COLD_COMMON, peer) for peer in bench_peers.PEERS
         if peer.route in ("static", "torch") and peer.name not in main]


def cold(suite, programs):
    """Each case in a process of its own."""
    rows, times, missing = [], {}, {}
    begin, seconds = time.monotonic(), 8 if suite.quick else 40
    for _ in bench_peers.rounds(suite, seconds):
        for total, size, peer in cold_plan(suite):
            if time.monotonic() - begin > seconds:
                continue
            try:
                process = bench_peers.start(suite, programs, peer, "cold")
                words = process.ask(f"{total} {size}").split()
                process.close()
                times.setdefault((total, size, peer.name), []).append([int(word) for word in words])
            except (base.Skip, RuntimeError) as reason:
                missing[peer.name] = str(reason)
    for (total, size, peer), values in times.items():
        take, free, p50, p99, worst = zip(*values)
        rows.append(bench_store.row("cold", "take", peer, take, "ns", 1, size, total_bytes=total,
                                    p50=statistics.median(p50), p99=statistics.median(p99),
                                    max=statistics.median(worst)))
        rows.append(bench_store.row("cold", "free", peer, free, "ns", 1, size, total_bytes=total))
    return rows + bench_store.skipped("cold", missing)


# Whose cache can be emptied; count and size of the blocks that were idle.
FLUSHED = (bench_peers.SHIM, bench_peers.ASYNC, bench_peers.CUB, bench_peers.TORCH,
           bench_peers.EXPANDABLE)
LOADS = ((512, 64 * MIB), (32, GIB), (4096, 8 * MIB))


def flush_once(suite, process, observer, load):
    """One round: idle bytes, what came free, when it was visible; launches quiet and meanwhile. The
    observer looks on without a pause, which the launches may feel: so not in the round in which
    they are looked at."""
    count, size = load
    idle = count * size
    window_ns = 20_000_000 if suite.simulate else 200_000_000
    process.ask(f"take {count} {size}")
    quiet = process.ask(f"quiet {window_ns}").split()
    before = observer.free_bytes()
    loud = process.ask(f"trim {window_ns}").split()
    after = observer.settled(1.0)
    process.ask(f"take {count} {size}")
    observer.say(f"until {before + idle - idle // 64}")
    answer = process.ask(f"trim {window_ns}").split()
    free, seen_ns = (int(word) for word in observer.hear().split())
    return {"released": after - before,
            "visible": [max(0, seen_ns - int(answer[0]))] * (free >= before + idle - idle // 64),
            "nothing else": [int(word) for word in quiet[1:]],
            "meanwhile": [int(word) for word in loud[2:]]}


def flushed(suite, programs, peer, loads):
    """Yields each load with the figures of its rounds."""
    # Memory is counted over process bounds on the simulated driver only if both name the device.
    env = (("SIM_SHARED", f"gpucache-bench-{os.getpid()}"), ("SIM_POLL_NS", "1000000")) \
        if suite.simulate else ()
    observer = part_flush.Observer(suite, dict(suite.bare_env, **dict(env)))
    process = None
    try:
        process = bench_peers.start(suite, programs, peer, "flush", env)
        for load in loads:
            rounds = 1 if suite.simulate else 2 if suite.quick or not peer.preload else 4
            yield load, [flush_once(suite, process, observer, load) for _ in range(rounds)]
        process.close()
    finally:
        observer.end()
        if process:
            process.kill()


def flush_rows(peer, load, values):
    common = dict(size_bytes=load[1], count=load[0])
    seen = [ns for value in values for ns in value["visible"]]
    if seen:
        yield bench_store.row("flush", "visible", peer, seen, "ns", **common)
    yield bench_store.row("flush", "released", peer, [value["released"] for value in values],
                          "bytes", **common)
    for when in ("nothing else", "meanwhile"):
        p50, p99, p999, worst, _ = zip(*(value[when] for value in values))
        yield bench_store.row("flush", f"slowest launch, {when}", peer, worst, "ns", **common,
                              p50=max(p50), p99=max(p99), p999=max(p999))


def flush(suite, programs):
    rows, missing = [], {}
    for peer in bench_peers.PEERS:
        if peer.name not in (FLUSHED[:2] if suite.quick and not suite.simulate else FLUSHED):
            continue
        # The others with one load: they are here for comparison.
        loads = LOADS if peer.preload and not suite.quick else LOADS[:1]
        try:
            for load, values in flushed(suite, programs, peer,
                                        ((8, 32 * MIB),) if suite.simulate else loads):
                rows += flush_rows(peer.name, load, values)
        except base.Skip as reason:
            missing[peer.name] = str(reason)
    return rows + bench_store.skipped("flush", missing)
