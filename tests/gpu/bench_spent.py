# SPDX-License-Identifier: BSD-2-Clause
"""Where the time of programs with random shapes goes (work_frugal.py). For how long is the GPU busy
in a step, and what do the calls of the driver for memory and fences take? CUPTI tells both
(spent.c). Times of whole steps differ between processes by some percent, the time of the GPU by
less than one, and calls are counted.

A row is one process. Its times and other_calls, the number of all other calls of the driver, are
those of one step. CALL, CALL_ns and CALL_max_ns are of all steps, as spent.c names them, for each
call for memory and fences: how many, their time, and the longest."""
import json
import re
import statistics

import bench_frugal
import bench_store
import part_frameworks as frameworks
import part_profile
import part_torch
from bench_text import duration
from trainer import EXACT

PEERS = (part_torch.NATIVE, part_torch.NATIVE_EXPANDABLE, part_torch.SHIM)
STEPS, QUICK_STEPS = bench_frugal.TURNS * bench_frugal.STEPS, 12
# As the driver gets them, whether the program, NVIDIA's runtime or the library makes them. (For a
# driver before CUDA 12.5 the library makes its fences by other calls, which are not among these.)
CALLS = re.compile(r"cuMem(Alloc|Free|Create|Release|Map|Unmap|SetAccess)(_v\d)?"
                   r"|cuMemAddress(Reserve|Free)"
                   r"|cu(CtxRecordEvent|CtxWaitEvent|EventQuery|EventSynchronize)")
# Of the kernels. One that has not ended when the records are asked for counts as lost.
LOST_AT_MOST = 0.001
SHOWN = 0.01  # Calls with less of the time of all calls for memory and fences are not on the page.


def calls_of(figures):
    """The names of all calls among the figures of a process, or of its row."""
    return [name for name in figures if f"{name}_ns" in figures and f"{name}_max_ns" in figures]


def is_counted(name):
    """Is it a call for memory or fences?"""
    return CALLS.fullmatch(name) is not None


def row_of(peer, workload, figures, seed, machine):
    """The row of one process. figures: what it printed, or the reason for which there is nothing,
    in "failure". machine: a text that all rows of one table have in common."""
    counted, seconds = figures.get("spent", {}), figures.get("seconds", ())
    failure = figures.get("failure", "")
    if not failure and not (seconds and counted.get("kernels") and counted.get("busy_ns")):
        failure = "no figures of the GPU"
    if not failure and counted["dropped"] > LOST_AT_MOST * counted["kernels"]:
        failure = f"{counted['dropped']} records of CUPTI are lost"
    if failure:
        return bench_store.row("spent", workload, peer.name, 0, "ns", seed=seed, machine=machine,
                               failure=failure)
    steps, names = len(seconds), calls_of(counted)
    others = [name for name in names if not is_counted(name)]
    names = [name for name in names if is_counted(name)]
    return bench_store.row("spent", workload, peer.name,
                           sum(counted[f"{name}_ns"] for name in names) / steps, "ns",
                           seed=seed, machine=machine, steps=steps,
                           step_ns=statistics.mean(seconds) * 1e9,
                           busy_ns=counted["busy_ns"] / steps, kernels=counted["kernels"],
                           other_calls=sum(counted[name] for name in others) / steps,
                           other_ns=sum(counted[f"{name}_ns"] for name in others) / steps,
                           **{name + end: counted[name + end] for name in names
                              for end in ("", "_ns", "_max_ns")})


def rows_of(peer, result, seed, machine):
    """A row for each workload of a peer. result: of work_frugal.py, which prints a line for each.
    A workload whose line is missing or cut short has failed."""
    printed = {}
    for line in result.out.splitlines():
        try:
            figures = json.loads(line)
            printed[figures["workload"]] = figures
        except (LookupError, TypeError, ValueError):
            continue  # something that a package says
    rows = []
    for workload in bench_frugal.BOUNDS:
        figures = printed.get(workload, {})
        status = figures.get("status", result.rc)
        if "spent" not in figures:
            ended = "ran too long" if status is None else f"status {status}"
            figures = {"failure": f"no figures, {ended}: {frameworks.last_line(result)}"}
        rows.append(row_of(peer, workload, figures, seed, machine))
    return rows


def each_call(entries):
    """What single calls of these processes take, as text, those that took longest first."""
    steps = sum(entry["steps"] for entry in entries)
    names = dict.fromkeys(name for entry in entries for name in calls_of(entry))
    sums = {name: sum(entry.get(f"{name}_ns", 0) for entry in entries) for name in names}
    shown = []
    for name in sorted(sums, key=lambda name: -sums[name]):
        if sums[name] < SHOWN * sum(sums.values()):
            continue
        number = sum(entry.get(name, 0) for entry in entries)
        longest = max(entry.get(f"{name}_max_ns", 0) for entry in entries)
        shown.append(f"{number / steps:.3g} {name} of {duration(sums[name] / number)} "
                     f"({duration(longest)})")
    return ", ".join(shown)


HEADS = ["workload", "peer", "processes", "step", "GPU busy", "over native",
         "calls for memory and fences", "of the step", "other calls of the driver",
         "calls for memory and fences of one step, their mean (the longest)"]


def line_of(workload, peer, entries, natives):
    """natives: native's processes of the same workload."""
    def median(show, values):
        return show(statistics.median(values)) if values else ""
    beside = {entry["seed"]: entry["busy_ns"] for entry in natives}
    over = [entry["busy_ns"] / beside[entry["seed"]] for entry in entries
            if entry["seed"] in beside]
    return [workload, peer, str(len(entries)),
            median(duration, [entry["step_ns"] for entry in entries]),
            median(duration, [entry["busy_ns"] for entry in entries]),
            median("{:.3f}".format, over),
            median(duration, [entry["value"] for entry in entries]),
            median("{:.2%}".format, [entry["value"] / entry["step_ns"] for entry in entries]),
            median(duration, [entry["other_ns"] for entry in entries]), each_call(entries)]


def table(rows):
    """(heads, lines) of the table, and the lines below it: what failed. ValueError: a row is of no
    workload that there is."""
    for entry in rows:
        bench_frugal.bound_of(entry["name"])
    good = [entry for entry in rows if "failure" not in entry]
    lines = []
    for workload in bench_frugal.BOUNDS:
        mine = bench_store.find(good, name=workload)
        natives = bench_store.find(mine, peer=part_torch.NATIVE.name)
        lines += [line_of(workload, peer, bench_store.find(mine, peer=peer), natives)
                  for peer in dict.fromkeys([*(peer.name for peer in PEERS),
                                             *(entry["peer"] for entry in mine)])
                  if bench_store.find(mine, peer=peer)]
    return HEADS, lines, bench_frugal.failures(rows)


def spent(suite, programs, seed=1):
    """Yields the rows of one peer after the other. seed: of the shapes."""
    python = frameworks.python_with(suite, bench_frugal.PACKAGES[0])
    bench_frugal.need_packages(suite, python)
    library = part_profile.with_cupti(suite, "spent.so", "spent.c")
    command = [python, frameworks.script("work_frugal.py"), "--warm", str(bench_frugal.WARM),
               "--steps", str(QUICK_STEPS if suite.quick else STEPS), "--seed", str(seed),
               "--spent", library, *bench_frugal.BOUNDS]
    machine = bench_frugal.machine_of(suite)
    for peer in PEERS:
        env = {**EXACT, **peer.env}
        result = suite.run(command, suite.shim_env(**env) if peer.preload
                           else {**suite.bare_env, **env}, timeout=400)
        yield rows_of(peer, result, seed, machine)
