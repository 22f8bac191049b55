# SPDX-License-Identifier: BSD-2-Clause
"""Flushes in the middle of training steps. How much stays in chunks beside live blocks, and how
much longer do the steps take that need the memory again? The same training runs once without
flushes."""
import dataclasses
import statistics
import tempfile
import threading

import bench_frugal
import bench_store
import part_frameworks as frameworks
import part_tool
import part_torch
from trainer import Trainer

WORKLOADS = ("gpt2", "bert")
STEPS, WARM = 80, 16
# Memory finds its place before the first flush. Then each has some steps to itself.
BEFORE_S, PERIOD_S = 3.0, 0.7


class Flusher(threading.Thread):
    """Flushes a process from time to time, and keeps the receipts."""

    def __init__(self, tool, pid):
        super().__init__()
        self.tool, self.pid, self.receipts, self.over = tool, pid, [], threading.Event()

    def run(self):
        wait_s = BEFORE_S
        while not self.over.wait(wait_s):
            self.receipts += self.tool.json("flush", self.pid).get("receipts", [])
            wait_s = PERIOD_S


def play(suite, command, workload, flushed):
    """The seconds of the steps, and the receipts."""
    with tempfile.TemporaryDirectory() as pages:
        peer = dataclasses.replace(part_torch.SHIM, env={**part_torch.SHIM.env,
                                                         "GPUCACHE_DIR": pages})
        trainer = Trainer(suite, peer, command, [workload], STEPS, "-refill")
        try:
            run = trainer.begin(workload)
            flusher = Flusher(part_tool.Tool(suite, pages), run.pid)
            if flushed:
                flusher.start()
            trainer.turn()
            flusher.over.set()
            if flushed:
                flusher.join()
            trainer.end()
            trainer.collect()
        finally:
            trainer.kill()
    if run.failure:
        raise RuntimeError(f"{workload}: {run.failure}")
    return run.seconds(), flusher.receipts


def rows_of(workload, quiet, flushed, receipts):
    """Rows from the seconds of the steps without and with flushes, and the receipts of these."""
    receipts = [receipt for receipt in receipts if receipt["gpus"]]
    if not receipts:
        raise RuntimeError(f"{workload}: no flush has a receipt")
    gpus = [receipt["gpus"][0] for receipt in receipts]

    def row(name, values, unit):
        return bench_store.row("refill", workload, part_torch.SHIM.name, values, unit, form=name)
    later = [with_flush - without for without, with_flush in zip(quiet, flushed)]
    return [row("live", [gpu["allocated_bytes"] for gpu in gpus], "bytes"),
            row("returned", [gpu["returned_bytes"] for gpu in gpus], "bytes"),
            row("left", [gpu["partly_live_bytes"] for gpu in gpus], "bytes"),
            row("left over live", [gpu["partly_live_bytes"] / max(gpu["allocated_bytes"], 1)
                                   for gpu in gpus], "ratio"),
            row("flush", [receipt["ns"] for receipt in receipts], "ns"),
            row("step", statistics.median(quiet) * 1e9, "ns"),
            row("lost by a flush", sum(later) / len(gpus) * 1e9, "ns"),
            row("lost by a step", max(later) * 1e9, "ns")]


def refill(suite, programs):
    python = frameworks.python_with(suite, "torch")
    bench_frugal.need_packages(suite, python)
    command = [python, frameworks.script("work_frugal.py"), "--warm", str(WARM)]
    for workload in WORKLOADS[:1] if suite.quick else WORKLOADS:
        quiet, _ = play(suite, command, workload, False)
        flushed, receipts = play(suite, command, workload, True)
        yield rows_of(workload, quiet, flushed, receipts)
