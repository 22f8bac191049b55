# SPDX-License-Identifier: BSD-2-Clause
"""Folders with thousands of files, clocks that jump, and folders that cannot be written: one clear
sentence, the right exit code, and an answer in time.

test_many.py TOOL"""
import os
import shutil
import subprocess
import sys
import time
import unittest
from unittest import mock

from fake import TOOL, tool
from test_page import Case

from gpucache import tables

MANY = 10_000
# One file after the other, with a wait for each, takes minutes.
LATE_S = 60
ELSEWHERE = 12345  # a pid namespace
YEARS_NS = 10 * 365 * 86400 * 10**9


class Many(Case):
    def put(self, count, head=b""):
        """So many files of processes in another pid namespace, that begin with this."""
        for pid in range(count):
            name = f"{ELSEWHERE}-{100 + pid}-1{tables.PAGE_SUFFIX}"
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(head)
                file.truncate(tables.PAGE_BYTES)

    def head_of(self, sequence=None, **more):
        page = self.page(pid=7, namespace=ELSEWHERE, **more)
        if sequence is not None:
            page.put("sequence", sequence)
        with open(page.path, "rb") as file:
            head = file.read(4096)
        os.unlink(page.path)
        return head

    def timed(self, *words):
        start = time.monotonic()
        done = tool(*words)
        took = time.monotonic() - start
        print(f"{self.id().rpartition('.')[2]}: {took:.1f} s", file=sys.stderr)
        self.assertLess(took, LATE_S)
        return done

    def test_broken_files_are_one_sentence(self):
        self.put(MANY)
        mine = self.page()
        done = self.timed("ps")
        self.says(done, 1, f"{self.folder}: {MANY:,} files are not used; of the first: it is no "
                  "page of libgpucache")
        self.assertIn(str(mine.pid), done.out)

    def test_a_few_broken_files_are_named(self):
        self.put(3)
        self.assertEqual(tool("ps").err.count(" is not used: it is no page of libgpucache"), 3)

    def test_old_pages_of_another_namespace_go_together(self):
        self.put(MANY // 2, self.head_of(age_s=90000))
        done = self.timed("ps")
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertEqual(os.listdir(self.folder), [])

    def test_torn_pages_share_one_wait(self):
        self.put(300, self.head_of(sequence=7))
        done = self.timed("ps")
        self.assertEqual(done.status, 0)
        self.assertEqual(done.out.count("while it wrote its page"), 300)


class Clocks(Case):
    def served(self):
        def answer(words):
            return tables.PAGE_REPLY_DONE, 0, {"gpus": [], "ns": 1, "frameworks": []}
        return self.page(answer=answer)

    def all_is_well(self, page):
        done = tool("ps", "--json")
        self.assertEqual((done.status, done.err), (0, ""))
        (found,) = done.json["processes"]
        self.assertEqual((found["pid"], found["status"]), (os.getpid(), "running"))
        self.assertGreaterEqual(found["age_ns"], 0)
        self.assertTrue(os.path.exists(page.path))
        for words in ("stat", os.getpid()), ("flush", os.getpid()):
            done = tool(*words)
            self.assertEqual((done.status, done.err), (0, ""), words)

    def test_the_time_of_day_jumps(self):
        page = self.served()
        now = time.time_ns
        for by in YEARS_NS, -YEARS_NS, -now():
            with mock.patch("time.time_ns", lambda by=by: max(0, now() + by)):
                self.all_is_well(page)

    def test_the_page_is_of_another_boot(self):
        """The time since the boot is less, or much more, than the page says."""
        page = self.served()
        now = time.monotonic_ns
        for by in -now() + 1, YEARS_NS:
            with mock.patch("time.monotonic_ns", lambda by=by: now() + by):
                self.all_is_well(page)

    def test_a_page_from_the_future_of_an_ended_process_goes(self):
        ended = self.page(pid=4194303, start=1, age_s=-YEARS_NS // 10**9)
        self.assertEqual(self.pids(), [])
        self.assertFalse(os.path.exists(ended.path))


READ_ONLY = """
mount -t tmpfs tmpfs "$1" && cp "$2"/* "$1" && chmod 700 "$1" && mount -o remount,ro "$1" && shift 2
exec "$@"
"""


class Folders(Case):
    def test_a_folder_that_cannot_be_written(self):
        inside = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]
        place, pages = self.folder + "/place", self.folder + "/pages"
        os.mkdir(place)
        os.mkdir(pages)
        if shutil.which("unshare") is None or subprocess.run(
                ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", place], check=False,
                capture_output=True).returncode:
            self.skipTest("no mounts of its own here (unshare --mount)")
        mine = self.page()
        ended = self.page(pid=4194303, start=1, age_s=3600)
        for page in mine, ended:
            shutil.copy(page.path, pages)

        def run(*words):
            return subprocess.run([*inside, place, pages, sys.executable, TOOL, *map(str, words)],
                                  env={**os.environ, "GPUCACHE_DIR": place}, text=True,
                                  capture_output=True, check=False)
        done = run("ps")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = run("stat", 4194303)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("flush", os.getpid()), ("set", os.getpid(), "MAX_IDLE=1G"):
            done = run(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn("read-only file system", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
