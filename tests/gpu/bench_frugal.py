# SPDX-License-Identifier: BSD-2-Clause
"""How much is reserved for what programs with random shapes hold (work_frugal.py), and what time
they take, beside PyTorch's own allocators. Each figure is of a process of its own; those of all
peers take turns of a few steps with the same shapes. Each peer forks its processes from one that
has imported its packages."""
import hashlib
import os
import statistics
import time

import bench_host
import bench_store
import part_frameworks as frameworks
import part_torch
import suite as base
from bench_store import amount, duration
from trainer import Peer, train

NATIVE, EXPANDABLE, SHIM = part_torch.NATIVE, part_torch.NATIVE_EXPANDABLE, part_torch.SHIM
# Tells how far two processes differ that do the same.
AGAIN = Peer(f"{NATIVE.name} again", NATIVE.env)
PEERS = (NATIVE, EXPANDABLE, SHIM, AGAIN)
# The most that may be reserved for a byte that is live, in every process.
BOUNDS = {"bert": 1.05, "graphs": 1.05, "mask_rcnn": 1.05, "gpt2": 1.05, "vit": 1.3}
# A round is a process of each workload and peer, with one seed.
ROUNDS, QUICK_ROUNDS = 8, 2
TURNS, STEPS, WARM = 8, 6, 16  # STEPS: of one turn; WARM: before those that are timed
PACKAGES = ("torch", "torchvision", "transformers", "torch_geometric")
# What the pool says of its peak: the statistics at_peak_NAME_bytes, and the words for them.
AT_PEAK = {"requested": "live", "rounding": "rounding", "pending": "pending",
           "whole": "whole chunks", "cut": "cut chunks", "small": "small blocks"}


def live_bytes(run):
    """The most that the program had asked for at one time."""
    if run.peer.preload:
        return run.statistics.total("requested_peak_bytes")
    return run.figures.get("requested_peak_bytes", 0)


def at_peak(run):
    """What the peak of a run under the shim consisted of."""
    pools = run.statistics
    parts = [f"{words} {amount(pools.total(f'at_peak_{name}_bytes'))}"
             for name, words in AT_PEAK.items() if pools.total(f"at_peak_{name}_bytes")]
    return (", ".join(parts) + f"; after {duration(pools.total('at_peak_running_ns'))}, "
            f"{pools.total('at_peak_refused_moves')} looks for idle chunks refused")


def over_native(run, native):
    """The time over native of all steps, and of the step in the middle: it leaves out the few steps
    in which memory grows."""
    ratios = [mine / its for mine, its in zip(run.seconds(), native.seconds())]
    return {"over_native": sum(run.seconds()) / sum(native.seconds()),
            "step_over_native": statistics.median(ratios)}


def row_of(run, native, seed, machine):
    """The figures of one process; of one that failed, why. native: its Run in the same round, or
    None. machine: a text that all rows of one table have in common."""
    if not run.failure and not live_bytes(run):
        run.failure = "no figures of its memory"
    if run.failure:
        return bench_store.row("frugal", run.workload, run.peer.name, 0, "over live", seed=seed,
                               machine=machine, failure=run.failure)
    live, reserved = live_bytes(run), run.reserved_bytes()
    more = {"at_peak": at_peak(run)} if run.peer.preload else {}
    if native and not native.failure:
        more.update(over_native(run, native))
    return bench_store.row("frugal", run.workload, run.peer.name, reserved / live, "over live",
                           seed=seed, machine=machine, live_bytes=live, reserved_bytes=reserved,
                           step_ns=round(statistics.mean(run.seconds()) * 1e9), **more)


def rows_of(runs, seed, machine):
    """A row for each process of one workload in one round."""
    native = next((run for run in runs if run.peer is NATIVE), None)
    return [row_of(run, native, seed, machine) for run in runs]


def over_live(entry):
    return entry["reserved_bytes"] / entry["live_bytes"]


def spread(values, digits):
    """The median; in brackets the least, the quartiles, and the most."""
    shown = [f"{value:.{digits}f}" for value in
             (min(values), *(statistics.quantiles(values, n=4, method="inclusive")
                             if len(values) > 1 else values * 3), max(values))]
    return shown[2] if len(values) == 1 else \
        f"{shown[2]} ({shown[0]}, {shown[1]}, {shown[3]}, {shown[4]})"


def times_of(entries):
    return [entry["over_native"] for entry in entries if "over_native" in entry]


def time_verdict(mine, again):
    """Whether the median is above 1.00, and above three quarters of native's own processes."""
    times, own = times_of(mine), times_of(again)
    if not times:
        return ""
    said = "; time at most 1.00: "
    if statistics.median(times) <= 1:
        return f"{said}met"
    if len(own) > 1 and statistics.median(times) <= statistics.quantiles(own, n=4,
                                                                         method="inclusive")[2]:
        return f"{said}missed by less than native differs from itself"
    return f"{said}missed"


def verdicts(workload, mine, expandable, again):
    """What the processes of a workload under the shim keep of the bounds."""
    bound = BOUNDS[workload]
    beside = {entry["seed"]: over_live(entry) for entry in expandable}
    below = [over_live(entry) < beside[entry["seed"]] for entry in mine if entry["seed"] in beside]
    return (f"at most {bound}: {sum(over_live(entry) <= bound for entry in mine)} of {len(mine)}; "
            f"below expandable: {sum(below)} of {len(below)}{time_verdict(mine, again)}")


def failures(rows):
    """Lines that name the processes that failed."""
    failed = [f"- {entry['name']}, {entry['peer']}, seed {entry['seed']}: {entry['failure']}"
              for entry in rows if "failure" in entry]
    return ["Processes that failed", "", *failed, ""] if failed else []


HEADS = ["workload", "peer", "processes", "reserved over live", "reserved", "step",
         "time over native", "of the median step", "bounds"]


def table(rows):
    """(heads, lines) of the table, and the lines below it about what failed."""
    lines = []
    good = [entry for entry in rows if "failure" not in entry]
    for workload, peer in bench_store.unique(good, "name", "peer"):
        if peer == AGAIN.name:
            continue
        mine = bench_store.find(good, name=workload, peer=peer)
        line = [workload, peer, str(len(mine)), spread([over_live(entry) for entry in mine], 3),
                amount(statistics.median(entry["reserved_bytes"] for entry in mine)),
                duration(statistics.median(entry["step_ns"] for entry in mine))]
        for key in ("over_native", "step_over_native"):
            times = [entry[key] for entry in mine if key in entry and peer != NATIVE.name]
            line.append(spread(times, 2) if times else "")
        judged = ""
        if peer == SHIM.name:
            judged = verdicts(workload, mine,
                              *(bench_store.find(good, name=workload, peer=other.name)
                                for other in (EXPANDABLE, AGAIN)))
        lines.append([*line, judged])
    return HEADS, lines, failures(rows)


def need_packages(suite, python):
    """base.Skip: a package is not there. To import them takes long."""
    missing = suite.run([python, "-c", "import importlib.util, sys; print(next((name for name in "
                         "sys.argv[1:] if not importlib.util.find_spec(name)), ''))",
                         *PACKAGES]).out.strip()
    if missing:
        raise base.Skip(f"no {missing}")


def machine_of(suite):
    """What has to be the same for all rows of a table: the machine and the code."""
    facts = [f"{entry['name']} {entry['note']}" for entry in bench_host.machine(suite, ["frugal"])]
    with open(suite.lib, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return "; ".join([*facts, f"library {digest[:12]}"])


def with_library(path):
    """The peer that has this libgpucache.so in front."""
    return Peer(f"{SHIM.name} {path}", SHIM.env, True,
                before=("env", f"LD_PRELOAD={os.path.abspath(path)}"))


def frugal(suite, programs, seed=1, rounds=None, workloads=tuple(BOUNDS), warm=WARM, against=()):
    """Yields the rows of one workload in one round after the other. seed: of the first round.
    against: other libraries that are measured beside."""
    python = frameworks.python_with(suite, PACKAGES[0])
    need_packages(suite, python)
    command = [python, frameworks.script("work_frugal.py"), "--warm", str(warm), "--seed",
               str(seed)]
    rounds = rounds or (QUICK_ROUNDS if suite.quick else ROUNDS)
    machine, begin = machine_of(suite), time.monotonic()
    played = train(suite, [*PEERS, *map(with_library, against)], command, list(workloads) * rounds,
                   STEPS, TURNS, "-frugal")
    for number, runs in enumerate(played):
        yield rows_of(runs, seed + number // len(workloads), machine)
        if (number + 1) % len(workloads) == 0:
            suite.log(f"  frugal: seed {seed + number // len(workloads)} done after "
                      f"{time.monotonic() - begin:.0f} s")
