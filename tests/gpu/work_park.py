# SPDX-License-Identifier: BSD-2-Clause
"""Small workloads of PyTorch, each of which reaches the GPU in another way. Names a segment for
park_work.c before each, by the library that PARK_WORK names; without it they only run.

    work_park.py [WORKLOAD ..]"""
import ctypes
import os
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")


def model():
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512),
                         nn.Linear(512, 256)).cuda()


def steps(net, count, pinned=False):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(count):
        inputs = torch.randn(64, 256)
        inputs = inputs.pin_memory().cuda(non_blocking=True) if pinned else inputs.cuda()
        loss = (net(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def train():
    torch.manual_seed(1)
    steps(model(), 5)
    steps(model(), 5, pinned=True)
    layer = nn.TransformerEncoderLayer(128, 4, batch_first=True).cuda()
    layer(torch.randn(8, 64, 128, device="cuda")).sum().backward()


def compiled():
    steps(torch.compile(model()), 3)


def compiled_graphs():
    steps(torch.compile(model(), mode="reduce-overhead"), 4)


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION,
                    SDPBackend.EFFICIENT_ATTENTION):
        q, k, v = (torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.float16,
                               requires_grad=True) for _ in range(3))
        try:
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
        except RuntimeError as error:
            print(f"{backend}: {str(error).splitlines()[0]}", file=sys.stderr)


def cublaslt():
    a = torch.randn(256, 256, device="cuda")
    half = a.to(torch.bfloat16)
    F.gelu(torch.addmm(half[0], half, half))
    if torch.cuda.get_device_capability() >= (8, 9):
        one = torch.ones((), device="cuda")
        torch._scaled_mm(a.to(torch.float8_e4m3fn), a.to(torch.float8_e4m3fn).t(), scale_a=one,
                         scale_b=one, out_dtype=torch.bfloat16)
    torch.bmm(a[None].expand(4, -1, -1), a[None].expand(4, -1, -1))


def cudnn():
    torch.backends.cudnn.benchmark = True
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(),
                        nn.Conv2d(32, 32, 3)).cuda()
    for _ in range(3):
        net(torch.randn(8, 3, 64, 64, device="cuda")).sum().backward()
    rnn = nn.LSTM(64, 64).cuda()
    rnn(torch.randn(16, 8, 64, device="cuda"))[0].sum().backward()


def graphs():
    net, inputs = model(), torch.randn(64, 256, device="cuda")
    net(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        outputs = net(inputs)
    for _ in range(10):
        inputs.copy_(torch.randn(64, 256))
        graph.replay()
        outputs.cpu()


def mixed():
    x = torch.randn(1 << 20, device="cuda")
    x.sort()
    x.cumsum(0)
    x.topk(100)
    x.unique()
    torch.fft.rfft(x)
    torch.randperm(1000, device="cuda")
    square = torch.randn(128, 128, device="cuda")
    torch.linalg.solve(square, square)
    torch.linalg.svd(square)
    (square.to_sparse() @ square).to("cpu")
    big = torch.empty(64 << 20, dtype=torch.uint8)
    big.cuda().cpu()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.mul(2).to("cpu", non_blocking=True)
    torch.zeros(1 << 20, device="cuda").record_stream(side)


def nccl():
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    dist.init_process_group("nccl", rank=0, world_size=1,
                            device_id=torch.device("cuda", torch.cuda.current_device()))
    x = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    out = torch.empty(1 << 16, device="cuda")
    dist.all_gather_into_tensor(out, x)
    torch.cuda.synchronize()
    dist.destroy_process_group()


WORKLOADS = {"train": train, "attention": attention, "cublaslt": cublaslt, "cudnn": cudnn,
             "graphs": graphs, "mixed": mixed, "nccl": nccl, "compile": compiled,
             "compile-graphs": compiled_graphs}


def main():
    if not torch.cuda.is_available():
        print("PyTorch has no GPU")
        sys.exit(77)
    library = os.environ.get("PARK_WORK")
    segment = ctypes.CDLL(library).park_work_segment if library else lambda name: None
    torch.zeros(1, device="cuda")
    for name in sys.argv[1:] or WORKLOADS:
        torch.cuda.synchronize()
        segment(name.encode())
        try:
            WORKLOADS[name]()
            torch.cuda.synchronize()
        except Exception as error:  # the other workloads still tell
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[:1]}",
                  file=sys.stderr)
        torch.cuda.synchronize()
    segment(b"end")


main()
