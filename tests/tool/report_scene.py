# SPDX-License-Identifier: BSD-2-Clause
"""Traces of two processes on one GPU, always the same: they lend, flush, park, have idle memory, a
site that grows and one that asks often, and one of them runs out of memory."""
import os

import gct
from gct import MIB

S = 10**9
GPU_BYTES = 16 << 30
CREATE_NS, MAP_NS = 900_000, 40_000
# Code of libraries that are not there: places have no names but these.
OBJECTS = [(0x100000 * (number + 1), 0x100000, path) for number, path in enumerate(
    ("/usr/bin/python3.11", "/opt/lib/libtorch_cuda.so", "/opt/lib/libcublas.so.13",
     "/opt/lib/libnccl.so.2", "/opt/lib/libloader.so"))]
PYTHON, TORCH, CUBLAS, NCCL, LOADER = (start for start, _, _ in OBJECTS)
# Of each site the return addresses, the innermost first.
WEIGHTS, ACTIVATIONS, OPTIMIZER, WORKSPACE, CHANNELS, BATCHES, CACHE, LOGITS = range(1, 9)
PATHS = [(TORCH + 0x10, PYTHON + 0x10), (TORCH + 0x20, TORCH + 0x90, PYTHON + 0x20),
         (TORCH + 0x30, PYTHON + 0x30), (CUBLAS + 0x10, TORCH + 0x90, PYTHON + 0x20),
         (NCCL + 0x10, TORCH + 0xa0, PYTHON + 0x10), (LOADER + 0x10, PYTHON + 0x40),
         (LOADER + 0x20, PYTHON + 0x40), (TORCH + 0x40, PYTHON + 0x50)]


class Program:
    """Its events, of times in s and sizes in MiB."""

    def __init__(self):
        self.events, self.place, self.handles = [], 0x7f0000000000, 0
        self.tell(0, "CONTEXT", 0, GPU_BYTES, said=b"GPU-0 a GPU")

    def tell(self, at, kind, first=0, second=0, **more):
        self.events.append((round(at * S), kind, first, second, more))

    def hold(self, at, mib):
        """Device memory. Returns its address."""
        self.handles += 1
        self.place += mib * MIB
        self.tell(at, "CREATE", self.handles, mib * MIB, aux=CREATE_NS)
        self.tell(at, "MAP", self.place - mib * MIB, mib * MIB, aux=MAP_NS)
        return self.place - mib * MIB

    def give_back(self, at, address, mib):
        self.tell(at, "UNMAP", address, mib * MIB, aux=MAP_NS)
        self.tell(at, "RELEASE", 0, mib * MIB, aux=CREATE_NS)

    def ask(self, at, until, address, mib, site):
        """A block. until: None, it stays."""
        self.tell(at, "ALLOC", address, round(mib * MIB), site=site, aux=3000)
        if until is not None:
            self.tell(until, "FREE", address)

    def write(self, path, span_s, lead_s, pid, words):
        gct.write_program(
            path, self.events, round(span_s * S), OBJECTS, PATHS, round((100 + lead_s) * S),
            pid=pid, program=words.split()[0].encode(), command=words.encode(),
            boot_id=b"one boot of many", library_version=b"1.0")


def _trainer():
    its = Program()
    weights, steps, late = its.hold(0.5, 3072), its.hold(2, 4096), its.hold(30, 2048)
    its.ask(1, None, weights, 2400, WEIGHTS)
    its.ask(2, None, weights + 2400 * MIB, 600, OPTIMIZER)
    its.ask(2.5, None, steps, 512, CHANNELS)
    its.ask(3, None, steps + 512 * MIB, 96, WORKSPACE)
    for number in range(26):  # a step: forward, backward
        at, free = 4 + 2 * number, steps + 700 * MIB
        if 16 <= at < 22:
            continue  # validation: idle
        for layer in range(6):
            its.ask(at + 0.1 * layer, at + 1.8 - 0.15 * layer, free, 380 + 12 * layer,
                    ACTIVATIONS)
            free += 460 * MIB
        its.ask(at + 0.7, at + 0.9, free, 300 + 8 * (number % 5), LOGITS)
        its.ask(at, None, late + number * 12 * MIB if at >= 30 else
                weights + (3005 + number) * MIB, 1 if at < 30 else 11, CACHE)
    spare = its.hold(9, 1024)
    its.give_back(17, spare, 1024)
    its.tell(17, "FLUSH", 1024 * MIB, 11_000_000, said=b"request")
    its.ask(30.5, None, late + 600 * MIB, 900, OPTIMIZER)
    its.tell(29.9, "LEND_ASK", 2048 * MIB, 1)
    its.tell(0, "OPTION", said=b"GPUCACHE_IDLE_TIMEOUT=90s", aux=1)
    its.tell(55, "ALLOC_FAILED", 2, 6144 * MIB, site=LOGITS, aux=9_000_000)
    its.tell(3, "PASSED", 0x90, 256 * MIB, site=CHANNELS, aux=1)
    return its


def _server():
    its = Program()
    cache, more = its.hold(0.5, 2048), its.hold(3, 2560)
    its.ask(1, None, cache, 1500, WEIGHTS)
    for number in range(60):
        at = 3 + 0.7 * number
        if not 24 <= at <= 27:
            its.ask(at, at + 0.5, cache + 1600 * MIB, 60 + number % 7 * 40, BATCHES)
            if at < 20:
                its.ask(at + 0.1, at + 0.4, more, 900 + number % 3 * 500, ACTIVATIONS)
    its.give_back(24.9, more, 2560)
    its.tell(24.9, "LEND_GIVE", 2560 * MIB)
    its.give_back(38.4, cache, 2048)  # a park gives handles to the driver, and a wake makes others
    its.tell(38.5, "PARK", 2048 * MIB, 200_000_000)
    its.tell(40.9, "CREATE", 9, 2048 * MIB, aux=CREATE_NS)
    its.tell(40.9, "MAP", cache, 2048 * MIB, aux=MAP_NS)
    its.tell(41, "WAKE", 2048 * MIB, 180_000_000)
    return its


def write(folder):
    """The paths of the traces."""
    found = [os.path.join(folder, name) for name in ("trainer.gct", "server.gct")]
    trainer, server, lead_s = _trainer(), _server(), 5
    held = [(ns + its[1], size if kind == "CREATE" else -size)
            for its in ((trainer, 0), (server, lead_s * S))
            for ns, kind, _, size, _ in its[0].events if kind in ("CREATE", "RELEASE")]
    for second in range(60):  # what the driver says: also contexts, and somebody else
        others = (700 if second < 20 else 1900) * MIB
        trainer.tell(second + 0.2, "GPU", GPU_BYTES - others - sum(
            size for ns, size in held if ns <= (second + 0.2) * S), GPU_BYTES)
    trainer.write(found[0], 60, 0, 4711, "trainer --epochs 3")
    server.write(found[1], 50, lead_s, 4712, "server --model small")
    return found
