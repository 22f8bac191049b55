# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report -o FILE.html: the page's figures, its safety, and, where Chromium is, what it
does."""
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

from fake import lines_of, tool

import browser
from gpucache import block_map, report, site, tables, text, together, trace, usage

WRITER = os.path.realpath(sys.argv[2])
MIB = 1 << 20
BAD = "<img src=x onerror=1>"
WIDTHS = (1400, 800, 390)
# Of a_step, for an event. Alone on a machine it takes less than 110, beside other tests a half
# more: what shares a core has less cache and a slower clock. The events' square takes thousands.
STEPS_MOST = 330
LINES_MOST = 60  # of Python, for an event: 25 to 40 are, by how late frees come


def a_step():
    """Seconds on a CPU."""
    kept, number, begin = {}, 200_000, time.process_time()
    for i in range(number):
        kept[i & 1023] = i
    return (time.process_time() - begin) / number


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="page-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder, cls.made = folder.name, {}

    @classmethod
    def page(cls, scene, name="", writer=WRITER):
        """(the page, its data, the report) of a scene, which is played once. Its files have its
        name, or another."""
        name = name or scene.partition(":")[0]
        if name not in cls.made:
            cls.made[name] = cls.make(scene, os.path.join(cls.folder, name), writer)
        return cls.made[name]

    @classmethod
    def make(cls, scene, path, writer):
        subprocess.run([writer, scene, path + ".gct"], timeout=100, check=True)
        done = tool("report", path + ".gct", "-o", path + ".html")
        assert done.status == 0, done.err
        its = report.Report(path + ".gct")
        cls.addClassCleanup(its.close)
        page = pathlib.Path(path + ".html").read_text(encoding="utf-8")
        return page, cls.data(page), its

    @staticmethod
    def data(page):
        found = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
        for its in (found, "slots"), (found, "at"), (found, "reserved"), \
                *((each, "held") for each in found["series"]):
            its[0][its[1]] = list(itertools.accumulate(its[0][its[1]]))
        return found


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
                      '<td class="">cudaMallocAsync</td>', "400 frees were of memory from before"):
            self.assertIn(words, page)

    def test_what_is_parked_is_not_on_the_device(self):
        _, data, its = self.page("parked")
        away = list(itertools.accumulate(data["away"]))
        self.assertEqual((away[0], max(away), away[-1]), (0, 128 * MIB, 0))
        self.assertAlmostEqual(its.usage.mean_held() / MIB, 128 * 2 / 3, delta=20)
        self.assertEqual(its.usage.reserved_peak, 128 * MIB)
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
        self.page("nothing", "without")
        self.assertIn("have no GPU in common", self.together("first", "without", status=1))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "first-theirs.html")))

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


@unittest.skipUnless(browser.PROGRAM, "Chromium is not there")
class Opened(Pages):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.page("program")
        cls.page("paths")
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, name="program", theme="light", width=1400):
        page = self.browser
        page.complaints.clear()
        page.requests.clear()
        page.prefer(theme)
        page.resize(width, 900)
        address = pathlib.Path(self.folder, name + ".html").as_uri()
        page.open(address)
        self.assertEqual((page.complaints, page.requests), ([], [address]))
        return page

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])
        self.assertEqual(len(self.browser.requests), 1)

    def words(self, selector):
        return self.browser.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def middle(self, selector):
        found = self.browser.run(f"(its => [its.x + its.width / 2, its.y + its.height / 2])("
                                 f"document.querySelector({json.dumps(selector)})"
                                 ".getBoundingClientRect())")
        return found[0], found[1]

    def click(self, selector):
        at = self.middle(selector)
        self.browser.mouse("Pressed", *at)
        self.browser.mouse("Released", *at)

    def now(self, name):
        return int(self.browser.run(f"document.querySelector('[data-name={name}]')"
                                    ".getAttribute('aria-valuenow')"))

    def test_both_themes_and_widths(self):
        backs = {}
        for theme, width in itertools.product(("light", "dark"), WIDTHS):
            page = self.open(theme=theme, width=width)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            back = "getComputedStyle(document.body).backgroundColor"
            backs[theme] = page.run(back)
            self.click("#theme")
            self.assertNotEqual(page.run(back), backs[theme])
            boxes = page.run("[...document.querySelectorAll('.card')].map(its => "
                             "its.getBoundingClientRect().right)")
            self.assertGreater(len(boxes), 8)
            self.assertLessEqual(max(boxes), width)
        self.assertNotEqual(backs["light"], backs["dark"])

    def test_markers_move_and_the_table_follows(self):
        page = self.open()
        self.assertIn("spike", self.words("#changes tbody"))
        self.assertRegex(self.words("#changed"), r"→ 322 MiB at .*: \+2\d\d MiB")
        x, _ = self.middle("[data-name=b] rect:last-of-type")
        y = page.run("document.querySelector('#timeline svg').getBoundingClientRect().top") + 10
        page.drag((x, y), (x + 200, y))
        self.assertGreater(self.now("b"), self.now("a") + 400)
        self.assertNotIn("spike", self.words("#changes tbody"))
        self.assertIn("leaker", self.words("#changes tbody"))
        self.click("#flame [data-at=b]")
        self.assertNotIn("spike", self.words(".flame"))
        self.click("#flame [data-at=peak]")
        self.assertIn("spike 200 MiB", self.words(".flame").replace("\n", " "))

    def test_the_flame_graph_has_call_paths(self):
        """From the outermost function on; a click on one shows what is under it."""
        self.open("paths")
        self.click("#flame [data-at=peak]")
        words = self.words(".flame").replace("\n", " ")
        self.assertRegex(words, r"loads 100 MiB middle 100 MiB.*trains 32 MiB middle 32 MiB "
                                r"middle 32 MiB")
        self.click(".flame button[title^=trains]")
        words = self.words(".flame")
        self.assertIn("trains", words)
        self.assertNotIn("loads", words)

    def test_markers_move_by_keys(self):
        page = self.open()
        columns = page.run("data.slots")
        page.run("document.querySelector('[data-name=a]').focus()")
        at = columns.index(self.now("a"))
        page.key("ArrowRight")
        self.assertEqual(self.now("a"), columns[at + 1])
        page.key("ArrowRight", shift=True)
        self.assertEqual(self.now("a"), columns[at + 11])
        page.key("ArrowLeft")
        self.assertEqual(self.now("a"), columns[at + 10])

    def test_zoom_and_back(self):
        page = self.open()
        ticks = page.run(
            "[...document.querySelectorAll('#timeline svg text')].map(its => its.textContent)")
        x, y = self.middle("#timeline svg")
        page.drag((x + 120, y), (x + 220, y))  # A and B are left of it
        self.assertFalse(page.run("document.querySelector('#all').hidden"))
        self.assertNotEqual(ticks, page.run(
            "[...document.querySelectorAll('#timeline svg text')].map(its => its.textContent)"))
        self.click("#all")
        self.assertTrue(page.run("document.querySelector('#all').hidden"))

    def test_the_reading_at_the_pointer(self):
        page = self.open()
        self.assertIn("the peak", self.words(".reading"))
        x, y = self.middle("#timeline svg")
        page.mouse("Moved", x + 250, y)
        self.assertNotIn("the peak", self.words(".reading"))
        self.assertIn("trace_writer", self.words(".reading"))

    def test_what_is_parked_is_shown_so(self):
        areas = "document.querySelectorAll('.picture path.away').length"
        self.assertEqual(self.open().run(areas), 0)
        self.page("parked")
        page = self.open("parked")
        self.assertEqual(page.run(areas), 1)
        flags = page.run("[...document.querySelectorAll('#timeline .words')].map(its => "
                         "its.textContent).join()")
        self.assertIn("parked: ", flags)
        self.assertNotIn("0 B went back", flags)
        self.assertNotIn("on the host", self.words(".reading"))
        page.mouse("Moved", *self.middle("#timeline svg"))
        self.assertRegex(self.words(".reading"), r"parked\s+on the host\s+128 MiB")
        self.assertRegex(self.words(".reading"), r"held on the device\s+0 B")

    def test_the_block_map_has_moments(self):
        page = self.open()
        label = "document.querySelector('#map canvas').getAttribute('aria-label')"
        pixels = "document.querySelector('#map canvas').toDataURL()"
        self.assertIn("the peak at ", page.run(label))
        before = page.run(pixels)
        page.run("document.querySelector('#map .keys button:last-child').click()")
        self.assertIn("at exit: ", page.run(label))
        self.assertNotEqual(page.run(pixels), before)
        before = page.run(pixels)
        page.run("document.querySelector('#theme').click()")
        self.assertNotEqual(page.run(pixels), before)

    def test_as_a_table_and_by_call_site(self):
        page = self.open()
        self.click("#table-key")
        self.assertIn("trace_writer", self.words("#as-table thead"))
        self.assertIn("322 MiB", self.words("#as-table tbody"))
        self.assertIn("24 MiB went back", self.words("#as-table"))
        self.click("[data-by=site]")
        self.assertIn("weights", self.words("#as-table thead"))
        self.assertIn("weights", self.words(".reading"))
        self.assertEqual(self.words("#by"), "call site")
        self.assertGreater(page.run("document.querySelectorAll('#timeline path').length"), 4)

    def test_lanes_of_other_processes(self):
        self.page("program", "other")
        paths = [os.path.join(self.folder, name) for name in ("program.gct", "other.gct")]
        self.assertEqual(tool("report", *paths, "-o", os.path.join(self.folder, "two.html")).status,
                         0)
        for theme, width in itertools.product(("light", "dark"), WIDTHS):
            page = self.open("two", theme, width)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            boxes = page.run("['#timeline svg', '#lanes'].map(its => document.querySelector(its)"
                             ".getBoundingClientRect()).map(its => [its.left, its.width])")
            self.assertEqual(*boxes)
        page = self.open("two")
        words = "[...document.querySelectorAll('#lanes text')].map(its => its.textContent)"
        told = page.run(words)
        self.assertEqual(sum("PID " in each for each in told), 2)
        self.assertEqual(page.run("document.querySelectorAll('#lanes path').length"), 6)
        self.assertIn("GPU 0 a GPU: at most 1 GiB of 16 MiB held",
                      page.run("document.querySelector('#lanes').getAttribute('aria-label')"))
        x, y = self.middle("#timeline svg")
        page.mouse("Moved", x + 250, y)
        self.assertNotEqual(page.run(words), told)
        paths = "[...document.querySelectorAll('#lanes path')].map(its => its.getAttribute('d'))"
        before = page.run(paths)
        page.drag((x - 40, y), (x + 60, y))
        self.assertNotEqual(page.run(paths), before)

    def test_foreign_words_do_nothing(self):
        writer = os.path.join(self.folder, BAD)
        shutil.copy(WRITER, writer)
        self.page("hostile", "c", writer)
        page = self.open("c")
        self.assertIn("gpucache report: ", page.run("document.title"))
        self.assertEqual(page.run("document.querySelectorAll('img, b[onclick]').length"), 0)
        self.assertIn(BAD, self.words(".reading"))

    def test_nothing(self):
        self.page("nothing")
        self.open("nothing")
