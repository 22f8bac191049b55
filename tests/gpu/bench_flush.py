# SPDX-License-Identifier: BSD-2-Clause
"""Idle memory is given back while a thread launches kernels. The figures say when another
process sees it free, and how long launches take meanwhile and with nothing else going on."""
import os

import bench_peers
import bench_store
import part_flush
import suite as base

MIB, GIB = 1 << 20, 1 << 30
# Whose cache can be emptied.
PEERS = (bench_peers.SHIM, bench_peers.ASYNC, bench_peers.CUB, bench_peers.TORCH,
         bench_peers.EXPANDABLE)
# Count and size of the blocks that were idle.
LOADS = ((32, GIB), (512, 64 * MIB), (4096, 8 * MIB))


def play(suite, process, observer, load):
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
    observer.ask(f"until {before + idle - idle // 64}")
    answer = process.ask(f"trim {window_ns}").split()
    free, seen_ns = (int(word) for word in observer.answer().split())
    visible_ns = max(0, seen_ns - int(answer[0])) if free >= before + idle - idle // 64 else None
    return {"released": after - before, "visible_ns": visible_ns, "idle": idle,
            "quiet": [int(word) for word in quiet[1:]], "loud": [int(word) for word in loud[2:]]}


def measured(suite, programs, peer, loads):
    # Memory is counted over process bounds on the simulated driver only if both name the device.
    env = (("SIM_SHARED", f"gpucache-bench-{os.getpid()}"), ("SIM_POLL_NS", "1000000")) \
        if suite.simulate else ()
    observer = part_flush.Observer(suite, dict(suite.bare_env, **dict(env)))
    process = None
    try:
        process = bench_peers.start(suite, programs, peer, "flush", env)
        for load in loads:
            rounds = 1 if suite.simulate else 2 if suite.quick or not peer.preload else 4
            values = [play(suite, process, observer, load) for _ in range(rounds)]
            yield load, values
        process.close()
    finally:
        observer.close()
        if process:
            process.kill()


def flush(suite, programs):
    rows, missing = [], {}
    loads = LOADS if not suite.quick else LOADS[1:2]
    if suite.simulate:
        loads = ((8, 32 * MIB),)
    for peer in bench_peers.PEERS:
        if peer.name not in (PEERS[:2] if suite.quick and not suite.simulate else PEERS):
            continue
        # The others with one load: they are here for comparison.
        mine = loads if peer.preload or len(loads) == 1 else LOADS[1:2]
        try:
            for (count, size), values in measured(suite, programs, peer, mine):
                common = dict(size_bytes=size, count=count)
                seen = [value["visible_ns"] for value in values if value["visible_ns"] is not None]
                if seen:
                    rows.append(bench_store.row("flush", "visible", peer.name, seen, "ns",
                                                **common))
                rows.append(bench_store.row("flush", "released", peer.name,
                                            [value["released"] for value in values], "bytes",
                                            **common))
                for name in ("quiet", "loud"):
                    p50, p99, p999, worst, _ = zip(*(value[name] for value in values))
                    label = "slowest launch, " + ("nothing else" if name == "quiet"
                                                  else "meanwhile")
                    rows.append(bench_store.row("flush", label, peer.name, list(worst), "ns",
                                                **common,
                                                p50=max(p50), p99=max(p99), p999=max(p999)))
        except base.Skip as reason:
            missing[peer.name] = str(reason)
    return rows + bench_store.skipped("flush", missing)
