#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""NVIDIA's own runtimes on a machine without a driver. A program linked with each of them has to
say the same bare and with the cache preloaded. real.py CC OBJECT [RUN_PAIR ARGUMENT..]; the
runtimes are those of the folder that TEST_CUDARTS names (scripts/fetch-cudarts). Exit status: 0 all
equal, 1 not, 77 no runtimes, or a driver."""
import glob
import os
import subprocess
import sys
import tempfile

SKIP = 77
RUN_PAIR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "run_pair.py")


def main(compiler, archive, *options):
    folder = os.environ.get("TEST_CUDARTS")
    if not folder:
        print("skipped: TEST_CUDARTS is not set (scripts/fetch-cudarts makes such a folder)")
        return SKIP
    folder = os.path.abspath(folder)
    runtimes = sorted(glob.glob(os.path.join(folder, "*", "libcudart.so.*")) +
                      glob.glob(os.path.join(folder, "*", "libcudart_static.a")))
    if not runtimes:
        print(f"no runtime in {folder}")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory(prefix="real-") as scratch:
        for runtime in runtimes:
            program = os.path.join(scratch, "program")
            subprocess.run([compiler, "-o", program, "-Wl,--whole-archive", archive,
                            "-Wl,--no-whole-archive", runtime,
                            f"-Wl,-rpath,{os.path.dirname(runtime)}", "-lpthread", "-ldl", "-lrt"],
                           check=True)
            result = subprocess.run([sys.executable, RUN_PAIR, *options, "--", program],
                                    capture_output=True,
                                    text=True)
            print(f"{os.path.relpath(runtime, folder)}: {result.stdout.strip()}")
            if result.returncode == SKIP:
                return SKIP
            failed += result.returncode != 0
    print(f"{len(runtimes)} runtimes, {failed} differ")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
