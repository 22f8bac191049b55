# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch in several processes: tensors that processes hand each other on one GPU, and training
with DistributedDataParallel under torchrun on two GPUs."""
import os

import part_frameworks as frameworks
import part_torch
import suite as base
from trainer import CACHE_OFF, EXPANDABLE, Peer, train

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def share(suite):
    """torch.multiprocessing. PyTorch shares out of its own cache alone: with that on top of ours,
    each of its segments is a block of ours. Expandable segments are mapped memory of its own, and
    pass through."""
    python = frameworks.python_with(suite, "torch")
    cases = {"native": ({}, 1), "expandable": (EXPANDABLE, 0),
             "native, GPUCACHE_BACKING=segment": ({"GPUCACHE_BACKING": "segment"}, 1)}
    frameworks.side_by_side(suite, {
        name: lambda n=name, e=env, a=least: frameworks.compared(
            suite, f"shared tensors, {n}", f"share-{n.split('=')[-1]}",
            [python, frameworks.script("work_share.py"), "FIGURES"], e, a, timeout=60)
        for name, (env, least) in cases.items()})


def peers():
    """With what all need; the last one's NCCL shares cudaMalloc's memory by legacy IPC."""
    # NVLink multicast is not to be had on every machine that has several GPUs.
    common = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"),
              "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    by_ipc = Peer("gpucache, NCCL by IPC", {**CACHE_OFF, "NCCL_CUMEM_ENABLE": "0"}, True)
    return [Peer(peer.name, {**peer.env, **common}, peer.preload) for peer in
            (part_torch.NATIVE, part_torch.NATIVE_EXPANDABLE, part_torch.BARE, part_torch.SHIM,
             part_torch.OVER, by_ipc)]


def measure(suite):
    """A list of Run, in the order of peers()."""
    python = frameworks.python_with(suite, "torch")
    if len(frameworks.gpu_counts(suite, python)) < 2:
        raise base.Skip("one GPU")
    steps, rounds = (4, 2) if suite.quick else (20, 6)
    command = [python, *TORCHRUN, frameworks.script("work_ddp.py"), "/dev/null"]
    return next(train(suite, peers(), command, ["ddp"], steps, rounds))


def benchmarked(suite, programs):
    """The JSON rows of PyTorch's workloads; of this one, with two GPUs."""
    rows = part_torch.rows_of(suite)
    try:
        return rows + part_torch.figures(measure(suite)[:4])
    except base.Skip:
        return rows


def ddp(suite):
    runs = measure(suite)
    native, _, bare, shim, over, _ = runs
    if bare.failure:
        raise base.Skip(f"does not run here bare: {bare.failure}")
    for run in runs:
        if run.failure and run.peer.preload:
            suite.row(run.peer.name, verdict=f"FAIL: {run.failure}")
        elif run.peer.preload:
            row = suite.row(f"losses, {run.peer.name}", verdict="ok" if run.out == bare.out else
                            "FAIL: " + base.first_difference(bare.out, run.out))
            frameworks.note_served(row, run.statistics, at_least=1)
    part_torch.compare_times(suite, "cache off", bare, shim)
    part_torch.compare_times(suite, "native against shim", native, shim)
    part_torch.compare_times(suite, "native against native over shim", native, over)
    if not (native.failure or shim.failure):
        suite.row("peak reserved, native against shim", base.mebibytes(native.reserved_bytes()),
                  base.mebibytes(shim.reserved_bytes()),
                  base.ratio(shim.reserved_bytes(), native.reserved_bytes()), "measured: both GPUs")
    part_torch.save(suite, "ddp.json", part_torch.figures(runs))
