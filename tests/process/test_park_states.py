# SPDX-License-Identifier: BSD-2-Clause
"""A process is stopped, killed, or exits, in each state of its gate, and asked again meanwhile."""
import os
import signal

import programs
from parking import DONE, Base

STATES = "open", "closing", "leaving", "parked", "waking"


class States(Base):
    def is_answered(self, p, ask):
        at, sequence = ask
        return p.page.get("reply_sequence", "PAGE_SLOT", at) == sequence

    def started(self):
        """A process with memory; and what the device has without it, and with it."""
        nothing = self.free_mib()
        p = self.start("make 8 20")
        return p, nothing, self.free_mib()

    def stopped_in(self, state, words="park"):
        """A process that stands still there; the lines that follow, the request without a reply,
        and what the device has without the process."""
        p, nothing, full = self.started()
        lines, ask = self.bring(p, state, words)
        programs.stop(p.pid)
        self.assertEqual(ask is None, state in ("open", "parked"))
        self.assertFalse(ask and self.is_answered(p, ask), state)
        free = self.free_mib()
        if state == "parked":
            self.assertGreater(free, full + 16)
        else:  # none has gone, or all is there again
            self.assertLess(free, full + 1)
        return p, lines, ask, nothing

    def test_a_stop_in_any_state_changes_nothing(self):
        for state in STATES:
            with self.subTest(state):
                p, lines, ask, _ = self.stopped_in(state)
                os.kill(p.pid, signal.SIGCONT)
                if lines:
                    p.do(*lines)
                    self.assertEqual(p.page.await_reply(*ask, 60)[0], DONE)
                self.assertEqual(p.do("check"), "right")
                counters = p.state()["counters"]
                parks = int(state != "open")
                self.assertEqual((counters["num_parks"], counters["num_wakes"]), (parks, parks))
                self.park(p)
                self.assertEqual(p.do("check"), "right")
                p.talker.end()

    def test_a_kill_in_any_state_leaves_nothing(self):
        for state in STATES:
            for into_folder in False, True:
                with self.subTest(state, into_folder=into_folder):
                    folder = self.scratch()
                    p, _, _, nothing = self.stopped_in(
                        state, f"park to={folder if into_folder else 'host'}")
                    p.talker.end()
                    self.wait_for(lambda: self.free_mib() >= nothing, "device memory is left")
                    self.assertEqual(os.listdir(folder), [])
                    self.assertTrue(os.path.exists(p.path))
                    other = self.start("make 1 1")
                    self.wait_for(lambda: not os.path.exists(p.path), "its page is left")
                    self.assertEqual(os.listdir(self.pages), [os.path.basename(other.path)])
                    other.talker.finish()

    def exit_in(self, state, function, calls_exit, folder):
        """The program calls exit(), or main() returns, while a park or a wake is under way: in
        calls of that function, of which each takes 60 ms."""
        nothing = self.free_mib()
        p = self.start("make 16 20", SIM_REALTIME="1", **{"SIM_COST_" + function: "60000000"})
        if state == "waking":
            self.park(p, f"park to={folder}")
        before = int(p.do("calls " + function))
        ask = p.page.put_ask("wake" if state == "waking" else f"park to={folder}")
        p.page.ring()
        self.wait_for(lambda: int(p.do("calls " + function)) > before, "it is never called")
        self.assertFalse(self.is_answered(p, ask))
        if calls_exit:
            p.talker.send("exit")
        else:
            p.talker.process.stdin.close()
        self.assertEqual(p.talker.process.wait(60), 0)
        self.wait_for(lambda: self.free_mib() >= nothing, "device memory is left")
        if folder != "host":
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual(os.listdir(self.pages), [])

    def test_an_exit_in_any_state_leaves_nothing(self):
        for state, function in (("closing", "cuMemcpyDtoHAsync_v2"), ("leaving", "cuMemRelease"),
                                ("waking", "cuMemCreate"), ("waking", "cuMemcpyHtoDAsync_v2")):
            for calls_exit in False, True:
                for folder in "host", self.scratch():
                    with self.subTest(state, function=function, calls_exit=calls_exit,
                                      folder=folder):
                        self.exit_in(state, function, calls_exit, folder)

    def test_a_request_that_meets_another_one_comes_after_it(self):
        for state, words, parks, wakes in (
                ("closing", "park", 1, 0), ("closing", "wake", 1, 1), ("leaving", "park", 1, 0),
                ("leaving", "wake", 1, 1), ("waking", "park", 2, 1), ("waking", "wake", 1, 1)):
            with self.subTest(state, words=words):
                p, _, full = self.started()
                lines, first = self.bring(p, state)
                second = p.page.put_ask(words)
                p.page.ring()
                p.page.ring()
                self.assertFalse(self.is_answered(p, first) or self.is_answered(p, second))
                p.do(*lines)
                for ask, said in (first, "woken" if state == "waking" else "parked"), \
                        (second, "parked" if parks > wakes else "woken"):
                    code, _, reply = p.page.await_reply(*ask, 60)
                    self.assertEqual((code, reply["state"]), (DONE, said), reply)
                self.assertEqual(self.free_mib() > full + 16, parks > wakes)
                counters = p.state()["counters"]
                self.assertEqual((counters["num_parks"], counters["num_wakes"]), (parks, wakes))
                self.assertEqual(p.do("check"), "right")
                p.talker.end()
