#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Instructions of a pair of malloc and free in libgpucache.so, counted by callgrind while
tests/bench/pair runs on the simulated driver. They repeat exactly, where nanoseconds do not. What
the library calls in libc counts as the library's (the locks); what it calls in the driver does not.

  instructions.py [--functions] [--at-most SIZE=N]... PAIR LIBRARY [OPTION OF PAIR]...

prints a line for each interface, mode and size. With --at-most, fails where a size takes more;
exits 77 where there is no valgrind."""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIP = 77
PAIRS, BATCHES = 400, 4


class Profile:
    """A callgrind output: instructions of each function itself, and of each call with all it
    calls."""

    def __init__(self, path):
        self.own = collections.Counter()      # (object, function)
        self.inside = collections.Counter()   # ((object, function), (object, function))
        with open(path, encoding="utf-8") as file:
            self.read(file)

    def read(self, file):
        place, callee_object, callee, is_call = {}, None, None, False
        for line in file:
            line = line.rstrip("\n")
            if line.startswith("ob="):
                place["ob"] = line[3:]
            elif line.startswith("fn="):
                place["fn"] = line[3:]
                callee_object = None
            elif line.startswith("cob="):
                callee_object = line[4:]
            elif line.startswith("cfn="):
                callee = (callee_object or place["ob"], line[4:])
                callee_object = None
            elif line.startswith("calls="):
                is_call = True
            elif re.match(r"[\d+*-]", line):
                cost = int(line.split()[1]) if len(line.split()) > 1 else 0
                here = (place["ob"], place["fn"])
                if is_call:
                    self.inside[here, callee] += cost
                else:
                    self.own[here] += cost
                is_call = False


def run(pair, library, options, scratch):
    out = os.path.join(scratch, "callgrind.out")
    command = ["valgrind", "--tool=callgrind", "--collect-atstart=no",
               "--toggle-collect=pair_measured",
               "--compress-strings=no", "--compress-pos=no", "--callgrind-out-file=" + out,
               pair, "--threads", "1", "--pairs", str(PAIRS), "--batches", str(BATCHES), *options]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE")}
    # Valgrind has 128 GiB of addresses for a program, its device memory included.
    # Without a page no other thread of the library works meanwhile.
    env.update(LD_PRELOAD=library, GPUCACHE_DIR="none", DEBUGINFOD_URLS="", SIM_DEVICES="1",
               SIM_CAPACITY="2G")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300,
                          check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-2000:]}")
    return Profile(out)


def bare(function):
    """Callgrind numbers the depths of a recursion: f'2."""
    return function.split("'")[0]


def count(profile, library):
    """{function: instructions of a pair}: the library's functions and what they call outside of it,
    but for the driver."""
    library = os.path.realpath(library)
    drivers = ("libcuda.so", "libcudart.so")
    by_function = collections.Counter()
    for (place, function), cost in profile.own.items():
        if os.path.realpath(place) == library:
            by_function[bare(function)] += cost / (PAIRS * BATCHES)
    for (here, callee), cost in profile.inside.items():
        if os.path.realpath(here[0]) == library and os.path.realpath(callee[0]) != library and \
                not os.path.basename(callee[0]).startswith(drivers):
            by_function[bare(callee[1])] += cost / (PAIRS * BATCHES)
    return by_function


def ceiling(words):
    """(size, instructions) of SIZE=N."""
    size, equals, most = words.partition("=")
    if not equals or not most.isdecimal():
        raise argparse.ArgumentTypeError(f"{words} is not SIZE=N")
    return size, int(most)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="each function's part")
    parser.add_argument("--sizes", default="512,4K,32K,256K,1M,2M,64M,256M")
    parser.add_argument("--api", default="driver")
    parser.add_argument("--mode", default="single")
    parser.add_argument("--at-most", action="append", default=[], metavar="SIZE=N", type=ceiling)
    parser.add_argument("pair")
    parser.add_argument("library")
    options, rest = parser.parse_known_args()
    if not shutil.which("valgrind"):
        print("no valgrind")
        return SKIP
    ceilings = dict(options.at_most)
    wrong = [f"{size}: not among the sizes" for size in ceilings
             if size not in options.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="instructions-") as scratch:
        for api in options.api.split(","):
            for mode in options.mode.split(","):
                for size in options.sizes.split(","):
                    arguments = ["--api", api, "--mode", mode, "--sizes", size, *rest]
                    profile = run(options.pair, options.library, arguments, scratch)
                    functions = count(profile, options.library)
                    each = sum(functions.values())
                    if not each:
                        sys.exit(f"{api} {mode} {size}: the library was not called")
                    print(f"api={api} mode={mode} size={size} instructions={each:.1f}", flush=True)
                    if options.functions:
                        for function, cost in functions.most_common():
                            print(f"    {cost:9.1f}  {function}")
                    if size in ceilings and each > ceilings[size]:
                        wrong.append(f"{api} {mode} {size}: {each:.1f} instructions, at most "
                                     f"{ceilings[size]} allowed")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
