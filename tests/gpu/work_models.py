# SPDX-License-Identifier: BSD-2-Clause
"""The models that the PyTorch workloads train and run. Each function of WORKLOADS builds a model
and returns step(i) -> loss; shapes vary from step to step, the same in every run."""
import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past=None):
        """past: keys and values of earlier tokens; then returns the longer ones as well."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads,
                                               -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=x.device)
        mask = mask.triu(1 + k.shape[2] - length)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x if past is None else (x, (k, v))


class Gpt(nn.Module):
    def __init__(self, vocabulary=8192, width=768, layers=6, heads=12):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, past=None):
        begin = 0 if past is None else past[0][0].shape[2]
        x = self.token(tokens) + self.place(torch.arange(begin, begin + tokens.shape[1],
                                                         device=tokens.device))
        if past is None:
            for block in self.blocks:
                x = block(x)
            return self.head(x)
        for i, block in enumerate(self.blocks):
            x, past[i] = block(x, past[i])
        return self.head(x[:, -1])


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


class Unet(nn.Module):
    """Down and up again with skips, the shape of a diffusion model's denoiser."""
    def __init__(self, widths=(32, 64, 128, 192)):
        super().__init__()
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:]))
        self.downs = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1),
                                                 nn.GroupNorm(8, b),
                                                 nn.SiLU(), nn.Conv2d(b, b, 3, padding=1),
                                                 nn.SiLU())
                                   for a, b in pairs)
        self.ups = nn.ModuleList(nn.Sequential(nn.Conv2d(a + b, a, 3, padding=1),
                                               nn.GroupNorm(8, a), nn.SiLU())
                                 for a, b in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x):
        skips = [self.first(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.ups:
            skip = skips.pop()
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
            x = up(torch.cat((skip, x), 1))
        return self.last(x)


def training(model, optimizer, batch_of, loss_of):
    def step(i):
        loss = loss_of(model, *batch_of(i))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def captured_step(model, optimizer, inputs, targets, loss_of):
    """A training step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(inputs), targets).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return graph, loss


def gpt():
    """Training of a small transformer, batch and length varying."""
    host = torch.Generator().manual_seed(7)
    model = Gpt().to(DEVICE)

    def batch(i):
        count, length = 2 + (i * 5) % 9, 96 + 32 * ((i * 7) % 11)
        tokens = torch.randint(0, 8192, (count, length + 1), generator=host).to(DEVICE)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(model, inputs, targets):
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-4), batch, loss)


def conv():
    """Training of a residual convolution net, image size varying."""
    host = torch.Generator().manual_seed(9)
    model = Net().to(DEVICE)

    def batch(i):
        count, size = 8 + 4 * (i % 5), 96 + 16 * ((i * 3) % 9)
        images = torch.randn(count, 3, size, size, generator=host).to(DEVICE)
        return images, torch.randint(0, 100, (count,), generator=host).to(DEVICE)

    def loss(model, images, labels):
        return F.cross_entropy(model(images), labels)
    return training(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), batch, loss)


def unet():
    """Training of a small denoiser, image size and batch varying."""
    host = torch.Generator().manual_seed(13)
    model = Unet().to(DEVICE)

    def batch(i):
        shape = 2 + (i * 3) % 7, 4, 64 + 32 * (i % 4), 64 + 32 * ((i * 5) % 3)
        images = torch.randn(shape, generator=host).to(DEVICE)
        return images, torch.randn(shape, generator=host).to(DEVICE)

    def loss(model, images, noise):
        return F.mse_loss(model(images + 0.3 * noise), noise)
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-4), batch, loss)


def lstm():
    """Training of an LSTM cell by cell: many small tensors, sequence length varying."""
    host = torch.Generator().manual_seed(17)
    model = nn.ModuleDict({"cell": nn.LSTMCell(128, 256), "head": nn.Linear(256, 128)}).to(DEVICE)

    def batch(i):
        return (torch.randn(12 + (i * 7) % 17, 8 + (i * 5) % 23, 128, generator=host).to(DEVICE),)

    def loss(model, sequence):
        state, losses = None, []
        for t in range(len(sequence) - 1):
            state = model["cell"](sequence[t], state)
            losses.append(F.mse_loss(model["head"](state[0]), sequence[t + 1]))
        return torch.stack(losses).mean()
    return training(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, loss)


def decode():
    """Inference with keys and values that grow token by token, prompt and batch varying."""
    host = torch.Generator().manual_seed(19)
    model = Gpt(layers=4).to(DEVICE).eval()

    @torch.no_grad()
    def step(i):
        count, length = 1 + (i * 3) % 8, 32 + 16 * ((i * 5) % 13)
        tokens = torch.randint(0, 8192, (count, length), generator=host).to(DEVICE)
        empty = torch.empty(count, 12, 0, 64, device=DEVICE)
        past, total = [(empty, empty)] * len(model.blocks), 0.0
        for _ in range(12):
            logits = model(tokens, past)
            tokens = logits.argmax(-1, keepdim=True)
            total = total + logits.double().mean()
        return total.item()
    return step


def streams():
    """Inference on four streams at once, sizes varying."""
    host = torch.Generator().manual_seed(11)
    model = Net().to(DEVICE).eval()
    streams = [torch.cuda.Stream() for _ in range(4)]

    @torch.no_grad()
    def step(i):
        sums = []
        images = [torch.randn(4 + (i + k) % 3, 3, 128 + 32 * k, 128, generator=host).to(DEVICE)
                  for k in range(len(streams))]
        torch.cuda.synchronize()
        for stream, image in zip(streams, images):
            with torch.cuda.stream(stream):
                sums.append(model(image.sin() + image.cos()).double().sum())
        torch.cuda.synchronize()
        return sum(value.item() for value in sums)
    return step


WORKLOADS = {f.__name__: f for f in (gpt, conv, unet, lstm, decode, streams)}
