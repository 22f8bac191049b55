# SPDX-License-Identifier: BSD-2-Clause
"""Models of torchvision, transformers and torch_geometric with random weights on random shapes: how
much an allocator reserves for what such programs hold. The shapes depend on --seed alone, to which
each repetition of a workload adds 1.

work_frugal.py [--turns] [--seed N] [--steps N] [--warm N] [--small] [--device NAME]
               WORKLOAD..
  --turns   speaks the protocol of trainer.py; --steps are those of one turn, and the first turn
            begins with the --warm ones
  --small   sizes for a CPU

The packages are imported once. Each workload is a process of its own, forked before CUDA starts.
A process prints its figures as JSON: the seconds of each step after the first --warm ones, and what
PyTorch counts while its cache is on: bytes asked for and bytes reserved, at their peaks.
"""
import argparse
import ctypes
import json
import os
import random
import sys
import time

# A look for devices in the parent by NVML alone, which a forked child survives.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch.nn import functional as F

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = False
OPTIONS = argparse.Namespace(device="cuda", small=False)


def between(host, low, high, small):
    """A random whole number of the range, or of a range up to `small` where sizes are small."""
    return host.randint(min(low, small), small) if OPTIONS.small else host.randint(low, high)


def language_model(model, host, batches, lengths, precision=None):
    """Training on random tokens: step(i)."""
    model = model.to(OPTIONS.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens_of = torch.Generator().manual_seed(host.randrange(1 << 30))

    def step(_):
        shape = between(host, *batches, 2), between(host, *lengths, 40)
        tokens = torch.randint(0, model.config.vocab_size, shape,
                               generator=tokens_of).to(OPTIONS.device)
        with torch.autocast(torch.device(OPTIONS.device).type, precision, precision is not None):
            loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def bert(host):
    """BERT, batch 1 to 23, length 32 to 511."""
    from transformers import BertConfig, BertForMaskedLM
    few = {"num_hidden_layers": 2, "hidden_size": 48} if OPTIONS.small else {}
    return lambda: language_model(BertForMaskedLM(BertConfig(**few)), host, (1, 23), (32, 511))


def gpt2(host):
    """GPT-2 of 12 layers, bf16 where autocast chooses it, batch 2 to 8, length 128 to 1024."""
    from transformers import GPT2Config, GPT2LMHeadModel
    few = {"n_layer": 2, "n_embd": 48} if OPTIONS.small else {}
    return lambda: language_model(GPT2LMHeadModel(GPT2Config(**few)), host, (2, 8), (128, 1024),
                                  torch.bfloat16)


def mask_rcnn(host):
    """Mask R-CNN, 1 to 4 images of random sizes, with up to 8 things on each."""
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    def image_and_target():
        height, width = between(host, 320, 800, 96), between(host, 320, 800, 96)
        boxes = []
        for _ in range(host.randint(1, 8)):
            x, y = host.randrange(width - 32), host.randrange(height - 32)
            boxes.append((x, y, host.randrange(x + 16, width), host.randrange(y + 16, height)))
        masks = torch.zeros(len(boxes), height, width, dtype=torch.uint8, device=OPTIONS.device)
        for mask, (left, top, right, bottom) in zip(masks, boxes):
            mask[top:bottom, left:right] = 1
        labels = torch.tensor([host.randint(1, 90) for _ in boxes])
        target = {"boxes": torch.tensor(boxes, dtype=torch.float32).to(OPTIONS.device),
                  "labels": labels.to(OPTIONS.device), "masks": masks}
        return torch.rand(3, height, width, device=OPTIONS.device), target

    def build():
        sizes = {"min_size": (96,), "max_size": 128} if OPTIONS.small else {"min_size": (640,)}
        model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, **sizes)
        model = model.to(OPTIONS.device).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

        def step(_):
            images, targets = zip(*(image_and_target() for _ in range(between(host, 1, 4, 2))))
            loss = sum(model(list(images), list(targets)).values())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.item()
        return step
    return build


def graphs(host):
    """A net of graph attention and graph convolution, graphs of 1,000 to 60,000 nodes."""
    # torch_geometric asks for PyTorch's configuration, which starts CUDA to name its version.
    show, torch.__config__.show = torch.__config__.show, lambda: ""
    from torch_geometric.nn import GATConv, GCNConv
    torch.__config__.show = show

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = GATConv(64, 32, heads=4)
            self.second = GCNConv(128, 128)
            self.third = GATConv(128, 32, heads=4)
            self.last = GCNConv(128, 16)

        def forward(self, x, edges):
            x = F.elu(self.first(x, edges))
            x = F.relu(self.second(x, edges))
            return self.last(F.elu(self.third(x, edges)), edges)

    def build():
        model = Net().to(OPTIONS.device).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

        def step(_):
            nodes = between(host, 1000, 60000, 300)
            edges = torch.randint(0, nodes, (2, nodes * host.randint(4, 16)), device=OPTIONS.device)
            x = torch.randn(nodes, 64, device=OPTIONS.device)
            labels = torch.randint(0, 16, (nodes,), device=OPTIONS.device)
            loss = F.cross_entropy(model(x, edges), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()
        return step
    return build


def vit(host):
    """Inference of ViT-S on four streams, batch 1 to 39 on each."""
    from torchvision.models.vision_transformer import VisionTransformer

    def build():
        model = VisionTransformer(image_size=224, patch_size=16, num_layers=2 if OPTIONS.small
                                  else 12, num_heads=6, hidden_dim=384, mlp_dim=1536)
        model = model.to(OPTIONS.device).eval()
        on_gpu = OPTIONS.device != "cpu"
        streams = [torch.cuda.Stream() if on_gpu else None for _ in range(4)]

        @torch.no_grad()
        def step(_):
            found = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    images = torch.rand(between(host, 1, 39, 2), 3, 224, 224, device=OPTIONS.device)
                    found.append(model(images).float().sum())
            if on_gpu:
                torch.cuda.synchronize()
            return sum(value.item() for value in found)
        return step
    return build


WORKLOADS = {f.__name__: f for f in (bert, graphs, mask_rcnn, gpt2, vit)}
# Of the steps, where one takes long. Recordings of about twice as many steps have the same peak
# over live within 0.004.
PART = {"mask_rcnn": 0.3, "gpt2": 0.5}


def figures(seconds):
    """What PyTorch counts is 0 while its cache is off."""
    result = {"seconds": seconds}
    if OPTIONS.device != "cpu":
        counted = torch.cuda.memory_stats()
        result["requested_peak_bytes"] = counted.get("requested_bytes.all.peak", 0)
        result["reserved_peak_bytes"] = counted.get("reserved_bytes.all.peak", 0)
    return result


def play(workload, step, warm):
    """The steps of a turn after the warm ones: the seconds of each, and the loss of the last."""
    part = PART.get(workload, 1)
    warm, steps = int(warm * part), max(round(OPTIONS.steps * part), 1)
    seconds, loss = [], 0.0
    for i in range(warm + steps):
        start = time.perf_counter()
        loss = step(i)
        if i >= warm:
            seconds.append(time.perf_counter() - start)
    return seconds, loss


def run(workload, seed, build):
    """One workload in a process of its own."""
    torch.manual_seed(seed)
    step = build()
    seconds = []
    if OPTIONS.turns:
        if OPTIONS.device != "cpu":
            torch.cuda.synchronize()
        print("ready", os.getpid(), flush=True)
        while sys.stdin.readline().strip() == "go":
            seconds += play(workload, step, 0 if seconds else OPTIONS.warm)[0]
            print("turn", flush=True)
        print("done", json.dumps(figures(seconds)), flush=True)
    else:
        seconds, loss = play(workload, step, OPTIONS.warm)
        print(json.dumps({"workload": workload, "pid": os.getpid(), "loss": loss,
                          **figures(seconds)}), flush=True)


def check_cuda_not_started():
    """A child of a process that has started CUDA cannot use it."""
    try:
        count = ctypes.c_int()
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        not_initialized = 3
        if driver.cuDeviceGetCount(ctypes.byref(count)) != not_initialized:
            sys.exit("an import has started CUDA before the first process was forked")
    except OSError:
        pass  # not even loaded


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("workloads", choices=WORKLOADS, nargs="+")
    parser.parse_args(namespace=OPTIONS)
    # Each has imported its packages before the first is forked.
    runs = []
    for at, name in enumerate(OPTIONS.workloads):
        seed = OPTIONS.seed + OPTIONS.workloads[:at].count(name)
        runs.append((name, seed, WORKLOADS[name](random.Random(seed))))
    check_cuda_not_started()
    for name, seed, build in runs:
        child = os.fork()
        if not child:
            run(name, seed, build)
            return
        _, status = os.waitpid(child, 0)
        if OPTIONS.turns:
            print("gone", os.waitstatus_to_exitcode(status), flush=True)
        elif status:
            print(json.dumps({"workload": name, "status": os.waitstatus_to_exitcode(status)}),
                  flush=True)


if __name__ == "__main__":
    main()
