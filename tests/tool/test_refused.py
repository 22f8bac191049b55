# SPDX-License-Identifier: BSD-2-Clause
"""Who refused an allocation, a limit or the driver, and what nobody is known to hold then, on the
simulated driver."""
import json
import re
import time

from fake import wait_for
from traced import BEGIN, FIRST, KIND, TELL, Program, Traces

from gpucache import site, trace, usage

GIB = 1 << 30
LIMIT = f"GPUCACHE_MAX_RESERVED={GIB}"


class Limit(Traces):
    """GPUCACHE_MAX_RESERVED refuses what the GPU has room for."""

    def failed(self, path):
        """[(code, bytes, what refused it)]"""
        return [(e.a, e.b, e.text) for e in self.read(path)[1] if e.kind == KIND["ALLOC_FAILED"]]

    def expect_limit(self, path, first):
        """In the report, its page and its data. first: a headline, or its beginning."""
        told = self.tool("report", path).stdout
        self.assertRegex(told, r"\n.* limit +5 GiB were asked for by .*, and GPUCACHE_MAX_RESERVED "
                               r"of 1 GiB refused it\n")
        page = self.page_of(path)
        marks = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["marks"]
        self.assertEqual([mark[2].partition(":")[0] for mark in marks if mark[1] == "oom"],
                         ["limit"])
        self.assertIn(f"<h1>{first}", page)
        for said in told, page:
            self.assertNotRegex(said, "(?i)out of memory|the GPU was full")

    def test_the_line_and_its_record_name_it(self):
        """A later failure, of the driver's, is none of the limit's."""
        program = self.program("take a 536870912", GPUCACHE_TRACE_ON="oom",
                               GPUCACHE_MAX_RESERVED="1G")
        self.await_page(program)
        program.do("take b 5368709120")
        self.assertEqual(self.failed(program.path), [(2, 5 * GIB, LIMIT)])
        self.assertEqual(usage.Usage(self.read(program.path)[0]).limit, GIB)
        self.expect_limit(program.path, "At the limit")
        self.assertRegex(self.tool("report", program.path).stdout,
                         r"At the limit: \S*ffi\S* asked for 5 GiB, which GPUCACHE_MAX_RESERVED "
                         r"of 1 GiB refused, while 15.\d GiB of the GPU were free and this process "
                         r"had 512 MiB live\.\n")
        self.assertIs(json.loads(self.tool("report", "--json", program.path).stdout)["traces"][0]
                      ["out_of_memory"], False)
        self.assertEqual(self.tool("set", program.pid, "MAX_RESERVED=none").returncode, 0)
        time.sleep(1.1)
        program.do("take c 21474836480")
        said = program.end().splitlines(keepends=True)
        self.assertRegex(said[0], r"^gpucache: warning: out of memory: 5.0 GiB were asked for; "
                                  r"the limit GPUCACHE_MAX_RESERVED of 1.0 GiB refused it, 15.\d "
                                  rf"GiB of the GPU are free; {program.path} says who holds "
                                  r"what: \S*ffi\S* 512.0 MiB\n$")
        self.assertRegex(said[1], r"out of memory: 20.0 GiB were asked for, 15.\d GiB of the GPU "
                                  "are free; ")
        self.assertEqual(len(said), 2)
        self.assertEqual(self.failed(program.path + ".2")[-1], (2, 20 * GIB, ""))
        self.assertIn("Out of memory: ", self.tool("report", program.path + ".2").stdout)

    def test_a_trace_of_all_the_time_names_it(self):
        program = self.program("take a 536870912", "take b 5368709120", GPUCACHE_MAX_RESERVED="1G")
        self.assertEqual(program.end(), "")
        self.assertEqual(self.failed(program.path), [(2, 5 * GIB, LIMIT)])
        self.expect_limit(program.path, "Live memory peaked")

    def test_the_first_call_of_a_process_and_each_way_to_ask(self):
        """By the runtime, by the driver, and in rows."""
        first = FIRST.replace("3, 5, 1 << 20", "3 << 10,")
        _, path = self.run_python(first, "first.gct", GPUCACHE_MAX_RESERVED="1G")
        self.assertEqual(self.failed(path), [(2, 3 * GIB, LIMIT)])
        _, path = self.run_python(BEGIN + """
block, pitch = u64(), size()
assert cuda.cuMemAlloc_v2(ctypes.byref(block), size(3 << 30)) == 2
assert cuda.cuMemAllocPitch_v2(ctypes.byref(block), ctypes.byref(pitch), size(1 << 16),
                               size(1 << 16), 4) == 2
assert cuda.cuMemAllocAsync(ctypes.byref(block), size(1 << 40), None) == 2 # has no limit
""", "each.gct", GPUCACHE_MAX_RESERVED="1G")
        self.assertEqual(self.failed(path), [(2, 3 * GIB, LIMIT), (2, 1 << 32, LIMIT),
                                             (2, 1 << 40, "")])

    def test_no_other_text_is_a_limit(self):
        """Nor the text that other failures have, which is none, as in older files."""
        for words in ("", "GPUCACHE_MAX_RESERVED", "GPUCACHE_MAX_RESERVED=", "MAX_RESERVED=1",
                      "GPUCACHE_MAX_RESERVED=-1", "GPUCACHE_MAX_RESERVED=\u0661"):
            event = trace.Event(1, KIND["ALLOC_FAILED"], 2, GIB, 0, 0, 0, 0, words)
            its = site.mark_of(event, "ALLOC_FAILED", 0)
            self.assertEqual((its.limit, its.text, its.bytes), (None, "2", GIB), words)


    def test_the_limit_of_another_request_is_none_of_this_one(self):
        """Of the same size, by other code."""
        marks = [site.Mark(1, "ALLOC_FAILED", GIB, "2", 7, 0, None),
                 site.Mark(2, "ALLOC_FAILED", GIB, "2", 8, 0, GIB // 2)]
        self.assertIsNone(site.limit_then(marks, GIB, 7))
        self.assertEqual(site.limit_then(marks, GIB, 8), GIB // 2)
        self.assertIsNone(site.limit_then(marks, 2 * GIB, 8))


class NobodyKnown(Traces):
    """GPUCACHE_TRACE_ON=oom: memory that is neither free nor held by whom the line can name."""
    SAID = ("; 5.0 GiB are none of these: CUDA contexts, other memory, processes without the "
            "library")

    def shared(self, bytes_of_another):
        """The options of processes that share a GPU, on which one without the library has so
        much."""
        env = {"SIM_SHARED": self.shared_gpu(), "SIM_DEVICES": "1", "SIM_CAPACITY": "16G",
               "GPUCACHE_SHARE": "0"}
        Program(self, f"take a {bytes_of_another}", **{**env, "LD_PRELOAD": ""})
        return env

    def line(self, script, **options):
        """What it says of holders."""
        said, _ = self.run_python(TELL + BEGIN + script + """
assert cuda.cuMemAlloc_v2(ctypes.byref(u64()), size(20 << 30)) == 2
""", "t.gct", GPUCACHE_TRACE_ON="oom", **options)
        return re.findall(r"who holds what: (.*)\n", said)[0]

    def test_a_process_without_the_library(self):
        """Beside the program's own memory of each kind, which is not told twice, and beside a
        process with the library."""
        env = self.shared(5 * GIB)
        other = Program(self, "take a 2147483648", **env)
        self.await_page(other)
        self.assertTrue(wait_for(lambda: re.search(
            r"reserved_bytes\W+[1-9]", self.tool("stat", "--json", other.pid).stdout)))
        self.assertRegex(self.line("""
alloc(1 << 30)
idle = alloc(1 << 30)
good(cuda.cuMemFree_v2(idle))
alloc(3 << 30)
got(cuda.cuMemAllocAsync, size(1 << 30), None)
create(1 << 30)
""", GPUCACHE_MAX_BLOCK="2G", **env), r"^\S*ffi\S* 6.0 GiB, process \d+ \(python\S*\) 2.0 GiB"
                         + self.SAID + "$")
        told = self.tool("report", self.file("t.gct")).stdout
        self.assertIn(" 5 GiB of the GPU are neither: CUDA contexts, ", told)

    def test_more_processes_than_have_room(self):
        """The line names three, and the record has 16."""
        env = self.shared(0)
        others = [Program(self, "take a 314572800", **env) for _ in range(18)]
        for other in others:
            self.await_page(other)
            self.assertTrue(wait_for(lambda pid=other.pid: re.search(
                r"reserved_bytes\W+[1-9]", self.tool("stat", "--json", pid).stdout)))
        self.assertNotIn("none of these", self.line("alloc(1 << 30)", **env))
        told = self.tool("report", self.file("t.gct")).stdout
        self.assertIn(", 17 other processes or more 5.3 GiB.", told)
        self.assertIn(", others 600 MiB.", told)

    def test_a_little_is_not_told(self):
        env = self.shared(60_000_000)
        self.assertRegex(self.line("alloc(1 << 30)", **env), r"^\S*ffi\S* 1.0 GiB$")

    def test_it_is_told_where_nobody_holds_anything(self):
        env = self.shared(5 * GIB)
        self.assertRegex(self.line("", **env), "^no holder is known" + self.SAID + "$")
