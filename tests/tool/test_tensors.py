# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report --snapshot: what PyTorch keeps in its blocks, by its own snapshot."""
import itertools
import json
import os
import pathlib
import pickle
import re
import struct
import unittest

from fake import Scratch, lines_of, tool

import browser
import gct
from gpucache import tables, tensors, trace

MIB = 1 << 20
BASE = 0x7f0000000000
BAD = "<img src=x onerror=1>"
TORCH = "/lib/python3/site-packages/torch/nn/modules/linear.py"
ALLOCATED, INACTIVE = "active_allocated", "inactive"


def frames(*its):
    return [{"filename": file, "line": line, "name": name} for name, file, line in its]


def block(size, state=ALLOCATED, *paths, requested=None):
    """As torch.cuda.memory._snapshot() has it since 2.1."""
    return {"size": size, "requested_size": size if requested is None else requested,
            "state": state, "address": 0, "frames": frames(*paths)}


def segment(address, *blocks):
    at = address
    for its in blocks:
        its["address"], at = at, at + its["size"]
    return {"device": 0, "address": address, "total_size": at - address, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
            "allocated_size": 0, "active_size": 0, "requested_size": 0, "frames": [],
            "blocks": list(blocks)}


PLACE = 0x302000000  # of memory that PyTorch maps
VMM = [row["name"] for row in tables.COUNTERS].index("num_vmm_allocs")
LINEAR = ("forward", TORCH, 9), ("mlp", "/me/model.py", 12), ("main", "/me/train.py", 3)
LOADS = ("??", "CUDACachingAllocator.cpp", 0), ("load", "/me/data.py", 40)
EVENTS = [gct.GPU, (5, "SEGMENT", BASE, 64 * MIB), (10, "ALLOC", BASE, 20 * MIB),
          (20, "ALLOC", BASE + 32 * MIB, 2 * MIB), (30, "ALLOC", BASE + 40 * MIB, 8 * MIB),
          (60, "FREE", BASE, 0), (70, "FREE", BASE + 32 * MIB, 0), (80, "CONTEXT_END", 0, 0)]


def written(found):
    """As a pickle. Lists may be as deep as one likes, and are there once."""
    made, places, left = [b"\x80\x04"], {}, [(found, None)]
    while left:
        its, code = left.pop()
        if code:
            made.append(code)
            places[id(its)] = len(places)
        elif id(its) in places:
            made.append(b"j" + struct.pack("<I", places[id(its)]))
        elif isinstance(its, (list, tuple, dict)):
            made.append(b"(")
            left.append((its, b"d\x94" if isinstance(its, dict) else b"l\x94"))
            rows = itertools.chain(*its.items()) if isinstance(its, dict) else its
            left += [(row, None) for row in reversed([*rows])]
        else:
            made.append(pickle.dumps(its, 0)[:-1] if isinstance(its, float) else
                        b"X" + struct.pack("<I", len(its)) + its.encode()
                        if isinstance(its, str) else
                        b"B" + struct.pack("<I", len(its)) + its if isinstance(its, bytes) else
                        pickle.dumps(its, 2)[2:-1])
    return b"".join(made) + b"."


def whole():
    return {"segments": [
        segment(BASE + 32 * MIB, block(MIB, ALLOCATED, *LOADS), block(MIB, INACTIVE)),
        segment(BASE, block(12 * MIB, ALLOCATED, *LINEAR, requested=11 * MIB),
                block(5 * MIB, INACTIVE), block(2 * MIB, "active_pending_free"),
                block(MIB, ALLOCATED, *LINEAR))],
            "device_traces": [[{"action": "alloc", "addr": BASE, "size": MIB, "stream": 0,
                                "time_us": 1, "frames": []}]],
            "allocator_settings": {"expandable_segments": False}, "external_annotations": []}


class Tensors(Scratch):
    def setUp(self):
        super().setUp()
        self.pickle = self.path.replace(".gct", ".pickle")
        gct.write(self.path, EVENTS, 100)

    def report(self, found, *more):
        pathlib.Path(self.pickle).write_bytes(
            found if isinstance(found, bytes) else pickle.dumps(found))
        return tool("report", self.path, "--snapshot", self.pickle, *more)

    def refused(self, found, words):
        """With one sentence."""
        done = self.report(found)
        self.assertEqual((done.status, done.out), (1, ""))
        self.assertRegex(done.err, rf"^gpucache: \S+a.pickle: {words}[^\n]*\n$")

    def test_blocks_become_call_sites(self):
        done = self.report(whole())
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn("2 of its 2 segments, 22 MiB, lie in blocks of the trace. 14 MiB of it are "
                      "allocated, for 13 MiB of tensors; 6 MiB are inactive.", done.out)
        rows = done.out.partition("What PyTorch keeps in its blocks\n")[2]
        for words in (r"\n *13 MiB +59% +2 +mlp \(model.py:12\) +called by main \(train.py:3\)\n",
                      r"\n +6 MiB +27% +2 +inactive: ", r"\n +2 MiB +9% +1 +freed, and waits ",
                      r"\n +1 MiB +5% +1 +load \(data.py:40\)\s",
                      rf"\n *20 MiB +0x{BASE:x} +13 MiB +5 MiB +13 MiB mlp \(model.py:12\)\n"):
            self.assertRegex(rows, words)
        self.assertNotIn("no call paths", done.out)

    def test_it_fits_when_all_its_segments_are_there(self):
        """Addresses come again: the last of the moments with the most of them counts."""
        again = [gct.GPU, (10, "ALLOC", BASE, 20 * MIB), (20, "FREE", BASE, 0),
                 (30, "ALLOC", BASE, 2 * MIB), (40, "FREE", BASE, 0),
                 *((ns + 100, *row) for ns, *row in EVENTS[1:])]
        gct.write(self.path, again, 10**9)
        done = self.report(whole())
        self.assertIn("fits the trace at 1.2e-07 s: 2 of its 2 segments", done.out)

    def mapped(self, *events):
        gct.write(self.path, [gct.GPU, (2, "SEGMENT", BASE, 64 * MIB),
                              (3, "ALLOC", BASE + 40 * MIB, 8 * MIB), *events], 200)

    def test_memory_that_pytorch_maps_itself(self):
        """As expandable_segments does it: each part has a handle, and segments have many."""
        self.mapped(*((10 + n, *row) for n in range(9) for row in (
            ("PASSED", n + 1, 2 * MIB, VMM), ("PASSED_MAP", PLACE + 2 * n * MIB, n + 1))),
                    (40, "PASSED_UNMAP", PLACE + 14 * MIB, 4 * MIB),
                    (41, "PASSED_FREE", 8, 0), (42, "PASSED_FREE", 9, 0))
        done = self.report({"segments": [
            segment(PLACE, block(12 * MIB, ALLOCATED, *LINEAR, requested=11 * MIB),
                    block(2 * MIB, INACTIVE)),
            segment(PLACE + 14 * MIB, block(4 * MIB, ALLOCATED, *LOADS))]})
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn("fits the trace at 1.8e-08 s: 2 of its 2 segments, 18 MiB, lie in memory "
                      "that the program mapped itself. 16 MiB of it are allocated, for 15 MiB of "
                      "tensors; 2 MiB are inactive.", done.out)
        for words in (r"\n *12 MiB +67% +1 +mlp \(model.py:12\)",
                      rf"\n *14 MiB +0x{PLACE:x} +12 MiB +2 MiB +12 MiB mlp ",
                      rf"\n *4 MiB +0x{PLACE + 14 * MIB:x} +4 MiB +0 B +4 MiB load ",
                      r"\ncuMemCreate +9 +18 MiB +18 MiB +14 MiB +18 MiB\n"):
            self.assertRegex(done.out, words)

    def real(self, only_cpp=False, *more):
        """The trace and the snapshot of a real program with expandable segments."""
        told = json.loads(pathlib.Path(__file__).with_name("expandable.json").read_text(
            encoding="utf-8"))
        context, *rest = told["events"]
        gct.write(self.path, [context, *(
            (2 * 10**6 + n, *row) for n in range(14) for row in (
                ("PASSED", n + 1, 20 * MIB, VMM),
                ("PASSED_MAP", told["address"] + n * 20 * MIB, n + 1))), *rest], 9 * 10**6)
        weights, *others = ([*told["innermost"], *stack] for stack in told["stacks"])
        activations = [*weights[:-2], ["activations", "/me/snap.py", 6], weights[-1]]
        stacks = [[its for its in stack if not only_cpp or not its[1].endswith(".py")]
                  for stack in (weights, activations,
                                *([*stack, *told["outermost"]] for stack in others), [])]
        return self.report({"segments": [segment(told["address"], *(
            block(size, state, *((name, file, line) for name, file, line in stacks[stack]))
            for number, size, state, stack in told["blocks"] for _ in range(number)))]}, *more)

    def test_a_real_program_with_expandable_segments(self):
        """PyTorch said of it: 320 MiB reserved, 304 MiB allocated."""
        done = self.real()
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn("1 of its 1 segments, 320 MiB, lie in memory that the program mapped itself. "
                      "304 MiB of it are allocated, for 304 MiB of tensors; 16 MiB are inactive.",
                      done.out)
        for words in (r"\n *256 MiB +80% +64 +weights \(snap.py:4\) +called by <module> ",
                      r"\n *36 MiB +11% +2 +<module> \(snap.py:7\)\n",
                      r"\n *12 MiB +4% +1 +activations \(snap.py:6\) +called by <module> ",
                      r"\n *320 MiB +0x302000000 +304 MiB +16 MiB +256 MiB weights ",
                      r"\ncuMemCreate +16 +320 MiB +320 MiB +320 MiB +320 MiB\n"):
            self.assertRegex(done.out, words)

    @unittest.skipUnless(browser.PROGRAM, "no Chromium")
    def test_the_page_shows_where_they_lie(self):
        path = self.path + ".html"
        self.assertEqual(self.real(False, "-o", path).status, 0)
        with browser.Browser() as page:
            page.open("file://" + path)
            cells = page.run("[...document.querySelectorAll('#tensors table ~ table td')].map("
                             "its => [its.innerText, its.scrollWidth <= its.clientWidth])")
            self.assertEqual(cells, [[words, True] for words in (
                "320 MiB", "0x302000000", "304 MiB", "16 MiB", "256 MiB weights (snap.py:4)")])
            self.assertEqual(page.complaints, [])

    def test_names_of_frames_that_are_no_python(self):
        """As in threads of PyTorch's own."""
        out = self.real(only_cpp=True).out.partition("What PyTorch keeps")[2]
        for words in (r"\n *268 MiB +84% +65 +autograd::THPVariable_empty\n",
                      r"\n *32 MiB +10% +1 +cuda::setWorkspaceForHandle +called by cuda::"
                      r"getCurrentCUDABlasHandle, blas",
                      r"\n *4 MiB +1% +1 +structured_mm::meta +called by mm::redispatch, Variable"):
            self.assertRegex(out, words)
        for words in "unwind", "CapturedTraceback", "malloc", "(unsigned", "??", "c10::":
            self.assertNotIn(words, out)

    def test_segments_of_both_kinds_and_in_part(self):
        self.mapped((10, "ALLOC", BASE, 20 * MIB), (11, "PASSED", 1, 4 * MIB, VMM),
                    (12, "PASSED_MAP", PLACE, 1), (13, "PASSED", 2, 4 * MIB, VMM),
                    (14, "PASSED_MAP", PLACE + 8 * MIB, 2))
        done = self.report({"segments": [
            segment(BASE, block(20 * MIB)),
            segment(PLACE, block(3 * MIB, ALLOCATED, *LINEAR), block(2 * MIB, ALLOCATED, *LOADS),
                    block(4 * MIB, ALLOCATED, *LINEAR), block(3 * MIB, ALLOCATED, *LOADS))]})
        self.assertIn("2 of its 2 segments, 26 MiB, lie in blocks of the trace and in memory that "
                      "the program mapped itself. 26 MiB of it are allocated", done.out)
        self.assertRegex(done.out, rf"\n *3 MiB +0x{PLACE:x} +3 MiB +0 B +3 MiB mlp ")
        self.assertRegex(done.out, rf"\n *3 MiB +0x{PLACE + 9 * MIB:x} +3 MiB +0 B +3 MiB load ")

    def test_many_parts_and_many_mappings_take_little(self):
        number = 400
        self.mapped(*((10 + n, *row) for n in range(number) for row in (
            ("PASSED", n + 1, 4096, VMM), ("PASSED_MAP", PLACE + 8192 * n, n + 1))))
        parts = [block(4096) for _ in range(2 * number)]
        pathlib.Path(self.pickle).write_bytes(pickle.dumps({"segments": [segment(PLACE, *parts)]}))
        with trace.Trace(self.path) as its:
            found, count = lines_of(lambda: tensors.Tensors(its, self.pickle))
        self.assertEqual(len(found.found), number)
        self.assertLess(count, 300 * number)

    def test_when_its_segments_are_there(self):
        a_part, map_it = ("PASSED", 1, 4 * MIB, VMM), ("PASSED_MAP", PLACE, 1)
        unmap, other = ("PASSED_UNMAP", PLACE, 4 * MIB), ("PASSED", 2, 4 * MIB, VMM)
        two = ("ALLOC", BASE + 32 * MIB, 2 * MIB)
        of_parts = [[segment(PLACE, block(size * MIB))] for size in (8, 4)]
        of_blocks = [segment(BASE, block(19 * MIB)), segment(BASE + 32 * MIB, block(2 * MIB))]
        for what, events, segments, words in (
                ("a block in the place of a freed one has none, and its free that fails brings "
                 "back none", (("ALLOC", BASE, 20 * MIB), ("FREE", BASE, 0), ("ALLOC", BASE, MIB),
                               ("FREE", BASE, 0), ("FREE_FAILED", BASE, 1), two), of_blocks,
                 "1 of its 2 segments, 19 MiB"),
                ("a free that failed", (("ALLOC", BASE, 20 * MIB), ("FREE", BASE, 0),
                                        ("FREE_FAILED", BASE, 1), two), whole()["segments"],
                 "2 of its 2 segments"),
                ("a block in the memory of one that went with its context",
                 (("ALLOC", BASE, 20 * MIB), ("CONTEXT_END", 0, 0), ("CONTEXT", 0, 16 << 30),
                  ("ALLOC", BASE - MIB, 21 * MIB), two), whole()["segments"],
                 "2 of its 2 segments, 22 MiB"),
                ("an unmapping that failed", (a_part, map_it, unmap, ("FREE_FAILED", PLACE, 1),
                                              other, ("PASSED_MAP", PLACE + 4 * MIB, 2)),
                 of_parts[0], "1 of its 1 segments, 8 MiB"),
                *(("an address that other memory got",
                   (a_part, map_it, unmap, *given_up, other, ("PASSED_MAP", PLACE, 2)),
                   of_parts[1], f"at 1.{4 + len(given_up)}e-08 s: 1 of its 1 segments, 4 MiB")
                  for given_up in ((), (("PASSED_FREE", 1, 0),)))):
            self.mapped(*((10 + ns, *event) for ns, event in enumerate(events)))
            self.assertIn(words, self.report({"segments": segments}).out, what)

    def test_the_page_has_it_and_escapes_it(self):
        found = whole()
        found["segments"][1]["blocks"][0]["frames"] = frames((BAD, f"/me/{BAD}.py", 1))
        path = self.path + ".html"
        self.assertEqual(self.report(found, "-o", path).status, 0)
        page = pathlib.Path(path).read_text(encoding="utf-8")
        self.assertNotIn("<img", page)
        section = page.partition('id="tensors"')[2].partition("</section>")[0]
        self.assertIn("&lt;img src=x onerror=1&gt;", section)
        self.assertEqual(len(re.findall("<table>", section)), 2)
        self.assertEqual(tool("report", self.path, "-o", path).status, 0)
        self.assertNotIn('id="tensors"', pathlib.Path(path).read_text(encoding="utf-8"))

    def test_older_snapshots(self):
        """Of memory_snapshot(), a list; before 2.1 frames lie in `history`, without addresses."""
        found = whole()["segments"]
        for its in (each for row in found for each in row["blocks"]):
            del its["address"], its["requested_size"]
            its["history"] = [{"addr": 0, "real_size": 1, "frames": its.pop("frames")}]
        self.assertRegex(self.report(found).out, r"13 MiB +59% +2 +mlp \(model.py:12\)")

    def test_without_call_paths(self):
        found = whole()
        for its in (each for row in found["segments"] for each in row["blocks"]):
            del its["frames"]
        done = self.report(found)
        self.assertIn("The snapshot has no call paths", done.out)
        self.assertRegex(done.out, r"14 MiB +64% +3 +call path not noted")

    def unfit(self, found, words):
        """The report is there, with one sentence in place of the tables, and on stderr."""
        done = self.report(found)
        self.assertEqual(done.status, 0)
        self.assertRegex(done.err, rf"^gpucache: \S+a.pickle: {words}[^\n]*\n$")
        self.assertIn("Live memory peaked at ", done.out)
        self.assertIn("\n\n" + done.err.partition(": ")[2].strip() + ".\n", done.out)
        self.assertNotIn("PyTorch's segments", done.out)
        path = self.path + ".html"
        again = self.report(found, "-o", path)
        self.assertEqual((again.status, again.err.count("\n")), (0, 2))
        section = pathlib.Path(path).read_text(encoding="utf-8").partition('id="tensors"')[2]
        self.assertRegex(section.partition("</section>")[0], rf"<p>\S+a.pickle: {words}")

    def test_what_has_nothing_in_common(self):
        words = "none of its 1 segments lies"
        self.unfit({"segments": [segment(1 << 40, block(MIB))]}, words)
        # The address of a block, but larger than it.
        self.unfit({"segments": [segment(BASE, block(21 * MIB))]}, words)
        self.unfit({"segments": []}, "it has no segments")
        found = whole()
        found["segments"].append(segment(1 << 40, block(99 * MIB)))
        self.assertIn("it may be of another process", self.report(found).out)

    def test_no_code_runs(self):
        mark = self.path + ".mark"

        class Runs:
            def __reduce__(self):
                return os.mkdir, (mark,)
        self.refused(Runs(), "it is no snapshot of PyTorch: it names code, posix.mkdir")
        self.refused({"segments": [Runs()]}, "it is no snapshot of PyTorch: it names code")
        self.assertFalse(os.path.exists(mark))

    def test_broken_pickles(self):
        good = pickle.dumps(whole())
        for data in (b"", good[:-9], b"no pickle", b"\x80\x04N.", b"\x80\x04]q\x00h\x00a.",
                     b"\x80\x04P1\n.", pickle.dumps({"segments": 5}), pickle.dumps([[]]),
                     pickle.dumps({"segments": [{"address": -1, "total_size": 0, "blocks": []}]}),
                     pickle.dumps({"segments": [segment(BASE, block(MIB, ALLOCATED, ("a", "b",
                                                                                    "c")))]}),
                     pickle.dumps({"segments": [{**segment(BASE, block(MIB)), "total_size": 1}]})):
            self.refused(data, "it is no snapshot of PyTorch")

    def test_words_and_numbers_are_nothing_else(self):
        """A list in place of a word may be as deep or as large as one likes once it is written."""
        deep = []
        for _ in range(100_000):
            deep = [deep]
        wide = ["a word"]
        for _ in range(30):
            wide = [wide, wide]
        for its in deep, wide, 5, None, b"mlp":
            for found in (block(MIB, its), block(MIB, ALLOCATED, (its, "/a.py", 1)),
                          block(MIB, ALLOCATED, ("a", its, 1))):
                # Python's own pickle does not write what is deep.
                self.refused(written({"segments": [segment(BASE, found)]}),
                             "it is no snapshot of PyTorch")
        for number in 1 << 64, 10**400, -1, 1.5, "5", None:
            for name in "address", "total_size":
                self.refused({"segments": [segment(BASE, block(MIB)),
                                           {**segment(1 << 41, block(MIB)), name: number}]},
                             "it is no snapshot of PyTorch")
            if number is not None:
                self.refused({"segments": [segment(BASE, block(MIB, requested=number))]},
                             "it is no snapshot of PyTorch")

    def test_segments_without_memory_say_nothing(self):
        nothing = segment(BASE + MIB)
        self.unfit({"segments": [nothing]}, "it has no segments")
        found = whole()
        found["segments"].append(segment(BASE + 40 * MIB))
        self.assertIn("2 of its 2 segments", self.report(found).out)

    def test_no_memory_is_of_two_segments(self):
        for address in BASE, BASE + 19 * MIB, BASE - MIB // 2:
            found = whole()
            found["segments"].append(segment(address, block(MIB)))
            self.refused(found, "it is no snapshot of PyTorch")

    def test_what_is_written_once_is_there_once(self):
        """Of one list a few bytes can make many."""
        parts = [block(4096) for _ in range(500)]
        first = segment(BASE, *parts)
        rows = [{**first, "address": BASE + n * 500 * 4096} for n in range(500)]
        self.refused({"segments": rows}, "it is no snapshot of PyTorch")
        self.refused({"segments": [segment(BASE)] * 100_000}, "it is no snapshot of PyTorch")

    def test_call_paths_may_be_one(self):
        """A snapshot has each path once, however many parts have it. They are looked at once."""
        path = frames(*[("f", f"/torch/{n}.py", n) for n in range(2000)])
        parts = [{**block(4096), "frames": path} for _ in range(2000)]
        pathlib.Path(self.pickle).write_bytes(pickle.dumps({"segments": [segment(BASE, *parts)]}))
        found, count = lines_of(lambda: tensors.read(self.pickle))
        self.assertEqual(len(found[0].parts), 2000)
        self.assertLess(count, 200_000)

    def test_names_are_of_a_length(self):
        found = whole()
        found["segments"][1]["blocks"][0]["frames"] = frames(
            ("f" * MIB, "/" + "d" * MIB + "/a.py", 1))
        done = self.report(found)
        self.assertIn("ffff (a.py:1)", done.out)
        self.assertLess(len(done.out), 20_000)

    def test_no_pickle_takes_all_memory(self):
        """A few bytes: a place in the memo, and a length."""
        self.refused(b"\x80\x04Nr" + struct.pack("<I", 1 << 27) + b".",
                     "it takes too much memory for a snapshot of PyTorch")
        self.refused(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".",
                     "it (is no|takes too much memory for a) snapshot of PyTorch")

    def test_arguments(self):
        self.assertEqual(tool("report", self.path, "--snapshot", self.path + ".no").status, 1)
        for more in ("-o", self.path + ".csv"), (self.path,):
            self.assertEqual(self.report(whole(), *more).status, 2)
