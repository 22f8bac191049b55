# SPDX-License-Identifier: BSD-2-Clause
"""Traces of programs that run under the library, on the simulated driver: from the start, and of a
process that runs.

test_tracing.py TOOL LIBRARY SIMULATOR_FOLDER NVML"""
import collections
import json
import os
import re
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
NVML = os.path.realpath(sys.argv[4])
MIB = 1 << 20
KIND = trace.KIND

# What a program does, by lines on stdin: "take NAME BYTES", "give NAME", "touch NAME", "churn
# PAIRS", "threads N PAIRS", "fork [BYTES]", "end". With "ordered" behind it a take or a give is in
# the order of the default stream.
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
    elif words[0] == "touch":
        assert not cuda.cuMemsetD8_v2(held[words[1]], 0, ctypes.c_size_t(16))
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
        return Program(self, **{"GPUCACHE_TRACE": path, **options})

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

    def test_the_options_in_force_are_there(self):
        """Those that are not the defaults when it begins, and each change."""
        program = self.program(GPUCACHE_MAX_IDLE="3G", GPUCACHE_SHARE="2s", GPUCACHE_PARK="off")
        program.do("take a 1000000")
        end = time.monotonic() + 20
        while self.tool("set", program.pid, "MAX_IDLE=64M").returncode and time.monotonic() < end:
            time.sleep(0.1)
        program.end()
        _, events = self.read(program.path)
        told = {e.text for e in events if e.kind == KIND["OPTION"] and e.aux}
        self.assertEqual(told, {
            "GPUCACHE_MAX_IDLE=3G", "GPUCACHE_SHARE=2s", "GPUCACHE_PARK=off",
            f"GPUCACHE_TRACE={program.path}", f"GPUCACHE_STATS=exit-json:{program.report}",
            f"GPUCACHE_DIR={os.path.join(self.folder.name, 'pages')}"})
        self.assertEqual([e.text for e in events if e.kind == KIND["OPTION"] and not e.aux],
                         ["GPUCACHE_MAX_IDLE=64M"])
        said = self.tool("report", program.path).stdout
        self.assertRegex(said, r"Options: MAX_IDLE=3G SHARE=2s PARK=off .*, 1 changed while it ran")
        rows = said.partition("What other settings would have done")[2].splitlines()
        self.assertTrue(any(row.startswith("MAX_IDLE=3G ") for row in rows), said)
        self.assertTrue(any(row.startswith("the defaults ") for row in rows), said)

    def test_the_whole_gpu_is_there(self):
        """What is not free, of a second program too."""
        other = Program(self, GPUCACHE_TRACE="none")
        other.do("take a 500000000")
        program = self.program()
        program.do("take a 300000000")
        time.sleep(2.2)
        program.end()
        _, events = self.read(program.path)
        told = [e for e in events if e.kind == KIND["GPU"]]
        self.assertIn(len(told), (1, 2, 3))
        context = next(e for e in events if e.kind == KIND["CONTEXT"])
        self.assertEqual({(e.b, e.aux) for e in told}, {(context.b, context.a)})
        used = usage.Usage(trace.Trace(program.path))
        self.assertGreaterEqual(used.whole[0][-1][1], used.reserved)
        page = os.path.join(self.folder.name, "page.html")
        self.assertEqual(self.tool("report", program.path, "-o", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            self.assertIn('id="lanes"', file.read())

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

    def test_what_nvml_says_of_a_process_that_runs(self):
        """Is behind the trace, in its order of time."""
        program = Program(self)
        program.do("take a 100000000")
        path = os.path.join(self.folder.name, "live.gct")
        os.symlink(NVML, os.path.join(self.folder.name, "libnvidia-ml.so.1"))
        env = {**os.environ, "GPUCACHE_DIR": os.path.join(self.folder.name, "pages"),
               "LD_LIBRARY_PATH": self.folder.name,
               "NVML_PROCESSES": f"0:{program.pid}:1000000000,0:1:7"}
        end = time.monotonic() + 20
        while not os.path.isdir(env["GPUCACHE_DIR"]) and time.monotonic() < end:
            time.sleep(0.05)
        with subprocess.Popen([*ALONE, "trace", str(program.pid), "--seconds", "2.5", "-o", path],
                              env=env, text=True) as tool:
            while not os.path.exists(path) and tool.poll() is None:
                time.sleep(0.01)
            program.do("take b 700000000")
            self.assertEqual(tool.wait(60), 0)
        program.end()
        its, events = self.read(path)
        self.assertEqual((its.num_torn, its.num_unknown, its.ended), (0, 0, True))
        told = [e for e in events if e.kind == KIND["PROCESS"]]
        self.assertIn(len(told), (1, 2, 3))
        for event in told:
            self.assertEqual((event.a, event.b), (1_000_000_000, 1 << 30))
            self.assertTrue(event.text.startswith("GPU-"))
        self.assertEqual([e.ns for e in events], sorted(e.ns for e in events))
        self.assertTrue(0 <= told[0].ns and told[-1].ns < 20e9)
        used = usage.Usage(its)
        self.assertEqual(used.beyond[-1], 1_000_000_000 - used.reserved)
        self.assertIn("all that NVML says", self.tool("report", path).stdout)

    def test_owners_of_live_memory_while_it_records(self):
        program = self.program(GPUCACHE_TRACE="here-%p.gct")
        for line in "take a 100000000", "take b 7000000", "take c 9000000", "give c":
            program.do(line)
        end = time.monotonic() + 20
        while self.tool("ps", program.pid).returncode and time.monotonic() < end:
            time.sleep(0.05)
        said = self.tool("stat", "--owners", "--json", program.pid)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        (its,) = json.loads(said.stdout)["owners"]
        self.assertEqual((its["bytes"], its["blocks"]), (107_000_000, 2))
        self.assertIn("ffi", its["owner"])
        self.assertIn("ASKED FOR BY", self.tool("stat", "--owners", program.pid).stdout)
        self.assertEqual(self.tool("set", program.pid, "TRACE=none").returncode, 0)
        said = self.tool("stat", "--owners", program.pid)
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertIn("it records no trace", said.stderr)
        program.end()

    def test_parks_and_loans_are_flags_of_the_page(self):
        """Of the process of the page, and in the lane of the other."""
        name = f"tracing-{os.getpid()}"
        shared = f"/dev/shm/simulated-gpu-{name}"
        os.close(os.open(shared, os.O_CREAT | os.O_RDWR, 0o600))
        self.addCleanup(os.unlink, shared)
        env = {"SIM_SHARED": name, "SIM_CAPACITY": "1G", "SIM_DEVICES": "1",
               "GPUCACHE_SHARE": "10s"}
        lender = self.program(**env)
        for line in "take a 400000000", "take b 300000000", "give b":
            lender.do(line)
        asks = os.path.join(self.folder.name, "asks.gct")
        other = Program(self, GPUCACHE_TRACE=asks, **env)
        end = time.monotonic() + 20
        while self.tool("ps", lender.pid).returncode and time.monotonic() < end:
            time.sleep(0.05)
        other.do("take a 550000000")
        self.assertEqual(self.tool("park", lender.pid).returncode, 0)
        other.do("give a")
        lender.do("touch a")
        lender.end()
        other.end()
        page = os.path.join(self.folder.name, "page.html")
        for paths in (lender.path, asks), (asks, lender.path):
            done = self.tool("report", *paths, "-o", page)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(page, encoding="utf-8") as file:
                data = json.loads(re.search(r'id="data">(.*?)</script>', file.read())[1])
            marks = {path: [mark[2].partition(":")[0] for mark in lane["marks"]]
                     for path, lane in zip(paths, data["lanes"])}
            self.assertIn("lent", marks[lender.path])
            self.assertIn("parked", marks[lender.path])
            self.assertIn("woken", marks[lender.path])
            self.assertIn("other processes were asked", marks[asks])
            self.assertEqual({mark[1] for mark in data["lanes"][paths.index(lender.path)]["marks"]},
                             {"flush", "lend", "park"})
            own = {mark[1] for mark in data["marks"]}
            self.assertEqual("park" in own, paths[0] == lender.path)
            self.assertIn("lend", own)

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
        self.assertEqual((used.options["GPUCACHE_MAX_BLOCK"], used.options["GPUCACHE_TRACE_ON"]),
                         ("6G", "oom"))
        self.assertEqual({trace.NAME[e.kind] for e in events if e.b == 4_000_000}, {"LIVE"})
        kinds = collections.Counter(trace.NAME[e.kind] for e in events)
        self.assertEqual((used.num_unknown_frees, its.num_lost, its.ended), (0, 0, True))
        self.assertGreater(kinds["ALLOC_FAST"], 10000)  # some 37,900 where nothing else runs
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
    del sys.argv[1:5]
    unittest.main()
