# SPDX-License-Identifier: BSD-2-Clause
"""gpucache park and wake of real processes under the library that are locked, stopped, another
user's, or about to end: one sentence, the exit code, and nothing lost."""
import json
import os
import signal
import sys
import threading
import time
import unittest
import unittest.mock

from fake import FakePage, body, pool, tool, wait_for
from test_live import FOLDERS, Program, programs
from test_page import ROOT, Case

from gpucache import ask, page, process, tables

NVML = sys.argv[4]
ask.SILENCE_S = 1.0
LOCKED = "another process has locked it"
STOPPED = "it is stopped: ask again when it goes on"
SOON_S = 20  # a refusal takes milliseconds, and a request that is not answered over a minute
VERBS = ("park",), ("park", "--whole"), ("wake",)
# Memory with bytes that the program knows
BYTES = """
def put(mib):
    global held, wanted
    held = []
    wanted = os.urandom(mib << 20)
    return take(mib << 20, held) or cudart.cudaMemcpy(held[0], wanted, len(wanted), 1)
def check():
    found = ctypes.create_string_buffer(len(wanted))
    code = cudart.cudaMemcpy(found, held[0], len(wanted), 2)
    return code or ("right" if found.raw == wanted else "wrong")
"""
# Another process that takes checkpoints
LOCKER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for line in sys.stdin:
    step, pid = line.split()
    print(getattr(cuda, "cuCheckpointProcess" + step)(int(pid), None), flush=True)
"""


def as_user(uid, *words):
    """What the tool says to this user, as (exit code, standard error)."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            done = tool(*words)
            os.write(write, json.dumps([done.status, done.err]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        found = said.read()
    os.waitpid(child, 0)
    return tuple(json.loads(found))


class Parking(Case):
    def setUp(self):
        super().setUp()
        # The simulated one serves processes on the simulated driver alone.
        patch = unittest.mock.patch("gpucache.nvml.Nvml", side_effect=OSError("none here"))
        patch.start()
        self.addCleanup(patch.stop)

    def start(self, **env):
        """A process with live memory of known bytes, and a page."""
        gpu = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.addCleanup(os.unlink, "/dev/shm/simulated-gpu-" + gpu)
        self.env = {"LD_LIBRARY_PATH": f"{FOLDERS}:{NVML}", "SIM_DEVICES": "1", "SIM_SHARED": gpu,
                    "SIM_CAPACITY": "2560M", "CUDA_MPS_PIPE_DIRECTORY": self.folder, **env}
        program = Program(self, more=BYTES, **self.env)
        self.assertEqual(program.do("put(8)"), "0")
        self.assertTrue(wait_for(lambda: tool("stat", program.pid, "--json").status == 0))
        return program

    def told(self, pid):
        return tool("stat", pid, "--json").json

    def soon(self, sentence, *words):
        """The tool gives up with this sentence, and does not wait."""
        begun = time.monotonic()
        self.says(tool(*words), 1, sentence)
        self.assertLess(time.monotonic() - begun, SOON_S, words)

    def well(self, *words):
        done = tool(*words)
        self.assertEqual((done.status, done.err), (0, ""), words)
        return done

    def all_is_well(self, program):
        """Its bytes are right, and it can be parked and woken."""
        self.assertEqual(program.do("check()"), "right")
        for words in ("park",), ("park", "--whole"):
            self.well(*words, program.pid)
            self.assertTrue(self.told(program.pid)["park"])
            self.well("wake", program.pid)
            self.assertFalse(self.told(program.pid)["park"])
            self.assertEqual(program.do("check()"), "right")


class Locked(Parking):
    """By another process, as cuda-checkpoint does it."""

    def locker(self):
        """Takes the steps of these names."""
        talker = programs.Talker([sys.executable, "-c", LOCKER], {**os.environ, **self.env},
                                 stderr=None)
        self.addCleanup(talker.end)

        def steps(pid, *names):
            self.assertEqual([talker.do(f"{name} {pid}") for name in names], ["0"] * len(names))
        return steps

    def test_it_says_so_and_is_as_before(self):
        """A call of the driver's blocks in a locked process, and may end a checkpointed one."""
        for there, back in (("Lock",), ("Unlock",)), \
                (("Lock", "Checkpoint"), ("Restore", "Unlock")):
            for parked in False, True:
                with self.subTest(there, parked=parked):
                    program = self.start(SIM_CHECKPOINTED="segv")
                    steps = self.locker()
                    if parked:
                        self.well("park", program.pid)
                    before = self.told(program.pid)["counters"]
                    steps(program.pid, *there)
                    for words in VERBS:
                        self.soon(f"PID {program.pid}: {LOCKED}", *words, program.pid)
                    receipt, = tool("park", program.pid, "--json").json["receipts"]
                    self.assertEqual((receipt["status"], receipt["why"], receipt["state"]),
                                     ("failed", LOCKED, "refused"))
                    steps(program.pid, *back)
                    told = self.told(program.pid)
                    self.assertEqual(bool(told["park"]), parked)
                    for name in "num_parks", "num_wakes":
                        self.assertEqual(told["counters"][name], before[name])
                    self.all_is_well(program)
                    self.assertEqual(program.finish()[0], 0)

    def test_one_that_is_locked_while_it_is_looked_at_is_left_alone(self):
        """--all looks for two seconds whether the process works."""
        program = self.start(SIM_CHECKPOINTED="segv")
        steps = self.locker()
        timer = threading.Timer(0.7, steps, (program.pid, "Lock", "Checkpoint"))
        timer.start()
        self.soon(f"PID {program.pid}: {LOCKED}", "park", "--all")
        timer.join()
        steps(program.pid, "Restore", "Unlock")
        self.assertEqual(self.told(program.pid)["counters"]["num_parks"], 0)
        self.all_is_well(program)


class Stopped(Parking):
    def test_what_is_asked_of_one_does_not_happen_later(self):
        for parked in False, True:
            with self.subTest(parked=parked):
                program = self.start()
                if parked:
                    self.well("park", program.pid)
                before = self.told(program.pid)["counters"]
                programs.stop(program.pid)
                try:
                    for words in (*VERBS, ("wake", "--drop")):
                        self.soon(f"PID {program.pid}: {STOPPED}", *words, program.pid)
                finally:
                    os.kill(program.pid, signal.SIGCONT)
                # The process has found all that was asked before it answers this.
                self.assertEqual(tool("flush", program.pid).status, 0)
                time.sleep(0.3)
                told = self.told(program.pid)
                self.assertEqual(bool(told["park"]), parked)
                for name in "num_parks", "num_wakes", "park_refusals":
                    self.assertEqual(told["counters"][name], before[name], name)
                self.all_is_well(program)
                self.assertEqual(program.finish()[0], 0)

    def test_one_that_is_stopped_while_it_is_looked_at_is_not_parked(self):
        program = self.start()
        timer = threading.Timer(0.7, programs.stop, (program.pid,))
        timer.start()
        self.soon(f"PID {program.pid}: {STOPPED}", "park", "--all")
        timer.join()
        os.kill(program.pid, signal.SIGCONT)
        time.sleep(3)  # until it would have been parked
        told = self.told(program.pid)
        self.assertEqual((told["park"], told["counters"]["num_parks"]), ("", 0))
        self.all_is_well(program)


class Gone(Parking):
    """The process ends, or runs another program, when it is asked."""

    def test_one_that_runs_another_program(self):
        """It is found before that, and listens no more."""
        for words in VERBS:
            with self.subTest(words):
                program = self.start()
                self.well("park", program.pid)
                programs.stop(program.pid)
                found = page.find(program.pid)
                os.kill(program.pid, signal.SIGCONT)
                program.send("os.execve('/bin/sleep', ['sleep', '100'], {})")
                self.assertTrue(wait_for(lambda: process.name(program.pid) == "sleep"))
                with unittest.mock.patch.object(page, "find", lambda pid, f=found: f):
                    self.soon(f"PID {program.pid}: it runs another program by now", *words,
                              program.pid)
                self.soon(f"PID {program.pid}: it runs without libgpucache", *words, program.pid)
                program.process.kill()

    def test_one_that_runs_another_program_under_the_library(self):
        """That one's page has the same name. The park of the first one is under way then."""
        program = self.start(SIM_REALTIME="1", SIM_COST_cuMemcpyDtoHAsync_v2="5000000000")

        def replace():
            program.send("os.execv('/proc/self/exe', __import__('sys').orig_argv)")
            time.sleep(1)
            program.send("put(8)")
        timer = threading.Timer(1, replace)
        timer.start()
        self.soon(f"PID {program.pid}: it runs another program by now", "park", program.pid)
        timer.join()
        self.assertTrue(wait_for(lambda: tool("stat", program.pid, "--json").status == 0))

    def test_another_process_that_has_its_number(self):
        """The page tells the start of its process."""
        its = process.identity(os.getpid())
        for words in VERBS:
            with self.subTest(words):
                left = FakePage(self.folder, body(pool()), start=its[2] - 1)
                self.addCleanup(left.close)
                self.soon(f"PID {os.getpid()}: it runs without libgpucache", *words, os.getpid())
                # Or it ended between the look at its page and the request.
                stale = page.Page(page.Folder(self.folder, os.geteuid()), left.name, os.getpid())
                with unittest.mock.patch.object(page, "find", lambda pid, p=stale: (p, [])):
                    self.soon(f"PID {os.getpid()}: it has ended", *words, os.getpid())
                left.close()

    def test_one_that_exits_then(self):
        """It ends as ever, whatever the request meets."""
        ends = "it has ended", "no such process", "the process leaves", \
            "not all is parked: the process leaves", \
            "the program used the GPU meanwhile", "a context is ending", \
            "it has no page of live state: it has allocated no device memory yet, is about to " \
            f"end, could make no file in {self.folder}, or has an older library"

        def end(program, codes):
            codes.append(program.finish()[0])
        for turn in range(24):
            words = VERBS[turn % 3]
            program = self.start()
            if words == ("wake",):
                self.well("park", program.pid)
            codes = []
            timer = threading.Timer(turn // 3 * 0.002, end, (program, codes))
            timer.start()
            begun = time.monotonic()
            done = tool(*words, program.pid)
            self.assertLess(time.monotonic() - begun, SOON_S, words)
            timer.join()
            self.assertEqual(codes, [0])
            if done.status:
                self.assertIn(done.err, [f"gpucache: PID {program.pid}: {why}\n" for why in ends])
            self.assertEqual(os.listdir(self.folder), [])

    def test_one_whose_memory_is_gone_already(self):
        """What /proc says of that is empty, or cut off."""
        for maps, why in ((b"", "it may not be looked at: permission denied"),
                          (b"7f00-7f01 r-xp /usr/lib/x", "it runs without libgpucache")):
            for ends in False, True:
                child, _ = self.sleeper()
                timer = threading.Timer(0.02, lambda c=child: (c.kill(), c.wait()))

                def read(pid, name, most=-1, real=process._read, timer=timer, ends=ends, maps=maps):
                    if name != "maps":
                        return real(pid, name, most)
                    if ends and not timer.ident:
                        timer.start()
                    return maps
                with unittest.mock.patch.object(process, "_read", read):
                    self.soon(f"PID {child.pid}: {'it has ended' if ends else why}", "wake",
                              child.pid)
                if ends:
                    timer.join()


class Others(Parking):
    """What is not this user's, or not of this version."""

    @unittest.skipUnless(ROOT, "needs root")
    def test_the_process_of_another_user(self):
        program = self.start()
        self.well("park", program.pid)
        for words in VERBS:
            self.assertEqual(as_user(54321, *words, program.pid), (
                1, f"gpucache: PID {program.pid}: it belongs to root: only root may look at it\n"))
        told = self.told(program.pid)
        self.assertTrue(told["park"])
        self.assertEqual(told["counters"]["num_wakes"], 0)
        self.all_is_well(program)

    def test_an_older_library(self):
        """Without the option, its library has neither request."""
        older = body(pool())
        for name in "GPUCACHE_PARK", "GPUCACHE_PARK_WAIT":
            older["options"].pop(name)
        its = self.page(older, answer=lambda words: (0, 0, {}))
        for words in VERBS:
            self.says(tool(*words, os.getpid()), 1,
                      f"PID {os.getpid()}: its library is older, and cannot park")
        self.assertEqual(its.asked, [])
        its.close()
        self.page(version=tables.PAGE_VERSION + 1)
        for words in VERBS:
            self.says(tool(*words, os.getpid()), 1, f"PID {os.getpid()}: its page is of version "
                      f"{tables.PAGE_VERSION + 1}, this tool knows version {tables.PAGE_VERSION}")
