# SPDX-License-Identifier: BSD-2-Clause
"""A GPU full of memory that the program freed. Natively that memory is free for every other call
that takes memory. It must be so under the shim, which holds it idle: for the driver's calls, and
for PyTorch and its libraries."""
import os

import part_frameworks as frameworks
import suite as base

# What makes the simulated device as full as a real one gets.
SIMULATED = {"SIM_CAPACITY": "2G", "SIM_CTX_BYTES": "100M", "SIM_OBJECT_BYTES": "4M"}
TORCH = {"its native cache": {},
         "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
         "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}
# Deterministic products, as in the other parts; what NCCL may not use on every machine.
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8",
         "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}


def full(suite):
    program = suite.small("full")
    env = SIMULATED if suite.simulate else {}
    for name, more in {"arena": {}, "segments": {"GPUCACHE_BACKING": "segment"}}.items():
        suite.compare(f"the driver's calls, {name}",
                      *suite.bare_and_shim([program], env=dict(env, **more)))
    try:
        python = frameworks.python_with(suite, "torch")
    except base.Skip as reason:
        suite.row("PyTorch", verdict=f"skip: {reason}")
        return
    # Each fills the device: one after the other.
    for name, env in list(TORCH.items())[:2 if suite.quick else None]:
        frameworks.compared(suite, f"PyTorch, {name}", f"full-{name.split()[-1]}",
                            [python, frameworks.script("work_full.py"), "FIGURES"],
                            dict(env, **EXACT), at_least=100)
