# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report --snapshot: what PyTorch keeps in its blocks, by its own snapshot.

test_tensors.py TOOL"""
import itertools
import os
import pathlib
import pickle
import re
import struct
import sys
import tempfile
import unittest

from fake import tool

import gct
from gpucache import tensors

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


class Tensors(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tensors-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "a.gct")
        self.pickle = os.path.join(folder.name, "a.pickle")
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

    def test_what_has_nothing_in_common(self):
        self.refused({"segments": [segment(1 << 40, block(MIB))]}, "none of its 1 segments lies")
        # The address of a block, but larger than it.
        self.refused({"segments": [segment(BASE, block(21 * MIB))]}, "none of its 1 segments lies")
        self.refused({"segments": []}, "it has no segments")
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
        self.refused({"segments": [nothing]}, "it has no segments")
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
        count = 0

        def note(_frame, event, _arg):
            nonlocal count
            count += event == "line"
            return note
        sys.settrace(note)
        try:
            found = tensors.read(self.pickle)
        finally:
            sys.settrace(None)
        self.assertEqual(len(found[0].parts), 2000)
        self.assertLess(count, 200_000)

    def test_names_are_of_a_length(self):
        found = whole()
        found["segments"][1]["blocks"][0]["frames"] = frames(
            ("f" * MIB, "/" + "d" * MIB + "/a.py", 1))
        done = self.report(found)
        self.assertIn("ffff (a.py:1)", done.out)
        self.assertLess(len(done.out), 20_000)

    def test_a_free_that_failed_and_a_context_that_ended(self):
        gct.write(self.path, [gct.GPU, (10, "ALLOC", BASE, 20 * MIB), (20, "FREE", BASE, 0),
                              (21, "FREE_FAILED", BASE, 1),
                              (30, "ALLOC", BASE + 32 * MIB, 2 * MIB)], 100)
        self.assertIn("2 of its 2 segments", self.report(whole()).out)
        # A block in the memory of one that went with its context.
        gct.write(self.path, [gct.GPU, (10, "ALLOC", BASE, 20 * MIB), (20, "CONTEXT_END", 0, 0),
                              (30, "CONTEXT", 0, 16 << 30), (40, "ALLOC", BASE - MIB, 21 * MIB),
                              (50, "ALLOC", BASE + 32 * MIB, 2 * MIB)], 100)
        self.assertIn("2 of its 2 segments, 22 MiB", self.report(whole()).out)

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


if __name__ == "__main__":
    del sys.argv[1:2]
    unittest.main()
