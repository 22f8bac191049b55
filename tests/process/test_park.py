# SPDX-License-Identifier: BSD-2-Clause
"""The device memory of a process goes to the host, and comes back when the process uses it."""
import os
import resource
import shutil
import time

import programs
from parking import FOLDERS, DONE, REFUSED, MIB, Base, Group


class Park(Base):
    def test_a_memory_cgroup_that_is_too_small_refuses_and_nobody_is_killed(self):
        p = self.start()
        group = Group(self, p.pid)
        self.addCleanup(p.talker.end)  # before the group's own
        p.do("make 32 20")
        live = p.state()["pools"][0]["allocated_bytes"]
        needed = live + live // 20 + 256 * MIB
        group.put(group.limit, group.used() + needed - 2 * MIB)
        self.assertIn("GiB are needed", self.park(p, code=REFUSED)[1]["why"])
        self.assertEqual(p.do("check"), "right")
        group.put(group.limit, group.used() + needed + 2 * MIB)
        self.park(p)
        self.assertEqual(p.do("check"), "right")

    def test_memory_goes_and_comes_back_with_its_bytes(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 32 20")
        self.assertLess(self.free_mib(), nothing - 100)
        value, reply = self.park(p)
        self.assertGreater(value, 100 * MIB)
        self.assertGreaterEqual(self.free_mib(), nothing)
        self.assertEqual(reply["gpus"][0]["stays"], [])
        self.assertGreater(reply["gpus"][0]["live_bytes"], 100 * MIB)
        pool = p.state()["pools"][0]
        self.assertEqual(pool["away_bytes"], value)
        self.assertEqual(pool["away_bytes"], pool["reserved_bytes"])
        self.assertEqual(p.park_fields(), {"away_bytes": value, "needs_bytes": 0})
        self.assertEqual(p.do("check"), "right")
        self.assertLess(self.free_mib(), nothing - 100)
        state = p.state()
        self.assertEqual(state["pools"][0]["away_bytes"], 0)
        self.assertEqual((state["counters"]["num_parks"], state["counters"]["num_wakes"]), (1, 1))
        self.assertEqual(p.do("copies"), "right")

    def test_a_request_wakes(self):
        p = self.start("make 16 20")
        self.park(p)
        self.assertGreater(self.wake(p), 16 * MIB)
        self.assertEqual(self.wake(p), 0)
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.state()["counters"]["num_wakes"], 1)

    def test_a_request_to_wake_that_meets_a_park_waits_for_it(self):
        p = self.start("make 32 20", SIM_REALTIME="1", SIM_COST_cuMemRelease="50000000")
        full = self.free_mib()
        at, sequence = p.page.put_ask("park")
        p.page.ring()
        self.wait_for(lambda: self.free_mib() > full, "nothing goes away")
        self.assertGreater(self.wake(p), 100 * MIB)
        self.assertEqual(p.page.await_reply(at, sequence, 60)[0], DONE)
        self.assertEqual(p.state()["pools"][0]["away_bytes"], 0)
        self.assertEqual(p.do("check"), "right")

    def test_allocations_and_frees_go_on(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 16 30")
        self.park(p)
        p.do("exchange")
        self.assertGreater(self.free_mib(), nothing - 100)
        self.assertEqual(p.state()["counters"]["num_wakes"], 0)
        self.assertEqual(p.do("check"), "right")
        self.park(p)
        p.do("drop")
        self.assertEqual(p.do("make 16 30", "check"), "right")

    def test_a_second_park_takes_what_is_left(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 16 30")
        value, reply = self.park(p, f"park keep={24 * MIB}")
        self.assertGreaterEqual(reply["gpus"][0]["stays"][0]["bytes"], 24 * MIB)
        self.assertLess(self.free_mib(), nothing - 23)
        more, reply = self.park(p)
        self.assertGreater(more, 0)
        self.assertEqual(reply["gpus"][0]["away_bytes"], value + more)
        self.assertGreaterEqual(self.free_mib(), nothing)
        self.assertEqual(self.park(p)[0], 0)
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.state()["pools"][0]["away_bytes"], 0)

    def test_the_process_is_as_large_as_before(self):
        p = self.start("make 32 20", "check")
        before = int(p.do("rss"))
        self.park(p)
        p.do("check")
        self.wait_for(lambda: int(p.do("rss")) <= before * 1.02 + 4096, "it grew")

    def test_off_refuses(self):
        p = self.start("make 8 8", GPUCACHE_PARK="off")
        self.assertIn("GPUCACHE_PARK=off", self.park(p, code=REFUSED)[1]["why"])
        self.assertEqual(p.ask("set PARK=ask")[0], DONE)
        self.park(p)
        self.assertEqual(p.do("check"), "right")

    def load(self, p, name):
        """A library of this name, which does nothing."""
        path = os.path.join(os.path.dirname(self.pages), name)
        shutil.copy(os.path.join(FOLDERS.split(":")[1], "libcudart.so.13"), path)
        p.do("load " + path)

    def test_a_library_that_comes_later_refuses(self):
        for name, why in (("libnvoptix.so.1", "submits work unseen"),
                          ("libgdrapi.so.2", "registered with a network card")):
            p = self.start("make 8 8")
            self.park(p)
            self.load(p, name)
            self.assertEqual(p.do("check"), "right")
            self.assertIn(why, self.park(p, code=REFUSED)[1]["why"])
            self.assertEqual(p.do("check"), "right")

    def test_without_a_thread_it_says_so(self):
        p = self.start("make 8 8")
        pages = int(programs.read(f"/proc/{p.pid}/statm").split()[0])
        resource.prlimit(p.pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
        self.assertIn("no thread", self.park(p, code=REFUSED)[1]["why"])
        resource.prlimit(p.pid, resource.RLIMIT_AS, (-1, -1))
        self.park(p)
        self.assertEqual(p.do("check"), "right")

    def test_too_little_host_memory_is_refused_at_every_mebibyte(self):
        """A limit on writable memory: the table of the store, the memory of the copies and the
        store's own bytes have none."""
        p = self.start("make 16 30")
        self.park(p)
        self.assertEqual(p.do("check"), "right")
        whys, refusals = [], 0
        for mib in range(1, 200):
            data = int(programs.read(f"/proc/{p.pid}/statm").split()[5]) * resource.getpagesize()
            resource.prlimit(p.pid, resource.RLIMIT_DATA, (data + mib * MIB, -1))
            code, _, reply = p.ask("park")
            resource.prlimit(p.pid, resource.RLIMIT_DATA, (-1, -1))
            if code == DONE:
                break
            self.assertEqual(code, REFUSED, reply)
            refusals += 1
            if reply.get("why") not in whys:
                whys.append(reply.get("why"))
                self.assertEqual(p.do("copies"), "right")
        self.assertEqual(whys, ["the process may not map so much more host memory",
                                "the process has no host memory for the copies",
                                "the kernel refuses the process more host memory"])
        self.assertEqual(p.do("check"), "right")
        counters = p.state()["counters"]
        self.assertEqual((counters["park_refusals"], counters["num_parks"]), (refusals, 2))

    def test_who_waits_is_told_that_the_driver_gives_no_memory(self):
        log = os.path.join(os.path.dirname(self.pages), "log")
        p = self.start("make 8 8")
        made = p.state()["pools"][0]["num_device_alloc"]
        p.talker.end()
        p = self.start(GPUCACHE_LOG="warn:" + log, SIM_FAIL=f"cuMemCreate:{made + 1}+:1")
        p.do("make 8 8")
        self.park(p)
        self.assertIn("the driver gives error 1", p.ask("wake")[2]["why"])
        p.talker.send("check")
        self.wait_for(lambda: "waits for its device memory: the driver gives error 1" in
                      programs.read(log), "it waits without a word")

    def test_who_may_open_no_file_is_told_so(self):
        p = self.start("make 16 20")
        limit = resource.prlimit(p.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(p.pid, resource.RLIMIT_NOFILE, (0, limit[1]))
        why = self.park(p, code=REFUSED)[1]["why"]
        resource.prlimit(p.pid, resource.RLIMIT_NOFILE, limit)
        self.assertIn("which files the process has open", why)
        self.assertEqual(p.do("check"), "right")

    def test_it_parks_itself(self):
        p = self.start(GPUCACHE_PARK="idle:100ms")
        nothing = self.free_mib()
        p.do("make 16 20")
        self.wait_for(lambda: self.free_mib() >= nothing, "it does not park itself")
        self.assertEqual(p.do("check"), "right")
        self.wait_for(lambda: self.free_mib() >= nothing, "it does not park itself again")
        self.assertEqual(p.ask("set PARK=idle:2s")[0], DONE)
        wakes = time.monotonic()
        self.assertEqual(p.ask("wake")[0], DONE)
        self.wait_for(lambda: self.free_mib() >= nothing, "a request wakes it for ever")
        self.assertGreater(time.monotonic(), wakes + 1.9)
        self.assertEqual(p.ask("set PARK=ask")[0], DONE)
        self.assertEqual(p.do("check"), "right")
        time.sleep(0.5)
        self.assertEqual(p.state()["pools"][0]["away_bytes"], 0)

    def test_threads_work_on(self):
        p = self.start("make 8 40", "work 4")
        self.parks_of_one_at_work(p, 1 << 30, 2, "flush frameworks=0 wait=0")

    def test_an_exit_loses_nothing(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 16 20")
        self.park(p)
        self.assertEqual(p.talker.finish()[0], 0)
        self.assertGreaterEqual(self.free_mib(), nothing)

    def test_who_works_is_left_alone(self):
        """`gpucache park --all`."""
        p = self.start("make 8 20", "work 2")
        code, _, reply = p.ask("park unused=2000")
        self.assertEqual((code, reply["state"]), (DONE, "used"))
        p.do("rest")
        self.park(p, "park unused=300")
        self.assertEqual(p.do("check"), "right")

    def test_the_page_says_that_it_is_parked(self):
        p = self.start("make 8 20")
        self.assertNotIn("park", p.state())
        self.park(p)
        told = p.state()["park"]
        self.assertEqual((told["state"], told["needs_bytes"]), ("parked", 0))
        self.assertLess(abs(time.time_ns() - told["since_unix_ns"]), 60e9)
        p.do("check")
        self.assertNotIn("park", p.state())

    def test_one_that_is_used_now_and_then_is_parked_ever_less_often(self):
        p = self.start("make 8 20", GPUCACHE_PARK="idle:100ms")
        pauses = []
        for _ in range(5):
            used = time.monotonic()
            self.wait_for(lambda: p.state()["pools"][0]["away_bytes"], "it does not park itself")
            pauses.append(time.monotonic() - used)
            self.assertEqual(p.do("check"), "right")
        self.assertGreater(pauses[4], 0.8, pauses)  # of 0.1 s, doubled each time

    def test_one_that_is_always_refused_tries_ever_less_often(self):
        p = self.start(GPUCACHE_PARK="idle:100ms", GPUCACHE_PARK_TO="/missing")
        p.do("make 8 20")
        refusals = lambda: p.state()["counters"]["park_refusals"]  # noqa: E731
        self.wait_for(refusals, "it does not try to park itself")
        time.sleep(4)
        self.assertLessEqual(refusals(), 6)  # at 0.1 s, 0.2 s, 0.4 s ..
        before = refusals()
        self.assertEqual(p.ask("set PARK=idle:90ms")[0], DONE)
        self.wait_for(lambda: refusals() > before, "it does not try anew", 1)


class Full(Base):
    """A device that is full when the memory is to come back."""

    def capacity(self):
        return {"SIM_CAPACITY": "512M"}

    def fill(self):
        while self.free_mib() > 110:
            self.assertEqual(self.other.do("make 16 7"), "done")  # one of 16 MiB

    def test_a_use_waits_for_memory(self):
        p = self.start("make 16 60")
        self.park(p)
        self.fill()
        code, _, reply = p.ask("wake")
        self.assertEqual((code, reply["state"]), (REFUSED, "refused"), reply)
        self.assertIn("GiB are needed", reply["why"])
        at, sequence = p.page.put_ask("wake")
        p.page.ring()
        p.talker.send("check")  # outlasts the request
        self.assertEqual(p.page.await_reply(at, sequence, 60)[0], REFUSED)
        self.wait_for(lambda: p.park_fields()["needs_bytes"], "it waits for nothing")
        self.assertEqual(p.state()["park"]["state"], "waits")
        self.assertGreater(p.state()["park"]["needs_bytes"], 200 * MIB)
        time.sleep(0.2)
        self.other.do("drop")
        self.assertEqual(p.talker.read(), "right")
        self.assertEqual(p.park_fields()["needs_bytes"], 0)

    def waiter(self, p):
        """A use waits for the process's device memory: how many bytes."""
        p.talker.send("check")
        return self.wait_for(lambda: p.park_fields()["needs_bytes"], "it waits for nothing")

    def test_a_park_is_refused_while_a_use_waits_for_memory(self):
        p = self.start("make 16 60")
        self.park(p)
        self.fill()
        needs = self.waiter(p)
        for words in "park", "park wait=0":
            self.assertEqual(self.park(p, words, REFUSED)[1]["why"], "it is waking")
            self.assertEqual(p.park_fields()["needs_bytes"], needs)
            self.assertEqual(p.state()["park"]["state"], "waits")
        self.other.do("drop")
        self.assertEqual(p.talker.read(), "right")
        self.park(p)
        self.assertEqual(p.do("check"), "right")
        counters = p.state()["counters"]
        self.assertEqual((counters["num_parks"], counters["num_wakes"]), (2, 2))

    def test_the_longest_waiter_comes_first(self):
        """What would do for the one that came later is left for the first."""
        first = self.start("make 16 50", GPUCACHE_SHARE="0", GPUCACHE_PARK_WAIT="60s")
        self.park(first)
        later = self.start("make 4 8", GPUCACHE_SHARE="0", GPUCACHE_PARK_WAIT="60s")
        self.park(later)
        some = self.start_bare()
        some.do("take 56")
        self.other.do(f"take {int(self.free_mib()) - 8}")
        needs = self.waiter(first), self.waiter(later)
        some.do("drop")
        free = self.free_mib() * MIB
        self.assertTrue(8 * MIB < needs[1] < free / 2 < needs[0] / 2, (needs, free))
        time.sleep(1.5)  # six times the longest pause between two tries
        self.assertEqual([p.park_fields()["needs_bytes"] for p in (first, later)], list(needs))
        self.other.do("drop")
        self.assertEqual((first.talker.read(), later.talker.read()), ("right", "right"))

    def test_what_was_freed_meanwhile_needs_no_memory(self):
        p = self.start("make 16 60", GPUCACHE_PARK_WAIT="2s")
        self.park(p)
        self.fill()
        p.do("drop")
        self.assertEqual(p.do("make 1 3", "check"), "right")
        self.assertEqual(p.state()["pools"][0]["away_bytes"], 0)

    def sleeper(self, *lines, **options):
        """A process that lends in its sleep; and its log."""
        log = os.path.join(self.scratch(), "log")
        p = self.start(*lines, GPUCACHE_PARK="lend:1s", GPUCACHE_LOG="info:" + log, **options)
        self.wait_for(lambda: p.page.get("asleep_since_ns"), "it does not sleep")
        return p, lambda: programs.read(log)

    def requests_while_one_waits(self, waits, sleeper, seconds=3):
        """How many come to the sleeper."""
        waits.talker.send("check")
        self.wait_for(lambda: waits.park_fields()["needs_bytes"], "it waits for nothing")
        before = sleeper.page.num_asks()
        time.sleep(seconds)
        return sleeper.page.num_asks() - before

    def test_who_has_nothing_left_to_lend_is_left_alone(self):
        asks = self.start("make 16 60")
        sleeper, log = self.sleeper("make 16 4")
        self.park(asks)
        self.park(sleeper)
        self.wait_for(lambda: not sleeper.page.get("asleep_since_ns"), "it lends what it has not")
        self.fill()
        self.assertLess(self.requests_while_one_waits(asks, sleeper), 20)
        self.assertEqual(log().count("parked in"), 1, log())
        self.other.do("drop")
        self.assertEqual(asks.talker.read(), "right")
        self.assertEqual(sleeper.do("check"), "right")
        self.wait_for(lambda: sleeper.page.get("asleep_since_ns"), "it lends no more")

    def test_who_cannot_be_parked_tries_it_ever_less_often(self):
        """But once it can be, it lends; and what needs less is tried at once."""
        asks = self.start("make 16 60")
        folder = os.path.join(self.scratch(), "parked")
        self.park(asks)
        sleeper, log = self.sleeper("make 16 60", GPUCACHE_PARK_TO=folder)
        self.fill()
        self.requests_while_one_waits(asks, sleeper, 4)
        refused = log().count("not parked")
        self.assertIn(refused, (1, 2, 3), log())  # at 0, 1 and 3 s
        self.assertEqual(sleeper.ask(f"give gpu={self.uuid(sleeper)} bytes={MIB} wait=1000")[1], 0)
        self.assertEqual(log().count("not parked"), refused + 1, log())
        os.mkdir(folder, 0o700)
        self.assertEqual(asks.talker.read(), "right")
        asks.do("drop")
        self.other.do("drop")
        self.assertEqual(sleeper.do("check"), "right")

    def uuid(self, p):
        return p.state()["pools"][0]["uuid"]

    def test_what_one_device_cannot_lend_another_one_can(self):
        sleeper, _ = self.sleeper("second 128", "make 4 4", SIM_DEVICES="2")
        first, second = (
            [pool["uuid"] for pool in sleeper.state()["pools"] if pool["device"] == device][0]
            for device in (0, 1))
        folder = os.path.join(self.scratch(), "parked")
        self.assertEqual(sleeper.ask(f"set PARK_TO={folder}")[0], DONE)
        self.wait_for(lambda: sleeper.page.get("asleep_since_ns"), "it does not sleep")
        give = lambda uuid: sleeper.ask(f"give gpu={uuid} bytes={MIB} wait=1000")[1]  # noqa: E731
        self.assertEqual([give(first), give(first), give(first)], 3 * [0])
        os.mkdir(folder, 0o700)
        self.assertGreater(give(second), 0)
        self.assertEqual(sleeper.do("check"), "right")

    def test_who_worked_lately_lends_nothing(self):
        first = self.start(GPUCACHE_PARK="lend:60s")  # as long as all of this takes on any machine
        second = self.start(GPUCACHE_SHARE="1s")
        first.do("make 16 70")
        self.assertNotEqual(second.talker.do("make 16 70"), "done")
        self.assertEqual(first.do("check"), "right")
        self.assertEqual(first.state()["counters"]["num_parks"], 0)

    def test_a_request_meets_a_park_that_has_begun(self):
        """The memory that goes anyway is what the other process asks for."""
        first = self.start(GPUCACHE_PARK="idle:1s,lend:1s", SIM_REALTIME="1",
                           SIM_COST_cuMemcpyDtoHAsync_v2="20000000")
        second = self.start(GPUCACHE_SHARE="20s")
        first.do("make 16 70")
        self.wait_for(lambda: first.page.get("asleep_since_ns"), "it does not sleep")
        time.sleep(0.1)
        self.assertEqual(second.do("make 16 70", "check"), "right")
        self.assertEqual(first.state()["counters"]["num_parks"], 1)
        second.do("drop")
        self.assertEqual(first.do("check"), "right")

    def test_a_park_of_another_device_gives_no_memory_of_this_one(self):
        p = self.start(SIM_DEVICES="2", SIM_REALTIME="1",
                       SIM_COST_cuMemcpyDtoHAsync_v2="20000000")
        p.do("second 128", "make 4 4")
        uuid = [pool["uuid"] for pool in p.state()["pools"] if pool["device"] == 0][0]
        at, sequence = p.page.put_ask("park gpu=1")
        p.page.ring()
        self.wait_for(lambda: "gpucache-copy" in programs.threads(p.pid), "it copies nothing")
        code, value, reply = p.ask(f"give gpu={uuid} bytes={200 * MIB} wait=2000")
        self.assertIn("returned_bytes", reply)
        self.assertLess(value, 64 * MIB, reply)
        code, value, _ = p.page.await_reply(at, sequence, 60)
        self.assertEqual(code, DONE)
        self.assertGreaterEqual(value, 128 * MIB)
        self.assertEqual(p.do("check"), "right")


class Turns(Base):
    """A device that has the memory of one of two programs."""

    def capacity(self):
        return {"SIM_CAPACITY": "144M"}

    def two_that_lend(self, park):
        """The second one has what the first one lent in its sleep."""
        options = {"GPUCACHE_PARK": park, "GPUCACHE_SHARE": "20s"}
        first, second = self.start(**options), self.start(**options)
        first.do("make 4 70")
        self.wait_for(lambda: first.page.get("asleep_since_ns"), "it does not sleep")
        self.assertEqual(second.do("make 4 70", "check"), "right")
        return first, second

    def test_two_take_turns(self):
        first, second = self.two_that_lend("lend:1s")
        for p in (first, second) * 3:
            self.assertEqual(p.do("check"), "right")

    def test_who_never_rests_keeps_its_memory_and_the_other_waits(self):
        """Both need most of the device and lend only in their sleep. The one that works again and
        again goes on; the other comes as soon as it sleeps."""
        first, second = self.two_that_lend("lend:2s")
        works, waits, used, judged = second, first, time.monotonic(), 0
        for _ in range(8):
            waits.talker.send("check")
            parks, longest, end = works.state()["counters"]["num_parks"], 0, used + 3
            while used < end:
                self.assertEqual(works.do("check"), "right")
                before, used = used, time.monotonic()
                longest = max(longest, used - before)
                time.sleep(0.25)
            found = works.state()["counters"]["num_parks"], waits.park_fields()["needs_bytes"] > 0
            if max(longest, time.monotonic() - used) < 1.8:  # else the machine had it rest
                self.assertEqual(found, (parks, True))
                judged += 1
            self.assertEqual(waits.talker.read(), "right")
            works, waits, used = waits, works, time.monotonic()
            if judged == 2:
                return
        self.skipTest("the machine stands still again and again")
