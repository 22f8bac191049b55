# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report: what is said of a program whose memory is known, in all formats."""
import csv
import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from fake import TOOL, Scratch, out, tool, well

import gct
from gct import used_of
from gpucache import report, report_page, site, symbols, usage

WRITER = sys.argv[2]
MIB = 1 << 20
BASE = 0x7f0000000000


class Recorded(unittest.TestCase):
    @classmethod
    def record(cls, scene):
        cls.folder = tempfile.TemporaryDirectory(prefix="report-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = os.path.join(cls.folder.name, "a.gct")
        subprocess.run([WRITER, scene, cls.path], timeout=100, check=True)


class Program(Recorded):
    @classmethod
    def setUpClass(cls):
        cls.usage = None
        while not cls.usage or cls.usage.peak_lasted_ns() > cls.usage.span_ns // 60:
            cls.record("program")  # again if the machine stood still in the spike
            cls.report = report.Report(cls.path)
            cls.addClassCleanup(cls.report.close)
            cls.usage = cls.report.usage
        by_name = {str(cls.report.symbols[site]): site for site in cls.usage.sites}
        cls.named = "weights" in by_name
        order = sorted(cls.usage.sites)
        cls.site = by_name if cls.named else dict(
            zip(("weights", "churner", "leaker", "spike"), order))

    def test_the_peak_and_who_held_it(self):
        at = self.usage.at_peak
        self.assertEqual({name: at[site] // MIB for name, site in self.site.items()},
                         {"weights": 100, "churner": 1, "leaker": 21, "spike": 200})
        self.assertEqual(self.usage.peak, 322 * MIB)
        self.assertEqual(sum(at.values()), self.usage.peak)
        self.assertEqual(self.usage.memory.peak, 1024 * MIB)
        self.assertEqual(self.usage.by_owner(at), [(os.path.basename(WRITER), 322 * MIB)])
        self.assertTrue(140 * MIB <= self.usage.enough() <= 142 * MIB, self.usage.enough())
        self.assertLess(self.usage.peak_lasted_ns(), self.usage.span_ns // 4)

    def test_each_column_is_its_highest_moment(self):
        for column in self.usage.columns:
            self.assertEqual(sum(column.held.values()), column.live)
        self.assertEqual(max(c.live for c in self.usage.columns), self.usage.peak)
        self.assertLessEqual(len(self.usage.columns), usage.COLUMNS + 1)

    def test_churn_has_pairs_and_lives(self):
        site, its = self.report.churn()[0]
        self.assertEqual((site, its.num_frees, its.num_allocs), (self.site["churner"], 400, 400))
        self.assertTrue(500_000 < its.median_life_ns(10**9) < 50_000_000, its.lives)

    def test_a_leak_is_named_and_nothing_else(self):
        self.assertEqual(set(self.usage.grows()), {self.site["leaker"]})

    def test_what_lives_at_the_end(self):
        self.assertEqual([(site, its.live // MIB, its.blocks)
                          for site, its in self.report.live_at_end()],
                         [(self.site["weights"], 100, 1), (self.site["leaker"], 40, 40)])
        self.assertEqual(self.usage.num_unknown_frees, 400)

    def test_the_text(self):
        said = well("report", self.path)
        for words in (f"{WRITER} program", "GPU 0 a GPU", "Live memory peaked at 322 MiB",
                      "of the time", "What did it need?", "Does it leak?", "Live at the peak",
                      "Freed and asked for again", "Live at the end",
                      "24 MiB went back (signal)", "out of memory  4 GiB were asked for by"):
            self.assertIn(words, said.out)
        if self.named:
            self.assertRegex(said.out, r"Does it leak\? +leaker grew by ")
            self.assertRegex(said.out, r"62%  spike +\S+ trace_writer.c:\d+")

    def test_its_sentences_fit_in_80_columns(self):
        lines = tool("report", self.path, COLUMNS="80").out.splitlines()
        self.assertEqual([line for line in lines[1:lines.index("Live at the peak")]
                          if len(line) > 80], [])
        self.assertRegex("\n".join(lines), r"\nWhat did it cost\? {3}\S.*\n {20}\S")

    @unittest.skipUnless(shutil.which("addr2line") or shutil.which("llvm-symbolizer"),
                         "no program that knows functions")
    def test_functions_have_their_names(self):
        self.assertEqual(set(self.site), {"weights", "churner", "leaker", "spike"})

    @unittest.skipUnless(shutil.which("nm") and shutil.which("cc"), "no compiler")
    def test_no_name_of_another_function(self):
        """Of a function that has no symbol, behind one that has."""
        path = os.path.join(self.folder.name, "stripped.so")
        code = "int hidden(int a); int shown(int a) { return hidden(a) + 1; } " \
               "__attribute__((visibility(\"hidden\"), noinline)) int hidden(int a) " \
               "{ for (int i = 0; i < a; i++) a ^= i * a; return a; }"
        make = ["cc", "-x", "c", "-", "-shared", "-fPIC", "-fno-toplevel-reorder", "-O1", "-o"]
        subprocess.run([*make, path], input=code, text=True, check=True)
        rows = subprocess.run(["nm", path], text=True, check=True, stdout=subprocess.PIPE).stdout
        at = {row.split()[2]: int(row.split()[0], 16) for row in rows.splitlines()
              if row.split()[-1] in ("shown", "hidden")}
        subprocess.run(["strip", path], check=True)
        offset = next(start - offset for offset, start, size in symbols._segments(path)
                      if start <= at["shown"] < start + size)

        class Mapped:  # pylint: disable=too-few-public-methods
            def object_of(self, _):
                return type("Object", (), {"path": path, "start": 0, "offset": 0})

            def frames(self, site):
                return (site,)

        sites = {name: address - offset + 4 for name, address in at.items()}
        for program in filter(shutil.which, symbols.PROGRAMS):
            with unittest.mock.patch.object(symbols, "PROGRAMS", (program,)):
                its = symbols.Symbols(Mapped(), sites.values())
            self.assertEqual(its[sites["shown"]].function, "shown", program)
            self.assertEqual(its[sites["hidden"]].function, "", program)

    def test_perfetto(self):
        rows = json.loads(out(self.path, "json"))["traceEvents"]
        live = [row["args"]["live"] for row in rows if row["name"] == "device memory"]
        self.assertEqual(max(live), 322 * MIB)
        self.assertTrue(any(row["ph"] == "i" and "24 MiB went back" in row["name"]
                            for row in rows))
        times = [row["ts"] for row in rows if row["ph"] == "C" and row["name"] == "device memory"]
        self.assertEqual(times, sorted(times))

    def test_the_json_has_the_figures_and_the_sentences(self):
        its, again = well("report", self.path, self.path, "--json").json["traces"]
        self.assertEqual(its, again)
        self.assertEqual((its["file"], its["pid"], its["peak_bytes"], its["out_of_memory"]),
                         (self.path, self.report.trace.pid, 322 * MIB, False))
        self.assertEqual(sum(row["bytes"] for row in its["at_peak"]), its["peak_bytes"])
        self.assertEqual(its["owners"], [{"owner": os.path.basename(WRITER), "bytes": 322 * MIB}])
        self.assertIn("Does it leak?", [row["question"] for row in its["answers"]])
        self.assertIn(its["headline"] + "\n", tool("report", self.path).out)
        self.assertEqual(tool("report", self.path, "--json", "--format", "csv").status, 2)

    def test_collapsed_stacks(self):
        rows = [line.rsplit(" ", 1) for line in out(self.path, "folded").decode().splitlines()]
        self.assertEqual([int(size) // MIB for _, size in rows], [200, 100, 21, 1])
        self.assertTrue(all(name.count(";") == 1 for name, _ in rows))

    def test_the_snapshot_is_pytorchs(self):
        """Its segments are filled by their blocks, and its events lead to them."""
        found = pickle.loads(out(self.path, "pickle"))
        live = {}
        for segment in found["segments"]:
            at = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at)
                self.assertLessEqual(block["requested_size"], block["size"])
                at += block["size"]
                if block["state"] == "active_allocated":
                    live[block["address"]] = block["requested_size"]
                    self.assertEqual(set(block["frames"][0]), {"filename", "line", "name"})
            self.assertEqual(at - segment["address"], segment["total_size"])
        self.assertEqual(sum(segment["total_size"] for segment in found["segments"]), 1 << 30)
        self.assertEqual(live, {addr: block.bytes for addr, block in self.usage.blocks.items()})
        events, = found["device_traces"]
        replayed, peak = {}, 0
        for event in events:
            if event["action"] == "alloc":
                replayed[event["addr"]] = event["size"]
            elif event["action"] == "free_completed":
                self.assertEqual(replayed.pop(event["addr"]), event["size"])
            peak = max(peak, sum(replayed.values()))
        self.assertEqual((replayed, peak), (live, 322 * MIB))
        self.assertEqual([(event["size"], event["device_free"]) for event in events
                          if event["action"] == "oom"], [(4096 * MIB, 0)])
        times = [event["time_us"] for event in events]
        self.assertEqual(times, sorted(times))
        self.assertIn("weights" if self.named else os.path.basename(WRITER),
                      next(event for event in events if event["action"] == "alloc")
                      ["frames"][0]["name"])

    def test_failures_are_told_among_many_marks(self):
        marks = [site.Mark(ns, kind, 0, "", 0, 0) for ns, kind in enumerate(
            ["ALLOC_FAILED", "FLUSH", *["OOM_STEP", "EXPOSED"] * 50, "PARK", "WAKE", "FLUSH"])]
        self.assertEqual([mark.kind for mark in site.select_marks(marks, 4)],
                         ["ALLOC_FAILED", *["OOM_STEP", "EXPOSED"] * 2, "PARK", "WAKE", "FLUSH"])
        self.assertEqual(site.select_marks(marks, 1), [marks[0], marks[101]])

    def test_the_csv_is_rmms(self):
        rows = list(csv.DictReader(io.StringIO(out(self.path, "csv").decode())))
        self.assertEqual(list(rows[0]), ["Thread", "Time", "Action", "Pointer", "Size", "Stream"])
        self.assertEqual([row["Action"] for row in rows].count("allocate"), 442)
        self.assertEqual([row["Action"] for row in rows].count("free"), 801)
        self.assertEqual((rows[-1]["Action"], rows[-1]["Pointer"]), ("allocate failure", "0x0"))
        self.assertRegex(rows[0]["Time"], r"^00:00:00:\d{6}$")


class Viewed(Scratch):
    """What PyTorch's viewer does with a snapshot: it begins with the segments and blocks of the
    end, and takes the events back one by one. Each block must lie in a segment at each step."""

    def snapshot(self, *events):
        gct.write(self.path, [gct.GPU, *events], 10**9)
        return pickle.loads(out(self.path, "pickle"))

    def taken_back(self, found, before=()):
        """MiB of segments after each event, the last first. before: blocks of before the trace."""
        blocks = {block["address"]: block["size"] for segment in found["segments"]
                  for block in segment["blocks"] if block["state"] == "active_allocated"}
        there = set()
        for segment in found["segments"]:
            there.update(range(segment["address"] // MIB,
                               (segment["address"] + segment["total_size"]) // MIB))
        sizes = []
        for event in reversed(found["device_traces"][0]):
            for addr, size in blocks.items():
                self.assertLessEqual({*range(addr // MIB, (addr + size) // MIB)}, there)
            sizes.append(len(there))
            part = {*range(event["addr"] // MIB, (event["addr"] + event["size"]) // MIB)}
            if event["action"] == "alloc":
                blocks.pop(event["addr"], None)
            elif event["action"] == "free_completed":
                blocks[event["addr"]] = event["size"]
            elif event["action"] == "segment_map":
                self.assertLessEqual(part, there)
                there -= part
            elif event["action"] == "segment_unmap":
                self.assertFalse(part & there)
                there |= part
        self.assertEqual(sorted(blocks), sorted(before))
        return sizes

    def test_memory_that_went_back_is_there_before(self):
        found = self.snapshot(
            (10, "MAP", BASE, 8 * MIB), (20, "ALLOC", BASE + 2 * MIB, 4 * MIB),
            (30, "FREE", BASE + 2 * MIB, 0), (40, "UNMAP", BASE + 2 * MIB, 4 * MIB),
            (50, "SEGMENT", BASE + 32 * MIB, 2 * MIB), (60, "ALLOC", BASE + 32 * MIB, 2 * MIB),
            (70, "FREE", BASE + 32 * MIB, 0), (80, "SEGMENT_FREE", BASE + 32 * MIB, 0),
            (90, "MAP", BASE + 6 * MIB, 2 * MIB))
        self.assertEqual([(its["address"] - BASE, its["total_size"]) for its in found["segments"]],
                         [(0, 2 * MIB), (6 * MIB, 2 * MIB)])
        self.assertEqual(self.taken_back(found)[0], 4)
        self.assertEqual(max(self.taken_back(found)), 8)

    def test_blocks_of_the_driver_are_segments_of_their_own(self):
        found = self.snapshot(
            (5, "LIVE", BASE + 64 * MIB, MIB), (10, "ALLOC_DRIVER", BASE, 8 * MIB),
            (15, "FREE", BASE + 64 * MIB, 0), (20, "ALLOC_DRIVER", BASE + 8 * MIB, 4 * MIB),
            (30, "FREE", BASE, 0))
        self.assertEqual([(its["address"] - BASE, its["total_size"]) for its in found["segments"]],
                         [(8 * MIB, 4 * MIB)])
        self.assertEqual(max(self.taken_back(found, [BASE + 64 * MIB])), 12)

    def test_a_free_that_failed_leaves_its_block(self):
        for kind in "ALLOC", "ALLOC_DRIVER":
            found = self.snapshot((5, "MAP", BASE + 8 * MIB, MIB), (10, kind, BASE, 2 * MIB),
                                  (20, "FREE", BASE, 0), (21, "FREE_FAILED", BASE, 1),
                                  (30, "FREE_FAILED", BASE, 1))
            self.assertEqual([block["address"] for segment in found["segments"]
                              for block in segment["blocks"] if block["requested_size"]], [BASE])
            self.taken_back(found)

    def test_a_second_free_that_failed_brings_nothing_back(self):
        found = self.snapshot((5, "MAP", BASE, 2 * MIB), (10, "ALLOC", BASE, 2 * MIB),
                              (20, "FREE", BASE, 0), (30, "FREE", BASE, 0),
                              (31, "FREE_FAILED", BASE, 1))
        self.assertEqual([block["requested_size"] for segment in found["segments"]
                          for block in segment["blocks"]], [0])
        self.assertEqual([its["action"] for its in found["device_traces"][0]].count("alloc"), 1)
        self.taken_back(found)

    def test_a_context_takes_its_memory_along(self):
        found = self.snapshot((10, "MAP", BASE, 8 * MIB), (20, "ALLOC", BASE, MIB),
                              (30, "CONTEXT_END", 0, 0))
        self.assertEqual(found["segments"], [])
        self.assertEqual(self.taken_back(found)[0], 0)


@unittest.skipUnless(shutil.which("addr2line") or shutil.which("llvm-symbolizer"),
                     "no program that knows functions")
class Paths(Recorded):
    """Of two call paths to the same caller."""
    @classmethod
    def setUpClass(cls):
        cls.record("paths")

    def test_each_path_is_told_apart(self):
        said = tool("report", self.path).out
        self.assertRegex(said, r"100 MiB +76% +middle +\S+ \S+, called by loads, ")
        self.assertRegex(said, r" 32 MiB +24% +middle +\S+ \S+, called by middle, trains, ")
        self.assertRegex(said, r"\n +100 .* 32 MiB +middle .*called by middle, trains, ")
        self.assertRegex(said, r"\n +7 MiB +1 +middle +\S+ \S+\n")
        self.assertNotIn("__libc", said.partition("What happened")[0])

    def test_collapsed_stacks_begin_at_the_outermost(self):
        rows = [line.rsplit(" ", 1) for line in out(self.path, "folded").decode().splitlines()]
        self.assertEqual([int(size) // MIB for _, size in rows], [100, 32])
        self.assertTrue(rows[0][0].endswith(";loads;middle"), rows)
        self.assertTrue(rows[1][0].endswith(";trains;middle;middle"), rows)

    def test_perfetto_has_the_paths_of_the_peak(self):
        rows = json.loads(out(self.path, "json"))["traceEvents"]
        peak, = (row["args"] for row in rows if row["name"] == "peak")
        self.assertEqual(list(peak.values()), ["100 MiB", "32 MiB"])
        self.assertTrue(list(peak)[0].startswith("middle < loads < "), peak)
        self.assertTrue(any(" < " in row["args"]["call path"] for row in rows
                            if row["name"].startswith("out of memory")))

    def test_the_snapshot_has_all_frames(self):
        events, = pickle.loads(out(self.path, "pickle"))["device_traces"]
        names = [[frame["name"] for frame in event["frames"]] for event in events
                 if event["action"] == "alloc"]
        self.assertEqual((names[0][:2], names[1][:3], len(names[-1])),
                         (["middle", "loads"], ["middle", "middle", "trains"], 1))


class Words(Scratch):
    def test_bad_files_and_arguments(self):
        os.mkfifo(self.path)
        self.refused(self.path, "a.gct: it is no file")
        path = self.path + ".x"
        self.refused(path, "no such file")
        pathlib.Path(path).write_bytes(b"something else")
        self.refused(path, "it is no trace of libgpucache")
        self.assertEqual(tool("report", path, path, "--format", "csv").status, 2)
        self.assertEqual(tool("report", path, "-o", os.path.dirname(path)).status, 1)
        self.assertEqual(tool("trace", "0x1").status, 2)

    def refused(self, path, words):
        done = tool("report", path)
        self.assertEqual((done.status, done.out), (1, ""))
        self.assertIn(words, done.err)

    def test_no_trace_is_written_over(self):
        """By any of its names, as an input or not."""
        other, link, hard, plain = (os.path.join(self.folder, name) for name in "olhp")
        for path in self.path, other:
            gct.write(path, [gct.GPU, (2, "ALLOC", 512, MIB)], 10)
        os.symlink(self.path, link)
        os.link(other, hard)
        pathlib.Path(plain).write_bytes(b"a snapshot")
        before = [pathlib.Path(path).read_bytes() for path in (self.path, other, plain)]
        for words, why in (([self.path, "-o", self.path], "it is one of the inputs, and is not"),
                           ([self.path, other, "-o", link], "one of the inputs"),
                           ([self.path, other, "--format", "html", "-o", hard], "of the inputs"),
                           ([self.path, "--format", "csv", "-o", other], "o: it is a trace, and"),
                           ([self.path, "--snapshot", plain, "-o", plain], "one of the inputs")):
            done = tool("report", *words)
            self.assertEqual((done.status, done.out), (2, ""), words)
            self.assertIn(why, done.err)
        self.assertEqual(tool("metrics", "--textfile", other).status, 2)
        for its in other, self.path:
            with open(other, "ab") as stdout:
                done = subprocess.run([sys.executable, TOOL, "report", its], check=False,
                                      stdout=stdout, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2)
        self.assertEqual([pathlib.Path(path).read_bytes() for path in (self.path, other, plain)],
                         before)

    def test_a_file_is_written_whole_or_not_at_all(self):
        gct.write(self.path, [gct.GPU, (2, "ALLOC", 512, MIB)], 10)
        page = os.path.join(self.folder, "x.html")
        for before in None, b"the old page":
            with unittest.mock.patch.object(report_page, "write", side_effect=OSError(28, "no")):
                self.assertEqual(tool("report", self.path, "-o", page).status, 1)
            self.assertEqual(pathlib.Path(page).read_bytes() if before else os.path.exists(page),
                             before or False)
            pathlib.Path(page).write_bytes(b"the old page")
        os.chmod(page, 0o640)
        self.assertEqual(tool("report", self.path, "-o", page).status, 0)
        self.assertEqual(os.stat(page).st_mode & 0o777, 0o640)
        self.assertIn(b"</html>", pathlib.Path(page).read_bytes())
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.gct", "x.html"])

    def test_a_dash_is_stdout(self):
        gct.write(self.path, [gct.GPU, (2, "ALLOC", 512, MIB)], 10)
        for words in ["--format", "pytorch"], ["--format", "pytorch", "-o", "-"]:
            done = subprocess.run([sys.executable, TOOL, "report", self.path, *words], check=True,
                                  stdout=subprocess.PIPE, cwd=self.folder)
            self.assertEqual(len(pickle.loads(done.stdout)["device_traces"]), 1)
            leader, terminal = os.openpty()
            self.assertEqual(subprocess.run(done.args, stdout=terminal, stderr=subprocess.DEVNULL,
                                            cwd=self.folder, check=False).returncode, 2)
            os.close(leader)
            os.close(terminal)
        self.assertEqual(os.listdir(self.folder), ["a.gct"])

    def test_a_machine_without_room_is_told_in_a_sentence(self):
        gct.write(self.path, [gct.GPU, (2, "ALLOC", 512, MIB)], 10)
        for form in "text", "html", "csv", "perfetto", "collapsed", "pytorch":
            done = tool("report", self.path, "--format", form, "-o", "/dev/full")
            self.assertEqual((done.status, done.out, done.err), (
                1, "", "gpucache: /dev/full: no space left on device\n"))
        with unittest.mock.patch.object(report, "Report", side_effect=MemoryError):
            self.refused(self.path, "gpucache: there is not enough memory for it\n")

    def test_a_number_that_is_no_device_makes_no_lists(self):
        for device, number in (1, 2), (100_000, 1):
            gct.write(self.path, [(0, "CONTEXT", device, 16 << 30), (1, "SEGMENT", 512, MIB),
                                  (2, "ALLOC", 512, MIB)], 10)
            found = pickle.loads(out(self.path, "pickle"))
            self.assertEqual(len(found["device_traces"]), number)

    def test_the_time_goes_to_the_last_event(self):
        """The clocks' last pair is older where a process was killed."""
        def used(*last, more=()):
            gct.write(self.path, [gct.GPU, (2, "SEGMENT", 512, 4 * MIB), (2, "ALLOC", 512, MIB),
                                  (4000, "ALLOC", 5120, 2 * MIB), *last], 5, more_threads=more)
            its = usage.Usage(self.trace())
            self.assertLessEqual(len(its.columns), usage.COLUMNS + 1)
            return its.own_ns, its.peak_lasted_ns(), its.mean_idle(), its.mean_held()
        self.assertEqual(used(), (4000, 0, MIB * 3 * 3998 // 4000, 4 * MIB * 3998 // 4000))
        expected = 10000, 6000, MIB * (3 * 3998 + 6000) // 10000, 4 * MIB * 9998 // 10000
        self.assertEqual(used((10000, "FREE", 512, 0)), expected)
        self.assertEqual(used(more=[[(10000, "FREE", 512, 0)]]), expected)

    def test_an_empty_trace(self):
        subprocess.run([WRITER, "nothing", self.path], timeout=100, check=True)
        self.assertIn("No memory was allocated", tool("report", self.path).out)
        for ending in "json", "csv", "folded", "pickle":
            out(self.path, ending)

    def test_a_free_of_another_thread_with_an_older_clock(self):
        """The same address again before its free: the block is not lost."""
        used = used_of((10, "ALLOC", 512, 100, 1), (20, "ALLOC", 512, 200, 2), (21, "FREE", 512))
        self.assertEqual((used.live, used.blocks[512].bytes), (200, 200))

    def test_several_frees_of_other_threads_with_older_clocks(self):
        rows = [(10, "ALLOC", 512, 100), (20, "ALLOC", 512, 200), (21, "ALLOC", 512, 300),
                (22, "FREE", 512), (23, "FREE", 512)]
        used = used_of(*rows)
        self.assertEqual((used.live, used.blocks[512].bytes, used.num_unknown_frees), (300, 300, 0))
        used = used_of(*rows, (24, "FREE", 512))
        self.assertEqual((used.live, used.blocks, used.num_unknown_frees), (0, {}, 0))

    def test_columns_without_events_have_what_was_left(self):
        """A peak is no longer than it was."""
        used = used_of((100, "ALLOC", 512, 100, 1), (5000, "ALLOC", 1024, 700, 2),
                       (5001, "FREE", 1024), (5002, "ALLOC", 2048, 1, 3), (30000, "FREE", 512),
                       span_ns=40000)
        found = [(column.ns // used.column_ns, column.held) for column in used.columns]
        self.assertEqual(found, [(0, {}), (1, {}), (10, {1: 100}), (11, {1: 100}),
                                 (500, {1: 100, 2: 700}), (501, {1: 100, 3: 1}),
                                 (3000, {1: 100, 3: 1}), (3001, {3: 1})])
        its = used.after_peak
        self.assertEqual((used.peak, its.freed, its.other_order(used.peak)),
                         (800, (5001, 2, -700), 101))
        self.assertEqual(used.live_time(), 100 * 4900 + 800 + 100 + 101 * (30000 - 5002) + 10000)

    def test_what_the_driver_served_is_held_but_not_idle(self):
        used = used_of((0, "SEGMENT", 1 << 30, 500, 0, 9), (0, "ALLOC_DRIVER", 512, 300, 1, 9),
                       (50, "FREE", 512), (50, "SEGMENT_FREE", 1 << 30, 0, 0, 9))
        self.assertEqual((used.memory.peak, used.reserved, used.live, used.mean_held(),
                          used.mean_idle(), used.memory.driver_ns), (800, 0, 0, 400, 250, 18))

    def test_parks_and_requests_are_told_as_flushes_are(self):
        its = report.Report.__new__(report.Report)
        its.symbols, asked = {0: ""}, "other processes were asked"
        its.usage = used_of((10, "PARK", 3 * MIB, 777, 0), (20, "WAKE", 2 * MIB, 888, 0),
                            (30, "LEND_ASK", MIB, 1, 0), (40, "LEND_ASK", MIB, 0, 0))
        self.assertEqual([its.mark(mark) for mark in its.usage.marks], [
            ("parked", "3 MiB went to the host"), ("woken", "2 MiB came back from the host"),
            (asked, "1 MiB, some came"), (asked, "1 MiB, none came")])

    def test_a_free_that_failed_is_none(self):
        used = used_of((10, "ALLOC", 512, 100), (20, "FREE", 512), (21, "FREE_FAILED", 512, 1))
        self.assertEqual((used.live, used.live_time()), (100, 100 * 90))
        self.assertEqual((used.sites[1].num_allocs, used.sites[1].num_frees,
                          used.sites[1].num_before), (1, 0, 0))

    def test_what_came_while_the_trace_began_is_held_once(self):
        """It is in a record of its own and in the list of what was held at the start."""
        def held(*rows):
            used = used_of(*((ns, *row, 0) for ns, row in enumerate(rows)))
            return used.reserved, used.memory.peak
        self.assertEqual(held(("CREATE", 7, 64), ("MAP", 1 << 20, 64), ("HELD", 0x80000, 512),
                              ("HELD", 1 << 20, 64)), (576, 576))
        self.assertEqual(held(("SEGMENT", 1 << 20, 64), ("HELD", 1 << 20, 64)), (64, 64))
        # A chunk that moved then was there before.
        self.assertEqual(held(("MAP", 1 << 20, 64), ("HELD", 1 << 20, 64)), (64, 64))
        # The list has a chunk's parts as one.
        self.assertEqual(held(("CREATE", 7, 64), ("MAP", 1 << 20, 64),
                              ("HELD", (1 << 20) - 64, 128)), (128, 128))
