# SPDX-License-Identifier: BSD-2-Clause
"""What the programs of framework_scenes.py and framework_forks.py share. Their arguments are SCENE
LOG FOLDER. LOG is the library's log file. A scene ends with exit status 0 if all holds."""
import contextlib
import ctypes
import os
import signal
import sys
import time

import framework_fakes as fakes
import programs

MIB = fakes.MIB
LOG, FOLDER = sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None)
# A free-threaded build, unless PYTHON_GIL=1 is set, lacks it.
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


def count(text):
    return sum(text in line for line in programs.read(LOG).splitlines())


def await_true(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def lines_after(text, number):
    """The log's lines after the one with the text that follows so many others. None: it is not
    there yet."""
    lines = programs.read(LOG).splitlines()
    found = [i for i, line in enumerate(lines) if text in line][number:]
    return lines[found[0] + 1:] if found else None


def flush(patient=True):
    """A flush by signal, from its beginning to the one that follows the packages' answer."""
    before = count("flush (signal)")
    os.kill(os.getpid(), signal.SIGUSR1)
    await_true(lambda: lines_after("flush (signal)", before) is not None)
    if patient:
        await_true(lambda: any("frameworks: answered" in line
                               for line in lines_after("flush (signal)", before)))


def settle():
    """Until no flush came for a while."""
    seen = -1
    while seen != count("flush ("):
        seen = count("flush (")
        time.sleep(0.2)


def device_bytes_used():
    simulator = ctypes.CDLL("libcuda.so.1")
    simulator.simDeviceBytesUsed.restype = ctypes.c_uint64
    return simulator.simDeviceBytesUsed(0)


def torch_of(size=160 * MIB, empty=None):
    cache = fakes.Cache()
    fakes.put_torch(cache, empty)
    cache.fill(size)
    return cache


def forget():
    for name in list(sys.modules):
        if name.split(".")[0] in ("torch", "cupy", "numba", "rmm", "cuda"):
            del sys.modules[name]


def ready():
    print("ready", flush=True)


def slow_empty(cache, microseconds):
    cache.begun = 0

    def empty():
        with cache.lock:
            cache.begun += 1
            libc.usleep(microseconds)
        cache.empty()
    fakes.put_torch(cache, empty)


def play(scenes):
    """The scene that the first argument names. scenes: the globals() of the program."""
    with contextlib.suppress(BrokenPipeError):
        scenes[sys.argv[1]]()
