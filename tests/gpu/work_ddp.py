# SPDX-License-Identifier: BSD-2-Clause
"""Training on several GPUs with DistributedDataParallel, one process a GPU, as torchrun starts
them. The first rank speaks the protocol of trainer.py for all. Losses of all ranks go to stdout.
work_ddp.py FIGURES --turns [--steps N] ddp"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import work_models
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.set_float32_matmul_precision("high")


def training(rank):
    """step(i) -> loss; the shapes of the ranks differ, as they do in life."""
    host = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(1)
    ranks = [rank] if work_models.DEVICE == "cuda" else None
    model = DistributedDataParallel(work_models.Gpt(layers=4).to(work_models.DEVICE),
                                    device_ids=ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(i):
        count, length = 2 + (i * 5 + rank) % 7, 96 + 32 * ((i * 7 + 3 * rank) % 9)
        tokens = torch.randint(0, 8192, (count, length + 1), generator=host).to(work_models.DEVICE)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("figures", help="nothing is written there")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--turns", action="store_true", required=True)
    parser.add_argument("workload", choices=["ddp"])
    options = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    if work_models.DEVICE == "cuda":
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    else:
        dist.init_process_group("gloo")
    # Waiting for a turn must not keep the GPU busy.
    hosts = dist.new_group(backend="gloo")
    step, losses, seconds = training(rank), [], []

    def repeat():
        start = time.perf_counter()
        losses.extend(step(i) for i in range(options.steps))
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def told_to_go(word):
        go_on = [False]
        if rank == 0:
            print(word, flush=True)
            go_on = [sys.stdin.readline().strip() == "go"]
        dist.broadcast_object_list(go_on, src=0, group=hosts)
        return go_on[0]

    repeat()
    word = "ready all"
    while told_to_go(word):
        seconds.append(repeat())
        word = "turn"
    mine = [float(loss).hex() for loss in losses]
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine, group=hosts)
    peaks = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, torch.cuda.max_memory_reserved(), group=hosts)
    if rank == 0:
        for other, values in enumerate(gathered):
            for i in range(0, len(values), 8):
                print(other, i, *values[i:i + 8])
        print("done", json.dumps({"seconds": seconds, "waited": [0.0] * len(seconds),
                                  "reserved_peak_bytes": sum(peaks)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
