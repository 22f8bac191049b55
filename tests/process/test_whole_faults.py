# SPDX-License-Identifier: BSD-2-Clause
"""What fails while a process leaves the GPU as a whole, or comes back, and what takes long."""
import os
import time

import programs
from parking import DONE, MIB, PARTLY, REFUSED
from test_whole import CONTEXT_MIB, Base


class Faults(Base):
    """Each step of the driver's fails."""

    def failing(self, step, code, times="1", wait="2s"):
        p = self.start(SIM_FAIL=f"cuCheckpointProcess{step}:{times}:{code}",
                       GPUCACHE_PARK_WAIT=wait)
        p.do("make 4 4")
        return p

    def test_no_lock_or_no_checkpoint(self):
        for step in "Lock", "Checkpoint":
            with self.subTest(step):
                p = self.failing(step, 600)
                _, reply = self.leave(p, PARTLY)
                self.assertIn(f"{step.lower()} the process: error 600", reply["why"])
                self.assertGreater(p.park_fields()["away_bytes"], 0)
                self.assertFalse(self.park_state(p).get("whole"))
                self.assertEqual(p.do("check"), "right")
                self.leave(p)
                self.assertEqual(p.do("check"), "right")

    def test_an_nvml_that_fails_for_good(self):
        """Before the lock, or behind the checkpoint: what a wake needs is not known."""
        for questions in "1", "2":
            with self.subTest(questions):
                p = self.start(SIM_NVML_LOSES=questions, SIM_NVML_STARTS="1",
                               GPUCACHE_PARK_WAIT="2s")
                p.do("make 4 4")
                _, reply = self.leave(p, PARTLY)
                self.assertIn("does not tell what is free", reply["why"])
                self.assertFalse(self.park_state(p).get("whole"))
                self.assertEqual(p.do("check"), "right")

    def test_an_nvml_that_fails_before_the_wake(self):
        """Nobody knows that memory is missing: nobody gives any."""
        sleeper = self.start(GPUCACHE_PARK="lend:1s")
        sleeper.do("make 16 4")
        p = self.start(SIM_NVML_LOSES="3", SIM_NVML_STARTS="1", GPUCACHE_PARK_WAIT="2s")
        p.do("make 4 4")
        self.leave(p)
        self.wait_for(lambda: sleeper.page.get("asleep_since_ns"), "it does not sleep")
        before = sleeper.page.num_asks()
        _, _, reply = p.ask("wake")
        self.assertIn("libnvidia-ml.so.1 does not tell what is free", reply.get("why", ""), reply)
        self.assertNotIn("lacks", reply["why"])
        self.assertEqual(p.do("peek"), "2")
        self.assertEqual(sleeper.page.num_asks(), before)
        self.assertEqual(sleeper.state()["counters"]["num_parks"], 0)

    def meanwhile(self, p, *lines):
        """Another process does this while the driver saves p."""
        at, sequence = p.page.put_ask("park whole=1")
        p.page.ring()
        self.wait_for(lambda: "gpucache-nvml" in programs.threads(p.pid), "it does not leave")
        time.sleep(0.5)
        for line in lines:
            self.assertEqual(self.other.do(line), "done")
        self.assertEqual(p.page.await_reply(at, sequence, 60)[0], DONE)

    def test_what_another_frees_meanwhile_is_not_missed(self):
        p = self.start(SIM_CHECKPOINT_MS="2000", GPUCACHE_PARK_WAIT="2s")
        p.do("make 4 4")
        self.assertEqual(self.other.do("take 1800"), "done")
        self.meanwhile(p, "drop")
        self.assertEqual(self.other.do("take 1800"), "done")
        self.assertEqual(p.do("check"), "right")

    def test_what_another_takes_meanwhile_is_missed(self):
        """A restore into too little memory would end the process's use of the GPU. One whose
        memory NVML does not list is not safe from it."""
        p = self.start(SIM_CHECKPOINT_MS="2000", GPUCACHE_PARK_WAIT="2s",
                       SIM_CTX_BYTES=str(1200 * MIB))
        p.do("make 4 4")
        self.meanwhile(p, "take 600")
        self.assertEqual(self.other.do(f"take {int(self.free_mib()) - 1165}"), "done")
        self.assertEqual(p.do("peek"), "2")
        self.other.do("drop")
        self.assertEqual(p.do("check"), "right")

    def test_what_nvml_lists_less_is_missed(self):
        """A process that leaves nearly nothing beside itself, nor anything in its arenas."""
        p = self.start(GPUCACHE_PARK_WAIT="2s")
        self.other.do(f"take {int(self.free_mib()) - 2}")
        self.leave(p)
        self.other.do(f"take {int(self.free_mib()) - CONTEXT_MIB + 2}")
        self.assertEqual(p.do("peek"), "2")
        self.other.do("drop")
        p.do("make 4 4")
        self.assertEqual(p.do("check"), "right")

    def test_a_list_that_takes_long_is_done_without(self):
        """Each would cost its time while uses wait, and the last one the park."""
        for ms in "400", "6000":
            p = self.start(SIM_NVML_LIST_MS=ms)
            p.do("make 4 4")
            if ms == "6000":  # the first one, which tells how long they take
                _, reply = self.leave(p, REFUSED)
                self.assertIn("does not answer yet", reply["why"])
                time.sleep(2)
            for _ in range(2):
                _, reply = self.leave(p)
                self.assertEqual(p.do("check"), "right")
            self.assertLess(reply["ns"], 800e6, reply)

    def test_no_unlock_and_no_nvml(self):
        """It is locked and on the GPU: nothing has to tell that there is room."""
        p = self.start(SIM_NVML_LOSES="2", SIM_NVML_STARTS="1", GPUCACHE_PARK_WAIT="2s",
                       SIM_FAIL="cuCheckpointProcessUnlock:1:999")
        p.do("make 4 4")
        self.leave(p, PARTLY)
        self.assertEqual(p.do("check"), "right")

    def test_no_checkpoint_and_no_unlock(self):
        """The next park does not take a process that is locked for one that is off the GPU."""
        p = self.start(SIM_FAIL="cuCheckpointProcessCheckpoint:1:600,"
                                "cuCheckpointProcessUnlock:1:999")
        p.do("make 4 4")
        self.leave(p, PARTLY)
        self.assertFalse(self.park_state(p)["whole"])
        before = self.free_mib()
        self.leave(p)
        self.assertGreaterEqual(self.free_mib(), before + CONTEXT_MIB)
        self.assertEqual(p.do("check"), "right")

    def test_an_unlock_that_fails_for_good(self):
        p = self.failing("Checkpoint", "600,cuCheckpointProcessUnlock:1+:999")
        self.leave(p, PARTLY)
        for words in "park whole=1", "park", "wake":
            code, _, reply = p.ask(words)
            self.assertEqual(code, REFUSED, reply)
            self.assertIn("error 999", reply["why"])
        self.assertFalse(self.park_state(p)["whole"])
        p.talker.process.kill()

    def test_a_restore_that_fails_without_nvml(self):
        """What the page and the receipt say is what is."""
        log = os.path.join(os.path.dirname(self.pages), "log")
        p = self.start(SIM_NVML_LOSES="2", SIM_NVML_STARTS="1", GPUCACHE_PARK_WAIT="1s",
                       SIM_FAIL="cuCheckpointProcessRestore:1:999", GPUCACHE_LOG="info:" + log)
        p.do("make 4 4")
        before = self.free_mib()
        _, reply = self.park(p, "park whole=1", PARTLY)
        self.assertGreater(self.free_mib(), before + CONTEXT_MIB)
        self.assertTrue(reply["whole"] and self.park_state(p)["whole"])
        self.assertIn("does not tell what is free", reply["why"])
        self.wait_for(lambda: "has left the GPU; " + reply["why"] in programs.read(log),
                      "the log does not say so")
        p.talker.process.kill()

    def test_a_process_that_another_one_has_locked(self):
        """While NVML starts anew before the lock, or where its failure forbids the lock."""
        for questions, devices, steps in ("3", "2", 1), ("1", "1", 1), ("1", "1", 2):
            with self.subTest(questions=questions, steps=steps):
                p = self.start(SIM_NVML_LOSES=questions, SIM_NVML_MS="1000", SIM_DEVICES=devices,
                               SIM_CHECKPOINTED="block")
                p.do("make 4 4")
                before, asked = self.free_mib(), p.page.put_ask("park whole=1")
                p.page.ring()
                self.wait_for(lambda: self.free_mib() >= before + 10, "the arenas stay")
                time.sleep(0.2)  # behind the last call of the driver that the lock would hold up
                codes = [self.step(i, p) for i in range(steps)]
                time.sleep(1.5)
                codes += [self.step(i, p) for i in range(steps, 4)]
                self.assertEqual(codes, ["0"] * 4)
                code, _, reply = p.page.await_reply(*asked)
                self.assertEqual(code, PARTLY, reply)
                self.assertEqual(p.do("check"), "right")

    def step(self, which, p):
        return self.other.do(f"step {which} {p.pid}")

    def test_no_unlock(self):
        p = self.failing("Unlock", 999)
        self.leave(p)
        self.assertEqual(p.do("check"), "right")

    def test_a_restore_that_can_be_tried_again(self):
        p = self.failing("Restore", 2)
        self.leave(p)
        self.assertEqual(p.do("check"), "right")

    def test_a_restore_that_is_the_last(self):
        p = self.failing("Restore", 304, "1+", "60s")
        self.leave(p)
        code, _, reply = p.ask("wake")
        self.assertEqual(code, REFUSED)
        self.assertIn("cannot restore the process: error 304", reply["why"])
        begun = time.monotonic()
        self.say(p, "check")
        p.talker.process.wait(30)  # the program gives up at its first error
        self.assertLess(time.monotonic() - begun, 10)

    def test_a_restore_without_room_ends_the_wait(self):
        """Another process took the memory after NVML was asked."""
        p = self.start(SIM_NVML_EMPTY="1", SIM_CHECKPOINTED="block", GPUCACHE_PARK_WAIT="60s")
        p.do("make 4 4")
        self.leave(p)
        self.other.do(f"take {int(self.free_mib()) - 100}")
        code, _, reply = p.ask("wake")
        self.assertEqual(code, REFUSED)
        self.assertIn("cannot restore the process: error 2", reply["why"])
        begun = time.monotonic()
        self.say(p, "make 1 1")
        self.assertIn("gave 2", self.hear(p))
        self.assertLess(time.monotonic() - begun, 10)
        p.talker.process.kill()


class Slow(Base):
    def slow(self):
        """A process whose checkpoint takes 26 s and has begun, and where its reply will be."""
        p = self.start(SIM_CHECKPOINT_MS="26000", GPUCACHE_PARK_WAIT="1s")
        p.do("make 4 4")
        before, asked = self.free_mib(), p.page.put_ask("park whole=1")
        p.page.ring()
        self.wait_for(lambda: self.free_mib() > before, "the arenas stay")
        return p, asked

    def test_a_driver_that_takes_long(self):
        """The request is answered. Once the driver returns, the process is off the GPU."""
        p, asked = self.slow()
        code, _, reply = p.page.await_reply(*asked)
        self.assertEqual(code, PARTLY, reply)
        self.assertIn("not return from cuCheckpointProcessCheckpoint", reply["why"])
        self.assertFalse(self.park_state(p).get("whole"))
        self.wait_for(lambda: self.park_state(p).get("whole"), "it stays on the GPU")
        self.assertEqual(p.do("check"), "right")

    def test_a_use_beside_a_driver_that_takes_long(self):
        """It fails, and the program, which then ends, does."""
        p, _ = self.slow()
        begun = time.monotonic()
        self.say(p, "check")
        self.assertGreater(p.talker.process.wait(60), 0)
        self.assertLess(time.monotonic() - begun, 25)

    def test_a_use_beside_an_nvml_that_hangs(self):
        """It starts in 9 s, and anew in the park: the use waits 5 s for it, and no more."""
        p = self.start(SIM_NVML_LOSES="1", SIM_NVML_MS="9000", GPUCACHE_PARK_WAIT="1s")
        p.do("make 4 4")
        self.leave(p, REFUSED)
        time.sleep(5)
        before = self.free_mib()
        p.page.put_ask("park whole=1")
        p.page.ring()
        self.wait_for(lambda: self.free_mib() > before, "the arenas stay")
        begun = time.monotonic()
        self.assertEqual(p.do("check"), "right")
        self.assertLess(time.monotonic() - begun, 7.5)

    def test_who_waits_for_nvml_is_told_so(self):
        """The device is not full."""
        log = os.path.join(os.path.dirname(self.pages), "log")
        p = self.start(SIM_NVML_LOSES="3", SIM_NVML_STARTS="1", GPUCACHE_LOG="warn:" + log)
        p.do("make 4 4")
        self.leave(p)
        self.say(p, "check")
        self.wait_for(lambda: "does not tell what is free" in programs.read(log), "not a word")
        self.assertNotIn("full", programs.read(log))
