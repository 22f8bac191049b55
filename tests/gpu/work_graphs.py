# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's CUDA graphs: training steps are captured and replayed, with eager work of varying
shapes in between. New graphs are captured while old ones live. Losses go to stdout, exact; the
seconds to the file named first."""
import json
import sys
import time

import torch
import work_models
from torch.nn import functional as F

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False


class Captured:
    """A training step of one shape."""

    def __init__(self, model, optimizer, images, labels):
        self.images, self.labels = images.clone(), labels.clone()
        self.graph, self.loss = work_models.captured_step(model, optimizer, self.images,
                                                          self.labels, F.cross_entropy)

    def step(self, images, labels):
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss.item()


def main():
    torch.manual_seed(1)
    host = torch.Generator().manual_seed(23)
    model = work_models.Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    captured, start = [], None
    for i in range(60):
        size = 64 + 32 * (i // 15)
        images = torch.randn(8, 3, size, size, generator=host).cuda()
        labels = torch.randint(0, 100, (8,), generator=host).cuda()
        if i % 15 == 0:
            captured.append(Captured(model, optimizer, images, labels))
        loss = captured[-1].step(images, labels)
        # eager work beside it, in memory that comes and goes
        eager = (torch.arange(1000 + 7919 * i % 400000, device="cuda") % 251).sum().item()
        print(i, size, float(loss).hex(), eager)
        if i == 40:
            del captured[0]
            torch.cuda.empty_cache()
        start = start or time.perf_counter()
    with open(sys.argv[1], "w") as file:
        json.dump({"seconds": time.perf_counter() - start}, file)


if __name__ == "__main__":
    main()
