# SPDX-License-Identifier: BSD-2-Clause
"""gpucache plan on programs whose needs are known."""
import json
import lzma
import os
import pathlib
import unittest
import unittest.mock

from fake import Scratch, tool

import gct
from gct import GPU, MIB
from gpucache import plan, replay

SECOND = 10**9
FIRST = 0x7f0000000000
START = 10**18
HALF_GIB = 512 * MIB
GOLDEN = pathlib.Path(__file__).parent / "golden" / "trace-1.gct.xz"


def peak_at(second):
    """Half a GiB all the time, and another one for a second; the library holds both till the end,
    and some more."""
    at = second * SECOND
    return [GPU, (0, "SEGMENT", FIRST, 4 * HALF_GIB), (0, "ALLOC", FIRST, HALF_GIB),
            (at, "ALLOC", FIRST + HALF_GIB, HALF_GIB), (at + SECOND, "FREE", FIRST + HALF_GIB, 0)]


class Plans(Scratch):
    def setUp(self):
        super().setUp()
        self.early, self.late, self.next_day, self.empty = (
            os.path.join(self.folder, name) for name in ("early", "late", "next", "empty"))
        gct.write(self.early, peak_at(1), 10 * SECOND, START)
        gct.write(self.late, peak_at(5), 10 * SECOND, START + SECOND // 2)
        gct.write(self.next_day, peak_at(5), 10 * SECOND, START + 86400 * SECOND)
        gct.write(self.empty, [GPU], SECOND)

    def plan(self, *words, status=0):
        """What the JSON says, by name: ways are their bytes without contexts."""
        done = tool("plan", "--json", *words)
        self.assertEqual((done.status, done.err), (status, ""))
        data = json.loads(done.out)
        self.assertEqual(data["may_run_together"], status == 0)
        contexts = data["context_bytes"] * len(data["jobs"])
        data.update({way["way"]: way["bytes"] - contexts for way in data["ways"]})
        data["fits"] = [way["way"] for way in data["ways"] if way["fits"]]
        return data

    def near(self, found, expected):
        self.assertTrue(expected <= found <= expected + 32 * MIB, (found >> 20, expected >> 20))

    def test_one_program(self):
        data = self.plan(self.early)
        job, = data["jobs"]
        self.assertEqual((job["live_bytes"], job["held_bytes"], job["pid"], job["program"],
                          job["least_is_replayed"]),
                         (2 * HALF_GIB, 4 * HALF_GIB, 77, "a program", True))
        self.near(job["least_bytes"], 2 * HALF_GIB)
        self.assertEqual(data["as_they_are"], 4 * HALF_GIB)
        self.assertEqual(data["gpu_bytes"], 16 << 30)

    def test_peaks_that_do_not_meet(self):
        data = self.plan(self.early, self.late)
        self.assertTrue(data["ran_together"])
        self.assertEqual(data["as_they_are"], 8 * HALF_GIB)
        self.near(data["lending"], 4 * HALF_GIB)
        self.near(data["lending_beside"], 3 * HALF_GIB)
        self.near(data["parking"], 2 * HALF_GIB)

    def test_peaks_that_meet_when_started_together(self):
        data = self.plan(self.late, self.next_day)
        self.assertFalse(data["ran_together"])
        self.assertEqual(data["lending_beside"], data["lending"])

    def test_what_fits_on_which_gpu(self):
        both = self.early, self.late
        for gpu, status, fits, verdict in (
                ("5.1G", 0, ["as_they_are", "lending", "lending_beside", "parking"],
                 "They fit on 5.1 GiB as they are: 5 GiB."),
                ("4G", 0, ["lending", "lending_beside", "parking"],
                 "They fit on 4 GiB with lending, whenever their peaks come: 3"),
                ("2.6G", 1, ["lending_beside", "parking"],
                 "They fit on 2.6 GiB with lending, side by side as recorded: 2.5 GiB. If their "
                 "peaks meet, they do not: 3"),
                ("2.1G", 1, ["parking"], "They do not fit on 2.1 GiB at the same time. They do "
                 "one at a time, the others parked: 2 GiB."),
                ("1.9G", 1, [], "They do not fit on 1.9 GiB: 2 GiB are the least.")):
            with self.subTest(gpu=gpu):
                self.assertEqual(self.plan(*both, "--gpu", gpu, status=status)["fits"], fits)
                done = tool("plan", *both, "--gpu", gpu)
                self.assertEqual((done.status, done.err), (status, ""))
                self.assertEqual(done.out[:len(verdict)], verdict)
                self.assertIn("some 500 MiB each, 1000 MiB in all", done.out)

    def test_one_program_that_fits_with_a_limit_only(self):
        done = tool("plan", self.early, "--gpu", "1.7G")
        self.assertEqual(done.status, 0)
        self.assertTrue(done.out.startswith("It fits on 1.7 GiB with a limit or with lending: 1.5"),
                        done.out)
        done = tool("plan", self.early, "--gpu", "1G")
        self.assertEqual(done.status, 1)
        self.assertTrue(done.out.startswith("It does not fit on 1 GiB: 1.5 GiB is the least."),
                        done.out)

    def test_what_failed_is_said_and_not_counted(self):
        """Only memory that was not there, and not where there is room for it, too."""
        def failed(at, size, code=2):
            return at * SECOND, "ALLOC_FAILED", code, size
        rows = peak_at(1)
        gct.write(self.early, [*rows[:4], failed(1, HALF_GIB), failed(1, 99 << 40, 1), *rows[4:],
                               failed(3, 3 * HALF_GIB)], 10 * SECOND, START)
        for gpu, status, verdict in (
                ("3G", 0, "It fits on 3 GiB as it is: 2.5 GiB."),
                ("2.5G", 0, "It fits on 2.5 GiB as it is: 2.5 GiB."),
                ("2.4G", 1, "Without what failed, it fits on 2.4 GiB with a limit or with lending"),
                ("1G", 1, "It does not fit on 1 GiB: 1.5 GiB is the least.")):
            done = tool("plan", self.early, "--gpu", gpu)
            self.assertEqual((done.status, done.out[:len(verdict)]), (status, verdict))
            self.assertIn("\n2 requests failed and are not counted, the largest of 1.5 GiB. With "
                          "what failed 2.5 GiB are needed.\n", done.out)
        data = self.plan(self.early, "--gpu", "2.4G", status=1)
        self.near(data["lending"], 2 * HALF_GIB)
        job, = data["jobs"]
        self.assertEqual((data["asked_bytes"] - data["context_bytes"], job["num_failed"],
                          job["largest_failed_bytes"]), (4 * HALF_GIB, 2, 3 * HALF_GIB))

    def test_a_record_of_the_last_moments_fits_as_far_as_is_known(self):
        gct.write(self.early, [*peak_at(1), (9 * SECOND, "ALLOC_FAILED", 2, 20 << 30),
                               (9 * SECOND, "OOM", MIB, 20 << 30)], 10 * SECOND, START)
        for gpu, status, verdict in (
                ("16G", 1, "As far as is known and without what failed, it fits on 16 GiB as it"),
                ("80G", 1, "As far as is known, it fits on 80 GiB as it is: 2.5 GiB."),
                ("1G", 1, "It does not fit on 1 GiB: 1.5 GiB is the least.")):
            done = tool("plan", self.early, "--gpu", gpu)
            self.assertEqual((done.status, done.out[:len(verdict)]), (status, verdict))
            self.assertIn("it has the last 10 s alone", done.out)
        self.assertTrue(self.plan(self.early, status=1)["jobs"][0]["is_last_part"])
        verdict = "As far as is known, they fit on 80 GiB as they are: "
        self.assertEqual(tool("plan", self.early, self.late, "--gpu", "80G").out[:len(verdict)],
                         verdict)

    def test_without_a_replay_what_was_held_counts(self):
        with unittest.mock.patch.object(replay, "program", lambda: None):
            job, = self.plan(self.early)["jobs"]
            self.assertEqual((job["least_bytes"], job["least_is_replayed"]), (4 * HALF_GIB, False))
            said = tool("plan", self.early).out
        self.assertIn("is what was held: The program gpucache-replay is not beside this tool", said)

    def test_a_trace_in_the_tree(self):
        path = self.empty + ".golden"
        pathlib.Path(path).write_bytes(lzma.decompress(GOLDEN.read_bytes()))
        data = self.plan(path, self.early, status=1)
        self.assertEqual(data["gpu_bytes"], 80 << 20)  # of its making, and smaller than the other
        self.assertIn("several sizes", tool("plan", path, self.early).out)

    def test_the_driver_says_how_large_the_gpu_is_where_no_context_does(self):
        gct.write(self.late, [*peak_at(5)[1:], (SECOND, "GPU", 1 << 30, 4 << 30)], 10 * SECOND)
        self.assertEqual(self.plan(self.late)["gpu_bytes"], 4 << 30)
        self.assertEqual(self.plan(self.early, self.late)["gpu_bytes"], 4 << 30)

    def test_bad_input(self):
        two, foreign, nameless = (self.empty + name for name in ("2", "x", "n"))
        gct.write(two, [GPU, (0, "CONTEXT", 1, 16 << 30), *peak_at(1)[1:]], SECOND)
        gct.write(nameless, peak_at(1)[1:], 10 * SECOND)
        pathlib.Path(foreign).write_bytes(b"something else")
        for words, why in (((foreign,), "it is no trace of libgpucache"),
                           ((self.early, two), "2: it has memory of 2 GPUs, and a plan is for one"),
                           ((self.early, self.empty), "empty: no memory was allocated while the "
                            "trace was on, so there is nothing to plan"),
                           ((self.empty + "no",), "no such file"),
                           ((nameless,), "no trace says how large the GPU is: --gpu SIZE does"),
                           ((self.early, "--gpu", "0M"), "no GPU has 0M of memory"),
                           ((self.early, "--gpu", "large"), "large is no size")):
            done = tool("plan", *words)
            self.assertEqual((done.status, done.out), (2, ""), words)
            self.assertIn(why, done.err)
        self.assertEqual(tool("plan", nameless, "--gpu", "80G").status, 0)
        self.assertEqual(tool("plan").status, 2)


class Together(unittest.TestCase):
    def test_the_most_of_a_moment(self):
        class Job:
            def __init__(self, *needs):
                self.needs = lambda: needs
        first, second = Job((0, 5), (10, 1), (20, 0)), Job((0, 1), (10, 7), (11, 0))
        self.assertEqual(plan.together([first, second], [0, 0]), 8)
        self.assertEqual(plan.together([first, second], [10, 0]), 12)
        self.assertEqual(plan.together([first, second], [0, 10]), 7)
        self.assertEqual(plan.together([first], [3]), 5)
