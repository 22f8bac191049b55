#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Driver calls that found no memory beside idle memory, and were made again, are counted.

test_retries.py LIBRARY FOLDERS_OF_THE_SIMULATED_DRIVER PROGRAM"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

LIBRARY, FOLDERS, PROGRAM = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3]


def retried_calls(capacity):
    """What the scene's process counted on one device of so much memory. It takes each kind of
    memory once after the device was filled and freed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        env = {**os.environ, "LD_PRELOAD": LIBRARY, "LD_LIBRARY_PATH": FOLDERS,
               "GPUCACHE_STATS": f"exit:{path}", "SIM_CAPACITY": capacity, "SIM_CTX_BYTES": "100M",
               "SIM_OBJECT_BYTES": "8M", "SIM_DEVICES": "1"}
        done = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, timeout=60)
        with open(path, encoding="utf-8") as file:
            return done.returncode, json.load(file)["counters"]["num_retried_calls"]


class Retries(unittest.TestCase):
    def test_calls_that_are_made_again_are_counted(self):
        rc, count = retried_calls("2G")
        self.assertEqual(rc, 0)
        # 15 kinds at least once each, 10 refused calls, and 20 rounds of threads
        self.assertGreaterEqual(count, 45)
        self.assertLess(count, 400)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
