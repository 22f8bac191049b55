# SPDX-License-Identifier: BSD-2-Clause
"""torch.multiprocessing hands tensors of PyTorch to other processes. The program prints what
arrives, what the receiver writes, and what one side still sees after the other has dropped its
tensors. Argument: a file for the seconds."""
import gc
import json
import sys
import time

import torch
import torch.multiprocessing as mp

SIZES = [1, 1000, 300_000, 3_000_000, 20_000_000]


def say(*words):
    print(*words, flush=True)


def receive(inbox, outbox):
    """Looks at each tensor, adds one, answers with its sum; keeps the last."""
    kept = None
    while True:
        item = inbox.get()
        if item is None:
            break
        if isinstance(item, str):
            kept = None
            gc.collect()
            torch.cuda.ipc_collect()
            outbox.put("dropped")
            continue
        before = float(item.double().sum())
        item.add_(1)
        torch.cuda.synchronize()
        kept = item if item.numel() >= SIZES[-1] else kept
        outbox.put((before, tuple(item.shape), item.dtype, item.device.index))
    outbox.put(float(kept.double().sum()) if kept is not None else None)


def make(outbox, done):
    """The other way round: the child's tensors, of which the parent takes some."""
    tensors = [torch.full((size,), 7, device="cuda", dtype=torch.int32) for size in SIZES]
    outbox.put(tensors)
    done.wait()
    say("child sees", [int(t.sum()) for t in tensors[:3]])


def parent():
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(inbox, outbox))
    child.start()
    torch.cuda.manual_seed(1)
    start = time.monotonic()
    for turn in range(3):
        for size in SIZES:
            tensor = torch.full((size,), turn + 1, device="cuda", dtype=torch.int32)
            inbox.put(tensor)
            answer = outbox.get(timeout=60)
            say(size, answer, int(tensor.sum()))
            del tensor
    base = torch.arange(1_000_000, device="cuda", dtype=torch.float32)
    view = base[1000:900_000:3]
    inbox.put(view)
    say("view", outbox.get(timeout=60), float(base[:2000].sum()))
    seconds = time.monotonic() - start
    inbox.put("drop")
    say(outbox.get(timeout=60))
    big = torch.zeros(SIZES[-1], device="cuda", dtype=torch.int32)
    inbox.put(big)
    outbox.get(timeout=60)
    del big
    gc.collect()
    torch.cuda.empty_cache()
    # Memory that a process still holds is not handed out again: the receiver sees its own bytes.
    torch.full((SIZES[-1],), 99, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    inbox.put(None)
    say("kept", outbox.get(timeout=60))
    child.join(60)
    say("exit", child.exitcode)

    done = context.Event()
    child = context.Process(target=make, args=(outbox, done))
    child.start()
    tensors = outbox.get(timeout=60)
    say("from child", [int(t.sum()) for t in tensors])
    for tensor in tensors:
        tensor.add_(1)
    torch.cuda.synchronize()
    done.set()
    del tensor, tensors
    gc.collect()
    child.join(60)
    say("exit", child.exitcode)
    return seconds


def main():
    if not torch.cuda.is_available():
        return 77
    seconds = parent()
    with open(sys.argv[1], "w") as file:
        json.dump({"seconds": seconds}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
