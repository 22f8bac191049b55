# SPDX-License-Identifier: BSD-2-Clause
"""Traces that the library's recorder writes, for tests with the arguments TOOL TRACE_WRITER."""
import os
import subprocess
import sys

from fake import Scratch

WRITER = os.path.realpath(sys.argv[2])


class Traces(Scratch):
    def write(self, scene, status=0, **more):
        done = subprocess.run([WRITER, scene, more.pop("path", self.path)], timeout=100,
                              stderr=subprocess.PIPE, text=True, check=False, **more)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr
