# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report -o FILE.html: what the page does in Chromium."""
import itertools
import json
import os
import pathlib
import re
import shutil

from fake import tool
from opened import Opened, WIDTHS
from report_pages import BAD, WRITER


class Played(Opened):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.page("program")
        cls.page("paths")

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

    def test_on_paper_it_is_light_and_has_no_keys(self):
        """Whatever theme is preferred, or was chosen by the key."""
        back = "getComputedStyle(document.body).backgroundColor"
        keys = "[...document.querySelectorAll('button.chip')].filter(" \
               "its => its.checkVisibility()).length"
        light = self.open().run(back)
        for theme, is_chosen in itertools.product(("light", "dark"), (False, True)):
            page = self.open(theme=theme)
            if is_chosen:
                self.click("#theme")
            self.assertGreater(page.run(keys), 5)
            self.assertEqual(page.run(back) == light, (theme == "light") != is_chosen)
            page.prefer(theme, "print")
            self.assertEqual((page.run(keys), page.run(back)), (0, light), (theme, is_chosen))

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

    def test_the_words_of_flags_that_matter_most_are_there(self):
        """Those of the peak and of an allocation that failed, however much happened before them,
        and no words lie on others."""
        page, data, _ = self.page("program")
        at = data["at"][-1] * 6 // 10
        data["marks"] = [[at - at // 3 * (12 - i) // 12, "flush", f"a flush of the time number {i}"]
                         for i in range(12)] + [[at, "oom", "out of memory: 4 GiB more"]]
        text = re.sub(r'"marks":\[.*?\]\](?=,|})', lambda _: '"marks":' + json.dumps(data["marks"]),
                      page, count=1)
        pathlib.Path(self.folder, "crowded.html").write_text(text, encoding="utf-8")
        boxes = self.open("crowded").run(
            "[...document.querySelectorAll('#timeline .words')].map(its => [its.textContent, "
            "its.getBBox().x, its.getBBox().x + its.getBBox().width, its.getAttribute('y')])")
        words = [box[0] for box in boxes]
        self.assertTrue(any(its.startswith("peak: ") for its in words), words)
        self.assertIn("out of memory: 4 GiB more", words)
        self.assertTrue(any(its.startswith("a flush") for its in words), words)
        for one, other in itertools.combinations(boxes, 2):
            self.assertTrue(one[3] != other[3] or one[2] <= other[1] or other[2] <= one[1],
                            (one, other))

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
