# SPDX-License-Identifier: BSD-2-Clause
"""Tests of spent.c, for bench_test.py: it counts the records and calls of a CUPTI that is no real
one (fake_cupti.c), where the headers of the real one are. Each check yields lines: what is
wrong."""
import ctypes
import os
import sys

import part_profile
import suite as base

# Kinds of CUPTI's records: a copy from or to the host, a memset, a kernel.
COPY, SET, KERNEL = 1, 2, 10
LATE = 1 << 40  # a beginning, in ns
ALL_ON = 103  # three kinds of records, and the calls


class Cupti:
    """spent.c with the CUPTI that is no real one."""

    def __init__(self, path, folder):
        self.library, self.folder = ctypes.CDLL(path), folder
        self.file = os.path.join(folder, "figures")
        self.depth = 0  # of calls that go on

    def work(self, kind, start, end, by_thread=False):
        self.library.fake_work(kind, ctypes.c_uint64(start), ctypes.c_uint64(end), by_thread)

    def enter(self, name, start):
        self.library.fake_enter(name.encode(), ctypes.c_uint64(start))
        self.depth += 1

    def leave(self, end):
        self.library.fake_leave(ctypes.c_uint64(end))
        self.depth -= 1

    def call(self, name, start, end):
        self.enter(name, start)
        self.leave(end)

    def figures(self, prepare, before=lambda cupti: None):
        """What is counted. prepare: lets CUPTI have records while they are counted. before: lets it
        have some that come too early; calls that go on end once the counting has begun."""
        self.library.fake_reset()
        self.depth = 0
        before(self)
        self.library.fake_time(ctypes.c_uint64(1))
        begun = self.library.spent_begin()
        while self.depth:
            self.leave(LATE)
        kinds = self.library.fake_enabled()
        prepare(self)
        ended = self.library.spent_end(self.file.encode())
        found = base.numbers(self.file)
        os.unlink(self.file)
        if (begun, ended, kinds, self.library.fake_enabled()) != (0, 0, ALL_ON, 0):
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
    for name, *times in (("cuMemMap", (1, 8), (10, 40), (50, 61)), ("cuCtxGetCurrent", (5, 6))):
        for start, end in times:
            cupti.call(name, start, end)


COUNTED = {"kernels": 3, "busy_ns": 1600 + 50 + 100, "dropped": 0, "cuMemMap": 3, "cuMemMap_ns": 48,
           "cuMemMap_max_ns": 30, "cuCtxGetCurrent": 1, "cuCtxGetCurrent_ns": 1,
           "cuCtxGetCurrent_max_ns": 1}
NOTHING = {"kernels": 0, "busy_ns": 0, "dropped": 0}
ONE_KERNEL = {**NOTHING, "kernels": 1, "busy_ns": 7}
MAPPED = {"cuMemMap": 1, "cuMemMap_ns": 7, "cuMemMap_max_ns": 7}


def unfinished(cupti):
    """Two records of each: one has no end, one ends before it begins. A call goes on."""
    for end in (0, LATE - 1):
        for kind in (KERNEL, COPY, SET):
            cupti.work(kind, LATE, end)
    cupti.work(KERNEL, 0, 0)  # its time is not known
    cupti.call("cuMemMap", 1, 8)
    cupti.enter("cuMemMap", 9)


def within(cupti):
    """Calls inside a call."""
    cupti.enter("cuLaunchKernel", 1)
    cupti.call("cuMemMap", 2, 9)
    cupti.call("cuCtxGetCurrent", 20, 21)
    cupti.leave(31)


def two_buffers(cupti):
    all_kinds(cupti)
    cupti.work(KERNEL, 4050, 4200, True)


def by_thread_alone(cupti):
    cupti.work(KERNEL, 1, 8, True)


def many_threads(cupti):
    cupti.library.fake_calls(ctypes.c_size_t(8), ctypes.c_size_t(100000))


def spoilt(cupti):
    cupti.work(KERNEL, 1, 8)
    cupti.library.fake_spoilt()
    cupti.work(KERNEL, 10, 20)


def lost(cupti):
    cupti.work(KERNEL, 1, 8)
    cupti.library.fake_lose(ctypes.c_size_t(5))


def nameless(cupti):
    for number in ("4000", "4000", "4096", "5000"):
        cupti.call(number, 1, 8)
    cupti.call("cuMemMap", 1, 8)


def no_time(cupti):
    """The time is not known when a call begins, and when one ends."""
    cupti.call("cuMemMap", 1, 8)
    for nth in (1, 2):
        cupti.library.fake_fail(ctypes.c_char_p(b"cuptiGetTimestamp"), nth)
        cupti.call("cuMemMap", 1, 8)


def uncounted(cupti):
    cupti.work(KERNEL, 1, 8)
    cupti.library.fake_fail(ctypes.c_char_p(b"cuptiActivityGetNumDroppedRecords"), 1)


def many(cupti):
    for start in range(4000):
        cupti.work(KERNEL, 2 * start, 2 * start + 1)
    cupti.library.fake_repeat(45)


CASES = {
    "all kinds": (all_kinds, COUNTED),
    "nothing": (lambda cupti: None, NOTHING),
    "no end": (unfinished, {**NOTHING, **MAPPED, "dropped": 7}),
    "calls inside a call": (within, {**NOTHING, **MAPPED, "cuLaunchKernel": 1,
                                     "cuLaunchKernel_ns": 30, "cuLaunchKernel_max_ns": 30,
                                     "cuCtxGetCurrent": 1, "cuCtxGetCurrent_ns": 1,
                                     "cuCtxGetCurrent_max_ns": 1}),
    "many threads": (many_threads, {**NOTHING, "cuMemMap": 800000, "cuMemMap_ns": 8 * 5000050000,
                                    "cuMemMap_max_ns": 100000, "dropped": 800000}),
    "no time": (no_time, {**NOTHING, **MAPPED, "dropped": 2}),
    "two buffers": (two_buffers, {**COUNTED, "kernels": 4, "busy_ns": COUNTED["busy_ns"] + 100}),
    "a late buffer": (by_thread_alone, ONE_KERNEL),
    "a record that cannot be read": (spoilt, {**ONE_KERNEL, "dropped": 1}),
    "lost records": (lost, {**ONE_KERNEL, "dropped": 5}),
    "calls without a name": (nameless, {**NOTHING, **MAPPED, "dropped": 4}),
    "no number of lost records": (uncounted, {**ONE_KERNEL, "dropped": 1}),
    "many kernels": (many, {**NOTHING, "kernels": 180000, "busy_ns": 4000}),
}


def before(cupti):
    """Records from before the beginning, in both buffers; calls, of which one goes on."""
    two_buffers(cupti)
    unfinished(cupti)


# What comes too early; the thread's buffer alone is being read when the flush has ended.
EARLY = {"": lambda cupti: None, ", counted anew": before, ", late before": by_thread_alone}


# What fails, the how manieth call of it; the codes, the kinds, and is there a file.
FAILURES = {(b"cuptiActivityRegisterCallbacks", 1): (999, 0, 0, 0, False),
            (b"cuptiActivityEnable", 1): (999, 0, 0, 0, False),
            (b"cuptiActivityEnable", 3): (999, 0, 0, 0, False),
            (b"cuptiActivityFlushAll", 1): (999, 0, 0, 0, False),
            (b"cuptiGetTimestamp", 1): (999, 0, 0, 0, False),
            (b"cuptiSubscribe", 1): (999, 0, 0, 0, False),
            (b"cuptiEnableDomain", 1): (999, 0, 0, 0, False),
            (b"cuptiActivityFlushAll", 2): (0, ALL_ON, 999, 0, False)}


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
