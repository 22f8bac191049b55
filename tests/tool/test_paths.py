# SPDX-License-Identifier: BSD-2-Clause
"""Call paths in traces of programs that run under the library, on the simulated driver."""
import json
import os
import subprocess
import sys

from traced import FIRST, PROGRAM, Traces

from gpucache import trace, usage

# A Python program that allocates from frames of all sorts, and says what the interpreter says of
# them: each line has the bytes, and [function, file, line] of the frames, the innermost first.
FRAMES = """
import ctypes, json, sys, threading
cuda, held = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
context, size, size_t = ctypes.c_void_p(), 0, ctypes.c_size_t
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
is_ready = False
def take(library=held):
    global size
    if not is_ready:
        return
    size += 512
    block, frame, told = ctypes.c_uint64(), sys._getframe(), []
    library.cuMemAlloc_v2(ctypes.byref(block), size_t(size)); line = frame.f_lineno
    while frame:
        code = frame.f_code
        told.append([getattr(code, "co_qualname", code.co_name), code.co_filename,
                     frame.f_lineno if told else line])
        frame = frame.f_back
    print(json.dumps([size, told]), flush=True)
assert not cuda.cuCtxSetCurrent(context)
class Made:
    def __init__(self, is_first=False):
        global is_ready
        is_ready |= is_first
        take()
for n in range(20):  # the later ones are made in a quicker way, of a frame more
    Made(n == 15)
class Model:
    def forward(self,
                depth):
        for _ in range(2):
            if depth:
                self.forward(
                    depth - 1)
            else:
                take()
            depth and take(
            )
    class Inner:
        take()
        f = lambda self: [take() for i in range(2)] + [
            take()]
def many():
    yield take()
    yield from (take() for i in range(2))
Model().forward(3)
Model.Inner().f()
list(many())
sorted((1, 2), key=lambda x: take() or x)
deep = lambda n: deep(n - 1) if n else take()
deep(100)
blank = "\\n"
exec(compile("def größe():\\n\\n\\n    take()\\ngröße()", "/" + "ü" * 30 + "/x.py", "exec"))
exec(compile(blank * 5000 + "take()\\n" * 70 + blank * 300 + "take()", "a" * 300, "exec"))
exec(compile("def 名():\\n take()\\n名()", "名.py", "exec"))
try:
    1 / 0
except ZeroDivisionError:
    take()
finally:
    take()
def in_a_thread(library):
    cuda.cuCtxSetCurrent(context)
    take(library)
for library in cuda, held:
    thread = threading.Thread(target=in_a_thread, args=(library,))
    thread.start(), thread.join()
for n in range(40):  # code that ends, and other code where it was
    name = f"f{n % 10}"
    exec(compile(f"def {name}():{blank * (1 + n % 3)} take(){blank}{name}()", f"/{n // 2:03}.py",
                 "exec"))
class Late:
    def __del__(self):
        take()
late = Late()
"""


# A C library's function starts threads and programs; the first function of a program calls that.
PYTHON = os.path.basename(os.path.realpath(sys.executable))


class Paths(Traces):
    """GPUCACHE_TRACE_STACKS: who called whoever asked."""

    def is_deep(self, path, frames):
        """It has so many frames, or goes to where the program or the thread began: a Python that
        calls itself less often needs fewer."""
        return len(path) == frames or 10 <= len(path) < frames and (
            path[-1].startswith("libc.") or
            path[-1] == PYTHON and path[-2].startswith("libc."))

    def paths(self, its, events, *kinds):
        """The files of each event's frames, the innermost first."""
        return [[os.path.basename(its.object_of(frame).path) for frame in its.frames(e.site)]
                for e in events if trace.NAME[e.kind] in kinds]

    def test_of_each_allocation(self):
        program = self.program(GPUCACHE_TRACE_STACKS="16", GPUCACHE_MAX_RESERVED="1G")
        program.do("take a 1000000", "threads 3 200", "take failed 5000000000")
        program.end()
        its, events = self.read(program.path)
        self.assertEqual((its.num_lost, its.num_torn, its.num_unknown), (0, 0, 0))
        paths = self.paths(its, events, "ALLOC", "ALLOC_FAST")
        self.assertEqual(len(paths), 1 + 3 * 600)
        for path in paths + self.paths(its, events, "ALLOC_FAILED"):
            self.assertTrue(self.is_deep(path, 16), path)
            self.assertRegex(path[0], "ffi")
            self.assertTrue(any("python" in name for name in path), path)
        self.assertLess(len({its.frames(e.site) for e in events}), 20)

    def test_through_a_runtime(self):
        """Its own frames are none of the path: neither where it asks the driver, nor where not."""
        _, path = self.run_python(FIRST, "a.gct", GPUCACHE_TRACE_STACKS="8")
        its, events = self.read(path)
        paths = self.paths(its, events, "ALLOC", "ALLOC_FAST", "ALLOC_FAILED")
        self.assertEqual([len(path) for path in paths[:2]], [8, 8])
        self.assertEqual([self.is_deep(path, 16) for path in paths[2:]], [True], paths)
        for names in paths:
            self.assertRegex(names[0], "ffi")
            self.assertFalse([name for name in names if "cudart" in name], names)

    def test_only_what_is_rare_has_one_without_the_option(self):
        program = self.program(GPUCACHE_MAX_RESERVED="1G")
        program.do("take a 1000000", "take other 7000000 ordered", "take failed 5000000000")
        program.end()
        its, events = self.read(program.path)
        self.assertEqual([len(path) for path in self.paths(its, events, "ALLOC", "FREE")], [1])
        rare = self.paths(its, events, "PASSED", "ALLOC_FAILED")
        self.assertEqual([self.is_deep(path, 16) for path in rare], [True, True], rare)

    def test_it_can_change(self):
        program = self.program("take first 1000000")
        for frames in 5, 0:
            done = self.tool("set", program.pid, f"GPUCACHE_TRACE_STACKS={frames}")
            self.assertEqual(done.returncode, 0, done.stderr)
            program.do(f"take {frames} 1000000")
        program.end()
        its, events = self.read(program.path)
        self.assertEqual([len(path) for path in self.paths(its, events, "ALLOC", "ALLOC_FAST")],
                         [1, 5, 1])

    def test_a_forked_process_has_callers_alone(self):
        """A thread of its parent may have held the loader's lock."""
        path = self.file("a.gct")
        child = "import os, sys\nif os.fork():\n    sys.exit(os.wait()[1])\n" + PROGRAM
        done = subprocess.run([sys.executable, "-c", child], text=True, timeout=60,
                              input="take a 1000000\nend\n", check=True, stdout=subprocess.PIPE,
                              env={**self.under, "GPUCACHE_TRACE": path,
                                   "GPUCACHE_TRACE_STACKS": "8"})
        self.assertEqual(done.stdout, "ready\ndone\n")
        its, events = self.read(path)
        self.assertEqual([len(path) for path in self.paths(its, events, "ALLOC")], [1])


class PythonFrames(Traces):
    """GPUCACHE_TRACE_STACKS=N,python: what the interpreter itself says of its frames."""

    def frames_of(self, python, value):
        """What the program said, and its trace."""
        for name in os.listdir(self.folder):
            if name.endswith(".gct"):
                os.unlink(self.file(name))
        path = self.file("f.gct")
        done = subprocess.run([python, "-c", FRAMES], text=True, timeout=60, check=False,
                              capture_output=True, env={
                                  **self.under, "GPUCACHE_TRACE": path, "PYTHONUTF8": "1",
                                  "GPUCACHE_TRACE_STACKS": value, "PYTHONIOENCODING": "utf-8"})
        self.assertEqual(done.returncode, 0, done.stderr)
        its, events = self.read(path)
        self.assertEqual((its.num_lost, its.num_torn, its.num_unknown), (0, 0, 0))
        paths = {e.b: its.frames(e.site) for e in events if e.kind in usage.ALLOCS}
        return [json.loads(line) for line in done.stdout.splitlines()], paths, its, done.stderr

    @staticmethod
    def written(name, most, from_end):
        """As a record has it: what is not ASCII takes two bytes of the room at least."""
        most = most if name.isascii() else most // 2
        name = "".join(c if ord(c) < 0x800 else "?" for c in name)
        return name[-most:] if from_end else name[:most]

    def check(self, python, number):
        said, paths, its, _ = self.frames_of(python, f"{number},python")
        self.assertGreater(len(said), 100)
        for size, told in said:
            frames = [frame for frame in paths[size] if isinstance(frame, trace.PythonFrame)]
            if told[-1][0] == "Thread._bootstrap" and not frames:
                continue  # it let the interpreter's lock go
            wanted = [(self.written(function, 95, False), self.written(file, 160, True), line)
                      for function, file, line in told[:number]]
            self.assertEqual([tuple(frame) for frame in frames], wanted, size)
            native = paths[size][:len(paths[size]) - len(frames)]
            names = [os.path.basename(its.object_of(frame).path) for frame in native]
            self.assertFalse([name for name in names if "python3" in name and "ctypes" not in name],
                             names)
        of_threads = [size for size, told in said if told[-1][0] == "Thread._bootstrap"]
        self.assertEqual([any(isinstance(frame, trace.PythonFrame) for frame in paths[size])
                          for size in of_threads], [True, False])

    @staticmethod
    def pythons(*minors):
        """Those of these versions that are there and work, by their own names."""
        found = []
        for minor in minors:
            try:
                done = subprocess.run([f"python3.{minor}", "-c", "import sys, ctypes; "
                                       "print(sys.executable)"], text=True, check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            except OSError:
                continue
            found += done.stdout.splitlines() if done.returncode == 0 else []
        return found

    def test_of_each_python_that_is_there(self):
        known = self.pythons(11, 12, 13)
        if not known:
            self.skipTest("no Python whose frames are known")
        for python in known:
            for number in 8, 64:
                with self.subTest(python, number=number):
                    self.check(python, number)

    def test_of_another_python_one_line(self):
        others = self.pythons(9, 10, 14, 15)
        if not others:
            self.skipTest("no other Python")
        _, paths, _, complaints = self.frames_of(others[0], "8,python")
        self.assertEqual(complaints, "gpucache: warning: GPUCACHE_TRACE_STACKS: no frames of "
                                     "Python: this version of Python is not known\n")
        self.assertTrue(all(isinstance(frame, int) for path in paths.values() for frame in path))
