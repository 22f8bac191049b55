# SPDX-License-Identifier: BSD-2-Clause
"""A flush empties the caches of Python packages, in every interpreter that is found here.

test_frameworks.py LIBRARY FOLDERS_OF_THE_SIMULATED_DRIVER_AND_RUNTIME EMBEDDING_PROGRAM SLOW_PLUGIN
LONG_NEAR
Interpreters: this one, those of pyenv, and those that TEST_PYTHONS names (a list as of PATH)."""
import concurrent.futures
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import programs

LIBRARY, FOLDERS = os.path.realpath(sys.argv[1]), sys.argv[2]
EMBED, SLOW, LONG_NEAR = map(os.path.realpath, sys.argv[3:6])
HERE = os.path.dirname(os.path.realpath(__file__))
SCENES = os.path.join(HERE, "framework_scenes.py")
FORKS = os.path.join(HERE, "framework_forks.py")


def build_of(python):
    """(major, minor, free-threaded); (0, 0, 0): it cannot be used."""
    code = ("import sys, sysconfig as s, ctypes; "
            "print(*sys.version_info[:2], s.get_config_var('Py_GIL_DISABLED') or 0)")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else (0, 0, 0)


def pythons():
    """One of each release from 3.8 on, with the interpreter's lock and without."""
    named = [path for path in os.environ.get("TEST_PYTHONS", "").split(":") if path]
    found = {}
    for path in [*named, sys.executable,
                 *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))]:
        build = build_of(path)
        if build >= (3, 8, 0):
            found.setdefault(build, path)
    return [found[build] for build in sorted(found)]


PYTHONS = pythons()


def libpython(python):
    """The interpreter's shared library; None: it is not here."""
    code = "import sysconfig as s; print(s.get_config_var('LIBDIR'))"
    folder = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
    name = "libpython{}.{}.so.1.0".format(*build_of(python))
    return next(iter(glob.glob(os.path.join(folder, name)) +
                     glob.glob(os.path.join(folder, "*", name))), None)


def prefix_of(python):
    return subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"],
                          capture_output=True, text=True).stdout.strip()


class Frameworks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def each(self, play):
        """Plays it with every interpreter, some at once."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(play, python) for python in PYTHONS]:
                done.result()

    def start(self, *command, **env):
        """The command; LOG in it stands for the library's log, FOLDER for one of its own."""
        folder = tempfile.mkdtemp(dir=self.folder.name)
        log = os.path.join(folder, "log")
        env = {**os.environ, "LD_PRELOAD": LIBRARY, "LD_LIBRARY_PATH": FOLDERS,
               "SLOW_PLUGIN": SLOW, "GPUCACHE_LOG": f"debug:{log}", "PYTHONDONTWRITEBYTECODE": "1",
               **env}
        words = [{"LOG": log, "FOLDER": folder}.get(word, word) for word in command]
        child = programs.Talker(words, env)
        child.log = log
        self.addCleanup(child.end)
        return child

    def scene(self, python, name, **env):
        program = FORKS if name.startswith("forks") else SCENES
        return self.start(python, program, name, "LOG", "FOLDER", **env)

    def ends_well(self, child):
        self.assertEqual(child.finish(), (0, ""), self.logged(child)[-1500:])

    def logged(self, child):
        return programs.read(child.log)

    def await_log(self, text, child, seconds=60):
        """Until the log matches the pattern."""
        end = time.monotonic() + seconds
        while not re.search(text, self.logged(child)):
            self.assertIsNone(child.process.poll(), self.logged(child))
            self.assertLess(time.monotonic(), end, f"no {text!r} in: {self.logged(child)}")
            time.sleep(0.005)

    def each_ends_well(self, name, **env):
        self.each(lambda python: self.ends_well(self.scene(python, name, **env)))

    def test_acts(self):
        self.each_ends_well("acts")

    def test_an_idle_program_gives_its_cache_back(self):
        def play(python):
            child = self.scene(python, "idle")
            self.assertEqual(child.read(), "ready")
            os.kill(child.pid, signal.SIGUSR1)
            self.await_log(r"flush \(frameworks\): gave back 160\.0 MiB", child)
            self.assertIn("torch: done, gave 160.0 MiB back", self.logged(child))
            self.ends_well(child)
        self.each(play)

    def test_a_holder_of_the_interpreters_lock_delays_no_flush(self):
        def play(python):
            child = self.scene(python, "held")
            self.assertEqual([child.read(), child.read()], ["ready", "inside"])
            os.kill(child.pid, signal.SIGUSR1)
            self.await_log(r"flush \(signal\)", child)
            self.assertNotIn("torch", self.logged(child))
            child.process.stdin.write("x")
            child.process.stdin.flush()
            self.assertEqual(child.read(), "awake")
            self.await_log(r"flush \(frameworks\): gave back 160\.0 MiB", child)
            self.ends_well(child)
        self.each(play)

    def test_forked_children_find_no_lock_taken(self):
        self.each_ends_well("forks")

    def test_a_fork_ends_no_wait_for_another(self):
        self.each_ends_well("forks_together")

    def test_children_are_forked_in_no_moment_that_would_hang_them(self):
        self.each_ends_well("forks_near", LD_PRELOAD=f"{LIBRARY}:{LONG_NEAR}")

    def test_no_fork_is_held_up_while_allocations_are_traced(self):
        self.each_ends_well("forks_traced", PYTHONTRACEMALLOC="1")

    def test_the_end_of_tracing_is_not_disturbed(self):
        self.each_ends_well("stops_tracing")

    def test_no_end_of_an_interpreter_is_disturbed(self):
        for delay, before in ("0", ""), ("150", "yes"), ("400", ""):
            self.each_ends_well("ends", DELAY_US=delay, SLOW_US="50", BEFORE=before)

    def test_the_end_waits_for_a_package_that_is_at_work(self):
        for before in "", "yes":
            self.each_ends_well("ends", SLOW_US="300000", BEFORE=before)

    def test_off(self):
        self.ends_well(self.scene(PYTHONS[0], "off", GPUCACHE_FRAMEWORKS="0"))

    def test_an_embedded_interpreter(self):
        def play(python):
            library = libpython(python)
            if library:
                self.ends_well(self.start(EMBED, library, PYTHONHOME=prefix_of(python)))
        self.each(play)
