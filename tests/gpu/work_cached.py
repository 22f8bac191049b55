# SPDX-License-Identifier: BSD-2-Clause
"""Programs whose packages keep their own caches, for flushes from outside.

work_cached.py FIGURES train STEPS   GPT with torch.compile(mode="reduce-overhead") and, by turns,
                                     steps captured with torch.cuda.graph, and eager work between
work_cached.py FIGURES idle PACKAGE MIB   fills a package's cache, says "idle", and reads a line
`train` prints its losses, exact; FIGURES gets the seconds of each step and the number of the first
that counts."""
import json
import sys
import time


def train(figures, steps):
    import torch
    import work_models
    from torch.nn import functional as F
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    host = torch.Generator().manual_seed(7)

    def loss_of(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def batch():
        tokens = torch.randint(0, 8192, (8, 257), generator=host).cuda()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    model = work_models.Gpt(layers=4).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    other = work_models.Gpt(layers=2).cuda()
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    inputs, targets = batch()
    print("ready", file=sys.stderr, flush=True)
    seconds, captured = [], None
    for i in range(steps):
        start = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        x, y = batch()
        loss = loss_of(compiled(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if i % 100 == 0:  # captures anew, while flushes come
            captured = work_models.captured_step(other, other_optimizer, inputs, targets,
                                                 loss_of)
        inputs.copy_(x)
        targets.copy_(y)
        captured[0].replay()
        # Eager work of many sizes: what it leaves is the cache that a flush gives back.
        eager = (torch.arange((32 << 20) + 7919 * i, device="cuda") % 251).sum().item()
        print(i, float(loss.item()).hex(), float(captured[1].item()).hex(), eager)
        seconds.append(time.perf_counter() - start)
    print("over", file=sys.stderr, flush=True)
    with open(figures, "w") as file:
        json.dump({"steps": seconds, "seconds": sum(seconds)}, file)


def fill_torch(mib):
    import torch
    blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(mib // 64)]
    torch.cuda.synchronize()
    del blocks
    return lambda: torch.cuda.memory_reserved()


def fill_cupy(mib):
    import cupy
    blocks = [cupy.empty(64 << 20, dtype=cupy.uint8) for _ in range(mib // 64)]
    cupy.cuda.Device().synchronize()
    del blocks
    return lambda: cupy.get_default_memory_pool().total_bytes()


def fill_numba(mib):
    """Numba keeps at most ten frees, and a fifth of the device."""
    import numpy
    from numba import cuda
    for _ in range(8):
        cuda.device_array((mib // 8) << 20, dtype=numpy.uint8)
    pending = cuda.current_context().memory_manager.deallocations
    return lambda: len(pending) - 1 if len(pending) else 0


def main():
    if sys.argv[2] == "train":
        train(sys.argv[1], int(sys.argv[3]))
        return
    kept = globals()["fill_" + sys.argv[3]](int(sys.argv[4]))
    print("idle", kept(), flush=True)
    sys.stdin.readline()
    print("kept", kept(), flush=True)


main()
