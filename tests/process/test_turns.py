# SPDX-License-Identifier: BSD-2-Clause
"""A flush that waits for GPU work holds up nothing else that the control thread does."""
import os
import signal
import sys
import threading

import page_client
import programs
import waiting

LIBRARY, FOLDERS, HOLDER, TABLES = sys.argv[1:5]
T = page_client.load_tables(TABLES)
MIB = 1 << 20
LONG_MS = 9900


class Question(threading.Thread):
    """A request that may take its time, through a page of its own. Threads of one process take no
    slot from each other, so the next one starts when this request is in its slot."""

    def __init__(self, path, words):
        super().__init__(daemon=True)
        self.path, self.words, self.answer = path, words, None
        self.asked = threading.Event()
        self.start()
        assert self.asked.wait(30)

    def run(self):
        page = page_client.Page(T, self.path)
        ring = page.ring

        def told():
            self.asked.set()
            return ring()
        page.ring = told
        self.answer = page.ask(self.words, 60)
        page.close()

    def finish(self):
        self.join(60)
        return self.answer


class Turns(waiting.Waiting):
    def setUp(self):
        scratch = self.scratch()
        self.folder, self.log = os.path.join(scratch, "p"), os.path.join(scratch, "log")

    def start(self, hold="hold 64 32", **options):
        options = {"GPUCACHE_DIR": self.folder, "GPUCACHE_LOG": f"info:{self.log}", **options}
        self.holder = programs.Talker([HOLDER], programs.environ(LIBRARY, FOLDERS, **options),
                                      stderr=None)
        self.addCleanup(self.holder.finish)
        self.do(hold)
        self.path = self.wait_for(lambda: page_client.whole_pages_in(T, self.folder), "no page")[0]
        self.page = page_client.Page(T, self.path)
        self.addCleanup(self.page.close)
        self.uuid = self.wait_for(lambda: self.page.state()[0]["pools"], "no pool")[0]["uuid"]

    def do(self, line):
        self.assertEqual(self.holder.do(line), "done")

    def logged(self):
        return programs.read(self.log)

    def figures(self):
        self.assertEqual(self.page.ask("look")[0], T.PAGE_REPLY_DONE)
        return self.page.state()[0]["pools"][0]

    def test_other_requests_are_served_while_flushes_wait(self):
        self.start()
        flushes = [Question(self.path, f"flush wait={LONG_MS}") for _ in range(2)]
        # What is idle goes back at once.
        self.wait_for(lambda: self.figures()["reserved_bytes"] <= 32 * MIB, "the idle memory")
        for words in "look", f"give gpu={self.uuid} bytes={MIB} wait=0", "set MAX_IDLE=1G":
            self.page.ask(words)
        short = self.page.ask("flush wait=0")
        self.assertEqual((short[0], short[2]["gpus"][0]["pending_bytes"]),
                         (T.PAGE_REPLY_PARTLY, 32 * MIB))
        # All of it came before the end of their wait.
        self.assertEqual([flush.answer for flush in flushes], [None, None])
        self.do("let")
        answers = [flush.finish() for flush in flushes]
        self.assertEqual([answer[0] for answer in answers], 2 * [T.PAGE_REPLY_DONE])
        self.assertEqual(sum(answer[1] for answer in answers), 96 * MIB)
        for _, value, receipt in answers:
            self.assertEqual(receipt["gpus"][0]["returned_bytes"], value)
            self.assertEqual(receipt["gpus"][0]["pending_bytes"], 0)
            self.assertGreater(receipt["ns"], 0)
        self.assertEqual(self.figures()["reserved_bytes"], 0)

    def test_the_wait_ends_in_time(self):
        self.start()
        code, value, receipt = self.page.ask("flush wait=300")
        self.assertEqual((code, value), (T.PAGE_REPLY_PARTLY, 64 * MIB))
        self.assertEqual(receipt["gpus"][0]["pending_bytes"], 32 * MIB)
        self.assertGreaterEqual(receipt["ns"], 300 * 10**6)

    def test_what_waits_for_the_work_of_one_stream_is_told_too(self):
        """The pool could hand it out at once, in the order of the stream. The driver cannot have it
        back yet."""
        self.start("one 64 32")
        code, value, receipt = self.page.ask("flush wait=50")
        gpu = receipt["gpus"][0]
        self.assertEqual((code, value), (T.PAGE_REPLY_PARTLY, 0), receipt)
        self.assertEqual((gpu["pending_bytes"], gpu["idle_bytes"], gpu["partly_live_bytes"]),
                         (96 * MIB, 0, 0))
        self.do("let")
        code, value, receipt = self.page.ask("flush")
        self.assertEqual((code, value), (T.PAGE_REPLY_DONE, 96 * MIB), receipt)
        self.assertEqual(receipt["gpus"][0]["pending_bytes"], 0)

    def test_who_needs_memory_gets_it_when_the_work_ends(self):
        self.start()
        give = Question(self.path, f"give gpu={self.uuid} bytes={96 * MIB} wait={LONG_MS}")
        self.wait_for(lambda: self.figures()["reserved_bytes"] <= 32 * MIB, "the idle memory")
        self.figures()  # a ring while it waits
        self.assertIsNone(give.answer)
        self.do("let")
        code, value, _ = give.finish()
        self.assertEqual((code, value), (T.PAGE_REPLY_DONE, 96 * MIB))

    def test_a_request_that_is_withdrawn_or_changed_meanwhile_ends(self):
        self.start()
        flush = Question(self.path, f"flush wait={LONG_MS}")
        # A request that has not begun may say anything.
        self.wait_for(lambda: "flush (request)" in self.logged(), "the flush")
        give = Question(self.path, f"give gpu={self.uuid} bytes={256 * MIB} wait={LONG_MS}")
        base, step = T.PAGE["slots"][0], T.PAGE_SLOT_BYTES
        for at in range(base, base + T.PAGE_SLOTS * step, step):
            words = self.page.get("ask", "PAGE_SLOT", at)
            if words.startswith(b"give"):
                self.page.put("ask_bytes", 0, "PAGE_SLOT", at)
            elif words.startswith(b"flush"):
                self.page.put("ask", b"look", "PAGE_SLOT", at)
                self.page.put("ask_bytes", 4, "PAGE_SLOT", at)
        self.assertEqual(give.finish()[0], T.PAGE_REPLY_BAD)
        self.assertEqual(flush.finish()[0], T.PAGE_REPLY_BAD)
        self.assertEqual(self.page.ask("look")[0], T.PAGE_REPLY_DONE)

    def test_an_asker_that_gave_up_leaves_its_slot_to_the_next_one(self):
        self.start()
        at, number = self.page.put_ask(f"flush wait={LONG_MS} frameworks=0")
        self.page.ring()
        self.wait_for(lambda: self.figures()["reserved_bytes"] <= 32 * MIB, "no flush")
        self.page.put("ask", b"look", "PAGE_SLOT", at)
        self.page.put("ask_bytes", 4, "PAGE_SLOT", at)
        self.page.put("ask_sequence", number + 1, "PAGE_SLOT", at)
        self.page.ring()
        code, _, reply = self.page.await_reply(at, number + 1, 5)
        self.assertEqual(code, T.PAGE_REPLY_DONE, reply)

    def test_a_request_at_a_page_made_anew_is_none_that_waits_since_before(self):
        """Its slot and its number are those of a flush that waits behind GPU work."""
        self.start()
        for words in "flush wait=0 frameworks=0", "look":
            with self.subTest(words=words):
                waits = Question(self.path, f"flush wait={LONG_MS} frameworks=0")
                self.wait_for(lambda: self.figures()["reserved_bytes"] <= 32 * MIB, "no flush")
                number = os.stat(self.path).st_ino
                os.unlink(self.path)
                self.page.ring()  # a reason to look at the file
                self.wait_for(lambda: os.path.exists(self.path) and
                              os.stat(self.path).st_ino != number, "no page", 15)
                self.page = page_client.Page(T, self.path)
                self.addCleanup(self.page.close)
                code, _, reply = self.page.ask(words, 5)
                expected = T.PAGE_REPLY_PARTLY if words != "look" else T.PAGE_REPLY_DONE
                self.assertEqual(code, expected, reply)
                # Who waits at the file before hears that no reply comes there.
                waits.join(60)
                code, value, reply = waits.answer
                self.assertEqual((code, value), (T.PAGE_REPLY_REFUSED, 0), reply)
                self.assertIn("ask again", reply["error"])

    def test_a_flush_by_signal_holds_up_no_request_and_is_finished_later(self):
        self.start()
        self.holder.process.send_signal(signal.SIGUSR1)
        self.wait_for(lambda: self.figures()["reserved_bytes"] <= 32 * MIB, "the idle memory", 4)
        self.do("let")
        self.wait_for(lambda: self.figures()["reserved_bytes"] == 0, "the memory behind work")
        self.assertEqual(self.logged().count("flush (signal)"), 2)
