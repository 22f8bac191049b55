#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Parked memory goes into a file in a folder."""
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from parking import DONE, MIB, REFUSED, T, Base

# Runs a program that has no right of root's to the files of others.
PLAIN = (sys.executable, "-c", """
import ctypes, os, sys
PR_CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2
for right in DAC_OVERRIDE, DAC_READ_SEARCH:
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
""")


class Folder(Base):
    """Device memory goes into a file in a folder."""

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("PARK_TEST_FOLDER"))
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def files(self, p):
        """Mapped ones of the folder."""
        with open(f"/proc/{p.pid}/maps", encoding="utf8") as maps:
            return [line for line in maps if self.folder in line]

    def descriptors(self, p):
        """Those of the folder in the process's table."""
        fds = f"/proc/{p.pid}/fd"
        return [fd for fd in os.listdir(fds) if self.folder in os.readlink(f"{fds}/{fd}")]

    def holders(self):
        """The processes that have a file of the folder, and how many bytes of them are mapped."""
        found = {}
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf8",
                                                    errors="replace") as maps:
                ends = [line.split()[0].split("-") for line in maps if self.folder in line]
                if ends:
                    found[int(pid)] = sum(int(to, 16) - int(at, 16) for at, to in ends)
            with contextlib.suppress(OSError):
                fds = f"/proc/{pid}/fd"
                if any(self.folder in os.readlink(f"{fds}/{fd}") for fd in os.listdir(fds)):
                    found.setdefault(int(pid), 0)
        return found

    def test_bytes_are_in_a_file_that_nobody_sees(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 32 20")
        rss = int(p.do("rss"))
        _, reply = self.park(p, f"park to={self.folder}")
        self.assertEqual(reply["to"], self.folder)
        self.assertGreater(reply["room_ns"] + reply["copy_ns"], 0)
        self.assertLess(reply["room_ns"] + reply["copy_ns"], reply["ns"])
        self.assertGreaterEqual(self.free_mib(), nothing)
        self.assertEqual(os.listdir(self.folder), [])
        self.assertEqual(self.descriptors(p), [])
        self.assertIn("(deleted)", self.files(p)[0])
        self.assertLess(int(p.do("rss")), rss + 80 * 1024)  # staging memory, but no bytes
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(self.files(p), [])
        self.assertEqual(p.do("copies"), "right")

    def test_the_option_says_where(self):
        p = self.start("make 8 20", GPUCACHE_PARK_TO=self.folder)
        self.assertEqual(self.park(p)[1]["to"], self.folder)
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(self.park(p, "park to=host")[1]["to"], "host")
        self.assertEqual(self.files(p), [])
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.ask("set PARK_TO=host")[0], DONE)
        self.assertEqual(self.park(p)[1]["to"], "host")
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.ask("set PARK_TO=tmp")[0], T.PAGE_REPLY_BAD)

    def test_what_joins_goes_to_the_same_place(self):
        p = self.start("make 16 30")
        self.park(p, f"park keep={24 * MIB} to={self.folder}")
        self.assertEqual(self.park(p, "park to=host")[1]["to"], self.folder)
        self.assertEqual(p.do("check"), "right")

    def test_too_many_parts_are_refused_and_none_is_lost(self):
        """Each park that joins has a file of its own."""
        p = self.start("make 4 20")
        code, parts = DONE, 0
        while code == DONE and parts < 100:
            code, value, reply = p.ask(f"park to={self.folder}")
            parts += value > 0
            p.do("take 8")  # which is here
        self.assertEqual((code, reply.get("why")),
                         (REFUSED, "it was parked in too many parts: wake it first"), reply)
        self.assertGreater(parts, 40)
        before = p.state()["pools"][0]["away_bytes"]
        self.park(p, f"park to={self.folder}", REFUSED)
        self.assertEqual(p.state()["pools"][0]["away_bytes"], before)
        self.assertEqual(p.do("check"), "right")
        self.wait_for(lambda: not self.files(p), "parts are left")
        self.park(p, f"park to={self.folder}")
        self.assertEqual(p.do("check"), "right")

    def test_a_folder_that_does_not_serve_is_refused(self):
        p = self.start("make 8 20")
        for place, why in (("tmp", "tmp is no absolute name"), ("/no/such", "/no/such is missing"),
                           ("/dev/null", "/dev/null is no folder"), ("/proc", "/proc")):
            _, reply = self.park(p, f"park to={place}", REFUSED)
            self.assertIn(why, reply["why"])
        self.assertEqual(p.ask("park to=/" + "x" * 300)[0], T.PAGE_REPLY_BAD)
        if os.geteuid() == 0:
            os.chown(self.folder, 12345, 12345)
            _, reply = self.park(p, f"park to={self.folder}", REFUSED)
            self.assertIn("belongs to another user", reply["why"])
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.state()["counters"]["num_wakes"], 0)

    def test_a_folder_that_the_process_may_not_reach_or_fill_is_refused(self):
        p = self.start("make 8 20", prefix=PLAIN)
        inside = os.path.join(self.folder, "inside")
        os.mkdir(inside)
        try:
            for folder, mode, words in ((self.folder, 0o000, f"{inside} is out of reach"),
                                        (inside, 0o500, f"the process may not write to {inside}")):
                if os.geteuid() == 0:
                    os.chown(self.folder, 12345, 12345)
                os.chmod(folder, mode)
                _, reply = self.park(p, f"park to={inside}", REFUSED)
                self.assertEqual(reply["why"], words)
                self.assertNotIn("to", reply)
                self.assertEqual(p.park_fields()["away_bytes"], 0)
                self.assertEqual(p.do("check"), "right")
                os.chmod(folder, 0o755)
        finally:
            os.chmod(self.folder, 0o755)
        self.park(p, f"park to={inside}")
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(os.listdir(inside), [])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare") and not subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/mnt"],
        stderr=subprocess.DEVNULL).returncode, "no mount namespaces here")
    def test_a_folder_on_a_read_only_mount_is_refused(self):
        p = self.start("make 8 20", prefix=(
            "unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"',
            self.folder))
        _, reply = self.park(p, f"park to={self.folder}", REFUSED)
        self.assertEqual(reply["why"], f"the process may not write to {self.folder}")
        self.assertEqual(p.do("check"), "right")

    def test_too_little_room_changes_nothing(self):
        """A limit on the size of a file, in place of a full disk."""
        p = self.start("make 4 30")
        for mib in range(100):
            resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (mib * MIB, -1))
            code, _, reply = p.ask(f"park to={self.folder}")
            self.assertEqual(os.listdir(self.folder), [])
            if code == DONE:
                break
            self.assertEqual(code, REFUSED)
            self.assertIn("may not write a file of", reply["why"])
            self.assertNotIn("to", reply)
            self.assertEqual(self.files(p), [])
            self.assertEqual(p.do("check" if mib % 5 else "copies"), "right")
        self.assertGreater(mib, 15)
        self.assertEqual(p.do("check"), "right")

    def test_a_file_that_was_cut_off_is_an_error_and_a_later_try_is_right(self):
        p = self.start("make 8 20", GPUCACHE_PARK_WAIT="40s")
        self.park(p, f"park to={self.folder}")
        p.do(f"cut {self.folder}")
        begun = time.monotonic()
        self.assertEqual(p.do("peek"), "304")
        self.assertEqual(p.do("peek"), "304")
        self.assertLess(time.monotonic(), begun + 40)  # it waits for nothing
        code, _, reply = p.ask("wake")
        self.assertEqual(code, REFUSED)
        self.assertIn(f"what went to {self.folder} cannot be read", reply["why"])
        self.assertTrue(p.state()["pools"][0]["away_bytes"])
        p.do("mend")
        self.assertEqual(p.do("peek"), "0")
        self.assertEqual(p.do("check"), "right")

    def test_bytes_that_a_disk_has_lost_are_an_error_as_long_as_they_are_needed(self):
        """The kernel tells it once. What it gives afterwards are other bytes."""
        for gives_up in "drop", "reset":
            with self.subTest(gives_up):
                p = self.start("make 8 20", GPUCACHE_PARK_WAIT="40s")
                self.park(p, f"park to={self.folder}")
                p.do("lose")
                begun = time.monotonic()
                self.assertEqual([p.do("peek"), p.do("peek")], ["304", "304"])
                self.assertLess(time.monotonic(), begun + 40)  # it waits for nothing
                code, _, reply = p.ask("wake")
                self.assertEqual(code, REFUSED)
                self.assertIn(f"what went to {self.folder} cannot be read", reply["why"])
                self.assertTrue(p.state()["pools"][0]["away_bytes"])
                p.do(gives_up)
                self.wake(p)
                self.assertEqual(self.files(p), [])
                self.assertEqual(p.do("make 8 20", "check"), "right")
                self.park(p, f"park to={self.folder}")
                self.assertEqual(p.do("check"), "right")

    def test_a_file_that_is_cut_off_meanwhile_refuses(self):
        p = self.start("make 16 60")
        why = ""
        for _ in range(10):
            p.talker.send(f"cut {self.folder}")
            code, _, reply = p.ask(f"park to={self.folder}")
            self.assertEqual(p.talker.read(), "done")
            if code == DONE:  # the file was full before
                p.do("mend", "check")
                continue
            self.assertEqual(code, REFUSED)
            why = reply["why"]
            break
        self.assertIn(f"the file in {self.folder} cannot be written", why)
        p.do("forget")
        self.assertEqual(self.files(p), [])
        self.assertEqual(p.do("check"), "right")
        self.park(p, f"park to={self.folder}")
        self.assertEqual(p.do("check"), "right")

    def test_who_closes_all_descriptors_wakes(self):
        p = self.start("make 8 20")
        for place in self.folder, "host":
            self.park(p, f"park to={place}")
            p.do("close")
            self.assertEqual(p.do("check"), "right")

    def test_a_kill_leaves_nothing(self):
        p = self.start("make 32 40")
        self.park(p, f"park to={self.folder}")
        (holder, size), = self.holders().items()  # the file has no name: it ends with them
        self.assertEqual(holder, p.pid)
        self.assertGreater(size, 100 * MIB)
        self.assertEqual(os.listdir(self.folder), [])
        p.talker.end()
        self.wait_for(lambda: not self.holders(), "the disk is full of it")
        self.assertEqual(os.listdir(self.folder), [])

    def test_threads_work_on(self):
        p = self.start("make 8 20", "work 4", GPUCACHE_PARK_TO=self.folder)
        self.assertEqual(self.parks_of_one_at_work(p, 3, 60), 3)
