# SPDX-License-Identifier: BSD-2-Clause
"""A process is stopped, killed, or exits, in each state of its gate, and asked again meanwhile."""
import contextlib
import os
import signal
import time

import programs
from parking import DONE, REFUSED, Base

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
        self.begin_call(p, function, "wake" if state == "waking" else f"park to={folder}")
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

    def test_who_asks_during_an_exit_is_told_of_it(self):
        """The exit waits for what has begun, and nothing else begins."""
        for words, function in ("park", "cuMemRelease"), ("wake", "cuMemCreate"):
            with self.subTest(words):
                p = self.start("make 16 20", SIM_REALTIME="1",
                               **{"SIM_COST_" + function: "300000000"})
                if words == "wake":
                    self.park(p)
                self.begin_call(p, function, words)
                p.talker.send("exit")
                begun = time.monotonic()
                asks = [p.page.put_ask(words) for words in ("park", "park whole=1", "wake")]
                p.page.ring()
                for ask in asks:
                    code, _, reply = p.page.await_reply(*ask, 20)
                    self.assertEqual((code, reply["state"]), (REFUSED, "refused"), reply)
                    self.assertEqual(reply["why"], "the process leaves")
                self.assertLess(time.monotonic(), begun + 4)  # none waits for its turn
                self.assertEqual(p.talker.process.wait(60), 0)

    def begin_call(self, p, function, words):
        """The request, once it has the library call that function."""
        before = int(p.do("calls " + function))
        ask = p.page.put_ask(words)
        p.page.ring()
        self.wait_for(lambda: int(p.do("calls " + function)) > before, "it is never called")
        self.assertFalse(self.is_answered(p, ask))
        return ask

    def test_who_waits_long_for_another_ones_turn_is_told_so(self):
        begun, asks = [], []
        for state in "leaving", "waking":
            p, _, _ = self.started()
            begun.append((p, *self.bring(p, state)))
            asks += [(p, p.page.put_ask(words)) for words in ("park", "wake")]
            p.page.ring()
        for p, ask in asks:
            code, _, reply = p.page.await_reply(*ask, 20)
            self.assertEqual((code, reply["state"]), (REFUSED, "refused"), reply)
            self.assertEqual(reply["why"], "another park or wake is under way")
        for p, lines, ask in begun:
            p.do(*lines)
            self.assertEqual(p.page.await_reply(*ask, 60)[0], DONE)
            self.assertEqual(p.do("check"), "right")

    def full_pipe(self):
        """The report of an exit waits a second for it, so there is time to tell an asker."""
        pipe = os.path.join(self.scratch(), "pipe")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        with contextlib.suppress(BlockingIOError):
            while os.write(reader, b"x" * 4096):
                pass
        return pipe

    def exit_stops(self, p, ask):
        p.talker.send("exit")
        code, _, reply = p.page.await_reply(*ask, 20)
        self.assertEqual((code, reply["why"]), (REFUSED, "the process leaves"), reply)
        self.assertEqual(p.talker.process.wait(60), 0)

    def test_a_park_that_an_exit_stops_says_so(self):
        out = "cuMemcpyDtoHAsync_v2"
        p = self.start("make 16 20", GPUCACHE_STATS="exit:" + self.full_pipe(), SIM_REALTIME="1",
                       **{"SIM_COST_" + out: "100000000"})
        self.exit_stops(p, self.begin_call(p, out, "park"))

    def test_a_wake_that_an_exit_stops_says_so(self):
        p = self.start("make 8 8")
        made = p.state()["pools"][0]["num_device_alloc"]
        p.talker.end()
        p = self.start("make 8 8", GPUCACHE_STATS="exit:" + self.full_pipe(),
                       SIM_FAIL=f"cuMemCreate:{made + 1}+:2")
        self.park(p)
        ask = p.page.put_ask("wake")
        p.page.ring()
        self.wait_for(lambda: p.state()["park"]["state"] == "waits", "it waits for nothing")
        self.exit_stops(p, ask)

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
