# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's viewer of memory snapshots (torch.cuda._memory_viz) reads one, and says how much it has
found. It checks itself that the blocks of each segment fill it.

work_viz.py FILE.pickle"""
import pickle
import sys

from torch.cuda import _memory_viz as viz

with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
summary = viz.segsum(snapshot)
stacks = viz.memory(snapshot, format_flamegraph=str).splitlines()
events = viz.trace(snapshot).splitlines()
pages = [viz.trace_plot(snapshot), viz.trace_plot(snapshot, plot_segments=True),
         viz.segment_plot(snapshot)]
held = next(line for line in summary.splitlines() if line.startswith("total_reserved"))
# A snapshot of nothing would be read too.
if not stacks or len(events) < 100 or not all("<html>" in page for page in pages):
    sys.exit(f"{len(stacks)} stacks, {len(events)} events")
print(f"{held}, {len(stacks)} stacks, {len(events)} events")
