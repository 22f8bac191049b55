# SPDX-License-Identifier: BSD-2-Clause
"""Values of options that make no sense, in a process. Each has a meaning of its own, or gets a
warning of one line and the process works as without it."""
import concurrent.futures
import os
import sys
import tempfile
import unittest

import programs

LIBRARY, FOLDERS = os.path.realpath(sys.argv[1]), sys.argv[2]
PROGRAM = os.path.realpath(sys.argv[3])
FIGURES = ("num_allocs", "num_frees", "num_flushes", "reserved_bytes", "reserved_peak_bytes",
           "backing")

# What "none" means where it is not refused: as the option's default, but for these.
REFUSE_NONE = {"GPUCACHE_BACKING", "GPUCACHE_REUSE", "GPUCACHE_ONLY", "GPUCACHE_SKIP"}
SWITCHED_OFF = {"GPUCACHE"}
NO_REPORT = {"GPUCACHE_STATS"}
OPTIONS = """GPUCACHE_MAX_RESERVED GPUCACHE_MAX_IDLE GPUCACHE_MIN_FREE GPUCACHE_IDLE_TIMEOUT
GPUCACHE_MIN_BLOCK GPUCACHE_MAX_BLOCK GPUCACHE_PREALLOC GPUCACHE_BACKING GPUCACHE_REUSE
GPUCACHE_SYNC_FREE GPUCACHE GPUCACHE_ONLY GPUCACHE_SKIP GPUCACHE_SIGNAL GPUCACHE_EMPTY_CACHE
GPUCACHE_EMPTY_CACHE_FILE GPUCACHE_MEMINFO GPUCACHE_REDZONE GPUCACHE_STATS GPUCACHE_LOG""".split()


def play(way="exit later", **options):
    """(lines on stderr, some figures of the report or None)"""
    env = programs.environ(LIBRARY, FOLDERS)
    with tempfile.TemporaryDirectory() as folder:
        done, text = programs.reported([PROGRAM, way], {**env, **options}, cwd=folder)
    if done.returncode != 5:
        raise AssertionError(f"{options}: ended with {done.returncode}\n{done.stderr}")
    pool = programs.pool_of(text) if text else None
    return done.stderr.splitlines(), pool and {name: pool[name] for name in FIGURES}


def play_each(ways):
    """Several at a time, because most of the time they sleep: (way, options) of each."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda how: play(how[0], **how[1]), ways))


class Options(unittest.TestCase):
    def test_none_is_refused_or_means_what_the_default_does(self):
        usual = play()
        self.assertEqual(usual[0], [])
        self.assertGreater(usual[1]["reserved_bytes"], 0)
        played = play_each([("exit later", {name: "none"}) for name in OPTIONS])
        for name, (said, figures) in zip(OPTIONS, played):
            with self.subTest(name):
                if name in REFUSE_NONE:
                    self.assertEqual(len(said), 1)
                    self.assertIn(f"gpucache: warning: {name}=none is not understood", said[0])
                else:
                    self.assertEqual(said, [])
                self.assertEqual(figures, None if name in SWITCHED_OFF | NO_REPORT else usual[1])

    def test_the_table_of_options_is_whole(self):
        said, _ = play("exit", **{
            name: "?!" for name in OPTIONS if name not in (
                "GPUCACHE_LOG", "GPUCACHE_ONLY", "GPUCACHE_SKIP", "GPUCACHE_EMPTY_CACHE_FILE")})
        self.assertEqual(len(said), len(OPTIONS) - 4, said)
        self.assertNotIn("there is no option", "".join(said))

    def test_an_interval_may_be_as_long_as_the_clock(self):
        usual = play()
        for value in ("every:1h", "every:5124095h", "every:18446744073s",
                      "every:18446744073.709551s"):
            with self.subTest(value):
                self.assertEqual(play(GPUCACHE_EMPTY_CACHE=value), usual)
        for value in ("5124095h", "18446744073s"):
            with self.subTest(value):
                self.assertEqual(play(GPUCACHE_IDLE_TIMEOUT=value), usual)

    def test_none_of_its_file_is_no_file(self):
        said, figures = play("exit later, touch none", GPUCACHE_EMPTY_CACHE_FILE="none")
        self.assertEqual((said, figures["num_flushes"]), ([], 0))

    def test_looks_at_the_file_do_not_postpone_the_idle_timeout(self):
        # The pools are asked every 225 ms, the file is looked at every 200 ms.
        usual = play()[1]
        said, figures = play("exit, linger", GPUCACHE_IDLE_TIMEOUT="1800ms",
                             GPUCACHE_EMPTY_CACHE_FILE="file")
        self.assertEqual(said, [])
        self.assertLess(figures["reserved_bytes"], usual["reserved_bytes"])

    def test_what_the_machine_has_not_is_warned_of_once(self):
        usual = play()[1]
        cases = (
            ("GPUCACHE_PREALLOC", "100T", ", but device 0 gave only 0.0 MiB", True),
            ("GPUCACHE_PREALLOC", "16777215T", ", but device 0 gave only 0.0 MiB", True),
            ("GPUCACHE_PREALLOC", "18446744073709551615",
             ", but device 0 gave only 0.0 MiB", True),
            ("GPUCACHE_PREALLOC", "100%", ", but device 0 gave only ", None),
            ("GPUCACHE_MIN_FREE", "100T", "all idle memory is given back", False),
            ("GPUCACHE_MIN_FREE", "100%", "all idle memory is given back", False),
            ("GPUCACHE_MIN_BLOCK", "100T", "every request goes to the driver", False),
            ("GPUCACHE_REDZONE", "100T", "no bytes are kept behind blocks", True),
            ("GPUCACHE_EMPTY_CACHE", "device=9", "there is no device 9", True),
            ("GPUCACHE_EMPTY_CACHE", "oom,device=9", "there is no device 9", True),
            ("GPUCACHE_EMPTY_CACHE_FILE", "/no/such/folder/file",
             ": its folder does not exist", True),
            ("GPUCACHE_EMPTY_CACHE_FILE", "folder/file",
             ": its folder does not exist", True))
        played = play_each([("exit later, two contexts", {name: value})
                            for name, value, _, _ in cases])
        for (name, value, words, as_usual), (said, figures) in zip(cases, played):
            with self.subTest(f"{name}={value}"):
                if not said or as_usual not in (None, figures == usual):
                    # On a busy machine what the control thread does comes later.
                    said, figures = play("exit, linger, two contexts", **{name: value})
                self.assertEqual(len(said), 1, said)
                self.assertTrue(said[0].startswith(f"gpucache: warning: {name}"), said[0])
                self.assertIn(words, said[0])
                if as_usual is not None:
                    self.assertEqual(figures == usual, as_usual, figures)

    def test_what_the_machine_has_is_not_warned_of(self):
        for name, value in (("GPUCACHE_PREALLOC", "64M"), ("GPUCACHE_MIN_FREE", "10%"),
                            ("GPUCACHE_MIN_BLOCK", "2K"),
                            ("GPUCACHE_REDZONE", "4K"), ("GPUCACHE_EMPTY_CACHE", "oom,device=0"),
                            ("GPUCACHE_EMPTY_CACHE_FILE", "file"),
                            ("GPUCACHE_EMPTY_CACHE_FILE", "/file")):
            with self.subTest(f"{name}={value}"):
                self.assertEqual(play("exit", **{name: value})[0], [])

    def test_a_setenv_that_keeps_the_value_is_no_request(self):
        way = "exit, request device=9 unless set"
        self.assertEqual(len(play(way)[0]), 1)
        self.assertEqual(play(way, GPUCACHE_EMPTY_CACHE="oom")[0], [])
        self.assertEqual(play(way, GPUCACHE_EMPTY_CACHE="")[0], [])

    def test_a_request_for_a_device_that_is_not_there_is_warned_of_once(self):
        said, _ = play("exit, request device=9 twice")
        self.assertEqual(len(said), 1, said)
        self.assertIn("gpucache: warning: GPUCACHE_EMPTY_CACHE: there is no device 9", said[0])
