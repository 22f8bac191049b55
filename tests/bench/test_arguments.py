# SPDX-License-Identifier: BSD-2-Clause
"""Numbers and names that make no sense are refused by the programs of this folder, with exit status
2 and before anything runs."""
import os
import subprocess
import sys

REFUSED = {
    "replay": ("--streams 0", "--streams x", "--streams -1", "--speed 0", "--speed -1",
               "--speed fast", "--work soon", "--work -1", "--load 2x", "--rate -4",
               "--rate nan", "--max-ratio 1,05", "--max-ratio 0", "--reuse nosuch"),
    "latency": ("--rounds 0", "--rounds -1", "--rounds x", "--scale 0", "--scale 1e9", "--only x",
                "--host-memory 0", "--host-memory much", "--nosuch", "word"),
    "pair": ("--live 0", "--live x", "--live 99999", "--batches 0", "--batches -1", "--pairs -1",
             "--pairs 1e3", "--at-most many", "--mode nosuch", "--api nosuch", "--sizes 0"),
}


def main():
    wrong = []
    for program in sys.argv[1:]:
        name = os.path.basename(program)
        for words in REFUSED[name]:
            # A trace that is not there: the arguments before it are looked at first.
            command = [program, *words.split(), *(["/nosuch.csv"] if name == "replay" else [])]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=50,
                                      check=False)
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} {words}: it runs")
                continue
            if done.returncode != 2 or done.stdout or not done.stderr:
                wrong.append(f"{name} {words}: {done.returncode}, {done.stdout!r}, "
                             f"{done.stderr[:100]!r}")
    print("\n".join(wrong) or "as it should be")
    return 1 if wrong else 0
