# SPDX-License-Identifier: BSD-2-Clause
"""How much is reserved for what programs with random shapes hold (work_frugal.py), and what time
they take, beside PyTorch's own allocators. Each figure is of a process of its own; those of all
peers take turns with the same shapes. Each peer forks its processes from one that has imported its
packages."""
import itertools
import statistics

import bench_store
import part_frameworks as frameworks
import part_torch
import suite as base
from bench_text import amount, duration
from trainer import CACHE_OFF, Peer, train

NATIVE, EXPANDABLE, SHIM = part_torch.NATIVE, part_torch.NATIVE_EXPANDABLE, part_torch.SHIM
ORDER = Peer("gpucache, REUSE=order", {**CACHE_OFF, "GPUCACHE_REUSE": "order"}, True)
PEERS = (NATIVE, EXPANDABLE, SHIM, ORDER)
# The most that may be reserved for a byte that is live, in every process.
BOUNDS = {"bert": 1.05, "graphs": 1.05, "mask_rcnn": 1.05, "gpt2": 1.05, "vit": 1.3}
PROCESSES, QUICK_PROCESSES = 8, 2
STEPS, WARM = 48, 16
PACKAGES = ("torch", "torchvision", "transformers", "torch_geometric")
# What the pool says of its peak: the statistics at_peak_NAME_bytes, and the words for them.
AT_PEAK = {"requested": "live", "rounding": "rounding", "pending": "pending",
           "whole": "whole chunks", "cut": "cut chunks", "small": "small blocks"}


def live_bytes(run):
    """The most that the program had asked for at one time."""
    if run.peer.preload:
        return run.statistics.total("requested_peak_bytes")
    return run.figures.get("requested_peak_bytes", 0)


def over_live(run):
    return run.reserved_bytes() / live_bytes(run)


def seconds(run):
    return sum(run.seconds())


def at_peak(run):
    """What the peak of a run under the shim consisted of."""
    pools = run.statistics
    parts = [f"{words} {amount(pools.total(f'at_peak_{name}_bytes'))}"
             for name, words in AT_PEAK.items() if pools.total(f"at_peak_{name}_bytes")]
    return (", ".join(parts) + f"; after {duration(pools.total('at_peak_running_ns'))}, "
            f"{pools.total('at_peak_refused_moves')} looks for idle chunks refused")


def rows_of_peer(workload, rounds, peer):
    """rounds: of each round, {peer's name: its Run}, without those that failed."""
    have = [played for played in rounds if peer.name in played]
    runs = [played[peer.name] for played in have]
    ratios = [over_live(run) for run in runs]
    bound = BOUNDS[workload]
    more = {}
    if peer.preload:
        worst = max(runs, key=over_live)
        beside = [played for played in have if EXPANDABLE.name in played]
        more = {"bound": bound, "within": sum(ratio <= bound for ratio in ratios),
                "below": sum(over_live(played[peer.name]) < over_live(played[EXPANDABLE.name])
                             for played in beside), "beside": len(beside), "worst": at_peak(worst)}
    yield bench_store.row("frugal", workload, peer.name, ratios, "over live", **more)
    yield bench_store.row("frugal", workload, peer.name, [run.reserved_bytes() for run in runs],
                          "bytes")
    steps = [statistics.mean(run.seconds()) * 1e3 for run in runs]
    yield bench_store.row("frugal", workload, peer.name, steps, "ms")
    times = [seconds(played[peer.name]) / seconds(played[NATIVE.name]) for played in have
             if NATIVE.name in played]
    if times:
        yield bench_store.row("frugal", workload, peer.name, times, "over native")


def rows_of(workload, rounds):
    for run in itertools.chain(*rounds):
        if not run.failure and not live_bytes(run):
            run.failure = "no figures of its memory"
    good = [{run.peer.name: run for run in runs if not run.failure} for runs in rounds]
    for peer in PEERS:
        if any(peer.name in played for played in good):
            yield from rows_of_peer(workload, good, peer)
        failures = [run.failure for runs in rounds for run in runs
                    if run.peer is peer and run.failure]
        if failures:
            yield bench_store.row("skipped", "frugal", peer.name, 0, "",
                                  note=f"{workload}, {len(failures)} of {len(rounds)} processes: "
                                       f"{failures[0]}")


def missing_package(suite, python):
    for package in PACKAGES:
        if suite.run([python, "-c", f"import {package}"]).rc != 0:
            return package
    return None


def frugal(suite, programs):
    python = frameworks.python_with(suite, PACKAGES[0])
    missing = missing_package(suite, python)
    if missing:
        raise base.Skip(f"no {missing}")
    command = [python, frameworks.script("work_frugal.py"), "--warm", str(WARM)]
    count = QUICK_PROCESSES if suite.quick else PROCESSES
    rounds = {workload: [] for workload in BOUNDS}
    for runs in train(suite, PEERS, command, list(BOUNDS) * count, STEPS, 1, "-frugal"):
        rounds[runs[0].workload].append(runs)
    return [row for workload, played in rounds.items() for row in rows_of(workload, played)]
