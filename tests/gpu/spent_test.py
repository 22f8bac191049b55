# SPDX-License-Identifier: BSD-2-Clause
"""Tests of spent.c, for bench_test.py: it counts records of a CUPTI that is no real one
(fake_cupti.c), where the headers of the real one are. Each check yields lines: what is wrong."""
import ctypes
import os
import sys

import part_profile
import suite as base

# Kinds of CUPTI's records: a copy from or to the host, a memset, a kernel.
COPY, SET, KERNEL = 1, 2, 10
LATE = 1 << 40  # a beginning, in ns


class Cupti:
    """spent.c with the CUPTI that is no real one."""

    def __init__(self, path, folder):
        self.library, self.folder = ctypes.CDLL(path), folder
        self.file = os.path.join(folder, "figures")

    def work(self, kind, start, end, by_thread=False):
        self.library.fake_work(kind, ctypes.c_uint64(start), ctypes.c_uint64(end), by_thread)

    def call(self, name, start, end, by_thread=False):
        self.library.fake_call(name.startswith("cuda"), name.encode(), ctypes.c_uint64(start),
                               ctypes.c_uint64(end), by_thread)

    def figures(self, prepare, before=lambda cupti: None):
        """What is counted. prepare: lets CUPTI have records while they are counted. before: lets it
        have some that come too early."""
        self.library.fake_reset()
        before(self)
        begun = self.library.spent_begin()
        kinds = self.library.fake_enabled()
        prepare(self)
        ended = self.library.spent_end(self.file.encode())
        found = base.numbers(self.file)
        os.unlink(self.file)
        if (begun, ended, kinds, self.library.fake_enabled()) != (0, 0, 5, 0):
            found["codes and kinds"] = (begun, ended, kinds, self.library.fake_enabled())
        if self.library.fake_overlaps():
            found["buffers that were counted at the same time"] = self.library.fake_overlaps()
        return found

    def failure(self, function, nth):
        """(code of spent_begin, of spent_end, kinds then recorded after each, is there a file) when
        the nth call of a function fails."""
        self.library.fake_reset()
        self.library.fake_fail(ctypes.c_char_p(function), nth)
        begun, kinds = self.library.spent_begin(), self.library.fake_enabled()
        ended = 0 if begun else self.library.spent_end(self.file.encode())
        there = os.path.exists(self.file)
        if there:
            os.unlink(self.file)
        return begun, kinds, ended, self.library.fake_enabled(), there


def all_kinds(cupti):
    """Work that overlaps, lies within other work, and comes in no order; and calls."""
    for kind, start, end in ((KERNEL, 4000, 4100), (KERNEL, 1000, 2000), (KERNEL, 1500, 2500),
                             (COPY, 1600, 1700), (SET, 2500, 2600), (COPY, 3000, 3050)):
        cupti.work(kind, start, end)
    for name, *times in (("cuMemMap", (0, 7), (10, 40), (50, 61)), ("cuCtxGetCurrent", (5, 6)),
                         ("cudaMalloc_v3020", (100, 300)), ("cudaMallocHost_v3020", (0, 9000)),
                         ("cudaFree_v3020", (8, 12), (20, 21)), ("cudaFreeHost_v3020", (0, 900))):
        for start, end in times:
            cupti.call(name, start, end)


COUNTED = {"kernels": 3, "busy_ns": 1600 + 50 + 100, "dropped": 0, "cuMemMap": 3, "cuMemMap_ns": 48,
           "cuMemMap_max_ns": 30, "cuCtxGetCurrent": 1, "cuCtxGetCurrent_ns": 1,
           "cuCtxGetCurrent_max_ns": 1, "cudaMalloc": 1, "cudaMalloc_ns": 200,
           "cudaMalloc_max_ns": 200, "cudaFree": 2, "cudaFree_ns": 5, "cudaFree_max_ns": 4}
NOTHING = {"kernels": 0, "busy_ns": 0, "dropped": 0}
MAPPED = {"cuMemMap": 1, "cuMemMap_ns": 7, "cuMemMap_max_ns": 7}


def unfinished(cupti):
    """Two of each: one has no end, one ends before it begins."""
    for end in (0, LATE - 1):
        for kind in (KERNEL, COPY, SET):
            cupti.work(kind, LATE, end)
        for name in ("cuMemMap", "cudaMalloc_v3020"):
            cupti.call(name, LATE, end)
    cupti.work(KERNEL, 0, 0)  # its time is not known
    cupti.call("cuMemMap", 1, 8)


def two_buffers(cupti):
    all_kinds(cupti)
    cupti.work(KERNEL, 4050, 4200, True)
    cupti.call("cuMemMap", 100, 200, True)


def by_thread_alone(cupti):
    cupti.call("cuMemMap", 1, 8, True)


def spoilt(cupti):
    cupti.call("cuMemMap", 1, 8)
    cupti.library.fake_spoilt()
    cupti.call("cuMemMap", 1, 8)


def lost(cupti):
    cupti.call("cuMemMap", 1, 8)
    cupti.library.fake_lose(ctypes.c_size_t(5))


def nameless(cupti):
    for number in ("4000", "4000", "5000"):
        cupti.call(number, 1, 8)
    cupti.call("cuMemMap", 1, 8)


def uncounted(cupti):
    cupti.call("cuMemMap", 1, 8)
    cupti.library.fake_fail(ctypes.c_char_p(b"cuptiActivityGetNumDroppedRecords"), 1)


def many(cupti):
    for start in range(4000):
        cupti.work(KERNEL, 2 * start, 2 * start + 1)
    cupti.library.fake_repeat(45)


CASES = {
    "all kinds": (all_kinds, COUNTED),
    "nothing": (lambda cupti: None, NOTHING),
    "no end": (unfinished, {**NOTHING, **MAPPED, "dropped": 11}),
    "two buffers": (two_buffers, {**COUNTED, "kernels": 4, "busy_ns": COUNTED["busy_ns"] + 100,
                                  "cuMemMap": 4, "cuMemMap_ns": 148, "cuMemMap_max_ns": 100}),
    "a late buffer": (by_thread_alone, {**NOTHING, **MAPPED}),
    "a record that cannot be read": (spoilt, {**NOTHING, **MAPPED, "dropped": 1}),
    "lost records": (lost, {**NOTHING, **MAPPED, "dropped": 5}),
    "calls without a name": (nameless, {**NOTHING, **MAPPED, "dropped": 3}),
    "no number of lost records": (uncounted, {**NOTHING, **MAPPED, "dropped": 1}),
    "many kernels": (many, {**NOTHING, "kernels": 180000, "busy_ns": 4000}),
}


def before(cupti):
    """Records from before the beginning, in both buffers."""
    two_buffers(cupti)
    unfinished(cupti)


# What comes too early; the thread's buffer alone is being read when the flush has ended.
EARLY = {"": lambda cupti: None, ", counted anew": before, ", late before": by_thread_alone}


# What fails, the how manieth call of it; the codes, the kinds, and is there a file.
FAILURES = {(b"cuptiActivityRegisterCallbacks", 1): (999, 0, 0, 0, False),
            (b"cuptiActivityEnable", 1): (999, 0, 0, 0, False),
            (b"cuptiActivityEnable", 4): (999, 0, 0, 0, False),
            (b"cuptiActivityFlushAll", 1): (999, 0, 0, 0, False),
            (b"cuptiActivityFlushAll", 2): (0, 5, 999, 0, False)}


def mapped_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def counting(folder):
    """spent.c counts what CUPTI delivers, and tells when it delivers not everything."""
    suite = base.Suite(folder, False, None, False)
    try:
        include = part_profile.cupti_include(suite)
    except base.Skip as reason:
        print(f"the counting is not tried: {reason}")
        return
    cupti = Cupti(suite.compile("spent.so", ["spent.c", "fake_cupti.c"], "-shared", "-fPIC", "-I",
                                include), folder)
    mapped_before = mapped_bytes()
    for name, (prepare, wanted) in CASES.items():
        for when, early in EARLY.items():
            found = cupti.figures(prepare, early)
            if found != wanted:
                yield f"{name}{when}: {found}"
    more_bytes = mapped_bytes() - mapped_before
    if more_bytes > 1 << 30:  # a buffer has 16 MiB
        yield f"buffers are not freed: {more_bytes} bytes"
    for (function, nth), wanted in FAILURES.items():
        found = cupti.failure(function, nth)
        if found != wanted:
            yield f"call {nth} of {function.decode()} fails: {found}"
    cupti.library.fake_reset()
    code = (cupti.library.spent_begin(),
            cupti.library.spent_end(os.path.join(folder, "nosuch", "file").encode()),
            cupti.library.fake_enabled())
    full = cupti.library.spent_begin(), cupti.library.spent_end(b"/dev/full")
    if code != (0, -1, 0) or full != (0, -1):
        yield f"a file that cannot be written: {code}, {full}"


def real_library(folder):
    """Where CUPTI is, the library finds all that it needs there."""
    suite = base.Suite(os.path.join(folder, "real"), False, None, False)
    try:
        path = part_profile.with_cupti(suite, "spent.so", "spent.c")
    except base.Skip as reason:
        print(f"the library is not tried: {reason}")
        return
    # A process of its own, as CUPTI may keep what it has learnt of the machine.
    result = suite.run([sys.executable, "-c", "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], "
                        "mode=os.RTLD_NOW).spent_begin", path])
    if result.rc:
        yield f"the library cannot be loaded: {result.err}"
