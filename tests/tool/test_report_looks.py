# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report -o FILE.html: what the page looks like, where Chromium is, beside stored pictures
of a stored trace. PICTURES=new in the environment stores new ones: look at them."""
import itertools
import json
import lzma
import os
import pathlib
import unittest

from fake import Scratch, tool

import browser

TRACE, STORED = (pathlib.Path(__file__).with_name("golden") / name
                 for name in ("trace-1-paths.gct.xz", "report.xz"))
PART, LIKE = 0.125, 0.25  # the size of the pictures; how much colours may differ, in the mean
# What text takes, which differs from machine to machine.
FONTS = """[...'Mi.'].map(sign => {
    const its = document.createElement('canvas').getContext('2d');
    its.font = getComputedStyle(document.body).font;
    return its.measureText(sign.repeat(100)).width;
}).join(' ')"""


@unittest.skipUnless(browser.PROGRAM, "Chromium is not there")
class Looks(Scratch):
    def test_it_looks_as_stored(self):
        path = os.path.join(self.folder, "trace.gct")
        pathlib.Path(path).write_bytes(lzma.decompress(TRACE.read_bytes()))
        self.assertEqual(tool("report", path, "-o", path + ".html").status, 0)
        with browser.Browser() as page:
            page.open(pathlib.Path(path + ".html").as_uri())
            fonts, taken = page.run(FONTS), {}
            for theme, width in itertools.product(("light", "dark"), (1400, 800)):
                page.prefer(theme)
                page.resize(width, 900)
                page.run("new Promise(done => setTimeout(done, 300))")
                name = f"{theme}-{width}"
                taken[name] = page.picture(PART)
            page.run("document.querySelector('.card:nth-of-type(3)').remove()")
            without = page.picture(PART)
            page.open("about:blank")
            if os.environ.get("PICTURES") == "new":
                STORED.write_bytes(lzma.compress(json.dumps([fonts, taken]).encode()))
            its_fonts, stored = json.loads(lzma.decompress(STORED.read_bytes()))
            if its_fonts != fonts:
                self.skipTest("the stored pictures have other fonts")
            for each, data in taken.items():
                self.assertLess(page.difference(data, stored[each]), LIKE, each)
            self.assertGreater(page.difference(without, stored[name]), LIKE)
