# SPDX-License-Identifier: BSD-2-Clause
"""A process leaves the GPU as a whole, by the driver's checkpoint, and comes back when it makes a
call. Any call of the driver in a checkpointed process ends it here (SIM_CHECKPOINTED=abort)."""
import os
import re
import shutil
import signal
import sys
import threading
import time

import parking as parks
import programs
from parking import DONE, MIB, PARTLY, REFUSED

NVML, FORKS = sys.argv[5:7]
CONTEXT_MIB = 300


def maps_of(p):
    with open(f"/proc/{p.pid}/maps", encoding="utf-8") as maps:
        return maps.read()


class Base(parks.Base):
    def capacity(self):
        return {"SIM_CAPACITY": "2560M", "SIM_CTX_BYTES": str(CONTEXT_MIB * MIB)}

    def start(self, nvml=True, **options):
        folders = parks.FOLDERS + (":" + NVML if nvml else "")
        return super().start(**{"LD_LIBRARY_PATH": folders, "SIM_CHECKPOINTED": "abort",
                                "CUDA_MPS_PIPE_DIRECTORY": self.pages, **options})

    def leave(self, p, code=DONE):
        value, reply = self.park(p, "park whole=1", code)
        self.assertEqual(reply.get("whole", False), code == DONE, reply)
        return value, reply

    def park_state(self, p):
        return p.state().get("park", {})

    def say(self, p, line):
        """Says it, and does not wait for the answer."""
        p.talker.process.stdin.write(line + "\n")
        p.talker.process.stdin.flush()

    def hear(self, p):
        return p.talker.process.stdout.readline().strip()


class Whole(Base):
    def test_it_leaves_the_device_and_comes_back_with_its_bytes(self):
        before = self.free_mib()
        p = self.start()
        p.do("make 32 20")
        self.assertLess(self.free_mib(), before - CONTEXT_MIB)
        for use in "check", "copies":
            value, reply = self.leave(p)
            self.assertGreater(value, 100 * MIB)
            self.assertGreaterEqual(reply["whole_bytes"], CONTEXT_MIB * MIB)
            self.assertIn("tables", reply["wakes"])
            self.assertGreaterEqual(self.free_mib(), before)
            self.assertEqual(p.do(use), "right")
            self.assertNotIn("park", p.state())
            self.assertLess(self.free_mib(), before - CONTEXT_MIB)

    def test_a_request_wakes_it(self):
        p = self.start()
        p.do("make 32 20")
        self.leave(p)
        code, _, reply = p.ask("wake")
        self.assertEqual((code, reply["state"]), (DONE, "woken"))
        self.assertNotIn("park", p.state())
        self.assertEqual(p.do("check"), "right")

    def test_the_page_says_so(self):
        p = self.start()
        p.do("make 4 4")
        self.park(p)
        self.assertFalse(self.park_state(p).get("whole"))
        self.leave(p)
        self.assertTrue(self.park_state(p)["whole"])
        for _ in range(3):  # once more changes nothing
            self.assertEqual(self.park(p)[0], 0)
            self.leave(p)
        self.assertEqual(p.do("check"), "right")

    def test_a_park_of_what_is_parked_says_so(self):
        log = os.path.join(os.path.dirname(self.pages), "log")
        p = self.start(GPUCACHE_LOG="info:" + log)
        p.do("make 32 20")
        for words, line, parks in (
                ("park", "parked in N ms: N GiB went to the host", 1),
                ("park", "nothing to park; N GiB parked in all", 1),
                ("park whole=1", "parked in N ms: 0.00 GiB went to the host, and the process has "
                 "left the GPU", 2),
                ("park whole=1", "nothing to park; N GiB parked in all, and the process has left "
                 "the GPU", 2),
                ("park", "nothing to park; N GiB parked in all, and the process has left the GPU",
                 2)):
            with self.subTest(words=words, line=line):
                before = self.parking_lines(log)
                self.park(p, words)
                self.wait_for(lambda: len(self.parking_lines(log)) > len(before), "no line")
                self.assertEqual(self.parking_lines(log)[len(before):], [line])
                self.assertEqual(p.state()["counters"]["num_parks"], parks)
        self.assertEqual(p.do("check"), "right")

    def parking_lines(self, log):
        """What the log says of parks. N: a figure that is not 0.00."""
        lines = [re.sub(r"\b(?!0\.00 )\d+\.\d+\b", "N", line.split(": info: ")[-1])
                 for line in programs.read(log).splitlines()]
        return [line for line in lines if line.startswith(("parked", "nothing"))]

    def test_it_leaves_without_memory_of_its_own(self):
        before = self.free_mib()
        p = self.start()
        self.leave(p)
        self.assertGreaterEqual(self.free_mib(), before)
        p.do("make 4 4")
        self.assertEqual(p.do("check"), "right")

    def test_a_watchdog_does_not_wake_it(self):
        p = self.start()
        p.do("make 4 4")
        self.leave(p)
        for _ in range(50):
            p.do("queries")
        self.assertTrue(self.park_state(p)["whole"])
        self.assertEqual(p.do("check"), "right")

    def test_requests_and_signals_leave_it_alone(self):
        p = self.start(GPUCACHE_MAX_IDLE="1M", GPUCACHE_IDLE_TIMEOUT="20ms",
                       GPUCACHE_EMPTY_CACHE="every:30ms", GPUCACHE_PARK="idle:30s,lend:1s")
        p.do("make 32 20")
        self.leave(p)
        for words in ("flush", "look", f"give gpu={self.uuid(p)} bytes=1000000", "cached",
                      "set MAX_IDLE=2M", "flush wait=0", "park", "look"):
            self.assertNotEqual(p.ask(words)[0], None)
        os.kill(p.pid, signal.SIGUSR1)
        time.sleep(0.3)
        self.assertTrue(self.park_state(p)["whole"])
        self.assertEqual(p.do("check"), "right")

    def uuid(self, p):
        return p.state()["pools"][0]["uuid"]

    def test_a_thread_that_calls_nvml_waits(self):
        p = self.start(SIM_CHECKPOINTED="block")
        p.do("make 4 4")
        self.leave(p)
        p.do("nvml")
        time.sleep(0.1)
        self.assertEqual([p.do("told"), p.do("check")], ["waits", "right"])
        self.wait_for(lambda: p.do("told") == "0", "it does not go on")

    def test_a_fork_does_not_wait_for_the_loader(self):
        p = self.start()
        self.say(p, "load " + FORKS)
        # From then on it has the loader's lock. If that is taken later, between two steps of the
        # library's, the fork waits for as long as fork_gate.h says.
        self.wait_for(lambda: os.path.basename(FORKS) in maps_of(p), "it loads nothing")
        self.leave(p)
        self.assertEqual(self.hear(p), "done")

    def test_many_times_beside_working_threads(self):
        p = self.start()
        p.do("make 8 20", "work 3")
        left, end = 0, time.monotonic() + 60
        while left < 5 and time.monotonic() < end:
            code, _, reply = p.ask("park wait=20 whole=1")
            self.assertIn(code, (DONE, PARTLY, REFUSED), reply)
            left += code == DONE
        self.assertGreater(left, 0)
        self.assertEqual(p.do("rest"), "right")
        self.assertEqual(p.do("check"), "right")


class Room(Base):
    """The restore is tried only once there is room, for the arenas too."""

    def test_it_waits_for_room(self):
        p = self.start()
        p.do("make 32 20")
        self.leave(p)
        self.other.do(f"take {int(self.free_mib()) - 1200}")
        self.say(p, "check")
        self.wait_for(lambda: self.park_state(p).get("state") == "waits", "it does not wait")
        self.assertTrue(self.park_state(p)["whole"])
        self.other.do("drop")
        self.assertEqual(self.hear(p), "right")

    def test_after_the_wait_the_use_fails_and_the_next_one_works(self):
        p = self.start(GPUCACHE_PARK_WAIT="300ms")
        p.do("make 32 20")
        self.leave(p)
        self.other.do(f"take {int(self.free_mib()) - 1200}")
        code, _, reply = p.ask("wake")
        self.assertEqual(code, REFUSED, reply)
        self.assertIn("lacks memory", reply["why"])
        self.assertTrue(self.park_state(p)["whole"])
        self.other.do("drop")
        self.assertEqual(p.do("check"), "right")

    def test_a_process_that_fills_the_device_comes_back(self):
        """Once it finds the room that it left, whether NVML lists what it had or not."""
        for lists in "10":
            p = self.start(SIM_NVML_LISTS=lists)
            p.do("make 32 20", f"take {int(self.free_mib()) - 400}")
            self.assertLess(self.free_mib(), 400)
            self.leave(p)
            self.other.do(f"take {int(self.free_mib() / 2)}")
            self.say(p, "check")
            self.wait_for(lambda: self.park_state(p).get("state") == "waits", "it does not wait")
            self.other.do("drop")
            self.assertEqual(self.hear(p), "right")
            p.talker.end()

    def test_many_that_come_back_at_once_take_turns(self):
        """There is room for few. One that is back ends."""
        said = []

        def end(p):
            said.append(self.hear(p))
            p.talker.end()
        processes = [self.start() for _ in range(6)]
        for p in processes:
            p.do("make 1 3")
            self.leave(p)
        self.other.do(f"take {int(self.free_mib()) - 1310}")
        for p in processes:
            self.say(p, "check")
        listeners = [threading.Thread(target=end, args=(p,)) for p in processes]
        for listener in listeners:
            listener.start()
        for listener in listeners:
            listener.join()
        self.assertEqual(said, ["right"] * len(processes))

    def test_an_exit_waits_for_room(self):
        p = self.start()
        p.do("make 32 20")
        self.leave(p)
        self.other.do(f"take {int(self.free_mib()) - 1200}")
        self.say(p, "exit")
        time.sleep(0.5)
        self.assertIsNone(p.talker.process.poll())
        self.other.do("drop")
        self.assertEqual(p.talker.process.wait(30), 0)

    def test_a_call_fails_soon_after_the_wait(self):
        took = []
        while not took or took[-1] >= 3.6 and len(took) < 3:  # the machine may be busy
            p = self.start(GPUCACHE_PARK_WAIT="2s", SIM_CHECKPOINTED="block")
            p.do("make 32 20")
            self.leave(p)
            self.other.do(f"take {int(self.free_mib()) - 1200}")
            begun = time.monotonic()
            self.say(p, "make 1 1")
            self.assertIn("gpu_malloc gave 2", self.hear(p))
            took.append(time.monotonic() - begun)
            p.talker.process.kill()
            p.talker.process.wait()
            self.other.do("drop")
        self.assertTrue(1.9 < took[-1] < 3.6, took)


class Ends(Base):
    def test_it_ends_as_ever(self):
        for how in "exit", "", "term", "kill":
            with self.subTest(how):
                p = self.start()
                p.do("make 4 4")
                self.leave(p)
                if how == "exit":
                    self.say(p, "exit")
                elif how:
                    p.talker.process.send_signal(getattr(signal, f"SIG{how.upper()}"))
                else:
                    p.talker.process.stdin.close()
                wanted = -getattr(signal, f"SIG{how.upper()}") if how in ("term", "kill") else 0
                self.assertEqual(p.talker.process.wait(30), wanted)

    def test_an_asker_that_is_killed(self):
        """What it asked for is done, and others may ask."""
        p = self.start()
        p.do("make 4 4")
        for words in "park whole=1", "wake":
            asked, asks = os.pipe()
            asker = os.fork()
            if not asker:
                page = parks.page_client.Page(parks.T, p.path)
                page.put_ask(words)
                page.ring()
                os.write(asks, b".")
                signal.pause()
            os.read(asked, 1)
            os.close(asked)
            os.close(asks)
            os.kill(asker, signal.SIGKILL)
            os.waitpid(asker, 0)
            self.wait_for(lambda: bool(self.park_state(p).get("whole")) == (words != "wake"),
                          "it is not done")
        self.leave(p)
        self.assertEqual(p.do("check"), "right")

    def test_two_that_ask_at_once(self):
        """The second comes when the first has ended, in whatever call of the driver that is."""
        whole = "park whole=1"
        for first, at in ((whole, "cuMemcpyDtoHAsync_v2"), (whole, "cuMemRelease"),
                          (whole, "cuCheckpointProcessLock"),
                          (whole, "cuCheckpointProcessCheckpoint"),
                          ("wake", "cuCheckpointProcessRestore"),
                          ("wake", "cuCheckpointProcessUnlock"), ("wake", "cuMemcpyHtoDAsync_v2")):
            for second in whole, "wake", "park":
                with self.subTest(first, at=at, second=second):
                    p = self.start()
                    p.do("make 8 20")
                    if first == "wake":
                        self.leave(p)
                    asks = [self.hold(p, at, lambda: self.begin(p, first)), self.begin(p, second)]
                    p.page.ring()
                    p.do("let " + at)
                    for ask, words in zip(asks, (first, second)):
                        code, _, reply = p.page.await_reply(*ask, 60)
                        said = "woken" if words == "wake" else "parked"
                        self.assertEqual((code, reply["state"]), (DONE, said), reply)
                        leaves = whole in (words, first) and words != "wake"
                        self.assertEqual(reply.get("whole", False), leaves)
                    self.assertEqual(self.park_state(p).get("whole", False), leaves)
                    self.assertEqual(p.do("check"), "right")
                    p.talker.end()

    def begin(self, p, words):
        ask = p.page.put_ask(words)
        p.page.ring()
        return ask

    def test_who_waits_long_for_another_ones_turn_is_told_so(self):
        p = self.start()
        p.do("make 8 20")
        at = "cuCheckpointProcessCheckpoint"
        first = self.hold(p, at, lambda: self.begin(p, "park whole=1"))
        begun = time.monotonic()
        for ask in [self.begin(p, words) for words in ("park whole=1", "wake", "park")]:
            code, _, reply = p.page.await_reply(*ask, 60)
            self.assertEqual((code, reply["state"]), (REFUSED, "refused"), reply)
            self.assertEqual(reply["why"], "another park or wake is under way")
        self.assertLess(time.monotonic() - begun, 12)
        p.do("let " + at)
        self.assertEqual(p.page.await_reply(*first, 60)[0], DONE)
        self.assertTrue(self.park_state(p)["whole"])
        self.assertEqual(p.do("check"), "right")

    def test_an_exit_beside_the_start_of_nvml(self):
        p = self.start(SIM_NVML_MS="1000")
        p.page.put_ask("park whole=1")
        p.page.ring()
        self.wait_for(lambda: "gpucache-nvml" in programs.threads(p.pid), "NVML does not start")
        self.say(p, "exit")
        self.assertEqual(p.talker.process.wait(30), 0)

    def test_a_reset_wakes_it(self):
        p = self.start()
        p.do("make 4 4")
        took = []
        while not took or took[-1] >= 1.5 and len(took) < 3:  # the machine may be busy
            self.leave(p)
            begun = time.monotonic()
            p.do("reset", "make 4 4")
            took.append(time.monotonic() - begun)
        self.assertLess(took[-1], 1.5)
        self.assertEqual(p.do("check"), "right")


class Others(Base):
    """Another process takes checkpoints of it, too."""

    def test_one_that_restores_it_wakes_it(self):
        p = self.start()
        p.do("make 4 4")
        self.leave(p)
        self.assertNotEqual(self.step(0, p), "0")  # it is locked already
        self.assertEqual(self.step(2, p), "0")
        self.assertEqual(p.do("check"), "right")
        self.leave(p)
        self.assertEqual((self.step(2, p), self.step(3, p)), ("0", "0"))
        self.assertEqual(p.do("check"), "right")

    def step(self, which, p):
        return self.other.do(f"step {which} {p.pid}")

    def test_a_checkpoint_of_a_parked_one(self):
        p = self.start(SIM_CHECKPOINTED="block")
        p.do("make 4 4")
        self.park(p)
        self.assertEqual([self.step(i, p) for i in range(2)], ["0", "0"])
        self.say(p, "check")
        time.sleep(0.1)
        self.assertEqual([self.step(i, p) for i in (2, 3)], ["0", "0"])
        self.assertEqual(self.hear(p), "right")

    def test_a_park_of_a_locked_one_waits_and_goes_on(self):
        p = self.start(SIM_CHECKPOINTED="block")
        p.do("make 4 4")
        self.assertEqual(self.step(0, p), "0")
        replies = []
        asker = threading.Thread(target=lambda: replies.append(p.ask("park whole=1")))
        asker.start()
        time.sleep(0.3)
        self.assertEqual(self.step(3, p), "0")
        asker.join()
        self.assertIn(replies[0][0], (DONE, REFUSED))
        self.assertEqual(p.do("check"), "right")


class Refusals(Base):
    def refused(self, p, words):
        _, reply = self.leave(p, REFUSED)
        self.assertIn(words, reply["why"])
        self.assertEqual(p.park_fields()["away_bytes"], 0)
        self.assertEqual(p.do("check"), "right")

    def test_managed_memory(self):
        p = self.start()
        p.do("make 4 4", "managed")
        self.refused(p, "managed")

    def test_memory_of_another_process(self):
        p = self.start()
        p.do("make 4 4", "import")
        self.refused(p, "another process")

    def library(self, name):
        """A process that has loaded a library of this name."""
        p = self.start()
        p.do("make 4 4")
        path = os.path.join(os.path.dirname(self.pages), name)
        shutil.copy(os.path.join(parks.FOLDERS.split(":")[1], "libcudart.so.13"), path)
        p.do("load " + path)
        return p

    def test_libraries(self):
        self.refused(self.library("libnvidia-glcore.so.580"), "graphics")

    def test_libraries_that_are_loaded_only(self):
        for name in "libnccl.so.2", "libcupti.so.13", "libnvshmem_host.so.3":
            with self.subTest(name):
                p = self.library(name)
                self.leave(p)
                self.assertEqual(p.do("check"), "right")

    def test_without_nvml(self):
        p = self.start(nvml=False)
        p.do("make 4 4")
        self.refused(p, "libnvidia-ml")

    def test_an_nvml_that_starts_slowly(self):
        p = self.start(SIM_NVML_MS="12000")
        p.do("make 4 4")
        begun = time.monotonic()
        self.refused(p, "does not answer yet")
        self.assertLess(time.monotonic() - begun, 11)
        self.wait_for(lambda: p.ask("park whole=1")[0] == DONE, "it does not leave")
        self.assertEqual(p.do("check"), "right")

    def test_an_nvml_that_fails_after_some_questions_starts_anew(self):
        p = self.start(SIM_NVML_LOSES="3")
        p.do("make 4 4")
        for _ in range(2):
            self.leave(p)
            self.assertEqual(p.do("check"), "right")

    def test_an_nvml_that_says_nothing(self):
        p = self.start(SIM_NVML_CODE="999")
        p.do("make 4 4")
        self.refused(p, "does not tell what is free")

    def test_a_part_of_a_gpu(self):
        p = self.start(SIM_MIG="1")
        p.do("make 4 4")
        self.refused(p, "MIG")

    def test_mps(self):
        with open(os.path.join(os.path.dirname(self.pages), "control"), "w", encoding="utf-8"):
            pass
        p = self.start(CUDA_MPS_PIPE_DIRECTORY=os.path.dirname(self.pages))
        p.do("make 4 4")
        self.refused(p, "MPS")

    def test_drivers_without_checkpoints(self):
        p = self.start(SIM_FAIL="cuCheckpointProcessGetState:1+:801")
        p.do("make 4 4")
        self.refused(p, "error 801")

    def test_requests_that_make_no_sense(self):
        p = self.start()
        for words in "gpu=0", "keep=1":
            self.assertEqual(p.ask("park whole=1 " + words)[0], parks.T.PAGE_REPLY_BAD)
