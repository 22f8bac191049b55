#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Writes what a program of some kind might have allocated, in the form of a recorded trace (RMM's
CSV).

  synthesize.py KIND SEED [FILE]     the same KIND and SEED always give the same trace
  synthesize.py --list

Sizes, lifetimes and the order of frees follow what programs of that kind do. They try the pool on
more than the recorded programs."""
import random
import sys

KIB, MIB = 1 << 10, 1 << 20
KINDS = {}


def kind(function):
    """Enters a program into the list under its own name."""
    KINDS[function.__name__] = function
    return function


class Program:
    """The events of a program, in order of time. Blocks are numbers."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.rows, self.live, self.count, self.time_us, self.thread = [], {}, 0, 0, 0
        self.stream = 0

    def pause(self, mean_us):
        self.time_us += int(self.random.expovariate(1 / mean_us)) + 1

    def row(self, action, block, size):
        self.pause(12)
        self.rows.append((self.thread, self.time_us, action, 0x7f0000000000 + block * 512, size,
                          self.stream))

    def alloc(self, size):
        self.count += 1
        size = max(int(size), 1)
        self.live[self.count] = size
        self.row("allocate", self.count, size)
        return self.count

    def free(self, *blocks):
        for block in blocks:
            self.row("free", block, self.live.pop(block))

    def temporary(self, size):
        self.free(self.alloc(size))

    def around(self, size, spread=0.3):
        return size * self.random.lognormvariate(0, spread)

    def write(self, file):
        file.write("Thread,Time,Action,Pointer,Size,Stream\n")
        for thread, time_us, action, pointer, size, stream in self.rows:
            seconds, micros = divmod(time_us, 1000000)
            file.write(f"{thread},{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}:"
                       f"{micros:06},"
                       f"{action},{pointer:#x},{size},{stream:#x}\n")


def transformer_weights(p, layers, width):
    return [p.alloc(width * width * factor * 2) for _ in range(layers)
            for factor in (3, 1, 4, 4)] + \
        [p.alloc(width * 4) for _ in range(layers * 4)]


@kind
def kv_cache(p):
    """Text generation: every token, each layer's keys and values are copied into a block one token
    longer."""
    layers, width = p.random.choice([(12, 768), (24, 2048), (32, 4096)])
    transformer_weights(p, layers, width)
    for _ in range(3):
        batch, tokens = p.random.choice([1, 2, 4, 8]), p.random.randrange(20, 800)
        cache = [p.alloc(batch * tokens * width * 2) for _ in range(layers * 2)]
        for _ in range(p.random.randrange(20, 120)):
            tokens += 1
            hidden = p.alloc(batch * width * 2)
            for layer in range(layers):
                query = p.alloc(batch * width * 6)
                for which in (2 * layer, 2 * layer + 1):
                    longer = p.alloc(batch * tokens * width * 2)
                    p.free(cache[which])
                    cache[which] = longer
                p.temporary(batch * tokens * width // 64 * 2)
                p.free(query)
                after = p.alloc(batch * width * 2)
                p.free(hidden)
                hidden = after
            p.temporary(batch * 50000 * 4)
            p.free(hidden)
            p.pause(500)
        p.free(*cache)


@kind
def serving(p):
    """Text generation for requests that come and go: caches of all lengths grow and end beside each
    other."""
    layers, width = p.random.choice([(4, 1024), (8, 2048)])
    transformer_weights(p, layers, width)
    requests = []
    for _ in range(350):
        if len(requests) < 24 and p.random.random() < 0.3:
            tokens = int(p.around(300, 1.0)) + 1
            requests.append([tokens, [p.alloc(tokens * width * 4) for _ in range(layers)]])
            p.temporary(tokens * width * 16)
        for request in requests:
            request[0] += 1
            if request[0] % 16 == 0:
                for layer in range(layers):
                    grown = p.alloc((request[0] + 16) * width * 4)
                    p.free(request[1][layer])
                    request[1][layer] = grown
        p.temporary(max(len(requests), 1) * width * 8)
        for request in [r for r in requests if p.random.random() < 0.02]:
            p.free(*request[1])
            requests.remove(request)
        p.pause(2000)


def train(p, sizes_of_step, parameters, steps):
    """Forward keeps activations, backward frees them in reverse and makes gradients; then the
    optimizer."""
    for size in parameters:
        p.alloc(size)
    state = []
    for _ in range(steps):
        activations, kept = sizes_of_step(), []
        batch = p.alloc(activations[0])
        for size in activations:
            if p.random.random() < 0.3:
                workspace = p.alloc(p.random.choice([size // 2, 8 * MIB, 32 * MIB]))
                kept.append(p.alloc(size))
                p.free(workspace)
            else:
                kept.append(p.alloc(size))
            if p.random.random() < 0.2:
                kept.append(p.alloc(size // 4))
        gradients, flowing = [], p.alloc(activations[-1])
        for i, block in enumerate(reversed(kept)):
            flown = p.alloc(p.live[block])
            p.free(flowing, block)
            flowing = flown
            if i < len(parameters):
                gradients.append(p.alloc(parameters[len(parameters) - 1 - i]))
        p.free(flowing, batch)
        if not state:
            state = [p.alloc(size) for size in parameters for _ in range(2)]
        for gradient in gradients:
            p.temporary(p.live[gradient])
        p.free(*gradients)
        p.pause(3000)


@kind
def train_varying(p):
    """Training on texts of every length: each step's activations have the sizes of its longest
    text."""
    layers, width = p.random.choice([(12, 768), (16, 1024), (24, 1024)])

    def step():
        tokens = int(min(p.around(2000, 0.6), 9000))
        return [tokens * width * factor for _ in range(layers) for factor in (2, 6, 2, 2, 8, 8, 2)]
    train(p, step, [width * width * f * 4 for _ in range(layers) for f in (3, 1, 4, 4)], 30)


@kind
def train_images(p):
    """Training of a convolution pyramid on images whose size changes from step to step."""
    stages = p.random.randrange(4, 6)

    def step():
        side, batch = p.random.choice(range(160, 640, 32)), p.random.choice([2, 4, 8])
        return [batch * (side >> s) * (side >> s) * (64 << s) * 4
                for s in range(1, stages + 1) for _ in range(p.random.randrange(3, 7))]
    train(p, step, [(64 << s) * (64 << s) * 9 * 4 for s in range(stages) for _ in range(5)], 40)


@kind
def detection(p):
    """Images of all sizes, each with a ragged number of boxes: large feature maps, many small
    blocks."""
    for _ in range(160):
        p.alloc(p.random.choice([KIB, 4 * KIB, 256 * KIB, MIB, 4 * MIB, 9 * MIB]))
    for _ in range(60):
        height, width = p.random.randrange(500, 1400), p.random.randrange(500, 1400)
        image = p.alloc(height * width * 12)
        maps = [p.alloc((height >> s) * (width >> s) * 256 * 4) for s in range(2, 7)]
        small = [p.alloc(p.random.choice([8, 512, 4 * KIB, 30 * KIB])) for _ in range(60)]
        boxes = int(p.around(200, 1.0)) + 1
        pooled = p.alloc(boxes * 256 * 49 * 4)
        hidden = p.alloc(boxes * 4096)
        p.free(pooled)
        masks = [p.alloc(boxes * 256 * 196 * 4), p.alloc(boxes * 80 * 784 * 4)]
        p.random.shuffle(small)
        p.free(*small, *maps, hidden, *masks, image)
        p.pause(4000)


@kind
def graph_network(p):
    """Sampled neighbourhoods: no two batches have a size in common."""
    features = p.random.choice([100, 256, 602])
    p.alloc(p.around(500 * MIB))
    weights = [p.alloc(features * 256 * 4) for _ in range(12)]
    for _ in range(250):
        nodes, edges = p.around(60000, 0.5), p.around(400000, 0.7)
        index = [p.alloc(edges * 8), p.alloc(edges * 8), p.alloc(nodes * 8)]
        kept = [p.alloc(nodes * features * 4)]
        for _ in range(3):
            messages = p.alloc(edges * 64 * 4)
            kept.append(p.alloc(nodes * 64 * 4))
            p.free(messages)
            nodes, edges = nodes / 3 + 1, edges / 4 + 1
        p.temporary(nodes * 47 * 4)
        for block in reversed(kept):
            gradient = p.alloc(p.live[block])
            p.free(block, gradient)
        for weight in weights[:4]:
            p.temporary(p.live[weight])
        p.free(*index)
        p.pause(1500)


@kind
def adaptive_mesh(p):
    """A solver on patches that are refined and coarsened: patches live long and die at random."""
    fields = p.random.choice([3, 5, 9])
    patches = []

    def patch():
        cells = p.random.choice([8, 16, 24, 32, 48]) ** 2 * p.random.choice([8, 16, 32, 64])
        return [p.alloc(cells * 8) for _ in range(fields)]
    for _ in range(150):
        patches.append(patch())
    for _ in range(60):
        for blocks in p.random.sample(patches, min(40, len(patches))):
            p.temporary(p.live[blocks[0]] // 4)
            p.temporary(p.around(64 * KIB))
        p.temporary(len(patches) * 2048)
        for blocks in [b for b in patches if p.random.random() < 0.12]:
            p.free(*blocks)
            patches.remove(blocks)
        aim = 150 + 100 * p.random.random()
        while len(patches) < aim:
            patches.append(patch())
        p.pause(3000)


@kind
def dataframe(p):
    """Tables of columns: filters, joins and groupings make columns of new lengths, with large
    scratch."""
    tables = []

    def table(rows):
        return [p.alloc(max(rows, 1) * p.random.choice([1, 4, 8, 8, 24]))
                for _ in range(p.random.randrange(3, 14))]
    for _ in range(250):
        if len(tables) < 3 or p.random.random() < 0.35:
            tables.append(table(int(p.around(2000000, 1.2))))
        else:
            one = p.random.choice(tables)
            rows = p.live[one[0]] // 8
            scratch = [p.alloc(rows * p.random.choice([4, 8, 16])) for _ in range(4)]
            sizes = [p.alloc(4), p.alloc(rows // 32 + 1)]
            tables.append(table(int(rows * p.random.random())))
            p.free(*scratch, *sizes)
        while len(tables) > 9 or sum(p.live.values()) > 6 << 30:
            gone = p.random.choice(tables)
            tables.remove(gone)
            p.free(*gone)
        p.pause(2500)


@kind
def service(p):
    """Sixteen threads, each with requests of its own: sizes and lifetimes over many orders of
    magnitude."""
    queues = [[] for _ in range(16)]
    for _ in range(12000):
        p.thread = p.random.randrange(16)
        mine = queues[p.thread]
        if mine and (len(mine) > 40 or p.random.random() < 0.48):
            p.free(mine.pop(p.random.randrange(len(mine)) if p.random.random() < 0.5 else 0))
        else:
            mine.append(p.alloc(2 ** p.random.uniform(8, 26)))


@kind
def ramp(p):
    """Phases that fill the memory with one mix of sizes, empty most of it, and go on with another
    mix."""
    kept = []
    for _ in range(7):
        low = p.random.uniform(9, 24)
        high, aim, blocks = low + p.random.uniform(1, 5), p.random.uniform(0.3, 2.5) * (1 << 30), []
        used = 0
        while used < aim and len(blocks) < 1200:
            blocks.append(p.alloc(2 ** p.random.uniform(low, high)))
            used += p.live[blocks[-1]]
        p.random.shuffle(blocks)
        stays = len(blocks) // p.random.choice([8, 20, 50])
        p.free(*blocks[stays:])
        kept += blocks[:stays]
        p.random.shuffle(kept)
        p.free(*kept[len(kept) // 2:])
        kept = kept[:len(kept) // 2]
        p.pause(20000)


@kind
def pinned_holes(p):
    """Each step leaves one result that lives on between its large temporaries: what makes holes."""
    results = []
    for step in range(500):
        temporaries = []
        for _ in range(p.random.randrange(3, 9)):
            temporaries.append(p.alloc(p.around(24 * MIB, 0.8)))
            if p.random.random() < 0.25:
                results.append(p.alloc(p.around(3 * MIB, 0.6)))
        p.free(*temporaries)
        if step % 40 == 39:
            p.random.shuffle(results)
            p.free(*results[60:])
            del results[60:]
        p.pause(1000)


@kind
def diffusion(p):
    """Image generation: the same pyramid up and down many times, at a resolution of each
    request."""
    weights = [p.alloc((320 << s) * (320 << s) * 9 * 2) for s in range(3) for _ in range(10)]
    for _ in range(12):
        side, batch = p.random.choice([48, 64, 80, 96, 112, 128]), p.random.choice([1, 2, 4])
        latent = p.alloc(batch * 4 * side * side * 4)
        for _ in range(10):
            skips, flowing = [], p.alloc(batch * 320 * side * side * 2)
            for scale in (0, 1, 2):
                pixels = (side >> scale) ** 2
                for _ in range(3):
                    heads = p.alloc(batch * 8 * pixels * min(pixels, 4096) * 2)
                    skips.append(p.alloc(batch * (320 << scale) * pixels * 2))
                    p.free(heads)
            for skip in reversed(skips):
                joined = p.alloc(p.live[skip] * 2)
                p.free(flowing, skip)
                flowing = joined
            p.free(flowing)
            p.pause(5000)
        p.temporary(batch * 3 * (side * 8) ** 2 * 4 * 8)
        p.free(latent)
    p.free(*weights)


@kind
def notebook(p):
    """Somebody tries things: results are kept for long, some are dropped, much is done twice."""
    variables = {}
    for _ in range(1500):
        name, size = p.random.randrange(40), 2 ** p.random.uniform(10, 30)
        if sum(p.live.values()) + 3 * size > 20 << 30:
            size = 2 ** p.random.uniform(10, 22)
        scratch = p.alloc(size * p.random.choice([0.5, 1, 2]))
        result = p.alloc(size)
        if p.random.random() < 0.5:
            p.temporary(size)
        p.free(scratch)
        if name in variables:
            p.free(variables[name])
        variables[name] = result
        p.pause(30000)


@kind
def streams(p):
    """Inference of batches of every size, each whole batch on one of four streams in turn."""
    width, tokens = p.random.choice([(384, 197), (768, 197), (384, 577)])
    transformer_weights(p, 24, width)
    for turn in range(100):
        p.stream = turn % 4 + 1
        token = p.random.randrange(1, 40) * tokens * width * 4
        image = p.alloc(token * 2)
        flowing = p.alloc(token)
        p.free(image)
        for _ in range(12):
            for wide in (3, 4):
                normed = p.alloc(token)
                inner = p.alloc(token * wide)
                p.free(normed)
                after = p.alloc(token * (1 if wide == 3 else 4))
                p.free(inner)
                out = p.alloc(token)
                p.free(after)
                summed = p.alloc(token)
                p.free(flowing, out)
                flowing = summed
        p.free(flowing)
        p.pause(100)


def synthesize(name, seed):
    """The program, its blocks freed at the end."""
    p = Program(f"{name} {seed}")
    KINDS[name](p)
    p.free(*list(p.live))
    return p


def main(arguments):
    if arguments == ["--list"]:
        print("\n".join(KINDS))
        return 0
    if len(arguments) not in (2, 3) or arguments[0] not in KINDS:
        print(__doc__, "Kinds: " + ", ".join(KINDS), sep="\n", file=sys.stderr)
        return 2
    program = synthesize(arguments[0], arguments[1])
    if len(arguments) == 2:
        program.write(sys.stdout)
    else:
        with open(arguments[2], "w", encoding="utf-8") as file:
            program.write(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
