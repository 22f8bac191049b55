#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Replays synthetic programs (synthesize.py) on the pool, and prints peak reserved / peak live of
each, worst last. Options that sweep.py does not know go to replay.

  sweep.py [--seeds N] [--kinds K,..] [--at-most R] [--traces FOLDER] REPLAY [OPTION OF REPLAY]...

With --at-most, fails where a program's ratio is above. --traces keeps the traces."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import synthesize


def replay(command, options, path):
    done = subprocess.run([command, "--json", *options, path], capture_output=True, text=True,
                          timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{path}: replay ends with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def count(words):
    if not words.isdecimal() or int(words) < 1:
        raise argparse.ArgumentTypeError(f"{words} is no number from 1 on")
    return int(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=count, default=1, help="programs of each kind")
    parser.add_argument("--kinds", help="streams is for four streams: by default all others",
                        default=",".join(kind for kind in synthesize.KINDS if kind != "streams"))
    parser.add_argument("--at-most", type=float)
    parser.add_argument("--tries", type=count, default=1, help="of a program that is above it: "
                        "threads never run twice the same way")
    parser.add_argument("--traces")
    parser.add_argument("replay")
    options, rest = parser.parse_known_args()
    kinds = options.kinds.split(",")
    unknown = [kind or "''" for kind in kinds if kind not in synthesize.KINDS]
    if unknown:
        parser.error(f"no such kind: {', '.join(unknown)} (have: {', '.join(synthesize.KINDS)})")
    results = []
    with tempfile.TemporaryDirectory(prefix="traces-") as scratch:
        folder = options.traces or scratch
        os.makedirs(folder, exist_ok=True)
        for kind in kinds:
            for seed in range(1, options.seeds + 1):
                path = os.path.join(folder, f"{kind}.{seed}.csv")
                if not os.path.exists(path):
                    with open(path, "w", encoding="utf-8") as file:
                        synthesize.synthesize(kind, seed).write(file)
                tries = [replay(options.replay, rest, path)]
                while options.at_most and tries[-1]["ratio"] > options.at_most and \
                        len(tries) < options.tries:
                    tries.append(replay(options.replay, rest, path))
                results.append((tries[-1], f"{kind}.{seed}"))
    results.sort(key=lambda result: result[0]["ratio"])
    for result, name in results:
        print(f"{name:20} events={result['events']} peak_live={result['peak_live']} "
              f"ratio={result['ratio']:.4f}" +
              (f" moves={result['moves']} driver_ms={result['driver_ms']} "
               f"done_ms={result['done_ms']}" if "moves" in result else ""))
    ratios = [result["ratio"] for result, _ in results]
    print(f"{len(ratios)} programs: median {ratios[len(ratios) // 2]:.4f}, mean "
          f"{sum(ratios) / len(ratios):.4f}, worst {ratios[-1]:.4f}")
    if "--slow" in rest:
        print(" ".join(f"{key}={sum(result[key] for result, _ in results):.1f}"
                       for key in ("driver_ms", "done_ms")))
    if options.at_most and ratios[-1] > options.at_most:
        print(f"{results[-1][1]} is above {options.at_most}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
