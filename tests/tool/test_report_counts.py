# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report: what does not count. Blocks from before the trace are no pairs, and flushes that
gave back nothing are not told."""
import json
import os
import tempfile
import unittest

from fake import out, well

import gct
from gpucache import report, report_page, together, trace, usage

MIB = 1 << 20
BASE = 0x7f0000000000


class One(unittest.TestCase):
    def test_one_pair_is_no_pairs(self):
        folder = tempfile.TemporaryDirectory(prefix="report-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "a.gct")
        gct.write(path, [gct.GPU, (10, "ALLOC", BASE, MIB), (20, "FREE", BASE, 0)], 100)
        self.assertRegex(well("report", path).out,
                         r"without the library 1 pair of cudaMalloc and cudaFree takes some \S+ us")
        self.assertRegex(out(path, "html").decode(), r"; natively some [^;]* for 1 pair<")

    def test_no_life_is_longer_than_the_trace(self):
        used = gct.used_of((1, "ALLOC", BASE, MIB), (68, "FREE", BASE, 0), span_ns=70)
        (its,) = used.sites.values()
        self.assertEqual([its.median_life_ns(most) for most in (70, 1000)], [70, 100])


class Flushes(unittest.TestCase):
    def test_one_that_gave_back_nothing_is_not_told(self):
        """Each park flushes twice: at once, and when GPU work and Python packages are waited for.
        """
        folder = tempfile.TemporaryDirectory(prefix="report-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "a.gct")
        gct.write(path, [gct.GPU, (10, "SEGMENT", BASE, 64 * MIB), (20, "ALLOC", BASE, MIB),
                         (30, "FLUSH", 7 * MIB, 5, 0, "park"), (40, "FLUSH", 0, 5, 0, "park"),
                         (50, "PARK", MIB, 5), (60, "WAKE", MIB, 5),
                         *[(70 + n, "FLUSH", 0, 5, 0, "timer") for n in range(20)]], 100)
        told = [" ".join(line.split()[2:]) for line in
                well("report", path).out.partition("What happened\n")[2].splitlines()[1:4]]
        self.assertEqual(told, ["flush 7 MiB went back (park)", "parked 1 MiB went to the host",
                                "woken 1 MiB came back from the host"])
        rows = json.loads(out(path, "json"))["traceEvents"]
        self.assertEqual([row["name"] for row in rows if row["name"].startswith("flush")],
                         ["flush 7 MiB went back (park)"])
        page = out(path, "html").decode()
        self.assertNotIn("0 B went back", page)
        self.assertNotIn("not in the picture", page)


class Parked(unittest.TestCase):
    def test_what_is_parked_counts_once(self):
        """A park gives each handle to the driver, and a wake makes others."""
        used = gct.used_of((0, "CREATE", 1, 100 * MIB), (0, "ALLOC", BASE, 60 * MIB),
                           (20, "RELEASE", 1, 100 * MIB), (20, "PARK", 100 * MIB, 5),
                           (70, "CREATE", 2, 100 * MIB), (70, "WAKE", 100 * MIB, 5),
                           (70, "RELEASE", 3, 0))
        self.assertEqual((used.mean_held(), used.mean_idle()), (50 * MIB, 20 * MIB))
        self.assertEqual(used.memory.peak, 100 * MIB)
        lane = [together.on_device(column) for column in used.columns]
        self.assertEqual((min(lane), max(lane)), (0, 100 * MIB))


class Before(unittest.TestCase):
    """Of blocks that were live when the trace began nobody knows who asked for them, and when."""
    NAME = "from before the trace"

    def test_they_are_no_leak(self):
        """They are told one after the other, of a program that does nothing."""
        for rows in ([(1 + n, "LIVE", BASE + n * MIB, MIB, 0) for n in range(300)],
                     [(1 + n * 1000, "LIVE", BASE + n * MIB, MIB, 0) for n in range(90)]):
            self.assertEqual(gct.used_of(*rows, span_ns=100_000).grows(), {})

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="report-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = os.path.join(folder.name, "a.gct")
        live = [(100 + n, "LIVE", BASE + n * MIB, MIB) for n in range(4)]
        own = [(n, kind, BASE + 64 * MIB, 2 * MIB) for n, kind in (
            (200, "ALLOC"), (400, "FREE"), (500, "ALLOC"), (600, "FREE"))]
        frees = [(700, "FREE", BASE + n * MIB, 0) for n in range(3)]
        gct.write(cls.path, [gct.GPU, *live, *own, *frees], 1000)

    def test_their_frees_are_no_pairs(self):
        said = well("report", self.path).out
        churn = said.partition("Freed and asked for again")[2].partition("Live at the end")[0]
        self.assertEqual([line.split() for line in churn.strip().splitlines()[1:]], [
            ["2", "some", "100", "ns", "2", "MiB", *"code that is not known not known".split()]])
        self.assertIn("without the library 2 pairs of", said)
        page = out(self.path, "html").decode()
        self.assertIn(" for 2 pairs", page)
        self.assertNotIn("7 pairs", page)
        self.assertNotIn("5 pairs", page)

    def test_they_have_one_name_everywhere(self):
        said = well("report", self.path).out
        for words in (f"4 MiB of it, 67%, were {self.NAME}.", f"{self.NAME} 67%, not known 33%",
                      f"67%  {self.NAME}"):
            self.assertIn(words, said)
        self.assertRegex(said, rf"\n *1 MiB +1  {self.NAME} +-\n")
        found = well("report", self.path, "--json").json["traces"][0]
        self.assertEqual([its["owner"] for its in found["owners"]], [self.NAME, "not known"])
        self.assertEqual([its["code"] for its in found["live_at_end"]], [self.NAME])
        self.assertEqual(out(self.path, "folded").decode().splitlines()[0],
                         f"{self.NAME} {4 * MIB}")
        its = report.Report(self.path)
        self.addCleanup(its.close)
        told = report_page.Page(its).data()
        self.assertEqual(told["owners"], [self.NAME, "not known"])
        self.assertEqual({row["name"]: told["owners"][row["owner"]] for row in told["series"]},
                         {self.NAME: self.NAME, "code that is not known": "not known"})

    def test_the_sentence_about_the_order_names_them(self):
        gct.write(self.path + ".order", [
            gct.GPU, (100, "LIVE", BASE, 8 * MIB), (500, "ALLOC", BASE + 64 * MIB, 4 * MIB),
            (510, "FREE", BASE, 0)], 1000)
        said = well("report", self.path + ".order").out
        self.assertIn(f"8 MiB of it, 67%, were {self.NAME}. The last block came 10 ns before the "
                      f"next free, of 8 MiB {self.NAME}; in the other order", said)

    def test_a_dump_knows_who_asked_for_them(self):
        """Their frees are no pairs of that code either."""
        gct.write(self.path + ".dump", [
            gct.GPU, (0, "SITE", 0x400100, 0, 0, "", 1),
            *[(0, "LIVE", BASE + n * MIB, MIB, 0, "", 1) for n in range(4)],
            (0, "LIVE", BASE + 32 * MIB, MIB),
            (300, "ALLOC", BASE + 64 * MIB, 2 * MIB, 0, "", 1),
            (700, "FREE", BASE, 0), (710, "FREE", BASE + 64 * MIB, 0),
            (711, "FREE_FAILED", BASE + 64 * MIB, 1), (720, "FREE", BASE + MIB, 0),
            (721, "FREE_FAILED", BASE + MIB, 1)], 1000)
        with trace.Trace(self.path + ".dump") as its:
            sites = usage.Usage(its).sites
        found = sites.pop(0x400100)
        self.assertEqual((found.num_allocs, found.num_frees, found.blocks, found.live),
                         (1, 0, 4, 5 * MIB))
        self.assertEqual([*sites], [0])  # as the sentence of the library says it
