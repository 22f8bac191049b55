# SPDX-License-Identifier: BSD-2-Clause
"""Copies and kernels that overlap on two and four streams, with allocations inside. The figure
is the time over that of the same program on memory that it allocated before."""
import statistics

import bench_peers
import bench_store

MIB = 1 << 20
STREAMS = (2, 4)
SIZE = 8 * MIB
COMPUTE_NS = 150_000


def request(suite, mode, streams, paced):
    items = 8 if suite.simulate else 100 if suite.quick else 200
    size = 64 << 10 if suite.simulate else SIZE
    return f"{mode} {streams} {int(paced)} {items} {size} {COMPUTE_NS}"


def overlap(suite, programs):
    processes, missing = bench_peers.start_all(suite, programs, "overlap")
    rows, times = bench_store.skipped("overlap", missing), {}
    cases = [(streams, paced) for streams in STREAMS for paced in (False, True)]
    if not suite.simulate:    # the first time, memory is new
        for peer, process in processes.items():
            for case in cases:
                process.ask(request(suite, "alloc", *case))
    for _ in bench_peers.rounds(suite, 5 if suite.quick else 20, 9):
        for case in cases:
            for peer, process in processes.items():
                both = [int(process.ask(request(suite, mode, *case)))
                        for mode in ("fixed", "alloc")]
                times.setdefault((case, peer), []).append(both)
    bench_peers.close_all(processes)
    for ((streams, paced), peer), values in times.items():
        rows.append(bench_store.row("overlap", "paced" if paced else "ahead", peer,
                                    [alloc / fixed for fixed, alloc in values], "ratio", 1, SIZE,
                                    streams,
                                    alloc_ns=statistics.median(alloc for _, alloc in values),
                                    fixed_ns=statistics.median(fixed for fixed, _ in values)))
    return rows
