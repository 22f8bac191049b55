# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch workloads of work_models.py. Losses go to stdout, exact (hexadecimal floats); figures to
the file named first.

work_torch.py FIGURES [--steps N] [--repeats N] [--pause] WORKLOAD
work_torch.py FIGURES --turns [--steps N] WORKLOAD..
  --pause  stops half way: says "paused LIVE_BYTES" and waits for a line
  --turns  a process for each workload, one after the other, which repeats whenever it is told to:
           the
           protocol of trainer.py, to which the figures go too. PyTorch is imported once, and CUDA
           started in each.
The first repeat is a warm-up. Of each of the others the figures hold the seconds, those of each
step, and how many of them the host waited for the GPU's result.
"""
import argparse
import contextlib
import gc
import itertools
import json
import os
import sys
import time

import torch
import work_models

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.backends.cudnn.benchmark = False
torch.set_float32_matmul_precision("high")


def live_bytes():
    """Device memory of every tensor alive, each storage once."""
    storages = {}
    for item in gc.get_objects():
        try:
            if isinstance(item, torch.Tensor) and item.is_cuda:
                for tensor in (item, item.grad if item.is_leaf else None):
                    if tensor is not None:
                        storage = tensor.untyped_storage()
                        storages[storage.data_ptr()] = storage.nbytes()
        except ReferenceError:
            pass
    return sum(storages.values())


def pause():
    torch.cuda.synchronize()
    gc.collect()
    print(f"paused {live_bytes()}", flush=True)
    sys.stdin.readline()


class Waits:
    """Sums up the time in Tensor.item(), which waits for the GPU."""
    def __init__(self):
        self.seconds, self.item = 0.0, torch.Tensor.item
        torch.Tensor.item = lambda tensor: self.timed(tensor)

    def timed(self, tensor):
        start = time.perf_counter()
        value = self.item(tensor)
        self.seconds += time.perf_counter() - start
        return value


def repeat(step, steps, losses, pause_at=-1):
    """When each step began, and when the last one was over."""
    torch.cuda.synchronize()
    moments = []
    for i in range(steps):
        if i == pause_at:
            pause()
        moments.append(time.perf_counter())
        losses.append(step(i))
    torch.cuda.synchronize()
    return [*moments, time.perf_counter()]


def figures(repeats, waited):
    return {"seconds": [moments[-1] - moments[0] for moments in repeats], "waited": waited,
            "step_seconds": [[end - start for start, end in itertools.pairwise(moments)]
                             for moments in repeats],
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
            "allocated_peak_bytes": torch.cuda.max_memory_allocated()}


@contextlib.contextmanager
def recorded_by(peer, path):
    """Within it another recorder records: PyTorch's own, or memray's."""
    if peer == "PyTorch":
        torch.cuda.memory._record_memory_history(stacks="python")
        try:
            yield
        finally:
            torch.cuda.memory._dump_snapshot(path)
            torch.cuda.memory._record_memory_history(enabled=None)
    else:
        import memray
        with memray.Tracker(path):
            yield


def pair_ns(batches=60, pairs=100):
    """The least that a tensor took from birth to death, on average of a batch."""
    least = float("inf")
    for _ in range(batches):
        start = time.perf_counter_ns()
        for _ in range(pairs):
            torch.empty(1 << 18, device="cuda")
        least = min(least, (time.perf_counter_ns() - start) / pairs)
    return least


def take_turns(workload, steps, warm):
    """One workload, by the protocol of trainer.py. "go PEER PATH": another recorder records it.
    "pairs": what a pair of allocation and free costs."""
    losses, repeats, waited, waits = [], [], [], Waits()
    torch.manual_seed(1)
    step = work_models.WORKLOADS[workload]()
    repeat(step, warm * steps, losses)
    print("ready", os.getpid(), flush=True)
    while (words := sys.stdin.readline().split())[:1] in (["go"], ["pairs"]):
        if words == ["pairs"]:
            print(pair_ns(), flush=True)
            continue
        waits.seconds = 0.0
        try:
            with recorded_by(*words[1:]) if words[1:] else contextlib.nullcontext():
                repeats.append(repeat(step, steps, losses))
        except ImportError as reason:
            print(reason, flush=True)
            continue
        waited.append(waits.seconds)
        print("turn", flush=True)
    show(workload, losses)
    print("done", json.dumps(figures(repeats, waited)), flush=True)


def each_by_itself(workloads, steps, warm):
    for workload in workloads:
        child = os.fork()
        if not child:
            take_turns(workload, steps, warm)
            return
        _, status = os.waitpid(child, 0)
        print("gone", os.waitstatus_to_exitcode(status), flush=True)


def show(workload, losses):
    for i in range(0, len(losses), 8):
        print(workload, i, *(float(loss).hex() for loss in losses[i:i + 8]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("figures")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pause", action="store_true")
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--warm", type=int, default=1,
                        help="with --turns: so many times the steps come before the first")
    parser.add_argument("workloads", choices=work_models.WORKLOADS, nargs="+")
    options = parser.parse_args()
    if options.turns:
        each_by_itself(options.workloads, options.steps, options.warm)
        return
    torch.manual_seed(1)
    step = work_models.WORKLOADS[options.workloads[0]]()
    losses, repeats, waited, waits = [], [], [], Waits()
    repeat(step, options.steps, losses)
    for number in range(options.repeats):
        waits.seconds = 0.0
        pause_at = options.steps // 2 if options.pause and number == 0 else -1
        repeats.append(repeat(step, options.steps, losses, pause_at))
        waited.append(waits.seconds)
    show(options.workloads[0], losses)
    with open(options.figures, "w") as file:
        json.dump(figures(repeats, waited), file)


if __name__ == "__main__":
    main()
