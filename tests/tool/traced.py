# SPDX-License-Identifier: BSD-2-Clause
"""A program that runs under the library on the simulated driver, with a trace; for the tests with
the arguments TOOL LIBRARY SIMULATOR_FOLDER NVML."""
import json
import os
import subprocess
import sys

from fake import ALONE, Scratch, text_of, wait_for

from gpucache import trace

LIBRARY = os.path.realpath(sys.argv[2])
SIMULATOR = ":".join(map(os.path.realpath, sys.argv[3].split(":")))
NVML = os.path.realpath(sys.argv[4])
MIB = 1 << 20
KIND = trace.KIND

# What a program does, by lines on stdin: "take NAME BYTES", "give NAME", "touch NAME", "churn
# PAIRS", "threads N PAIRS", "fork [BYTES]", "end". With "ordered" behind it a take or a give is in
# the order of the default stream.
PROGRAM = """
import ctypes, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning) # of a fork beside threads, from Python 3.12 on
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
def churn(number, pairs, all_began=None):
    assert not cuda.cuCtxSetCurrent(context)
    for i in range(pairs):
        if i == 1 and all_began: # or one may go on in the ring of another that ended
            all_began.wait()
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
        number, pairs = int(words[1]), int(words[2])
        began = threading.Barrier(number)
        all = [threading.Thread(target=churn, args=(n, pairs, began)) for n in range(number)]
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


# The beginning of a program of its own, with short words for its calls.
BEGIN = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
MIB, u64, size = 1 << 20, ctypes.c_uint64, ctypes.c_size_t
def got(function, *words, kind=u64):
    value = kind()
    assert not function(ctypes.byref(value), *words)
    return value
def good(code):
    assert not code, code
def alloc(bytes):
    return got(cuda.cuMemAlloc_v2, size(bytes))
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int),
                ("device", ctypes.c_int), ("rest", ctypes.c_byte * 32)]
def create(bytes):
    return got(cuda.cuMemCreate, size(bytes), ctypes.byref(Prop(1, 0, 1, 0)), u64(0))
def reserve(bytes):
    return got(cuda.cuMemAddressReserve, size(bytes), size(0), u64(0), u64(0))
"""
TELL = """
import os
os.dup2(1, 2)  # what the library says, for run_python
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
    """A program under the library, which has done these lines. cwd: the test's folder."""

    def __init__(self, case, *lines, cwd=None, **options):
        self.path, self.report = case.file("t.gct"), case.file("report.json")
        env = {**case.under, "GPUCACHE_STATS": "exit-json:" + self.report, **options}
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, text=True,
                                        cwd=cwd or case.folder, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        case.addCleanup(self.process.kill)
        case.assertEqual(self.process.stdout.readline(), "ready\n")
        self.case, self.pid = case, self.process.pid
        self.do(*lines)

    def do(self, *lines):
        """What the last line gave."""
        said = ""
        for line in lines:
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
        return json.loads(text_of(self.report))


class Traces(Scratch):
    def setUp(self):
        super().setUp()
        # Of tools, and of programs under the library
        self.outside = {**os.environ, "GPUCACHE_DIR": self.file("pages")}
        self.under = {**self.outside, "LD_LIBRARY_PATH": SIMULATOR, "LD_PRELOAD": LIBRARY,
                      "SIM_HAZARD": "off"}

    def file(self, name):
        return os.path.join(self.folder, name)

    def program(self, *lines, **options):
        return Program(self, *lines, **{"GPUCACHE_TRACE": self.file("t.gct"), **options})

    def shared_gpu(self):
        """The name of a simulated GPU that several processes share (SIM_SHARED)."""
        name = f"traced-{os.getpid()}-{self.id().rpartition('.')[2]}"
        path = f"/dev/shm/simulated-gpu-{name}"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self.addCleanup(os.unlink, path)
        return name

    def await_page(self, program):
        """Until the tool finds the program's page, which comes soon after the first allocation."""
        self.assertTrue(wait_for(lambda: not self.tool("stat", program.pid).returncode), "no page")

    def tool(self, *words, cwd=None):
        return subprocess.run([*ALONE, *map(str, words)], text=True, timeout=60, check=False,
                              capture_output=True, env=self.outside, cwd=cwd)

    def page_of(self, *paths):
        """The page of a report."""
        page = self.file("page.html")
        done = self.tool("report", *paths, "-o", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        return text_of(page)

    def run_python(self, words, trace_name, python=sys.executable, **options):
        """What a Python program under the library said, which has ended well; and its trace."""
        path = self.file(trace_name)
        done = subprocess.run([python, "-c", words], text=True, timeout=60, check=True,
                              capture_output=True, env={**self.under, "GPUCACHE_TRACE": path,
                                                        **options})
        return done.stdout, path
