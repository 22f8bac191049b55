# SPDX-License-Identifier: BSD-2-Clause
"""Where the time of programs with random shapes goes (work_frugal.py). For how long is the GPU busy
in a step, and what do the calls of the driver for memory and fences take? CUPTI tells both
(spent.c). Times of whole steps differ between processes by some percent; the time of the GPU does
not, and calls are counted."""
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
# PyTorch's native allocator calls the runtime for memory, expandable segments and the library call
# the driver. Only the library makes fences of it: calls by the runtime are not counted.
CALLS = re.compile(r"cudaMalloc|cudaFree"
                   r"|cuMem(Alloc|Free|Create|Release|Map|Unmap|SetAccess)(_v\d)?"
                   r"|cuMemAddress(Reserve|Free)"
                   r"|cu(CtxRecordEvent|CtxWaitEvent|EventQuery|EventSynchronize)")


def calls_of(spent):
    """{call: (how many, ns of all)}, those that took longest first."""
    found = {name: (spent[name], spent[f"{name}_ns"]) for name in spent if CALLS.fullmatch(name)}
    return dict(sorted(found.items(), key=lambda call: -call[1][1]))


def row_of(peer, figures):
    """The row of one process. RuntimeError: it has no such figures, or not all of them."""
    spent, steps = figures.get("spent", {}), len(figures.get("seconds", ()))
    if not steps or not spent.get("kernels") or spent["dropped"]:
        raise RuntimeError(f"{peer.name}: {figures}")
    calls = calls_of(spent)
    shown = [f"{number / steps:.3g} {name} of {duration(ns / number)}"
             for name, (number, ns) in calls.items()]
    return bench_store.row("spent", figures["workload"], peer.name,
                           sum(ns for _, ns in calls.values()) / steps, "ns", count=steps,
                           step_ns=statistics.mean(figures["seconds"]) * 1e9,
                           busy_ns=spent["busy_ns"] / steps, kernels=spent["kernels"],
                           calls=", ".join(shown))


HEADS = ["workload", "peer", "step", "GPU busy", "over native", "calls for memory and fences",
         "of the step", "these calls of one step"]


def table(rows):
    """(heads, lines)"""
    lines = []
    for entry in rows:
        native = bench_store.find(rows, name=entry["name"], peer=part_torch.NATIVE.name)
        over = f"{entry['busy_ns'] / native[0]['busy_ns']:.3f}" if native else ""
        lines.append([entry["name"], entry["peer"], duration(entry["step_ns"]),
                      duration(entry["busy_ns"]), over, duration(entry["value"]),
                      f"{entry['value'] / entry['step_ns']:.2%}", entry["calls"]])
    return HEADS, lines


def spent(suite, programs):
    python = frameworks.python_with(suite, bench_frugal.PACKAGES[0])
    bench_frugal.need_packages(suite, python)
    library = part_profile.with_cupti(suite, "spent.so", "spent.c")
    command = [python, frameworks.script("work_frugal.py"), "--warm", str(bench_frugal.WARM),
               "--steps", str(QUICK_STEPS if suite.quick else STEPS), "--spent", library]
    rows = []
    for peer in PEERS:
        env = {**EXACT, **peer.env}
        result = suite.run([*command, *bench_frugal.BOUNDS], suite.shim_env(**env) if peer.preload
                           else {**suite.bare_env, **env}, timeout=400)
        if result.rc != 0:
            raise RuntimeError(f"{peer.name}: exit {result.rc}: {frameworks.last_line(result)}")
        rows += [row_of(peer, json.loads(line)) for line in result.out.splitlines()
                 if line.startswith("{")]
    return sorted(rows, key=lambda entry: list(bench_frugal.BOUNDS).index(entry["name"]))
