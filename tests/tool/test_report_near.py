# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report: the finer columns near the peak and near failures for want of memory, and, where
Chromium is, how the page zooms into them."""
import bisect
import collections
import itertools
import os
import random
import unittest
import unittest.mock

from fake import tool
from opened import Opened

import gct
from gpucache import detail, usage

MIB, S = 1 << 20, 10**9
FIRST, HOUR = 0x7f0000000000, 3600 * S
BESIDE_NS = 1800 * S + 3 * S // 10  # a peak that is on no edge of a column
OOM = "ALLOC_FAILED", 2, 1 << 30


def short_peak(at_ns=1800 * S, length_ns=21_000):
    """(ns, kind, address, bytes) of an hour: something each half second, and a peak."""
    events = [(0, "CONTEXT", 0, 16 << 30), (0, "SEGMENT", FIRST, 1 << 30)]
    for number in range(7000):
        ns = (number + 1) * S // 2
        events += [(ns, "ALLOC", FIRST, 100 * MIB), (ns + 1000, "FREE", FIRST, 0)]
    return sorted([*events, (at_ns - 5000, "ALLOC", FIRST + 200 * MIB, 50 * MIB),
                   (at_ns, "ALLOC", FIRST + 300 * MIB, 300 * MIB),
                   (at_ns + length_ns, "FREE", FIRST + 300 * MIB, 0),
                   (at_ns + 90_000, "FREE", FIRST + 200 * MIB, 0)], key=lambda its: its[0])


def held_of(near):
    """[{site: bytes}] of the columns."""
    now, found = collections.Counter(), []
    for column in near.columns:
        now.update(column.changes)
        found.append({site: size for site, size in now.items() if size})
    return found


class Columns(unittest.TestCase):
    def check(self, rows, used):
        """Each column is the highest moment of its time. rows: as of gct.used_of."""
        live, held, told = {}, collections.Counter(), [(-1, 0, {})]
        for ns, kind, addr, size, site in rows:
            if kind == "ALLOC":
                live[addr] = size, site
                held[site] += size
            elif kind == "FREE":
                size, site = live.pop(addr)
                held[site] -= size
            else:
                continue
            told.append((ns, sum(held.values()), {its: size for its, size in held.items() if size}))
        times, seen = [row[0] for row in told], 0
        for near in used.stretches():
            ends = [column.start for column in near.columns[1:]] + [near.end_ns]
            for column, end, its in zip(near.columns, ends, held_of(near)):
                first, behind = (bisect.bisect_left(times, ns) for ns in (column.start, end))
                begins = first < behind and times[first] == column.start  # with a change
                there = told[first if begins else first - 1:max(first, behind)]
                self.assertEqual(column.live, max(row[1] for row in there))
                self.assertEqual(sum(its.values()), column.live)
                self.assertIn(its, [row[2] for row in there])
                self.assertTrue(column.start <= column.ns <= end)
                seen += 1
        return seen

    @staticmethod
    def rows_of(chance, number, sites, failures=0):
        rows, live, ns = [], [], 0
        fails = set(chance.sample(range(number), failures))
        for place in range(number):
            ns += chance.choice((1, 1, 3, 1000, 40_000)) + 1
            if place in fails:
                rows.append((ns, *OOM, 0))
            elif live and chance.random() < (0.3 if place < number / 2 else 0.6):
                rows.append((ns, "FREE", live.pop(chance.randrange(len(live))), 0, 0))
            else:
                live.append(FIRST + place * MIB)
                rows.append((ns, "ALLOC", live[-1], chance.randrange(1, 1 << 16),
                             chance.randrange(1, sites)))
        return rows, ns + 1000

    def test_each_is_the_highest_moment_of_its_time(self):
        for seed in range(12):
            chance = random.Random(seed)
            rows, span_ns = self.rows_of(chance, 3000, 9, seed % 4)
            with unittest.mock.patch.multiple(detail, EXACT=chance.choice((0, 3, 200)),
                                              COLUMNS=chance.choice((5, 40, 1000, 1 << 40)),
                                              PART=chance.choice((4, 40)),
                                              CHANGES=chance.choice((50, 1 << 18))), \
                    unittest.mock.patch.object(usage, "COLUMNS", chance.choice((7, 60, 4000))):
                used = gct.used_of(*rows, span_ns=span_ns)
                self.assertGreater(self.check(rows, used), 3)
                best = max(column.live for near in used.stretches() for column in near.columns)
                self.assertEqual(best, used.peak)

    def test_a_short_peak_has_its_own_columns(self):
        used = gct.used_of(*((*row, 1) for row in short_peak() if row[1] in ("ALLOC", "FREE")),
                           span_ns=HOUR)
        (near,) = used.stretches()
        place = [column.live for column in near.columns].index(used.peak)
        steps = [(column.start - 1800 * S, column.live // MIB)
                 for column in near.columns[place - 1:place + 5]]
        self.assertEqual(steps[:3], [(-5000, 50), (0, 450), (1000, 350)])
        self.assertEqual(steps[3:], [(21_000, 50), (90_000, 0), (S // 2, 100)])
        self.assertAlmostEqual(near.columns[0].start / S, 1710, delta=2)
        self.assertAlmostEqual(near.end_ns / S, 1890, delta=2)

    def test_a_column_ends_though_nothing_happens(self):
        rows = [(500, "ALLOC", FIRST, 20, 1), (501, "FREE", FIRST, 0, 1)]  # the peak
        rows += [(number * 1000, kind, FIRST, size, 1) for number in (*range(1, 500), 600)
                 for kind, size in (("ALLOC", 7), ("FREE", 0))]
        with unittest.mock.patch.multiple(detail, EXACT=1, PART=1):
            (near,) = gct.used_of(*rows, span_ns=700_000).stretches()
        for ns, end_ns in (499_000, 600_000), (600_000, 700_000):
            quiet = next(column for column in near.columns if ns < column.start < end_ns)
            self.assertEqual(quiet.live, 0)
            self.assertLessEqual(quiet.start, ns + 700_000 // detail.COLUMNS)

    def test_each_failure_has_its_columns(self):
        """The first ones. What failed again at once has those of the first."""
        rows = []
        for number in range(12):
            ns = (number + 1) * 250 * S
            rows += [(ns + turn, *(("ALLOC", FIRST, 7) if turn % 2 else ("FREE", FIRST, 0)), 1)
                     for turn in range(-3001, 3001)]
            rows += [(ns + 3100, *OOM, 1), (ns + 3200, *OOM, 1)]
        used = gct.used_of(*rows, span_ns=HOUR)
        found = used.stretches()
        for number in range(12):
            ns = (number + 1) * 250 * S
            exact = [column for near in found for column in near.columns
                     if ns + 2900 < column.start <= ns + 3000]
            self.assertEqual(len(exact), 100 * (number < detail.FAILURES), number)

    def test_what_is_held_and_what_is_away(self):
        with unittest.mock.patch.object(detail, "PART", 1):
            used = gct.used_of((10, "CREATE", 1, 1000), (11, "MAP", FIRST, 1000),
                               (20, "ALLOC", FIRST, 10), (30, "ALLOC", FIRST + 512, 50),
                               (40, "FREE", FIRST, 0), (41, "UNMAP", FIRST, 1000),
                               (42, "RELEASE", 1, 1000), (43, "PARK", 1000, 5),
                               (60, "CREATE", 2, 1000), (61, "MAP", FIRST, 1000),
                               (65, "WAKE", 1000, 5), (70, "FREE", FIRST + 512, 0), span_ns=100)
        (near,) = used.stretches()
        self.assertEqual([column[:-1] for column in near.columns],
                         [(0, 0, 0, 0, 0, 0), (10, 10, 0, 1000, 0, 0), (20, 20, 10, 1000, 0, 0),
                          (30, 30, 60, 1000, 0, 0), (40, 40, 50, 1000, 0, 0),
                          (42, 42, 50, 0, 0, 0), (43, 43, 50, 0, 1000, 50),
                          (60, 60, 50, 1000, 0, 0), (70, 70, 0, 1000, 0, 0)])

    def test_many_sites_are_never_less_than_nothing(self):
        """The column of the peak has the largest ones by name."""
        rows = [(number + 1, "ALLOC", FIRST + number * 512, 1000 - number, number + 1)
                for number in range(900)]
        rows += [(2000 + number, "FREE", FIRST + number * 512, 0, 0)
                 for number in range(899, -1, -1)]
        with unittest.mock.patch.object(detail, "PART", 1):
            (near,) = gct.used_of(*rows, span_ns=4000).stretches()
        self.assertEqual(near.columns[0].live, 0)
        self.assertEqual(max(column.live for column in near.columns), sum(range(101, 1001)))
        for column, held in zip(near.columns, held_of(near)):
            self.assertEqual(sum(held.values()), column.live)
            self.assertGreaterEqual(min(held.values(), default=0), 0)

    def test_it_takes_as_much_memory_however_many_events_there_are(self):
        """Where all of them are at once, too; whether the peak is the first of them or the last."""
        most = []
        with unittest.mock.patch.multiple(detail, CHANGES=1000, SLICE=100):
            for number, falls in itertools.product((20_000, 40_000), (0, 1)):
                rows = [(place // 64, *(("ALLOC", FIRST, number * falls + place * (1 - 2 * falls))
                                        if place % 2 else ("FREE", FIRST, 0)), 1)
                        for place in range(1, number)]
                its = gct.used_of(*rows, span_ns=10**6).detail
                parts = {id(part): part for moment in (its._peak, *its._failures) if moment
                         for part in moment.parts}
                parts.update({id(part): part for part in its._parts})
                most.append(sum(len(part.ns) for part in parts.values()))
        self.assertEqual(most[:2], most[2:])

    def test_nonsense_is_no_fault(self):
        used = gct.used_of((1 << 70, "ALLOC", FIRST, (1 << 64) - 1), ((1 << 70) + 1, "FREE", FIRST,
                                                                     0), span_ns=(1 << 70) + 5)
        (near,) = used.stretches()
        self.assertEqual(max(column.live for column in near.columns), (1 << 64) - 1)


class Zoomed(Opened):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for pid, (name, at_ns) in enumerate((("hour", 1800 * S), ("own", BESIDE_NS),
                                             ("other", BESIDE_NS + 8000)), 77):
            cls.write(name, short_peak(at_ns), pid=pid)
        cls.report("hour", "hour")
        cls.report("two", "own", "other")

    @classmethod
    def write(cls, name, events, span_ns=HOUR, **options):
        parts = [events[first:first + 3000] for first in range(0, len(events), 3000)]
        gct.write(os.path.join(cls.folder, name + ".gct"), parts[0], span_ns,
                  more_threads=parts[1:], boot_id=b"b" * 16, **options)

    @classmethod
    def report(cls, out, *names):
        paths = [os.path.join(cls.folder, name + ".gct") for name in names]
        done = tool("report", *paths, "-o", os.path.join(cls.folder, out + ".html"))
        assert done.status == 0, done.err

    def at(self, part):
        """The place of this part of the shown time."""
        left, top, width = self.browser.run(
            "(box => [box.left, box.top, box.width])"
            "(document.querySelector('#timeline svg').getBoundingClientRect())")
        return left + 66 + (width - 74) * part, top + 150

    def read(self, part):
        self.browser.mouse("Moved", *self.at(part))
        return self.words(".reading").replace("\n", " ")

    def axis(self):
        return self.browser.run(
            "[...document.querySelectorAll('.picture > svg:first-child > text')]"
            ".map(its => its.textContent)")

    def closer(self, times):
        self.browser.run("document.querySelector('#closer').scrollIntoView({block: 'center'})")
        for _ in range(times):
            self.click("#closer")

    def test_a_peak_of_microseconds_in_an_hour(self):
        self.open("hour")
        self.assertIn("2000 s", self.axis())
        self.closer(8)
        span_us = 36
        for words in "1799.999985 s", "+5 µs", "+30 µs":
            self.assertIn(words, self.axis())
        for at_us, live in (-10, "0 B"), (-3, "50 MiB"), (0.5, "450 MiB"), (2, "350 MiB"), \
                (17, "350 MiB"):
            said = self.read(0.5 + at_us / span_us)
            self.assertIn(f"live, as asked for {live} ", said)
            self.assertEqual("the peak" in said, live == "450 MiB", said)
        self.click("#all")
        self.assertIn("450 MiB", self.read(0.5))

    def told(self):
        """(what is live beside the picture, [the figures of each lane]) of one moment."""
        text, lanes = self.browser.run(
            "[document.querySelector('.reading').innerText, [...document.querySelectorAll("
            "'#lanes text')].map(its => its.textContent)]")
        live = text.replace("\n", " ").partition("live, as asked for ")[2].split(" held")[0]
        return live, [words for words in lanes if " live, " in words or " of 16 GiB at " in words]

    def lives(self):
        live, lanes = self.told()
        return [live, *(words.partition(" live")[0] for words in lanes[:-1])]

    def press_closer(self, times):
        """With no pointer."""
        for _ in range(times):
            self.browser.run("document.querySelector('#closer').click()")

    def test_the_lanes_have_each_change_too(self):
        """Of each process near its own peak, which is 8 us later in the other one."""
        page = self.open("two")
        self.closer(4)
        self.assertAlmostEqual(self.heights()[3], 46 * 350 / 1024, delta=0.2)  # within a pixel
        self.closer(4)
        for at_us, own, other in (-10, 0, 0), (-3, 50, 0), (0.5, 350, 0), (5, 350, 50), \
                (10, 350, 350):
            self.read(0.5 + at_us / 36)
            expected = [f"{live} MiB" if live else "0 B" for live in (own, own, other)]
            self.assertEqual(self.lives(), expected, at_us)
        steps = page.run("[...document.querySelectorAll('#lanes path')].map(its => new Set(its."
                         "getAttribute('d').replace(/L[^L]*Z$/, '').match(/ [0-9.]+/g)).size)")
        self.assertGreater(min(steps[1:4:2]), 2)

    def test_the_lanes_tell_the_moment_of_the_text(self):
        """The other one's own peak is in the same column, and later."""
        coarse, fine = ["350 MiB"] * 3, ["350 MiB", "350 MiB", "0 B"]
        self.browser.mouse("Moved", 5, 5)
        page = self.open("two")
        self.assertEqual(self.lives(), coarse)
        for _ in range(8):
            self.press_closer(1)
            self.assertEqual(self.lives(), fine)
        self.read(0.1)
        self.assertEqual(self.lives(), ["0 B"] * 3)
        self.browser.mouse("Moved", 5, 5)
        self.assertEqual(self.lives(), fine)
        page.run("document.querySelector('#all').click()")
        self.assertEqual(self.lives(), coarse)
        page.run("document.querySelector('[data-name=b]').focus()")
        page.key("ArrowLeft")
        self.assertEqual(self.lives(), ["100 MiB"] * 3)
        page.key("ArrowRight")
        self.assertEqual(self.lives(), coarse)
        self.press_closer(1)
        self.assertEqual(self.lives(), fine)
        page.run("document.querySelector('#all').click()")
        self.read(0.51)  # the pointer stays there
        self.assertEqual(self.lives(), ["100 MiB"] * 3)
        self.press_closer(1)
        self.assertEqual(self.lives(), ["0 B"] * 3)

    def heights(self):
        """Of each lane's areas, and of those of the sum, in pixels."""
        return self.browser.run("[...document.querySelectorAll('#lanes path')]"
                                ".map(its => its.getBoundingClientRect().height)")

    def of_all(self, at_ms):
        """The lanes' figures, so long after BESIDE_NS; 360 ms are shown."""
        self.read(0.5 + at_ms / 360)
        return [words.partition(" at ")[0] for words in self.told()[1]]

    def test_a_process_that_leaves_has_nothing_from_then_on(self):
        """Near its own peak, and elsewhere. What is known at last of one that just stops stays."""
        end_ns = BESIDE_NS - 10**7
        end = [(end_ns, "END", 0, 0)]
        near = [(0, *gct.GPU[1:]), (0, "SEGMENT", FIRST, 5 << 30),
                (BESIDE_NS - 10**8, "ALLOC", FIRST, 4 << 30),
                (BESIDE_NS - 9 * 10**7, "FREE", FIRST, 0)]
        far = [(0, *gct.GPU[1:]), (0, "SEGMENT", FIRST, 2 << 30),
               (100 * S, "ALLOC", FIRST, 2 << 30), (101 * S, "FREE", FIRST, 0),
               (1000 * S, "ALLOC", FIRST, 1 << 29), (1700 * S, "ALLOC", FIRST + (1 << 29), 1 << 29)]
        self.write("leaves", near + end, end_ns, pid=80)
        self.write("stops", near, end_ns, pid=81)
        self.write("leaves-far", far + end, end_ns, pid=82)
        self.report("ends", "own", "leaves", "stops", "leaves-far")
        self.open("ends")
        self.closer(4)
        there, gone = "1 GiB live, 2 GiB held", "0 B live, 0 B held"
        idle, busy = "0 B live, 5 GiB held", "4 GiB live, 5 GiB held"
        before = "0 B live, 1 GiB held"
        for at_ms, *lanes in ((-150, before, idle, idle, there, "13 GiB of 16 GiB"),
                              (-95, before, busy, busy, there, "13 GiB of 16 GiB"),
                              (-50, before, idle, idle, there, "13 GiB of 16 GiB"),
                              (-5, before, gone, idle, gone, "6 GiB of 16 GiB"),
                              (0, "350 MiB live, 1 GiB held", gone, idle, gone, "6 GiB of 16 GiB"),
                              (150, before, gone, idle, gone, "6 GiB of 16 GiB")):
            self.assertEqual(self.of_all(at_ms), lanes, at_ms)
        heights = self.heights()
        for height, part in zip(heights, (1, 350 / 1024, 1, 0.8, 1, 0.8, 1, 0.5)):
            self.assertAlmostEqual(height, 46 * part, delta=0.2)

    def test_a_process_that_begins_has_nothing_before(self):
        lead_ns = BESIDE_NS + 10**7
        self.write("begins", [(lead_ns, *gct.GPU[1:]), (lead_ns, "SEGMENT", FIRST, 5 << 30),
                              (lead_ns, "ALLOC", FIRST, 4 << 30)], HOUR, start_ns=lead_ns)
        self.report("begins", "own", "begins")
        self.open("begins")
        self.closer(4)
        for at_ms, *lanes in ((-150, "0 B live, 0 B held", "1 GiB of 16 GiB"),
                              (0, "0 B live, 0 B held", "1 GiB of 16 GiB"),
                              (9, "0 B live, 0 B held", "1 GiB of 16 GiB"),
                              (11, "4 GiB live, 5 GiB held", "6 GiB of 16 GiB"),
                              (150, "4 GiB live, 5 GiB held", "6 GiB of 16 GiB")):
            self.assertEqual(self.of_all(at_ms)[1:], lanes, at_ms)

    def test_behind_finer_steps_are_those_of_the_columns(self):
        """From their end on, which is within a column."""
        self.open("two")
        self.closer(1)
        self.browser.drag(self.at(0.74), self.at(0.76))  # they end at 1891 s
        seen = set()
        for number in range(40):
            self.read((number + 0.5) / 40)
            text, own, _ = self.lives()
            self.assertEqual(own, text, number)
            seen.add(own)
        self.assertEqual(seen, {"0 B", "100 MiB"})

    def test_it_is_there_in_both_themes_and_all_widths(self):
        for theme, width in (("light", 1400), ("dark", 800), ("dark", 390)):
            page = self.open("hour", theme, width)
            self.closer(7)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            heights = page.run("[...document.querySelectorAll('.picture > svg:first-child path')]"
                               ".map(its => its.getBoundingClientRect().height)")
            self.assertGreater(max(heights), 150)  # 450 of 1024 MiB and more
            self.closer(9)
            self.assertTrue(page.run("document.querySelector('#closer').hidden"))

    def test_drags_zoom_as_far_as_there_are_columns(self):
        self.open("hour")
        for _ in range(4):
            self.browser.drag(self.at(0.49), self.at(0.515))  # with the peak at a half and later
        self.assertTrue(any(words.endswith(" ms") for words in self.axis()), self.axis())
        self.click("#all")
        for _ in range(4):
            self.browser.drag(self.at(0.1), self.at(0.12))
        self.assertTrue(all(words.endswith((" s", "B")) for words in self.axis()), self.axis())

    def test_markers_and_the_table_have_each_change(self):
        page = self.open("hour")
        self.closer(7)
        text_of = "document.querySelector('[data-name=b]').getAttribute('aria-valuetext')"
        page.run("document.querySelector('[data-name=b]').focus()")
        self.assertIn("450 MiB live", page.run(text_of))
        for live in "350", "50", "0 B":
            page.key("ArrowRight")
            self.assertIn(live, page.run(text_of))
        page.key("ArrowLeft")
        self.assertIn("1800.000021 s, 50 MiB live", page.run(text_of))
        self.assertIn("1800.000021 s", self.words("#changed"))
        self.click("#table-key")
        rows = [row.split("\t")[:2] for row in self.words("#as-table tbody").splitlines()]
        self.assertIn("450 MiB", [row[1] for row in rows])
        self.assertIn("350 MiB", [row[1] for row in rows])
        self.assertLess(len(rows), 12)
