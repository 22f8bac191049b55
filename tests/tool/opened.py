# SPDX-License-Identifier: BSD-2-Clause
"""Pages of reports in Chromium, for tests with the arguments TOOL TRACE_WRITER."""
import json
import pathlib
import unittest

import browser
from report_pages import Pages

WIDTHS = (1400, 800, 390)


@unittest.skipUnless(browser.PROGRAM, "Chromium is not there")
class Opened(Pages):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
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
