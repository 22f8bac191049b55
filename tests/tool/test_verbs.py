# SPDX-License-Identifier: BSD-2-Clause
"""What stat, set and ps say, what they ask of a process, and how requests go.

test_verbs.py TOOL"""
import glob
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

from fake import MAPPER, MIB, PIPES, TOOL, UUID, UUID_B, body, map_page, pool, tool, wait_for
from test_page import Case

from gpucache import ask as ask_module
from gpucache import cached, manual, options, tables, text

DONE, REFUSED = tables.PAGE_REPLY_DONE, tables.PAGE_REPLY_REFUSED


class Arguments(Case):
    def refused(self, sentence, *words):
        """With this last line, and the usage of this verb."""
        done = tool(*words)
        lines = done.err.splitlines()
        self.assertEqual((done.status, lines[-1]), (2, f"gpucache {words[0]}: error: {sentence}"))
        self.assertTrue(lines[0].startswith(f"usage: gpucache {words[0]} "), lines)

    def test_flags_may_stand_between_words(self):
        page = self.page(answer=lambda words: (DONE, 0, {"options": [
            {"name": "MAX_IDLE", "old": "none", "new": "3G"}], "gpus": [], "ns": 1}))
        done = tool("set", os.getpid(), "--json", "MAX_IDLE=3G", "MIN_FREE=1G")
        self.assertEqual((done.status, page.asked), (0, ["set MAX_IDLE=3G MIN_FREE=1G"]), done.err)
        self.assertEqual(done.json["results"][0]["changes"][0]["new"], "3G")
        done = tool("flush", os.getpid(), "--json", 4194303, "--wait", "0", 4194304)
        self.assertEqual((done.status, [r["pid"] for r in done.json["receipts"]]),
                         (1, [os.getpid(), 4194303, 4194304]))
        self.refused("x is no process id", "flush", os.getpid(), "--json", "x")

    def test_what_a_verb_does_not_know_is_told_with_its_usage(self):
        self.refused("unrecognized arguments: --bogus", "ps", "--bogus")
        self.refused("unrecognized arguments: 12", "stat", os.getpid(), "12")
        self.refused("unrecognized arguments: --bogus", "set", os.getpid(), "--bogus", "MAX_IDLE=1")
        self.refused("unrecognized arguments: --maxidle; the nearest option is --max-idle", "run",
                     "--maxidle", "1G", "true")

    def test_the_help_of_run_is_short_and_has_each_kind_of_value_once(self):
        done = tool("run", "--help", COLUMNS="80")
        lines = done.out.splitlines()
        self.assertLess(len(lines), 68)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertEqual(done.out.count("50% of the device"), 1)
        for row in tables.OPTIONS:
            self.assertIn(f"  {options.flag(row['env'])} {options.kind_of(row)}", done.out)

    def test_the_synopsis_of_the_man_page_fits_a_terminal(self):
        page = "\n".join(manual.page())
        synopsis = page.partition(".nf\n")[2].partition("\n.fi")[0].replace("\\-", "-")
        for line in synopsis.splitlines():
            self.assertLessEqual(len(line), 73, line)
        for word in "[--sort COLUMN]", "[--wait TIME]", "PID ... NAME=VALUE ...":
            self.assertIn(word, synopsis)
        # The page has the whole text of an option.
        self.assertIn("The rest goes back to the driver", page)

    def test_a_name_that_is_like_no_option_is_compared_with_none(self):
        self.says(tool("run", "GPUCACHE_FOO=1", "true"), 2, "there is no option GPUCACHE_FOO")
        self.says(tool("set", os.getpid(), "MEMINF=1"), 2,
                  "there is no option MEMINF; the nearest is MEMINFO")

    def test_times_that_are_too_long_are_told_so(self):
        for words, flag in (("flush", "1", "--wait"), "--wait"), (("top", "--interval"),
                                                                  "--interval"):
            self.refused(f"argument {flag}: 25h is too long: at most 24h", *words, "25h")
            self.refused(f"argument {flag}: 1d is no time: it takes 5s, 200ms, 1m or 1h", *words,
                         "1d")

    def test_top_in_json_says_what_it_could_not_use(self):
        os.chmod(self.folder, 0o777)
        with unittest.mock.patch("time.sleep", side_effect=KeyboardInterrupt):
            done = tool("top", "--json")
        self.assertEqual((done.status, done.json["complaints"]),
                         (130, [f"{self.folder} is not used: others may write to it"]))

    def test_metrics_go_to_one_place(self):
        path = self.folder + "/figures"
        for words in (("--listen", "127.0.0.1:0", "--textfile", path),
                      ("--textfile", path, "--json"),
                      ("--listen", "127.0.0.1:0", "--json")):
            self.says(tool("metrics", *words), 2,
                      "metrics takes one of --listen, --textfile and --json")
        self.assertFalse(os.path.exists(path))

    def test_the_parts_of_a_peak_have_words_that_tell_them(self):
        self.page()
        said = tool("stat", os.getpid()).out
        for words in "free in whole chunks", "free in cut chunks", "free in small blocks", \
                "time since the start":
            self.assertRegex(said, rf"\n{words} +")
        self.assertNotRegex(said, r"\n(whole|cut|small|running time) ")


class Slots(Case):
    def test_a_process_that_does_not_answer(self):
        self.page(answer=lambda words: None)
        ask_margin, started = sys.modules["gpucache.flush"].MARGIN_S, time.monotonic()
        sys.modules["gpucache.flush"].MARGIN_S = 0.2
        try:
            done = tool("flush", os.getpid(), "--wait", "100ms")
        finally:
            sys.modules["gpucache.flush"].MARGIN_S = ask_margin
        self.says(done, 1, f"PID {os.getpid()}: it has not answered within 0.3 s")
        self.assertGreaterEqual(time.monotonic() - started, 0.3)

    def test_a_stopped_process_is_told_so(self):
        with subprocess.Popen([sys.executable, "-c", MAPPER], **PIPES) as sleeper:
            try:
                start = ask_module.process.start_ticks(sleeper.pid)
                page = self.page(pid=sleeper.pid, start=start)
                map_page(sleeper, page)

                def numbers():
                    return [page.get("ask_sequence", tables.PAGE_SLOT,
                                     tables.PAGE["slots"][0] + i * tables.PAGE_SLOT_BYTES)
                            for i in range(tables.PAGE_SLOTS)]
                sleeper.send_signal(signal.SIGSTOP)
                wait_for(lambda: ask_module.process.state(sleeper.pid) == "T")
                self.says(tool("flush", sleeper.pid), 1, f"PID {sleeper.pid}: it is stopped: "
                          "ask again when it goes on")
                sleeper.send_signal(signal.SIGCONT)

                def kill():  # once it is asked
                    wait_for(lambda: numbers() != before)
                    sleeper.kill()
                before, killer = numbers(), threading.Thread(target=kill)
                killer.start()
                self.says(tool("flush", sleeper.pid), 1, f"PID {sleeper.pid}: it has ended")
                killer.join()
            finally:
                sleeper.kill()

    def test_many_askers_at_once_get_their_own_reply(self):
        page = self.page(answer=lambda words: (DONE, int(words.split("=")[-1]), {}))
        failures = []

        # Locks are a process's own, so the askers are processes.
        def ask(number):
            done = subprocess.run(
                [sys.executable, "-c",
                 "import sys; sys.path.insert(0, sys.argv[1])\n"
                 "from gpucache import ask, page\n"
                 "found = page.find(int(sys.argv[2]))[0]\n"
                 "for n in range(20):\n"
                 "    with ask.Line(found) as line:\n"
                 "        want = int(sys.argv[3]) + n\n"
                 "        assert line.ask(f'flush keep={want}', 30).value == want\n",
                 TOOL, str(os.getpid()), str(number)], timeout=60)
            if done.returncode:
                failures.append(number)
        askers = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(8)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(page.asked), 160)

    def test_a_request_that_somebody_left_is_not_taken_for_the_own(self):
        page = self.page()
        for i in range(tables.PAGE_SLOTS):
            start = tables.PAGE["slots"][0] + i * tables.PAGE_SLOT_BYTES
            page.put("ask_sequence", 5, tables.PAGE_SLOT, start)
            page.put("reply_sequence", 4, tables.PAGE_SLOT, start)
        asked = []

        def asker():
            with ask_module.Line(ask_module_page()) as line:
                asked.append(line.ask("flush keep=1", 20).value)

        def ask_module_page():
            return sys.modules["gpucache.page"].find(os.getpid())[0]
        thread = threading.Thread(target=asker)
        thread.start()
        start = tables.PAGE["slots"][0]
        self.assertTrue(wait_for(lambda: page.get("ask_sequence", tables.PAGE_SLOT, start) == 6))
        page.put("reply_value", 111, tables.PAGE_SLOT, start)
        page.put("reply_sequence", 5, tables.PAGE_SLOT, start)  # the reply to the other
        time.sleep(0.1)
        self.assertEqual(asked, [])
        page.put("reply_value", 222, tables.PAGE_SLOT, start)
        page.put("reply_sequence", 6, tables.PAGE_SLOT, start)
        thread.join()
        self.assertEqual(asked, [222])

    def test_the_reply_to_one_of_several_that_were_left_is_not_taken_for_the_own(self):
        """Each slot was left twice: the process is still busy with the request before the last."""
        page = self.page()
        for i in range(tables.PAGE_SLOTS):
            start = tables.PAGE["slots"][0] + i * tables.PAGE_SLOT_BYTES
            page.put("ask_sequence", 6, tables.PAGE_SLOT, start)
            page.put("reply_sequence", 4, tables.PAGE_SLOT, start)
        asked, start = [], tables.PAGE["slots"][0]

        def asker():
            found = sys.modules["gpucache.page"].find(os.getpid())[0]
            with ask_module.Line(found) as line:
                asked.append(line.ask("flush keep=1", 20).value)
        thread = threading.Thread(target=asker)
        thread.start()
        try:
            self.assertTrue(wait_for(lambda: page.get("ask_bytes", tables.PAGE_SLOT, start)))
            for number in 5, 6:  # the replies to the others
                page.put("reply_value", 111, tables.PAGE_SLOT, start)
                page.put("reply_sequence", number, tables.PAGE_SLOT, start)
                time.sleep(0.1)
            self.assertEqual(asked, [])
        finally:
            page.put("reply_value", 222, tables.PAGE_SLOT, start)
            page.put("reply_sequence", page.get("ask_sequence", tables.PAGE_SLOT, start),
                     tables.PAGE_SLOT, start)
            thread.join()
        self.assertEqual(asked, [222])

    def test_all_slots_taken(self):
        page = self.page()
        with subprocess.Popen(
                [sys.executable, "-c",
                 "import fcntl, struct, sys\n"
                 "file = open(sys.argv[1], 'r+b')\n"
                 "fcntl.lockf(file, fcntl.LOCK_EX, 8 * 4096, 8192)\n"
                 "print('taken', flush=True); sys.stdin.read()", page.path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            self.assertEqual(other.stdout.readline(), b"taken\n")
            found = sys.modules["gpucache.page"].find(os.getpid())[0]
            with ask_module.Line(found) as line:
                with self.assertRaisesRegex(Exception, "8 others are asking it"):
                    line.ask("look", 0.1)
            other.stdin.close()

    def test_a_look_asks_for_a_new_state_and_rings(self):
        page = self.page(age_s=30)
        doorbell = page.get("doorbell")
        before = time.monotonic_ns()
        tool("ps")
        self.assertGreater(page.get("doorbell"), doorbell)
        self.assertLessEqual(page.get("watched_until_ns"), time.monotonic_ns() + 10 * 10**9)
        self.assertGreater(page.get("watched_until_ns"), before + 10**9)


class Set(Case):
    def test_old_and_new_values_and_why_not(self):
        def answer(words):
            self.assertEqual(words, "set MAX_IDLE=1G BACKING=arena")
            return REFUSED, 0, {"options": [
                {"name": "GPUCACHE_MAX_IDLE", "old": "none", "new": "1G", "note": "so it is"},
                {"name": "GPUCACHE_BACKING", "why": "it is chosen at the start"}]}
        self.page(answer=answer)
        done = tool("set", os.getpid(), "MAX_IDLE=1G", "GPUCACHE_BACKING=arena")
        self.assertEqual(done.status, 1)
        self.assertEqual(done.out, f"PID {os.getpid()}: MAX_IDLE none -> 1G (so it is)\n"
                         f"PID {os.getpid()}: BACKING is unchanged: it is chosen at the start\n")

    def test_wrong_names_and_values_ask_nothing(self):
        page = self.page(answer=lambda words: (DONE, 0, {}))
        pid = os.getpid()
        self.says(tool("set", pid, "MAX_IDEL=1G"), 2,
                  "there is no option MAX_IDEL; the nearest is MAX_IDLE")
        done = tool("set", pid, "MAX_IDLE=much")
        self.assertEqual(done.status, 2)
        self.assertIn("MAX_IDLE=much is not understood: it takes a size", done.err)
        for words in ((pid,), ("MAX_IDLE=1G",), (pid, "x"), (pid, "ONLY=a, b"),
                      (0, "MAX_IDLE=1G"), ("9" * 5000, "MAX_IDLE=1G")):
            self.assertEqual(tool("set", *words).status, 2, words)
        self.assertEqual(page.asked, [])

    def test_names_in_no_encoding_reach_the_library(self):
        page = self.page(answer=lambda words: (DONE, 0, {}))
        self.assertEqual(tool("set", os.getpid(), "LOG=debug:/tmp/\udcff").status, 0)
        self.assertEqual(page.asked, ["set LOG=debug:/tmp/\udcff"])

    def test_json(self):
        self.page(answer=lambda words: (DONE, 0, {"options": [
            {"name": "LOG", "old": "warn", "new": "debug"}]}))
        done = tool("set", os.getpid(), "log=debug", "--json")
        self.assertEqual(done.status, 0)
        self.assertEqual(done.json["results"][0]["changes"][0]["new"], "debug")


class Show(Case):
    def test_stat_shows_every_figure(self):
        figures = {row["name"]: i + 1 for i, row in enumerate(tables.STATS)
                   if row["kind"] == "COUNTER"}
        figures.update(async_reserved_bytes=96 * MIB, async_idle_bytes=64 * MIB)
        self.page(body(pool(**{n: v for n, v in figures.items()
                               if n not in ("num_allocs", "num_hits", "num_frees")}),
                       options={"GPUCACHE_MAX_IDLE": "2G"},
                       flush={"count": 3, "reason": "signal", "unix_ns": time.time_ns(),
                              "bytes": 5 * MIB, "ns": 10**6}))
        out = tool("stat", os.getpid()).out
        for row in tables.STATS:
            if row["kind"] != "PEAK":
                self.assertIn(sys.modules["gpucache.stat"].label(row["name"]), out)
        for part in ("options: MAX_IDLE=2G", "signal, 5 MiB in 1 ms; 3 in all", "98.5 %", UUID):
            self.assertIn(part, out)
        self.assertLessEqual(max(map(len, out.splitlines())), 80)

    def test_the_drivers_own_pools_count_where_there_are_some(self):
        self.page(body(pool(async_reserved_bytes=96 * MIB, async_idle_bytes=64 * MIB)))
        cells = tool("ps").out.splitlines()[-1]
        for size in 32 + 32, 156 + 64, 188 + 96:  # live, idle, reserved
            self.assertIn(f"{size} MiB", cells)
        self.page(body(pool()))
        self.assertNotIn("async idle", tool("stat", os.getpid()).out)

    def test_stat_in_json_has_the_same(self):
        self.page()
        found = tool("stat", os.getpid(), "--json").json
        self.assertEqual(found["gpus"][0]["num_hits"], 985)
        self.assertEqual(found["options"]["MAX_IDLE"], "none")

    def test_ps_shows_limits_and_a_line_for_each_gpu(self):
        self.page(body(pool(), pool(1, UUID_B), options={"GPUCACHE_MAX_IDLE": "2G"}))
        lines = tool("ps").out.splitlines()
        self.assertEqual(lines[:3], [
            f"GPU {i}: Simulated GPU, 80 GiB; a flush would give back up to 156 MiB"
            for i in range(2)] + [""])
        self.assertEqual(lines[3].split(), ["PID", "USER", "GPU", "LIVE", "CACHED", "IDLE",
                                            "RESERVED", "PEAK", "HITS", "LIMITS", "JOB", "NAME"])
        self.assertEqual(len(lines), 6)
        self.assertRegex(lines[4], r"32 MiB +\? +156 MiB +188 MiB +1 GiB +98.5 % +MAX_IDLE=2G")

    def test_the_readme_shows_the_columns_of_ps(self):
        def heads(words):
            return next(line.split() for line in words.splitlines() if line.split()[:1] == ["PID"])
        with open(os.path.join(os.path.dirname(__file__), "../../README.md"),
                  encoding="utf-8") as file:
            shown = file.read().split("$ gpucache ps\n")[1]
        self.page()
        self.assertEqual(heads(shown), heads(tool("ps").out))

    def told(self, page, *packages):
        page.cached = {"ns": 1, "frameworks": [
            {"name": name, "state": state, **({} if size is None else {
                "age_ns": age_ns, "gpus": [{"device": 0, "cached_bytes": size}]})}
            for name, state, size, age_ns in packages]}

    def test_cached_is_what_packages_keep_and_no_live_memory(self):
        page = self.page(body({**pool(), "allocated_bytes": 100 * MIB, "idle_bytes": 88 * MIB}),
                         answer=lambda words: None)
        with unittest.mock.patch.object(cached, "PATIENCE_S", 20):
            for packages, live, shown in (
                    ([("torch", "done", 60 * MIB, 0), ("cupy", "done", 30 * MIB, 0)], "10 MiB",
                     "90 MiB"),
                    ([("torch", "busy", 60 * MIB, 14 * 10**9)], "40 MiB", "60 MiB 14s"),
                    ([("torch", "done", 10**12, 0)], "0 B", "931 GiB"),
                    ([("torch", "done", 60 * MIB, 0), ("rmm", "keeps", None, 0)], "100 MiB", r"\?"),
                    ([("torch", "idle", 0, 0)], "100 MiB", "0 B"),
                    ([], "100 MiB", "-")):
                self.told(page, *packages)
                self.assertRegex(tool("ps").out, rf" 0 +{live} +{shown} +88 MiB ", packages)
                (gpu,) = tool("ps", "--json").json["processes"][0]["gpus"]
                self.assertEqual(gpu["allocated_bytes"], 100 * MIB)
                self.assertEqual(gpu["cached_bytes"] is None, shown == r"\?")
            self.told(page, ("torch", "done", 60 * MIB, 0))
            self.assertRegex(tool("stat", os.getpid()).out, r"cached by torch +60 MiB\n")
            page.cached = {"ns": 1, "frameworks": "late"}
            self.assertRegex(tool("ps").out, r" 0 +100 MiB +\? +88 MiB ")

    def test_with_no_ask_no_package_is_asked(self):
        page = self.page(answer=lambda words: None)
        page.cached = {"ns": 1, "frameworks": []}
        with unittest.mock.patch.object(cached, "PATIENCE_S", 20):
            for verb in ("ps",), ("stat", os.getpid()):
                tool(*verb, "--no-ask")
                self.assertEqual(page.looks, 0)
                tool(*verb)
                self.assertEqual(page.looks, 1)
                page.looks = 0

    def test_a_package_says_what_it_likes(self):
        page = self.page(answer=lambda words: None)
        for told in ({}, {"frameworks": 7}, {"frameworks": [1, None, {"gpus": 3}]},
                     {"frameworks": [{"name": "\x1b[2J" * 50, "state": 5, "age_ns": -1,
                                      "gpus": [{"device": -1, "cached_bytes": True}, []]}]},
                     {"frameworks": [{"name": "x", "state": "done", "age_ns": 1 << 80,
                                      "gpus": [{"device": 0, "cached_bytes": 1 << 70}]}]}):
            page.cached = told
            for words in ("ps",), ("ps", "--json"), ("stat", os.getpid()):
                done = tool(*words)
                self.assertEqual((done.status, done.err), (0, ""), told)
                self.assertNotIn("\x1b", done.out)

    def test_no_colours_but_on_a_terminal(self):
        self.page()
        self.assertNotIn("\x1b", tool("ps").out + tool("stat", os.getpid()).out)

    def test_what_nvml_knows(self):
        self.page()
        folder = os.path.join(self.folder, "nvml")
        os.mkdir(folder)
        with subprocess.Popen(["sleep", "100"]) as other:
            try:
                with open(folder + "/pynvml.py", "w", encoding="utf-8") as file:
                    file.write(f"""
class Row:
    def __init__(self, **fields):
        self.__dict__.update(fields)
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(device): return "{UUID}" if device == 1 else "GPU-0"
def nvmlDeviceGetName(device): return b"H100"
def nvmlDeviceGetMemoryInfo(device): return Row(total=80 << 30, used=1 << 30)
def nvmlDeviceGetComputeRunningProcesses(device):
    return [Row(pid={other.pid}, usedGpuMemory=512 << 20), Row(pid={os.getpid()},
            usedGpuMemory=1)] if device == 1 else []
""")
                sys.path.insert(0, folder)
                sys.modules.pop("pynvml", None)
                done, as_json = tool("ps"), tool("ps", "--json").json
            finally:
                sys.path.remove(folder)
                sys.modules.pop("pynvml", None)
                other.kill()
        self.assertRegex(done.out, rf"{other.pid}  .* 1 .* 512 MiB .* sleep "
                                   r"\(without the library\)")
        self.assertEqual(as_json["processes"][0]["gpus"][0]["index"], 1)
        self.assertEqual([e["pid"] for e in as_json["without_page"]], [other.pid])

    def test_without_nvml_the_reason_is_told_when_asked(self):
        sys.modules["pynvml"] = None
        try:
            self.assertIn("processes without the library are not listed: there is no NVIDIA driver",
                          tool("ps", "-v", PATH="").out)
        finally:
            del sys.modules["pynvml"]

    def test_what_needs_a_package_names_it(self):
        self.page()
        for module, words, package in (
                ("prometheus_client", ("metrics",), "prometheus_client"),
                ("rich", ("top",), "rich"), ("argcomplete", ("completion", "bash"), "argcomplete")):
            before = {n: m for n, m in sys.modules.items() if n.split(".")[0] == module}
            for name in {module, *before}:
                sys.modules[name] = None
            try:
                done = tool(*words)
            finally:
                for name in {module, *before}:
                    del sys.modules[name]
                sys.modules.update(before)
            verb = words[0]
            self.says(done, 3, f"{verb} needs the Python package {package}: pip install {package}")

    def test_stat_watches_until_the_end(self):
        with subprocess.Popen([sys.executable, "-c", MAPPER], **PIPES) as sleeper:
            try:
                start = ask_module.process.start_ticks(sleeper.pid)
                page = self.page(pid=sleeper.pid, start=start)
                map_page(sleeper, page)

                def kill():  # once it was looked at a third time
                    looks = set()
                    wait_for(lambda: looks.add(page.get("watched_until_ns")) or len(looks) > 3)
                    sleeper.kill()
                    sleeper.wait()
                killer = threading.Thread(target=kill)
                killer.start()
                done = tool("stat", sleeper.pid, "--watch", "50ms", "--json")
                killer.join()
            finally:
                sleeper.kill()
        self.assertEqual(done.status, 0, done.err)
        self.assertGreater(len(done.out.splitlines()), 1)


class Completion(Case):
    def test_a_shell_is_offered_verbs_options_and_processes(self):
        try:
            import argcomplete  # noqa: F401 # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("argcomplete is not installed")
        self.page()
        for shell, part in (("bash", "complete"), ("zsh", "#compdef"), ("fish", "function")):
            self.assertIn(part, tool("completion", shell).out)
            self.assertIn(part, tool("completion", shell, "--json").json["script"])
        target = os.path.join(self.folder, "offered")

        def offered(line):
            subprocess.run([sys.executable, TOOL], timeout=60, check=True, env={
                **os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
                "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n",
                "_ARGCOMPLETE_STDOUT_FILENAME": target})
            with open(target, encoding="utf-8") as file:
                return file.read().split("\n")
        self.assertIn("flush ", offered("gpucache fl"))
        self.assertIn("--max-idle ", offered("gpucache run --max-i"))
        self.assertIn(str(os.getpid()), " ".join(offered("gpucache stat ")))
        self.assertIn("MAX_IDLE=", " ".join(offered("gpucache set MAX_I")))


    def test_without_its_package_a_shell_is_offered_nothing(self):
        script = ("import sys; sys.modules['argcomplete'] = None\nsys.path.insert(0, sys.argv[1])\n"
                  "from gpucache import cli; sys.exit(cli.main())")
        done = subprocess.run([sys.executable, "-c", script, TOOL], capture_output=True, text=True,
                              timeout=60, env={**os.environ, "_ARGCOMPLETE": "1",
                                               "COMP_LINE": "gpucache ", "COMP_POINT": "9"})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "", ""))


class Figures(unittest.TestCase):
    def test_sizes(self):
        for value, shown in ((0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"),
                             (156 * MIB, "156 MiB"), (1 << 30, "1 GiB"), ((1 << 30) - 1, "1 GiB"),
                             (5 << 40, "5 TiB"), (9 << 50, "9216 TiB"), (None, "-")):
            self.assertEqual(text.size(value), shown)
        for words, value in (("2G", 2 << 30), ("1.5g", 3 << 29), ("100", 100), ("1MiB", MIB),
                             ("3kb", 3072), ("2X", None), ("-1", None), ("1.5", None), ("", None),
                             ("99999999999T", None), ("5\u212a", None)):
            self.assertEqual(text.parse_size(words), value, words)

    def test_times(self):
        for ns, shown in ((5, "5 ns"), (11_000_000, "11 ms"), (1_500_000_000, "1.5 s"),
                          (61 * 10**9, "1 min 1 s"), (2 * 3600 * 10**9, "2 h 0 min")):
            self.assertEqual(text.duration(ns), shown)
        for words, value in (("5s", 5), ("200ms", 0.2), ("2", 2), ("1m", 60), ("x", None),
                             ("5\u017f", None)):
            self.assertEqual(text.parse_time(words), value)

    def test_sparklines(self):
        self.assertEqual(text.spark([0, 1, 2, 4, 8], 4), "▂▃▅█")
        self.assertEqual(text.spark([0, 0], 8), "▁▁")
        self.assertEqual(text.spark([], 8), "")


class Versions(unittest.TestCase):
    def test_all_pythons_from_3_8_on_read_the_package(self):
        found = glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python"))
        tried = 0
        for python in sorted({*found, sys.executable}):
            script = ("import sys\nif sys.version_info < (3, 8): sys.exit(77)\n"
                      "sys.path.insert(0, sys.argv.pop(1))\n"
                      "import importlib, zipfile\n"
                      "for name in zipfile.ZipFile(sys.path[0]).namelist():\n"
                      "    if '/' in name and name[-3:] == '.py' and '__main__' not in name:\n"
                      "        importlib.import_module(name[:-3].replace('/', '.'))\n"
                      "from gpucache import cli\n"
                      "cli.make_parser().format_help(); sys.exit(cli.main(['ps', '--json']))")
            done = subprocess.run([python, "-c", script, TOOL], capture_output=True, text=True,
                                  timeout=60)
            if done.returncode == 77 or "f-string" in done.stderr:
                continue
            self.assertEqual((done.returncode, done.stderr), (0, ""), python)
            tried += 1
        self.assertGreaterEqual(tried, 1)


class Replaced(Case):
    def test_a_process_that_became_another_program_has_ended(self):
        self.page().mapping.close()
        self.assertEqual(tool("ps", "--json").json["processes"], [])
        self.assertIn("It has ended", tool("stat", os.getpid()).out)
        self.says(tool("set", os.getpid(), "MAX_IDLE=1G"), 1, f"PID {os.getpid()}: it has ended")


class Streams(Case):
    """The tool as a program of its own, with streams that take nothing."""

    def end_of(self, words, redirection):
        self.page()
        return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirection}', TOOL, *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**os.environ, "GPUCACHE_DIR": self.folder}, check=False)

    def test_a_closed_stdout_takes_what_is_printed(self):
        for words in (("ps",), ("ps", "--json"), ("stat", str(os.getpid())), ("--help",)):
            done = self.end_of(words, ">&-")
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)

    def test_a_full_stdout_is_told_in_one_line(self):
        for words in (("ps",), ("ps", "--json"), ("stat", str(os.getpid())), ("top", "--json")):
            done = self.end_of(words, ">/dev/full")
            self.assertEqual((done.returncode, done.stderr),
                             (1, "gpucache: stdout: no space left on device\n"), words)

    def test_with_a_closed_stderr_stdout_has_no_complaints(self):
        done = self.end_of(("flush", "999999999"), "2>&-")
        self.assertEqual((done.returncode, done.stdout), (1, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
