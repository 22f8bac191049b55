# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's workloads, as the GPU suite plays them; here only their figures count."""
import part_ddp
import part_torch


def torch(suite, programs):
    return part_torch.rows_of(suite) + part_ddp.rows_of(suite)


def text(rows):
    return "\n".join(f"{entry['name']:10}{entry['peer']:36}{entry['value']:16,.2f} {entry['unit']:6}"
                     f"{entry.get('low', entry['value']):12,.2f} .. {entry.get('high', entry['value']):,.2f}"
                     for entry in rows)
