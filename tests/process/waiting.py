# SPDX-License-Identifier: BSD-2-Clause
"""A test case that waits for what another process does."""

import time
import unittest


class Waiting(unittest.TestCase):
    def wait_for(self, condition, what, seconds=60):
        """Polls until the condition holds, and returns its value. Fails with `what` after that
        time."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)
        return value
