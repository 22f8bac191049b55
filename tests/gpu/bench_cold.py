# SPDX-License-Identifier: BSD-2-Clause
"""The first memory of a process: a total in blocks of one size, each case in a process of its
own."""
import time

import bench_peers
import bench_store
import suite as base

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TOTALS = (10 * GIB, 40 * GIB, GIB)
SIZES = (GIB, 64 * MIB, 2 * MIB, 256 * KIB)
# The others than bare and shim only here.
COMMON = (10 * GIB, 64 * MIB)


def plan(suite):
    """(total, size, peer) in the order of running, a round."""
    if suite.simulate:
        return [(64 * MIB, size, peer) for size in (32 * MIB, 256 * KIB)
                for peer in bench_peers.PEERS]
    pairs = [(total, size) for total in (TOTALS[:1] if suite.quick else TOTALS) for size in SIZES]
    main = [(total, size, peer) for total, size in pairs for peer in bench_peers.PEERS
            if peer.name in (bench_peers.BARE, bench_peers.SHIM)]
    return main + [(*COMMON, peer) for peer in bench_peers.PEERS
                   if peer.route in ("static", "torch")
                   and peer.name not in (bench_peers.BARE, bench_peers.SHIM)]


def cold(suite, programs):
    rows, times, missing = [], {}, {}
    begin, seconds = time.monotonic(), 8 if suite.quick else 40
    for number in bench_peers.rounds(suite, seconds):
        for total, size, peer in plan(suite):
            if time.monotonic() - begin > seconds:
                suite.log(f"  cold: no time for {total >> 30} GiB in {size >> 10} KiB, "
                          f"{peer.name}, round {number + 1}")
                continue
            try:
                program = programs.path("cold", peer.route)
            except base.Skip as reason:
                missing[peer.name] = str(reason)
                continue
            env = suite.shim_env() if peer.preload else suite.bare_env
            result = suite.run([program, peer.allocator, str(total), str(size)],
                               dict(env, **dict(peer.env)))
            if result.rc:
                missing[peer.name] = (result.err.strip().splitlines() or ["no message"])[-1]
                continue
            times.setdefault((total, size, peer.name),
                             []).append([int(word) for word in result.out.split()])
            suite.log(f"  cold: {total >> 30} GiB in {size >> 10} KiB, {peer.name}: "
                      f"{result.out.strip()}, {result.seconds:.2f} s")
    for (total, size, peer), values in times.items():
        take, free, p50, p99, worst = (sorted(column) for column in zip(*values))
        middle = len(values) // 2
        rows.append(bench_store.row("cold", "take", peer, take, "ns", 1, size, total_bytes=total,
                                    p50=p50[middle], p99=p99[middle], max=worst[middle]))
        rows.append(bench_store.row("cold", "free", peer, free, "ns", 1, size, total_bytes=total))
    return rows + bench_store.skipped("cold", missing)
