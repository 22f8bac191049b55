# SPDX-License-Identifier: BSD-2-Clause
"""What stat and ps show, and where they have it from."""
import contextlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import unittest
import unittest.mock

from fake import (MIB, UUID, UUID_B, body, map_page, pool, put_text, text_of, tool, wait_for,
                  well)
from test_page import Case

from gpucache import cached, process, tables


@contextlib.contextmanager
def without(module):
    """That module cannot be imported."""
    names = {module, *(name for name in sys.modules if name.split(".")[0] == module)}
    with unittest.mock.patch.dict(sys.modules, dict.fromkeys(names)):
        yield


@contextlib.contextmanager
def python(folder, *files):
    """The tool runs by a Python, no environment of its own, in whose folder there are these files.
    A name without capitals is a program."""
    with tempfile.TemporaryDirectory(dir=folder) as its:
        for name in files:
            put_text(os.path.join(its, name), mode=0o755)
        with unittest.mock.patch.object(sys, "base_prefix", sys.prefix), \
                unittest.mock.patch.object(sysconfig, "get_path", lambda _: its), \
                unittest.mock.patch.dict(os.environ, PATH=its):
            yield


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

    def test_ps_begins_with_what_takes_most_of_a_gpu(self):
        """Whatever part of that is live: a framework's cache takes as much."""
        for number, live, reserved in (1, 300, 400), (2, 100, 900), (3, 700, 700):
            page = self.page(body({**pool(), "allocated_bytes": live * MIB, "idle_bytes": 0,
                                   "reserved_bytes": reserved * MIB}), pid=number, namespace=12345)
            self.addCleanup(page.close)
        rows = [line.split()[0] for line in tool("ps").out.splitlines()
                if "trainer" in line]
        self.assertEqual(rows, ["2*", "3*", "1*"])

    def test_hits_are_told_once_something_could_be_used_again(self):
        """An allocation before the first free has to take new memory."""
        for allocs, peak, hits, cell in ((64, 64, 0, "-"), (64, 63, 0, "0.0 %"),
                                         (64, 64, 16, "25.0 %")):
            page = self.page(body({**pool(), "num_allocs": allocs, "num_hits": hits,
                                   "live_blocks_peak": peak}))
            self.assertRegex(tool("ps").out, rf" 1 GiB +{cell} ")
            self.assertRegex(tool("stat", os.getpid()).out, rf"\nhit rate +{cell}\n")
            page.close()

    def test_a_command_of_several_lines_is_shown_on_one(self):
        with subprocess.Popen([sys.executable, "-c", "import sys\nsys.stdin.read()\n\t#\x1b"],
                              stdin=subprocess.PIPE) as other:
            try:
                self.assertTrue(wait_for(lambda: "sys" in (process.command(other.pid) or "")))
                self.assertTrue(process.command(other.pid).endswith(
                    " -c import sys sys.stdin.read()  #?"), process.command(other.pid))
            finally:
                other.kill()

    def test_the_readme_shows_the_columns_of_ps(self):
        def heads(words):
            return next(line.split() for line in words.splitlines() if line.split()[:1] == ["PID"])
        readme = text_of(os.path.dirname(__file__), "../../README.md")
        shown = readme.split("$ gpucache ps\n")[1]
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
                done = well(*words)
                self.assertNotIn("\x1b", done.out)

    def test_what_needs_a_package_names_it(self):
        self.page()
        for module, words, package in (
                ("prometheus_client", ("metrics",), "prometheus_client"),
                ("rich", ("top",), "rich"), ("argcomplete", ("completion", "bash"), "argcomplete")):
            said = f"{words[0]} needs the Python package {package}:"
            with without(module), python(self.folder):
                self.says(tool(*words), 3, f"{said} pip install {package}")
            debian = f"python3-{package.replace('_', '-')}"
            with without(module), python(self.folder, "EXTERNALLY-MANAGED", "apt-get"):
                self.says(tool(*words), 3, f"{said} sudo apt-get install {debian}")
            with without(module), python(self.folder, "EXTERNALLY-MANAGED"):
                self.says(tool(*words), 3, f"{said} pip install {package}")

    def test_stat_watches_until_the_end(self):
        sleeper, its = self.sleeper()
        page = self.page(**its)
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
        self.assertEqual(done.status, 0, done.err)
        self.assertGreater(len(done.out.splitlines()), 1)
