# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report: what NVML and the driver say of the GPU, of the process and of others, in the
text, in the page and, where Chromium is, beside the cursor."""
import itertools
import json
import os
import shutil

from fake import tool
from opened import Opened, WIDTHS
from report_pages import BAD, Pages

import gct
from gpucache import outside, report, together

MIB, GIB, S = 1 << 20, 1 << 30, 10**9
FIRST = 0x7f0000000000
PROGRAM = [(0, *gct.GPU[1:]), (1 * S, "SEGMENT", FIRST, GIB), (1 * S, "ALLOC", FIRST, 300 * MIB),
           (2 * S, "GPU", 10 * GIB, 16 * GIB), (5 * S, "ALLOC", FIRST + 512 * MIB, 200 * MIB),
           (7 * S, "FREE", FIRST, 0)]
NVML = [(2 * S, "PROCESS", 1500 * MIB, 6 * GIB, 0, "GPU-0"),
        (2 * S, "PROCESS", 1900 * MIB, 6 * GIB, 39920, "GPU-0 jupyter, without the library"),
        (2 * S, "PROCESS", 99 * MIB, 6 * GIB, 5, "GPU-9 of another GPU"),
        (3 * S, "PROCESS", 100 * MIB, 6 * GIB, 4711, f"GPU-0 {BAD}"),
        (4 * S, "PROCESS", 1600 * MIB, 6 * GIB, 0, "GPU-0"),
        (6 * S, "PROCESS", 0, 6 * GIB, 39920, "GPU-0 jupyter, without the library")]
SPAN = 8 * S


class Told(Pages):
    def write(self, name, *more, events=tuple(PROGRAM), span_ns=SPAN, **options):
        path = os.path.join(self.folder, name + ".gct")
        gct.write(path, sorted([*events, *more], key=lambda its: its[0]), span_ns, **options)
        return path

    def report_of(self, *paths):
        its = report.Report(paths[0], paths[1:])
        self.addCleanup(its.close)
        return its

    def page_of(self, name, *paths):
        out = os.path.join(self.folder, name + ".html")
        done = tool("report", *paths, "-o", out)
        self.assertEqual(done.status, 0, done.err)
        with open(out, encoding="utf-8") as file:
            return file.read()


class Twice(Told):
    def test_a_file_that_is_given_twice(self):
        """By any name: the sum of the processes would count it twice."""
        path, other = (self.write(name, boot_id=b"B" * 16, pid=pid)
                       for name, pid in (("one", 77), ("two", 78)))
        for make, name in (os.symlink, "soft.gct"), (os.link, "hard.gct"):
            make(path, os.path.join(self.folder, name))
        odd = os.path.join(self.folder, ".", "one.gct")
        soft, hard = (os.path.join(self.folder, name) for name in ("soft.gct", "hard.gct"))
        for files, why in (([path, path], f"{path} is given twice"),
                           ([other, path, path], f"{path} is given twice"),
                           ([path, odd], f"{path} and {odd} are one trace"),
                           ([path, other, soft], f"{path} and {soft} are one trace"),
                           ([hard, path], f"{hard} and {path} are one trace")):
            for words in (["-o", path + ".html"], ["-o", path + ".json"], ["--format", "html"]):
                done = tool("report", *files, *words)
                self.assertEqual((done.status, done.out, done.err), (
                    2, "", f"gpucache: {why}: a sum would count it twice\n"), words)
        self.assertFalse(os.path.exists(path + ".html"))
        self.assertEqual(tool("report", path, path).status, 0)  # one after the other, without a sum
        gone = tool("report", path + "x", path + "x", "-o", path + ".html")
        self.assertIn("no such file", gone.err)

    def test_a_copy(self):
        """Also one from when the process went on: both begin at the same moment."""
        path, other = (self.write(name, boot_id=b"B" * 16, pid=pid)
                       for name, pid in (("one", 77), ("two", 78)))
        early = self.write("early", boot_id=b"B" * 16, events=PROGRAM[:2], span_ns=S)
        shutil.copy(path, os.path.join(self.folder, "copy.gct"))
        for its in early, os.path.join(self.folder, "copy.gct"):
            for files in (path, its), (path, other, its):
                done = tool("report", *files, "-o", path + ".html")
                self.assertEqual((done.status, done.out, done.err), (
                    2, "", f"gpucache: {path} and {its} are one trace: a sum would count it "
                           "twice\n"), files)
        later = self.write("later", boot_id=b"B" * 16, start_unix_ns=10**18 + 1)
        self.assertEqual(tool("report", path, other, later, "-o", later + ".html").status, 0)


class Others(Told):
    def test_each_process_has_its_row(self):
        path = self.write("all", *NVML)
        said = tool("report", path).out
        rows = said.partition("Other processes of the GPU, as NVML says\n")[2].splitlines()
        self.assertEqual([row.split(None, 7) for row in rows[1:3]],
                         [["39920", "1.9", "GiB", "1.9", "GiB", "0", "B",
                           "jupyter, without the library"],
                          ["4711", "100", "MiB", "100", "MiB", "100", "MiB", BAD]])
        self.assertNotIn("of another GPU", said)
        told = json.loads(tool("report", "--json", path).out)["traces"][0]["other_processes"]
        self.assertEqual(told[0], {"pid": 39920, "name": "jupyter, without the library",
                                   "steps": [[2 * S, 1900 * MIB], [6 * S, 0]]})
        rows = json.loads(tool("report", path, "--format", "perfetto").out)["traceEvents"]
        self.assertEqual([(row["ts"], row["args"]) for row in rows
                          if row["pid"] == 39920 and row["ph"] == "C"],
                         [(2e6, {"by NVML": 1900 * MIB}), (6e6, {"by NVML": 0})])

    def test_each_process_has_its_lane(self):
        page = self.page_of("all", self.write("all", *NVML))
        self.assertNotIn(BAD, page)
        self.assertNotIn("Not seen: CUDA contexts", page)
        data = self.data(page)
        own, jupyter, hostile = data["lanes"]
        self.assertEqual((own["name"], jupyter["name"], hostile["name"]),
                         ("PID 77 a program", "PID 39920 jupyter, without the library",
                          f"PID 4711 {BAD}"))
        self.assertEqual([*itertools.accumulate(jupyter["held"])], [1900 * MIB, 0])
        self.assertEqual([*itertools.accumulate(jupyter["slots"])], [1000, 3000])
        self.assertNotIn("live", jupyter)
        # What is not free is the lanes', and the rest.
        self.assertEqual(data["rest"][0], 6 * GIB - GIB - 1900 * MIB)
        self.assertEqual(data["most"], GIB + 2000 * MIB)

    def test_a_trace_without_their_numbers_is_of_the_process_itself(self):
        """As older tools wrote it."""
        its = self.report_of(self.write("old", *(row[:4] + (0, "GPU-0") for row in NVML[::4])))
        self.assertEqual(together.others([its]), [])
        self.assertEqual(its.usage.outside.beyond, [(2 * S, 476 * MIB), (4 * S, 576 * MIB)])
        self.assertNotIn("Other processes", "\n".join(its.lines()))

    def test_who_has_a_trace_has_no_second_lane(self):
        """And what both say of a third process is said once."""
        both = [self.write(name, (2 * S, "PROCESS", 1500 * MIB, 6 * GIB, 0, "GPU-0"),
                           (when, "PROCESS", 7 * MIB, 6 * GIB, 9, "GPU-0 third"),
                           (when, "PROCESS", MIB, 6 * GIB, other, "GPU-0 each other"),
                           pid=pid, boot_id=b"a machine's boot")
                for name, when, pid, other in (("one", 2 * S, 77, 78), ("two", 3 * S, 78, 77))]
        its = self.report_of(*both)
        self.assertEqual(together.others([its, *its.beside]),
                         [outside.Other(9, "third", [(2 * S, 7 * MIB), (3 * S, 7 * MIB)])])

    def test_many_processes_are_few_lanes(self):
        path = self.write("many", *((2 * S, "PROCESS", n * MIB, 6 * GIB, 100 + n, "GPU-0")
                                    for n in range(1, 41)))
        lanes = self.data(self.page_of("many", path))["lanes"][1:]
        self.assertEqual(len(lanes), together.OTHERS_MOST)
        self.assertEqual((lanes[0]["name"], lanes[-1]["name"]), ("PID 140", "29 other processes"))
        self.assertEqual(lanes[-1]["held"], [sum(range(1, 30)) * MIB])

    def test_two_gpus_and_a_park_count_once(self):
        """The process holds memory of both GPUs, and then none of the device."""
        gpus = [(0, "CONTEXT", 0, 16 * GIB), (0, "CONTEXT", 1, 16 * GIB),
                (1 * S, "SEGMENT", FIRST, GIB)]
        its = self.report_of(self.write(
            "two-gpus", *((at, "PROCESS", size, 0, 0, uuid) for at, sizes in
                          ((2 * S, (900 * MIB, 624 * MIB)), (4 * S, (300 * MIB, 200 * MIB)))
                          for size, uuid in zip(sizes, ("GPU-0", "GPU-1"))),
            (3 * S, "SEGMENT_FREE", FIRST, 0), (3 * S, "PARK", GIB, 5), events=gpus))
        self.assertEqual(its.usage.outside.beyond, [(2 * S, 500 * MIB), (4 * S, 500 * MIB)])


class Readout(Told, Opened):
    def read(self, name, part):
        """The rows beside the picture, at this part of the time."""
        page = self.open(name)
        box = page.run("(its => [its.left, its.top, its.width])"
                       "(document.querySelector('#timeline svg').getBoundingClientRect())")
        page.mouse("Moved", box[0] + 66 + (box[2] - 74) * part, box[1] + 150)
        return self.words(".reading").replace("\n", " ")

    def test_what_nvidia_smi_shows_is_beside_the_cursor(self):
        self.page_of("smi", self.write("smi", *NVML))
        early, late = self.read("smi", 2.5 / 8), self.read("smi", 5.5 / 8)
        self.assertRegex(early, r"CUDA context, modules .* 476 MiB live, as asked for 300 MiB held "
                                r"on the device 1 GiB nvidia-smi shows 1.5 GiB free on the GPU "
                                r"10 GiB")
        self.assertRegex(late, r"CUDA context, modules .* 576 MiB live, as asked for 500 MiB .*"
                               r"nvidia-smi shows 1.6 GiB")
        for words in "nvidia-smi", "free on the GPU":  # nobody had told
            self.assertNotIn(words, self.read("smi", 1.5 / 8))

    def test_without_nvml_it_is_what_the_driver_says(self):
        self.page_of("driver", self.write("driver"))
        said = self.read("driver", 3 / 8)
        self.assertRegex(said, r"all else on the GPU .* 5 GiB live, .* free on the GPU 10 GiB")
        self.assertNotIn("nvidia-smi", said)

    def test_the_lanes_of_processes_without_a_trace(self):
        self.page_of("lanes", self.write("lanes", *NVML))
        for theme, width in itertools.product(("light", "dark"), WIDTHS):
            page = self.open("lanes", theme, width)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
        self.read("lanes", 3 / 8)
        told = page.run("[...document.querySelectorAll('#lanes text')].map(its => its.textContent)")
        self.assertIn("PID 39920 jupyter, without the library", told)
        self.assertIn("1.9 GiB by NVML", told)
        self.assertIn(f"PID 4711 {BAD}", told)
        self.assertIn("PID 39920 jupyter, without the library at most 1.9 GiB",
                      page.run("document.querySelector('#lanes').getAttribute('aria-label')"))
