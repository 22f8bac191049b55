# SPDX-License-Identifier: BSD-2-Clause
"""Device memory of a process goes to the host and comes back (GPUCACHE_PARK): how long both take,
what an observer sees, and that no byte differs. park_cycle.c is the process."""
import contextlib
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time

import part_flush
import part_frameworks as frameworks
import suite as base
from trainer import CACHE_OFF

sys.path.insert(0, os.path.join(base.ROOT, "tests", "process"))
import page_client  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30


class Parked:
    """A process under the shim, and its page. It says `ready` once it has memory."""

    def __init__(self, suite, folder, command, ready, **options):
        self.folder = os.path.join(folder, "pages")
        self.tables = page_client.load_tables(os.path.join(os.path.dirname(suite.lib),
                                                           "tables.py"))
        env = suite.shim_env(GPUCACHE_DIR=self.folder, **options)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env)
        if self.process.stdout.readline().strip() != ready:
            raise base.Skip("the process does not start here")
        end = time.monotonic() + 30
        while not (found := glob.glob(os.path.join(self.folder, f"*-{self.process.pid}-*.page"))):
            if time.monotonic() > end:
                raise RuntimeError("the process has no page")
            time.sleep(0.01)
        self.page = page_client.Page(self.tables, found[0])

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        if not said:
            raise RuntimeError(f"the process ended at {line!r}")
        return said

    def ask(self, words):
        """The reply, and how long it took."""
        start = time.monotonic()
        code, _, reply = self.page.ask(words, 120)
        return code, reply, time.monotonic() - start

    def park(self):
        code, reply, taken = self.ask("park")
        if code != self.tables.PAGE_REPLY_DONE:
            raise RuntimeError(f"it is not parked: {reply}")
        return sum(gpu["parked_bytes"] for gpu in reply["gpus"]), reply["ns"] / 1e9, taken

    def end(self):
        self.page.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def holder(suite, folder):
    program = suite.compile("park_cycle", ["park_cycle.c", "driver.c"])
    return Parked(suite, folder, [program], "started")


def speed(size, seconds):
    return f"{seconds:.3f} s, {size / seconds / GIB:.1f} GiB/s"


def large(suite, folder, observer, size):
    """One park and one wake of much memory."""
    p = holder(suite, folder)
    before = observer.settled()
    p.do(f"fill {size // MIB}")
    rss = int(p.do("rss"))
    full = observer.settled()
    parked, out, asked = p.park()
    seen = observer.settled(at_least=before - 64 * MIB)
    host = int(p.do("rss"))
    back = int(p.do("touch")) / 1e9
    end = time.monotonic() + 3
    while (after := int(p.do("rss"))) > rss * 1.01 + 2048 and time.monotonic() < end:
        time.sleep(0.01)
    name = f"{size / GIB:g} GiB"
    suite.row(f"{name} out", "", speed(parked, out), verdict=f"measured: {asked:.3f} s for the "
                                                             "asker")
    suite.row(f"{name} back, at a launch", "", speed(parked, back), verdict="measured")
    suite.row(f"{name} seen as free", base.mebibytes(seen - full), base.mebibytes(parked),
              verdict="ok" if seen >= before - 64 * MIB else "FAIL: memory stays")
    suite.row(f"{name} host memory before, parked, after", "",
              f"{rss >> 10}, {host >> 10}, {after >> 10} MiB",
              verdict="ok" if after <= rss * 1.01 + 2048 else "FAIL: the process grew")
    wrong = p.do("check")
    suite.row(f"{name} contents", verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")
    p.end()


def small(suite, folder, rounds):
    """The first launch after a park of 64 MiB."""
    p = holder(suite, folder)
    p.do("fill 64")
    waits = []
    for _ in range(rounds):
        p.park()
        waits.append(int(p.do("touch")) / 1e6)
    wrong = p.do("check")
    waits.sort()
    suite.row("64 MiB: first launch after a park", "",
              f"{statistics.median(waits):.1f} ms, p99 {waits[len(waits) * 99 // 100]:.1f} ms, "
              f"most {waits[-1]:.1f} ms", verdict=f"measured: {rounds} times")
    suite.row("64 MiB contents", verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")
    p.end()


def cycles(suite, folder, size, rounds):
    """Parks and wakes, with changes in between."""
    p = holder(suite, folder)
    p.do(f"fill {size // MIB}")
    failure, start = "", time.monotonic()
    for i in range(rounds):
        p.park()
        if i % 2:
            p.do("change")
        wrong = p.do("check")
        if wrong != "sound":
            failure = failure or f"FAIL: {wrong} in round {i}"
    suite.row(f"{rounds} cycles of {size / GIB:g} GiB with changes", "",
              base.seconds((time.monotonic() - start) / rounds), verdict=failure or "ok")
    p.end()


def park_cycle(suite):
    quick = suite.quick or suite.simulate
    observer = part_flush.Observer(suite)
    try:
        with tempfile.TemporaryDirectory() as folder:
            large(suite, folder, observer, GIB // 4 if suite.simulate else 16 * GIB)
            small(suite, folder, 20 if quick else 500)
            cycles(suite, folder, GIB // 16 if quick else GIB, 20 if quick else 1000)
    finally:
        observer.close()


def losses(suite, python, rounds):
    """What the training says without the library."""
    script = frameworks.script("work_sleep.py")
    done = suite.run([python, script], dict(suite.bare_env, **CACHE_OFF), 600,
                     b"step\n" * rounds + b"end\n")
    if done.rc != 0:
        raise base.Skip(f"the training fails bare: {frameworks.last_line(done)}")
    return done.out.split("\n")[1:rounds + 1]


def park_torch(suite):
    """PyTorch, parked before each step, with its cache off and on."""
    python = frameworks.python_with(suite, "torch")
    rounds = 50 if suite.quick else 1000
    wanted = losses(suite, python, rounds)
    for name, env in ("off", CACHE_OFF), ("on", {}):
        with tempfile.TemporaryDirectory() as folder:
            p = Parked(suite, folder, [python, frameworks.script("work_sleep.py")], "ready", **env)
            outs, backs, wrong = [], [], 0
            for i in range(rounds):
                _, seconds, _ = p.park()
                start = time.monotonic()
                wrong += p.do("step") != wanted[i]
                outs.append(seconds)
                backs.append(time.monotonic() - start)
            p.end()
        suite.row(f"PyTorch, cache {name}: {rounds} parks, one before each step", "",
                  f"out {statistics.median(outs) * 1e3:.1f} ms, step "
                  f"{statistics.median(backs) * 1e3:.1f} ms",
                  verdict=f"FAIL: {wrong} losses differ" if wrong else "ok: equal losses")
