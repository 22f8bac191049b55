# SPDX-License-Identifier: BSD-2-Clause
"""Memory beside the pool in a trace: what its records mean, in any order that a program can make,
and in orders that none can."""
import itertools
import random
import unittest

from fake import lines_of

import gct
from gpucache import beside, trace, usage

GROUP = {name: beside.GROUPS.index(f"num_{name}_allocs")
         for name in ("async", "managed", "vmm", "array", "host")}
BASE, HANDLE, PAGE = 0x700000000000, 0x5500, 2 << 20
IN_DEVICE = ("async", "vmm", "array")


def used(*rows, span_ns=1000):
    """rows: (kind, a, b, aux) or less of it, each a nanosecond later."""
    events = []
    for ns, row in enumerate(rows):
        kind, first, second, aux = (*row, 0, 0, 0)[:4]
        events.append(trace.Event(ns, trace.KIND[kind], first, second,
                                  GROUP.get(aux, aux), 1, 0, 1, ""))
    return usage.Usage(gct.Given(events, max(span_ns, len(events))))


class Records(unittest.TestCase):
    def live(self, *rows):
        """{group: bytes at the end}"""
        found = used(*rows)
        kinds = {name: found.beside.kinds[f"num_{name}_allocs"].live for name in GROUP
                 if found.beside.kinds[f"num_{name}_allocs"].live}
        self.assertEqual(sum(size for name, size in kinds.items() if name in IN_DEVICE) +
                         sum(block.bytes for block in found.blocks.values()), found.live)
        return kinds

    def test_a_block_that_is_freed_twice_is_gone(self):
        for free in itertools.product(("FREE", "FREE_ASYNC"), repeat=2):
            found = used(("ALLOC", BASE, 64), (free[0], BASE), (free[1], BASE),
                         ("FREE_FAILED", BASE, 1))
            self.assertEqual((found.live, found.blocks), (0, {}), free)

    def test_a_free_that_failed_frees_no_memory_of_the_driver(self):
        for free in "FREE", "FREE_ASYNC":
            begin = [("ALLOC_DRIVER", BASE, 64), (free, BASE), ("FREE_FAILED", BASE, 1)]
            found = used(*begin)
            self.assertEqual((found.live, found.reserved), (64, 64))
            found = used(*begin, ("FREE", BASE))
            self.assertEqual((found.live, found.reserved, found.mean_idle()), (0, 0, 0))

    def test_orders_of_records(self):
        one = ("PASSED", HANDLE, PAGE, "vmm"), ("PASSED_MAP", BASE, HANDLE), ("PASSED_FREE", HANDLE)
        unmapped = "PASSED_UNMAP", BASE, PAGE
        failed = *one, unmapped, ("FREE_FAILED", BASE, 1)
        for what, rows, live in (
                ("frees of several threads fail", [
                    ("PASSED", HANDLE, 64, "array"), ("PASSED", HANDLE + 1, 32, "array"),
                    ("PASSED_FREE", HANDLE), ("PASSED_FREE", HANDLE + 1),
                    ("FREE_FAILED", HANDLE, 1), ("FREE_FAILED", HANDLE + 1, 1)], {"array": 96}),
                ("an unmapping that fails unmaps nothing", failed, {"vmm": PAGE}),
                ("and a later one all", [*failed, unmapped], {}),
                ("once", [*failed, unmapped, unmapped, failed[-1]], {}),
                # Though the first part has as many bytes as go, of which half is mapped there.
                ("an unmapping is of all that is mapped there", [
                    ("PASSED", HANDLE, 4 * PAGE, "vmm"), ("PASSED_MAP", BASE, HANDLE),
                    ("PASSED", HANDLE + 1, 2 * PAGE, "vmm"),
                    ("PASSED_MAP", BASE + 2 * PAGE, HANDLE + 1), ("PASSED_FREE", HANDLE),
                    ("PASSED_FREE", HANDLE + 1), ("PASSED_UNMAP", BASE, 4 * PAGE)], {}),
                ("an address is mapped again though nobody saw it unmapped", [
                    *one, ("PASSED", HANDLE + 1, PAGE, "vmm"), ("PASSED_MAP", BASE, HANDLE + 1),
                    ("PASSED_FREE", HANDLE + 1), unmapped], {}),
                ("a number is taken again while its memory is mapped",
                 [*one, ("PASSED", HANDLE, 3 * PAGE, "vmm")], {"vmm": 4 * PAGE}),
                ("what nobody saw come may go", [
                    ("PASSED_FREE", HANDLE), ("PASSED_HOLD", HANDLE), ("PASSED_MAP", BASE, HANDLE),
                    unmapped, ("PASSED_UNMAP", BASE, 0), ("FREE_FAILED", HANDLE, 1),
                    ("FREE_FAILED", BASE, 1), ("PASSED", HANDLE, PAGE, "vmm")], {"vmm": PAGE})):
            self.assertEqual(self.live(*rows), live, what)

    def test_a_record_takes_few_lines_however_many_there_are(self):
        """What is mapped in pieces; what came while a trace began; frees that never come; contexts
        that end beside memory that stays."""
        for name, each in {
                "pieces": lambda n: [[("PASSED", HANDLE, n * PAGE, "vmm")],
                                     *[[("PASSED_MAP", BASE + i * PAGE, HANDLE)] for i in range(n)],
                                     *[[("PASSED_UNMAP", BASE + i * PAGE, PAGE)]
                                       for i in range(n)]],
                "held": lambda n: [*[[("SEGMENT", BASE + i * PAGE, PAGE)] for i in range(n)],
                                   *[[("HELD", BASE + i * PAGE, PAGE)] for i in range(n)]],
                "late": lambda n: [[("ALLOC", BASE, 1), ("ALLOC", BASE, 2), ("FREE", BASE)]] * n,
                "contexts": lambda n: [*[[("PASSED", BASE + i, 1, "host")] for i in range(n)],
                                       *[[("CONTEXT_END", 0)]] * n]}.items():
            counts = []
            for number in 500, 2000:
                rows = list(itertools.chain(*each(number)))
                counts.append(lines_of(lambda: used(*rows))[1])  # pylint: disable=W0640
            self.assertLess((counts[1] - counts[0]) / 1500, 400, name)


class Program:
    """What a program does at random, its records, and how much there is of each kind."""

    def __init__(self, seed):
        self.chance, self.rows = random.Random(seed), []
        self.parts = []     # [group, name, bytes, handles, {address: bytes}]
        self.now, self.most = dict.fromkeys(GROUP, 0), dict.fromkeys(GROUP, 0)
        self.pool, self.peak, self.at_peak = {}, 0, dict.fromkeys(GROUP, 0)
        self.ever = set()   # numbers of what is gone
        for _ in range(self.chance.choice((5, 60, 400))):
            self.step()

    def sum_up(self):
        self.now = dict.fromkeys(GROUP, 0)
        for group, _, size, *_ in self.parts:
            self.now[group] += size
        for group, size in self.now.items():
            self.most[group] = max(self.most[group], size)
        live = sum(map(self.now.get, IN_DEVICE)) + sum(self.pool.values())
        if live > self.peak:
            self.peak, self.at_peak = live, dict(self.now)

    def free_name(self, base, step):
        there = {its[1] for its in self.parts} | {*self.pool}
        there.update(at for its in self.parts for at in its[4])
        return next(name for name in itertools.count(base, step) if name not in there and
                    self.chance.random() < 0.7)

    def note(self, *row):
        self.rows.append(row)
        self.parts = [its for its in self.parts if its[3] or its[4]]
        self.sum_up()

    def fail(self, kind, name, size=0):
        self.note(kind, name, size)
        self.note("FREE_FAILED", name, 1)

    def take(self):
        group, size = self.chance.choice([*GROUP]), self.chance.randrange(1, 9) * PAGE
        name = self.free_name(BASE, PAGE * 16) if group in ("async", "managed") else \
            self.free_name(HANDLE, 16)
        self.parts.append([group, name, size, 1, {}])
        self.note("PASSED", name, size, group)

    def give(self):
        group, name, *_ = its = self.chance.choice(self.parts)
        kind = self.chance.choice(("FREE", "FREE_ASYNC") if group == "async" else ("FREE",)) \
            if group in ("async", "managed") else "PASSED_FREE"
        if not its[3]:  # it is only mapped: the program has no handle
            return
        if self.chance.random() < 0.15:
            self.fail(kind, name)
            return
        its[3] -= 1
        self.ever.add((kind, name))
        self.note(kind, name)

    def give_again(self):
        """What is gone. The call fails."""
        there = {its[1] for its in self.parts if its[3]} | {*self.pool}
        gone = sorted(its for its in self.ever if its[1] not in there)
        if gone:
            self.fail(*self.chance.choice(gone))

    def map(self):
        found = [its for its in self.parts if its[0] == "vmm" and its[3]]
        if found:
            its = self.chance.choice(found)
            if self.chance.random() < 0.2:
                its[3] += 1
                self.note("PASSED_HOLD", its[1])
                return
            number = self.chance.randrange(1, its[2] // PAGE + 1)
            there = {at + n * PAGE for each in self.parts for at, size in each[4].items()
                     for n in range(size // PAGE)}
            at = next(at for at in itertools.count(2 * BASE, PAGE) if not
                      there & {at + n * PAGE for n in range(number)} and
                      self.chance.random() < 0.8)
            its[4][at] = number * PAGE
            self.note("PASSED_MAP", at, its[1])

    def unmap(self):
        mapped = sorted((at, size, its) for its in self.parts for at, size in its[4].items())
        if not mapped:
            return
        place = self.chance.randrange(len(mapped))
        run = [mapped[place]]
        while place + 1 < len(mapped) and self.chance.random() < 0.5 and \
                run[-1][0] + run[-1][1] == mapped[place + 1][0]:
            place += 1
            run.append(mapped[place])
        start, size = run[0][0], sum(its[1] for its in run)
        if self.chance.random() < 0.1:
            self.fail("PASSED_UNMAP", start, size)
            return
        for at, _, its in run:
            del its[4][at]
        self.note("PASSED_UNMAP", start, size)

    def pooled(self):
        if self.pool and self.chance.random() < 0.5:
            addr = self.chance.choice([*self.pool])
            if self.chance.random() < 0.1:
                self.fail("FREE", addr)
                return
            self.pool.pop(addr)
            self.ever.add(("FREE", addr))
            self.note("FREE", addr)
        else:
            addr = self.free_name(BASE, PAGE * 16)
            self.pool[addr] = self.chance.randrange(1, 9) * PAGE
            self.note("ALLOC", addr, self.pool[addr])

    def step(self):
        self.chance.choices(
            (self.take, self.give if self.parts else self.take, self.give_again, self.map,
             self.unmap, self.pooled), (5, 4, 1, 5, 3, 3))[0]()


class Programs(unittest.TestCase):
    def test_figures_are_those_of_the_program(self):
        for seed in range(300):
            its = Program(seed)
            if not its.rows:
                continue
            found = used(*its.rows)
            kinds = {name: found.beside.kinds[f"num_{name}_allocs"] for name in GROUP}
            for figure, known in ("live", its.now), ("most", its.most), ("at_peak", its.at_peak):
                self.assertEqual({name: getattr(kind, figure) for name, kind in kinds.items()},
                                 known, (seed, figure))
            self.assertEqual((found.peak, found.live), (its.peak, sum(
                map(its.now.get, IN_DEVICE)) + sum(its.pool.values())), seed)
            self.assertEqual(found.reserved, found.beside.live, seed)
            self.assertEqual(sum(found.at_peak.values()), found.peak, seed)
