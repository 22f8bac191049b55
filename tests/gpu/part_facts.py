# SPDX-License-Identifier: BSD-2-Clause
"""What the driver says of memory of cuMemAlloc and does with it: bare and in both backings, fact
by fact."""
import os

SECTIONS = ("attributes", "managed", "domains")
BACKINGS = ("arena", "segment")


def differences(bare, shim):
    """Lines of two outputs that are not the same, by position."""
    a, b = bare.splitlines(), shim.splitlines()
    for i in range(max(len(a), len(b))):
        left, right = (lines[i] if i < len(lines) else "(nothing)" for lines in (a, b))
        if left != right:
            yield f"bare {left!r}, shim {right!r}"


def facts(suite):
    program = suite.small("facts")
    for section in SECTIONS:
        bare = suite.run([program, section], suite.bare_env)
        with open(os.path.join(suite.build, f"facts-{section}.txt"), "w") as file:
            file.write(bare.out)
        if suite.verbose:
            suite.log(bare.out)
        for backing in BACKINGS:
            shim = suite.run([program, section], suite.shim_env(GPUCACHE_BACKING=backing))
            for line in differences(bare.out, shim.out):
                suite.log(f"  {section}, {backing}: {line}")
            suite.compare(f"{section}, {backing}", bare, shim)
    # What a call gets by itself: the library trims such pools before a call fails.
    said = suite.run([program, "idle"], suite.bare_env)
    what, _, found = said.out.strip().partition(": ")
    suite.row(what or "idle in a stream-ordered pool", found or f"exit {said.rc}",
              verdict="measured" if found else "FAIL: no answer")
