# SPDX-License-Identifier: BSD-2-Clause
"""Traces of programs whose contexts end while they run, or whom others lend nothing."""
import os

from traced import BEGIN, KIND, MIB, Program, Traces

from gpucache import trace, usage

# Calls of the runtime. After a reset the next call makes the device's context anew.
RUNTIME = """
import ctypes
cudart = ctypes.CDLL("libcudart.so.13")
def alloc(mib):
    block = ctypes.c_void_p()
    assert not cudart.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(mib << 20))
    return block
"""
CREATED = BEGIN + """
good(cuda.cuDevicePrimaryCtxRelease_v2(0))
def create_context():
    return got(cuda.cuCtxCreate_v2, ctypes.c_uint(0), 0, kind=ctypes.c_void_p)
"""


class Lives(Traces):
    def ran(self, words):
        """(the events of a program, what is known of them, the text of the report)"""
        _, path = self.run_python(words, "t.gct")
        its, events = self.read(path)
        self.assertEqual((its.num_lost, its.num_torn, its.ended), (0, 0, True))
        done = self.tool("report", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return events, usage.Usage(trace.Trace(path)), done.stdout

    def lives(self, events):
        """[(kind, device, context)] of begins and ends."""
        return [(trace.NAME[e.kind], e.a, e.context) for e in events
                if e.kind in (KIND["CONTEXT"], KIND["CONTEXT_END"])]

    def check(self, found, live):
        """Each end has its record, and the report shows what is live behind the last one."""
        events, used, said = found
        self.assertEqual((used.live, used.num_unknown_frees), (live, 0))
        self.assertEqual(used.peak, 100 * MIB)
        self.assertEqual(sum(used.held_at_end().values()), live)
        self.assertEqual(said.count(" a context ended"), len(self.lives(events)) // 2)
        table = said.partition("\nLive at the end\n")[2].partition("\n\n")[0].splitlines()[1:]
        self.assertEqual([row.split()[:3] for row in table], [["7", "MiB", "1"]] if live else [])
        self.assertLess(used.reserved, 100 * MIB)

    def test_a_reset_ends_all_that_was_live(self):
        found = self.ran(RUNTIME + """
alloc(60), alloc(40)
assert not cudart.cudaDeviceReset()
alloc(7)
""")
        self.assertEqual([row[:2] for row in self.lives(found[0])],
                         [("CONTEXT", 0), ("CONTEXT_END", 0), ("CONTEXT", 0)])
        self.check(found, 7 * MIB)

    def test_a_destroyed_context_ends_all_that_was_live(self):
        found = self.ran(CREATED + """
first = create_context()
alloc(100 * MIB)
good(cuda.cuCtxDestroy_v2(first))
second = create_context()
alloc(7 * MIB)
good(cuda.cuCtxDestroy_v2(second))
""")
        lives = self.lives(found[0])
        self.assertEqual([row[:2] for row in lives], [("CONTEXT", 0), ("CONTEXT_END", 0)] * 2)
        self.assertEqual([row[2] for row in lives[::2]], [row[2] for row in lives[1::2]])
        self.check(found, 0)

    def asked(self, *lines):
        """(what others were asked for and whether some came, what failed, the text of the report)
        of a program that needs 550 MB of 1 GiB, of which another has 600 MB."""
        name = f"lives-{os.getpid()}"
        shared = f"/dev/shm/simulated-gpu-{name}"
        os.close(os.open(shared, os.O_CREAT | os.O_RDWR, 0o600))
        self.addCleanup(os.unlink, shared)
        env = {"SIM_SHARED": name, "SIM_CAPACITY": "1G", "SIM_DEVICES": "1",
               "GPUCACHE_SHARE": "10s"}
        other = Program(self, *lines, **env)
        self.await_page(other)
        program = self.program("take a 550000000", **env)
        program.end()
        other.end()
        _, events = self.read(program.path)
        return ([(e.a >= 550_000_000, e.b) for e in events if e.kind == KIND["LEND_ASK"]],
                [(e.a, e.b) for e in events if e.kind == KIND["ALLOC_FAILED"]],
                self.tool("report", program.path).stdout)

    def test_others_lend_what_is_idle(self):
        asks, failed, said = self.asked("take a 200000000", "take b 400000000", "give b")
        self.assertEqual((set(asks), failed), ({(True, 1)}, []))
        self.assertRegex(said, r"other processes were asked +\d+ MiB, some came\n")

    def test_others_that_have_nothing_idle_lend_none(self):
        """Though the request is made again, for what may be on its way."""
        asks, failed, said = self.asked("take a 600000000")
        self.assertEqual((set(asks), failed), ({(True, 0)}, [(2, 550_000_000)]))
        self.assertRegex(said, r"other processes were asked +\d+ MiB, none came\n")
