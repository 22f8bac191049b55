# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch workloads. Losses go to stdout, exact (hexadecimal floats); times to the file named first.

work_torch.py FIGURES [--steps N] [--pause] WORKLOAD..
  gpt      a small transformer, training, batch and length varying
  conv     a residual convolution net, training, image size varying
  streams  inference on four streams
With --pause the first workload stops half way: it says "paused LIVE_BYTES" and waits for a line.
"""
import argparse
import gc
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.backends.cudnn.benchmark = False
torch.set_float32_matmul_precision("high")
DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=8192, width=768, layers=6, heads=12):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.short = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class Net(nn.Module):
    def __init__(self, classes=100):
        super().__init__()
        widths = [32, 64, 128, 256]
        self.stem = nn.Conv2d(3, widths[0], 5, padding=2)
        self.blocks = nn.Sequential(*(Residual(a, b) for a, b in zip(widths, widths[1:])))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


def gpt_steps():
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    host = torch.Generator().manual_seed(7)

    def step(i):
        batch, length = 2 + (i * 5) % 9, 96 + 32 * ((i * 7) % 11)
        tokens = torch.randint(0, 8192, (batch, length + 1), generator=host).to(DEVICE)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def conv_steps():
    model = Net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    host = torch.Generator().manual_seed(9)

    def step(i):
        batch, size = 8 + 4 * (i % 5), 96 + 16 * ((i * 3) % 9)
        images = torch.randn(batch, 3, size, size, generator=host).to(DEVICE)
        labels = torch.randint(0, 100, (batch,), generator=host).to(DEVICE)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def streams_steps():
    model = Net().to(DEVICE).eval()
    streams = [torch.cuda.Stream() for _ in range(4)]
    host = torch.Generator().manual_seed(11)

    def step(i):
        sums = []
        images = [torch.randn(4 + (i + k) % 3, 3, 128 + 32 * k, 128, generator=host).to(DEVICE)
                  for k in range(len(streams))]
        torch.cuda.synchronize()
        with torch.no_grad():
            for stream, image in zip(streams, images):
                with torch.cuda.stream(stream):
                    sums.append(model(image.sin() + image.cos()).double().sum())
        torch.cuda.synchronize()
        return sum(value.item() for value in sums)
    return step


WORKLOADS = {"gpt": gpt_steps, "conv": conv_steps, "streams": streams_steps}


def live_bytes():
    """Device memory of every tensor alive, each storage once."""
    storages = {}
    for item in gc.get_objects():
        try:
            if isinstance(item, torch.Tensor) and item.is_cuda:
                for tensor in (item, item.grad if item.is_leaf else None):
                    if tensor is not None:
                        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        except ReferenceError:
            pass
    return sum(storages.values())


def run(name, steps, repeats, pause):
    """The workload, `repeats` times over after a warm-up; the seconds of the fastest and all losses."""
    torch.manual_seed(1)
    step = WORKLOADS[name]()
    losses, times = [], []
    for repeat in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(steps):
            if pause and repeat == 1 and i == steps // 2:
                torch.cuda.synchronize()
                gc.collect()
                print(f"paused {live_bytes()}", flush=True)
                sys.stdin.readline()
            losses.append(step(i))
        torch.cuda.synchronize()
        if repeat:
            times.append(time.perf_counter() - start)
    for i in range(0, len(losses), 10):
        print(name, i, *(float(loss).hex() for loss in losses[i:i + 10]))
    return min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("figures")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pause", action="store_true")
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    options = parser.parse_args()
    figures = {}
    for name in options.workloads:
        figures[name] = run(name, options.steps, options.repeats, options.pause)
        gc.collect()
    figures["reserved_peak_bytes"] = torch.cuda.max_memory_reserved()
    with open(options.figures, "w") as file:
        json.dump(figures, file)


if __name__ == "__main__":
    main()
