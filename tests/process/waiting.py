# SPDX-License-Identifier: BSD-2-Clause
"""A test case that waits for what another process does, with what it needs for that."""

import os
import random
import tempfile
import time
import unittest


class Waiting(unittest.TestCase):
    def scratch(self):
        """A folder for the time of the test."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def shared_gpu(self, mode=0o600):
        """The name of a simulated GPU that several processes share (SIM_SHARED)."""
        name = f"test-{os.getpid()}-{random.randrange(1 << 30)}"
        path = f"/dev/shm/simulated-gpu-{name}"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR))
        os.chmod(path, mode)
        self.addCleanup(os.unlink, path)
        return name

    def wait_for(self, condition, what, seconds=60):
        """Polls until the condition holds, and returns its value. Fails with `what` after that
        time."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)
        return value
