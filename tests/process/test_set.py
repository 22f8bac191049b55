# SPDX-License-Identifier: BSD-2-Clause
"""Options that change while a program runs, by requests through its page."""

import os
import sys
import time

import page_client
import programs
import waiting

LIBRARY, FOLDERS, TABLES = sys.argv[1:4]
T = page_client.load_tables(TABLES)
MIB = 1 << 20
DONE, PARTLY, BAD, REFUSED = range(4)

# More that the program can do
MORE = """
def free_mib():
    f, t = ctypes.c_size_t(), ctypes.c_size_t()
    assert cudart.cudaMemGetInfo(ctypes.byref(f), ctypes.byref(t)) == 0
    return f.value >> 20
over = False
def load():
    mine = []
    while not over:
        take(1 + len(mine) % 9 << 20, mine)
        if len(mine) > 20:
            give(mine)
    give(mine)
def begin(count):
    global threads
    threads = [threading.Thread(target=load) for i in range(count)]
    for thread in threads:
        thread.start()
    return count
def end():
    global over
    over = True
    for thread in threads:
        thread.join()
    return "ended"
"""


class Case(waiting.Waiting):
    def setUp(self):
        self.folder = self.scratch()

    def start(self, *lines, **options):
        """A program that has done these lines, with one small block on device 0, so that its page
        is there. Its packages are left alone: an answer that is late is followed by another flush.
        """
        pages = os.path.join(self.folder, "pages")
        options = {"GPUCACHE_DIR": pages, "GPUCACHE_FRAMEWORKS": "0", **options}
        self.program = programs.Talker(programs.python(MORE),
                                       programs.environ(LIBRARY, FOLDERS, **options))
        self.addCleanup(self.program.end)
        self.do = self.program.do
        self.assertEqual(self.do("churn(2, 1)"), "0")
        path = self.wait_for(lambda: page_client.whole_pages_in(T, pages), "a page")[0]
        self.page = page_client.Page(T, path)
        self.addCleanup(self.page.close)
        for line in lines:
            self.do(line)

    def finish(self):
        """What the program wrote to standard error."""
        status, said = self.program.finish()
        self.assertEqual(status, 0, said)
        return said

    def ask(self, *words):
        """(code, the replies by the names of the options)."""
        code, value, reply = self.page.ask("set " + " ".join(words))
        options = {row["name"]: row for row in reply["options"]}
        self.assertEqual(value, sum("new" in row for row in options.values()))
        return code, options

    def set(self, name, value, old=None, new=None):
        """Sets one option; it must be done."""
        code, options = self.ask(f"{name}={value}")
        row = options["GPUCACHE_" + name]
        self.assertEqual(code, DONE, row)
        if old is not None:
            self.assertEqual(row["old"], old)
        self.assertEqual(row["new"], value if new is None else new)
        self.assertEqual(self.look()[0]["options"]["GPUCACHE_" + name], row["new"])
        return row

    def look(self):
        self.assertEqual(self.page.ask("look")[0], DONE)
        return self.page.state()

    def reserved(self, device=0):
        pools = [pool for pool in self.look()[0]["pools"] if pool["device"] == device]
        return sum(pool["reserved_bytes"] for pool in pools) // MIB


class Limits(Case):
    def test_a_lower_max_idle_gives_back_at_once_and_holds(self):
        self.start("churn(8, 10)")
        self.assertGreaterEqual(self.reserved(), 80)
        self.set("MAX_IDLE", "16M", old="none")
        self.wait_for(lambda: self.reserved() <= 16, "what is over the limit went back")
        self.do("churn(8, 10)")
        self.wait_for(lambda: self.reserved() <= 16, "and does again")
        self.set("MAX_IDLE", "none", old="16M")
        self.do("churn(8, 10)")
        time.sleep(0.5)
        self.assertGreaterEqual(self.reserved(), 80, "no limit any more")

    def test_max_reserved_is_kept_by_requests(self):
        self.start()
        self.set("MAX_RESERVED", "64M", old="none")
        self.assertEqual(self.do("alloc(8, 20)"), "2")
        self.assertLessEqual(self.reserved(), 64)
        self.do("free()")
        self.set("MAX_RESERVED", "none", old="64M")
        self.assertEqual(self.do("alloc(8, 20)"), "0")
        self.set("MAX_RESERVED", "64M")
        self.assertGreaterEqual(self.reserved(), 160, "live memory stays")
        self.do("free()")
        self.wait_for(lambda: self.reserved() <= 64, "freed memory over the limit goes back")

    def test_a_timeout_begins_and_ends(self):
        self.start("churn(8, 10)")
        self.set("IDLE_TIMEOUT", "200ms", old="0")
        self.wait_for(lambda: self.reserved() == 0, "nothing was used for so long")
        self.set("IDLE_TIMEOUT", "0", old="200ms")
        self.do("churn(8, 10)")
        time.sleep(0.6)
        self.assertGreaterEqual(self.reserved(), 80, "no timeout any more")

    def test_memory_is_left_to_others(self):
        self.start("churn(8, 30)", SIM_CAPACITY="1G")
        self.set("MIN_FREE", "900M", old="0")
        self.wait_for(lambda: self.reserved() <= 124, "so much is free")
        row = self.set("MIN_FREE", "100%", old="900M")
        self.assertIn("all idle memory is given back", row["note"])
        self.wait_for(lambda: self.reserved() == 0, "it is")
        limits = self.look()[0]["pools"][0]["limits"]
        self.assertEqual((limits["min_free_bytes"], limits["max_idle_bytes"]), (1024 * MIB, None))

    def test_a_pool_that_comes_later_has_the_new_value_of_its_device(self):
        self.start()
        self.set("MAX_IDLE", "1=0", old="none", new="none,1=0")
        self.do("churn(8, 10)")
        self.assertEqual(self.do("cudart.cudaSetDevice(1)"), "0")
        self.do("churn(8, 10)")
        self.wait_for(lambda: self.reserved(1) == 0, "device 1 has a limit")
        self.assertGreaterEqual(self.reserved(0), 80, "device 0 has none")
        self.set("MAX_IDLE", "0=0", old="none,1=0", new="none,0=0,1=0")
        self.wait_for(lambda: self.reserved(0) == 0, "now it has")

    def test_a_reset_device_has_the_new_value(self):
        self.start("churn(8, 10)")
        self.assertEqual(self.do("cudart.cudaDeviceReset()"), "0")
        self.set("MAX_IDLE", "0")
        self.do("churn(8, 10)")
        self.wait_for(lambda: self.reserved() == 0, "in the pool of the next context")

    def test_threads_allocate_while_all_changes(self):
        self.start("begin(4)", SIM_CAPACITY="1G")
        for i in range(60):
            code, options = self.ask(f"MAX_IDLE={i % 3 * 8}M", f"MAX_RESERVED={100 + i % 5 * 60}M",
                                     f"MIN_FREE={i % 4 * 200}M", f"IDLE_TIMEOUT={i % 3 * 10}ms",
                                     f"REUSE={('auto', 'order', 'ready', 'wait')[i % 4]}",
                                     f"MEMINFO={i % 2}")
            self.assertEqual(code, DONE, options)
        self.assertEqual(self.do("end()"), "ended")
        code, options = self.ask("MAX_RESERVED=none", "MAX_IDLE=0")
        self.wait_for(lambda: self.reserved() == 0, "all of it goes back")
        self.assertEqual(self.finish(), "")


class Others(Case):
    def flushes(self):
        return self.look()[0]["flush"]["count"]

    def test_a_flush_now_and_at_intervals(self):
        self.start("churn(8, 10)")
        self.set("EMPTY_CACHE", "1", old="off")
        self.wait_for(lambda: self.reserved() == 0, "at once")
        self.set("EMPTY_CACHE", "every:100ms", old="1")
        count = self.flushes()
        self.do("churn(8, 10)")
        self.wait_for(lambda: self.flushes() > count + 3 and self.reserved() == 0, "at intervals")
        self.set("EMPTY_CACHE", "every:1h", old="every:100ms")
        count = self.flushes()
        time.sleep(0.4)
        self.assertEqual(self.flushes(), count, "not before the new interval is over")
        self.set("EMPTY_CACHE", "every:50ms,keep=40M", old="every:1h")
        self.do("churn(8, 10)")
        self.wait_for(lambda: self.flushes() > count + 2 and self.reserved() == 40, "a shorter one")
        self.set("EMPTY_CACHE", "off")
        self.wait_for(lambda: (n := self.flushes()) == (time.sleep(0.3) or self.flushes()) and n,
                      "no more")
        code, options = self.ask("EMPTY_CACHE=device=9")
        self.assertIn("no such device", options["GPUCACHE_EMPTY_CACHE"]["note"])

    def test_the_exit_waits_for_a_look_at_the_devices(self):
        """A driver that ends beside a call of the control thread may crash."""
        self.start(SIM_REALTIME="1", SIM_COST_cuDeviceGetCount=str(10**9))
        calls = "ctypes.CDLL('libcuda.so.1').simCallCount(b'cuDeviceGetCount')"
        before = self.do(calls)
        start = time.monotonic()
        self.page.put_ask("set EMPTY_CACHE=1,device=1")
        self.page.ring()
        self.wait_for(lambda: self.do(calls) != before, "the call")
        self.finish()
        self.assertGreaterEqual(time.monotonic() - start, 1)

    def test_a_file_that_is_touched(self):
        self.start()
        path = os.path.join(self.folder, "touch")
        self.do("churn(8, 10)")
        self.set("EMPTY_CACHE_FILE", path, old="none")
        with open(path, "w", encoding="ascii"):
            pass
        self.wait_for(lambda: self.reserved() == 0, "it was made")
        self.set("EMPTY_CACHE_FILE", "none", old=path)
        self.do("churn(8, 10)")
        os.utime(path, (1, 1))
        time.sleep(0.5)
        self.assertGreaterEqual(self.reserved(), 80, "nobody looks")
        self.assertIn("folder", self.set("EMPTY_CACHE_FILE", "/no/such/folder/x")["note"])

    def test_what_the_program_is_told_of_free_memory(self):
        self.start("churn(8, 10)", SIM_CAPACITY="1G")
        before = int(self.do("free_mib()"))
        self.set("MEMINFO", "off", old="on")
        self.assertLessEqual(int(self.do("free_mib()")), before - 80)
        self.set("MEMINFO", "on", old="off")
        self.assertEqual(int(self.do("free_mib()")), before)

    def test_the_log_can_be_sent_elsewhere(self):
        self.start()
        paths = [os.path.join(self.folder, f"{i}.log") for i in range(2)]
        for path in paths:
            self.set("LOG", "info:" + path)
            self.page.ask("flush")
        self.set("LOG", "warn", old="info:" + paths[1])
        self.page.ask("flush")
        for path in paths:
            text = programs.read(path)
            self.assertIn("set by a request: GPUCACHE_LOG=info:" + path, text)
            self.assertEqual(text.count("gpucache: info: flush ("), 1, text)
        self.assertEqual(self.finish(), "")

    def test_a_report_that_is_asked_for_late(self):
        self.start()
        path = os.path.join(self.folder, "report.json")
        self.set("STATS", "exit:" + path, old="off", new="exit-json:" + path)
        self.set("MAX_IDLE", "8M")
        self.assertEqual(self.finish(), "")
        self.assertIn('"GPUCACHE_MAX_IDLE":"8M"', programs.read(path))

    def test_a_report_that_is_no_longer_wanted(self):
        self.start(GPUCACHE_STATS="exit")
        self.set("STATS", "off", old="exit")
        self.assertEqual(self.finish(), "")


class Refusals(Case):
    def test_options_that_are_fixed_say_why(self):
        self.start()
        fixed = [row for row in T.OPTIONS if row["fixed"]]
        self.assertGreater(len(fixed), 8)
        for row in fixed:
            name = row["env"]
            code, options = self.ask(f"{name}={row['default'] or 'x'}")
            self.assertEqual(code, REFUSED)
            self.assertEqual(options[name]["why"],
                             "it cannot change while the program runs: " + row["fixed"])

    def test_every_other_option_can_change(self):
        self.start()
        for row in T.OPTIONS:
            if not row["fixed"]:
                value = row["default"] or "none"
                code, options = self.ask(f"{row['env']}={value}")
                self.assertEqual((code, options[row["env"]]["new"]), (DONE, value))

    def test_bad_names_and_values_say_what_is_meant(self):
        self.start()
        code, options = self.ask("MAXIDLE=1G", "max_idle=1G", "MAX_IDLE=8X", "LOG=",
                                 "IDLE_TIMEOUT=7s")
        self.assertEqual(code, BAD)
        self.assertEqual(options["MAXIDLE"]["why"],
                         "there is no such option; the nearest is GPUCACHE_MAX_IDLE")
        self.assertIn("no such option", options["max_idle"]["why"])
        self.assertIn('"8X" is not understood: it takes a size',
                      options["GPUCACHE_MAX_IDLE"]["why"])
        self.assertIn('"" is not understood', options["GPUCACHE_LOG"]["why"])
        self.assertEqual(options["GPUCACHE_IDLE_TIMEOUT"],
                         {"name": "GPUCACHE_IDLE_TIMEOUT", "old": "0", "new": "7s"})
        self.assertEqual(self.look()[0]["options"]["GPUCACHE_MAX_IDLE"], "none", "unchanged")
        self.assertEqual(self.page.ask("set")[0], BAD)
        self.assertEqual(self.page.ask("set MAX_IDLE")[0], BAD)
        self.assertEqual(self.finish(), "", "no word on the program's standard error")

    def test_a_trace_begins_though_the_last_word_of_it_is_refused(self):
        self.start()
        trace = os.path.join(self.folder, "t.gct")
        code, options = self.ask(f"TRACE={trace}", "TRACE_ON=never")
        self.assertEqual((code, options["GPUCACHE_TRACE"]["new"]), (BAD, trace))
        self.assertTrue(os.path.exists(trace))
        code, options = self.ask(f"TRACE={trace}", "MAX_IDLE=1G", "TRACE_ON=never")
        self.assertIn("there is no trace", options["GPUCACHE_TRACE"]["note"])

    def test_a_reply_without_room_for_all_says_so(self):
        self.start()
        words = [f"{'N' * 22}{i}=v" for i in range(31)] + ["MAX_IDLE=8M"]
        code, _, reply = self.page.ask("set " + " ".join(words))
        self.assertEqual(code, BAD)
        self.assertEqual(len(reply["options"]) + reply["left_out"], 32)
        self.assertEqual(self.look()[0]["options"]["GPUCACHE_MAX_IDLE"], "8M", "done all the same")

    def test_the_log_has_64_files_at_most(self):
        self.start()
        for i in range(64):
            self.set("LOG", f"info:{self.folder}/{i}.log")
        code, options = self.ask(f"LOG=debug:{self.folder}/more.log")
        self.assertEqual(code, REFUSED)
        self.assertIn("too many files", options["GPUCACHE_LOG"]["why"])
        self.assertEqual(self.look()[0]["options"]["GPUCACHE_LOG"], f"info:{self.folder}/63.log")
