# SPDX-License-Identifier: BSD-2-Clause
"""A training that stops before each step until a line comes, so that it can be parked there. Each
answer is the step's loss, exact. Streams, pinned uploads and, every fourth step, a CUDA graph,
where PyTorch's cache is on: without it no graph can be captured, and the same work runs by itself.
On two GPUs the second half of the model is on the other one, and what goes between them is copied.

work_sleep.py [GPUS]"""
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402
from torch import nn  # noqa: E402

LAST = torch.device("cuda", int(sys.argv[1]) - 1 if len(sys.argv) > 1 else 0)

torch.manual_seed(3)
torch.use_deterministic_algorithms(True)
front = nn.Sequential(nn.Linear(1024, 4096), nn.GELU()).cuda()
rear = nn.Sequential(nn.LayerNorm(4096), nn.Linear(4096, 1024)).to(LAST)
optimizer = torch.optim.AdamW([*front.parameters(), *rear.parameters()], lr=1e-3)
side = torch.cuda.Stream()
static = torch.zeros(64, 1024, device="cuda")
doubled = (static * 2).sum()
torch.cuda.synchronize()
graph = None if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ else torch.cuda.CUDAGraph()
if graph:
    with torch.cuda.graph(graph):
        doubled = (static * 2).sum()

print("ready", flush=True)
for step, line in enumerate(sys.stdin):
    if line.strip() == "end":
        break
    batch = torch.randn(64, 1024, generator=torch.Generator().manual_seed(step)).pin_memory()
    with torch.cuda.stream(side):
        inputs = batch.cuda(non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    inputs.record_stream(torch.cuda.current_stream())
    loss = (rear(front(inputs).to(LAST)) - inputs.to(LAST)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    extra = 0.0
    if step % 4 == 0:
        static.copy_(inputs)
        if graph:
            graph.replay()
        else:
            doubled = (static * 2).sum()
        extra = doubled.item()
    print(float(loss.item()).hex(), float(extra).hex(), flush=True)
