# SPDX-License-Identifier: BSD-2-Clause
"""How requests go: the slots of a page, between many askers, and with a process that does not
answer."""
import os
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

from fake import TOOL, map_page, tool, wait_for
from test_page import Case

from gpucache import ask as ask_module
from gpucache import page as page_module
from gpucache import tables

DONE = tables.PAGE_REPLY_DONE
SLOTS = [tables.PAGE["slots"][0] + i * tables.PAGE_SLOT_BYTES for i in range(tables.PAGE_SLOTS)]


class Slots(Case):
    def test_a_process_that_does_not_answer(self):
        self.page(answer=lambda words: None)
        started = time.monotonic()
        with unittest.mock.patch("gpucache.flush.MARGIN_S", 0.2):
            done = tool("flush", os.getpid(), "--wait", "100ms")
        self.says(done, 1, f"PID {os.getpid()}: it has not answered within 0.3 s")
        self.assertGreaterEqual(time.monotonic() - started, 0.3)

    def test_a_process_that_ends_before_it_answers_is_told_so(self):
        sleeper, its = self.sleeper()
        page = self.page(**its)
        map_page(sleeper, page)

        def numbers():
            return [page.get("ask_sequence", tables.PAGE_SLOT, start) for start in SLOTS]

        def kill():  # once it is asked
            wait_for(lambda: numbers() != before)
            sleeper.kill()
        before, killer = numbers(), threading.Thread(target=kill)
        killer.start()
        self.says(tool("flush", sleeper.pid), 1, f"PID {sleeper.pid}: it has ended")
        killer.join()

    def test_many_askers_at_once_get_their_own_reply(self):
        page = self.page(answer=lambda words: (DONE, int(words.split("=")[-1]), {}))
        failures = []

        # Locks are a process's own, so the askers are processes.
        def ask(number):
            done = subprocess.run(
                [sys.executable, "-c",
                 "import sys; sys.path.insert(0, sys.argv[1])\n"
                 "from gpucache import ask, page\n"
                 "found = page.find(int(sys.argv[2]))[0]\n"
                 "for n in range(20):\n"
                 "    with ask.Line(found) as line:\n"
                 "        want = int(sys.argv[3]) + n\n"
                 "        assert line.ask(f'flush keep={want}', 30).value == want\n",
                 TOOL, str(os.getpid()), str(number)], timeout=60)
            if done.returncode:
                failures.append(number)
        askers = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(8)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(page.asked), 160)

    def put(self, page, name, value):
        """A field of the first slot."""
        page.put(name, value, tables.PAGE_SLOT, SLOTS[0])

    def reply(self, page, number, value):
        self.put(page, "reply_value", value)
        self.put(page, "reply_sequence", number)

    def asker(self, number):
        """A page whose slots were all left with this number, and what a thread is told that asks
        now."""
        page, asked = self.page(), []
        for start in SLOTS:
            page.put("ask_sequence", number, tables.PAGE_SLOT, start)
            page.put("reply_sequence", 4, tables.PAGE_SLOT, start)

        def ask():
            with ask_module.Line(page_module.find(os.getpid())[0]) as line:
                asked.append(line.ask("flush keep=1", 20).value)
        thread = threading.Thread(target=ask)
        thread.start()
        self.assertTrue(wait_for(lambda: page.get("ask_bytes", tables.PAGE_SLOT, SLOTS[0])))
        return page, asked, thread

    def test_replies_to_requests_that_somebody_left_are_not_taken_for_the_own(self):
        """6: each slot was left twice, and the process is still busy with the one before the
        last."""
        for last in 5, 6:
            page, asked, thread = self.asker(last)
            try:
                for number in range(5, last + 1):  # the replies to the others
                    self.reply(page, number, 111)
                    time.sleep(0.1)
                self.assertEqual(asked, [])
            finally:
                self.reply(page, page.get("ask_sequence", tables.PAGE_SLOT, SLOTS[0]), 222)
                thread.join()
            self.assertEqual(asked, [222])
            page.close()

    def test_all_slots_taken(self):
        page = self.page()
        with subprocess.Popen(
                [sys.executable, "-c",
                 "import fcntl, struct, sys\n"
                 "file = open(sys.argv[1], 'r+b')\n"
                 "fcntl.lockf(file, fcntl.LOCK_EX, 8 * 4096, 8192)\n"
                 "print('taken', flush=True); sys.stdin.read()", page.path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            self.assertEqual(other.stdout.readline(), b"taken\n")
            with ask_module.Line(page_module.find(os.getpid())[0]) as line:
                with self.assertRaisesRegex(Exception, "8 others are asking it"):
                    line.ask("look", 0.1)
            other.stdin.close()

    def test_a_look_asks_for_a_new_state_and_rings(self):
        page = self.page(age_s=30)
        doorbell = page.get("doorbell")
        before = time.monotonic_ns()
        tool("ps")
        self.assertGreater(page.get("doorbell"), doorbell)
        self.assertLessEqual(page.get("watched_until_ns"), time.monotonic_ns() + 10 * 10**9)
        self.assertGreater(page.get("watched_until_ns"), before + 10**9)
