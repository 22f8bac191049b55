# SPDX-License-Identifier: BSD-2-Clause
"""Memory that the driver serves beside the pool: how much of it there was at once, on the simulated
driver.

test_beside.py TOOL LIBRARY SIMULATOR_FOLDER NVML"""
import os
import subprocess
import sys
import unittest

from traced import LIBRARY, MIB, SIMULATOR, Traces

from gpucache import plan, report, usage

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
GROUPS = {"async": "num_async_allocs", "managed": "num_managed_allocs", "vmm": "num_vmm_allocs",
          "array": "num_array_allocs", "host": "num_host_allocs"}


class Beside(Traces):
    def run_traced(self, script, name="t.gct"):
        path = os.path.join(self.folder.name, name)
        env = {**os.environ, "LD_LIBRARY_PATH": SIMULATOR, "LD_PRELOAD": LIBRARY,
               "SIM_HAZARD": "off", "GPUCACHE_DIR": os.path.join(self.folder.name, "pages"),
               "GPUCACHE_TRACE": path}
        subprocess.run([sys.executable, "-c", BEGIN + script], env=env, check=True, timeout=60)
        return path

    def used(self, script):
        its, _ = self.read(self.run_traced(script))
        self.assertEqual(its.num_lost, 0)
        return usage.Usage(its)

    def check(self, used, **kinds):
        """kind=(calls, MiB at the peak, most, at the end)."""
        found = {}
        for name, group in GROUPS.items():
            if group in used.beside.kinds:
                its = used.beside.kinds[group]
                found[name] = (its.num_calls, *(size / MIB for size in
                                                (its.at_peak, its.most, its.live)))
        self.assertEqual(found, kinds)

    def test_what_is_freed_is_gone(self):
        used = self.used("""
for n in range(20):
    block = got(cuda.cuMemAllocAsync, size(8 * MIB), None)
    good(cuda.cuMemFreeAsync(block, None) if n % 2 else cuda.cuMemFree_v2(block))
large = alloc(100 * MIB)
kept = got(cuda.cuMemAllocAsync, size(3 * MIB), None)
good(cuda.cuMemFree_v2(large))
managed = got(cuda.cuMemAllocManaged, size(50 * MIB), 1)
good(cuda.cuMemFree_v2(managed))
host = got(cuda.cuMemHostAlloc, size(4 * MIB), 0)
good(cuda.cuMemFreeHost(host))
page = (ctypes.c_byte * (2 * MIB))()
good(cuda.cuMemHostRegister_v2(page, size(2 * MIB), 0))
good(cuda.cuMemHostUnregister(page))
""")
        self.assertEqual((used.peak, used.live, used.num_unknown_frees), (103 * MIB, 3 * MIB, 0))
        self.assertEqual(used.reserved - used.beside.live,
                         used.pool_peak)  # nothing of the pool's went back
        self.check(used, **{"async": (21, 3, 8, 3), "managed": (1, 0, 50, 0),
                            "host": (2, 0, 4, 0)})
        self.assertEqual(sum(used.at_peak.values()), 103 * MIB)

    def test_memory_of_cuMemCreate_lives_as_long_as_somebody_holds_it(self):
        """Given up while it is mapped, as many programs do; given up last; retained;
        and several parts that are unmapped at once."""
        used = self.used("""
at = reserve(16 * MIB)
first, second, third, kept = (create(n * MIB) for n in (2, 4, 2, 2))
good(cuda.cuMemMap(at, size(2 * MIB), size(0), first, u64(0)))
good(cuda.cuMemMap(u64(at.value + 2 * MIB), size(4 * MIB), size(0), second, u64(0)))
good(cuda.cuMemRelease(first))
alloc(10 * MIB)  # the peak: 20 MiB
good(cuda.cuMemRelease(second))
good(cuda.cuMemUnmap(at, size(6 * MIB)))
good(cuda.cuMemMap(at, size(2 * MIB), size(0), third, u64(0)))
again = got(cuda.cuMemRetainAllocationHandle, at)
good(cuda.cuMemUnmap(at, size(2 * MIB)))
good(cuda.cuMemRelease(third))
""")
        self.assertEqual((used.peak, used.live), (20 * MIB, 14 * MIB))
        self.check(used, vmm=(4, 10, 10, 4))

    def test_a_free_that_fails_frees_nothing(self):
        used = self.used("""
class Array(ctypes.Structure):
    _fields_ = [("width", size), ("height", size), ("format", ctypes.c_int),
                ("channels", ctypes.c_int)]
array = got(cuda.cuArrayCreate_v2, ctypes.byref(Array(1024, 1024, 0x20, 4)), kind=ctypes.c_void_p)
other = got(cuda.cuArrayCreate_v2, ctypes.byref(Array(1024, 1024, 0x20, 4)), kind=ctypes.c_void_p)
good(cuda.cuArrayDestroy(array))
host = got(cuda.cuMemHostAlloc, size(4 * MIB), 0)
assert cuda.cuMemHostUnregister(host)
""")
        self.check(used, array=(2, 32, 32, 16), host=(1, 0, 4, 4))

    def test_an_unmapping_that_fails_leaves_the_memory(self):
        used = self.used("""
at = reserve(8 * MIB)
part = create(4 * MIB)
good(cuda.cuMemMap(at, size(4 * MIB), size(0), part, u64(0)))
good(cuda.cuMemRelease(part))
assert cuda.cuMemUnmap(at, size(6 * MIB))
assert cuda.cuMemUnmap(at, size(2 * MIB))
""")
        self.check(used, vmm=(1, 4, 4, 4))

    def test_reports_and_plans_tell_it(self):
        path = self.run_traced("""
pool = alloc(64 * MIB)
for n in range(500):
    block = got(cuda.cuMemAllocAsync, size(512 * MIB), None)
    good(cuda.cuMemFreeAsync(block, None))
""")
        its = report.Report(path)
        self.addCleanup(its.close)
        said = "\n".join(its.lines())
        self.assertRegex(said, r"cudaMallocAsync +500 +512 MiB +512 MiB +0 B +"
                               r"250 GiB")
        self.assertEqual(its.usage.peak, 576 * MIB)
        # Some 64 MiB of the pool, and 512 MiB beside it, whatever the calls were in all.
        job = plan.Job(path)
        self.assertEqual((job.beside, job.not_known), (512 * MIB, 0))
        self.assertLess(job.least, 700 * MIB)
        self.assertGreaterEqual(job.least, 576 * MIB)
        self.assertIn("576 MiB", self.tool("report", path).stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
