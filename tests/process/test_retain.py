# SPDX-License-Identifier: BSD-2-Clause
"""After a wake the host retains copies of device memory, and the next park copies what differs."""
import os

import parking
import programs

DONE, MIB = parking.DONE, parking.MIB
PAGE = 2 * MIB


class Retain(parking.Base):
    def start(self, *lines, retain="1G", **options):
        return super().start(*lines, GPUCACHE_PARK=f"ask,retain:{retain}", SIM_HAZARD="abort",
                             **options)

    def copied(self, p):
        """What a park copies, and what the host has then."""
        gpu = self.park(p)[1]["gpus"][0]
        return gpu["copied_bytes"], gpu["live_bytes"]

    def test_what_is_unchanged_is_not_copied(self):
        p = self.start("make 16 20")
        copied, live = self.copied(p)
        self.assertEqual(copied, live)
        self.assertGreater(live, 48 * MIB)
        self.wake(p)
        self.assertEqual(self.copied(p), (0, live))
        self.assertEqual(p.state()["counters"]["retained_bytes"], live)
        self.assertEqual(p.do("check"), "right")
        copied, live = self.copied(p)
        self.assertLessEqual(copied, 2 * PAGE)  # the count of wrong words
        self.assertEqual(p.do("copies"), "right")

    def test_what_is_changed_is_copied(self):
        p = self.start("make 16 20")
        _, live = self.copied(p)
        for _ in range(3):
            p.do("refill")
            self.assertEqual(self.copied(p), (live, live))
            self.assertEqual(p.do("copies"), "right")

    def test_one_changed_byte_at_each_edge_is_copied(self):
        p = self.start("make 8 1")
        self.copied(p)
        edges = [0, 8 * MIB - 1] + [i * PAGE + d for i in (1, 2, 3) for d in (-1, 0)]
        for offset in edges + [PAGE + i for i in (1, 4095, 4096, 65535, 524289, MIB + 7)]:
            p.do(f"poke {offset}")
            copied, live = self.copied(p)
            self.assertGreaterEqual(live, 8 * MIB)
            self.assertEqual(copied, PAGE, offset)
            self.assertEqual(p.do("poked"), "right", offset)

    def test_blocks_come_and_go(self):
        p = self.start("make 4 40")
        for i in range(12):
            self.copied(p)
            if i % 2:
                self.wake(p)
            self.assertEqual(p.do("swap" if i % 3 else "exchange", "check"), "right")
            if i % 4 == 1:
                self.assertEqual(p.do("make 6 3", "check"), "right")

    def test_it_grows_and_shrinks(self):
        p = self.start("make 8 8")
        _, first = self.copied(p)
        self.wake(p)
        p.do("make 16 15")
        copied, more = self.copied(p)
        self.assertGreater(more, first)
        self.assertLess(copied, more)  # what was there before
        self.assertEqual(p.do("check", "drop"), "done")
        copied, less = self.copied(p)
        self.assertLess(less, more)
        self.assertEqual(p.do("make 16 30", "check"), "right")
        self.copied(p)
        self.assertEqual(p.do("copies"), "right")

    def test_a_second_park_adds_pages(self):
        p = self.start("make 16 30")
        _, live = self.copied(p)
        for _ in range(2):
            self.wake(p)
            part = self.park(p, f"park keep={24 * MIB}")[1]["gpus"][0]
            rest = self.park(p)[1]["gpus"][0]
            self.assertEqual(part["copied_bytes"] + rest["copied_bytes"], 0)
            self.assertEqual(part["live_bytes"] + rest["live_bytes"], live)
        self.assertEqual(p.do("check"), "right")

    def test_no_more_is_kept_than_asked_for(self):
        p = self.start("make 32 20", "check", retain="16M")
        before = int(p.do("rss"))
        _, live = self.copied(p)
        self.assertGreater(live, 64 * MIB)
        self.wake(p)
        self.await_rss(p, before, 24)
        self.assertGreater(int(p.do("rss")), before + 12 * 1024)
        self.assertEqual(self.copied(p), (live - 16 * MIB, live))
        self.assertEqual(p.do("copies"), "right")

    def await_rss(self, p, before, more_mib):
        self.wait_for(lambda: int(p.do("rss")) <= before * 1.02 + more_mib * 1024,
                      "it keeps memory", 10)

    def is_dropped(self, p, before, live):
        self.await_rss(p, before, 16)
        self.assertEqual(self.copied(p), (live, live))
        self.assertEqual(p.do("copies"), "right")

    def test_a_request_drops_it(self):
        p = self.start("make 32 20", "check")
        before = int(p.do("rss"))
        _, live = self.copied(p)
        self.wake(p)
        self.assertGreater(int(p.do("rss")), before + live // 2048)
        self.assertGreater(p.ask("wake drop=1")[2]["dropped_bytes"], live // 2)
        self.assertNotIn("dropped_bytes", p.ask("wake drop=1")[2])
        self.is_dropped(p, before, live)
        self.wake(p, "wake drop=0")
        self.copied(p)
        self.wake(p, "wake drop=1")
        self.is_dropped(p, before, live)
        self.assertEqual(p.ask("wake drop=2")[0], parking.T.PAGE_REPLY_BAD)

    def test_an_option_drops_it(self):
        p = self.start("make 32 20", "check")
        before = int(p.do("rss"))
        _, live = self.copied(p)
        self.wake(p)
        self.assertEqual(p.ask("set PARK=ask,retain:4M")[0], DONE)
        self.await_rss(p, before, 20)
        self.assertEqual(p.ask("set PARK=ask,retain:1G")[0], DONE)
        self.assertEqual(self.copied(p), (live - 4 * MIB, live))
        self.wake(p)
        self.assertEqual(p.ask("set PARK=ask")[0], DONE)
        self.await_rss(p, before, 16)
        self.assertEqual(p.ask("set PARK=ask,retain:1G")[0], DONE)
        self.is_dropped(p, before, live)

    def test_of_a_file_no_copy_is_retained(self):
        p = self.start("make 8 20")
        _, live = self.copied(p)
        for place, again in (("host", 0), (self.scratch(), None), ("host", live), ("host", 0)):
            self.wake(p)
            gpu = self.park(p, f"park to={place}")[1]["gpus"][0]
            self.assertEqual(gpu["copied_bytes"],
                             gpu["live_bytes"] if again is None else again, place)
            self.assertGreater(gpu["live_bytes"], live - 2 * PAGE)
        self.assertEqual(p.do("copies"), "right")

    def test_a_folder_that_is_refused_drops_none(self):
        p = self.start()
        p.do("make 8 20")
        _, live = self.copied(p)
        self.wake(p)
        self.park(p, "park to=/missing", code=parking.REFUSED)
        self.assertEqual(self.copied(p), (0, live))

    def test_a_reset_changes_the_key(self):
        p = self.start("make 16 20")
        _, live = self.copied(p)
        p.do("reset")
        p.do("make 16 20")
        copied, live = self.copied(p)
        self.assertEqual(copied, live)
        self.wake(p)
        self.assertEqual(self.copied(p), (0, live))
        self.assertEqual(p.do("copies"), "right")

    def test_without_the_kernel_all_is_copied(self):
        log = os.path.join(self.scratch(), "log")
        p = self.start("make 16 20", SIM_FAIL="cuModuleLoadData:1+:218",
                       GPUCACHE_LOG=f"warn:{log}")
        for _ in range(3):
            copied, live = self.copied(p)
            self.assertEqual(copied, live)
            self.assertEqual(p.do("check"), "right")
        self.assertEqual(programs.read(log).count("loads no kernel (error 218)"), 1)

    def test_without_memory_for_the_kernel_a_later_park_tries_again(self):
        for call in "cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc_v2":
            p = self.start("make 8 8", SIM_FAIL=f"{call}:1:2")
            for _ in range(2):
                copied, live = self.copied(p)
                self.assertEqual(copied, live)
                self.wake(p)
            self.assertEqual(self.copied(p), (0, live))
            self.assertEqual(p.do("copies"), "right")

    def test_without_memory_for_the_key_no_kernel_is_left(self):
        """A module takes device memory. Each park tries, and loads no second one."""
        for call in "cuModuleGetFunction", "cuMemAlloc_v2":
            p = self.start("make 8 8", SIM_FAIL=f"{call}:1+:2", SIM_OBJECT_BYTES="1M")
            self.copied(p)
            self.wake(p)
            free = self.free_mib()
            for _ in range(4):
                self.copied(p)
                self.wake(p)
            self.assertGreater(self.free_mib(), free - 3)
            self.assertEqual(p.do("check"), "right")
            p.talker.end()

    def test_threads_work_on(self):
        self.parks_of_one_at_work(self.start("make 2 12", "work 3"), 4, 10)
