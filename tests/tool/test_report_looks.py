# SPDX-License-Identifier: BSD-2-Clause
"""gpucache report -o FILE.html: what the page looks like in Chromium, beside what is stored, by
section. PICTURES=FOLDER in the environment stores it anew, and puts the pictures in FOLDER: look at
them."""
import base64
import itertools
import json
import lzma
import os
import pathlib
import time
import unittest

from fake import Scratch, put_text, tool

import browser
import report_scene

STORED = pathlib.Path(__file__).with_name("golden") / "report.xz"
SQUARE = 8  # pixels
# The page tells when the trace began.
os.environ["TZ"] = "UTC"
time.tzset()
SECTIONS = ["header", "h1", ".lead", ".cards", "#timeline", "#changes", "#flame", "#beside",
            ".list", ".list + .list", "#map", "#what-if", "footer"]
# The fonts of the pictures, how they are drawn on each machine, and what text takes in them.
FOLDERS = sorted({str(path.parent) for path in pathlib.Path("/usr/share/fonts").glob(
    "**/DejaVuSans*.ttf")})
FONTCONFIG = """<!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
%s<cachedir>%s</cachedir>
<match target="pattern"><edit name="antialias"><bool>true</bool></edit>
<edit name="hinting"><bool>false</bool></edit>
<edit name="hintstyle"><const>hintnone</const></edit>
<edit name="rgba"><const>none</const></edit></match></fontconfig>"""
FONTS = """
    const fonts = new CSSStyleSheet(), wrong = new CSSStyleSheet();
    fonts.replaceSync("* { font-family: 'DejaVu Sans' !important; }" +
                      "code, .mono { font-family: 'DejaVu Sans Mono' !important; }");
    document.adoptedStyleSheets = [fonts, wrong];
    ["", "bold ", "Mono"].flatMap(kind => [..."Mi."].map(sign => {
        const its = document.createElement("canvas").getContext("2d");
        its.font = kind === "Mono" ? "14px 'DejaVu Sans Mono'" : `${kind}14px 'DejaVu Sans'`;
        return Math.round(its.measureText(sign.repeat(100)).width);
    }))"""
# Faults of a page: the section, and the style that has the look of it.
AREAS = "#timeline svg:first-child > path"
WRONG = {
    "no areas": ("#timeline", AREAS + " { display: none }"),
    "areas of half the height": ("#timeline", AREAS + " { transform: scaleY(.5);"
                                 "transform-origin: 0 316px; transform-box: view-box }"),
    "no axes": ("#timeline", "#timeline svg:first-child > text, #timeline .grid { display: none }"),
    "no lines of the axes": ("#timeline", "#timeline .grid { display: none }"),
    "no markers": ("#timeline", ".marker, .between { display: none }"),
    "no flags": ("#timeline", "#timeline g > .flag, #timeline .words { display: none }"),
    "no words of flags": ("#timeline", "#timeline .words { display: none }"),
    "empty lanes": ("#timeline", "#lanes path { display: none }"),
    "no capacity": ("#timeline", ".capacity { display: none }"),
    "no figures beside": ("#timeline", ".reading .n { visibility: hidden }"),
    "all libraries of one colour": ("#timeline", ":root { --c1: var(--c0); --c2: var(--c0) }"),
    "what changed is not filled": ("#changes", "#changes tbody { display: none }"),
    "no meters": ("#changes", ".meter { visibility: hidden }"),
    "no words in the cards": (".cards", ".cards p { visibility: hidden }"),
    "no bar in the first card": (".cards", ".bar { visibility: hidden }"),
    "no call paths": ("#flame", ".flame button:nth-child(n + 3) { display: none }"),
    "no block map": ("#map", "#map canvas { visibility: hidden }"),
    "a row is missing": ("#what-if", "#what-if tr:last-child { visibility: hidden }"),
    "no link between names and colours": (".list", ".dot { visibility: hidden }"),
    "no headline": ("h1", "h1 { visibility: hidden }"),
}
VARIANTS = [*itertools.product(("light", "dark"), (1400, 800))]
CONTROLLED = VARIANTS[0], VARIANTS[3]
# How much a colour may differ, of 255. Other versions and builds of Chromium gave 0, lines of the
# axes that are missing 4.
LIKE = 2


def difference(one, other):
    """The most of any square's colour. Of other sizes: the most there is."""
    return max(abs(a - b) for a, b in zip(one[2], other[2])) if one[:2] == other[:2] else 255


def pack(fonts, found):
    """A line of JSON says what is in the bytes behind it."""
    told = {f"{theme}-{width}": {name: its[:2] for name, its in sections.items()}
            for (theme, width), sections in found.items()}
    return lzma.compress(json.dumps([fonts, told]).encode() + b"\n" + b"".join(
        its[2] for sections in found.values() for its in sections.values()))


def unpack(data):
    head, _, data = lzma.decompress(data).partition(b"\n")
    fonts, told = json.loads(head)
    found, at = {}, 0
    for variant, sections in told.items():
        theme, _, width = variant.partition("-")
        its = found[theme, int(width)] = {}
        for name, (columns, rows) in sections.items():
            its[name] = columns, rows, data[at:at + 3 * columns * rows]
            at += 3 * columns * rows
    return fonts, found


@unittest.skipUnless(browser.PROGRAM, "no Chromium")
@unittest.skipUnless(FOLDERS, "no DejaVu fonts")
class Looks(Scratch):
    def setUp(self):
        super().setUp()
        page = os.path.join(self.folder, "page.html")
        done = tool("report", *report_scene.write(self.folder), "-o", page)
        self.assertEqual(done.status, 0, done.err)
        fonts = os.path.join(self.folder, "fonts.conf")
        put_text(fonts, FONTCONFIG % ("".join(f"<dir>{path}</dir>" for path in FOLDERS),
                                      self.folder))
        self.browser = browser.Browser(FONTCONFIG_FILE=fonts)
        self.addCleanup(self.browser.__exit__)
        self.browser.open(pathlib.Path(page).as_uri())
        self.fonts = self.browser.run(FONTS)

    def prefer(self, theme, width):
        self.browser.prefer(theme)
        self.browser.resize(width, 900)
        self.browser.run("new Promise(done => setTimeout(done, 300))")

    def store(self, folder):
        found = {}
        for theme, width in VARIANTS:
            self.prefer(theme, width)
            found[theme, width] = self.browser.looks(SECTIONS, SQUARE)
            pathlib.Path(folder, f"{theme}-{width}.png").write_bytes(
                base64.b64decode(self.browser.picture()))
        STORED.write_bytes(pack(self.fonts, found))

    def test_it_looks_as_stored(self):
        if os.environ.get("PICTURES"):
            self.store(os.environ["PICTURES"])
        fonts, stored = unpack(STORED.read_bytes())
        if fonts != self.fonts:
            self.skipTest("the stored pictures have other DejaVu fonts")
        for variant in VARIANTS:
            self.prefer(*variant)
            for name, its in self.browser.looks(SECTIONS, SQUARE).items():
                self.assertLessEqual(difference(its, stored[variant][name]), LIKE,
                                     (variant, name))
            for what, (name, style) in WRONG.items() if variant in CONTROLLED else ():
                self.browser.run(f"wrong.replaceSync({json.dumps(style)})")
                its = self.browser.looks([name], SQUARE)[name]
                self.assertGreater(difference(its, stored[variant][name]), LIKE, (variant, what))
            self.browser.run("wrong.replaceSync('')")
        self.assertEqual(self.browser.complaints, [])
