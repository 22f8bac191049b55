# SPDX-License-Identifier: BSD-2-Clause
"""What the library writes of itself when a program gets no more memory, on the simulated driver."""
import collections
import json
import os
import re
import resource
import signal
import subprocess
import time

from fake import ALONE, put_text, text_of, wait_for
from traced import BEGIN, FIRST, KIND, MIB, TELL, Program, Traces

from gpucache import trace, usage


class OutOfMemory(Traces):
    """GPUCACHE_TRACE_ON=oom: a file, and a line, when an allocation fails."""

    LINE = (r"^gpucache: warning: out of memory: \S+ GiB were asked for, \S+ \S+ of the GPU are "
            "free; ")
    OLDER = r"; of memory older than \d+\.\d s no holder is known\n$"
    MINE = LINE + r"who holds what: \S*ffi\S* 0.9 MiB; there is no record in "  # of a million bytes

    def program(self, *lines, **options):
        return super().program(*lines, **{"GPUCACHE_TRACE_ON": "oom", **options})

    def files(self):
        return sorted(name for name in os.listdir(self.folder) if "gct" in name)

    def test_who_holds_what(self):
        """Of blocks that the rings have no more, too."""
        program = self.program(GPUCACHE_MAX_BLOCK="6G")
        program.do("take old 3000000000", "take small 3000", "take gone 4000000",
                   "take native 7000000000")
        program.do("churn 30000")  # 2.7 rings
        program.do("threads 2 5000", "give gone", "take new 500000000")
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
        # All 30,000 of the threads, and of the churn what three chunks hold at the least.
        self.assertGreater(kinds["ALLOC_FAST"] + kinds["ALLOC"], 45000)
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
        page = self.page_of(program.path)
        self.assertIn("<h1>Out of memory", page)
        self.assertNotIn("at exit", page)

    def test_a_thread_goes_on_in_the_ring_of_one_that_ended(self):
        """What it has no more, the file has of no thread."""
        program = self.program("churn 30000")
        tasks = f"/proc/{program.pid}/task"
        before = len(os.listdir(tasks))
        for _ in range(2):
            program.do("threads 1 5000")
            # The interpreter says that a thread has ended before it has.
            self.assertTrue(wait_for(lambda: len(os.listdir(tasks)) <= before))
        program.do("take large 20000000000")
        self.assertEqual(program.end().count("out of memory"), 1)
        its, events = self.read(program.path)
        kinds = collections.Counter(trace.NAME[e.kind] for e in events)
        self.assertEqual((usage.Usage(its).num_unknown_frees, its.num_lost), (0, 0))
        self.assertGreater(kinds["ALLOC_FAST"] + kinds["ALLOC"], 22000)  # three of four chunks
        self.assertLess(kinds["ALLOC_FAST"] + kinds["ALLOC"], 31000)

    def test_whoever_asked_first_and_in_vain_has_a_name(self):
        """And is not the runtime, through which the call went."""
        said, path = self.run_python(FIRST, "first.gct", GPUCACHE_TRACE_ON="oom",
                                     GPUCACHE_DIR="none")
        self.assertEqual(said.split(), ["0", "0", "2"])
        its, _ = self.read(path)
        used = usage.Usage(its)
        for site in [block.site for block in used.blocks.values()] + [used.oom.site]:
            self.assertIn("ffi", its.object_of(site).path)
        told = self.tool("report", path).stdout
        self.assertIn("Out of memory", told)
        self.assertNotIn("not known", told)

    def test_each_second_a_file_and_eight_in_all(self):
        for _ in range(20):
            program, begun = self.program(), time.monotonic()
            for _ in range(3):
                program.do("take a 20000000000")
            if time.monotonic() < begun + 1:
                break
            program.end()  # the machine stood still: anew
            for name in self.files():
                os.unlink(self.file(name))
        self.assertEqual(self.files(), ["t.gct"])
        time.sleep(1.1)
        program.do("take a 30000000000 ordered")
        self.assertEqual(self.files(), ["t.gct", "t.gct.2"])
        said = program.end()
        self.assertEqual(said.count("out of memory"), 2, said)
        its, _ = self.read(program.path + ".2")
        self.assertEqual(usage.Usage(its).oom.b, 30_000_000_000)

    def test_without_a_name(self):
        program = Program(self, "take a 20000000000", GPUCACHE_TRACE_ON="oom")
        program.end()
        self.assertEqual(self.files(), [f"gpucache-oom-{program.pid}.gct"])

    def test_without_room(self):
        """The failed file is gone, the program goes on; it is said once, with who holds what."""
        program = self.program("take a 1000000")
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        program.do("threads 2 3000", "take b 20000000000", "take c 1000000")
        said = program.end()
        self.assertRegex(said, self.MINE + r"\S+: there is no room for the file: File too "
                                           r"large\n$")
        self.assertEqual(self.files(), [])

    def test_what_is_there_is_left_alone(self):
        program = self.program("take a 1000000")
        put_text(program.path, "mine")
        program.do("take b 20000000000")
        self.assertRegex(program.end(), self.MINE + rf"{program.path}: the file is there already: "
                                                    r"File exists\n$")
        self.assertEqual(os.path.getsize(program.path), 4)

    def test_an_unusable_name_is_told_at_the_start(self):
        """Of a file that is there, of a folder that is not, and of a folder; again at the end of
        memory, in the same words."""
        put_text(self.file("mine.gct"), "mine")
        os.mkdir(self.file("folder"))
        for name, why in (("mine.gct", "the file is there already: File exists"),
                          ("no/a.gct", "the file cannot be made: No such file or directory"),
                          ("folder/", "the file has no usable name: Is a directory"),
                          ("new/", "the file has no usable name: Is a directory")):
            options = {"GPUCACHE_TRACE": self.file(name)}
            told = (f"gpucache: warning: GPUCACHE_TRACE={self.file(name)}: GPUCACHE_TRACE_ON=oom "
                    f"could make no record: {why}\n")
            self.assertEqual(self.program("take a 1000000", **options).end(), told)
            said = self.program("take a 1000000", "take b 20000000000", **options).end()
            self.assertEqual(said[:len(told)], told)
            self.assertRegex(said[len(told):], self.MINE + rf"{self.file(name)}: {why}\n$")
            self.assertEqual(self.files(), ["mine.gct"])

    def test_an_unusable_name_is_told_when_it_is_set(self):
        """Of the file that the next failure makes, and of the last name of a request."""
        program = Program(self, "take a 1000000", GPUCACHE_TRACE_ON="oom")
        self.await_page(program)
        mine, none, right = map(self.file, ("mine.gct", "no/a.gct", "t.gct"))
        put_text(mine, "mine")

        def expect(why, *words):
            done = self.tool("set", program.pid, *words)
            self.assertEqual((done.returncode, done.stderr), (1 if why else 0, ""), words)
            told = [f" (GPUCACHE_TRACE_ON=oom could make no record: {why})"] if why else []
            self.assertEqual(re.findall(r" \(.*\)", done.stdout), told, words)
        missing = "the file cannot be made: No such file or directory"
        there = "the file is there already: File exists"
        expect(missing, f"TRACE={none}")
        expect(missing, "TRACE_ON=oom")
        expect(missing, f"TRACE={none}", "TRACE_ON=oom")
        expect("", "TRACE=none")
        expect("", "TRACE_ON=oom")
        expect(there, f"TRACE={mine}")
        expect("", "TRACE_ON=oom", f"TRACE={right}")
        program.do("take b 20000000000")
        self.assertEqual(self.files(), ["mine.gct", "t.gct"])
        expect("", f"TRACE={right}")
        put_text(right + ".2", "mine")
        expect(there, f"TRACE={right}")
        self.assertEqual(program.end().count("out of memory"), 1)

    def test_a_request_sets_all_of_a_trace_before_one_begins(self):
        """In each order."""
        for words in ["TRACE={}", "TRACE_ON=oom"], ["TRACE_ON=oom", "TRACE={}"]:
            program = Program(self, "take a 1000000")
            self.await_page(program)
            done = self.tool("set", program.pid, *(word.format(program.path) for word in words))
            self.assertEqual((done.returncode, self.files(), "no record" in done.stdout),
                             (0, [], False), done.stdout)
            program.do("take b 20000000000")
            self.assertIn(f"{program.path} says who holds what", program.end())
            os.unlink(program.path)
        program = Program(self, "take a 1000000", GPUCACHE_TRACE_ON="oom")
        self.await_page(program)
        self.tool("set", program.pid, f"TRACE={program.path}", "TRACE_ON=start")
        self.assertEqual(self.files(), ["t.gct"])
        program.end()

    def test_no_name_is_cut(self):
        """One that is too long is refused, and with its number. %% is one character."""
        too_long = "the file has no usable name: File name too long\n"
        for name, made in (("a-long-name.gct", ["a-long-name.gct"]),
                           ("a%%%%%%-long-name.gct", ["a%%%-long-name.gct",
                                                      "a%%%-long-name.gct.2"]),
                           ("%p%p-long-name.gct", [])):
            path = self.file("").ljust(4095 - len(name), "/") + name
            program = self.program("take a 1000000", "take b 20000000000", GPUCACHE_TRACE=path)
            if made:
                time.sleep(1.1)
                program.do("take c 20000000000")
            said = program.end()
            self.assertEqual(self.files(), made, said)
            self.assertEqual(said.count(too_long), 2 - len(made), said)
            for each in made:
                os.unlink(self.file(each))

    def test_what_came_before_the_process_waited_for_the_end_of_memory_may_go(self):
        program = Program(self, "take a 3000000000 ordered", "take b 10000000 ordered")
        self.await_page(program)
        self.assertEqual(self.tool("set", program.pid, f"TRACE={program.path}",
                                   "TRACE_ON=oom").returncode, 0)
        program.do("give a ordered", "take c 2000000 ordered", "take d 20000000000")
        self.assertRegex(program.end(), self.LINE + r".* \S*ffi\S* 1.9 MiB" + self.OLDER)
        self.assertEqual(usage.Usage(self.read(program.path)[0]).live, 2_000_000)

    def test_another_name_makes_nothing_older(self):
        """The rings go on."""
        program, path = self.program("take a 1000000"), self.file("another.gct")
        self.await_page(program)
        self.assertEqual(self.tool("set", program.pid, f"TRACE={path}").returncode, 0)
        program.do("take b 20000000000")
        self.assertRegex(program.end(), self.LINE + rf"{path} says who holds what: \S*ffi\S* "
                                                    r"0.9 MiB\n$")

    @staticmethod
    def lose(program):
        """Records, without host memory for a ring."""
        with open(f"/proc/{program.pid}/statm", encoding="ascii") as its:
            pages = int(its.read().split()[0])
        resource.prlimit(program.pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
        program.do("churn 4000")  # 1.5 chunks of a ring
        resource.prlimit(program.pid, resource.RLIMIT_AS, (-1, -1))

    def test_both_gaps_are_told(self):
        program = Program(self, "take a 1000000")
        self.await_page(program)
        self.assertEqual(self.tool("set", program.pid, f"TRACE={program.path}",
                                   "TRACE_ON=oom").returncode, 0)
        program.do("take b 2000000")
        self.lose(program)
        program.do("take c 20000000000")
        self.assertRegex(program.end(), self.OLDER.removesuffix(r"\n$") + r"; \d{4,} records were "
                                        r"lost, so holders may be missing\n$")

    def test_records_that_were_lost_are_told(self):
        program = self.program("take a 1000000")
        self.lose(program)
        program.do("take b 20000000000")
        lost = self.read(program.path)[0].num_lost
        self.assertGreater(lost, 1000)
        self.assertRegex(program.end(), rf"ffi\S* 0.9 MiB; {lost} records were lost, so holders "
                                        r"may be missing\n$")
        self.assertIn(f"Not all is known: {lost} records were lost",
                      self.tool("report", program.path).stdout)

    def test_nobody_holds_anything(self):
        program = self.program("take b 20000000000")
        self.assertRegex(program.end(), self.LINE + rf"{program.path} says who holds what: no "
                                                    r"holder is known\n$")
        self.assertEqual(self.files(), ["t.gct"])

    def test_a_forked_child_writes_nothing(self):
        program = self.program("take a 1000000", "fork 20000000000")
        self.assertEqual((program.end(), self.files()), ("", []))

    def test_other_processes(self):
        other = Program(self, "take a 5000000000")
        self.await_page(other)

        def has_it():
            found = json.loads(self.tool("stat", "--json", other.pid).stdout)
            return found["gpus"][0]["reserved_bytes"] >= 5_000_000_000
        self.assertTrue(wait_for(has_it))
        program = self.program("take a 20000000000", GPUCACHE_SHARE="0")
        self.assertRegex(program.end(), rf"process {other.pid} \(python\S*\) \S+ GiB\n")
        other.end()
        its, _ = self.read(program.path)
        (pid, _, size), = usage.Usage(its).neighbours
        self.assertEqual((pid, size >= 5_000_000_000), (other.pid, True))
        told = self.tool("report", program.path).stdout
        self.assertRegex(told, r"1 other process \S+ GiB\.(.|\n)*Other processes: PID "
                               rf"{other.pid} ")

    def test_the_three_largest_are_told_in_order(self):
        """Of two owners in the process and two processes beside it."""
        others = [Program(self, f"take a {gib << 30}") for gib in (4, 1)]
        for other in others:
            self.assertTrue(wait_for(lambda pid=other.pid: re.search(
                r"reserved_bytes\W+[1-9]", self.tool("stat", "--json", pid).stdout)))
        old, new = "code that is not known", r"\S*ffi\S*"
        large, small = (rf"process {other.pid} \(python\S*\)" for other in others)
        for mib, told in (((5120, 3072), f"{old} 5.0 GiB, {large} 4.0 GiB, {new} 3.0 GiB"),
                          ((2048, 3072), f"{large} 4.0 GiB, {new} 3.0 GiB, {old} 2.0 GiB"),
                          ((512, 5120), f"{new} 5.0 GiB, {large} 4.0 GiB, {small} 1.0 GiB")):
            program = self.program(f"take a {mib[0] << 20}", GPUCACHE_SHARE="0")
            self.await_page(program)
            self.tool("trace", program.pid, "--seconds", "0.1", "-o", self.file(f"{mib[0]}.gct"))
            program.do(f"take b {mib[1] << 20}", "take c 20000000000")
            self.assertRegex(program.end(), "says who holds what: " + told + self.OLDER)
            os.unlink(program.path)

    def test_a_trace_in_between(self):
        """gpucache trace: afterwards the process waits for the end of memory as before."""
        program = self.program("take a 1000000")
        self.await_page(program)
        path = self.file("live.gct")
        done = self.tool("trace", program.pid, "--seconds", "0.5", "-o", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        program.do("take b 2000000", "take c 20000000000")
        self.assertRegex(program.end(), "code that is not known 0.9 MiB" + self.OLDER)
        self.assertEqual(self.files(), ["live.gct", "t.gct"])
        self.assertRegex(self.tool("report", program.path).stdout,
                         r"Not all is known: of memory older than \S+ s no holder is known\.")
        self.assertEqual([e.b for e in self.read(path)[1] if e.kind == KIND["LIVE"]], [1_000_000])
        used = usage.Usage(self.read(program.path)[0])
        self.assertEqual(used.live, 3_000_000)

    def options(self, program):
        told = json.loads(self.tool("stat", "--json", program.pid).stdout)["options"]
        return told.get("TRACE_ON"), told.get("TRACE")

    def test_two_at_the_same_moment(self):
        """One records. The process waits for the end of memory as before, afterwards."""
        for number in range(5):
            before = "oom", self.file(f"oom{number}.gct")
            program = self.program("take a 1000000", GPUCACHE_TRACE=before[1])
            self.await_page(program)
            tools = [subprocess.Popen(
                [*ALONE, "trace", str(program.pid), "--seconds", "1.5", "-o",
                 self.file(f"{number}-{each}.gct")], env=self.outside, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for each in "ab"]
            said = [its.communicate(timeout=60)[1] for its in tools]
            self.assertEqual(sorted(its.returncode for its in tools), [0, 1], said)
            self.assertRegex("".join(said), "another gpucache trace|it records a trace already")
            self.assertEqual(self.options(program), before)
            program.end()

    def test_whoever_takes_the_place_of_a_trace_in_between_is_left_alone(self):
        """A line says how the process waits for the end of memory again."""
        program = self.program("take a 1000000")
        self.await_page(program)
        live, other = self.file("live.gct"), self.file("other.gct")
        with subprocess.Popen([*ALONE, "trace", str(program.pid), "--seconds", "60", "-o", live],
                              env=self.outside, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as asker:
            self.assertTrue(wait_for(lambda: self.options(program)[1] == live))
            self.assertEqual(self.tool("set", program.pid, f"TRACE={other}").returncode, 0)
            asker.send_signal(signal.SIGINT)
            said = asker.communicate(timeout=60)[1]
        self.assertEqual(asker.returncode, 1)
        self.assertEqual(self.options(program)[1], other)
        words = re.search(r"took its place; .*: gpucache (set .*) makes it do so", said)
        self.assertTrue(words, said)
        self.assertEqual(self.tool(*words[1].split()).returncode, 0)
        self.assertEqual(self.options(program), ("oom", program.path))
        program.end()

    def test_a_name_that_could_not_be_set_again_afterwards_is_left_as_it_is(self):
        for name in "a b.gct", "c" * 240 + "/" + "d" * 240:
            program = self.program("take a 1000000", GPUCACHE_TRACE=self.file(name))
            self.await_page(program)
            done = self.tool("trace", program.pid, "--seconds", "0.1", "-o", self.file("live.gct"))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("could not be set again", done.stderr)
            told = json.loads(self.tool("stat", "--json", program.pid).stdout)["options"]
            self.assertEqual((told["TRACE"], told["TRACE_ON"]), (self.file(name), "oom"))
            program.end()


class Shared(Traces):
    """What is known outside the process, or comes from there."""

    def test_each_has_a_record(self):
        """A block's first handle, and each that another process opens."""
        self.run_python("""
import os, sys
ask, tell = os.pipe()
child = os.fork()
""" + BEGIN + """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 64)]
if child:
    block = alloc(3 * MIB)
    for n in range(2):
        os.write(tell, bytes(got(cuda.cuIpcGetMemHandle, block, kind=Handle)))
    assert not os.waitpid(child, 0)[1]
else:
    for n in range(2):
        got(cuda.cuIpcOpenMemHandle_v2, Handle.from_buffer_copy(os.read(ask, 64)), 1)
""", "%p.gct")
        told = {}
        for name in self.files():
            for event in self.read(self.file(name))[1]:
                told.setdefault(trace.NAME[event.kind], []).append((event.a, bool(event.b)))
        self.assertEqual(told.get("EXPOSED"), [(3 * MIB, True)])
        self.assertEqual(told.get("IPC_OPEN"), [(0, True)] * 2)
        said = "".join(self.tool("report", self.file(name)).stdout for name in self.files())
        self.assertRegex(said, r"known outside +a block of 3 MiB\n")
        self.assertRegex(said, r"memory of another process +got an address here\n")

    def files(self):
        return sorted(name for name in os.listdir(self.folder) if name.endswith(".gct"))


class Steps(Traces):
    """What an allocation tries on a full GPU, in order."""
    FULL = BEGIN + """
import time
GIB = 1 << 30
late = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))
streams = [got(cuda.cuStreamCreate, 1, kind=ctypes.c_void_p) for _ in range(2)]
blocks = [alloc(2 * GIB) for _ in range(7)]
beside = got(cuda.cuMemAllocAsync, size(GIB), None)
def free(number, busy=False):
    for stream in streams * busy:
        good(cuda.cuLaunchHostFunc(stream, late, None))
    for _ in range(number):
        good(cuda.cuMemFree_v2(blocks.pop()))
"""
    END = "\ngood(cuda.cuCtxSynchronize())  # before the interpreter of the callbacks is gone\n"
    REFUSED, ORDERED, RELEASED, WAITED, OWN, AGAIN, SERVED = (
        "the driver has no memory", "later GPU work is ordered behind memory that was freed",
        "idle memory goes back", "the host waits for GPU work",
        "the program's own call goes to the driver", "the call is made again", "it is served")

    def run_full(self, script, name="t.gct", **options):
        """(steps in order, figures of the pool, the trace's path)"""
        report = self.file("report.json")
        _, path = self.run_python(self.FULL + script + self.END, name, GPUCACHE_BACKING="segment",
                                  GPUCACHE_SHARE="0", GPUCACHE_STATS="exit-json:" + report,
                                  **options)
        steps = [mark.text if mark.kind == "OOM_STEP" else mark.kind
                 for mark in usage.Usage(self.read(path)[0]).marks
                 if mark.kind in ("OOM_STEP", "ALLOC_FAILED")]
        return steps, json.loads(text_of(report))["pools"][0], path

    def test_each_rung(self):
        for number, (script, options, steps, figure) in enumerate((
                ("free(3)\nalloc(2 * GIB)", {}, [], "num_hits"),
                ("free(3, busy=True)\nalloc(2 * GIB)", {"GPUCACHE_REUSE": "ready"},
                 [self.REFUSED, self.ORDERED, self.SERVED], "num_oom_ordered"),
                ("free(3, busy=True)\nalloc(7 * GIB)", {},
                 [self.REFUSED, self.WAITED, self.RELEASED, self.SERVED], "num_oom_waited"),
                ("free(1)\nassert cuda.cuMemAlloc_v2(ctypes.byref(u64()), size(9 * GIB)) == 2", {},
                 [self.REFUSED, self.RELEASED, self.REFUSED, self.OWN, "ALLOC_FAILED"],
                 "num_ooms"),
                ("free(1)\ngot(cuda.cuMemAllocAsync, size(2 * GIB), None)", {},
                 [self.REFUSED, self.RELEASED, self.AGAIN, self.SERVED], None),
                ("free(1)\ncreate(2 * GIB)", {},
                 [self.REFUSED, self.RELEASED, self.AGAIN, self.SERVED], None),
                ("free(1)\nalloc(5 * GIB // 2)", {"GPUCACHE_MAX_BLOCK": "2G"},
                 [self.REFUSED, self.RELEASED, self.AGAIN, self.SERVED], None),
                ("free(1)\nassert cuda.cuMemAllocAsync(ctypes.byref(u64()), size(9 * GIB), None) "
                 "== 2", {}, [*[self.REFUSED, self.RELEASED, self.AGAIN] * 2, self.REFUSED,
                              "ALLOC_FAILED"], None),
                ("free(1)\nassert cuda.cuMemAlloc_v2(ctypes.byref(u64()), size(9 * GIB)) == 2",
                 {"GPUCACHE_MAX_BLOCK": "2G"}, [*[self.REFUSED, self.RELEASED, self.AGAIN] * 2,
                                                self.REFUSED, "ALLOC_FAILED"], None))):
            said, figures, _ = self.run_full(script, f"{number}.gct", **options)
            with self.subTest(script=script, options=options):
                self.assertEqual(said, steps)
            if figure:
                self.assertEqual(figures[figure], 1, script)

    def test_a_report_tells_them_in_order(self):
        for number, on in enumerate(("start", "oom")):
            _, _, path = self.run_full("""
free(1)
assert cuda.cuMemAlloc_v2(ctypes.byref(u64()), size(9 * GIB)) == 2
""", f"{number}.gct", GPUCACHE_TRACE_ON=on)
            words = [self.REFUSED, self.RELEASED, self.REFUSED, self.OWN]
            told = self.tool("report", path).stdout
            self.assertRegex(told, r"\n.*".join(f"the GPU was full +{each}" for each in words) +
                             r"\n.*out of memory +9 GiB were asked for")
            page = self.page_of(path)
            self.assertRegex(page.replace("\\u0027", "'").replace("&#x27;", "'"),
                             r".*".join(f"the GPU was full: {each}" for each in words))
            os.unlink(self.file("page.html"))
