# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch on GPUs that are full of freed memory. They are full before its first tensor, before it
loads its libraries, and in the middle of a training. NCCL sums too. Losses go to stdout, exact; the
seconds to the file named first."""
import ctypes
import json
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import work_models
from torch.nn import functional as F

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
STEPS, SIZES = 6, (1 << 30, 64 << 20, 2 << 20)


def fill(device):
    """Takes all memory of the device and frees it."""
    cuda, blocks = ctypes.CDLL("libcuda.so.1"), []
    torch.cuda.set_device(device)
    torch.cuda.synchronize()
    for size in SIZES:
        block = ctypes.c_uint64()
        while cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)) == 0:
            blocks.append(block)
            block = ctypes.c_uint64()
    for block in blocks:
        if cuda.cuMemFree_v2(block) != 0:
            sys.exit("a free failed")
    torch.cuda.set_device(0)


def fill_all():
    for device in range(torch.cuda.device_count()):
        fill(device)


def sums():
    """By NCCL, in a group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", world_size=1, rank=0)
        numbers = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
        dist.all_reduce(numbers)
        print("sum", numbers.sum().item())
        dist.destroy_process_group()


def sums_over_gpus():
    """By NCCL too, over all GPUs of this process."""
    count = torch.cuda.device_count()
    if count > 1:
        parts = [torch.full((1 << 20,), float(i + 1), device=f"cuda:{i}") for i in range(count)]
        torch.cuda.nccl.all_reduce(parts)
        print("over", count, [part.sum().item() for part in parts])


def main():
    torch.manual_seed(1)
    host = torch.Generator().manual_seed(23)
    torch.cuda.init()
    fill_all()
    start = time.perf_counter()
    model = work_models.Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for i in range(STEPS):
        if i == STEPS // 2:
            fill_all()
        images = torch.randn(8, 3, 96 + 32 * (i % 3), 96, generator=host).cuda()
        labels = torch.randint(0, 100, (8,), generator=host).cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        left = torch.randn(700 + 300 * i, 900, generator=host).cuda()
        print(i, float(loss.item()).hex(), float((left @ left.t()).sum().item()).hex())
    fill_all()
    if dist.is_available() and dist.is_nccl_available():
        sums()
        fill_all()
        sums_over_gpus()
    with open(sys.argv[1], "w") as file:
        json.dump({"seconds": time.perf_counter() - start}, file)


if __name__ == "__main__":
    main()
