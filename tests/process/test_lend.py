# SPDX-License-Identifier: BSD-2-Clause
"""Processes on one simulated GPU lend each other their idle memory."""
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

import page_client
import programs
import waiting

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY, FOLDERS, LENDER, MEANS = os.path.realpath(sys.argv[1]), *sys.argv[2:5]
MIB = 1 << 20
NO_MEMORY, UNKNOWN = 2, 999
# What a request may wait for others: on a busy machine a second is too short for two that fit.
SHARE = "10s"
PAGE_BYTES = 98304
ASYNC_IDLE_AT = 4096 + 56  # of the first GPU (shim/page/layout.h)


# A process that sits in a read, with a framework that has 800 MiB in its own cache
FRAMEWORK = """
import sys
sys.path.insert(0, sys.argv[1])
import framework_fakes
cache = framework_fakes.Cache()
framework_fakes.put_torch(cache)
cache.fill(800 << 20)
print("ready", flush=True)
sys.stdin.readline()
"""


class Gpu:
    """A GPU that several processes share, with a folder for their pages and reports."""

    def __init__(self, test, capacity="1G"):
        self.test = test
        self.name, self.folder = test.shared_gpu(0o666), test.scratch()  # any user may join
        self.pages = os.path.join(self.folder, "pages")
        self.capacity = capacity
        self.processes = []
        os.chmod(self.folder, 0o755)
        test.addCleanup(self.end)

    def environ(self, **options):
        return {**programs.environ(LIBRARY, FOLDERS), "SIM_SHARED": self.name,
                "SIM_CAPACITY": self.capacity, "SIM_DEVICES": "1",
                "GPUCACHE_DIR": self.pages, "GPUCACHE_SHARE": SHARE, **options}

    def start(self, idle_mib=0, **options):
        process = Process(self, **options)
        self.processes.append(process)
        if idle_mib:
            process.cache(idle_mib)
        return process

    def shows(self, pid):
        return page_client.page_of(self.pages, pid)

    def end(self):
        for process in self.processes:
            process.end()


def others_enter(path):
    """Can other users run what is there? A checkout may lie in a home that is its owner's alone."""
    folders = os.path.realpath(path).split("/")[:-1]
    return all(os.stat("/".join(folders[:n]) + "/").st_mode & 1 for n in range(1, len(folders) + 1))


class Process(programs.Talker):
    """A lender under the library."""

    def __init__(self, gpu, *, before=(), after=(), user=None, **options):
        self.gpu = gpu
        self.report = os.path.join(gpu.folder, f"report-{len(gpu.processes)}.json")
        command = [*before, LENDER, *after]
        super().__init__(
            command, gpu.environ(**{"GPUCACHE_STATS": f"exit:{self.report}", **options}),
            stderr=None, user=user)

    def read(self):
        return [int(word) for word in super().read().split()]

    def take(self, mib, piece=None):
        """Returns the code of the last allocation."""
        return self.do(f"take {mib * MIB} {(piece or mib) * MIB}")[0]

    def cache(self, mib, piece=16):
        """Has so much idle, and a page."""
        if self.take(mib, piece) != 0 or self.do("drop") != [0]:
            raise AssertionError("no memory to begin with")
        self.await_page()

    def async_idle(self):
        """What its page says of the driver's own pools."""
        with open(self.page(), "rb") as page:
            page.seek(ASYNC_IDLE_AT)
            return struct.unpack("=Q", page.read(8))[0]

    def await_page(self):
        """The control thread makes the page, soon after the first allocation."""
        self.gpu.test.wait_for(self.page, "no page")

    def page(self):
        return self.gpu.shows(self.pid)

    def end(self):
        """Ends the process; returns the counters and the first pool's figures of its report."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.wait(timeout=30)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        report = json.loads(programs.read(self.report, '{"counters": {}, "pools": []}'))
        return {**report["counters"], **(report["pools"][0] if report["pools"] else {})}


class Lend(waiting.Waiting):
    def pair(self, giving=None, **asking):
        """A process with 800 MiB of a GPU idle, and one that has nothing so far."""
        gpu = Gpu(self)
        return gpu.start(800, **(giving or {})), gpu.start(**asking)

    def test_a_program_gets_what_another_one_has_idle(self):
        for backing in ("arena", "segment"):
            with self.subTest(backing=backing):
                giver, asker = self.pair({"GPUCACHE_BACKING": backing}, GPUCACHE_BACKING=backing)
                code, _, time_us = asker.do(f"take {700 * MIB} {700 * MIB}")
                self.assertEqual(code, 0)
                asker.await_page()
                print(f"{backing}: 700 MiB after {time_us / 1000:.1f} ms", file=sys.stderr)
                # It goes on both ways.
                self.assertEqual(asker.do("drop"), [0])
                self.assertEqual(giver.take(800, 100), 0)
                figures = asker.end()
                self.assertGreaterEqual(figures["num_oom_borrowed"], 1)
                self.assertGreaterEqual(figures["borrowed_bytes"], 400 * MIB)
                self.assertGreaterEqual(figures["lent_bytes"], 400 * MIB)
                self.assertEqual(figures["num_ooms"], 0)
                self.assertGreaterEqual(giver.end()["num_lends"], 1)

    def test_a_long_bound_is_no_longer_wait_than_a_request_may_ask_for(self):
        giver, asker = self.pair(GPUCACHE_SHARE="60s")
        self.assertEqual(asker.take(700), 0)

    def test_processes_whose_first_thread_has_ended_lend(self):
        giver, asker = self.pair({"after": ["leave"]}, after=["leave"])
        self.assertEqual(asker.take(700), 0)
        self.assertGreaterEqual(asker.end()["borrowed_bytes"], 400 * MIB)
        self.assertGreaterEqual(giver.end()["num_lends"], 1)

    def test_no_more_goes_back_than_is_missing(self):
        giver, asker = self.pair()
        self.assertEqual(asker.take(400), 0)  # 224 MiB are free
        self.assertLessEqual(giver.end()["lent_bytes"], 240 * MIB)

    def test_a_program_that_grows_in_small_pieces_asks_seldom(self):
        gpu = Gpu(self, "16G")
        giver = gpu.start()
        giver.cache(15 * 1024, 32)
        asker = gpu.start()
        self.assertEqual(asker.take(12 * 1024, 64), 0)
        figures = asker.end()
        lent = giver.end()
        self.assertGreaterEqual(figures["borrowed_bytes"], 11 * 1024 * MIB)
        # One for each 64 MiB would be many. An ask is at most a sixteenth of the GPU.
        self.assertLessEqual(lent["num_lends"], 30)
        self.assertLessEqual(lent["lent_bytes"], 14 * 1024 * MIB)

    def test_a_program_without_cumemalloc_has_a_page_and_lends(self):
        for kind in ("create", "async", "managed", "array"):
            with self.subTest(kind=kind):
                gpu = Gpu(self)
                giver = gpu.start(900)
                asker = gpu.start()
                for _ in range(8):
                    self.assertEqual(asker.do(f"other {kind}"), [0])
                asker.await_page()
                self.assertTrue(asker.page())
                os.kill(asker.pid, signal.SIGUSR1)  # would end a process without a handler
                time.sleep(0.05)
                self.assertGreater(asker.do("free")[0], 0)
                if kind != "managed":  # which lies in host memory where the GPU is full
                    self.assertGreaterEqual(asker.end()["borrowed_bytes"], 300 * MIB)
        # What takes no memory of a device starts nothing.
        gpu = Gpu(self)
        process = gpu.start()
        self.assertEqual(process.do("other host"), [0])
        time.sleep(0.1)
        self.assertFalse(process.page())

    def test_each_call_that_takes_memory_gets_it_from_another_process(self):
        gpu = Gpu(self)
        options = {"SIM_CAPACITY": "2G", "SIM_CTX_BYTES": "100M", "SIM_OBJECT_BYTES": "8M"}
        for share, argument in (("1", ""), ("0", "all")):
            done = subprocess.run([MEANS, argument], capture_output=True, text=True, timeout=120,
                                  env=gpu.environ(**options, GPUCACHE_SHARE=share), check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_nothing_is_lent_where_one_side_or_the_folder_is_off(self):
        for giving, asking in (({"GPUCACHE_SHARE": "0"}, {}), ({}, {"GPUCACHE_SHARE": "0"}),
                               ({}, {"GPUCACHE_DIR": "none"}),
                               ({}, {"GPUCACHE_MAX_RESERVED": "64M"})):
            with self.subTest(giving=giving, asking=asking):
                giver, asker = self.pair(giving, **asking)
                self.assertEqual(asker.take(600), NO_MEMORY)
                figures = asker.end()
                if asking:
                    self.assertEqual(figures["num_lend_asks"], 0)
                self.assertEqual(figures["num_oom_borrowed"], 0)
                self.assertEqual(giver.end()["lent_bytes"], 0)

    def test_two_that_ask_each_other_at_once_both_end(self):
        gpu = Gpu(self)
        both = [gpu.start(480), gpu.start(480)]
        for _ in range(10):
            for process in both:  # together they fit
                process.send(f"take {500 * MIB} {500 * MIB}")
            self.assertEqual([process.read()[0] for process in both], [0, 0])
            for process in both:
                self.assertEqual(process.do("drop"), [0])
        start = time.monotonic()
        for process in both:  # one of them at most fits
            process.send(f"take {800 * MIB} {800 * MIB}")
        codes = sorted(process.read()[0] for process in both)
        self.assertIn(codes, ([0, NO_MEMORY], [NO_MEMORY, NO_MEMORY]))
        self.assertLess(time.monotonic() - start, 20)

    def test_twenty_that_ask_at_once_are_all_served(self):
        gpu = Gpu(self, "2G")
        giver = gpu.start(2000)
        # On a slow machine the twenty alone take a second.
        askers = [gpu.start(GPUCACHE_SHARE="20s") for _ in range(20)]
        for asker in askers:
            asker.do("free")
        start = time.monotonic()
        for asker in askers:
            asker.send(f"take {64 * MIB} {64 * MIB}")
        self.assertEqual([asker.read()[0] for asker in askers], [0] * 20)
        print(f"20 processes: {(time.monotonic() - start) * 1000:.0f} ms", file=sys.stderr)
        figures = [asker.end() for asker in askers]
        lent = giver.end()
        # Not much more than was missing, though all asked the same one
        self.assertLess(lent["lent_bytes"], 20 * 64 * MIB * 1.3)
        self.assertEqual(sum(figure["num_ooms"] for figure in figures), 0)

    def test_a_stopped_peer_costs_a_moment_once(self):
        gpu = Gpu(self)
        stopped, _, asker = gpu.start(600), gpu.start(300), gpu.start()
        programs.stop(stopped.pid)
        self.assertEqual(asker.take(350), 0)
        self.assertEqual(asker.take(600), NO_MEMORY)
        os.kill(stopped.pid, signal.SIGCONT)
        figures = asker.end()
        self.assertEqual(figures["num_lend_timeouts"], 1)
        # What it was asked while it stood still is not done any more.
        time.sleep(0.1)
        self.assertEqual(stopped.end()["lent_bytes"], 0)

    def test_a_peer_that_is_killed_holds_nobody_up(self):
        gpu = Gpu(self)
        killed, _ = gpu.start(600), gpu.start(300)
        asker = gpu.start(GPUCACHE_SHARE="2s")
        self.assertEqual(asker.take(20), 0)
        programs.stop(killed.pid)
        asker.send(f"take {700 * MIB} {700 * MIB}")
        os.kill(killed.pid, signal.SIGKILL)
        killed.process.wait()
        self.assertIn(asker.read()[0], (0, NO_MEMORY))
        self.assertEqual(asker.take(700 if not asker.do("drop")[0] else 0), 0)

    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    @unittest.skipUnless(others_enter(LENDER), "other users may not enter the folder of the build")
    def test_another_users_memory_is_not_asked_for(self):
        gpu = Gpu(self)
        giver = gpu.start(800)
        os.chmod(gpu.pages, 0o777)  # so that it could see the page
        asker = gpu.start(user=65534, GPUCACHE_STATS="off")
        self.assertEqual(asker.take(600), NO_MEMORY)
        os.chmod(gpu.pages, 0o700)
        asker = gpu.start(user=65534, GPUCACHE_STATS="off")
        self.assertEqual(asker.take(600), NO_MEMORY)
        self.assertEqual(giver.end()["num_lends"], 0)

    def test_an_unknown_error_is_no_reason_to_ask_others(self):
        giver, asker = self.pair(SIM_FAIL=f"cuCtxCreate_v4:1+:{UNKNOWN}")
        asker.cache(16)
        self.assertEqual(asker.do("other ctx"), [UNKNOWN])
        self.assertEqual(giver.end()["num_lends"], 0)

    def test_what_the_drivers_own_pools_keep_is_lent(self):
        """Memory idle in a stream-ordered pool of one process serves another's request. The one
        with most idle memory is asked, of whatever kind."""
        gpu = Gpu(self)
        holder, other, asker = gpu.start(), gpu.start(64), gpu.start()
        self.assertEqual(holder.do(f"async {800 * MIB}"), [0])
        holder.await_page()
        self.wait_for(lambda: holder.async_idle() >= 800 * MIB, "nothing idle")
        self.assertEqual(asker.take(600), 0)
        self.assertEqual(other.end()["lent_bytes"], 0)
        self.assertGreaterEqual(holder.end()["lent_bytes"], 370 * MIB)

    def test_what_the_drivers_pools_keep_is_lent_where_we_have_no_pool(self):
        gpu = Gpu(self)
        holder, asker = gpu.start(GPUCACHE_BACKING="driver"), gpu.start()
        self.assertEqual(holder.do(f"async {800 * MIB}"), [0])
        holder.await_page()
        self.wait_for(lambda: holder.async_idle() >= 800 * MIB, "nothing idle")
        self.assertEqual(asker.take(600), 0)
        self.assertGreaterEqual(holder.end()["lent_bytes"], 370 * MIB)

    def test_a_process_takes_what_its_own_pools_of_the_driver_keep(self):
        for share in "0", SHARE:
            process = Gpu(self).start(GPUCACHE_SHARE=share)
            self.assertEqual(process.do(f"async {800 * MIB}"), [0])
            self.assertGreaterEqual(process.do("free")[0], 900 * MIB)
            self.assertEqual(process.take(600), 0)

    def test_what_a_framework_caches_is_lent_where_the_pools_have_too_little(self):
        gpu = Gpu(self)
        holder = programs.Talker([sys.executable, "-c", FRAMEWORK, HERE], gpu.environ(),
                                 stderr=None)
        self.addCleanup(holder.finish)
        self.assertEqual(holder.read(), "ready")
        self.wait_for(lambda: gpu.shows(holder.pid), "no page")
        asker = gpu.start()
        # A request does not wait for a package that takes more than 100 ms. What the package gives
        # up goes back once it has answered, and serves a later request.
        late, deadline = 0, time.monotonic() + 60
        while (code := asker.take(700)) == NO_MEMORY and time.monotonic() < deadline:
            late += 1
            time.sleep(0.02)
        self.assertEqual(code, 0)
        if not late:
            self.assertGreaterEqual(asker.end()["num_oom_borrowed"], 1)

    def test_pages_that_are_scribbled_or_cut_meanwhile_harm_nobody(self):
        gpu = Gpu(self)
        *givers, asker = gpu.start(400), gpu.start(400), gpu.start()
        done = threading.Event()
        pages = [giver.page() for giver in givers]

        def scribble():
            dice = random.Random(7)
            while not done.is_set():
                with open(pages[0], "r+b") as page:
                    page.seek(dice.randrange(128, PAGE_BYTES - 64))
                    page.write(dice.randbytes(64))
        writer = threading.Thread(target=scribble)
        writer.start()
        try:
            for _ in range(30):
                self.assertIn(asker.take(600), (0, NO_MEMORY))
                asker.do("drop")
                giver = givers[0]
                self.assertIn(giver.take(300, 16), (0, NO_MEMORY))
                giver.do("drop")
            os.truncate(pages[1], 4096)
            self.assertIn(asker.take(900), (0, NO_MEMORY))
        finally:
            done.set()
            writer.join()
        for process in [*givers, asker]:
            process.end()
            self.assertEqual(process.process.returncode, 0)

    def test_a_shortage_of_min_free_is_met_by_others(self):
        giver, asker = self.pair(GPUCACHE_MIN_FREE="500M", GPUCACHE_MEMINFO="0")
        self.assertEqual(asker.take(2), 0)
        asker.do("drop")
        self.assertEqual(asker.take(2), 0)
        self.wait_for(lambda: asker.do("free")[0] >= 500 * MIB, "too little is free")
        self.assertGreaterEqual(asker.end()["num_lend_asks"], 1)

    def take_in_turns(self):
        """Two that want all of it in turn. How often that was noticed: both have to come within a
        second."""
        giver, asker = self.pair()
        self.assertEqual(asker.take(600), 0)
        asker.do("drop")
        asker.await_page()
        for _ in range(4):
            self.assertEqual(giver.take(800, 200), 0)
            giver.do("drop")
            time.sleep(0.15)  # as it looks every 50 ms
            self.assertEqual(asker.take(800), 0)
            asker.do("drop")
        giver.end()
        return asker.end()["num_lend_thrashes"]

    def test_memory_that_is_taken_again_at_once_is_noticed(self):
        self.assertTrue(any(self.take_in_turns() for _ in range(5)))

    def test_processes_of_two_pid_namespaces_lend(self):
        outer = ["unshare", "--pid", "--fork", "--mount-proc"]
        if shutil.which("unshare") is None or subprocess.run(
                [*outer, "true"], check=False, capture_output=True).returncode:
            self.skipTest("no pid namespaces here")
        gpu = Gpu(self)
        # The simulated driver sees only processes whose number lives here too: 1.
        giver = gpu.start(before=outer)
        self.assertEqual(giver.take(800, 16), 0)
        giver.do("drop")
        self.wait_for(lambda: os.path.isdir(gpu.pages) and os.listdir(gpu.pages), "no page")
        asker = gpu.start()
        self.assertEqual(asker.take(700), 0)
        self.assertGreaterEqual(asker.end()["num_oom_borrowed"], 1)
