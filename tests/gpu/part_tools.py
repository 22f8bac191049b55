# SPDX-License-Identifier: BSD-2-Clause
"""The shim beside a memory checker."""
import os
import re
import shutil

import suite as base


def beyond(suite):
    """A write past the end of a block: what the library's own debugging option says of it."""
    program = suite.small("beyond")
    found = suite.run([program], suite.shim_env(GPUCACHE_REDZONE="4K"))
    words = re.search(r"past the end of the block of 4000 bytes .* the first at offset 4000;",
                      found.err)
    suite.row("a write past the end, GPUCACHE_REDZONE", "", base.seconds(found.seconds), "",
              "ok: named" if found.rc == 0 and words
              else f"FAIL: exit {found.rc}, {found.err.strip()[-160:]}")
    return program


def checked(suite, tool, program, env):
    """Exit status and errors that the memory checker finds in the program."""
    result = suite.run([tool, "--tool", "memcheck", "--error-exitcode", "9", program], env,
                       timeout=90)
    count = re.search(r"ERROR SUMMARY: (\d+) error", result.out + result.err)
    return result.rc, int(count[1]) if count else -1


def sanitizer(suite):
    """A memory checker of NVIDIA's over a program under the shim. It sees a fault as bare with the
    driver's own allocations, and none inside the pool."""
    program = beyond(suite)
    tool = shutil.which("compute-sanitizer") or os.path.join(suite.cuda, "bin", "compute-sanitizer")
    if suite.simulate or not os.path.exists(tool):
        raise base.Skip("no compute-sanitizer")
    bare = checked(suite, tool, program, suite.bare_env)
    driver = checked(suite, tool, program, suite.shim_env(GPUCACHE_BACKING="driver"))
    pooled = checked(suite, tool, program, suite.shim_env())
    suite.row("a write past the end, BACKING=driver", verdict=f"ok: {driver[1]} errors"
              if bare[0] == driver[0] == 9
              and bare[1] == driver[1] else f"FAIL: (exit, errors) {bare} bare, {driver} under "
                                            f"the shim")
    suite.row("a write past the end, pooled", verdict="ok: unseen, as documented"
              if pooled == (0, 0) else
              f"FAIL: (exit, errors) {pooled}")
    program = suite.small("canary")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", program, "--rounds", "12"]
    bare = suite.run(command, suite.bare_env, timeout=90)
    if bare.rc != 0:
        raise base.Skip("compute-sanitizer does not run here: " +
                        (bare.out + bare.err).strip()[-120:])
    shim = suite.run(command, suite.shim_env(), timeout=90)
    count = re.search(r"ERROR SUMMARY: (\d+) error", shim.out + shim.err)
    verdict = "ok"
    if shim.rc:
        verdict = f"FAIL: exit {shim.rc}, {(shim.out + shim.err).strip()[-160:]}"
    if shim.rc == 0 and count:
        verdict = f"ok: {count[1]} errors"
    suite.row("memcheck over the canary", base.seconds(bare.seconds), base.seconds(shim.seconds),
              base.ratio(shim.seconds, bare.seconds), verdict)
