# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's workloads of the GPU suite. Here only their figures count."""
import part_ddp
import part_torch


def torch(suite, programs):
    return part_torch.rows_of(suite) + part_ddp.rows_of(suite)
