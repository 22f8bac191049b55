# SPDX-License-Identifier: BSD-2-Clause
"""Programs under the library, for tests of whole processes. The first arguments of such a test are
the library, and the folder of the simulated driver or, for Python, also that of its runtime."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

PIPE = subprocess.PIPE


def bare(library="", **more):
    """Without an option of the library; what is preloaded is this alone."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("GPUCACHE", "LD_"))}
    return {**env, **({"LD_PRELOAD": library} if library else {}), **more}


def environ(library, folders, **options):
    """Under the library and the simulated driver, with no other option than these and the folder of
    pages."""
    pages = {name: os.environ[name] for name in ("GPUCACHE_DIR",) if name in os.environ}
    return bare(library, **{"LD_LIBRARY_PATH": folders, **pages, **options})


def read(path, missing=""):
    """What is in the file; missing: it is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return missing


def reported(command, env, how="exit", **options):
    """The program that has run, and the text of its report; None: it wrote none."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        done = subprocess.run(command, env={"GPUCACHE_STATS": f"{how}:{path}", **env}, text=True,
                              capture_output=True, timeout=60, check=False, **options)
        return done, read(path, None)


def pool_of(text):
    """The first pool of a report."""
    return json.loads(text)["pools"][0]


def threads(pid):
    """The names of the process's threads."""
    return sorted(read(f"/proc/{pid}/task/{task}/comm").strip()
                  for task in os.listdir(f"/proc/{pid}/task"))


def stop(pid):
    """The process stands still: the signal alone does not say so of each thread."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 30
    while any(read(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()[0] != "T"
              for task in os.listdir(f"/proc/{pid}/task")):
        assert time.monotonic() < end
        time.sleep(0.001)


class Talker:
    """A program that does what the lines of its input say, and prints a line after each."""

    def __init__(self, command, env, **options):
        self.process = subprocess.Popen(command, env=env, text=True, stdin=PIPE, stdout=PIPE,
                                        **{"stderr": PIPE, **options})
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.end()

    def end(self):
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        for stream in self.process.stdin, self.process.stdout, self.process.stderr:
            if stream:
                stream.close()

    def send(self, *lines):
        self.process.stdin.write("".join(line + "\n" for line in lines))
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            said = self.process.stderr.read() if self.process.stderr else ""
            raise AssertionError("the program ended: " + said)
        return line

    def do(self, *lines):
        """What the last line gave."""
        self.send(*lines)
        return [self.read() for _ in lines][-1]

    def finish(self):
        """Ends its input; exit status and standard error."""
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


# A Python program for Talker, with a CUDA runtime
PYTHON = """
import ctypes, os, sys, threading, time
cudart = ctypes.CDLL("libcudart.so.13")
live = []
def take(size_bytes, into):
    p = ctypes.c_void_p()
    code = cudart.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(size_bytes))
    if not code:
        into.append(p)
    return code
def give(blocks):
    while blocks:
        assert cudart.cudaFree(blocks.pop(0)) == 0
def alloc(mib, count=1):
    return max(take(mib << 20, live) for i in range(count))
def free(count=None):
    for i in range(len(live) if count is None else count):
        assert cudart.cudaFree(live.pop(0)) == 0
    return 0
def churn(mib, count):
    return max(alloc(mib, count), free())
if "FIRST" in os.environ:
    print(eval(os.environ["FIRST"]), flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


def python(more=""):
    """The command of that program, which knows more functions."""
    head, loop = PYTHON.split('if "FIRST"')
    return [sys.executable, "-c", head + more + 'if "FIRST"' + loop]
