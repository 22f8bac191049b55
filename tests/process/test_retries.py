# SPDX-License-Identifier: BSD-2-Clause
"""Driver calls that found no memory beside idle memory, and were made again, are counted. So are
calls of the program's that the driver served after it had no memory for the pool's own."""
import json
import os
import re
import sys
import tempfile
import unittest

import programs

LIBRARY, FOLDERS, PROGRAM = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3]


def retried_calls(capacity):
    """What the scene's process counted on one device of so much memory. It takes each kind of
    memory once after the device was filled and freed."""
    env = programs.environ(LIBRARY, FOLDERS, SIM_CAPACITY=capacity, SIM_CTX_BYTES="100M",
                           SIM_OBJECT_BYTES="8M", SIM_DEVICES="1")
    done, text = programs.reported([PROGRAM], env)
    return done.returncode, json.loads(text)["counters"]["num_retried_calls"]


# Prints the result of each allocation. Sizes in KiB; p: in rows; c: the rest is in a capture, of
# which the result comes last.
ALLOCATOR = """
import ctypes, sys
cuda, zero = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
number, stream, pitch = ctypes.c_uint64, ctypes.c_void_p(), ctypes.c_size_t()
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
blocks, results, capture = [], [], False
for word in sys.argv[1:]:
    block = number()
    if word == "c":
        capture = not cuda.cuStreamCreate(ctypes.byref(stream), 1)
        results.append(cuda.cuStreamBeginCapture_v2(stream, 0))
        continue
    if word[0] == "p":
        rc = cuda.cuMemAllocPitch_v2(ctypes.byref(block), ctypes.byref(pitch),
                                     ctypes.c_size_t(1000), ctypes.c_size_t(int(word[1:])), 4)
    else:
        rc = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(int(word) << 10))
    results.append(rc)
    blocks += [block] if rc == 0 else []
if capture:
    results.append(cuda.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())))
else:
    results.append(cuda.cuMemsetD8_v2(blocks[-1], 7, ctypes.c_size_t(1000)) if blocks else 0)
for block in blocks:
    results.append(cuda.cuMemFree_v2(block))
print(*results)
"""


def allocate(words, **options):
    """The results, the figures of the one pool, and the driver's allocations."""
    with tempfile.TemporaryDirectory() as folder:
        calls = os.path.join(folder, "calls")
        env = programs.environ(LIBRARY, FOLDERS, GPUCACHE_DIR="none", SIM_DEVICES="1",
                               SIM_TRACE=f"calls:{calls}", **options)
        done, text = programs.reported([sys.executable, "-c", ALLOCATOR, *words.split()], env)
        own = re.findall(r"cuMemAlloc(?:Pitch)?_v2 (\d+)", programs.read(calls))
    return [int(word) for word in done.stdout.split()], programs.pool_of(text), sum(map(int, own))


class LastCall(unittest.TestCase):
    """The last call before the error is the program's own."""

    def test_the_driver_serves_what_the_pool_gets_no_memory_for(self):
        for name in "cuMemCreate", "cuMemMap", "cuMemSetAccess":
            with self.subTest(name):
                results, pool, _ = allocate("1 1 1000 p3000 30000", SIM_FAIL=f"{name}:1+:2")
                self.assertEqual(results, [0] * 11)
                self.assertEqual((pool["num_oom_passed"], pool["num_ooms"]), (5, 0))

    def test_the_last_pages_serve_where_a_segment_does_not_fit(self):
        results, pool, _ = allocate("67584", SIM_CAPACITY="66M", GPUCACHE_BACKING="segment")
        self.assertEqual(results, [0, 0, 0])
        self.assertEqual((pool["num_oom_passed"], pool["num_ooms"]), (1, 0))

    def test_a_full_device_is_the_drivers_error_after_one_call_more(self):
        results, pool, own = allocate("65536 65536 30000", SIM_CAPACITY="100M")
        self.assertEqual(results, [0, 2, 0, 0, 0, 0])
        self.assertEqual((pool["num_oom_passed"], pool["num_ooms"], own), (0, 1, 1))

    def test_a_limit_stays_one(self):
        results, pool, own = allocate("65536 65536", GPUCACHE_MAX_RESERVED="100M")
        self.assertEqual(results, [0, 2, 0, 0])
        self.assertEqual((pool["num_limit_rejections"], pool["num_oom_passed"], own), (1, 0, 0))

    def test_it_breaks_no_capture(self):
        results, pool, _ = allocate("c 3000", SIM_FAIL="cuMemCreate:1+:2")
        self.assertEqual(results, [0, 0, 0, 0])
        self.assertEqual(pool["num_oom_passed"], 1)


# Frees a block, and makes a step of the checkpoint of the process that argv names; 0: of itself.
# Prints the step's result.
CHECKPOINTER = """
import ctypes, os, sys
cuda, block, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(64 << 20))
cuda.cuMemFree_v2(block)
step = getattr(cuda, "cuCheckpointProcess" + sys.argv[1])
print(step(int(sys.argv[2]) or os.getpid(), None))
"""


def checkpoint(step, pid):
    """The result of the step, of which the first call finds no memory."""
    env = programs.environ(LIBRARY, FOLDERS, GPUCACHE_DIR="none", SIM_DEVICES="1",
                           SIM_FAIL=f"cuCheckpointProcess{step}:1:2")
    done, text = programs.reported([sys.executable, "-c", CHECKPOINTER, step, str(pid)], env)
    return int(done.stdout), programs.pool_of(text)


class Checkpoints(unittest.TestCase):
    """A second call would find that the simulator has no checkpoints here."""

    def test_a_restore_is_not_made_again(self):
        """Nor is anything given back for a process that is not checkpointed."""
        for pid in 1, 0:
            with self.subTest(pid=pid):
                rc, pool = checkpoint("Restore", pid)
                self.assertEqual(rc, 2)
                self.assertEqual(pool["idle_bytes"], 64 << 20)

    def test_an_unlock_of_another_process_is(self):
        self.assertEqual(checkpoint("Unlock", 1)[0], 801)
        rc, pool = checkpoint("Unlock", 0)
        self.assertEqual((rc, pool["idle_bytes"]), (2, 64 << 20))


class Retries(unittest.TestCase):
    def test_calls_that_are_made_again_are_counted(self):
        rc, count = retried_calls("2G")
        self.assertEqual(rc, 0)
        # 15 kinds at least once each, 10 refused calls, and 20 rounds of threads
        self.assertGreaterEqual(count, 45)
        self.assertLess(count, 400)
