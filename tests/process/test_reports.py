# SPDX-License-Identifier: BSD-2-Clause
"""The report of GPUCACHE_STATS=exit in every way a process ends. Return, exit() and quick_exit()
write it once, whichever thread calls. _exit(), a signal, abort() and a forked child write none. A
file has the state of a program that runs on, also after a signal killed it."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import programs
import waiting
from programs import read

LIBRARY, FOLDERS, PROGRAM = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3]


def run(*words, stdout=programs.PIPE, stderr=programs.PIPE, **options):
    return subprocess.run([PROGRAM, *words], stdout=stdout, stderr=stderr, text=True, timeout=60,
                          env=programs.environ(LIBRARY, FOLDERS, **options), check=False)


def end_by(way):
    """(exit status, stderr, text of the report file or None)"""
    done, text = programs.reported([PROGRAM, way], programs.environ(LIBRARY, FOLDERS))
    return done.returncode, done.stderr, text


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# What fexecve does. argv: the file, how the kernel may name it (%f: the descriptor, %p: the
# process; "" for a descriptor alone), and the program's arguments.
BY_DESCRIPTOR = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.set_inheritable(fd, True)
path = sys.argv[2].replace("%f", str(fd)).replace("%p", str(os.getpid()))
os.execve(path if path else fd, sys.argv[1:2] + sys.argv[3:], os.environ)
"""


class Reports(waiting.Waiting):
    def setUp(self):
        self.folder = self.scratch()

    def test_a_file_that_cannot_be_written_is_named(self):
        for name, value, what in (("GPUCACHE_STATS", "exit", "report"),
                                  ("GPUCACHE_LOG", "debug", "log")):
            with self.subTest(name):
                path = "/no/such/folder/%p"
                said = self.run_with(**{name: f"{value}:{path}"}).stderr
                words = f"gpucache: warning: the {what} cannot be written to {path}"
                self.assertEqual(said.count(words), 1, said)

    def run_titled(self, command, **options):
        """The report of a program that has written a title over its name; None: it is off."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                              env=programs.environ(LIBRARY, FOLDERS, GPUCACHE_STATS="exit-json",
                                                   **options), check=False)
        self.assertEqual(done.returncode, 5, done.stderr)
        return json.loads(done.stderr) if done.stderr else None

    def test_the_name_is_the_one_of_the_start(self):
        name = os.path.basename(PROGRAM)
        link, script = (os.path.join(self.folder, each) for each in ("trainer", "serve"))
        os.symlink(os.path.abspath(PROGRAM), link)
        write(script, f"#!{link} exit titled\n")
        os.chmod(script, 0o700)
        start = [sys.executable, "-c", BY_DESCRIPTOR]
        # What was started, and the file that runs.
        for command, names in (([PROGRAM, "exit titled"], [name]),
                               ([link, "exit titled"], ["trainer", name]),
                               ([script], ["serve", name]),
                               ([*start, PROGRAM, "", "exit titled"], [name]),
                               *(([*start, PROGRAM, path, "exit titled"], [name]) for path in (
                                   "/dev/fd/%f", "/proc/self/fd/%f", "/proc/%p/fd/%f",
                                   "/proc/thread-self/fd/%f", "/proc/%p/task/%p/fd/%f")),
                               ([*start, script, ""], [name])):
            self.assertEqual(self.run_titled(command)["program"], names[0], command)
            for each in names:
                self.assertIsNotNone(self.run_titled(command, GPUCACHE_ONLY=each), each)
                self.assertIsNone(self.run_titled(command, GPUCACHE_SKIP=f"x,{each[:3]}*"))
            self.assertIsNone(self.run_titled(command, GPUCACHE_ONLY="ENGINE*,worker*,8"))
            self.assertIsNotNone(self.run_titled(command, GPUCACHE_SKIP="ENGINE*,8,*orker*"))

    def test_figures_have_no_decimal_comma_of_the_locale(self):
        if shutil.which("localedef") is None or subprocess.run(
                ["localedef", "-i", "de_DE", "-f", "UTF-8", f"{self.folder}/de_DE.UTF-8"],
                check=False, capture_output=True).returncode > 1:
            self.skipTest("no locale of de_DE (localedef)")
        done = run("exit locale", LOCPATH=self.folder, LC_ALL="de_DE.UTF-8", GPUCACHE_LOG="info",
                   GPUCACHE_STATS="exit")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertRegex(done.stderr, r"flush \(.*\): gave back \d+\.0 MiB in \d+\.\d ms")
        self.assertNotRegex(done.stderr, r"\d,\d\d? [A-Za-z]")

    def run_with(self, **options):
        done = run("exit", **options)
        self.assertEqual(done.returncode, 5)
        return done

    def test_no_trap_in_a_folder_of_everybody_is_written_through(self):
        for trap in (os.symlink, os.link):
            for name, value, words in (
                    ("GPUCACHE_STATS", "exit:", "the report cannot be written to"),
                    ("GPUCACHE_LOG", "debug:", "the log cannot be written to")):
                with self.subTest(f"{name} {trap.__name__}"), \
                        tempfile.TemporaryDirectory() as folder:
                    os.chmod(folder, 0o1777)
                    victim, path = os.path.join(folder, "victim"), os.path.join(folder, "report")
                    write(victim, "mine\n")
                    trap(victim, path)
                    done = self.run_with(**{name: value + path})
                    self.assertEqual(read(victim), "mine\n")
                    warning = f"gpucache: warning: {words} {path}"
                    self.assertEqual(done.stderr.count(warning), 1, done.stderr)

    def test_a_link_in_a_folder_of_ones_own_is_followed_and_nothing_cut_off(self):
        target, path = os.path.join(self.folder, "target"), os.path.join(self.folder, "link")
        write(target, "before\n")
        os.symlink("target", path)
        self.assertEqual(self.run_with(GPUCACHE_STATS=f"exit:{path}").stderr, "")
        self.assertTrue(read(target).startswith("before\n"))
        self.assertEqual(read(target).count("libgpucache"), 1)

    def test_a_file_is_made_anew(self):
        path = os.path.join(self.folder, "report.json")
        write(path, "x" * 100000)
        self.run_with(GPUCACHE_STATS=f"exit:{path}")
        json.loads(read(path))

    def test_devices_and_pipes_take_a_report(self):
        self.assertEqual(self.run_with(GPUCACHE_STATS="exit:/dev/null").stderr, "")
        report = self.run_with(GPUCACHE_STATS="exit:/dev/stdout").stdout
        self.assertEqual(report.count("libgpucache"), 1)
        for name, file_of in (("/dev/stderr", "stderr"), ("/dev/stdout", "stdout"),
                              ("/proc/self/fd/2", "stderr")):
            with self.subTest(name), tempfile.TemporaryFile("w+", encoding="utf-8") as file:
                file.write("said before\n")
                file.flush()
                self.run_with(GPUCACHE_STATS=f"exit:{name}", **{file_of: file})
                file.seek(0)
                text = file.read()
                self.assertTrue(text.startswith("said before\n"), text)
                self.assertEqual(text.count("libgpucache"), 1)
        path = os.path.join(self.folder, "pipe")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.assertEqual(self.run_with(GPUCACHE_STATS=f"exit:{path}").stderr, "")
        self.assertIn(b"libgpucache", os.read(reader, 65536))

    def test_ends_that_run_handlers_write_one(self):
        for way in ("return", "exit", "quick_exit", "thread"):
            with self.subTest(way):
                rc, err, text = end_by(way)
                self.assertEqual((rc, err), (0 if way == "return" else 5, ""))
                # Nothing of a second report behind the first.
                self.assertGreater(json.loads(text)["pools"][0]["num_allocs"], 0)

    def test_ends_that_run_none_write_none(self):
        for way, status in (("_exit", 5), ("abort", -signal.SIGABRT), ("kill", -signal.SIGKILL)):
            with self.subTest(way):
                self.assertEqual(end_by(way), (status, "", None))

    def test_while_it_runs_a_file_has_its_state_also_after_it_was_killed(self):
        def start(path):
            stats = "exit" + (":" + path if path else "")
            program = programs.Talker([PROGRAM, "wait"], programs.environ(LIBRARY, FOLDERS,
                                                                          GPUCACHE_STATS=stats))
            self.addCleanup(program.end)
            return program.process

        names = ("term", "kill", "ends", "text", "link", "pipe")
        path = {name: os.path.join(self.folder, name + ".json") for name in names}
        path["text"] = os.path.join(self.folder, "text")
        os.symlink("target", path["link"])
        os.mkfifo(path["pipe"])
        reader = os.open(path["pipe"], os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        program = {name: start(path[name]) for name in names}
        program["stderr"] = start("")
        self.wait_for(lambda: all(read(path[name]).endswith("\n") for name in names[:4]), "no file")
        self.assertIn("still running then", read(path["text"]))
        self.assertEqual(read(os.path.join(self.folder, "target")), "", "nothing behind a link")
        self.assertEqual(os.read(reader, 9), b"", "nobody opened the pipe")
        program["term"].terminate()
        program["kill"].kill()
        self.assertEqual(program["term"].wait(60), -signal.SIGTERM)
        self.assertEqual(program["kill"].wait(60), -signal.SIGKILL)
        for name in ("term", "kill"):
            report = json.loads(read(path[name]))
            self.assertTrue(report["running"])
            self.assertGreater(report["pools"][0]["num_allocs"], 0)
        for name in ("ends", "text", "stderr"):
            _, said = program[name].communicate(timeout=60)
            self.assertEqual((program[name].returncode, said.count("libgpucache")),
                             (0, name == "stderr"))
            self.assertNotIn("still running", said)
        self.assertFalse(json.loads(read(path["ends"]))["running"])
        self.assertNotIn("still running", read(path["text"]))

    def test_a_forked_child_leaves_it_to_its_parent(self):
        for way in ("child exit", "child exit, bare fork"):
            with self.subTest(way):
                self.assertEqual(end_by(way)[::2], (7, None))
        rc, _, text = end_by("child exit, then exit")
        self.assertEqual(rc, 5)
        json.loads(text)

    def test_to_stderr_it_is_one_text(self):
        said = self.run_with(GPUCACHE_STATS="exit").stderr
        again = run("quick_exit", GPUCACHE_STATS="exit").stderr
        self.assertEqual(said.count("gpucache"), again.count("gpucache"))
        self.assertGreater(said.count("gpucache"), 0)
