# SPDX-License-Identifier: BSD-2-Clause
"""Pages of `gpucache report` of traces that the library's recorder writes, for tests with the
arguments TOOL TRACE_WRITER."""
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from fake import tool

from gpucache import report

WRITER = os.path.realpath(sys.argv[2])
BAD = "<img src=x onerror=1>"


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
