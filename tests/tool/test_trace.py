# SPDX-License-Identifier: BSD-2-Clause
"""Traces: what the library's recorder writes, and what the tool reads of it, of good files and bad
ones."""
import collections
import itertools
import lzma
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import unittest
import unittest.mock

from fake import put_text, text_of, tool
from written import WRITER, Traces

from gpucache import tables, trace, usage
from gpucache.fault import Fault

GOLDEN = pathlib.Path(__file__).with_name("golden")
FIXTURE, WITH_PATHS, WITH_PYTHON = (GOLDEN / f"trace-1{more}.gct.xz"
                                    for more in ("", "-paths", "-python"))
FIRST, FAR, MIB = 0x7f0000000000, 0x302000000, 1 << 20
KIND = trace.KIND


class Recorder(Traces):
    def test_what_is_recorded_is_read(self):
        self.write("kinds")
        its, events = self.read()
        self.assertEqual([(trace.NAME[e.kind], e.a, e.b, e.aux, e.context, e.text)
                          for e in events], [
            ("CONTEXT", 0, 80 * MIB, 0, 1, "GPU-1 a GPU"),
            ("SEGMENT", FIRST, 64 * MIB, 1234, 1, ""),
            ("MAP", FIRST + 64 * MIB, 2 * MIB, 0, 0, ""),
            ("FLUSH", 5 * MIB, 777, 0, 0, "signal"),
            ("ALLOC_FAILED", 2, 1 << 30, 0, 0, ""),
            ("ALLOC_FAST", FIRST, 512, 0, 0, ""),
            ("ALLOC_FAST", FIRST + 512, 1, 0, 0, ""),
            ("ALLOC_FAST", FIRST + 1024, (1 << 24) - 1, 0, 0, ""),
            ("ALLOC_FAST", FIRST + 64 * MIB, 1 << 24, 0, 0, ""),
            ("ALLOC_FAST", FIRST + 96 * MIB, 1 << 40, 0, 0, ""),
            ("ALLOC_FAST", FAR, 300, 0, 0, ""),
            ("ALLOC_FAST", FIRST - 512, 300, 0, 0, ""),
            ("ALLOC_FAST", FIRST + 300, 300, 0, 0, ""),
            ("FREE", FIRST, 0, 0, 0, "")])
        self.assertTrue(its.ended)
        self.assertEqual((its.num_lost, its.num_torn, its.num_unknown), (0, 0, 0))
        self.assertEqual(its.program, os.path.basename(WRITER))
        self.assertEqual(its.command, f"{WRITER} kinds {self.path}")
        asked = [e.site for e in events if e.kind in (KIND["ALLOC_FAST"], KIND["FREE"])]
        self.assertEqual(asked[0], asked[2])
        self.assertEqual((asked[-2], len(set(asked))), (0, 4))
        self.assertEqual({its.object_of(site).path for site in asked if site},
                         {os.path.realpath(WRITER)})
        self.assertIsNone(its.object_of(1))
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)

    def test_a_run_of_records_is_read_as_each_of_them(self):
        """Of a chunk with sites that come again with other addresses, texts, and what is torn."""
        self.write("nothing")
        start = self.read()[0]._start
        head = pathlib.Path(self.path).read_bytes()[:tables.TRACE_HEADER_BYTES]
        chance, several, unknown = random.Random(5), 0, 0
        for number in range(40):
            made, kinds = [], [KIND[name] for name in ("ALLOC_FAST", "ALLOC", "FREE")]
            known = [0]
            for _ in range(600):
                kind, wide = chance.choice(kinds), chance.random() < 0.3
                step, context = chance.randrange(99), chance.choice((0, 0, 1, 255))
                if chance.random() < 0.005:  # its last byte and the next record's look like halves
                    made.append(struct.pack("=QQQQQQ", step, KIND["FLUSH"] + 128 << 24, 7,
                                            KIND["ALLOC"] + 128 << 24, step, 5))
                if wide and chance.random() < 0.5:
                    kind = KIND["SITE"]
                    known.append(chance.randrange(1, 60 if number % 2 else 1 << 24))
                site = known[-1] if kind == KIND["SITE"] else chance.choice(known)
                said = b"a text" * (number % 4 == 3 and chance.random() < 0.01)
                at = len(said) if wide else chance.randrange(1 << 32)
                what = chance.randrange(1 << 24) | site << 32 | context << 56
                made.append(struct.pack("=QQ", step | at << 32, what | kind + 128 * wide << 24))
                if wide:
                    made.append(struct.pack("=QQ", chance.choice((FIRST, FAR + 1)),
                                            chance.choice((0, 77, 1 << 24, 1 << 40))))
                    made.append(said + bytes(-len(said) % 16))
            chunk = struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, 0, *start, 0) + b"".join(made)
            pathlib.Path(self.path).write_bytes(head + chunk)
            found = []
            for least in 16, 1 << 30:
                with unittest.mock.patch.object(trace, "LONG_RUN", least):
                    its, events = self.read()
                    found.append((events, its.num_torn, its.num_unknown))
            self.assertEqual(*found)
            self.assertGreater(len(found[0][0]), 450)
            unknown += found[0][2]
            several += len({event.site for event in found[0][0]}) > 2
        self.assertGreater(several, 30)
        self.assertGreater(unknown, 50)

    def test_threads_keep_their_order_and_their_names(self):
        self.write("threads")
        its, events = self.read()
        self.assertEqual(len(events), 8 * 24000)
        self.assertEqual((its.num_lost, its.num_torn), (0, 0))
        last, of_thread = -1, collections.defaultdict(list)
        for event in events:
            self.assertGreaterEqual(event.ns, last)
            last = event.ns
            of_thread[event.tid].append(event)
        self.assertEqual(len(of_thread), 8)
        for tid, its_events in of_thread.items():
            number = int(its.threads[tid].removeprefix("worker "))
            start = FIRST + number * 64 * MIB
            self.assertEqual([(e.a, e.b) for e in its_events],
                             [(start + i // 2 * 512, 0 if i % 2 else 1 + number)
                              for i in range(24000)])
            self.assertEqual([e.site for e in its_events[::2]],
                             [FAR + i % 700 * 16 for i in range(12000)])

    def test_call_paths(self):
        self.write("paths")
        its, events = self.read()
        self.assertEqual((its.num_lost, its.num_torn, its.num_unknown), (0, 0, 0))
        found = {size: [its.frames(e.site) for e in events if e.b == size * MIB and
                        e.kind == KIND["ALLOC_FAST"]] for size in (1, 5, 7, 32)}
        one, five, thirty = found[1][0], found[5][0], found[32][0]
        self.assertEqual([(len(paths), len(set(paths))) for paths in found.values()],
                         [(100, 1), (1, 1), (1, 1), (100, 1)])
        self.assertTrue(5 <= len(one) <= 8, one)
        # The same caller, and behind it a frame more; then another call of the same functions.
        self.assertEqual((one[0], len(found[7][0])), (thirty[0], 1))
        self.assertEqual(five[:3], thirty[:3])
        self.assertNotEqual(five[3], thirty[3])
        self.assertNotEqual(one[1], thirty[1])
        self.assertEqual({len(its.frames(e.site)) for e in events if e.kind == KIND["FREE"]}, {1})
        failed = [len(its.frames(e.site)) for e in events if e.kind == KIND["ALLOC_FAILED"]]
        self.assertEqual(failed[0], 1)
        self.assertGreater(failed[1], 1)
        for path in (one, five, thirty):
            self.assertTrue(all(map(its.object_of, path)), path)

    def test_deep_call_paths_in_narrow_and_wide_records(self):
        self.write("many-paths")
        its, events = self.read()
        paths = collections.Counter(its.frames(e.site) for e in events)
        self.assertEqual((len(paths), set(paths.values())), (50, {400}))
        depths = sorted(map(len, paths))
        self.assertEqual(depths, list(range(depths[0], depths[0] + 50)))
        self.assertEqual((its.num_torn, len(events)), (0, 20000))

    def test_each_chunk_of_a_ring_knows_its_call_paths(self):
        self.write("paths-in-a-ring")
        its, events = self.read(self.path + ".dump")
        paths = collections.Counter(its.frames(e.site) for e in events
                                    if e.kind == KIND["ALLOC_FAST"])
        self.assertEqual(len(paths), 2)
        self.assertGreater(sum(paths.values()), 45000)
        self.assertTrue(all(len(path) > 4 for path in paths))
        self.assertEqual([len(its.frames(e.site)) > 1 for e in events if e.kind == KIND["OOM"]],
                         [True])

    def test_many_short_threads_make_no_large_file(self):
        self.write("short")
        its, events = self.read()
        self.assertEqual([e.a for e in events], [FIRST + i * 512 for i in range(500)])
        self.assertEqual(len({e.tid for e in events}), len(its.threads) - 1)
        self.assertLess(os.path.getsize(self.path), 3 * tables.TRACE_CHUNK_BYTES)

    def test_a_killed_process_loses_nothing(self):
        self.write("killed", -signal.SIGKILL)
        its, events = self.read()
        self.assertEqual([e.a for e in events], [FIRST + i * 512 for i in range(30000)])
        self.assertFalse(its.ended)
        self.assertAlmostEqual(its.span_ns(), events[-1].ns, delta=1)

    def test_a_trace_after_a_trace(self):
        self.write("again")
        self.assertEqual([e.b for e in self.read()[1]], [111])
        self.assertEqual([e.b for e in self.read(self.path + ".2")[1]], [222])

    def test_where_the_kernel_does_not_trust_the_processors_clock(self):
        """As with kvm-clock. Other processors than x86-64 have a clock that is always good."""
        least, most = map(int, self.write("other-clock").split())
        its, events = self.read(self.path + ".2")
        self.assertEqual((its.num_lost, its.num_torn, its.ended), (0, 0, True))
        self.assertIn(its.clock, ("clock_gettime", "cntvct"))
        if its.clock == "clock_gettime":  # and in its unit, at the begin and at the end
            for ticks, ns in its._start, its._last:
                self.assertAlmostEqual(ticks, ns, delta=1e8)
        taken = [e for e in events if e.kind == KIND["ALLOC_FAST"]]
        self.assertEqual([e.a for e in taken], [FIRST + i * 512 for i in range(400)])
        self.assertEqual(len({e.tid for e in taken}), 2)
        first, second = (e.ns for e in events if e.kind == KIND["FREE"])
        self.assertTrue(0.9 * least <= second - first <= 1.1 * most, (least, second - first, most))

    def test_a_thread_ends_by_a_cancellation_outside_the_recorder_only(self):
        """It waits for a lock of the recorder, or begins a trace. What comes after it goes on."""
        self.write("cancelled")
        for name, size in ("", 111), (".2", 222), (".3", 333):
            its, events = self.read(self.path + name)
            self.assertEqual(([e.b for e in events], its.ended), ([size], True), name)

    def test_rings_know_whose_the_old_blocks_are(self):
        """A dump has the blocks that are live and their owners, though their records are gone, and
        no other."""
        for scene in "rings", "rings-late":
            for name in os.listdir(self.folder):
                os.unlink(os.path.join(self.folder, name))
            said = self.write(scene)
            writer = os.path.basename(WRITER)
            mine = sum(2001 + i for i in range(2, 100, 2)) + sum(range(3000, 3100, 2)) + 15000
            self.assertEqual(said, f"{writer} {mine}\ncode that is not known 5000\n" * 2)
            for name in ".dump", ".dump.2":
                self.check_blocks(self.path + name)
                its = self.trace(self.path + name)
                used = usage.Usage(its)
                self.assertEqual(used.num_unknown_frees, 0)
                self.assertEqual(sorted(block.bytes for block in used.blocks.values()),
                                 sorted([*range(2003, 2100, 2), *range(3000, 3100, 2), 5000, 6000,
                                         9000]))
                self.assertEqual([a for a, block in used.blocks.items() if not block.site],
                                 [FIRST + 100 * MIB])
                sites = collections.Counter(block.site for block in used.blocks.values())
                self.assertEqual(sorted(sites.values()), [1, 1, 50, 50])
                self.assertEqual((used.reserved, its.ended, its.num_lost, its.num_torn),
                                 (64 * MIB + 9000, True, 0, 0))
                self.assertEqual(used.oom.b, 2 * MIB)
                if scene == "rings" or name == ".dump.2":  # the pause is before
                    self.assertLess(its.span_ns(), 700_000_000)
                self.assertLess(os.path.getsize(self.path + name), 10 * tables.TRACE_CHUNK_BYTES)

    def test_dumps_while_others_write(self):
        """Each has whole records, in order, and no block twice."""
        self.assertEqual(self.write("dumps"), "")
        alloc, free, known = KIND["ALLOC_FAST"], KIND["FREE"], KIND["LIVE"]
        for number in range(1, 5):
            its = self.trace(self.path + ".dump" + (f".{number}" if number > 1 else ""))
            live, wrong = set(), []
            for _, kind, addr, size, *_ in its.rows():
                if kind == alloc or kind == known:
                    if addr in live or size not in (600, 700):
                        wrong.append(addr)
                    live.add(addr)
                elif kind == free:
                    if addr not in live:
                        wrong.append(addr)
                    live.discard(addr)
            self.assertEqual((its.num_torn, its.num_unknown, its.ended), (0, 0, True))
            if not its.num_lost:
                self.assertEqual((wrong, number < 4 or len(live) == 4), ([], True))

    def test_what_was_live_at_the_start_of_a_dump_comes_before_what_happened(self):
        """Also before what happened in the same nanosecond, wherever it is in the file."""
        self.write("nothing")
        start, start_ns = self.read()[0]._start
        head = pathlib.Path(self.path).read_bytes()[:tables.TRACE_HEADER_BYTES]

        def chunk(ticks, *records):
            made = b"".join(struct.pack("=QQQQ", step, KIND[name] + 128 << 24, addr, 512)
                            for step, name, addr in records)
            its = struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, 0, ticks, start_ns, 0) + made
            return its + bytes(tables.TRACE_CHUNK_BYTES - len(its))
        second = FIRST + MIB
        parts = (chunk(start - 160, (0, "ALLOC_FAST", FIRST), (9, "ALLOC_FAST", second),
                       (1, "FREE", FIRST), (9, "ALLOC_FAST", FIRST)),
                 chunk(start + 1, (0, "FREE", second), (9, "ALLOC_FAST", second)),
                 chunk(start, (0, "LIVE", FIRST), (0, "LIVE", second)))
        for order in itertools.permutations(parts):
            pathlib.Path(self.path).write_bytes(head + b"".join(order))
            told = [(trace.NAME[kind], addr) for _, kind, addr, *_ in self.trace().rows()]
            self.assertEqual(sorted(told[:2]), [("LIVE", FIRST), ("LIVE", second)])
            self.assertEqual(sorted(told[2:4]), [("FREE", FIRST), ("FREE", second)])
            self.assertEqual(sorted(told[4:]), [("ALLOC_FAST", FIRST), ("ALLOC_FAST", second)])

    def test_no_block_is_twice_in_a_dump(self):
        """Whether another dump was just before, another thread freed the block long ago, the
        block goes from one thread to another meanwhile, or a free of it failed."""
        for scene, count in ("dump-dump", 2), ("freed-by-another", 1), ("handed-on", 1), \
                ("freed-in-vain", 2):
            path = os.path.join(self.folder, scene)
            self.assertEqual(self.write(scene, path=path), "")
            for name in (path + ".dump", path + ".dump.2")[:count]:
                with self.subTest(os.path.basename(name)):
                    self.check_blocks(name)

    def check_blocks(self, path):
        its = self.trace(path)
        live, wrong, was_live = set(), set(), {}
        for _, kind, addr, *_ in its.rows():
            if kind == KIND["FREE"]:
                was_live[addr] = addr in live
                (live.remove if addr in live else wrong.add)(addr)
            elif kind == KIND["FREE_FAILED"]:
                wrong.discard(addr)
                if was_live[addr]:
                    live.add(addr)
            elif kind in (KIND["ALLOC_FAST"], KIND["LIVE"]):
                self.assertFalse(addr in live, hex(addr))
                live.add(addr)
        self.assertEqual((its.num_lost, its.ended, wrong), (0, True, set()))
        self.assertTrue(live)
        at_start = {kind for chunk in its._chunks() if chunk[0] == its._start[0]
                    for kind in its._records(*chunk).kind}
        self.assertFalse(at_start & {KIND["ALLOC_FAST"], KIND["FREE"]})  # they are of no ring

    def test_a_dump_says_how_many_records_were_lost(self):
        self.assertEqual(self.write("lost-dump"), "")
        its = self.trace(self.path + ".dump")
        self.assertEqual([row[1] for row in its.rows()], [])
        self.assertEqual((its.num_lost, its.ended), (1, True))

    def test_a_dump_that_was_cut_off_has_what_was_written(self):
        self.write("killed-in-a-dump", -signal.SIGKILL)
        its, events = self.read(self.path + ".dump")
        self.assertEqual((its.ended, its.num_torn, its.program),
                         (False, 0, os.path.basename(WRITER)))
        self.assertEqual([e.b for e in events[:2]], [2000, 3000])
        self.assertGreater(len(events), 10000)
        self.assertTrue(all(0 <= e.ns <= its.span_ns() for e in events))

    def test_a_forked_child_records_nothing(self):
        self.write("fork")
        self.assertEqual([e.b for e in self.read()[1]], [111, 333])

    def test_what_is_there_is_left_alone(self):
        put_text(self.path, "mine")
        said = self.write("kinds", 3)
        self.assertRegex(said, r"there is no trace: the file is there already: File exists")
        link = os.path.join(self.folder, "link")
        os.symlink(os.path.join(self.folder, "target"), link)
        self.write("kinds", 3, path=link)
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.gct", "link"])
        said = self.write("kinds", 3, path=os.path.join(self.folder, "no", "b.gct"))
        self.assertIn("No such file", said)

    def test_the_name_has_the_process_id(self):
        self.write("kinds", path=os.path.join(self.folder, "t-%p.gct"))
        (name,) = os.listdir(self.folder)
        self.assertRegex(name, r"^t-[0-9]+\.gct$")
        self.write("kinds", cwd=self.folder, path="beside.gct")
        self.read(os.path.join(self.folder, "beside.gct"))



class Reader(Traces):
    def fixture(self, path=FIXTURE):
        return lzma.decompress(path.read_bytes())

    def put(self, data):
        pathlib.Path(self.path).write_bytes(data)

    def fault(self, data):
        self.put(data)
        with self.assertRaises(Fault) as caught:
            trace.Trace(self.path)
        return str(caught.exception)

    def test_version_1_is_read_for_ever(self):
        self.put(self.fixture())
        its, events = self.read()
        self.assertEqual((len(events), its.ended, its.clock), (14, True, "tsc"))
        self.assertEqual([trace.NAME[e.kind] for e in events[:5]],
                         ["CONTEXT", "SEGMENT", "MAP", "FLUSH", "ALLOC_FAILED"])
        self.assertTrue(all(e.ns >= 0 for e in events))

    def test_call_paths_are_read_for_ever(self):
        self.put(self.fixture(WITH_PATHS))
        its, events = self.read()
        self.assertEqual((len(events), its.ended, its.num_torn, its.num_unknown),
                         (305, True, 0, 0))
        self.assertEqual(collections.Counter(len(its.frames(e.site)) for e in events),
                         {1: 103, 7: 100, 8: 101, 5: 1})

    def test_frames_of_python_are_read_for_ever(self):
        self.put(self.fixture(WITH_PYTHON))
        its, events = self.read()
        paths = {e.b: its.frames(e.site) for e in events if e.kind in usage.ALLOCS}
        native = [frame for frame in paths[1000] if isinstance(frame, int)]
        self.assertTrue(all(map(its.object_of, native)), native)
        self.assertEqual({size: path[len(native):] for size, path in paths.items()}, {
            size: (("take", "/tmp/p.py", 9), ("Model.forward", "/tmp/p.py", line),
                   ("<module>", "/tmp/p.py", 19))
            for size, line in ((1000, 15), (2000, 15), (3000, 16))})
        self.assertEqual((its.num_torn, its.num_unknown), (0, 0))

    def test_kinds_of_a_newer_library_are_passed_over(self):
        """They are counted, in narrow records and in wide ones, and all others are as before."""
        self.write("paths")
        its, events = self.read()
        data = bytearray(pathlib.Path(self.path).read_bytes())
        at, known, num_new = tables.TRACE_HEADER_BYTES + 32, [], collections.Counter()
        for event in events:
            while True:
                here, (step, what) = at, struct.unpack_from("=QQ", data, at)
                kind, wide = what >> 24 & 0x7f, what >> 24 & tables.TRACE_WIDE
                at += 32 + -(-(step >> 32) // 16) * 16 if wide else 16
                if kind in trace.EVENTS:
                    break
            self.assertEqual(kind, event.kind)
            if here % 7 or kind == KIND["CONTEXT"]:
                known.append(event)
            else:
                data[here + 11] = wide | 61 if wide else 60
                num_new[wide] += 1
        self.assertGreater(min(num_new[0], num_new[tables.TRACE_WIDE]), 5)
        self.put(data)
        its, events = self.read()
        self.assertEqual((events, its.num_unknown, its.num_torn, its.ended),
                         (known, sum(num_new.values()), 0, True))
        page = os.path.join(self.folder, "page.html")
        self.assertEqual(tool("report", self.path, "-o", page).status, 0)
        self.assertIn("Records of kinds that this tool does not know: "
                      f"{sum(num_new.values())}.", text_of(page))

    def test_foreign_files_get_a_sentence(self):
        data = bytearray(self.fixture())
        self.assertIn("no trace of libgpucache", self.fault(b""))
        self.assertIn("no trace of libgpucache", self.fault(b"\x7fELF" * 2000))
        self.assertIn("cut off in its header", self.fault(data[:4000]))
        data[8:12] = struct.pack("=I", 7)
        self.assertIn("version 7, this tool knows version 1", self.fault(data))
        data[20:24] = struct.pack("=I", 0x04030201)
        self.assertIn("another order of bytes", self.fault(data))
        with self.assertRaises(Fault):
            trace.Trace(self.folder)
        with self.assertRaises(Fault):
            trace.Trace(self.path + ".missing")

    def test_a_file_that_is_cut_off_gives_what_is_there(self):
        self.write("killed", -signal.SIGKILL)
        data = pathlib.Path(self.path).read_bytes()
        head = tables.TRACE_HEADER_BYTES
        for size in (head, head + 10, head + 32, head + 33, head + 20001,
                     head + tables.TRACE_CHUNK_BYTES + 5, len(data) - 7):
            self.put(data[:size])
            events = self.read()[1]
            self.assertEqual([e.a for e in events],
                             [FIRST + i * 512 for i in range(len(events))])
            self.assertEqual(bool(events), size > head + 1000)

    def test_a_file_that_is_cut_off_meanwhile(self):
        """Is shorter, and no end of the tool."""
        self.write("threads")
        read = f"import os, sys\nsys.path.insert(0, {sys.path[0]!r})\n" \
               "from gpucache import trace\nits = trace.Trace(sys.argv[1])\n" \
               "os.truncate(sys.argv[1], 1 << 20)\nprint(len(list(its.events())))"
        done = subprocess.run([sys.executable, "-c", read, self.path], check=True, timeout=60,
                              text=True, stdout=subprocess.PIPE)
        self.assertGreater(int(done.stdout), 10000)

    def test_noise_is_read_without_harm(self):
        noise = random.Random(20260101)
        fixtures = [self.fixture(path)[:tables.TRACE_HEADER_BYTES + 3000]
                    for path in (FIXTURE, WITH_PATHS, WITH_PYTHON)]
        for number in range(4500):
            broken = bytearray(fixtures[number % 3])
            for _ in range(noise.randint(1, 20)):
                at = noise.randrange(tables.TRACE_HEADER_BYTES, len(broken))
                broken[at] = noise.choice((0, 1, 0x7f, 0x80, 0xff, noise.randrange(256)))
            self.put(broken)
            its, events = self.read()
            for event in events:
                self.assertIn(event.kind, trace.NAME)
                self.assertTrue(event.text.isprintable())
                for frame in its.frames(event.site):
                    if isinstance(frame, trace.PythonFrame):
                        self.assertTrue(frame.function.isprintable() and frame.file.isprintable())
            self.assertTrue(all(name.isprintable() for name in its.threads.values()))
            its.close()
