# SPDX-License-Identifier: BSD-2-Clause
"""Pairs of malloc and free: idle, with a kernel in between, with streams busy, from several
threads."""
import dataclasses
import statistics
import time

import bench_peers
import bench_store

KIB, MIB = 1 << 10, 1 << 20
SIZES = (512, MIB, 64 * MIB)
THREADS = (1, 2, 4, 8, 16)
BUSY = (1, 8, 64)
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
        launches = max(64, 1024 // self.threads)
        pairs = 20000 if self.work == "pair" else launches
        ns, batches = 2_500_000, 2
        if suite.quick:
            ns, batches = 2_000_000, 1
        if suite.simulate:
            pairs, batches = 40, 1
        stream = "own" if self.stream == "own" else "legacy"
        return (f"{self.work} {self.size_bytes} {self.threads} {self.busy} {stream} {batches} "
                f"{pairs} {ns}")


def idle_cases():
    """Nothing in flight but what the pairs launch: of a program with the legacy stream alone, and
    of one with more streams."""
    single, many = [], []
    for threads in THREADS:
        for size in SIZES:
            single += [Case("pair", size, threads, 0, "single"),
                       Case("launch", size, threads, 0, "single")]
            many += [Case("launch", size, threads, 0, "own"), Case("pair", size, threads, 0, "own"),
                     Case("launch", size, threads, 0, "legacy")]
        single.append(Case("kernel", 0, threads, 0, "single"))
        many += [Case("kernel", 0, threads, 0, "own"), Case("kernel", 0, threads, 0, "legacy")]
    return single, many


def busy_cases():
    """With long kernels in flight on other streams."""
    for busy in BUSY:
        for threads in THREADS:
            for size in SIZES if threads in (1, 4, 16) else (MIB,):
                yield Case("launch", size, threads, busy, "own")
            if threads in (1, 16):
                yield Case("launch", MIB, threads, busy, "legacy")
                yield Case("pair", MIB, threads, busy, "own")
                yield Case("kernel", 0, threads, busy, "legacy")
            yield Case("kernel", 0, threads, busy, "own")


def quick(cases):
    """The ends of each scale, and one scale of threads."""
    return [case for case in cases if case.busy in (0, 8) and case.size_bytes != 64 * MIB and
            (case.threads in (1, 16) or case.stream == "own" and case.size_bytes in (0, MIB)
             and not case.busy)]


def measure(suite, processes, cases, figures, seconds):
    end = time.monotonic() + 1.15 * seconds + 1
    for _ in bench_peers.rounds(suite, seconds):
        for case in cases:
            for peer in list(processes):
                if case.work == "kernel" and peer not in LAUNCHERS or time.monotonic() > end:
                    continue
                try:
                    answer = processes[peer].ask(case.request(suite))
                    figures.setdefault((case, peer),
                                       []).append([float(word) for word in answer.split()])
                except RuntimeError as error:
                    suite.log(f"  pairs: {peer}, {case}: {error}")
                    processes.pop(peer).kill()


def played(suite, programs, plan):
    """Rows of the cases, [(cases, seconds)] one after the other, every peer in one process
    throughout."""
    begin, figures = time.monotonic(), {}
    processes, missing = bench_peers.start_all(suite, programs, "pairs")
    rows = bench_store.skipped("pairs", missing)
    suite.log(f"  pairs: started after {time.monotonic() - begin:.1f} s")
    for cases, seconds in plan:
        measure(suite, processes, cases, figures, seconds)
        suite.log(f"  pairs: {len(cases)} cases done after {time.monotonic() - begin:.1f} s")
    bench_peers.close_all(processes)
    for (case, peer), values in figures.items():
        columns = {name: statistics.median(value[i] for value in values)
                   for i, name in enumerate(STATISTICS) if i}
        rows.append(bench_store.row("pairs", case.work, peer, [value[0] for value in values], "ns",
                                    case.threads,
                                    case.size_bytes, case.busy, stream=case.stream, **columns))
    return rows


def pairs(suite, programs):
    # Those of one stream first: no stream has been created then.
    single, many = idle_cases()
    if suite.quick:
        return played(suite, programs, [(quick(single), 2), (quick(many), 4)])
    return played(suite, programs, [(single, 14), (many, 24)])


def busy(suite, programs):
    cases = list(busy_cases())
    return played(suite, programs, [(quick(cases), 6) if suite.quick else (cases, 38)])
