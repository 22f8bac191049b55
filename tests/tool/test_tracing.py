# SPDX-License-Identifier: BSD-2-Clause
"""Traces of programs that run under the library, on the simulated driver: from the start, and of a
process that runs."""
import collections
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

from fake import ALONE, UUID, UUID_B, catches, put_text, wait_for
from traced import KIND, NVML, Program, Traces

from gpucache import trace, usage


class Tracing(Traces):
    def test_each_allocation_and_each_free_is_there_once(self):
        program = self.program("take a 100000000", "take b 3000", "threads 4 300", "give b")
        self.assertEqual(program.do("wrong 0x1234000"), "1 done\n")
        self.assertEqual(program.end(), "")
        its, events = self.read(program.path)
        pool = program.figures()["pools"][0]
        by_kind = collections.Counter(trace.NAME[event.kind] for event in events)
        self.assertTrue(its.ended)
        self.assertEqual((its.num_lost, its.num_torn, its.num_unknown), (0, 0, 0))
        self.assertEqual(by_kind["ALLOC"] + by_kind["ALLOC_FAST"], pool["num_allocs"])
        self.assertEqual(pool["num_allocs"], 2 + 4 * 900)
        self.assertEqual(by_kind["FREE"] - by_kind["FREE_FAILED"], pool["num_frees"])
        self.assertEqual((by_kind["FREE_FAILED"], by_kind["CONTEXT"]), (1, 1))
        self.assertGreater(by_kind["ALLOC_FAST"], 1000)
        self.assertEqual(by_kind["CREATE"] + by_kind["SEGMENT"], pool["num_device_alloc"])
        used = usage.Usage(its)
        self.assertEqual(used.live, 100_000_000)
        self.assertEqual(used.peak, max(used.peak, 100_000_000))
        self.assertEqual(used.reserved, pool["reserved_bytes"])
        self.assertEqual(used.memory.peak, pool["reserved_peak_bytes"])
        self.assertEqual(used.num_unknown_frees, 1)
        # Each address is taken and given in turns.
        held = set()
        for event in events:
            if event.kind in usage.ALLOCS:
                self.assertTrue(event.site)
                self.assertTrue(its.object_of(event.site), hex(event.site))
                held.add(event.a)
        self.assertGreater(len(held), 3)

    def stat(self, program):
        return json.loads(self.tool("stat", "--json", program.pid).stdout)

    def test_what_the_library_does_is_there(self):
        program = self.program("take a 300000000", "give a", GPUCACHE_MAX_RESERVED="1G")
        while not catches(program.pid, signal.SIGUSR1):
            time.sleep(0.01)
        self.await_page(program)
        os.kill(program.pid, signal.SIGUSR1)
        self.assertTrue(wait_for(lambda: not self.stat(program)["gpus"][0]["reserved_bytes"]))
        program.do("take b 5000000000")
        program.end()
        its, events = self.read(program.path)
        kinds = [trace.NAME[event.kind] for event in events]
        self.assertEqual([e.text for e in events if e.kind == KIND["FLUSH"]][:1], ["signal"])
        self.assertEqual([(e.a, e.b) for e in events if e.kind == KIND["ALLOC_FAILED"]],
                         [(2, 5_000_000_000)])
        self.assertTrue({"CREATE", "MAP", "UNMAP", "RELEASE"} <= set(kinds) or
                        {"SEGMENT", "SEGMENT_FREE"} <= set(kinds), kinds)
        self.assertEqual(usage.Usage(its).live, 0)

    def test_what_limits_give_back_is_there(self):
        """With what asked for it, each time that something went back, and as a flag of the page."""
        for number, (options, reasons) in enumerate((
                ({"GPUCACHE_MAX_IDLE": "64M"}, {"limit"}),
                ({"GPUCACHE_MIN_FREE": "900M", "SIM_CAPACITY": "1G"}, {"limit"}),
                ({"GPUCACHE_IDLE_TIMEOUT": "200ms"}, {"timer"}),
                ({"GPUCACHE_MAX_IDLE": "64M", "GPUCACHE_IDLE_TIMEOUT": "500ms"},
                 {"limit", "timer"}))):
            with self.subTest(**options):
                path = self.file(f"{number}.gct")
                program = self.program("take a 300000000", "take b 30000000",
                                       GPUCACHE_TRACE=path, **options)
                time.sleep(0.3)  # nothing goes back, and nothing says that it does
                program.do("give a", "give b")
                self.assertTrue(wait_for(lambda at=path, all=reasons: {
                    e.text for e in self.of_kind("FLUSH", self.read(at)[1])} >= all))
                program.end()
                told = self.of_kind("FLUSH", self.read(path)[1])
                self.assertEqual({e.text for e in told}, reasons)
                self.assertTrue(all(e.a for e in told))
                self.assertEqual(sum(e.a for e in told),
                                 program.figures()["pools"][0]["flushed_bytes"])
                page = self.page_of(path)
                for reason in reasons:
                    self.assertRegex(page, rf'"flush: \d+ MiB went back \({reason}\)"')

    def test_the_options_in_force_are_there(self):
        """Those that are not the defaults when it begins, and each change."""
        program = self.program(GPUCACHE_MAX_IDLE="3G", GPUCACHE_SHARE="2s", GPUCACHE_PARK="off")
        program.do("take a 1000000")
        self.await_page(program)
        self.assertEqual(self.tool("set", program.pid, "MAX_IDLE=64M").returncode, 0)
        program.end()
        _, events = self.read(program.path)
        told = {e.text for e in events if e.kind == KIND["OPTION"] and e.aux}
        self.assertEqual(told, {
            "GPUCACHE_MAX_IDLE=3G", "GPUCACHE_SHARE=2s", "GPUCACHE_PARK=off",
            f"GPUCACHE_TRACE={program.path}", f"GPUCACHE_STATS=exit-json:{program.report}",
            f"GPUCACHE_DIR={os.path.join(self.folder, 'pages')}"})
        self.assertEqual([e.text for e in events if e.kind == KIND["OPTION"] and not e.aux],
                         ["GPUCACHE_MAX_IDLE=64M"])
        said = self.tool("report", program.path).stdout
        self.assertRegex(said, r"Options: MAX_IDLE=3G SHARE=2s PARK=off .*, 1 changed while it ran")
        rows = said.partition("What other settings would have done")[2].splitlines()
        self.assertTrue(any(row.startswith("MAX_IDLE=3G ") for row in rows), said)
        self.assertTrue(any(row.startswith("the defaults ") for row in rows), said)

    def of_kind(self, name, events):
        return [event for event in events if event.kind == KIND[name]]

    def each_second(self, events):
        """One a second at most, from a second after the begin on, however late each is."""
        for number, event in enumerate(events, 1):
            self.assertGreaterEqual(event.ns, number * 0.99e9)

    def test_the_whole_gpu_is_there(self):
        """What is not free, of a second program too."""
        other = Program(self, "take a 500000000", GPUCACHE_TRACE="none")
        program = self.program("take a 300000000")
        self.assertTrue(wait_for(lambda: self.of_kind("GPU", self.read(program.path)[1])))
        time.sleep(1.2)
        program.end()
        _, events = self.read(program.path)
        told = self.of_kind("GPU", events)
        self.each_second(told)
        context = next(e for e in events if e.kind == KIND["CONTEXT"])
        self.assertEqual({(e.b, e.aux) for e in told}, {(context.b, context.a)})
        used = usage.Usage(trace.Trace(program.path))
        self.assertGreaterEqual(used.outside.whole[0][-1][1], used.reserved)
        self.assertIn('id="lanes"', self.page_of(program.path))

    def test_a_free_in_the_order_of_a_stream(self):
        """Of a block of the pool, of one that the driver served, and of other memory, which is no
        block."""
        program = self.program(GPUCACHE_MAX_BLOCK="1M")
        for name, size, *ordered in (("small", 1000), ("large", 5_000_000),
                                     ("other", 7_000_000, "ordered"), ("left", 3_000_000)):
            program.do(f"take {name} {size} {' '.join(ordered)}")
        for name in "small", "large", "other":
            program.do(f"give {name} ordered")
        program.end()
        its, events = self.read(program.path)
        self.assertEqual([e.b for e in events if e.kind == KIND["ALLOC_DRIVER"]],
                         [5_000_000, 3_000_000])
        used = usage.Usage(its)
        self.assertEqual((used.live, used.num_unknown_frees), (3_000_000, 0))
        self.assertEqual(used.beside.kinds["num_async_allocs"].num_calls, 1)

    def test_a_forked_child_adds_nothing(self):
        program = self.program("take a 1000000", "fork", "take b 2000000")
        program.end()
        _, events = self.read(program.path)
        self.assertEqual([e.b for e in events if e.kind in usage.ALLOCS], [1_000_000, 2_000_000])

    def test_a_program_without_a_file_to_write_goes_on(self):
        program = Program(self, "take a 1000000", GPUCACHE_TRACE="/proc/nowhere/x.gct")
        said = program.end()
        self.assertRegex(said, r"^gpucache: warning: GPUCACHE_TRACE=/proc/nowhere/x.gct: there is "
                               r"no trace: .*\n$")

    def test_what_nvml_says_of_a_process_that_runs(self):
        """Is behind the trace, in its order of time. Others have a record where that changes."""
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.addCleanup(other.communicate, b"\n")
        program = Program(self, "take a 100000000")
        path = self.file("live.gct")
        os.symlink(NVML, self.file("libnvidia-ml.so.1"))
        self.await_page(program)
        asker = self.asker(program, path, 2.5, "--json", LD_LIBRARY_PATH=self.folder,
                           NVML_PROCESSES=f"0:{program.pid}:1000000000,0:{other.pid}:1900000000,"
                                            f"0:{1 << 24}:5,1:{other.pid}:77,0:1:-")
        program.do("take b 700000000")
        self.assertEqual(json.loads(asker.communicate(timeout=60)[0]),
                         {"file": path, "bytes": os.path.getsize(path)})
        self.assertEqual(asker.returncode, 0)
        program.end()
        its, events = self.read(path)
        self.assertEqual((its.num_torn, its.num_unknown, its.ended), (0, 0, True))
        told = [event for event in self.of_kind("PROCESS", events) if not event.aux]
        self.assertTrue(told)
        for event in told:
            self.assertEqual((event.a, event.b), (1_000_000_000, 1 << 30))
            self.assertEqual(event.text, UUID)
        name = f"{os.path.basename(os.path.realpath(sys.executable))}, without the library"
        self.assertEqual([(event.a, event.aux, event.text)
                          for event in self.of_kind("PROCESS", events) if event.aux],
                         [(1_900_000_000, other.pid, f"{UUID} {name}"),
                          (77, other.pid, f"{UUID_B} {name}")])
        self.assertEqual([e.ns for e in events], sorted(e.ns for e in events))
        self.assertTrue(0 <= told[0].ns and told[-1].ns < 20e9)
        used = usage.Usage(its)
        self.assertEqual(used.outside.beyond[-1][1], 1_000_000_000 - used.reserved)
        said = self.tool("report", path).stdout
        self.assertIn("all that NVML says", said)
        self.assertRegex(said, rf"\n *{other.pid}  .*  1.8 GiB  1.8 GiB  {name}\n")
        self.assertIn(f"PID {other.pid} {name}", self.page_of(path))

    def test_nvml_may_have_the_numbers_of_another_namespace(self):
        """The process is not among them: it may be one of the others."""
        program = Program(self, "take a 100000000")
        path = self.file("live.gct")
        os.symlink(NVML, self.file("libnvidia-ml.so.1"))
        self.await_page(program)
        asker = self.asker(program, path, 1, LD_LIBRARY_PATH=self.folder,
                           NVML_PROCESSES=f"0:{os.getpid()}:1000000000")
        self.assertEqual(asker.wait(60), 0)
        program.end()
        self.assertEqual(self.of_kind("PROCESS", self.read(path)[1]), [])

    def test_owners_of_live_memory_while_it_records(self):
        program = self.program(GPUCACHE_TRACE="here-%p.gct")
        program.do("take a 100000000", "take b 7000000", "take c 9000000", "give c",
                   "take beside 5000000 ordered", "take gone 6000000 ordered", "give gone ordered")
        self.await_page(program)
        said = self.tool("stat", "--owners", "--json", program.pid)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        (its,) = json.loads(said.stdout)["owners"]
        self.assertEqual((its["bytes"], its["blocks"]), (112_000_000, 3))
        self.assertIn("ffi", its["owner"])
        os.truncate(self.file(f"here-{program.pid}.gct"), 1 << 43)  # with a hole
        self.assertIn("ASKED FOR BY", self.tool("stat", "--owners", program.pid).stdout)
        for words, number in (["--owners"], 1), ([], 0):
            said = self.tool("metrics", *words)
            if "prometheus_client" not in said.stderr:  # where it is installed
                found = re.findall(r"^gpucache_owner_live_bytes{(.*)} (\S+)$", said.stdout,
                                   re.MULTILINE)
                self.assertEqual([float(size) for _, size in found], [its["bytes"]] * number)
                self.assertTrue(all(f'owner="{its["owner"]}"' in labels and
                                    f'pid="{program.pid}"' in labels for labels, _ in found))
        self.assertEqual(self.tool("set", program.pid, "TRACE=none").returncode, 0)
        said = self.tool("stat", "--owners", program.pid)
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertIn("it records no trace", said.stderr)
        program.end()

    def test_parks_and_loans_are_flags_of_the_page(self):
        """Of the process of the page, and in the lane of the other."""
        env = {"SIM_SHARED": self.shared_gpu(), "SIM_CAPACITY": "1G", "SIM_DEVICES": "1",
               "GPUCACHE_SHARE": "10s"}
        lender = self.program(**env)
        lender.do("take a 400000000", "take b 300000000", "give b")
        asks = self.file("asks.gct")
        other = Program(self, GPUCACHE_TRACE=asks, **env)
        self.await_page(lender)
        other.do("take a 550000000")
        self.assertEqual(self.tool("park", lender.pid).returncode, 0)
        other.do("give a")
        lender.do("touch a")
        lender.end()
        other.end()
        for paths in (lender.path, asks), (asks, lender.path):
            data = json.loads(re.search(r'id="data">(.*?)</script>', self.page_of(*paths))[1])
            marks = {path: [mark[2].partition(":")[0] for mark in lane["marks"]]
                     for path, lane in zip(paths, data["lanes"])}
            self.assertIn("lent", marks[lender.path])
            self.assertIn("parked", marks[lender.path])
            self.assertIn("woken", marks[lender.path])
            self.assertIn("other processes were asked", marks[asks])
            self.assertEqual({mark[1] for mark in data["lanes"][paths.index(lender.path)]["marks"]},
                             {"lend", "park"})
            own = {mark[1] for mark in data["marks"]}
            self.assertEqual("park" in own, paths[0] == lender.path)
            self.assertIn("lend", own)

    def test_a_process_that_runs(self):
        program = Program(self, "take a 100000000", "take small 3000", "threads 2 50")
        path = self.file("live.gct")
        self.await_page(program)
        asker = self.asker(program, path)
        # The state that tells of it was written after all that the trace begins with.
        self.assertTrue(wait_for(lambda: self.stat(program)["options"]["TRACE"] == path))
        program.do("take b 7000000", "give small", "threads 2 100")
        asker.send_signal(signal.SIGINT)
        said, complaints = asker.communicate(timeout=60)
        self.assertEqual((asker.returncode, complaints), (0, ""))
        self.assertIn(f"gpucache report {path} shows it", said)
        program.do("take c 1000000")
        program.end()
        its, events = self.read(path)
        self.assertTrue(its.ended)
        used = usage.Usage(its)
        self.assertEqual(used.num_unknown_frees, 0)
        self.assertEqual(used.live, 107_000_000)
        live = [e.b for e in events if e.kind == KIND["LIVE"]]
        self.assertEqual(sorted(live), [3000, 100_000_000])
        self.assertEqual(len([e for e in events if e.kind == KIND["CONTEXT"]]), 1)
        done = self.tool("trace", program.pid, "--seconds", "1")
        self.assertEqual(done.returncode, 1)

    def asker(self, program, path, seconds=60, *words, **env):
        """A tool that records the program; it has begun."""
        asker = subprocess.Popen([*ALONE, "trace", str(program.pid), "--seconds", str(seconds),
                                  "-o", path, *words], text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env={**self.outside, **env})
        self.addCleanup(asker.kill)
        while not os.path.exists(path) and asker.poll() is None:
            time.sleep(0.01)
        time.sleep(0.3)
        return asker

    def test_nobody_ends_the_trace_of_another(self):
        """Neither one from the start, nor one that another shell asked for."""
        live, other = (self.file(name) for name in ("live.gct", "other.gct"))
        for program in self.program(), Program(self):
            program.do("take a 1000000")
            time.sleep(0.5)
            asker = self.asker(program, live)
            program.do("take b 2000000")
            told = self.tool("trace", program.pid, "--seconds", "1", "-o", other)
            if asker.poll() is None:
                self.assertEqual((told.returncode, told.stdout), (1, ""))
                self.assertIn(f"it records a trace already, in {live}: gpucache set "
                              f"{program.pid} TRACE=none ends it", told.stderr)
                program.do("take c 3000000")
                asker.send_signal(signal.SIGINT)
                self.assertEqual(asker.communicate(timeout=60)[1], "")
            else:
                program.do("take c 3000000")
                self.assertIn(program.path, asker.communicate(timeout=60)[1])
            program.end()
            self.assertFalse(os.path.exists(other))
            found = live if os.path.exists(live) else program.path
            self.assertEqual([e.b for e in self.read(found)[1]
                              if e.kind in usage.ALLOCS],
                             [1_000_000, 2_000_000, 3_000_000])

    def test_a_trace_that_another_one_followed(self):
        """Whoever asked for the first says so, and leaves the other one alone."""
        program = Program(self, "take a 1000000")
        time.sleep(0.5)
        live, other = (self.file(name) for name in ("live.gct", "other.gct"))
        asker = self.asker(program, live)
        program.do("take b 2000000")
        self.assertEqual(self.tool("set", program.pid, f"TRACE={other}").returncode, 0)
        asker.send_signal(signal.SIGINT)
        self.assertIn("another trace took its place\n", asker.communicate(timeout=60)[1])
        self.assertEqual(asker.returncode, 1)
        program.do("take c 3000000")
        program.end()
        self.assertEqual([[e.b for e in self.read(path)[1] if e.kind in usage.ALLOCS]
                          for path in (live, other)],
                         [[1_000_000, 2_000_000], [1_000_000, 2_000_000, 3_000_000]])

    def test_a_trace_that_ended_early_is_said(self):
        """There was no room for more; a process that ends by itself is no such case."""
        for limit, status, words in ((300_000, 1, "the trace had ended before"), (None, 0, "")):
            program, live = Program(self, "take a 1000000"), self.file(f"{limit}.gct")
            self.await_page(program)
            asker = self.asker(program, live)
            if limit:
                resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (limit, limit))
                program.do("churn 30000")
                asker.send_signal(signal.SIGINT)
                asker.wait(60)
            self.assertEqual("ends here" in program.end(), bool(limit))
            said, complaints = asker.communicate(timeout=60)
            self.assertEqual((asker.returncode, live in said), (status, True), complaints)
            self.assertIn(words, complaints)

    def test_a_trace_whose_name_begins_like_ours_is_another(self):
        program = Program(self, "take a 1000000")
        self.await_page(program)
        asker = self.asker(program, self.file("live.1.gct"))
        for value in "none", self.file("live.1"):
            self.assertEqual(self.tool("set", program.pid, f"TRACE={value}").returncode, 0)
        asker.send_signal(signal.SIGINT)
        self.assertIn("another trace took its place", asker.communicate(timeout=60)[1])
        self.assertEqual(self.stat(program)["options"]["TRACE"], self.file("live.1"))
        program.end()

    def test_it_ends_whatever_the_name_of_its_file(self):
        """The library writes the process id for %p. A page has U+FFFD for what is no UTF-8."""
        program = Program(self, "take a 1000000", GPUCACHE_TRACE_ON="start")
        self.await_page(program)
        for name, real in (("x-%p.gct", f"x-{program.pid}.gct"),
                           ("caf\udce9\udcff\u00e9.gct", ) * 2, ("y" * 250 + ".gct", ) * 2):
            done = self.tool("trace", program.pid, "--seconds", "0.1", "-o", self.file(name))
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertEqual(self.stat(program)["options"]["TRACE"], "none", name)
            self.assertTrue(self.read(self.file(real))[0].ended)
        program.end()

    def test_a_percent_sign_of_the_working_directory_is_no_pattern(self):
        """Of the program's and of the tool's; %% in a name is one."""
        folder = self.file("100%p-%%")
        os.mkdir(folder)
        program = self.program("take a 1000000", cwd=folder, GPUCACHE_TRACE="a-%p.gct")
        self.await_page(program)
        for value, name in ((None, f"a-{program.pid}.gct"), ("b%%p.gct", "b%p.gct"),
                            (self.file("100%%p-%%%%/c%.gct"), "c%.gct")):
            if value:
                done = self.tool("set", program.pid, f"TRACE={value}")
                self.assertEqual((done.returncode, "there is no trace" in done.stdout), (0, False))
                again = self.tool("set", program.pid, f"TRACE={value}", cwd=folder)
                self.assertIn("it records that already", again.stdout)
            self.assertEqual(self.tool("stat", "--owners", program.pid).returncode, 0, name)
            self.assertIn(name, os.listdir(folder))
        self.assertEqual(self.tool("set", program.pid, "TRACE=none").returncode, 0)
        done = self.tool("trace", program.pid, "--seconds", "0.1", "-o", "d-%p%%.gct", cwd=folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(self.read(os.path.join(folder, f"d-{program.pid}%.gct"))[0].ended)
        program.end()

    def test_a_trace_that_did_not_begin_leaves_nothing_behind(self):
        program = Program(self, "take a 1000000")
        self.await_page(program)
        done = self.tool("trace", program.pid, "-o", self.file("nodir/x.gct"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("it could not write", done.stderr)
        self.assertEqual(self.stat(program)["options"]["TRACE"], "none")
        # The option of a trace that did not begin is none that records.
        done = self.tool("set", program.pid, f"TRACE={self.file('nodir/x.gct')}")
        self.assertEqual((done.returncode, "there is no trace" in done.stdout), (1, True))
        right = self.file("right.gct")
        done = self.tool("trace", program.pid, "--seconds", "0.1", "-o", right)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        program.end()

    def test_to_ask_again_for_the_trace_that_is_on_does_not_end_it(self):
        program = self.program("take a 1000000", GPUCACHE_TRACE="here.gct")
        self.await_page(program)
        os.symlink("here.gct", self.file("link"))
        twice = self.tool("set", program.pid, "TRACE=here.gct", "TRACE=none")
        self.assertEqual(twice.returncode, 1)
        for value in "TRACE=here.gct", f"TRACE={self.file('link')}", "TRACE_ON=start":
            done = self.tool("set", program.pid, value)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("it records that already", done.stdout)
        program.do("take b 2000000")
        self.assertEqual(program.end(), "")
        self.assertEqual([e.b for e in self.read(self.file("here.gct"))[1]
                          if e.kind in usage.ALLOCS], [1_000_000, 2_000_000])

    def test_the_file_of_another_process_is_not_the_one_that_is_on(self):
        first = self.program("take a 1000000", GPUCACHE_TRACE="here.gct")
        self.await_page(first)
        second = self.program("take a 1000000", GPUCACHE_TRACE="here.gct")
        self.await_page(second)
        self.assertIn("it records no trace", self.tool("stat", "--owners", second.pid).stderr)
        done = self.tool("trace", second.pid, "-o", self.file("own.gct"), "--seconds", "0.1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("there already", second.end())
        first.end()

    def test_the_keyboard_ends_it_before_the_driver_has_answered(self):
        program = Program(self, "take a 100000000")
        self.await_page(program)
        path = self.file("live.gct")
        os.symlink(NVML, self.file("libnvidia-ml.so.1"))
        asker = self.asker(program, path, LD_LIBRARY_PATH=self.folder, NVML_SLOW_MS="50000")
        self.assertTrue(wait_for(lambda: self.stat(program)["options"]["TRACE"] == path))
        asker.send_signal(signal.SIGINT)
        _, complaints = asker.communicate(timeout=60)
        self.assertEqual((asker.returncode, complaints), (0, ""))
        self.assertEqual(self.stat(program)["options"]["TRACE"], "none")
        program.end()

    def test_what_cannot_be_recorded_gets_a_sentence(self):
        program = Program(self, "take a 100000000")
        self.await_page(program)
        path = self.file("there")
        put_text(path)
        for words, sentence in (((program.pid, "-o", path), "it is there already"),
                                ((program.pid, "-o", "a b"), "a name with blanks"),
                                ((program.pid, "-o", "/proc/nowhere/x"), "could not write"),
                                ((1 << 22, ), "PID 4194304")):
            done = self.tool("trace", *words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            self.assertIn(sentence, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        program.end()
