#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Whether the stand-in runtime exports only what NVIDIA's does, each name at the same version node.
check_exports.py STAND_IN NVIDIA"""
import subprocess
import sys


def exports(path):
    lines = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return {line.split()[-1] for line in lines if " T " in line}


def main(stand_in, real):
    ours, theirs = exports(stand_in), exports(real)
    extra = sorted(ours - theirs)
    for name in extra:
        print(f"{name}: not exported so by NVIDIA's runtime")
    print(f"{len(ours)} exports, {len(extra)} of its own")
    return 1 if extra or len(ours) < 50 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
