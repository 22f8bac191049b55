# SPDX-License-Identifier: BSD-2-Clause
"""How long a process takes to leave beside a call of the driver that takes a minute."""
import os
import subprocess
import sys
import time

import programs
import waiting

LIBRARY, FOLDER, LEAVES = (os.path.realpath(path) for path in sys.argv[1:4])
# The exit waits 10 s for a call that ends soon (shim/driver/call_scope.c), and 0.1 s else.
SOON_S = 8


class Leaving(waiting.Waiting):
    def leave(self, way, slow=None, **options):
        if slow:
            options.update({"SIM_REALTIME": "1", f"SIM_COST_{slow}": "60000000000"})
        start = time.monotonic()
        done = subprocess.run([LEAVES, way, *([slow] if slow else [])], check=False, timeout=30,
                              env=programs.environ(LIBRARY, FOLDER, GPUCACHE_DIR=self.scratch(),
                                                   **options))
        self.assertEqual(done.returncode, 5)
        self.assertLess(time.monotonic() - start, SOON_S)

    def test_a_redzone_that_is_written_behind_work(self):
        self.leave("alone", slow="cuStreamSynchronize", GPUCACHE_REDZONE="256")

    def test_a_segment_that_is_given_back_behind_work(self):
        self.leave("flush", slow="cuStreamSynchronize", GPUCACHE_BACKING="segment")

    def test_a_child_does_not_wait_for_calls_of_its_parent(self):
        """The handler of fork() does not run there, so the library's state is the parent's."""
        self.leave("child", slow="cuMemCreate")

    def test_a_handler_that_leaves_in_the_middle_of_the_pool(self):
        """The report needs locks that this very thread may hold: six times in ten."""
        for _ in range(8):
            self.leave("signal", GPUCACHE_STATS="exit:/dev/null", SIM_HAZARD="off",
                       GPUCACHE_LOG="off")
