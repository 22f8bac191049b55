# SPDX-License-Identifier: BSD-2-Clause
"""A flush empties the caches of Python packages, in every interpreter that is found here.

test_frameworks.py LIBRARY FOLDERS_OF_THE_SIMULATED_DRIVER_AND_RUNTIME EMBEDDING_PROGRAM SLOW_PLUGIN
Interpreters: this one, those of pyenv, and those that TEST_PYTHONS names (a list as of PATH)."""
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LIBRARY, FOLDERS, EMBED, SLOW = (os.path.realpath(sys.argv[1]), sys.argv[2],
                                 os.path.realpath(sys.argv[3]), os.path.realpath(sys.argv[4]))
HERE = os.path.dirname(os.path.realpath(__file__))
SCENES = os.path.join(HERE, "framework_scenes.py")


def version_of(python):
    done = subprocess.run([python, "-c", "import sys, ctypes; print(*sys.version_info[:2])"],
                          capture_output=True, text=True)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else (0, 0)


def pythons():
    """One of each release from 3.8 on."""
    named = [path for path in os.environ.get("TEST_PYTHONS", "").split(":") if path]
    found = {}
    for path in [*named, sys.executable,
                 *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))]:
        version = version_of(path)
        if version >= (3, 8):
            found.setdefault(version, path)
    return [found[version] for version in sorted(found)]


PYTHONS = pythons()


def libpython(python):
    """The interpreter's library; "": it has none."""
    code = ("import os, sysconfig as s; v = s.get_config_var; print(os.path.join("
            "v('LIBDIR'), v('INSTSONAME')) if v('Py_ENABLE_SHARED') else '')")
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


class Frameworks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = os.path.join(self.folder.name, "log")

    def start(self, *command, stdin=subprocess.DEVNULL, **env):
        env = {**os.environ, "LD_PRELOAD": LIBRARY, "LD_LIBRARY_PATH": FOLDERS, "SLOW_PLUGIN": SLOW,
               "GPUCACHE_LOG": f"info:{self.log}",
               "PYTHONDONTWRITEBYTECODE": "1", **env}
        child = subprocess.Popen(command, env=env, stdin=stdin, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(child.stderr.close)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def scene(self, python, name, **env):
        self.log = os.path.join(self.folder.name, f"log-{time.monotonic_ns()}")
        return self.start(python, SCENES, name, self.log, self.folder.name,
                          stdin=subprocess.PIPE, **env)

    def ends_well(self, child):
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, err), (0, ""), f"{err}{self.logged()[-1500:]}")
        return out

    def logged(self):
        try:
            with open(self.log, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def await_log(self, text, child, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.logged():
            self.assertIsNone(child.poll(), self.logged())
            self.assertLess(time.monotonic(), end, f"no {text!r} in: {self.logged()}")
            time.sleep(0.005)

    def test_acts(self):
        for python in PYTHONS:
            self.ends_well(self.scene(python, "acts"))

    def test_an_idle_program_gives_its_cache_back(self):
        for python in PYTHONS:
            child = self.scene(python, "idle")
            self.assertEqual(child.stdout.readline(), "ready\n")
            child.send_signal(signal.SIGUSR1)
            self.await_log("flush (signal): gave back 160.0 MiB", child)
            self.assertIn("torch: done, gave 160.0 MiB back", self.logged())
            self.ends_well(child)

    def test_who_holds_the_interpreters_lock_delays_no_flush(self):
        for python in PYTHONS:
            child = self.scene(python, "held")
            self.assertEqual(child.stdout.readline(), "ready\n")
            time.sleep(0.3)  # until it is inside the call
            child.send_signal(signal.SIGUSR1)
            self.await_log("flush (signal)", child)
            self.assertNotIn("torch", self.logged())
            self.assertEqual(child.stdout.readline(), "awake\n")
            self.await_log("flush (frameworks): gave back 160.0 MiB", child)
            self.ends_well(child)

    def test_forked_children_find_no_lock_taken(self):
        for python in PYTHONS:
            self.ends_well(self.scene(python, "forks"))

    def test_no_end_of_an_interpreter_is_disturbed(self):
        for python in PYTHONS:
            for delay in range(0, 600, 100):
                self.ends_well(self.scene(python, "ends", DELAY_US=str(delay), SLOW_US="50",
                                          BEFORE="yes" if delay % 200 else ""))

    def test_the_end_waits_for_a_package_that_is_at_work(self):
        for python in PYTHONS:
            for before in "", "yes":
                self.ends_well(self.scene(python, "ends", DELAY_US="50000", SLOW_US="300000",
                                          BEFORE=before))
                self.assertEqual(self.logged().count("torch: done"), 2 if before else 1)

    def test_off(self):
        self.ends_well(self.scene(PYTHONS[0], "off", GPUCACHE_FRAMEWORKS="0"))

    def test_an_embedded_interpreter(self):
        for python in PYTHONS:
            library = libpython(python)
            if library:
                home = os.path.dirname(os.path.dirname(os.path.realpath(library)))
                child = self.start(EMBED, library, PYTHONHOME=home)
                self.ends_well(child)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
