# SPDX-License-Identifier: BSD-2-Clause
"""Processes under the shim lend each other idle memory; the same processes bare run out of it."""
import contextlib
import glob
import os
import shutil
import statistics
import sys
import tempfile
import time

import part_frameworks as frameworks
from parked import Talker
from trainer import CACHE_OFF

GIB = 1 << 30
SIZES_GIB = (1, 8, 32)
# Each of two fits alone, and not beside the other's cache.
TWO, EIGHT = 0.6, 0.6


def milliseconds(value):
    return f"{value * 1e3:.1f} ms"


class Worker(Talker):
    """A process of work_lend.py."""

    def __init__(self, python, kind, env):
        self.env = env
        super().__init__([python, frameworks.script("work_lend.py"), kind], env)

    def seconds(self, request):
        """None: there was no memory."""
        words = self.do(request).split()
        return float(words[1]) if words[0] == "done" else None


def see_each_other(there, folder):
    """A process makes its page on a thread of its own, soon after its first allocation."""
    for worker in there:
        worker.seconds(f"turn {2 << 20}")
    end = time.monotonic() + 60
    while len(glob.glob(os.path.join(folder, "*.page"))) < len(there) and time.monotonic() < end:
        time.sleep(0.01)


@contextlib.contextmanager
def workers(suite, python, kind, count, shim, extra=()):
    """So many at once, which share the GPU and a folder of pages."""
    folder = tempfile.mkdtemp()
    env = dict(extra, GPUCACHE_DIR=os.path.join(folder, "pages"))
    if suite.simulate:  # on a machine that does other things too
        env.update(SIM_SHARED=f"gpucache-lend-{os.getpid()}-{time.monotonic_ns()}",
                   GPUCACHE_SHARE="10s")
    env = suite.shim_env(**env) if shim else dict(suite.bare_env, **env)
    there = []
    try:
        for _ in range(count):
            there.append(Worker(python, kind, env))
        if shim:
            see_each_other(there, env["GPUCACHE_DIR"])
        yield there
    finally:
        for worker in there:
            worker.end()
        shutil.rmtree(folder)
        if suite.simulate:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"/dev/shm/simulated-gpu-{env['SIM_SHARED']}")


def take_turns(there, size, rounds):
    """The seconds of each turn, without the first one of each process; None: one failed."""
    times = []
    for number in range(rounds + 1):
        for worker in there:
            seconds = worker.seconds(f"turn {size}")
            if seconds is None:
                return None
            times += [seconds] if number else []
    return times


def share_of(worker, part):
    return int(int(worker.do("free").split()[2]) * part) // (2 << 20) * (2 << 20)


def two_processes(suite, python, kind, name, extra, bare_fails):
    """Two in turns against one after the other: the same turns, with the GPU for each alone."""
    rounds = 2 if suite.quick else 5
    with workers(suite, python, kind, 2, False, extra) as there:
        bare = take_turns(there, share_of(there[0], TWO), rounds)
    alone = []
    for _ in range(2):
        with workers(suite, python, kind, 1, True, extra) as there:
            alone += take_turns(there, share_of(there[0], TWO), rounds) or []
    with workers(suite, python, kind, 2, True, extra) as there:
        shim = take_turns(there, share_of(there[0], TWO), rounds)
    verdict = "ok"
    if not shim or not alone:
        verdict = "FAIL: a process under the shim ran out of memory"
    elif bare_fails and bare is not None:
        verdict = "FAIL: the bare processes fit"
    mean = statistics.mean
    suite.row(f"two processes, {name}", "out of memory" if bare is None else
              milliseconds(mean(bare)) + " a turn",
              milliseconds(mean(shim)) + " a turn" if shim else "out of memory",
              f"{mean(shim) / mean(alone):.2f} of one after the other" if shim and alone else "",
              verdict)


def latency(suite, python):
    """From the call that finds the GPU full to its success."""
    for size in SIZES_GIB:
        with workers(suite, python, "driver", 2, True) as (giver, asker):
            free, total = (int(word) for word in giver.do("free").split()[1:])
            asker.seconds(f"take {2 << 20}")  # it has its context and its page
            time.sleep(0.5)
            fill = min(free, int(giver.do("free").split()[1])) - (GIB // 2)
            if fill < size * GIB:
                suite.row(f"{size} GiB, of another process", verdict=f"skip: {total >> 30} GiB")
                continue
            if giver.seconds(f"turn {fill}") is None:
                suite.row(f"{size} GiB, of another process", verdict="FAIL: nothing to begin with")
                continue
            seconds = asker.seconds(f"take {size * GIB}")
        with workers(suite, python, "driver", 1, False) as (alone,):
            bare = alone.seconds(f"take {size * GIB}")
        suite.row(f"{size} GiB, of another process", milliseconds(bare) if bare else "",
                  milliseconds(seconds) if seconds else "out of memory", "",
                  "ok" if seconds else "FAIL: nothing was lent")


def lend(suite):
    suite.build_library()
    latency(suite, sys.executable)
    with workers(suite, sys.executable, "driver", 8, True) as there:
        times = take_turns(there, share_of(there[0], EIGHT), 1 if suite.quick else 3)
    suite.row("eight processes, 60 % each in turns", "",
              milliseconds(statistics.mean(times)) + " a turn" if times else "out of memory", "",
              "ok" if times else "FAIL: a process ran out of memory")
    # The driver is the cache-less case: bare processes take turns, because frees are frees.
    two_processes(suite, sys.executable, "driver", "calls of the driver", {}, False)
    python = frameworks.python_with(suite, "torch")
    two_processes(suite, python, "torch", "PyTorch's own cache on", {}, True)
    two_processes(suite, python, "torch", "PyTorch's own cache off", CACHE_OFF, False)
