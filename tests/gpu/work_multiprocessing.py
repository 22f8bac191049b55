# SPDX-License-Identifier: BSD-2-Clause
"""torch.multiprocessing hands tensors on the GPU to another process. That process sums them,
changes them in place and returns new ones. The sums go to stdout, exact; the seconds to the file
named first."""
import json
import sys
import time

import torch
import torch.multiprocessing as mp

ROUNDS = 24


def exact(tensor):
    return int(tensor.to(torch.int64).sum().item())


def child(inbox, outbox):
    while True:
        item = inbox.get()
        if item is None:
            break
        number, tensors = item
        sums = [exact(tensor) for tensor in tensors]
        for tensor in tensors:
            tensor.add_(number)
        answer = torch.cat([tensor.flatten()[:1000] for tensor in tensors]) * 2
        torch.cuda.synchronize()
        outbox.put((sums, answer))
        del item, tensors, tensor, answer
    outbox.put(None)


def main():
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(inbox, outbox))
    process.start()
    start = None
    for i in range(ROUNDS):
        # small ones of one block, a view that begins inside of one, and large ones
        sizes = [1 + (i * 37) % 500, 3000 + i * 1009, (1 << 20) + i * 4099]
        whole = [torch.arange(size, device="cuda", dtype=torch.int32) + i for size in sizes]
        tensors = [*whole, whole[1][17:2000]]
        torch.cuda.synchronize()
        inbox.put((i, tensors))
        sums, answer = outbox.get(timeout=60)
        print(i, sums, [exact(tensor) for tensor in tensors], exact(answer), flush=True)
        del whole, tensors, answer
        if start is None:
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    inbox.put(None)
    outbox.get(timeout=60)
    process.join(60)
    print("child", process.exitcode)
    with open(sys.argv[1], "w") as file:
        json.dump({"seconds": seconds}, file)


if __name__ == "__main__":
    main()
