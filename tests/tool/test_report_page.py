# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report -o FILE.html: the page's figures, and its safety."""
import io
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import time
import unittest.mock

from fake import lines_of, text_of, tool
from report_pages import BAD, WRITER, Pages

import gct
import report_scene
from gpucache import block_map, report_page, site, tables, text, together, trace, usage

MIB = 1 << 20
# Of a_step, for an event. Alone on a machine it takes less than 110, beside other tests a half
# more: what shares a core has less cache and a slower clock. The events' square takes thousands.
# This is no bound of seconds: shim/README.md has what ten million events take.
STEPS_MOST = 330
LINES_MOST = 60  # of Python, for an event: 25 to 40 are, by how late frees come


def a_step():
    """Seconds on a CPU."""
    kept, number, begin = {}, 200_000, time.process_time()
    for i in range(number):
        kept[i & 1023] = i
    return (time.process_time() - begin) / number


class Figures(Pages):
    def check(self, data, used):
        sums = [sum(values) for values in zip(*(its["held"] for its in data["series"]))]
        self.assertEqual(sums, [column.live for column in used.columns])
        self.assertEqual(data["reserved"], [column.reserved for column in used.columns])
        self.assertEqual(data["at"], [column.ns for column in used.columns])
        self.assertEqual(sum(its["exit"] for its in data["series"]), used.live)
        self.assertEqual(sums[data["peak"]], used.peak)
        by_owner = {}
        for its in data["series"]:
            owner = data["owners"][its["owner"]]
            by_owner[owner] = by_owner.get(owner, 0) + its["held"][data["peak"]]
        self.assertEqual({owner: size for owner, size in by_owner.items() if size},
                         dict(used.by_owner(used.at_peak)))

    def test_they_are_those_of_the_trace(self):
        page, data, its = self.page("program")
        self.check(data, its.usage)
        self.assertEqual({mark[1] for mark in data["marks"]}, {"flush", "oom"})
        self.assertLess(data["a"], data["b"])
        self.assertEqual(data["b"], data["peak"])
        for words in ("peaked at <b>322 MiB</b>", "in the other order the peak is 141 MiB",
                      f"{text.size(its.usage.mean_idle())} idle", "1 call site grows",
                      "41 blocks, 140 MiB", "natively some 35 ms for 401 pairs",
                      '<td class="">cudaMallocAsync</td>', "library&#x27;s: 400."):
            self.assertIn(words, page)

    def test_what_is_parked_is_not_on_the_device(self):
        _, data, its = self.page("parked")
        away = list(itertools.accumulate(data["away"]))
        self.assertEqual((away[0], max(away), away[-1]), (0, 128 * MIB, 0))
        self.assertAlmostEqual(its.usage.mean_held() / MIB, 128 * 2 / 3, delta=20)
        self.assertEqual(its.usage.memory.peak, 128 * MIB)
        steps = [size for size, _ in itertools.groupby(its[1] for its in together.lane(its))]
        self.assertEqual(steps[-4:], [128 * MIB, 0, 128 * MIB, 0])
        self.assertNotIn("away", self.page("program")[1])

    def test_the_block_map(self):
        page, data, its = self.page("program")
        names = [found["name"].partition(" at ")[0] for found in data["maps"]]
        self.assertEqual(names, ["the peak", "a flush", "out of memory", "at exit"])
        writer = os.path.basename(WRITER)
        for found, live, blocks in zip(its.usage.moments.all(), (322, 122, 140, 140),
                                       (24, 23, 41, 41)):
            runs = found.runs(its.usage.owner)
            self.assertEqual((found.live(), len(found.blocks)), (live * MIB, blocks), found.name)
            self.assertEqual(sum(size for size, owner in runs if owner == writer), live * MIB)
            self.assertEqual(sum(size for size, _ in runs), 1 << 30)
        for found in data["maps"]:
            number = sum(count for count, _, _ in found["cells"])
            self.assertEqual(number * found["cell"], 1 << 30)
            self.assertLessEqual(number, block_map.CELLS)
            for _, owner, shade in found["cells"]:
                self.assertEqual(owner < 0, not shade)
        self.assertIn("<td class=\"n\">702 MiB</td>", page.partition('id="map"')[2])

    def idle(self, page):
        """(what the card says of idle memory, the rows of the replay)"""
        card = re.search(r"Was memory wasted\?</h3>.*?<p>on average, of [^;]*; (.*?)</p>", page)[1]
        rows = re.findall(r"<tr><td[^>]*>(.*?)</tr>", page.partition('id="what-if"')[2], re.DOTALL)
        return card, [re.split("</td><td[^>]*>", row) for row in rows]

    def test_idle_memory_has_its_price(self):
        """By the setting that holds the least of those that serve all requests; if that is no less,
        or there is none, the card says so."""
        page = os.path.join(self.folder, "trainer.html")
        done = tool("report", report_scene.write(self.folder)[0], "-o", page)
        self.assertEqual(done.status, 0, done.err)
        card, (_, as_is, *rows) = self.idle(text_of(page))
        name, less, price, before = re.fullmatch(
            r"replayed, (.*) holds (\S+) GiB less, for (.*) in driver calls instead of (.*)",
            card).groups()
        held = {row[0]: float(row[1].removesuffix(" GiB")) for row in rows}
        self.assertEqual(name, min(held, key=held.get))
        self.assertEqual([price, before], [row[3] for row in (*rows, as_is)
                                           if row[0] in (name, as_is[0])])
        self.assertAlmostEqual(float(less), float(as_is[1].removesuffix(" GiB")) - held[name],
                               delta=0.15)
        self.assertEqual(self.idle(self.page("parked")[0])[0],
                         "replayed, no setting holds much less")
        self.assertEqual(self.idle(self.page("program")[0])[0],
                         "holding none takes some 35 ms of native calls")

    def test_many_call_sites(self):
        page, data, its = self.page("large:40000")
        self.check(data, its.usage)
        self.assertGreater(len(its.usage.sites), site.SITES_MOST)
        self.assertGreater(its.usage.at_peak[trace.OTHERS], max(
            size for site, size in its.usage.at_peak.items() if site != trace.OTHERS))
        self.assertNotIn("+0x0 ", its.explained())
        self.assertNotIn("other call sites", its.explained())
        self.assertIn("  other call sites  ", tool("report", os.path.join(
            self.folder, "large.gct")).out)
        self.assertLess(len(data["series"]), 60)
        self.assertLess(len(page), 5 * MIB)

    def test_time_and_size_grow_slowly_with_the_events(self):
        """What an event takes is told in steps of a simple loop, on this machine and now."""
        number, least = 100_000, math.inf
        path = os.path.join(self.folder, "timed")
        subprocess.run([WRITER, f"large:{number}", path + ".gct"], timeout=100, check=True)
        for _ in range(3):
            step, before = a_step(), sum(os.times()[:4])
            done = tool("report", path + ".gct", "-o", path + ".html")
            self.assertEqual(done.status, 0, done.err)
            spent = sum(os.times()[:4]) - before
            least = min(least, spent / number / max(step, a_step()))
            if least < STEPS_MOST:
                break
        self.assertLess(least, STEPS_MOST)
        self.assertLess(os.path.getsize(path + ".html"), MIB)

    def lines(self, number):
        """Lines of Python that run for so many events, with few columns."""
        path = os.path.join(self.folder, "counted.gct")
        subprocess.run([WRITER, f"large:{number}", path], timeout=100, check=True)
        with unittest.mock.patch.object(usage, "COLUMNS", 40), trace.Trace(path) as its:
            _, count = lines_of(lambda: usage.Usage(its))
        os.unlink(path)
        return count

    def test_an_event_takes_few_lines(self):
        """However many there are: what is done for each decides how long a report takes. With fewer
        than these, what is done for each window and call site counts more."""
        few, many, most = map(self.lines, (16_000, 32_000, 64_000))
        self.assertLess((many - few) / 16_000, LINES_MOST)
        self.assertLess((most - many) / 32_000, LINES_MOST)

    def together(self, *names, status=0):
        """(the page's data, the reports) of several processes."""
        paths = [os.path.join(self.folder, name + ".gct") for name in names]
        out = os.path.join(self.folder, "-".join(names) + ".html")
        done = tool("report", *paths, "-o", out)
        self.assertEqual(done.status, status, done.err)
        if status:
            return done.err
        return self.data(pathlib.Path(out).read_text(encoding="utf-8"))

    def test_several_processes_have_one_time(self):
        its = [self.page("program", name)[2] for name in ("first", "second")]
        lead = its[1].trace.start_ns - its[0].trace.start_ns
        for order in ("first", "second"), ("second", "first"):
            data = self.together(*order)
            self.assertEqual(data["capacity"], 16 << 20)
            lanes = {}
            for lane, name in zip(data["lanes"], order):
                lanes[name] = [list(itertools.accumulate(lane[key]))
                               for key in ("slots", "held", "live")]
            self.assertEqual(set(lanes["first"][1]), {0, 1 << 30})
            for lane, process, since in (lanes["first"], its[0], 0), (lanes["second"], its[1],
                                                                      lead):
                slots, held, live = lane
                begin = next(slot for slot, size in zip(slots, held) if size)
                first = next(column.ns for column in process.usage.columns if column.reserved)
                self.assertAlmostEqual(begin * data["width"], since + first,
                                       delta=4 * data["width"])
                self.assertEqual((max(live), held[-1], live[-1]), (process.usage.peak, 0, 0))
                peak = slots[live.index(max(live))] * data["width"] - since
                self.assertAlmostEqual(peak, process.usage.peak_ns, delta=3 * data["width"])
            self.assertAlmostEqual(data["span"], lead + its[1].usage.span_ns, delta=data["width"])
            self.assertEqual(data["most"], 1 << 30)  # one after the other
            # The picture of the process itself begins with it, too.
            sums = [sum(values) for values in zip(*(row["held"] for row in data["series"]))]
            at = data["at"][sums.index(max(sums))]
            number = ("first", "second").index(order[0])
            self.assertAlmostEqual(at - number * lead, its[number].usage.peak_ns,
                                   delta=3 * data["width"])
            if not number:
                self.assertEqual(sums[-1], 0)

    def test_processes_at_once_add_up(self):
        path = os.path.join(self.folder, "at-once")
        with subprocess.Popen([WRITER, "program", path + "-1.gct"]) as writer:
            self.page("program", "at-once-2")
            writer.wait(100)
        self.assertEqual(self.together("at-once-1", "at-once-2")["most"], 2 << 30)

    def test_several_processes_in_perfetto(self):
        both = "first", "second"
        names = [self.page("program", name)[2] for name in both]
        paths = [os.path.join(self.folder, name + ".gct") for name in both]
        done = tool("report", *paths, "--format", "perfetto")
        self.assertEqual(done.status, 0, done.err)
        rows = [row for row in json.loads(done.out)["traceEvents"]
                if row["name"] == "device memory"]
        for its, start_us in zip(names, (0, (names[1].trace.start_ns - names[0].trace.start_ns)
                                         / 1000)):
            own = [row for row in rows if row["pid"] == its.trace.pid and row["args"]["live"]]
            self.assertEqual(max(row["args"]["live"] for row in own), its.usage.peak)
            self.assertGreaterEqual(own[0]["ts"], start_us - 100_000)

    def test_what_has_no_common_time_or_gpu_is_refused(self):
        self.page("program", "first")
        data = bytearray(pathlib.Path(self.folder, "first.gct").read_bytes())
        offset = tables.TRACE_HEADER["boot_id"][0]
        for boot in bytes(16), os.urandom(16):
            data[offset:offset + 16] = boot
            pathlib.Path(self.folder, "theirs.gct").write_bytes(data)
            said = self.together("first", "theirs", status=1)
            self.assertRegex(said, r"\S+first.gct and \S+theirs.gct are of two boots, or of two "
                                   r"machines: there is no common time\n$")
        gct.write(os.path.join(self.folder, "another.gct"), [(0, "CONTEXT", 5, 16 << 30)], MIB,
                  boot_id=self.page("program", "first")[2].trace.boot_id)
        self.assertRegex(self.together("first", "another", status=1),
                         r"\S+first.gct and \S+another.gct have no GPU in common\n$")
        self.page("nothing", "without")
        for names in ("first", "without"), ("without", "first"):
            self.assertRegex(self.together(*names, status=1), r": \S+without.gct does not say "
                             r"which GPU it is of, so nothing can be shown beside it\n$")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "first-theirs.html")))

    def test_the_gpu_is_known_by_the_driver_where_no_context_is(self):
        path = os.path.join(self.folder, "no-context")
        gct.write(path + ".gct", [(0, "ALLOC", 1 << 40, MIB), (0, "GPU", 8 << 30, 16 << 30)], MIB)
        done = tool("report", path + ".gct", "-o", path + ".html")
        self.assertEqual(done.status, 0, done.err)
        data = self.data(text_of(path + ".html"))
        self.assertEqual((data["gpu"], data["capacity"]), ("GPU 0", 16 << 30))

    def test_marks_are_selected_once(self):
        its = self.page("program")[2]
        with unittest.mock.patch.object(report_page, "select_marks",
                                        side_effect=site.select_marks) as select:
            report_page.write(its, io.StringIO())
        select.assert_called_once()

    def test_nothing_is_invented_of_nothing(self):
        page, data, _ = self.page("nothing")
        self.assertEqual((data["series"], data["marks"]), ([], []))
        self.assertIn("No memory was allocated", page)
        for words in "<h3>", 'id="timeline"', "Churn", "Live at":
            self.assertNotIn(words, page.split("<script")[0].split("</style>")[1])


class Safety(Pages):
    def test_words_of_a_trace_are_words(self):
        """The program's own name, its arguments, options, a GPU: all may be foreign."""
        writer = os.path.join(self.folder, BAD)
        shutil.copy(WRITER, writer)
        page, data, _ = self.page("hostile", "b<script>1<script>", writer)
        for bad in "<img", "<script>1", "<script>document", "foreign'</script>":
            self.assertNotIn(bad, page)
        self.assertIn("&lt;img src=x onerror=1&gt;", page)
        self.assertTrue(any("foreign'</script>" in mark[2] for mark in data["marks"]))
        self.assertTrue(any("${data} $data" in mark[2] for mark in data["marks"]))
        self.assertIn(BAD, data["owners"])
        self.assertEqual(len(re.findall(r"<script", page)), 2)

    def test_it_needs_nothing_else(self):
        page, _, _ = self.page("program")
        self.assertIn("default-src 'none'", page)
        addresses = set(re.findall(r"\bhttps?:[^\s'\"<]+", page))
        self.assertLessEqual(addresses, {"http://www.w3.org/2000/svg"})
