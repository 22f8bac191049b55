#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Lets spin look at every state of a model: check.py MODEL [--bites] [-Og] [-DNAME..]. With --bites
a broken promise has to be found, else none. Without spin, or the C compiler that it needs, the test
skips (77)."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

DEPTH = 20000
MEMORY_MIB = 2048


def explore(model, defines, optimize, bites, folder):
    """What the search says."""
    subprocess.run(["spin", "-a", *defines, model], cwd=folder, check=True, stdout=subprocess.PIPE,
                   stderr=subprocess.STDOUT)
    # Safety: assertions and states that nothing leads out of. To optimize what spin wrote takes
    # longer than most searches, so that is asked for. Otherwise clang compiles in half of gcc's
    # time. To store states as they are (NOCOMP) takes a fifth less time than to compress them.
    compiler = "clang" if optimize == "-O0" and shutil.which("clang") else "cc"
    subprocess.run([compiler, optimize, "-w", "-DSAFETY", "-DNOCOMP", f"-DMEMLIM={MEMORY_MIB}",
                    "-o", "pan", "pan.c"], cwd=folder, check=True)
    return subprocess.run(["./pan", "-n", f"-m{DEPTH}", "-w22" if bites else "-w24"], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def main():
    model = os.path.abspath(sys.argv[1])
    bites = "--bites" in sys.argv
    defines = [arg for arg in sys.argv[2:] if arg.startswith("-D")]
    optimize = "-Og" if "-Og" in sys.argv else "-O0"
    if not shutil.which("spin") or not shutil.which("cc"):
        print("no spin, or no C compiler")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        said = explore(model, defines, optimize, bites, folder)
        print(said)
        errors = re.search(r"errors: (\d+)", said)
        cut_off = "Search not completed" in said and not bites
        if not errors or cut_off or "max search depth too small" in said:
            print("the search did not come to its end")
            return 1
        if bites:
            found = "assertion violated" in said
            print("noticed" if found else "nobody noticed")
            return 0 if found else 1
        return 0 if errors.group(1) == "0" else 1


if __name__ == "__main__":
    sys.exit(main())
