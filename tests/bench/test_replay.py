# SPDX-License-Identifier: BSD-2-Clause
"""replay's own tests: what it prints, what it reads, and what it refuses."""
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import unittest

LINE = re.compile(r"trace=(\S+) events=(\d+) peak_live=(\d+) peak_reserved=(\d+) "
                  r"ratio=(\d+\.\d{4}) "
                  r"ns_per_event=(\d+\.\d) p99_ns=(\d+)\n")
HEAD = "Thread,Time,Action,Pointer,Size,Stream\n"
MIB = 1 << 20


class Replay(unittest.TestCase):
    command, trace = sys.argv[1:3]

    def setUp(self):
        # pylint: disable-next=consider-using-with
        self.folder = tempfile.TemporaryDirectory(prefix="replay-")
        self.addCleanup(self.folder.cleanup)

    def replay(self, *arguments):
        return subprocess.run([self.command, *arguments], capture_output=True, text=True,
                              timeout=100, check=False)

    def numbers(self, *arguments):
        done = self.replay(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        match = LINE.fullmatch(done.stdout)
        self.assertTrue(match, done.stdout)
        return match.groups()

    def write(self, name, text, pack=None):
        path = os.path.join(self.folder.name, name)
        data = text.encode()
        with open(path, "wb") as file:
            file.write(pack(data) if pack else data)
        return path

    def rows(self, *rows):
        return HEAD + "".join(row + "\n" for row in rows)

    def test_plain_and_packed_are_the_same(self):
        with lzma.open(self.trace, "rt") as file:
            plain = self.write(os.path.basename(self.trace)[:-3], file.read())
        self.assertEqual(self.numbers(plain)[:5], self.numbers(self.trace)[:5])

    def test_two_streams_in_one_file(self):
        """As `cat a.xz b.xz` makes it."""
        one = HEAD + "0,00:00:00:000001,allocate,0x1000,100,0x0\n"
        two = "0,00:00:00:000002,free,0x1000,100,0x0\n"
        path = self.write("two.csv.xz", "")
        with open(path, "wb") as file:
            file.write(lzma.compress(one.encode()) + lzma.compress(two.encode()))
        self.assertEqual(self.numbers(path)[1], "2")

    def test_live_is_what_the_program_asked_for(self):
        path = self.write("sum.csv", self.rows(
            "0,00:00:00:000001,allocate,0x1000,1000,0x0",
            "0,00:00:00:000002,allocate,0x2000,3000001,0x0",
            "0,00:00:00:000003,free,0x1000,1000,0x0", "0,00:00:00:000004,allocate,0x3000,7,0x0",
            "0,00:00:00:000005,free,0x2000,3000001,0x0", "0,00:00:00:000006,free,0x3000,7,0x0"))
        name, events, live, reserved, ratio, _, _ = self.numbers(path)
        self.assertEqual((name, events, live), ("sum", "6", "3001001"))
        self.assertGreaterEqual(int(reserved), 2 * MIB)
        self.assertEqual(ratio, f"{int(reserved) / 3001001:.4f}")

    def test_driver_calls_take_time(self):
        """1 s between two blocks of 64 MiB; a block is in use up to its free."""
        path = self.write("slow.csv", self.rows(
            f"0,00:00:00:000001,allocate,0x1000,{64 * MIB},0x0",
            f"0,00:00:01:000001,allocate,0x2000,{64 * MIB},0x0",
            f"0,00:00:01:000002,free,0x1000,{64 * MIB},0x0",
            f"0,00:00:01:000003,free,0x2000,{64 * MIB},0x0"))

        def driver_and_end(*arguments):
            done = self.replay("--busy", "--slow", "--json", *arguments, path)
            self.assertEqual(done.returncode, 0, done.stderr)
            line = json.loads(done.stdout)
            return line["driver_ms"], line["done_ms"]
        idle = driver_and_end("--work", "0.01")
        self.assertGreater(idle[0], 0)
        self.assertAlmostEqual(idle[1], 1000 + idle[0], delta=1)
        fast = driver_and_end("--work", "0.01", "--speed", "10")
        self.assertAlmostEqual(fast[1], 100 + fast[0], delta=1)
        busy = driver_and_end("--load", "0.9")
        self.assertGreater(busy[1], 1890)

    def test_work_goes_to_the_streams_of_the_trace(self):
        """The free of the one block waits for the long work of its own stream alone."""
        rows = [f"0,00:00:00:000001,allocate,0x1000,{64 * MIB},{{0}}",
                f"0,00:00:00:000002,allocate,0x2000,{64 * MIB},{{1}}",
                f"0,00:00:00:000003,free,0x1000,{64 * MIB},{{0}}",
                f"0,00:00:00:000004,free,0x2000,{64 * MIB},{{1}}"]
        ends = []
        for names in (("0x1", "0x1"), ("0x1", "0x2")):
            path = self.write("streams.csv", self.rows(*[row.format(*names) for row in rows]))
            done = self.replay("--busy", "--slow", "--json", "--work", "100", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            ends.append(json.loads(done.stdout)["done_ms"])
        self.assertAlmostEqual(ends[0], 200, delta=5)
        self.assertAlmostEqual(ends[1], 100, delta=5)

    def test_explain_adds_up(self):
        done = self.replay("--single", "--explain", self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = dict(re.findall(r"^ +(\S.*?)  +(\d+)  +\d+\.\d\d %$", done.stdout, re.MULTILINE))
        self.assertEqual(LINE.match(done.stdout).group(4),
                         str(sum(int(value) for value in lines.values())), done.stdout)

    def test_json_has_the_same_fields(self):
        done = self.replay("--json", self.trace, self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        objects = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(objects), 2)
        self.assertEqual(list(objects[0]), ["trace", "events", "peak_live", "peak_reserved",
                                            "ratio", "ns_per_event", "p99_ns"])
        self.assertEqual([str(objects[0][key]) for key in ("trace", "events", "peak_live",
                                                           "peak_reserved")],
                         list(self.numbers(self.trace)[:4]))

    def test_threads_run_beside_each_other(self):
        """A block of one thread that another frees: each waits for the other in turn."""
        rows = []
        for i in range(400):
            rows += [f"{i % 2},00:00:00:{2 * i:06},allocate,{0x1000 * (i + 1):#x},4096,0x0",
                     f"{1 - i % 2},00:00:00:{2 * i + 1:06},free,{0x1000 * (i + 1):#x},4096,0x0"]
        path = self.write("threads.csv", self.rows(*rows))
        self.assertEqual(self.numbers("--threads", path)[1], "800")
        self.assertEqual(self.numbers("--threads", "--busy", path)[1], "800",
                         "work on a block comes after the block")

    def test_both_backings(self):
        """A segment is larger than a block that is no whole number of granules."""
        row = f"0,00:00:00:000001,allocate,0x1000,{130 * MIB},0x0"
        path = self.write("one.csv", self.rows(row))
        arena = int(self.numbers("--backing", "arena", path)[3])
        segment = int(self.numbers("--backing", "segment", path)[3])
        self.assertEqual(arena, 130 * MIB)
        self.assertGreater(segment, arena)

    def test_ratio_above_the_limit(self):
        path = self.write("tiny.csv", self.rows("0,00:00:00:000001,allocate,0x1000,512,0x0"))
        done = self.replay("--max-ratio", "2", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("above", done.stderr)

    def test_refused(self):
        for name, text, pack, words in [
                ("row.csv", self.rows("0,00:00:00:000001,allocate,0x1000"), None, "not understood"),
                ("verb.csv", self.rows("0,00:00:00:000001,forget,0x1000,1,0x0"), None,
                 "not understood"),
                ("twice.csv", self.rows(*["0,00:00:00:000001,allocate,0x1000,1,0x0"] * 2), None,
                 "not understood"),
                ("empty.csv", HEAD, None, "no events"),
                ("plain.csv.xz", HEAD, None, "not an xz file"),
                ("cut.csv.xz", HEAD * 99, lambda data: lzma.compress(data)[:-20],
                 "not an xz file")]:
            with self.subTest(name):
                done = self.replay(self.write(name, text, pack))
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")
        self.assertEqual(self.replay(os.path.join(self.folder.name, "none.csv")).returncode, 1)
        self.assertEqual(self.replay().returncode, 2)
        self.assertEqual(self.replay("--backing", "paper", self.trace).returncode, 2)
