# SPDX-License-Identifier: BSD-2-Clause
"""Traces of programs that run under the library, on the simulated driver: from the start, and of a
process that runs.

test_tracing.py TOOL LIBRARY SIMULATOR_FOLDER"""
import collections
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from fake import ALONE, catches

from gpucache import trace, usage

LIBRARY = os.path.realpath(sys.argv[2])
SIMULATOR = ":".join(map(os.path.realpath, sys.argv[3].split(":")))
MIB = 1 << 20
KIND = trace.KIND

# What a program does, by lines on stdin: "take NAME BYTES", "give NAME", "churn PAIRS", "threads N
# PAIRS", "fork [BYTES]", "end". With "ordered" behind it a take or a give is in the order of the
# default stream.
PROGRAM = """
import ctypes, os, sys, threading
cuda, context, held = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), {}
def check(code):
    return code if code else 0
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
def take(size, ordered=False):
    block, size = ctypes.c_uint64(), ctypes.c_size_t(size)
    code = cuda.cuMemAllocAsync(ctypes.byref(block), size, None) if ordered else \
        cuda.cuMemAlloc_v2(ctypes.byref(block), size)
    return block if not code else code
def churn(number, pairs):
    assert not cuda.cuCtxSetCurrent(context)
    for i in range(pairs):
        blocks = [take((1 + (number + i + k) % 9) * 70000) for k in range(3)]
        for block in blocks:
            assert not cuda.cuMemFree_v2(block)
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "take":
        held[words[1]] = take(int(words[2]), "ordered" in words)
    elif words[0] == "give":
        block = held.pop(words[1])
        assert not (cuda.cuMemFreeAsync(block, None) if "ordered" in words else
                    cuda.cuMemFree_v2(block))
    elif words[0] == "wrong":
        print(cuda.cuMemFree_v2(ctypes.c_uint64(int(words[1], 0))), end=" ")
    elif words[0] == "churn":
        churn(0, int(words[1]))
    elif words[0] == "threads":
        pairs = int(words[2])
        all = [threading.Thread(target=churn, args=(n, pairs)) for n in range(int(words[1]))]
        [t.start() for t in all], [t.join() for t in all]
    elif words[0] == "fork":
        pid = os.fork()
        if not pid:
            take(int(words[1]) if words[1:] else 12345)
            os._exit(0)
        os.waitpid(pid, 0)
    elif words[0] == "end":
        break
    print("done", flush=True)
"""


# The first calls of a process, through the cudaMalloc that the program sees.
FIRST = """
import ctypes
ctypes.CDLL("libcudart.so.12", ctypes.RTLD_GLOBAL)
cuda, block = ctypes.CDLL(None), ctypes.c_void_p()
for mib in 3, 5, 1 << 20:
    print(cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(mib << 20)))
"""


class Program:
    """A program under the library. traced: from the start."""

    def __init__(self, case, **options):
        self.folder = case.folder.name
        self.path = os.path.join(self.folder, "t.gct")
        self.report = os.path.join(self.folder, "report.json")
        env = {**os.environ, "LD_LIBRARY_PATH": SIMULATOR, "LD_PRELOAD": LIBRARY,
               "SIM_HAZARD": "off", "GPUCACHE_DIR": os.path.join(self.folder, "pages"),
               "GPUCACHE_STATS": "exit-json:" + self.report, **options}
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, text=True,
                                        cwd=self.folder, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        case.addCleanup(self.process.kill)
        case.assertEqual(self.process.stdout.readline(), "ready\n")
        self.case, self.pid = case, self.process.pid

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        self.case.assertIn("done", said, self.process.poll() is not None and
                           self.process.stderr.read())
        return said

    def end(self, status=0):
        said, complaints = self.process.communicate("end\n", timeout=100)
        self.case.assertEqual(self.process.returncode, status, complaints)
        return complaints

    def figures(self):
        with open(self.report, encoding="utf-8") as file:
            return json.load(file)


class Traces(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tracing-")
        self.addCleanup(self.folder.cleanup)

    def read(self, path):
        its = trace.Trace(path)
        self.addCleanup(its.close)
        return its, list(its.events())

    def program(self, **options):
        path = os.path.join(self.folder.name, "t.gct")
        return Program(self, GPUCACHE_TRACE=path, **options)

    def tool(self, *words):
        return subprocess.run([*ALONE, *map(str, words)], text=True, timeout=60, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={
                                  **os.environ,
                                  "GPUCACHE_DIR": os.path.join(self.folder.name, "pages")})


class Tracing(Traces):
    def test_each_allocation_and_each_free_is_there_once(self):
        program = self.program()
        program.do("take a 100000000")
        program.do("take b 3000")
        program.do("threads 4 300")
        program.do("give b")
        self.assertEqual(program.do("wrong 0x1234000"), "1 done\n")
        self.assertEqual(program.end(), "")
        its, events = self.read(program.path)
        pool = program.figures()["pools"][0]
        by_kind = collections.Counter(trace.NAME[event.kind] for event in events)
        self.assertTrue(its.ended)
        self.assertEqual((its.num_lost, its.num_torn, its.num_unknown), (0, 0, 0))
        self.assertEqual(by_kind["ALLOC"] + by_kind["ALLOC_FAST"], pool["num_allocs"])
        self.assertEqual(pool["num_allocs"], 2 + 4 * 900)
        self.assertEqual(by_kind["FREE"] - by_kind["FREE_FAILED"], pool["num_frees"])
        self.assertEqual((by_kind["FREE_FAILED"], by_kind["CONTEXT"]), (1, 1))
        self.assertGreater(by_kind["ALLOC_FAST"], 1000)
        self.assertEqual(by_kind["CREATE"] + by_kind["SEGMENT"], pool["num_device_alloc"])
        used = usage.Usage(its)
        self.assertEqual(used.live, 100_000_000)
        self.assertEqual(used.peak, max(used.peak, 100_000_000))
        self.assertEqual(used.reserved, pool["reserved_bytes"])
        self.assertEqual(used.reserved_peak, pool["reserved_peak_bytes"])
        self.assertEqual(used.num_unknown_frees, 1)
        # Each address is taken and given in turns.
        held = set()
        for event in events:
            if event.kind in usage.ALLOCS:
                self.assertTrue(event.site)
                self.assertTrue(its.object_of(event.site), hex(event.site))
                held.add(event.a)
        self.assertGreater(len(held), 3)

    def test_what_the_library_does_is_there(self):
        program = self.program(GPUCACHE_MAX_RESERVED="1G")
        program.do("take a 300000000")
        program.do("give a")
        while not catches(program.pid, signal.SIGUSR1):
            time.sleep(0.01)
        os.kill(program.pid, signal.SIGUSR1)
        time.sleep(1)
        program.do("take b 5000000000")
        program.end()
        its, events = self.read(program.path)
        kinds = [trace.NAME[event.kind] for event in events]
        self.assertEqual([e.text for e in events if e.kind == KIND["FLUSH"]][:1], ["signal"])
        self.assertEqual([(e.a, e.b) for e in events if e.kind == KIND["ALLOC_FAILED"]],
                         [(2, 5_000_000_000)])
        self.assertTrue({"CREATE", "MAP", "UNMAP", "RELEASE"} <= set(kinds) or
                        {"SEGMENT", "SEGMENT_FREE"} <= set(kinds), kinds)
        self.assertEqual(usage.Usage(its).live, 0)

    def test_a_free_in_the_order_of_a_stream(self):
        """Of a block of the pool, of one that the driver served, and of other memory, which is no
        block."""
        program = self.program(GPUCACHE_MAX_BLOCK="1M")
        for name, size, *ordered in (("small", 1000), ("large", 5_000_000),
                                     ("other", 7_000_000, "ordered"), ("left", 3_000_000)):
            program.do(f"take {name} {size} {' '.join(ordered)}")
        for name in "small", "large", "other":
            program.do(f"give {name} ordered")
        program.end()
        its, events = self.read(program.path)
        self.assertEqual([e.b for e in events if e.kind == KIND["ALLOC_DRIVER"]],
                         [5_000_000, 3_000_000])
        used = usage.Usage(its)
        self.assertEqual((used.live, used.num_unknown_frees), (3_000_000, 0))
        self.assertEqual(used.passed["num_async_allocs"], [1, 7_000_000])

    def test_a_forked_child_adds_nothing(self):
        program = self.program()
        program.do("take a 1000000")
        program.do("fork")
        program.do("take b 2000000")
        program.end()
        _, events = self.read(program.path)
        self.assertEqual([e.b for e in events if e.kind in usage.ALLOCS], [1_000_000, 2_000_000])

    def test_a_program_without_a_file_to_write_goes_on(self):
        program = Program(self, GPUCACHE_TRACE="/proc/nowhere/x.gct")
        program.do("take a 1000000")
        said = program.end()
        self.assertRegex(said, r"^gpucache: warning: GPUCACHE_TRACE=/proc/nowhere/x.gct: there is "
                               r"no trace: .*\n$")

    def test_a_process_that_runs(self):
        program = Program(self)
        program.do("take a 100000000")
        program.do("take small 3000")
        program.do("threads 2 50")
        path = os.path.join(self.folder.name, "live.gct")
        end = time.monotonic() + 20
        while not os.path.isdir(os.path.join(self.folder.name, "pages")) and \
                time.monotonic() < end:
            time.sleep(0.05)
        with subprocess.Popen([*ALONE, "trace", str(program.pid), "--seconds", "60", "-o", path],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={
                                  **os.environ,
                                  "GPUCACHE_DIR": os.path.join(self.folder.name, "pages")}) as tool:
            while not os.path.exists(path) and tool.poll() is None:
                time.sleep(0.01)
            time.sleep(0.2)
            program.do("take b 7000000")
            program.do("give small")
            program.do("threads 2 100")
            tool.send_signal(signal.SIGINT)
            said, complaints = tool.communicate(timeout=60)
            self.assertEqual((tool.returncode, complaints), (0, ""))
        self.assertIn(f"gpucache report {path} shows it", said)
        program.do("take c 1000000")
        program.end()
        its, events = self.read(path)
        self.assertTrue(its.ended)
        used = usage.Usage(its)
        self.assertEqual(used.num_unknown_frees, 0)
        self.assertEqual(used.live, 107_000_000)
        live = [e.b for e in events if e.kind == KIND["LIVE"]]
        self.assertEqual(sorted(live), [3000, 100_000_000])
        self.assertEqual(len([e for e in events if e.kind == KIND["CONTEXT"]]), 1)
        done = self.tool("trace", program.pid, "--seconds", "1")
        self.assertEqual(done.returncode, 1)

    def test_what_cannot_be_recorded_gets_a_sentence(self):
        program = Program(self)
        program.do("take a 100000000")
        time.sleep(0.3)
        path = os.path.join(self.folder.name, "there")
        with open(path, "w", encoding="utf-8"):
            pass
        for words, sentence in (((program.pid, "-o", path), "it is there already"),
                                ((program.pid, "-o", "a b"), "a name with blanks"),
                                ((program.pid, "-o", "/proc/nowhere/x"), "could not write"),
                                ((1 << 22, ), "PID 4194304")):
            done = self.tool("trace", *words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            self.assertIn(sentence, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        program.end()


class OutOfMemory(Traces):
    """GPUCACHE_TRACE_ON=oom: a file, and a line, when an allocation fails."""

    def program(self, **options):
        return super().program(**{"GPUCACHE_TRACE_ON": "oom", **options})

    def files(self):
        return sorted(name for name in os.listdir(self.folder.name) if "gct" in name)

    def test_who_holds_what(self):
        """Of blocks that the rings have no more, too."""
        program = self.program(GPUCACHE_MAX_BLOCK="6G")
        program.do("take old 3000000000")
        program.do("take small 3000")
        program.do("take gone 4000000")
        program.do("take native 7000000000")
        program.do("churn 30000")  # 2.7 rings
        program.do("threads 2 5000")
        program.do("give gone")
        program.do("take new 500000000")
        self.assertEqual(self.files(), [])
        program.do("take large 8000000000")
        self.assertEqual(self.files(), ["t.gct"])
        program.do("take after 1000")
        said = program.end()
        its, events = self.read(program.path)
        used = usage.Usage(its)
        self.assertEqual(sorted(block.bytes for block in used.blocks.values()),
                         [3000, 500_000_000, 3_000_000_000, 7_000_000_000])
        self.assertTrue(all(block.site for block in used.blocks.values()))
        self.assertEqual({trace.NAME[e.kind] for e in events if e.b == 4_000_000}, {"LIVE"})
        kinds = collections.Counter(trace.NAME[e.kind] for e in events)
        self.assertEqual((used.num_unknown_frees, its.num_lost, its.ended), (0, 0, True))
        self.assertGreater(kinds["ALLOC_FAST"], 25000)
        self.assertLess(kinds["ALLOC_FAST"], 70000)
        self.assertEqual((used.oom.b, used.oom.aux), (8_000_000_000, 0))
        self.assertAlmostEqual(used.reserved + used.oom.a, 16 << 30, delta=2 * MIB)
        self.assertRegex(said, r"^gpucache: warning: out of memory: 7.4 GiB were asked for, \S+ "
                               rf"\S+ of the GPU are free; {program.path} says who holds what: "
                               r"\S*ffi\S* 9.7 GiB\n$")
        told = self.tool("report", program.path)
        self.assertEqual(told.returncode, 0)
        self.assertRegex(told.stdout, r"Out of memory: \S+ asked for 7.5 GiB, while .* of the GPU "
                                      r"were free and this process had 9.8 GiB live\.\n"
                                      r"It is a record of GPUCACHE_TRACE_ON=oom")
        page = os.path.join(self.folder.name, "page.html")
        self.assertEqual(self.tool("report", program.path, "-o", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            page = file.read()
        self.assertIn("<h1>Out of memory", page)
        self.assertNotIn("at exit", page)

    def test_whoever_asked_first_and_in_vain_has_a_name(self):
        """And is not the runtime, through which the call went."""
        path = os.path.join(self.folder.name, "first.gct")
        env = {**os.environ, "LD_LIBRARY_PATH": SIMULATOR, "LD_PRELOAD": LIBRARY,
               "GPUCACHE_DIR": "none", "GPUCACHE_TRACE": path, "GPUCACHE_TRACE_ON": "oom"}
        done = subprocess.run([sys.executable, "-c", FIRST], env=env, text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        self.assertEqual(done.stdout.split(), ["0", "0", "2"])
        its, _ = self.read(path)
        used = usage.Usage(its)
        for site in [block.site for block in used.blocks.values()] + [used.oom.site]:
            self.assertIn("ffi", its.object_of(site).path)
        told = self.tool("report", path).stdout
        self.assertIn("Out of memory", told)
        self.assertNotIn("not known", told)

    def test_each_second_a_file_and_eight_in_all(self):
        program = self.program()
        for _ in range(3):
            program.do("take a 20000000000")
        self.assertEqual(self.files(), ["t.gct"])
        time.sleep(1.1)
        program.do("take a 30000000000 ordered")
        self.assertEqual(self.files(), ["t.gct", "t.gct.2"])
        said = program.end()
        self.assertEqual(said.count("out of memory"), 2, said)
        its, _ = self.read(program.path + ".2")
        self.assertEqual(usage.Usage(its).oom.b, 30_000_000_000)

    def test_without_a_name(self):
        program = Program(self, GPUCACHE_TRACE_ON="oom")
        program.do("take a 20000000000")
        program.end()
        self.assertEqual(self.files(), [f"gpucache-oom-{program.pid}.gct"])

    def test_without_room(self):
        """The failed file is gone, the program goes on, and it is said once."""
        program = self.program()
        program.do("take a 1000000")
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        program.do("threads 2 3000")
        program.do("take b 20000000000")
        program.do("take c 1000000")
        said = program.end()
        self.assertRegex(said, r"^gpucache: warning: out of memory: GPUCACHE_TRACE_ON=oom: there "
                               r"is no record in \S+: there is no room for the file: File too "
                               r"large\n$")
        self.assertEqual(self.files(), [])

    def test_what_is_there_is_left_alone(self):
        program = self.program()
        with open(program.path, "w", encoding="utf-8") as file:
            file.write("mine")
        program.do("take b 20000000000")
        self.assertIn("the file is there already", program.end())
        self.assertEqual(os.path.getsize(program.path), 4)

    def test_a_forked_child_writes_nothing(self):
        program = self.program()
        program.do("take a 1000000")
        program.do("fork 20000000000")
        self.assertEqual((program.end(), self.files()), ("", []))

    def test_other_processes(self):
        other = Program(self)
        other.do("take a 5000000000")
        pages = os.path.join(self.folder.name, "pages")
        end = time.monotonic() + 20
        while not (os.path.isdir(pages) and os.listdir(pages)) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.5)
        program = self.program(GPUCACHE_SHARE="0")
        program.do("take a 20000000000")
        self.assertRegex(program.end(), rf"process {other.pid} \(python\S*\) \S+ GiB\n")
        other.end()
        its, _ = self.read(program.path)
        (pid, _, size), = usage.Usage(its).neighbours
        self.assertEqual((pid, size >= 5_000_000_000), (other.pid, True))
        told = self.tool("report", program.path).stdout
        self.assertRegex(told, r"1 other process \S+ GiB\.(.|\n)*Other processes: PID "
                               rf"{other.pid} ")

    def test_a_trace_in_between(self):
        """gpucache trace: afterwards the process waits for the end of memory as before."""
        program = self.program()
        program.do("take a 1000000")
        time.sleep(0.5)
        path = os.path.join(self.folder.name, "live.gct")
        done = self.tool("trace", program.pid, "--seconds", "0.5", "-o", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        program.do("take b 2000000")
        program.do("take c 20000000000")
        program.end()
        self.assertEqual(self.files(), ["live.gct", "t.gct"])
        self.assertEqual([e.b for e in self.read(path)[1] if e.kind == KIND["LIVE"]], [1_000_000])
        used = usage.Usage(self.read(program.path)[0])
        self.assertEqual(used.live, 3_000_000)


if __name__ == "__main__":
    del sys.argv[1:4]
    unittest.main()
