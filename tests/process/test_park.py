#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The device memory of a process goes to the host, and comes back when the process uses it.

test_park.py LIBRARY FOLDERS_OF_THE_SIMULATED_DRIVER PARKER TABLES.PY"""
import os
import resource
import random
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import page_client  # noqa: E402
import programs  # noqa: E402
import waiting  # noqa: E402

LIBRARY, FOLDERS, PARKER, TABLES = sys.argv[1:5]
T = page_client.load_tables(TABLES)
DONE, PARTLY, REFUSED = T.PAGE_REPLY_DONE, T.PAGE_REPLY_PARTLY, T.PAGE_REPLY_REFUSED
MIB = 1 << 20


class Process:
    """A process under the library, and its page."""

    def __init__(self, test, gpu, pages, **options):
        env = programs.environ(LIBRARY, FOLDERS, SIM_SHARED=gpu, SIM_DEVICES="1",
                               GPUCACHE_DIR=pages, **options)
        self.talker = programs.Talker([PARKER], env, stderr=None)
        test.addCleanup(self.talker.end)
        self.pid = self.talker.pid
        self.do("make 1 1", "drop")
        self.path = test.wait_for(lambda: self.find_page(pages), "no page")
        self.page = page_client.Page(T, self.path)
        test.addCleanup(self.page.close)
        test.wait_for(lambda: self.page.state()[0]["pools"], "no pool")

    def do(self, *lines):
        """What the last line gave; each other one is done."""
        for line in lines:
            said = self.talker.do(line)
            if line.split()[0] not in ("check", "copies", "poked", "rest", "info", "rss", "peek"):
                assert said == "done", said
        return said

    def find_page(self, pages):
        for path in page_client.whole_pages_in(T, pages):
            if os.path.basename(path).split("-")[1] == str(self.pid):
                return path
        return None

    def ask(self, words, wait_s=60):
        return self.page.ask(words, wait_s)

    def state(self):
        self.ask("look")
        return self.page.state()[0]

    def park_fields(self):
        self.ask("look")
        base = T.PAGE["parks"][0]
        return {name: self.page.get(name, "PAGE_PARK", base) for name in T.PAGE_PARK}


class Base(waiting.Waiting):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.pages = os.path.join(scratch.name, "pages")
        self.gpu = f"park-{os.getpid()}-{random.randrange(1 << 30)}"
        shared = f"/dev/shm/simulated-gpu-{self.gpu}"
        os.close(os.open(shared, os.O_CREAT | os.O_RDWR, 0o600))
        self.addCleanup(os.unlink, shared)
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("GPUCACHE", "LD_"))}
        self.other = programs.Talker([PARKER], {**env, "LD_LIBRARY_PATH": FOLDERS,
                                                "SIM_SHARED": self.gpu, "SIM_DEVICES": "1",
                                                **self.capacity()}, stderr=None)
        self.addCleanup(self.other.end)
        self.other.do("info")

    def capacity(self):
        return {"SIM_CAPACITY": "1G"}

    def start(self, **options):
        return Process(self, self.gpu, self.pages, **{**self.capacity(), **options})

    def free_mib(self):
        """What the device has, as a process without the library sees it."""
        return int(self.other.do("info")) / 1024

    def park(self, p, words="park", code=DONE):
        got, value, reply = p.ask(words)
        self.assertEqual(got, code, reply)
        self.assertEqual(reply["state"], "refused" if code == REFUSED else "parked", reply)
        return value, reply


class Park(Base):
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
        p = self.start()
        p.do("make 16 20")
        self.park(p)
        code, value, reply = p.ask("wake")
        self.assertEqual((code, reply["state"]), (DONE, "woken"), reply)
        self.assertGreater(value, 16 * MIB)
        self.assertEqual(p.ask("wake")[:2], (DONE, 0))
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.state()["counters"]["num_wakes"], 1)

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
        p = self.start()
        p.do("make 32 20", "check")
        before = int(p.do("rss"))
        self.park(p)
        p.do("check")
        self.wait_for(lambda: int(p.do("rss")) <= before * 1.02 + 4096, "it grew", 10)

    def test_off_refuses(self):
        p = self.start(GPUCACHE_PARK="off")
        p.do("make 8 8")
        self.assertIn("GPUCACHE_PARK=off", self.park(p, code=REFUSED)[1]["why"])
        self.assertEqual(p.ask("set PARK=ask")[0], DONE)
        self.park(p)
        self.assertEqual(p.do("check"), "right")

    def test_without_a_thread_it_says_so(self):
        p = self.start()
        p.do("make 8 8")
        with open(f"/proc/{p.pid}/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        resource.prlimit(p.pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
        self.assertIn("no thread", self.park(p, code=REFUSED)[1]["why"])
        resource.prlimit(p.pid, resource.RLIMIT_AS, (-1, -1))
        self.park(p)
        self.assertEqual(p.do("check"), "right")

    def test_it_parks_itself(self):
        p = self.start(GPUCACHE_PARK="idle:100ms")
        nothing = self.free_mib()
        p.do("make 16 20")
        self.wait_for(lambda: self.free_mib() >= nothing, "it does not park itself")
        self.assertEqual(p.do("check"), "right")
        self.wait_for(lambda: self.free_mib() >= nothing, "it does not park itself again")
        self.assertEqual(p.ask("set PARK=idle:2s")[0], DONE)
        self.assertEqual(p.ask("wake")[0], DONE)
        woke = time.monotonic()
        self.wait_for(lambda: self.free_mib() >= nothing, "a request wakes it for ever")
        self.assertGreater(time.monotonic(), woke + 1.5)
        self.assertEqual(p.ask("set PARK=ask")[0], DONE)
        self.assertEqual(p.do("check"), "right")
        time.sleep(0.5)
        self.assertEqual(p.state()["pools"][0]["away_bytes"], 0)

    def test_threads_work_on(self):
        p = self.start()
        p.do("make 8 40", "work 4")
        parked, begun = 0, time.monotonic()
        while time.monotonic() < begun + (2 if parked else 60):
            code, _, reply = p.ask("park wait=20")
            self.assertIn(code, (DONE, REFUSED), reply)
            parked += code == DONE
            if parked % 3 == 0:
                p.ask("flush frameworks=0 wait=0")
        self.assertEqual(p.do("rest"), "right")
        self.assertEqual(p.do("check"), "right")
        self.assertGreater(parked, 0)

    def test_a_reset_ends_the_context_away(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 16 20")
        self.park(p)
        p.do("reset")
        self.assertGreaterEqual(self.free_mib(), nothing - 100)
        self.assertEqual(p.do("make 16 20", "check"), "right")
        self.park(p)
        self.assertEqual(p.do("check"), "right")

    def test_an_exit_loses_nothing(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 16 20")
        self.park(p)
        self.assertEqual(p.talker.finish()[0], 0)
        self.assertGreaterEqual(self.free_mib(), nothing)

    def test_a_stop_in_any_state_changes_nothing(self):
        p = self.start()
        p.do("make 8 20")
        for i in range(8):
            self.park(p)
            p.talker.send("check")
            time.sleep(0.002 * i)  # before, in and behind the wake
            os.kill(p.pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(p.pid, signal.SIGCONT)
            self.assertEqual(p.talker.read(), "right")

    def test_a_kill_in_any_state_leaves_nothing(self):
        for i in range(6):
            p = self.start()
            nothing = self.free_mib()
            p.do("make 8 20")
            if i % 2:
                self.park(p)
            p.talker.send("check")
            time.sleep(0.004 * i)
            p.talker.end()
            self.wait_for(lambda: self.free_mib() >= nothing,  # pylint: disable=W0640
                          "device memory is left")

    def test_who_works_is_left_alone(self):
        """`gpucache park --all`."""
        p = self.start()
        p.do("make 8 20", "work 2")
        code, _, reply = p.ask("park unused=2000")
        self.assertEqual((code, reply["state"]), (DONE, "used"))
        p.do("rest")
        self.park(p, "park unused=300")
        self.assertEqual(p.do("check"), "right")

    def test_the_page_says_that_it_is_parked(self):
        p = self.start()
        p.do("make 8 20")
        self.assertNotIn("park", p.state())
        self.park(p)
        told = p.state()["park"]
        self.assertEqual((told["state"], told["needs_bytes"]), ("parked", 0))
        self.assertLess(abs(time.time_ns() - told["since_unix_ns"]), 60e9)
        p.do("check")
        self.assertNotIn("park", p.state())

    def test_one_that_is_used_now_and_then_is_parked_ever_less_often(self):
        p = self.start(GPUCACHE_PARK="idle:100ms")
        p.do("make 8 20")
        pauses = []
        for _ in range(5):
            used = time.monotonic()
            self.wait_for(lambda: p.state()["pools"][0]["away_bytes"], "it does not park itself")
            pauses.append(time.monotonic() - used)
            self.assertEqual(p.do("check"), "right")
        self.assertGreater(pauses[4], 3 * pauses[1], pauses)

    def test_parks_with_changes_between(self):
        p = self.start()
        p.do("make 4 40")
        for i in range(12):
            self.park(p)
            self.assertEqual(p.do("swap" if i % 3 else "exchange", "check"), "right")


class Limited(Base):
    """The process is in a memory cgroup of its own, where the machine lets us make one."""

    def group(self):
        """Its folder, and the names of its files for the limit and the usage."""
        with open("/proc/self/cgroup", encoding="ascii") as file:
            lines = [line.strip().split(":", 2) for line in file]
        for controllers, mount, names in (
                ("memory", "/sys/fs/cgroup/memory", ("memory.limit_in_bytes",
                                                     "memory.usage_in_bytes")),
                ("", "/sys/fs/cgroup", ("memory.max", "memory.current"))):
            for _, has, path in lines:
                place = f"{mount}{path}/park-test-{os.getpid()}"
                if has != controllers:
                    continue
                try:
                    os.mkdir(place)
                except OSError:
                    continue
                self.addCleanup(os.rmdir, place)
                if os.path.exists(f"{place}/{names[0]}"):
                    return place, *names
        return self.skipTest("no memory cgroup can be made here")

    def test_a_limit_that_is_too_low_refuses_and_nobody_is_killed(self):
        place, limit, usage = self.group()
        p = self.start()
        p.do("make 16 60")
        live = self.park(p)[1]["gpus"][0]["live_bytes"]
        self.assertEqual(p.do("check"), "right")
        with open(f"{place}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(p.pid))
        for more, code in (-32 * MIB, REFUSED), (-16 * MIB, REFUSED), (64 * MIB, DONE):
            for place_to in "host", "/dev/shm":
                with open(f"{place}/{usage}", encoding="ascii") as file:
                    used = int(file.read())
                with open(f"{place}/{limit}", "w", encoding="ascii") as file:
                    file.write(str(used + live * 21 // 20 + 256 * MIB + more))
                _, reply = self.park(p, f"park to={place_to}", code)
                self.assertEqual("the host has" in reply.get("why", ""), code == REFUSED, reply)
                self.assertEqual(p.do("check"), "right")
                with open(f"{place}/{limit}", "w", encoding="ascii") as file:
                    file.write(str(8 << 30))
        self.assertEqual(p.talker.finish()[0], 0)


class Folder(Base):
    """Device memory goes into a file in a folder."""

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("PARK_TEST_FOLDER"))
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def files(self, p):
        """Mapped ones of the folder."""
        with open(f"/proc/{p.pid}/maps", encoding="utf8") as maps:
            return [line for line in maps if self.folder in line]

    def descriptors(self, p):
        """Those of the folder in the process's table."""
        fds = f"/proc/{p.pid}/fd"
        return [fd for fd in os.listdir(fds) if self.folder in os.readlink(f"{fds}/{fd}")]

    def used(self):
        fs = os.statvfs(self.folder)
        return (fs.f_blocks - fs.f_bfree) * fs.f_frsize

    def test_bytes_are_in_a_file_that_nobody_sees(self):
        p = self.start()
        nothing = self.free_mib()
        p.do("make 32 20")
        rss = int(p.do("rss"))
        _, reply = self.park(p, f"park to={self.folder}")
        self.assertEqual(reply["to"], self.folder)
        self.assertGreater(reply["room_ns"] + reply["copy_ns"], 0)
        self.assertLess(reply["room_ns"] + reply["copy_ns"], reply["ns"])
        self.assertGreaterEqual(self.free_mib(), nothing)
        self.assertEqual(os.listdir(self.folder), [])
        self.assertEqual(self.descriptors(p), [])
        self.assertIn("(deleted)", self.files(p)[0])
        self.assertLess(int(p.do("rss")), rss + 80 * 1024)  # staging memory, but no bytes
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(self.files(p), [])
        self.assertEqual(p.do("copies"), "right")

    def test_the_option_says_where(self):
        p = self.start(GPUCACHE_PARK_TO=self.folder)
        p.do("make 8 20")
        self.assertEqual(self.park(p)[1]["to"], self.folder)
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(self.park(p, "park to=host")[1]["to"], "host")
        self.assertEqual(self.files(p), [])
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.ask("set PARK_TO=host")[0], DONE)
        self.assertEqual(self.park(p)[1]["to"], "host")
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.ask("set PARK_TO=tmp")[0], T.PAGE_REPLY_BAD)

    def test_what_joins_goes_to_the_same_place(self):
        p = self.start()
        p.do("make 16 30")
        self.park(p, f"park keep={24 * MIB} to={self.folder}")
        self.assertEqual(self.park(p, "park to=host")[1]["to"], self.folder)
        self.assertEqual(p.do("check"), "right")

    def test_a_folder_that_does_not_serve_is_refused(self):
        p = self.start()
        p.do("make 8 20")
        for place, why in (("tmp", "tmp is no absolute name"), ("/no/such", "/no/such is missing"),
                           ("/dev/null", "/dev/null is no folder"), ("/proc", "/proc")):
            _, reply = self.park(p, f"park to={place}", REFUSED)
            self.assertIn(why, reply["why"])
        self.assertEqual(p.ask("park to=/" + "x" * 300)[0], T.PAGE_REPLY_BAD)
        if os.geteuid() == 0:
            os.chown(self.folder, 12345, 12345)
            _, reply = self.park(p, f"park to={self.folder}", REFUSED)
            self.assertIn("belongs to another user", reply["why"])
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(p.state()["counters"]["num_wakes"], 0)

    def test_too_little_room_changes_nothing(self):
        """A limit on the size of a file, in place of a full disk."""
        p = self.start()
        p.do("make 4 30")
        for mib in range(100):
            resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (mib * MIB, -1))
            code, _, reply = p.ask(f"park to={self.folder}")
            self.assertEqual(os.listdir(self.folder), [])
            if code == DONE:
                break
            self.assertEqual(code, REFUSED)
            self.assertIn("may not write a file of", reply["why"])
            self.assertEqual(self.files(p), [])
            self.assertEqual(p.do("check" if mib % 5 else "copies"), "right")
        self.assertGreater(mib, 15)
        self.assertEqual(p.do("check"), "right")

    def test_a_file_that_was_cut_off_is_an_error_and_a_later_try_is_right(self):
        p = self.start(GPUCACHE_PARK_WAIT="40s")
        p.do("make 8 20")
        self.park(p, f"park to={self.folder}")
        p.do(f"cut {self.folder}")
        begun = time.monotonic()
        self.assertEqual(p.do("peek"), "304")
        self.assertEqual(p.do("peek"), "304")
        self.assertLess(time.monotonic(), begun + 40)  # it waits for nothing
        code, _, reply = p.ask("wake")
        self.assertEqual(code, REFUSED)
        self.assertIn(f"what went to {self.folder} cannot be read", reply["why"])
        self.assertTrue(p.state()["pools"][0]["away_bytes"])
        p.do("mend")
        self.assertEqual(p.do("peek"), "0")
        self.assertEqual(p.do("check"), "right")

    def test_a_file_that_is_cut_off_meanwhile_refuses(self):
        p = self.start()
        p.do("make 16 60")
        why = ""
        for _ in range(10):
            p.talker.send(f"cut {self.folder}")
            code, _, reply = p.ask(f"park to={self.folder}")
            self.assertEqual(p.talker.read(), "done")
            if code == DONE:  # the file was full before
                p.do("mend", "check")
                continue
            self.assertEqual(code, REFUSED)
            why = reply["why"]
            break
        self.assertIn(f"the file in {self.folder} cannot be written", why)
        p.do("forget")
        self.assertEqual(self.files(p), [])
        self.assertEqual(p.do("check"), "right")
        self.park(p, f"park to={self.folder}")
        self.assertEqual(p.do("check"), "right")

    def test_who_closes_all_descriptors_wakes(self):
        p = self.start()
        p.do("make 8 20")
        for place in self.folder, "host":
            self.park(p, f"park to={place}")
            p.do("close")
            self.assertEqual(p.do("check"), "right")

    def test_a_kill_leaves_nothing(self):
        p = self.start()
        p.do("make 32 40")
        before = self.used()
        self.park(p, f"park to={self.folder}")
        self.assertGreater(self.used(), before + 100 * MIB)
        p.talker.end()
        self.wait_for(lambda: self.used() < before + 100 * MIB, "the disk is full of it")
        self.assertEqual(os.listdir(self.folder), [])

    def test_threads_work_on(self):
        p = self.start(GPUCACHE_PARK_TO=self.folder)
        p.do("make 8 20", "work 4")
        parked, begun = 0, time.monotonic()
        while parked < 3 and time.monotonic() < begun + 60:
            parked += p.ask("park wait=20")[0] == DONE
        self.assertEqual(p.do("rest"), "right")
        self.assertEqual(p.do("check"), "right")
        self.assertEqual(parked, 3)


class Full(Base):
    """A device that is full when the memory is to come back."""

    def capacity(self):
        return {"SIM_CAPACITY": "512M"}

    def fill(self):
        while self.free_mib() > 110:
            self.assertEqual(self.other.do("make 16 7"), "done")  # one of 16 MiB

    def test_a_use_waits_for_memory(self):
        p = self.start()
        p.do("make 16 60")
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

    def test_who_worked_lately_lends_nothing(self):
        first = self.start(GPUCACHE_PARK="lend:3s")
        second = self.start(GPUCACHE_SHARE="1s")
        first.do("make 16 70")
        self.assertNotEqual(second.talker.do("make 16 70"), "done")
        self.assertEqual(first.do("check"), "right")
        self.assertEqual(first.state()["counters"]["num_parks"], 0)

    def test_two_take_turns(self):
        first, second = self.start(GPUCACHE_PARK="lend:1s"), self.start(GPUCACHE_PARK="lend:1s")
        first.do("make 16 70")
        self.wait_for(lambda: first.page.get("asleep_since_ns"), "it does not sleep")
        self.assertEqual(second.do("make 16 70", "check"), "right")
        for p in (first, second) * 3:
            self.assertEqual(p.do("check"), "right")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
