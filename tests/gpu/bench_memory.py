# SPDX-License-Identifier: BSD-2-Clause
"""How fast the GPU and the copy engines reach device memory. The forms are blocks of cudaMalloc,
the pool's blocks in both backings with different pasts, and memory mapped in chunks of one size.
Ranges of all forms that fit beside each other stay for all rounds, and take turns."""
import contextlib
import dataclasses
import json
import statistics
import tempfile
import time

import bench_peers
import bench_store
from bench_store import size_text

MIB, GIB = 1 << 20, 1 << 30
METRICS = (("random loads", "loads/ns"), ("dependent load", "ns"), ("copying kernel", "GB/s"),
           ("driver's copy", "GB/s"), ("from host", "GB/s"), ("to host", "GB/s"),
           ("to peer", "GB/s"), ("from peer", "GB/s"))
MAPPED = "mapped"
SEGMENTS = bench_peers.SHIM + ", segments"
BARE = bench_peers.Peer(bench_peers.BARE, "driver", "malloc")
# What a process takes beside the range.
CONTEXT_BYTES = GIB
TOGETHER = 12    # forms beside each other, at most


@dataclasses.dataclass(frozen=True)
class Form:
    peer: str
    what: str     # as a reader wants it
    request: str  # as bench_memory.c wants it
    backing: str = ""


def mapped(chunk, shifted=False):
    beside = ", 2 MiB beside a multiple of 1 GiB" if shifted else ""
    what = f"chunks of {size_text(chunk)}{beside}"
    return Form(MAPPED, what, f"{'shifted' if shifted else 'mapped'}:{chunk}")


BASE = Form(bench_peers.BARE, "", "malloc")
ARENA = Form(bench_peers.SHIM, "fresh", "malloc", "arena")
CHURN = Form(bench_peers.SHIM, "after churn", "churn", "arena")
SEGMENT = Form(SEGMENTS, "fresh", "malloc", "segment")


def blocks(size):
    return Form(bench_peers.SHIM, f"after blocks of {size_text(size)}", f"blocks:{size}", "arena")


def plan(suite):
    """[(size, forms, rounds, seconds)]; what matters most comes first, as time may run out."""
    if suite.simulate:
        return [(64 * MIB, [ARENA, CHURN, SEGMENT, mapped(20 * MIB)], 1, 60),
                (96 * MIB, [blocks(2 * MIB), mapped(32 * MIB, True)], 1, 60)]
    main = [ARENA, CHURN, SEGMENT, mapped(2 * MIB), mapped(GIB), mapped(32 * MIB), blocks(2 * MIB)]
    more = [mapped(GIB, True), blocks(32 * MIB), mapped(128 * MIB), mapped(20 * MIB)]
    if suite.quick:
        return [(8 * GIB, main, 3, 20)]
    return [(8 * GIB, main + more, 5, 25), (32 * GIB, main + more, 3, 50)]


class Place:
    """Memory of one form in a process; `chunks` is known once one under the shim has ended."""

    def __init__(self, suite, programs, form, bare, slot):
        self.suite, self.form, self.bare, self.slot = suite, form, bare, slot
        self.process, self.chunks, self.values, self.overs = bare, 0, [], []
        if form.backing:
            self.report = tempfile.NamedTemporaryFile(suffix=".json")
            env = (("GPUCACHE_BACKING", form.backing),
                   ("GPUCACHE_STATS", "exit:" + self.report.name))
            peer = dataclasses.replace(BARE, preload=True)
            self.process = bench_peers.start(suite, programs, peer, "memory", env)

    def make(self, size):
        answer = self.process.ask(f"make {self.slot} {self.form.request} {size}")
        self.suite.log(f"  memory: {size_text(size)}, {self.form.peer} {self.form.what}: {answer}")

    def measure(self):
        words = self.process.ask(f"measure {self.slot}").split()
        self.values.append([float(word) for word in words])
        return self.values[-1]

    def drop(self):
        """Gives the memory back: a process under the shim ends."""
        if not self.form.backing:
            self.process.ask(f"drop {self.slot}")
            return
        self.process.close()
        with self.report, contextlib.suppress(ValueError):
            pools = json.load(self.report).get("pools", [])
            self.chunks = sum(pool["num_device_alloc"] - pool["num_device_free"] for pool in pools)

    def rows(self, size):
        for i, (name, unit) in enumerate(METRICS):
            values = [line[i] for line in self.values]
            if not any(values):
                continue
            more = {"form": self.form.what}
            if self.chunks:
                more["chunks"] = self.chunks
            if self.overs:
                overs = [mine[i] / base[i] for mine, base in self.overs]
                more.update(over=statistics.median(overs), over_low=min(overs),
                            over_high=max(overs))
            yield bench_store.row("memory", name, self.form.peer, values, unit, size_bytes=size,
                                  **more)


def measure_group(suite, programs, base, forms, size, rounds):
    """Rows of these forms, in turns with cudaMalloc's range, whose figures are left in base."""
    places = []
    try:
        for slot, form in enumerate(forms, 1):
            places.append(Place(suite, programs, form, base.bare, slot))
            places[-1].make(size)
        for _ in range(rounds):
            its = base.measure()
            for place in places:
                place.overs.append((place.measure(), its))
        for place in places:
            place.drop()
        return [row for place in places for row in place.rows(size)]
    finally:
        for place in places:
            if place.process is not base.bare:
                place.process.kill()


def measure_size(suite, programs, bare, case):
    """The rows of one size; none if two such ranges do not fit beside each other."""
    size, forms, rounds, seconds = case
    rows, begin, base = [], time.monotonic(), Place(suite, programs, BASE, bare, 0)
    together = 2 if suite.simulate else min(
        (int(bare.ask("free")) - CONTEXT_BYTES) // (size + CONTEXT_BYTES) - 1, TOGETHER)
    if together < 1:
        return []
    base.make(size)
    while forms and (not rows or time.monotonic() - begin < seconds):
        rows += measure_group(suite, programs, base, forms[:together], size, rounds)
        forms = forms[together:]
    for form in forms:
        suite.log(f"  memory: no time for {size_text(size)}, {form.peer} {form.what}")
    return [*base.rows(size), *rows]


def memory(suite, programs):
    rows, failed = [], None
    for case in plan(suite):
        bare = bench_peers.start(suite, programs, BARE, "memory")
        try:
            rows += measure_size(suite, programs, bare, case)
            bare.close()
        except RuntimeError as error:  # the figures of the other sizes are worth having
            failed = error
            suite.log(f"  memory: {size_text(case[0])}: {error}")
        finally:
            bare.kill()
    if failed and not rows:
        raise failed
    return rows
