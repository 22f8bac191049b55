# SPDX-License-Identifier: BSD-2-Clause
"""Hundreds of processes start at once with the library. All of them end well, none waits for
another, and each takes little longer to start. Then a few dozen that use the simulated GPU, at once
too."""

import os
import resource
import subprocess
import sys
import time

import programs

PROCESSES = 500
GPU_PROCESSES = 40
# A start bare takes about 1 ms; the loader maps one library more, which was seen to take 0.06 ms.
MOST_NS = 400_000


def start_all(command, env, count):
    """Starts them without waiting for any, and returns the exit statuses."""
    children = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL) for _ in range(count)]
    return [child.wait(120) for child in children]


def processor_ns(command, env):
    """The processor time of one process from its start to its end: other load does not show in
    it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9)


def main():
    library, folders, program = os.path.abspath(sys.argv[1]), *sys.argv[2:]
    faults, true = [], ["/bin/true"]

    times_ns = {"bare": [], "preloaded": []}
    for _ in range(60):
        times_ns["bare"].append(processor_ns(true, programs.bare()))
        times_ns["preloaded"].append(processor_ns(true, programs.bare(library)))
    # The least: interrupts and cold caches of a busy machine add to it, and nothing takes from it.
    bare_ns, shim_ns = (min(times_ns[kind]) for kind in ("bare", "preloaded"))
    print(f"one start: {bare_ns / 1e6:.2f} ms of processor time bare, "
          f"{shim_ns / 1e6:.2f} ms preloaded")
    if shim_ns - bare_ns > MOST_NS:
        faults.append(f"a start takes {(shim_ns - bare_ns) / 1e6:.2f} ms longer")

    env = programs.bare(library, LD_LIBRARY_PATH=folders, SIM_HAZARD="abort")
    for number, command in (PROCESSES, true), (GPU_PROCESSES, [program]):
        start = time.monotonic()
        bad = [rc for rc in start_all(command, env, number) if rc != 0]
        print(f"{number} of {command[0]} at once: {time.monotonic() - start:.2f} s")
        if bad:
            faults.append(f"{len(bad)} of {number} of {command[0]} failed: {bad[:5]}")
    print("\n".join(faults))
    return 1 if faults else 0
