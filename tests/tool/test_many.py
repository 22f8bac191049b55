# SPDX-License-Identifier: BSD-2-Clause
"""Folders with thousands of files, clocks that jump, and folders that cannot be written. The tool
gives one clear sentence and the right exit code, in time."""
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from fake import TOOL, map_page, pool, put_text, tool, well
from test_page import ROOT, Case

from gpucache import page as page_module
from gpucache import process, state, tables

MANY = 10_000
# One file after the other, with a wait for each, takes minutes.
LATE_S = 60
ELSEWHERE = 12345  # a pid namespace
YEARS_NS = 10 * 365 * 86400 * 10**9


class Files(Case):
    def put(self, count, head=b"", folder=None):
        """So many files of processes in another pid namespace, that begin with this."""
        for pid in range(count):
            name = f"{ELSEWHERE}-{100 + pid}-1{tables.PAGE_SUFFIX}"
            with open(os.path.join(folder or self.folder, name), "wb") as file:
                file.write(head)
                file.truncate(tables.PAGE_BYTES)

    def head_of(self, sequence=None, **more):
        page = self.page(pid=7, namespace=ELSEWHERE, **more)
        if sequence is not None:
            page.put("sequence", sequence)
        head = pathlib.Path(page.path).read_bytes()[:4096]
        os.unlink(page.path)
        return head

    def timed(self, *words):
        start = time.monotonic()
        done = tool(*words)
        took = time.monotonic() - start
        print(f"{self.id().rpartition('.')[2]}: {took:.1f} s", file=sys.stderr)
        self.assertLess(took, LATE_S)
        return done


class Many(Files):
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


@unittest.skipUnless(ROOT, "needs root, who alone looks at others")
class Hostile(Files):
    """A user who makes --all-users slow harms no other user: what is read of one is bounded."""

    def setUp(self):
        super().setUp()
        self.place = self.folder + "/place"
        os.mkdir(self.place, 0o1777)
        page_module.PLACES = (self.place,)

    def user(self, uid):
        folder = f"{self.place}/gpucache-{uid}"
        os.mkdir(folder, 0o700)
        os.chown(folder, uid, uid)
        return folder

    def give(self, folder):
        """Its files belong to its user."""
        uid = os.stat(folder).st_uid
        for name in os.listdir(folder):
            os.lchown(os.path.join(folder, name), uid, uid)

    def honest(self, uid=23456):
        """A page of this process that belongs to somebody else."""
        page = self.page(uid=uid, folder=self.user(uid))
        os.chown(page.path, uid, uid)
        return page

    def everybody(self, verb="ps", *words):
        return self.timed(verb, "--all-users", *words)

    def test_many_pages_of_one_user_leave_the_others_theirs(self):
        folder = self.user(12345)
        self.put(300, self.head_of(), folder)
        sleeper, its = self.sleeper()
        running = self.page(uid=12345, **its, folder=folder)
        map_page(sleeper, running)
        self.give(folder)
        honest = self.honest()
        with mock.patch.object(page_module, "PAGES_EACH", 50):
            done = self.everybody("ps", "--json")
        self.assertEqual(done.status, 1)
        self.assertEqual(done.err, f"gpucache: {folder}: 251 files are left out: at most 50 pages "
                                   "of one user are read\n")
        found = [p["pid"] for p in done.json["processes"]]
        self.assertEqual((len(found), found[:2]), (51, sorted([honest.pid, sleeper.pid])))

    def test_names_without_end_are_not_all_read(self):
        folder = self.user(12345)
        self.put(300, self.head_of(), folder)
        self.give(folder)
        self.honest()
        with mock.patch.object(page_module, "NAMES_EACH", 100):
            done = self.everybody()
        self.says(done, 1, f"{folder}: it has more than 100 names; the rest is left out")
        self.assertIn(str(os.getpid()), done.out)

    def test_folders_that_are_not_their_users_are_one_sentence(self):
        for uid in range(31000, 31300):
            os.mkdir(f"{self.place}/gpucache-{uid}", 0o700)
            os.chown(f"{self.place}/gpucache-{uid}", 12345, 12345)
        for name in "99999999999", "0012345", "1" * 200:  # no user has such a number
            os.mkdir(f"{self.place}/gpucache-{name}", 0o700)
        self.honest()
        with mock.patch.object(process, "user_name", side_effect=process.user_name) as named:
            done = self.everybody()
        self.assertLess(named.call_count, 20)  # a directory service may take long for each
        self.says(done, 1, f"{self.place}: 300 folders are not used; of the first: it belongs to "
                  "12345, not to 31000")
        self.assertIn(str(os.getpid()), done.out)

    def test_folders_without_end_leave_the_first_users_theirs(self):
        """Somebody may have a range of user ids; those of people are the lowest."""
        for uid in range(100000, 100060):
            self.user(uid)
        self.honest()
        with mock.patch.object(page_module, "FOLDERS_MAX", 50):
            done = self.everybody()
        self.says(done, 1, f"{self.place}: 11 folders are left out: at most 50 are read")
        self.assertIn(str(os.getpid()), done.out)

    def test_odd_files_cost_nothing(self):
        folder = self.user(12345)
        for number in range(200):
            path = f"{folder}/{ELSEWHERE}-{100 + number}-1{tables.PAGE_SUFFIX}"
            if number % 4 == 0:
                os.mkfifo(path)
            elif number % 4 == 1:
                os.symlink("/dev/zero", path)
            elif number % 4 == 2:
                os.mkdir(path)
            else:
                with open(path, "wb") as file:
                    file.truncate(1 << 34)
        self.give(folder)
        self.honest()
        done = self.everybody()
        self.assertRegex(done.err, rf"^gpucache: {folder}: 200 files are not used; .*\n$")
        self.assertIn(str(os.getpid()), done.out)

    def test_torn_pages_of_one_user_use_up_his_own_patience(self):
        folder = self.user(12345)
        self.put(200, self.head_of(sequence=7), folder)
        self.give(folder)
        honest = self.honest()
        ended = threading.Event()

        def write():
            while not ended.is_set():
                honest.put("sequence", honest.sequence + 1)
                time.sleep(0.02)
                honest.put("sequence", honest.sequence + 2)
                time.sleep(0.001)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            done = self.everybody("ps", "--json")
        finally:
            ended.set()
            writer.join()
        notes = {p["pid"]: p["note"] for p in done.json["processes"]}
        self.assertEqual(notes[os.getpid()], "")

    def test_many_pages_of_one_process_need_one_look_at_its_mappings(self):
        namespace, pid, start = process.identity(os.getpid())
        folder = self.user(12345)
        for number in *range(300), namespace:
            put_text(f"{folder}/{number}-{pid}-{start}{tables.PAGE_SUFFIX}")
        self.give(folder)
        with mock.patch.object(process, "namespace", return_value=None), \
                mock.patch.object(process, "maps", side_effect=process.maps) as maps, \
                mock.patch.object(process, "mapped", side_effect=process.mapped) as mapped:
            self.everybody()
        self.assertLessEqual(maps.call_count + mapped.call_count, 1)

    def test_a_page_belongs_to_whom_its_folder_does(self):
        """Whatever it says."""
        folder = self.user(12345)
        for uid in 0, 54321:
            self.page(namespace=ELSEWHERE, pid=7 + uid, uid=uid, folder=folder)
        self.give(folder)
        found = self.everybody("ps", "--json").json["processes"]
        self.assertEqual([p["user"] for p in found], ["12345"] * 2)

    def test_a_page_with_pools_without_end(self):
        folder = self.user(12345)
        pools = [{"uuid": str(number), "device": number} for number in range(1500)]
        self.page({"pools": [pool()] + pools}, pid=7, namespace=ELSEWHERE, uid=12345, folder=folder)
        self.give(folder)
        found, = self.everybody("ps", "--json").json["processes"]
        self.assertEqual(len(found["gpus"]), state.POOLS_MAX)
        self.assertEqual(found["gpus"][0]["idle_bytes"], 156 << 20)

    def test_a_command_without_end_is_cut(self):
        sleeper, its = self.sleeper(*["x" * 100000] * 15)
        folder = self.user(12345)
        page = self.page(uid=12345, **its, folder=folder)
        map_page(sleeper, page)
        self.give(folder)
        found, = self.everybody("ps", "--json").json["processes"]
        self.assertLess(len(found["command"]), 20000)
        self.assertTrue(found["command"].endswith("xxx..."), found["command"][-9:])


class Clocks(Case):
    def served(self):
        def answer(words):
            return tables.PAGE_REPLY_DONE, 0, {"gpus": [], "ns": 1, "frameworks": []}
        return self.page(answer=answer)

    def all_is_well(self, page):
        done = well("ps", "--json")
        (found,) = done.json["processes"]
        self.assertEqual((found["pid"], found["status"]), (os.getpid(), "running"))
        self.assertGreaterEqual(found["age_ns"], 0)
        self.assertTrue(os.path.exists(page.path))
        for words in ("stat", os.getpid()), ("flush", os.getpid()):
            done = well(*words)

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
