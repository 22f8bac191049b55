# SPDX-License-Identifier: BSD-2-Clause
"""The shim beside other tools, and with more than one GPU."""
import os
import re
import shutil

import suite as base


def sanitizer(suite):
    """A memory checker of NVIDIA's over a program under the shim."""
    tool = shutil.which("compute-sanitizer") or os.path.join(suite.cuda, "bin", "compute-sanitizer")
    if suite.simulate or not os.path.exists(tool):
        raise base.Skip("no compute-sanitizer")
    program = suite.compile("canary", ["canary.c", "canary_round.c", "canary_pool.c", "driver.c"],
                            "-Wno-overlength-strings")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", program, "--rounds", "12"]
    bare = suite.run(command, suite.bare_env, timeout=90)
    if bare.rc != 0:
        raise base.Skip("compute-sanitizer does not run here: " + (bare.out + bare.err).strip()[-120:])
    shim = suite.run(command, suite.shim_env(), timeout=90)
    count = re.search(r"ERROR SUMMARY: (\d+) error", shim.out + shim.err)
    verdict = "ok" if shim.rc == 0 else f"FAIL: exit {shim.rc}, {(shim.out + shim.err).strip()[-160:]}"
    if shim.rc == 0 and count:
        verdict = f"ok: {count[1]} errors"
    suite.row("memcheck over the canary", base.seconds(bare.seconds), base.seconds(shim.seconds),
              base.ratio(shim.seconds, bare.seconds), verdict)


def peers(suite):
    """Two GPUs: a copy and a kernel reach the other one's blocks, allocated before and after access was
    given, and after a flush."""
    program = suite.compile("peers", ["peers.c", "driver.c"], "-Wno-overlength-strings")
    env = {"SIM_DEVICES": "2"} if suite.simulate else {}
    suite.compare("peer access", *suite.bare_and_shim([program], env=env))
