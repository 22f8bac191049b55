# SPDX-License-Identifier: BSD-2-Clause
"""What reports say of a process that is parked: against a model of it, and in cases apart."""
import json
import pickle
import random
import struct
import unittest
import unittest.mock

from fake import Scratch, out, tool, well

import gct
from gct import MIB
from gpucache import away, plan, report, together, trace, usage
from gpucache.trace import KIND, Event

BASE, FAR = 0x7f0000000000, 1 << 30
ROUNDS = 60


class Model:
    """A process with a chunk for each block that it had. Each step has rows for the trace, and what
    was true from then on: bytes held, live, idle on the device, and away."""

    def __init__(self, seed, is_brief, frees_parked):
        self.random = random.Random(seed)
        self.is_brief, self.frees_parked = is_brief, frees_parked
        self.ns, self.rows, self.truth, self.number = 1, [], [], 0
        self.blocks, self.chunks, self.away = {}, {}, {}  # address -> bytes

    def note(self, *rows):
        self.rows += [(self.ns, *row) for row in rows]
        live = sum(self.blocks.values())
        here = sum(size for addr, size in self.blocks.items() if addr in self.chunks)
        held = sum(self.chunks.values())
        self.truth.append((self.ns, held, live, held - here, sum(self.away.values())))

    def wait(self):
        self.ns += 0 if self.is_brief else self.random.choice((1, 10**5, 2 * 10**6))

    def take(self):
        self.number += 1
        addr, size = BASE + self.number * FAR, self.random.randrange(1, 64) * MIB
        chunk = self.chunks[addr] = size + self.random.randrange(3) * MIB
        self.blocks[addr] = size
        self.note(("CREATE", addr, chunk), ("MAP", addr, chunk), ("ALLOC", addr, size))

    def free(self):
        found = [addr for addr in self.blocks if self.frees_parked or addr in self.chunks]
        if found:
            addr = self.random.choice(found)
            del self.blocks[addr]
            self.note(("FREE", addr, 0))

    def park(self):
        for addr in self.chunks.keys() - self.blocks.keys():  # a flush
            size = self.chunks.pop(addr)
            self.note(("UNMAP", addr, size), ("RELEASE", addr, size))
        start_ns, total = self.ns, sum(self.chunks.values())
        self.ns += not self.is_brief
        self.note(*(("UNMAP", *its) for its in self.chunks.items()))
        for addr in list(self.chunks):
            self.wait()
            size = self.away[addr] = self.chunks.pop(addr)
            self.note(("RELEASE", addr, size))
        if total:
            self.note(("PARK", total, self.ns - start_ns))

    def fail_to_wake(self):
        """All that it took goes back, in the other order."""
        some = self.random.sample(sorted(self.away), self.random.randrange(len(self.away) + 1))
        mapped = some[:self.random.randrange(len(some) + 1)]
        held = {addr: self.away.pop(addr) for addr in some}
        for addr, size in held.items():
            self.ns += not self.is_brief
            self.chunks[addr] = size
            self.note(("CREATE", addr, size))
        self.note(*(("MAP", addr, held[addr]) for addr in mapped))
        self.ns += not self.is_brief
        self.note(*(("UNMAP", addr, held[addr]) for addr in mapped))
        for addr, size in held.items():
            self.away[addr] = self.chunks.pop(addr)
            self.note(("RELEASE", addr, size))

    def wake(self):
        for addr in list(self.away):
            size = self.away.pop(addr)
            if addr in self.blocks:
                self.wait()
                self.chunks[addr] = size
                self.note(("CREATE", addr, size), ("MAP", addr, size))
        self.note(("WAKE", sum(self.away.values()), 5))

    def run(self):
        for _ in range(self.random.randrange(20, 120)):
            self.ns += self.random.choice((1, 1000, 10**6, 3 * 10**7))
            what = self.random.random()
            if what < .5:
                self.take()
            elif what < .75:
                self.free()
            elif self.away and self.random.random() < .3:
                self.fail_to_wake()
            elif self.away:
                self.wake()
            elif what < .87 and self.chunks:
                self.park()
        self.ns += self.random.choice((1, 10**8))
        return gct.used_of(*self.rows, span_ns=self.ns)

    def mean(self, place):
        ends = [row[0] for row in self.truth[1:]] + [self.ns]
        return sum(row[place] * (end - row[0]) for row, end in zip(self.truth, ends)) // self.ns

    def most(self, *places):
        return max(sum(row[place] for place in places) for row in self.truth)


class Truth(unittest.TestCase):
    def check(self, *how):
        for seed in range(ROUNDS):
            its = Model(seed, *how)
            used, at = its.run(), (seed, *how)
            if not its.truth:
                continue
            self.assertEqual((used.reserved, used.live, used.memory.away.bytes),
                             (its.truth[-1][1], its.truth[-1][2], its.truth[-1][4]), at)
            self.assertEqual((used.memory.peak, used.peak, used.memory.whole_peak),
                             (its.most(1), its.most(2), its.most(1, 4)), at)
            self.assertAlmostEqual(used.mean_held(), its.mean(1), delta=2, msg=at)
            # Of a chunk that is on its way to the driver nobody knows how much is live.
            self.assertAlmostEqual(used.mean_idle(), its.mean(3), msg=at,
                                   delta=2 if its.is_brief else max(MIB, its.mean(3) / 20))
            tops = [column.reserved + column.away for column in used.columns]
            tops += [column.reserved + column.away for near in used.stretches()
                     for column in near.columns]
            self.assertLessEqual(max(tops), its.most(1, 4), at)
            highest = max(used.columns, key=lambda column: column.live)
            self.assertIn(together.idle_of(highest),
                          [idle for _, _, live, idle, _ in its.truth if live == used.peak], at)

    def test_brief_parks(self):
        self.check(True, False)

    def test_frees_while_parked(self):
        self.check(True, True)

    def test_parks_and_wakes_that_take_time(self):
        self.check(False, False)
        self.check(False, True)


class Cases(unittest.TestCase):
    PARKED = ((0, "CREATE", 1, 128 * MIB), (1, "MAP", BASE, 128 * MIB),
              (2, "ALLOC", BASE, 28 * MIB), (3, "CREATE", 2, 60 * MIB),
              (4, "MAP", BASE + FAR, 60 * MIB), (5, "ALLOC", BASE + FAR, 60 * MIB),
              (19, "UNMAP", BASE, 128 * MIB), (20, "RELEASE", 1, 128 * MIB),
              (20, "PARK", 128 * MIB, 9))

    def test_what_stays_is_not_parked(self):
        """Idle memory was on the device until 20, in the chunk that went."""
        used = gct.used_of(*self.PARKED, span_ns=100)
        self.assertEqual((used.memory.away.bytes, used.memory.away.live), (128 * MIB, 28 * MIB))
        self.assertAlmostEqual(used.mean_idle() / MIB, 20, delta=2)

    def test_an_allocation_in_what_is_away(self):
        used = gct.used_of(*self.PARKED, (30, "FREE", BASE, 0),
                           (40, "ALLOC_FAST", BASE + 28 * MIB, 100 * MIB), span_ns=100)
        self.assertEqual(used.memory.away.live, 100 * MIB)
        self.assertEqual(together.on_device(used.columns[-1]), 60 * MIB)

    def test_a_free_that_failed(self):
        used = gct.used_of(*self.PARKED, (30, "FREE", BASE, 0), (31, "FREE_FAILED", BASE, 1))
        self.assertEqual(used.memory.away.live, 28 * MIB)

    def test_a_wake_that_failed_is_none(self):
        """It gives back what it has taken, with an address or not."""
        tries = {
            "a map": ((30, "CREATE", 3, 128 * MIB), (31, "MAP", BASE, 128 * MIB),
                      (32, "UNMAP", BASE, 128 * MIB), (33, "RELEASE", 3, 128 * MIB)),
            "no map": ((30, "CREATE", 3, 100 * MIB), (31, "CREATE", 4, 28 * MIB),
                       (32, "RELEASE", 3, 100 * MIB), (33, "RELEASE", 4, 28 * MIB)),
            "a part": ((30, "CREATE", 3, 100 * MIB), (31, "CREATE", 4, 28 * MIB),
                       (32, "MAP", BASE, 100 * MIB), (33, "UNMAP", BASE, 100 * MIB),
                       (34, "RELEASE", 3, 100 * MIB), (35, "RELEASE", 4, 28 * MIB))}
        for name, rows in tries.items():
            used = gct.used_of(*self.PARKED, *rows)
            self.assertEqual((used.reserved, used.memory.away.bytes, used.memory.away.live),
                             (60 * MIB, 128 * MIB, 28 * MIB), name)
            self.assertEqual(used.memory.whole_peak, 188 * MIB, name)
            used = gct.used_of(*self.PARKED, *rows, (36, "FREE", BASE, 0),
                               (37, "ALLOC", BASE + MIB, 20 * MIB), (40, "CREATE", 5, 128 * MIB),
                               (41, "MAP", BASE, 128 * MIB), (50, "WAKE", 128 * MIB, 5))
            self.assertEqual([mark.bytes for mark in used.marks], [128 * MIB] * 2, name)
            self.assertEqual((used.reserved, used.live), (188 * MIB, 80 * MIB), name)
            self.assertEqual(used.memory.whole_peak, 188 * MIB, name)

    def test_all_is_created_before_the_first_map(self):
        """The chunks have room beside the blocks, which alone tell what was parked."""
        chunks = [(BASE + number * FAR, 10 * MIB) for number in range(3)]
        used = gct.used_of(*((1, "LIVE", addr, 5 * MIB) for addr, _ in chunks),
                           *((30, "CREATE", addr, size) for addr, size in chunks),
                           *((40, "MAP", *its) for its in chunks), (50, "WAKE", 30 * MIB, 5))
        self.assertEqual((used.memory.whole_peak, used.reserved), (30 * MIB, 30 * MIB))

    def test_a_park_of_what_a_failing_wake_unmapped(self):
        """And UNMAPs over more than one chunk, of which some had an address."""
        rows = [(0, "CREATE", 1, 40 * MIB), (1, "MAP", BASE, 40 * MIB)]
        rows += [(2, "ALLOC", BASE + number * 10 * MIB, MIB) for number in range(4)]
        rows += [(10, "UNMAP", BASE, 40 * MIB), (11, "RELEASE", 1, 40 * MIB),
                 (12, "PARK", 40 * MIB, 5)]
        for more in (((20, "MAP", BASE, 10 * MIB), (21, "UNMAP", BASE, 10 * MIB),
                      (22, "MAP", BASE, 10 * MIB), (23, "PARK", 10 * MIB, 9)),
                     ((20, "MAP", BASE, 10 * MIB), (21, "MAP", BASE + 20 * MIB, 10 * MIB),
                      (22, "UNMAP", BASE, 40 * MIB))):
            used = gct.used_of(*rows, *more, (30, "FREE", BASE + 10 * MIB, 0),
                               (31, "MAP", BASE, 40 * MIB), (32, "UNMAP", BASE, 40 * MIB),
                               (33, "MAP", BASE, 40 * MIB), (40, "WAKE", 40 * MIB, 5))
            self.assertEqual((used.memory.away.bytes, used.live), (0, 3 * MIB))

    def test_blocks_of_a_wake_that_fails(self):
        """They come and go while its memory has an address."""
        used = gct.used_of(*self.PARKED, (30, "CREATE", 3, 128 * MIB), (31, "MAP", BASE, 128 * MIB),
                           (32, "FREE", BASE, 0), (33, "ALLOC", BASE + MIB, 7 * MIB),
                           (34, "UNMAP", BASE, 128 * MIB), (35, "RELEASE", 3, 128 * MIB))
        self.assertEqual((used.memory.away.bytes, used.memory.away.live), (128 * MIB, 7 * MIB))

    def test_a_wake_brings_what_has_blocks(self):
        """The mark says how much that is, and no word of what has been freed meanwhile."""
        used = gct.used_of(*self.PARKED, (25, "UNMAP", BASE + FAR, 60 * MIB),
                           (25, "RELEASE", 2, 60 * MIB), (26, "PARK", 60 * MIB, 3),
                           (30, "FREE", BASE, 0), (40, "CREATE", 3, 60 * MIB),
                           (41, "MAP", BASE + FAR, 60 * MIB), (50, "WAKE", 188 * MIB, 9))
        self.assertEqual([mark.bytes for mark in used.marks], [128 * MIB, 60 * MIB, 60 * MIB])
        self.assertEqual((used.reserved, used.memory.away.bytes), (60 * MIB, 0))

    def test_a_context_takes_what_is_parked_along(self):
        used = gct.used_of(*self.PARKED, (30, "CONTEXT_END", 0, 0), span_ns=100)
        self.assertEqual((used.reserved, used.live, used.memory.away.bytes), (0, 0, 0))
        self.assertAlmostEqual(used.mean_idle() / MIB, 20, delta=2)

    def test_without_unmaps_live_memory_takes_part(self):
        """As in a trace that lost them."""
        rows = [row for row in self.PARKED if row[1] not in ("MAP", "UNMAP")]
        rows += [(7, "UNMAP", BASE + 2 * FAR, 128 * MIB)]  # of a flush: the park took 9 ns
        rows.sort(key=lambda row: row[0])
        self.assertEqual(gct.used_of(*rows).memory.away.live, 88 * MIB)
        used = gct.used_of(*rows, (70, "CREATE", 3, 128 * MIB), (70, "WAKE", 128 * MIB, 5))
        self.assertEqual([mark.bytes for mark in used.marks], [128 * MIB] * 2)
        self.assertEqual((used.reserved, used.memory.away.bytes), (188 * MIB, 0))
        used = gct.used_of(*rows, (70, "CREATE", 3, 128 * MIB), (70, "MAP", BASE, 128 * MIB),
                           (80, "WAKE", 128 * MIB, 5))
        self.assertEqual((used.reserved, used.memory.whole_peak), (188 * MIB, 188 * MIB))

    @unittest.mock.patch.object(away, "LOOKS_MOST", 2)
    def test_many_parks_of_many_blocks_take_no_time(self):
        self.assertEqual(gct.used_of(*self.PARKED).memory.away.live, 88 * MIB)


class Columns(unittest.TestCase):
    def test_a_column_has_the_most_that_was_held_at_its_highest_moment(self):
        used = gct.used_of((10, "SEGMENT", BASE, 100), (20, "SEGMENT", BASE + FAR, 50),
                           (30, "SEGMENT_FREE", BASE, 0), span_ns=10**6)
        self.assertEqual(used.columns[0].reserved, 150)

    def test_a_lane_has_the_most_that_was_held_in_a_column(self):
        used = gct.used_of((10, "ALLOC_DRIVER", BASE, 100), (20, "FREE", BASE, 0),
                           (30, "SEGMENT", BASE + FAR, 500), (40, "SEGMENT_FREE", BASE + FAR, 0),
                           span_ns=10**6)
        process = unittest.mock.Mock(usage=used, trace=unittest.mock.Mock(ended=False))
        self.assertEqual(together.lane(process)[0], (0, 500, 100))


class Begun(Scratch):
    """A trace that begins while the process is parked."""
    LIVE = ((0, "HELD", BASE + FAR, 60 * MIB), (1, "LIVE", BASE, 28 * MIB),
            (1, "LIVE", BASE + 64 * MIB, 32 * MIB), (1, "LIVE", BASE + FAR, 60 * MIB))

    def test_blocks_where_nothing_is_held_are_parked(self):
        used = gct.used_of(*self.LIVE, span_ns=10**9)
        self.assertEqual((used.memory.away.bytes, used.memory.away.live), (60 * MIB, 60 * MIB))
        self.assertEqual((used.mean_held(), used.mean_idle()), (60 * MIB, 0))
        self.assertEqual({together.on_device(column) for column in used.columns[1:]}, {60 * MIB})

    def test_a_wake_brings_them_back(self):
        used = gct.used_of(*self.LIVE, (50, "CREATE", 1, 128 * MIB), (51, "MAP", BASE, 128 * MIB),
                           (60, "WAKE", 128 * MIB, 5))
        self.assertEqual((used.reserved, used.memory.away.bytes), (188 * MIB, 0))
        self.assertAlmostEqual(used.mean_idle() / MIB, 34, delta=2)  # half of the time 68

    def test_a_dump_says_how_much_was_held_with_what_is_parked(self):
        for row, held in (((25, "PARK", 100 * MIB, 5), 60), ((25, "WAKE", 100 * MIB, 5), 160)):
            used = gct.used_of((0, "HELD", 0, 160 * MIB), (1, "LIVE", BASE, 60 * MIB),
                               (1, "LIVE", BASE + FAR, 100 * MIB), row)
            self.assertEqual((used.reserved, used.live, used.memory.away.bytes),
                             (held * MIB, 160 * MIB, (160 - held) * MIB), row)
        used = gct.used_of((0, "HELD", 0, 160 * MIB), (0, "HELD", 0, 200 * MIB),
                           (25, "PARK", 180 * MIB, 5))
        self.assertEqual((used.reserved, used.memory.whole_peak), (180 * MIB, 360 * MIB))

    def test_records_that_were_lost_may_be_of_what_is_held(self):
        for lost, size in (0, 88 * MIB), (1, 0):
            rows = [Event(1, KIND["LIVE"], addr, each, 0, 0, 1, 1, "") for addr, each in (
                (BASE, 28 * MIB), (BASE + FAR, 60 * MIB))]
            its = gct.Given(rows)
            its.num_lost = lost
            self.assertEqual(usage.Usage(its).memory.away.bytes, size)

    def test_what_is_torn_is_counted_once(self):
        gct.write(self.path, [gct.GPU, (0, "HELD", 0, 160 * MIB), (1, "LIVE", BASE, MIB)], 100)
        with open(self.path, "r+b") as file:
            data = file.read()
            place = data.rindex(struct.pack("=QQ", BASE, MIB)) - 9  # the kind
            file.seek(place)
            file.write(b"\xff\xff")
        its = trace.Trace(self.path)
        self.addCleanup(its.close)
        usage.Usage(its)
        self.assertEqual(its.num_torn + its.num_unknown, 1)


class Formats(Scratch):
    def parked(self, *rows):
        gct.write(self.path, [gct.GPU, *Cases.PARKED, *rows], 100)
        return self.path

    def test_each_format_says_the_same(self):
        for rows, live in (((), 88), (((30, "FREE", BASE, 0),), 60)):
            path = self.parked(*rows)
            sizes, left = {}, 0
            for line in out(path, "csv").decode().splitlines()[1:]:
                _, _, action, addr, size, _ = line.split(",")
                if action == "allocate":
                    sizes[addr] = int(size)
                left += sizes[addr] if action == "allocate" else -sizes.pop(addr)
            self.assertEqual(left, live * MIB)
            its = report.Report(path)
            self.addCleanup(its.close)
            self.assertEqual((its.usage.live, its.usage.reserved), (live * MIB, 60 * MIB))

    def test_a_context_frees_its_blocks(self):
        rows = out(self.parked((30, "CONTEXT_END", 0, 0)), "csv").decode().splitlines()
        self.assertEqual([row.split(",")[2] for row in rows[1:]], ["allocate"] * 2 + ["free"] * 2)

    def test_a_plan_counts_what_was_parked(self):
        gct.write(self.path, [gct.GPU, *Begun.LIVE], 100)
        told = json.loads(tool("plan", self.path, "--json").out)
        self.assertEqual((told["jobs"][0]["held_bytes"], told["ways"][0]["bytes"]),
                         (120 * MIB, 120 * MIB + plan.CONTEXT_BYTES))

    def test_a_peak_while_parked_has_no_idle_memory(self):
        said = well("report", self.parked((30, "ALLOC_FAST", BASE + 28 * MIB, 100 * MIB))).out
        self.assertIn("Live memory peaked at 188 MiB", said)
        self.assertNotIn("of it idle", said)

    def test_a_snapshot_has_segments_under_parked_blocks(self):
        """Those of the end are what came, less what went."""
        wake = (50, "CREATE", 3, 128 * MIB), (51, "MAP", BASE, 128 * MIB), \
            (60, "WAKE", 128 * MIB, 5)
        free = (30, "FREE", BASE, 0), (60, "WAKE", 128 * MIB, 5)
        for rows, size in ((), 188), (wake, 188), (free, 60):
            found = pickle.loads(out(self.parked(*rows), "pickle"))
            self.assertEqual(sum(its["total_size"] for its in found["segments"]), size * MIB)
            moves = [its["size"] * {"segment_map": 1, "segment_unmap": -1}.get(its["action"], 0)
                     for its in found["device_traces"][0]]
            self.assertEqual(sum(moves), size * MIB)

    def test_memory_that_comes_back_is_no_blocks_own(self):
        """A block of before the trace, whose memory was parked, is freed behind the wake."""
        gct.write(self.path, [gct.GPU, (1, "LIVE", BASE, 28 * MIB),
                              (50, "CREATE", 1, 128 * MIB), (51, "MAP", BASE, 128 * MIB),
                              (60, "WAKE", 128 * MIB, 5), (70, "FREE", BASE, 0)], 100)
        found = pickle.loads(out(self.path, "pickle"))
        self.assertEqual([its["total_size"] for its in found["segments"]], [128 * MIB])
