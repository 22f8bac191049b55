# SPDX-License-Identifier: BSD-2-Clause
"""The recorder on the simulated driver, before libgpucache and by itself.

record_test.py RECORD.so LIBGPUCACHE.so SIM_LIB_DIR REPLAY PROGRAM

The program prints the same as without. Each allocation and free is recorded once, and the replay
counts the same live memory at the peak as the pool."""
import collections
import json
import os
import subprocess
import sys
import tempfile


def run(program, **env):
    done = subprocess.run([program], env={**os.environ, **env}, capture_output=True, text=True,
                          timeout=60)
    return done.returncode, done.stdout, done.stderr


def recorded(path):
    """How many rows of each action; and whether frees name what is live."""
    counts, live = collections.Counter(), set()
    with open(path) as file:
        for line in list(file)[1:]:
            _, _, action, pointer, size, _ = line.strip().split(",")
            counts[action] += int(size) if action == "launch" else 1
            if action == "allocate":
                assert pointer not in live, f"{pointer} is live twice"
                live.add(pointer)
            elif action == "free":
                live.remove(pointer)
    return counts


def main():
    recorder, library, sim, replay, program = sys.argv[1:]
    env = {"LD_LIBRARY_PATH": sim, "GPUCACHE_DIR": "none"}
    plain = run(program, **env)
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        alone, both, report = (os.path.join(scratch, name) for name in
                               ("alone.csv", "both.csv", "report.json"))
        wrong = []
        for path, preload in ((alone, recorder), (both, f"{recorder} {library}")):
            result = run(program, LD_PRELOAD=preload, RECORD=path,
                         GPUCACHE_STATS=f"exit:{report}", **env)
            if result != plain:
                wrong.append(f"with {preload}: {result}, without {plain}")
        counts = recorded(both)
        if recorded(alone) != counts or not counts["launch"] or not counts["wait"]:
            wrong.append(f"alone {recorded(alone)}, before the library {counts}")
        with open(report) as file:
            pool = json.load(file)["pools"][0]
        if (counts["allocate"], counts["free"]) != (pool["num_allocs"], pool["num_frees"]):
            wrong.append(f"recorded {counts}, the pool served {pool['num_allocs']}")
        parts = sum(value for name, value in pool.items()
                    if name.startswith("at_peak_") and name.endswith("_bytes"))
        if parts != pool["reserved_peak_bytes"]:
            wrong.append(f"{parts} bytes at the peak of {pool['reserved_peak_bytes']}")
        replayed = json.loads(subprocess.run([replay, "--json", "--busy", both], check=True,
                                             capture_output=True, text=True).stdout)
        if replayed["peak_live"] != pool["requested_peak_bytes"]:
            wrong.append(f"live {replayed['peak_live']}, of the pool "
                         f"{pool['requested_peak_bytes']}")
    print("\n".join(wrong) or dict(counts))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
