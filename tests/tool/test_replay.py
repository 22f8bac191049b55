# SPDX-License-Identifier: BSD-2-Clause
"""gpucache-replay on programs whose figures are known, and what a report says of it."""
import contextlib
import errno
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

from fake import Scratch, tool

import gct
from gct import GPU, MIB
from gpucache import replay, tables, text, trace, usage
from gpucache.fault import Fault

WRITER = sys.argv[2]
SECOND = 10**9
FIRST = 0x7f0000000000
BLOCK = 100 * MIB


def alloc(ns, place, size=BLOCK):
    return ns, "ALLOC", FIRST + place * (1 << 30), size


def free(ns, place):
    return ns, "FREE", FIRST + place * (1 << 30), 0


# A spike of two blocks over one that stays.
SPIKE = [GPU, alloc(0, 0), alloc(SECOND // 2, 1), alloc(SECOND // 2, 2),
         free(SECOND // 2 + 1000, 1), free(SECOND // 2 + 1000, 2), free(20 * SECOND, 0)]
SPIKE_NS = 20 * SECOND


class Traces(Scratch):
    def setUp(self):
        super().setUp()
        gct.write(self.path, SPIKE, SPIKE_NS)
        self.assertTrue(replay.program(), "gpucache-replay is not beside the tool")

    def record(self, scene, ends_well=True):
        """A trace of the recorder's own in the place of that one."""
        os.unlink(self.path)
        subprocess.run([WRITER, scene, self.path], timeout=100, check=ends_well)

    def run_it(self, *settings, seconds=60, gpu=0):
        return subprocess.run([replay.program(), str(seconds), str(gpu), self.path, *settings],
                              text=True, timeout=100, stdout=subprocess.PIPE, check=False,
                              stderr=subprocess.PIPE)

    def replay(self, *settings, **more):
        """(what it says of the trace, [what it says of each setting])."""
        done = self.run_it(*settings, **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        head, *rows = map(json.loads, done.stdout.splitlines())
        rows.sort(key=lambda row: row["setting"])
        self.assertEqual([row["setting"] for row in rows], [*range(len(settings))])
        return head, rows


class Descriptor(Traces):
    def test_what_only_this_process_has_open_is_replayed(self):
        """As /dev/stdin, which is another file in the replay. Also one without a name."""
        for end in (lambda: None, lambda: os.unlink(self.path)):
            with open(self.path, "rb") as file:
                end()
                done = tool("report", f"/dev/fd/{file.fileno()}")
            self.assertEqual((done.status, done.err), (0, ""))
            self.assertIn("MAX_IDLE=0", done.out)
            self.assertNotIn("Nothing was replayed", done.out)


class Program(Traces):
    def test_what_it_says_of_the_trace(self):
        self.assertEqual(self.replay("")[0], {"events": 6, "peak_live": 3 * BLOCK,
                                              "gpu_bytes": 16 << 30, "gpus": 1})

    def test_limits_on_idle_memory_lower_the_mean(self):
        _, (free_, none, most, brief, long, segment) = self.replay(
            "", "MAX_IDLE=0", "MAX_IDLE=110M", "IDLE_TIMEOUT=1s", "IDLE_TIMEOUT=10s",
            "BACKING=segment")
        for row in free_, none, most, brief, long, segment:
            self.assertEqual((row["state"], row["failed"]), ("done", 0))
            self.assertTrue(3 * BLOCK <= row["peak"] <= 3 * BLOCK + 16 * MIB, row)
        # All is held from the spike on, or one block, or until the time is over.
        self.assertAlmostEqual(free_["mean"] / BLOCK, 0.5 / 20 + 3 * 19.5 / 20, delta=0.2)
        self.assertAlmostEqual(none["mean"] / BLOCK, 1, delta=0.1)
        self.assertAlmostEqual(most["mean"] / BLOCK, 2, delta=0.2)
        self.assertAlmostEqual(brief["mean"] / BLOCK, 1 + 2 * 1.1 / 20, delta=0.15)
        self.assertAlmostEqual(long["mean"] / BLOCK, 1 + 2 * 10.6 / 20, delta=0.2)
        self.assertGreater(none["driver_ns"], free_["driver_ns"])
        self.assertGreater(none["busy_ns"], none["driver_ns"])

    def test_the_least_limit_serves_and_less_does_not(self):
        _, (least,) = self.replay("MAX_RESERVED=least")
        self.assertEqual((least["state"], least["failed"]), ("done", 0))
        self.assertTrue(3 * BLOCK <= least["max_reserved"] <= 3 * BLOCK + 12 * MIB, least)
        self.assertLessEqual(least["peak"], least["max_reserved"])
        _, (same, less) = self.replay(f"MAX_RESERVED={least['max_reserved']}",
                                      f"MAX_RESERVED={3 * BLOCK - 4 * MIB}")
        self.assertEqual((same["failed"], same["peak"]), (0, least["peak"]))
        self.assertEqual((less["failed"], less["first_failed_ns"], less["first_failed_bytes"]),
                         (1, SECOND // 2, BLOCK))

    def test_the_least_limit_is_below_what_was_held(self):
        self.record("program")
        _, (as_is, least) = self.replay("", "MAX_RESERVED=least", gpu=16 << 30)
        self.assertGreater(as_is["peak"], 332 * MIB)
        self.assertTrue(322 * MIB <= least["max_reserved"] <= 326 * MIB, least)

    def test_a_gpu_that_is_too_small(self):
        _, rows = self.replay("", "MAX_RESERVED=least", "BACKING=segment", gpu=2 * BLOCK + 20 * MIB)
        for row in rows:
            self.assertEqual((row["failed"], row["first_failed_ns"]), (1, SECOND // 2))
            self.assertLessEqual(row["peak"], 2 * BLOCK + 20 * MIB)

    def test_what_goes_to_the_driver_counts(self):
        _, (row,) = self.replay("MAX_BLOCK=1M")
        self.assertEqual((row["failed"], row["peak"]), (0, 3 * BLOCK))
        self.assertAlmostEqual(row["mean"] / BLOCK, 1, delta=0.01)
        self.assertEqual(row["driver_ns"], 3 * (48_000 + 120_000 * 100 // 1024 + 60_000))

    def test_the_same_address_before_its_free(self):
        """Its free was noted by another thread, with an older clock."""
        gct.write(self.path, [GPU, alloc(1000, 0), alloc(2000, 0)], SECOND,
                  more_threads=[[free(2001, 0), alloc(3000, 1), free(4000, 0)]])
        head, (row,) = self.replay("MAX_IDLE=0")
        self.assertEqual((head["events"], head["peak_live"]), (5, 2 * BLOCK))
        self.assertAlmostEqual(row["mean"] / BLOCK, 1, delta=0.3)

    def test_chunks_of_threads_are_merged(self):
        """Each thread's block is freed by the next one, in the order of time alone."""
        threads = [[alloc(2 + 10 * n + 1000 * i, n) for n in range(40) if n % 5 == i]
                   for i in range(5)]
        frees = [[free(1_000_000 + 3 * n + 7 * i, n) for n in range(40) if (n + 1) % 5 == i]
                 for i in range(5)]
        chunks = [a + b for a, b in zip(threads, frees)]
        gct.write(self.path, [GPU] + chunks[0], SECOND, more_threads=chunks[1:])
        head, (row,) = self.replay("")
        self.assertEqual((head["events"], head["peak_live"]), (80, 40 * BLOCK))
        self.assertEqual(row["failed"], 0)

    def test_what_came_before_the_start_of_a_dump_is_none(self):
        """What was live then comes first, also before what happened at that moment."""
        older = [GPU, alloc(SECOND - 1, 3, 8 * BLOCK), free(SECOND, 0), alloc(SECOND, 0)]
        newer = [(SECOND, *GPU[1:]), (SECOND, "LIVE", *alloc(0, 0)[2:])]
        for first, second in (older, newer), (newer, older):
            gct.write(self.path, first, 2 * SECOND, more_threads=[second], start_ns=SECOND)
            self.assertEqual(self.replay("")[0], {"events": 3, "peak_live": BLOCK,
                                                  "gpu_bytes": 16 << 30, "gpus": 1})

    def test_memory_ends_with_the_last_context(self):
        again = [(ns + SECOND, *rest) for ns, *rest in [GPU, alloc(0, 5), alloc(0, 6)]]
        gct.write(self.path, [GPU, alloc(0, 0), alloc(0, 1), (SECOND - 1, "CONTEXT_END", 0, 0)]
                  + again, 2 * SECOND)
        self.assertEqual(self.replay("")[0]["peak_live"], 2 * BLOCK)

    def test_what_was_live_before_the_trace(self):
        """It is told once; what was freed or handed out meanwhile is not told again."""
        live = [(ns, "LIVE", *rest) for ns, _, *rest in (alloc(9, 0), alloc(9, 1), alloc(9, 2))]
        gct.write(self.path, [GPU, alloc(1, 0), free(2, 1), *live], SECOND)
        head = self.replay("")[0]
        self.assertEqual((head["events"], head["peak_live"]), (2, 2 * BLOCK))

    def test_there_is_no_time(self):
        rows = self.replay("", "MAX_RESERVED=least", seconds=0)[1]
        self.assertEqual([row["state"] for row in rows], ["late"] * 2)

    def test_settings_that_are_none(self):
        for words, why in (("MAX_IDLE=much", "not understood"), ("LOG=warn", "no such option"),
                           ("MAX_IDEL=0", "no such option"), ("MAX_IDLE", "NAME=VALUE"),
                           ("BACKING=driver", "no pool"), ("MAX_IDLE=" + "9" * 300, "too long")):
            done = self.run_it(words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            self.assertIn(why, done.stderr)
        self.assertEqual(self.run_it("GPUCACHE_MAX_IDLE=10%  IDLE_TIMEOUT=5s").returncode, 0)
        self.assertEqual(self.run_it(seconds="soon").returncode, 2)

    def test_the_recorders_own_traces(self):
        for scene, peak in (("program", 322 * MIB), ("threads", None), ("killed", 30000 * 512)):
            self.record(scene, scene != "killed")
            head, (row,) = self.replay("", gpu=80 << 30)
            self.assertEqual((row["state"], row["failed"]), ("done", 0), scene)
            if peak:
                self.assertEqual(head["peak_live"], peak, scene)


class BadFiles(Traces):
    def test_foreign_old_and_missing_ones(self):
        os.unlink(self.path)
        self.assertIn("cannot be opened", self.run_it("").stderr)
        pathlib.Path(self.path).write_bytes(b"something else" * 1000)
        self.assertIn("no trace of libgpucache", self.run_it("").stderr)
        gct.write(self.path, SPIKE, SPIKE_NS)
        data = bytearray(pathlib.Path(self.path).read_bytes())
        data[8] += 1
        pathlib.Path(self.path).write_bytes(data)
        done = self.run_it("")
        self.assertEqual(done.returncode, 1)
        self.assertIn("another version", done.stderr)

    def test_a_time_beyond_all_others(self):
        """Comes, and passes."""
        for last in SPIKE_NS, (1 << 64) - 1:
            gct.write(self.path, [*SPIKE[:-1], free(last, 0)], (1 << 64) - 1)
            rows = self.replay("", "MAX_IDLE=0", "IDLE_TIMEOUT=1s")[1]
            self.assertEqual([row["state"] for row in rows], ["done"] * 3)

    def test_no_contents_end_it_badly(self):
        small = pathlib.Path(self.path).read_bytes()
        self.record("threads")
        whole = pathlib.Path(self.path).read_bytes()[:4096 + (256 << 10)]
        dice = random.Random(5)
        for number in range(60):
            data = bytearray(small if number % 2 else whole)
            for _ in range(dice.choice((1, 5, 100))):
                data[dice.randrange(8, 6000)] = dice.choice((0, 1, 0x7f, 0x80, 0xff))
            pathlib.Path(self.path).write_bytes(data[:dice.choice((len(data), 4096, 5000, 9000))])
            done = self.run_it("", "MAX_RESERVED=least", seconds=5)
            self.assertIn(done.returncode, (0, 1), number)
            for line in done.stdout.splitlines():
                self.assertNotEqual(json.loads(line).get("state"), "broken", (number, line))


class Holes(Traces):
    """Of any size take no time."""

    def test_of_a_replay(self):
        expected = self.replay("")[0]
        os.truncate(self.path, 1 << 42)
        self.assertEqual(self.replay("")[0], expected)

    def test_of_the_tool(self):
        """A chunk behind one is there, but where the file system does not tell of holes."""
        self.record("threads")
        data, chunk = pathlib.Path(self.path).read_bytes(), tables.TRACE_CHUNK_BYTES
        size = tables.TRACE_HEADER_BYTES + (len(data) - tables.TRACE_HEADER_BYTES) // chunk * chunk
        before = len(self.read()[1])
        with open(self.path, "r+b") as file:
            file.truncate(size + (1 << 40))
            file.seek(0, os.SEEK_END)
            file.write(data[size - chunk:size])
            file.truncate(size + (1 << 42))

        def read(seek):
            with unittest.mock.patch.object(os, "lseek", seek), unittest.mock.patch.object(
                    os, "pread", side_effect=os.pread) as asked:
                number = len(self.read()[1])
            self.assertLess(asked.call_count, 10_000)
            return number
        self.assertGreater(read(os.lseek), before)
        for seek in (lambda fd, offset, how: offset,
                     unittest.mock.Mock(side_effect=OSError(errno.EINVAL, "unknown"))):
            self.assertEqual(read(seek), before)

    def test_who_has_no_time_gets_a_sentence(self):
        with trace.Trace(self.path, time.monotonic() + 60) as its:
            self.assertEqual(usage.Usage(its).peak, 3 * BLOCK)
            its.until_s = time.monotonic()
            with self.assertRaisesRegex(Fault, "to read it takes too long"):
                usage.Usage(its)


class Reports(Traces):
    def report(self, *more):
        done = tool("report", self.path, *more)
        self.assertEqual(done.status, 0, done.err)
        return done.out

    def page(self):
        self.report("-o", self.path + ".html")
        return pathlib.Path(self.path + ".html").read_text(encoding="utf-8")

    def test_the_table_and_its_price(self):
        said = self.report()
        rows = dict(re.findall(r"(?m)^(\S+|the defaults|as recorded)  +(\d.*)$",
                               said.partition("What other settings would have done")[2]))
        self.assertEqual(list(rows)[:-1], ["as recorded", "the defaults", "MAX_IDLE=0",
                                           "MAX_IDLE=1G", "IDLE_TIMEOUT=1s", "IDLE_TIMEOUT=10s",
                                           "BACKING=segment"])
        self.assertRegex(list(rows)[-1], r"^MAX_RESERVED=3\d\dM$")
        self.assertRegex(said, r"MAX_IDLE=0 would have held 1\d\d MiB on average instead of 29\d "
                         r"MiB; driver calls take \S+ \S+ - \S+ \S+ instead of \S+ \S+ - ")
        self.assertRegex(said, r"MAX_RESERVED=3\d\dM is the least that serves all requests")

    def test_the_page(self):
        page = self.page()
        section = page.partition('id="what-if"')[2].partition("</section>")[0]
        self.assertEqual(section.count("<tr>"), 9)
        self.assertIn("<code>MAX_IDLE=0</code>", section)
        self.assertRegex(section, r"would have held .*; "
                                  r"driver calls take \S+ \S+ – \S+ \S+ instead "
                                  r"of \S+ \S+ – ")
        self.assertRegex(section, r"<td[^>]*>\S+ \S+ – \S+ \S+</td>")
        self.assertNotIn(" - ", section)

    def test_a_limit_that_fails_is_said_with_its_moment(self):
        gct.write(self.path, [(0, "CONTEXT", 0, 250 * MIB), *SPIKE[1:]], SPIKE_NS)
        self.assertRegex(self.report(), r"the defaults .* 1, first after 500 ms \(100 MiB\)")
        page = self.page()
        self.assertIn('<b class="fails">1, first after 500 ms (100 MiB)</b>', page)
        self.assertIn("no limit serves all", page)

    def test_without_the_program_a_line_says_so(self):
        with unittest.mock.patch.object(replay, "program", lambda: None):
            self.assertIn("gpucache-replay is not beside this tool", self.report())
            page = self.page()
        self.assertIn("gpucache-replay is not beside this tool", page)
        self.assertNotIn("would have held", page)

    def test_a_program_that_fails_is_no_fault_of_the_report(self):
        with unittest.mock.patch.object(replay, "program", lambda: "/bin/false"):
            self.assertIn("Nothing was replayed", self.report())

    def test_without_time_the_report_says_so(self):
        with unittest.mock.patch.object(replay, "SECONDS", 0):
            self.assertIn("there was no time to replay it", self.report())

    @staticmethod
    def working_child(pid):
        """A child that has worked for some time; None: it ended before."""
        with contextlib.suppress(OSError, IndexError):
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
            child = int(children.read_text(encoding="ascii").split()[0])
            its = pathlib.Path(f"/proc/{child}/stat").read_text(encoding="ascii")
            return child if int(its.rpartition(")")[2].split()[11]) > 2 else None  # ticks of 10 ms
        return None

    def test_whoever_is_killed_leaves_nothing_behind(self):
        """The processes in which it replays have its pipe."""
        self.record("large:500000")
        with subprocess.Popen([replay.program(), "60", "0", self.path, "MAX_RESERVED=least"],
                              stdout=subprocess.PIPE) as program:
            program.stdout.readline()
            child = None
            while not child and program.poll() is None:
                child = self.working_child(program.pid)
            self.assertTrue(child)
            os.kill(child, signal.SIGSTOP)
            program.kill()
            try:
                program.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.kill(child, signal.SIGKILL)
                raise

    def test_what_takes_too_long_is_left_out(self):
        slow = self.path + ".sh"
        pathlib.Path(slow).write_text(
            f"#!/bin/sh\n'{replay.program()}' 9 0 \"$3\" ''\nprintf '{{\"setting\": 1'\n"
            "exec sleep 100\n", encoding="utf-8")
        os.chmod(slow, 0o700)
        with unittest.mock.patch.object(replay, "program", lambda: slow), \
                unittest.mock.patch.object(replay, "PATIENCE_S", 2):
            said = self.report()
        self.assertRegex(said, r"the defaults +29\d MiB")
        self.assertRegex(said, r"MAX_IDLE=0 .* no time for it")
        self.assertIn("There was no time for MAX_IDLE=0, MAX_IDLE=1G", said)

    def test_two_gpus_are_not_replayed(self):
        gct.write(self.path, [GPU, (0, "CONTEXT", 1, 16 << 30), *SPIKE[1:]], SPIKE_NS)
        self.assertIn("memory of 2 GPUs", self.report())

    def test_other_formats_replay_nothing(self):
        with unittest.mock.patch.object(replay, "Replay", None):
            for ending in "json", "csv", "folded":
                self.report("-o", f"{self.path}.{ending}")

    def test_an_empty_trace(self):
        gct.write(self.path, [GPU], SECOND)
        self.assertNotIn("settings", self.report())


class Findings(unittest.TestCase):
    @staticmethod
    def outcome(words, **said):
        return replay.Outcome(words, {
            "state": "done", "mean": 1000 * MIB, "peak": 2000 * MIB, "failed": 0,
            "first_failed_ns": 0, "first_failed_bytes": 0, "driver_ns": 1000, "busy_ns": 2000,
            "max_reserved": None, **said})

    def test_nothing_is_advised_that_fails_or_saves_little(self):
        as_is = self.outcome("")
        for its in (self.outcome("MAX_IDLE=0", failed=1, mean=0),
                    self.outcome("MAX_IDLE=0", state="late", mean=0)):
            self.assertFalse([words for words in replay.findings([as_is, its])
                              if "would have held" in words])
        said = replay.findings([as_is, self.outcome("MAX_IDLE=0", mean=960 * MIB)])
        self.assertEqual(said, ["None of these settings would have saved 5% of what is held on "
                                "average."])
        said = replay.findings([as_is, self.outcome("MAX_IDLE=0", mean=900 * MIB),
                                self.outcome("A=1", mean=800 * MIB, driver_ns=5000, busy_ns=9000)])
        self.assertEqual(said, [f"A=1 would have held 800 MiB on average instead of "
                                f"{text.size(1000 * MIB)}; driver calls take 5 us - 9 us instead "
                                "of 1 us - 2 us."])
