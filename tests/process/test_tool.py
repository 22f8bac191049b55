# SPDX-License-Identifier: BSD-2-Clause
"""The tool: what `gpucache run` puts into the environment, and which processes without a page
`gpucache flush` asks by their signal."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import programs
import waiting

NO_RECEIPT = 4  # asked by the signal
TOOL, LIBRARY, FOLDERS = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2]), sys.argv[3]

# More that the program can do
MORE = """
import signal
def handle(numbers, handler=lambda number, _: print("own handler of", int(number), flush=True)):
    for number in set(numbers) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, handler)
    return 0
"""
ALL_HANDLERS = "handle(signal.valid_signals())"


def tool(*words, **env):
    return subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True,
                          env={**os.environ, **env}, timeout=60)


class Run(unittest.TestCase):
    SHOW = ["--", "sh", "-c", "echo $LD_PRELOAD; echo $GPUCACHE_MAX_IDLE"]

    def test_puts_the_library_in_front_and_sets_options(self):
        done = tool("run", "MAX_IDLE=2G", *self.SHOW)
        self.assertEqual(done.stdout.split(), [LIBRARY, "2G"], done.stderr)

    def test_keeps_what_is_preloaded_and_does_not_preload_twice(self):
        done = tool("run", *self.SHOW, LD_PRELOAD="libm.so.6")
        self.assertEqual(done.stdout.split(), [LIBRARY + ":libm.so.6"])
        done = tool("run", *self.SHOW, LD_PRELOAD=LIBRARY)
        self.assertEqual(done.stdout.split(), [LIBRARY])

    def test_ends_as_the_command_does(self):
        self.assertEqual(tool("run", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(tool("run", "/no/such/command").returncode, 127)
        self.assertEqual(tool("run").returncode, 2)

    def test_knows_the_library_and_lists_the_options(self):
        self.assertEqual(tool("library").stdout.strip(), LIBRARY)
        self.assertIn("--idle-timeout", tool("run", "--help").stdout)


class Flush(waiting.Waiting):
    def start(self, program=sys.executable, stderr=None, **env):
        self.report = tempfile.NamedTemporaryFile(suffix=".json")
        self.log = tempfile.NamedTemporaryFile()
        self.addCleanup(self.report.close)  # the last: the child writes it when it ends
        self.addCleanup(self.log.close)
        child = programs.Talker(
            [sys.executable, TOOL, "run", f"STATS=exit:{self.report.name}", "--", program,
             *programs.python(MORE)[1:]],
            {**os.environ, "LD_LIBRARY_PATH": FOLDERS, "GPUCACHE_DIR": "none",
             "GPUCACHE_LOG": f"info:{self.log.name}", **env}, stderr=stderr)
        self.addCleanup(child.end)
        return child

    def churn(self, child, *before):
        """A signal that came meanwhile would be the first line."""
        for line in *before, "churn(64, 1)":
            self.assertEqual(child.do(line), "0")

    def served(self):
        """Has the control thread carried out what the signal asks for?"""
        return "flush (signal)" in programs.read(self.log.name)

    def was_asked_once(self, child):
        self.churn(child)
        self.wait_for(self.served, "no flush")
        self.assertEqual(child.finish()[0], 0)
        report = json.loads(programs.read(self.report.name))
        self.assertEqual(report["counters"]["num_signal_requests"], 1)

    def refused(self, child, words):
        done = tool("flush", str(child.pid))
        self.assertEqual(done.returncode, 1)
        self.assertIn(words, done.stderr)

    def test_does_not_run_a_handler_of_a_program_without_a_pool(self):
        child = self.start()
        self.assertEqual(child.do("handle([signal.SIGUSR1])"), "0")
        self.refused(child, "no idle device memory yet")
        self.churn(child)

    def test_says_that_a_signal_is_ignored(self):
        child = self.start()
        self.churn(child, "handle([signal.SIGUSR1], signal.SIG_IGN)")
        self.refused(child, "it ignores the signal")

    def test_sends_no_signal_but_the_one_that_the_library_listens_to(self):
        rtmin = int(signal.SIGRTMIN)
        for value, number in (("TERM", 10), ("int", 10), ("9", 10), ("USR1+5", 10),
                              ("RTMIN+-3", 10), ("RTMIN+31", 10), ("RTMIN + 1", 10),
                              ("USR1,USR2", 10), ("", 10), (" sigusr2 ", 12), ("SIGUSR1", 10),
                              ("rtmin+3", rtmin + 3), (" RTMIN", rtmin)):
            with self.subTest(value):
                child = self.start(stderr=subprocess.DEVNULL, GPUCACHE_SIGNAL=value)
                self.churn(child, ALL_HANDLERS)
                done = tool("flush", str(child.pid))
                self.assertEqual((done.returncode, done.stderr), (NO_RECEIPT, ""))
                self.assertEqual(child.read(), f"own handler of {number}")
                self.was_asked_once(child)

    def test_sends_none_to_who_listens_to_none(self):
        for value in ("0", "off", "NO", "none ", "false"):
            with self.subTest(value):
                child = self.start(GPUCACHE_SIGNAL=value)
                self.churn(child, ALL_HANDLERS)
                self.refused(child, "it listens to no signal")
                self.churn(child)

    def test_looks_at_programs_with_any_name(self):
        with tempfile.TemporaryDirectory() as folder:
            odd = os.path.join(os.fsencode(folder), b"odd\xff")
            os.symlink(sys.executable, odd)
            child = self.start(program=odd)
            self.churn(child)
            done = tool("flush", str(child.pid))
            self.assertEqual((done.returncode, done.stderr), (NO_RECEIPT, ""))
            self.assertIn(f"PID {child.pid}: asked by SIGUSR1", done.stdout)
            self.was_asked_once(child)

    def test_leaves_processes_alone_that_would_not_survive(self):
        child = self.start()
        # It is python by the time it reads its input; it has not allocated yet.
        done = tool("flush", str(child.pid))
        self.assertEqual(done.returncode, 1)
        self.churn(child)
