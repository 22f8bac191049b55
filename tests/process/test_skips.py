# SPDX-License-Identifier: BSD-2-Clause
"""What skips is seen: by Meson, or in what scripts/test tells at its end. And which programs tests
take for a browser."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS / "tool"))
import browser  # noqa: E402 # pylint: disable=C0413

FILE = """import unittest
class One(unittest.TestCase):
%s
@unittest.skip("for want of a browser")
class Two(unittest.TestCase):
    def test_c(self):
        self.fail()
    def test_d(self):
        self.fail()
class Three(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("for want of root")
    def test_e(self):
        self.fail()
"""
SKIPS = "    def test_a(self):\n        self.skipTest('not here')\n"
PARTS = "    def test_p(self):\n        with self.subTest():\n" \
        "            self.skipTest('no part')\n"
RUNS = "    def test_b(self):\n        pass\n"
FAILS = "    def test_f(self):\n        self.fail()\n"
EXPECTED = f"    @unittest.expectedFailure\n{FAILS}"


class Skips(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "its_tests.py")

    def run_file(self, text, *more):
        self.path.write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, TESTS / "run_tests.py", self.path, *more],
                              capture_output=True, text=True, timeout=60, check=False)

    def test_a_file_whose_tests_all_skip_skips(self):
        for words in (SKIPS, PARTS, SKIPS + PARTS, "    pass"):
            done = self.run_file(FILE % words)
            self.assertEqual((done.returncode, done.stdout), (77, ""), done.stderr)

    def test_the_others_are_told(self):
        told = "skipped in part: 2 tests: for want of a browser\n" \
               "skipped in part: 1 test: for want of root\n"
        for words in (RUNS, EXPECTED):
            done = self.run_file(FILE % words)
            self.assertEqual((done.returncode, done.stdout), (0, told), done.stderr)
        done = self.run_file(FILE % (SKIPS + PARTS + RUNS), "One")
        self.assertEqual((done.returncode, done.stdout), (
            0, "skipped in part: 1 test: no part\nskipped in part: 1 test: not here\n"))

    def test_a_failure_is_one(self):
        for words in (FAILS, RUNS + FAILS, SKIPS + FAILS):
            self.assertEqual(self.run_file(FILE % words).returncode, 1)
        self.assertEqual(self.run_file("import unittest\n").returncode, 5)

    def test_all_logs_are_told(self):
        rows = [{"name": "libgpucache:tool / tool-paths", "stdout": "some\n"
                 "skipped in part: 2 tests: no other Python\nwords\n"},
                {"name": "tool-top"}, {"name": "tool-many", "stdout": "skipped in part\n"}]
        logs = []
        for stage in "gcc", "asan":
            logs.append(self.path.parent / stage / "meson-logs" / "testlog.json")
            logs[-1].parent.mkdir(parents=True)
            logs[-1].write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        done = subprocess.run([sys.executable, TESTS / "skipped.py", *logs, self.path / "none"],
                              capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(done.stdout, "".join(
            f"skipped in part, {stage}: tool-paths: 2 tests: no other Python\n"
            for stage in ("gcc", "asan")))


class Programs(unittest.TestCase):
    def test_a_snap_is_no_browser(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in "snap", "chromium-browser", "google-chrome":
                pathlib.Path(folder, name).write_text("#!/bin/sh\n", encoding="utf-8")
                os.chmod(os.path.join(folder, name), 0o755)
            os.symlink("snap", os.path.join(folder, "chromium"))
            self.assertEqual(browser.find(folder), os.path.join(folder, "chromium-browser"))
            pathlib.Path(folder, "chromium-browser").write_text(
                "#!/bin/sh\nexec /snap/bin/chromium\n", encoding="utf-8")
            self.assertEqual(browser.find(folder), os.path.join(folder, "google-chrome"))
            os.unlink(os.path.join(folder, "google-chrome"))
            self.assertIsNone(browser.find(folder))
