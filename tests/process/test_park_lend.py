# SPDX-License-Identifier: BSD-2-Clause
"""A request for memory whose neighbour has to park for longer than GPUCACHE_SHARE."""
import os
import signal
import time

import programs
from parking import Base

COPY = "cuMemcpyDtoHAsync_v2"


class Lend(Base):
    def sleeper(self, *lines, cost_ms=100):
        p = self.start(*lines, GPUCACHE_PARK="lend:1s", SIM_REALTIME="1",
                       **{"SIM_COST_" + COPY: str(cost_ms * 10**6)})
        self.wait_for(lambda: p.page.get("asleep_since_ns"), "it does not sleep")
        return p

    def begin(self, asker, sleeper, line):
        """The request has reached the driver call of the sleeper's first copy."""
        before = int(sleeper.do("calls " + COPY))
        asker.talker.send(line)
        self.wait_for(lambda: int(sleeper.do("calls " + COPY)) > before, "it copies nothing")

    def test_the_request_waits_until_the_park_has_ended(self):
        sleeper, asker = self.sleeper(*9 * ["take 64"], "make 64 1"), self.start()
        begun = time.monotonic()
        self.assertEqual(asker.talker.do("take 700"), "done")
        self.assertGreater(time.monotonic() - begun, 1.5, "the park was too short for this test")
        self.assertEqual(sleeper.state()["counters"]["num_parks"], 1)
        self.assertEqual(asker.do("check"), "right")
        asker.do("drop")
        self.assertEqual(sleeper.do("check"), "right")

    def test_two_that_park_one_after_the_other(self):
        """Each takes longer than the request's time, and only both have enough."""
        sleepers = [self.sleeper(*6 * ["take 64"], "make 16 1", cost_ms=60) for _ in range(2)]
        asker = self.start()
        self.assertEqual(asker.talker.do("take 800"), "done")
        self.assertEqual([p.state()["counters"]["num_parks"] for p in sleepers], [1, 1])
        asker.do("drop")
        for p in sleepers:
            self.assertEqual(p.do("check"), "right")

    def test_who_is_stopped_meanwhile_is_waited_for_no_longer(self):
        sleeper, asker = self.sleeper(*9 * ["take 64"], "make 64 1"), self.start()
        self.begin(asker, sleeper, "take 700")
        programs.stop(sleeper.pid)
        begun = time.monotonic()
        self.assertNotEqual(asker.talker.read(), "done")
        self.assertLess(time.monotonic() - begun, 20)
        os.kill(sleeper.pid, signal.SIGCONT)
        self.assertEqual(sleeper.do("check"), "right")

    def test_who_is_stopped_meanwhile_leaves_time_for_another(self):
        slow = self.sleeper(*6 * ["take 64"], "make 16 1", cost_ms=1000)  # it is asked first
        quick = self.sleeper(*8 * ["take 64"], "make 16 1", cost_ms=1)
        asker = self.start(GPUCACHE_SHARE="3s")
        self.begin(asker, slow, "take 300")
        time.sleep(2.5)
        programs.stop(slow.pid)
        self.assertEqual(asker.talker.read(), "done")
        self.assertEqual(quick.state()["counters"]["num_parks"], 1)
        os.kill(slow.pid, signal.SIGCONT)

    def test_who_is_killed_meanwhile_leaves_its_memory(self):
        sleeper, asker = self.sleeper(*9 * ["take 64"], "make 64 1"), self.start()
        self.begin(asker, sleeper, "take 700")
        sleeper.talker.end()
        self.assertEqual(asker.talker.read(), "done")

    def test_a_park_that_a_use_cancels_ends_the_wait(self):
        sleeper, asker = self.sleeper(*9 * ["take 64"], "make 64 1"), self.start()
        self.begin(asker, sleeper, "take 700")
        self.assertEqual(sleeper.do("check"), "right")
        self.assertNotEqual(asker.talker.read(), "done")
        self.assertEqual(sleeper.do("check"), "right")
