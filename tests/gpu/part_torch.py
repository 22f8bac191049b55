# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch: training and inference. With its cache off under the shim, it runs beside its own
allocators. Each workload and peer has a process that stays. The processes take turns, so that a
disturbance of the machine hits all of them."""
import dataclasses
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import bench_peers
import bench_store
import part_flush
import part_frameworks as frameworks
import suite as base
from parked import ending
from trainer import CACHE_OFF, EXACT, EXPANDABLE, Peer, train

NATIVE = Peer("PyTorch native", {})
NATIVE_EXPANDABLE = Peer("PyTorch expandable", EXPANDABLE)
BARE = Peer("cudaMalloc", CACHE_OFF)
SHIM = Peer("gpucache", CACHE_OFF, True)
# PyTorch's own cache on top of ours: no harm, and its mapped segments pass through.
OVER = Peer("PyTorch native over gpucache", {}, True, ("gpt", "streams"))
OVER_EXPANDABLE = Peer("PyTorch expandable over gpucache", EXPANDABLE, True, ("gpt",))
PEERS = (NATIVE, BARE, SHIM, OVER, OVER_EXPANDABLE)
WORKLOADS = ("gpt", "conv", "unet", "lstm", "decode", "streams")
QUICK = ("gpt", "streams")
# Where times are compared: the processes of each peer for each workload, and how many rounds of
# steps go before. In those, memory finds its place. Moves of memory take 20 ms in all
# (pool/time_budget.c), a third of the time in the first 20 steps of unet.
PROCESSES, WARM = 4, 3


def measure(suite, peers, workloads, rounds, steps=20, warm=1, tag=""):
    """Yields a list of Run for each workload."""
    command = [frameworks.python_with(suite, "torch"), frameworks.script("work_torch.py"),
               "/dev/null", "--warm", str(warm)]
    yield from train(suite, peers, command, workloads, steps, rounds, tag)


def figures(runs):
    """The JSON rows: milliseconds a step, and bytes of peak reserved memory, for each workload and
    peer. The peer "live" is what the program itself asked for."""
    rows = []
    for run in runs:
        if run.failure:
            continue
        name, peer = run.workload, run.peer.name
        streams = 4 if name == "streams" else 1
        times = [value / run.steps * 1e3 for value in run.seconds()]
        waited = statistics.median(run.figures["waited"]) / run.steps * 1e3
        rows.append(bench_store.row("torch", name, peer, times, "ms", streams=streams,
                                    waited=waited))
        if run.reserved_bytes():
            rows.append(bench_store.row("torch", name, peer, run.reserved_bytes(), "bytes",
                                        streams=streams))
        if run.peer.name == SHIM.name:
            live = run.statistics.total("requested_peak_bytes")
            rows.append(bench_store.row("torch", name, "live", live, "bytes", streams=streams))
    return rows


def save(suite, name, rows):
    path = os.path.join(suite.build, name)
    bench_store.save(path, rows)
    suite.log(f"  figures in {path}")


def joined(runs):
    """The same workload of the same peer in several processes, as one."""
    first = next((run for run in runs if run.failure), runs[0])
    together = {name: sum((run.figures.get(name, []) for run in runs), [])
                for name in ("seconds", "waited")}
    most = max(runs, key=lambda run: 0 if run.failure else run.reserved_bytes())
    figures_of_most = dict(most.figures, **together)
    return dataclasses.replace(first, figures=figures_of_most, statistics=most.statistics)


def rows_of(suite):
    """What the benchmarks want of this part: the JSON rows of all workloads. Each peer plays each
    workload in several processes, because one is faster than the next by up to a tenth for as long
    as it lives, whatever the allocator. Without PyTorch's cache, which is slow and needs no such
    care, one process is enough."""
    runs, peers = [], (NATIVE, NATIVE_EXPANDABLE, SHIM)
    for number in range(1 if suite.quick else PROCESSES):
        playing = peers if number else (*peers, BARE)
        for mine in measure(suite, playing, QUICK if suite.quick else WORKLOADS, 2, warm=WARM,
                            tag=f"-{number}"):
            runs += mine
    played = {}
    for run in runs:
        played.setdefault((run.workload, run.peer.name), []).append(run)
    together = {key: joined(same) for key, same in played.items()}
    rows = figures(list(together.values()))
    for workload in dict.fromkeys(run.workload for run in runs):
        native, shim = (together[workload, peer.name] for peer in (NATIVE, SHIM))
        if native.failure or shim.failure:
            continue
        for peer in (SHIM, NATIVE_EXPANDABLE):
            rows += compared(workload, peer, played[workload, NATIVE.name],
                             played[workload, peer.name])
        libraries = shim.statistics.total("requested_peak_bytes")
        libraries -= native.figures["allocated_peak_bytes"]
        rows.append(bench_store.row("torch", workload, bench_peers.LIBRARIES, max(libraries, 0),
                                    "bytes"))
    return rows


def compared(workload, peer, natives, others):
    """How the times of processes compare that took turns: the median over pairs of processes, each
    by the mean of its rounds, and its standard error. (expandable segments beside it show how far
    two compare that cost the same.)"""
    ratios = [statistics.mean(b / a for a, b in zip(native.seconds(), other.seconds()))
              for native, other in zip(natives, others) if not native.failure and not other.failure]
    if not ratios:
        return []
    return [bench_store.row("torch", workload, peer.name, ratios, "over native",
                            error=bench_store.median_error(ratios))]


def compare_times(suite, name, left, right):
    """A row for two workers that took turns: the medians, and the ratio round by round."""
    if left.failure or right.failure:
        return
    a, b = statistics.median(left.seconds()), statistics.median(right.seconds())
    ratios = sorted(y / x for x, y in zip(left.seconds(), right.seconds()))
    suite.row(name, base.seconds(a), base.seconds(b), f"{statistics.median(ratios):.2f}",
              f"measured: {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds")


def compare_losses(suite, workload, runs):
    """Under the shim what the same program gives bare; failures of a peer that is not ours are no
    failures of ours."""
    bare, shim, native = (runs[peer.name] for peer in (BARE, SHIM, NATIVE))
    for run in runs.values():
        if run.failure and not run.peer.preload:
            suite.row(f"{workload}: {run.peer.name}",
                      verdict=f"skip: does not run here bare: {run.failure}")
        elif run.failure:
            suite.row(f"{workload}: {run.peer.name}", verdict=f"FAIL: {run.failure}")
    if not bare.failure and not shim.failure:
        row = suite.row(f"{workload}: losses, cache off", verdict="ok" if bare.out == shim.out else
                        "FAIL: " + base.first_difference(bare.out, shim.out))
        frameworks.note_served(row, shim.statistics, at_least=100 * shim.steps)
        if not native.failure:
            equal = native.out == shim.out
            suite.row(f"{workload}: losses, native", verdict="ok: equal" if equal
                      else "FAIL: differ from cache off "
                      "under the shim" if native.out == bare.out
                      else "measured: differ from cache off, bare as well")
    for peer in (OVER, OVER_EXPANDABLE):
        over = runs.get(peer.name)
        if over and not over.failure and not native.failure:
            row = suite.row(f"{workload}: losses, {peer.name}", verdict="ok"
                            if over.out == native.out else
                            "FAIL: " + base.first_difference(native.out, over.out))
            frameworks.note_served(row, over.statistics, at_least=1)


def torch(suite):
    rows = []
    for runs in measure(suite, PEERS, QUICK if suite.quick else WORKLOADS, 2 if suite.quick else 4):
        compare(suite, runs[0].workload, {run.peer.name: run for run in runs})
        rows += figures(runs)
    save(suite, "torch.json", rows)


def compare(suite, workload, runs):
    """The rows of one workload."""
    compare_losses(suite, workload, runs)
    native, shim = runs[NATIVE.name], runs[SHIM.name]
    compare_times(suite, f"{workload}: cache off", runs[BARE.name], shim)
    compare_times(suite, f"{workload}: native against shim", native, shim)
    for peer in (OVER, OVER_EXPANDABLE):
        if peer.name in runs:
            compare_times(suite, f"{workload}: native against {peer.name}", native, runs[peer.name])
    if not (native.failure or shim.failure):
        suite.row(f"{workload}: peak reserved, native against shim",
                  base.mebibytes(native.reserved_bytes()), base.mebibytes(shim.reserved_bytes()),
                  base.ratio(shim.reserved_bytes(), native.reserved_bytes()),
                  f"measured: live {base.mebibytes(shim.statistics.total('requested_peak_bytes'))}")


def torch_graphs(suite):
    """Captures allocate: PyTorch's cache takes its segments from ours meanwhile."""
    command = [frameworks.python_with(suite, "torch"), frameworks.script("work_graphs.py"),
               "FIGURES"]
    frameworks.compared(suite, "captured, replayed, captured anew", "torch-graphs", command, EXACT)
    frameworks.compared(suite, "the same, expandable segments", "torch-graphs-expandable", command,
                        {**EXACT, **EXPANDABLE}, at_least=0)


def paused_run(suite, observer, command, env, flush):
    """Runs a training that pauses half way: (result, device memory taken then, and after a
    flush)."""
    before = observer.settled()
    start = time.monotonic()
    log = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=log, text=True)
    guard = threading.Timer(180, process.kill)
    guard.start()
    out, taken, after, live = "", 0, 0, 0
    for line in process.stdout:
        if line.startswith("paused "):
            live = int(line.split()[1])
            taken = before - observer.settled()
            if flush:
                process.send_signal(signal.SIGUSR1)
            after = before - observer.settled()
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            out += line
    rc = process.wait()
    guard.cancel()
    log.seek(0)
    return base.Result(rc, out, log.read(), time.monotonic() - start), taken, after, live


def torch_flush(suite):
    """SIGUSR1 in the middle of a training: afterwards the process takes what it takes without a
    cache."""
    python = frameworks.python_with(suite, "torch")
    command = [python, frameworks.script("work_torch.py"), "/dev/null", "--steps", "8", "--repeats",
               "1", "--pause", "gpt"]
    with ending(part_flush.Observer(suite)) as (observer,):
        bare, bare_taken, _, live = paused_run(suite, observer, command,
                                               dict(suite.bare_env, **EXACT, **CACHE_OFF), False)
        shim, taken, after, _ = paused_run(suite, observer, command,
                                           suite.shim_env(**EXACT, **CACHE_OFF), True)
    if bare.rc:
        raise base.Skip(f"does not run here bare: {frameworks.last_line(bare)}")
    suite.compare("SIGUSR1 half way, losses", bare, shim)
    # Chunks go back whole: what lies beside a live block in one stays, and where that is depends on
    # when memory was moved. With 853 MiB live, 14 runs on an H100 ended between 36 MiB less than
    # bare and 96 more.
    slack = max(64 << 20, live // 8)
    verdict = "ok" if after <= bare_taken + slack else (
        f"FAIL: {base.mebibytes(after - bare_taken)} more than without a cache")
    if verdict == "ok":
        verdict = f"ok: {base.mebibytes(taken - after)} given back, {base.mebibytes(live)} live"
    suite.row("device memory after the flush", base.mebibytes(bare_taken), base.mebibytes(after),
              base.ratio(after, bare_taken), verdict)
