# SPDX-License-Identifier: BSD-2-Clause
"""Reports of traces with many call sites: what they take, the sums, and the size of the page;
what grows; and where blocks lay."""
import io
import os
import random
import unittest
import unittest.mock

from fake import Scratch, lines_of, text_of, tool

import gct
from gct import used_of
from gpucache import block_map, report, report_page, site, trace, usage

MIB = 1 << 20
LINES_MOST = 120  # of Python, for an event: some 90 are
PAGE_MOST = 5 * MIB


class Sites(Scratch):
    def lines(self, number, objects):
        """Lines of Python that run for a page of so many call sites, and events."""
        events = gct.write_sites(self.path, gct.site_events(number, 3), objects)

        def write():
            its = report.Report(self.path)
            report_page.write(its, io.StringIO())
            return its
        with unittest.mock.patch.object(usage, "COLUMNS", 1000):
            its, count = lines_of(write)
        its.close()
        return count, events

    def test_an_event_takes_as_many_lines_with_more_call_sites(self):
        for objects in 1, 400:
            (few, few_events), (many, many_events) = (
                self.lines(number, objects) for number in (500, 1500))
            self.assertLess((many - few) / (many_events - few_events), LINES_MOST, objects)

    def test_memory_that_rises_is_not_copied_in_each_column(self):
        gct.write_sites(self.path, gct.site_events(3000, 1))
        with trace.Trace(self.path) as its, unittest.mock.patch.object(
                block_map.Moments, "at_peak", autospec=True,
                side_effect=block_map.Moments.at_peak) as copies:
            used = usage.Usage(its)
        self.assertEqual(copies.call_count, 1)
        self.assertEqual([len(moment.blocks) for moment in used.moments.all()], [3000, 3000])

    def test_each_column_has_the_largest_and_all_sums(self):
        gct.write_sites(self.path, gct.site_events(1000, 3))
        with trace.Trace(self.path) as its:
            used = usage.Usage(its)
        live, blocks, best, moments = {}, {}, 0, {}
        for number, (kind, unit, size, who) in enumerate(gct.site_events(1000, 3)):
            ns = (number + 1) * gct.STEP
            if kind == "FREE":
                size, who = blocks.pop(unit)
                size = -size
            else:
                blocks[unit] = size, who
            live[who] = live.get(who, 0) + size
            best = sum(live.values())
            moments[ns] = sorted(live.values()), best
        checked = 0
        for column in used.columns:
            self.assertEqual(sum(column.held.values()), column.live)
            if column.ns not in moments or not column.ns % used.column_ns:
                continue  # the moment is the column's beginning, before its first event
            sizes, whole = moments[column.ns]
            self.assertEqual(column.live, whole)
            largest = sorted(size for who, size in column.held.items() if who != trace.OTHERS)
            self.assertEqual(largest, sizes[-site.SITES_MOST:])
            checked += len(sizes) > site.SITES_MOST
        self.assertGreater(checked, 1000)

    def test_the_largest_are_known_after_any_changes(self):
        chance = random.Random(7)
        for most in 1, 5, 50:
            with unittest.mock.patch.object(site, "SITES_MOST", most):
                its, sizes = site.Largest(), {}
                for _ in range(700):
                    number = chance.choice((0, 1, 3, 10, 60))
                    changes = {chance.randrange(200): chance.choice((0, 0, 1, 2, 900, 1 << 40)) +
                               chance.randrange(3) for _ in range(number)}
                    sizes.update(changes)
                    found = its.held(list(changes.items()))
                    known = sorted(size for size in sizes.values() if size)
                    others = found.pop(trace.OTHERS, 0)
                    self.assertEqual(sorted(found.values()), known[-most:])
                    self.assertEqual(others, sum(known[:-most]))
                    for who, size in found.items():
                        self.assertEqual(size, sizes[who])

    def test_the_code_that_was_loaded_last_is_the_owner(self):
        chance, its = random.Random(3), trace.Trace.__new__(trace.Trace)
        its._paths, its.objects, its._placed = [], [], (0, [], [])
        for number in range(60):
            start = chance.randrange(400)
            its.objects.append(trace.Object(start, start + chance.choice((0, 1, 9, 90)), 0,
                                            str(number)))
            for address in range(500):
                self.assertIs(its.object_of(address), next(
                    (each for each in reversed(its.objects)
                     if each.start <= address < each.end), None))

    def test_a_page_of_many_call_sites_in_many_libraries_is_small(self):
        for events in gct.turns(5_000, 250), gct.site_events(5_000, 2):
            gct.write_sites(self.path, events, 4000)
            done = tool("report", self.path, "-o", self.path + ".html")
            self.assertEqual((done.status, done.err.count("\n")), (0, 1), done.err)
            self.assertLess(os.path.getsize(self.path + ".html"), PAGE_MOST)
            self.assertIn("other libraries", text_of(self.path + ".html"))

    def test_what_grows_has_words_of_its_own(self):
        gct.write_sites(self.path, gct.turns(2, 1))
        with trace.Trace(self.path) as its:
            first, second = usage.Usage(its).sites

        def grows(floors, _):
            floors.till_idle.add(second)
            return {first: 5 * MIB, second: 3 * MIB}
        with unittest.mock.patch.object(site.Floors, "grows", grows):
            self.assertEqual(tool("report", self.path, "-o", self.path + ".html").status, 0)
            for said in tool("report", self.path).out, text_of(self.path + ".html"):
                self.assertRegex(said, "by 5 MiB in the last half; .*by 3 MiB in the last half, "
                                       "until the program was idle: a leak, or what it loads once")


def looped(number, kept, idle):
    """A program with so many steps, the first of which keep a block each, that is idle then, for so
    many times their time. Events and Usage."""
    rows = []
    for step in range(number):
        rows += [(20 * step, "ALLOC", 512, 1000, 1), (20 * step + 1, "ALLOC", 1024, 300, 2)]
        rows += [(20 * step + 2, "ALLOC", 2048 + 512 * step, 100, 3)] if step < kept else []
        rows += [(20 * step + 3, "FREE", 512), (20 * step + 4, "FREE", 1024)]
    rows += [(20 * number * (100 + idle * part) // 100, "GPU", 5, 6, 0) for part in range(100)]
    return used_of(*rows, span_ns=20 * number * (1 + idle))


class Leaks(unittest.TestCase):
    def test_a_leak_is_one_though_the_program_is_idle_at_last(self):
        for idle in 1, 2, 50:
            for number in 30, 100, 1000:
                self.assertEqual(set(looped(number, number, idle).grows()), {3}, (idle, number))

    def test_what_is_loaded_or_cached_is_no_leak(self):
        """Whether it was needed is known by what comes after it; of a program that waits, by what
        it freed meanwhile."""
        for idle in 0, 1, 2, 50:
            for number, kept in (1000, 500), (1000, 100), (100, 10), (100, 75):
                self.assertEqual(looped(number, kept, idle).grows(), {}, (idle, number, kept))
        for staging in (), [(0, "ALLOC", 512, 7, 1), (0, "FREE", 512)]:
            rows = [(n * 20 + at, *row) for n in range(300) for at, row in enumerate(
                [*(row[1:] for row in staging), ("ALLOC", 1024 + n * 512, 100, 3)])]
            for idle in 1, 2, 50:
                self.assertEqual(used_of(*rows, span_ns=6000 * (1 + idle)).grows(), {})

    def test_what_may_have_been_loaded_is_told_so(self):
        """Made of two other blocks that are freed: what leaks till the program is idle looks so."""
        rows = [(n * 20 + at, *row) for n in range(300) for at, row in enumerate(
            [("ALLOC", 512, 7, 1), ("ALLOC", 1024, 7, 2), ("ALLOC", 2048 + n * 512, 100, 3),
             ("FREE", 512), ("FREE", 1024)])]
        loaded = used_of(*rows, span_ns=24000)
        self.assertEqual((set(loaded.grows()), loaded.floors.till_idle), ({3}, {3}))
        leaks = looped(100, 100, 0)
        self.assertEqual((set(leaks.grows()), leaks.floors.till_idle), ({3}, set()))

    def test_a_sure_leak_is_told_beside_what_may_have_been_loaded(self):
        """The one goes on where there is hardly any work."""
        rows = [(n * 4 + at // 2, *row) for n in range(300) for at, row in enumerate(
            [("ALLOC", 512, 7, 1), ("ALLOC", 1024, 7, 2), ("ALLOC", MIB + n * 512, 100, 3),
             ("ALLOC", 2 * MIB + n * 512, 100, 4), ("FREE", 512), ("FREE", 1024)])]
        rows += [(1250 + n * 50, "ALLOC", 3 * MIB + n * 512, 100, 3) for n in range(16)]
        both = used_of(*rows, span_ns=2400)
        self.assertEqual((set(both.grows()), both.floors.till_idle), ({3, 4}, {4}))

    def test_events_beside_the_pool_come_in_few_parts(self):
        rows = [(at, "PASSED", 512 * at, 512, 1) for at in range(20_000)]
        taken = []
        with unittest.mock.patch.object(usage.Usage, "_take_batch",
                                        lambda _, part: taken.append(part)):
            used_of(*rows, span_ns=20_000)
        self.assertLess(len(taken), 500)


class Maps(unittest.TestCase):
    """Blocks in memory, with holes and beside it."""
    RANGES = {0: 8 * MIB, 8 * MIB: 8 * MIB, 64 * MIB: 8 * MIB}
    BLOCKS = {MIB: (MIB, 1), 2 * MIB: (2 * MIB, 1), 7 * MIB: (2 * MIB, 2), 256 * MIB: (512, 3)}

    def test_runs_follow_each_other(self):
        its = block_map.Moment(0, "", self.BLOCKS, self.RANGES)
        self.assertEqual(its.runs({1: "a", 2: "b", 3: "a"}.get), [
            [MIB, None], [3 * MIB, "a"], [3 * MIB, None], [2 * MIB, "b"], [15 * MIB, None],
            [512, "a"]])

    def test_cells_are_of_who_has_most_of_them(self):
        with unittest.mock.patch.object(block_map, "CELLS", 8):
            cell, found = block_map.Moment.cells([[MIB, "b"], [3 * MIB, "a"], [MIB, "b"],
                                                  [3 * MIB, None], [8 * MIB, "b"], [512, "a"]])
        self.assertEqual(cell, 4 * MIB)
        self.assertEqual(found, [[1, "a", 4], [1, "b", 1], [2, "b", 4], [1, "a", 1]])

    def test_the_peak_is_put_together_from_what_followed(self):
        its = block_map.Moments()
        its.at_peak(5, {512: (7, 1, 0), 1024: (9, 2, 0)},
                    [(6, 1, -3, 2048), (7, 2, 9, 1024), (8, 1, -2, 4096), (9, 1, 2, 4096),
                     (10, 1, -2, 4096)], {})
        its.take(False, 0, 8192)
        self.assertEqual(its.all()[0].blocks, [(512, 7, 1), (2048, 3, 1), (4096, 2, 1)])

    def test_memory_loses_its_address_in_other_parts_than_it_got_it(self):
        its = block_map.Moments()
        for place in range(5):
            its.take(False, place * MIB, MIB)
        its.take(True, MIB // 2, 2 * MIB)
        its.take(True, 4 * MIB, MIB)
        self.assertEqual(its.ranges, {0: MIB // 2, MIB * 5 // 2: MIB // 2, 3 * MIB: MIB})
        its.take(False, 0, 4 * MIB)
        its.take(True, MIB, MIB)
        self.assertEqual(its.ranges, {0: MIB, 2 * MIB: 2 * MIB})
