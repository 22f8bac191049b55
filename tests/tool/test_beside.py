# SPDX-License-Identifier: BSD-2-Clause
"""Memory that the driver serves beside the pool: how much of it there was at once, on the simulated
driver."""
import json
import re

from fake import text_of
from traced import BEGIN, KIND, MIB, TELL, Traces

from gpucache import plan, report, usage

GROUPS = {"async": "num_async_allocs", "managed": "num_managed_allocs", "vmm": "num_vmm_allocs",
          "array": "num_array_allocs", "host": "num_host_allocs"}

# What runs in the threads, one call at a time.
# parts: [kind, name, bytes, handles, {address: bytes}]
RANDOM = """
import json, os, queue, random, threading
chance, parts, pool = random.Random(seed), [], {}
kinds = {name: [0, 0, 0, 0] for name in ("async", "managed", "vmm", "array", "host")}
figures = {"peak": 0, "live": 0, "kinds": kinds}
class Array(ctypes.Structure):
    _fields_ = [("width", size), ("height", size), ("format", ctypes.c_int),
                ("channels", ctypes.c_int)]
good(cuda.cuMemFree_v2(alloc(512)))  # memory of the host begins no trace
space, free = reserve(1 << 32), [n * 32 * MIB for n in range(60)]
def note():
    parts[:] = [its for its in parts if its[3] or its[4]]
    for name, its in kinds.items():
        its[3] = sum(part[2] for part in parts if part[0] == name)
        its[2] = max(its[2:])
    figures["live"] = live = sum(pool.values()) + sum(
        kinds[name][3] for name in ("async", "vmm", "array"))
    if live > figures["peak"]:
        figures["peak"] = live
        for its in kinds.values():
            its[1] = its[3]
def take():
    kind, bytes = chance.choice([*kinds]), chance.randrange(1, 9) * 2 * MIB
    if kind == "async":
        name = got(cuda.cuMemAllocAsync, size(bytes), None)
    elif kind == "managed":
        name = got(cuda.cuMemAllocManaged, size(bytes), 1)
    elif kind == "vmm":
        name = create(bytes)
    elif kind == "array":
        name = got(cuda.cuArrayCreate_v2, ctypes.byref(Array(1024, bytes >> 14, 0x20, 4)),
                   kind=ctypes.c_void_p)
    else:
        name = got(cuda.cuMemHostAlloc, size(bytes), 0, kind=ctypes.c_void_p)
    kinds[kind][0] += 1
    parts.append([kind, name, bytes, 1, {}])
def give():
    its = chance.choice([its for its in parts if its[3]] or [None])
    if its is None:
        return
    good({"async": lambda at: cuda.cuMemFreeAsync(at, None) if seed % 2 else cuda.cuMemFree_v2(at),
          "managed": cuda.cuMemFree_v2, "vmm": cuda.cuMemRelease, "array": cuda.cuArrayDestroy,
          "host": cuda.cuMemFreeHost}[its[0]](its[1]))
    its[3] -= 1
def map():
    found = [its for its in parts if its[0] == "vmm" and its[3]]
    if found and free:
        its, at = chance.choice(found), u64(space.value + free.pop())
        good(cuda.cuMemMap(at, size(its[2]), size(0), its[1], u64(0)))
        its[4][at.value] = its[2]
        if chance.random() < 0.3:
            assert got(cuda.cuMemRetainAllocationHandle, at).value == its[1].value
            its[3] += 1
def unmap():
    found = [(its, at) for its in parts for at in its[4]]
    if found:
        its, at = chance.choice(found)
        if chance.random() < 0.2:
            assert cuda.cuMemUnmap(u64(at), size(its[4][at] + 2 * MIB))
            return
        good(cuda.cuMemUnmap(u64(at), size(its[4].pop(at))))
        free.append(at - space.value)
def pooled():
    if pool and chance.random() < 0.5:
        addr = chance.choice([*pool])
        good(cuda.cuMemFree_v2(u64(addr)))
        if chance.random() < 0.2:
            assert cuda.cuMemFree_v2(u64(addr))
        del pool[addr]
    else:
        bytes = chance.randrange(1, 9) * MIB
        pool[alloc(bytes).value] = bytes
def work(mine, done):
    good(cuda.cuCtxSetCurrent(context))
    for what in iter(mine.get, None):
        try:
            what()
            note()
            done.put(None)
        except BaseException as error:
            done.put(error)
threads = [queue.Queue() for _ in range(4)]
done = queue.Queue()
for its in threads:
    threading.Thread(target=work, args=(its, done), daemon=True).start()
def run(thread, what):
    thread.put(what)
    error = done.get()
    if error:
        raise error
def go_on(turns):
    for _ in range(turns):
        run(chance.choice(threads),
            chance.choices((take, give, map, unmap, pooled), (5, 4, 4, 3, 4))[0])
go_on(300)
"""
WRITE_FIGURES = """
with open(os.environ["GPUCACHE_TRACE"] + ".json", "w") as file:
    json.dump(figures, file)
"""

# Of the thread: so many allocations and frees. A ring has some 32,000 of them.
CHURN = """
def churn(pairs):
    for _ in range(pairs):
        good(cuda.cuMemFree_v2(alloc(2 * MIB)))
"""
FAIL = """
assert cuda.cuMemAlloc_v2(ctypes.byref(u64()), size(17 << 30)) == 2
"""


class Beside(Traces):
    def run_traced(self, script, name="t.gct"):
        return self.run_python(BEGIN + script, name)[1]

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
                         used.memory.pool_peak)  # nothing of the pool's went back
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

    def test_what_threads_do_in_turn_is_told_in_this_order(self):
        """Random programs of four threads. Each knows how much there was of each kind."""
        for seed in range(6):
            path = self.run_traced(f"seed = {seed}" + RANDOM + WRITE_FIGURES, f"{seed}.gct")
            known = json.loads(text_of(path + ".json"))
            its, _ = self.read(path)
            used = usage.Usage(its)
            self.assertEqual((used.peak, used.live), (known["peak"], known["live"]), seed)
            self.assertEqual({name: [its.num_calls, its.at_peak, its.most, its.live] for name, its
                              in ((name, used.beside.kinds[group])
                                  for name, group in GROUPS.items())}, known["kinds"], seed)
            self.assertEqual(sum(used.at_peak.values()), used.peak)
            self.assertEqual(used.reserved - used.beside.live, used.memory.pool_peak)

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


class OutOfMemory(Traces):
    """GPUCACHE_TRACE_ON=oom: the file and the line have it, also if the rings have no record of it
    any more."""

    def run_out(self, script, name="t.gct"):
        """(what the line says of holders, the trace)"""
        said, path = self.run_python(TELL + BEGIN + CHURN + script + FAIL, name,
                                     GPUCACHE_TRACE_ON="oom")
        return re.findall(r"who holds what: (.*)\n", said)[0], path

    def test_it_has_a_holder(self):
        for number, pairs in enumerate((0, 40_000)):
            line, path = self.run_out(f"""
small = alloc(10 * MIB)
one, other = got(cuda.cuMemAllocAsync, size(6 << 30), None), create(5 << 30)
managed, host = got(cuda.cuMemAllocManaged, size(MIB), 1), got(cuda.cuMemHostAlloc, size(MIB), 0)
churn({pairs})
""", f"{number}.gct")
            self.assertRegex(line, r"^\S*ffi\S* 11.0 GiB$")
            its, events = self.read(path)
            self.assertEqual(sum(e.kind == KIND["PASSED"] for e in events), 4)
            used = usage.Usage(its)
            self.assertEqual((used.live, used.num_unknown_frees, its.num_lost),
                             ((11 << 30) + 10 * MIB, 0, 0))
            self.assertEqual({its.live for its in used.beside.kinds.values()},
                             {6 << 30, 5 << 30, MIB})
            told = self.tool("report", path).stdout
            self.assertRegex(told, r"This process: \S*ffi\S* 11 GiB; ")
            self.assertNotIn("are neither", told)

    def test_what_goes_while_the_rings_have_its_records_was_there_before(self):
        line, path = self.run_out("""
gone = got(cuda.cuMemAllocAsync, size(2 << 30), None)
forgotten = got(cuda.cuMemAllocAsync, size(1 << 30), None)
good(cuda.cuMemFreeAsync(forgotten, None))
churn(40_000)
good(cuda.cuMemFreeAsync(gone, None))
""")
        self.assertEqual(line, "no holder is known")
        used = usage.Usage(self.read(path)[0])
        self.assertEqual((used.peak, used.live), ((2 << 30) + 2 * MIB, 0))

    def test_memory_of_cuMemCreate_that_goes_in_parts(self):
        """Its handle first, then one address after the other, or both at once; a failed unmapping
        is none; and a retained one lives on."""
        for number, (script, live) in enumerate((
                ("good(cuda.cuMemUnmap(at, size(4 * MIB)))", 4),
                ("for n in 0, 4: good(cuda.cuMemUnmap(u64(at.value + n * MIB), size(4 * MIB)))", 0),
                ("good(cuda.cuMemUnmap(at, size(8 * MIB)))", 0),
                ("assert cuda.cuMemUnmap(at, size(6 * MIB))", 4),
                ("got(cuda.cuMemRetainAllocationHandle, at)\n"
                 "good(cuda.cuMemUnmap(at, size(8 * MIB)))", 4),
                ("good(cuda.cuMemRelease(got(cuda.cuMemRetainAllocationHandle, at)))", 4),
                ("good(cuda.cuMemRelease(got(cuda.cuMemRetainAllocationHandle, at)))\n"
                 "good(cuda.cuMemUnmap(at, size(8 * MIB)))", 0))):
            for between in 0, 40_000:
                _, path = self.run_out(f"""
at, part = reserve(8 * MIB), create(4 * MIB)
for n in 0, 4:
    good(cuda.cuMemMap(u64(at.value + n * MIB), size(4 * MIB), size(0), part, u64(0)))
good(cuda.cuMemRelease(part))
churn({between})
{script}
churn(40_000)
""", f"{number}-{between}.gct")
                used = usage.Usage(self.read(path)[0])
                self.assertEqual(used.live, live * MIB, (script, between))

    def test_threads_in_any_order(self):
        """Some of the rings have lost more records than others."""
        for seed in range(6):
            line, path = self.run_out(f"seed = {seed}" + RANDOM + """
for n in range(3):
    for thread in chance.sample(threads, 2):
        run(thread, lambda: churn(chance.randrange(20_000)))
    go_on(30)
""" + WRITE_FIGURES, f"{seed}.gct")
            known = json.loads(text_of(path + ".json"))
            its, _ = self.read(path)
            used = usage.Usage(its)
            self.assertEqual((used.live, its.num_lost), (known["live"], 0), seed)
            self.assertEqual({name: used.beside.kinds[group].live
                              for name, group in GROUPS.items()},
                             {name: figures[3] for name, figures in known["kinds"].items()}, seed)
            size, unit = re.match(r"\S*ffi\S* (\S+) (\w+)$", line).groups()
            self.assertAlmostEqual(float(size) * {"MiB": MIB, "GiB": 1 << 30}[unit], known["live"],
                                   delta=0.06 * MIB, msg=seed)

    def test_a_forked_child_changes_nothing(self):
        line, path = self.run_out("""
held = got(cuda.cuMemAllocAsync, size(1 << 30), None)
pid = os.fork()
if not pid:
    cuda.cuMemFreeAsync(held, None)
    cuda.cuMemAllocAsync(ctypes.byref(u64()), size(MIB), None)
    cuda.cuMemAlloc_v2(ctypes.byref(u64()), size(17 << 30))
    os._exit(0)
assert not os.waitpid(pid, 0)[1]
churn(40_000)
""")
        self.assertRegex(line, r"^\S*ffi\S* 1.0 GiB$")
        self.assertEqual(usage.Usage(self.read(path)[0]).live, 1 << 30)

    def test_what_a_context_ends_with(self):
        """Memory of cuMemCreate does not."""
        line, path = self.run_out("""
alloc(MIB)
one, other = got(cuda.cuMemAllocAsync, size(1 << 30), None), create(2 << 30)
good(cuda.cuDevicePrimaryCtxReset_v2(0))
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
good(cuda.cuCtxSetCurrent(context))
churn(40_000)
""")
        self.assertRegex(line, r"^\S*ffi\S* 2.0 GiB$")
        self.assertEqual(usage.Usage(self.read(path)[0]).live, 2 << 30)
