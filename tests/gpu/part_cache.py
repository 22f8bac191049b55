# SPDX-License-Identifier: BSD-2-Clause
"""Packages with caches of their own, native cache on: a flush from outside gives these back too.
Training with CUDA graphs and torch.compile(mode="reduce-overhead") goes on beside it."""
import os
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import part_flush
import part_frameworks as frameworks
import suite as base
from trainer import EXACT, EXPANDABLE

RETURNED = re.compile(r"^gpucache: info: (\w+): done, gave ([\d.]+) MiB back in ([\d.]+) ms", re.M)
FLUSHED = re.compile(r"^gpucache: info: flush \((\w+)\): gave back ([\d.]+) MiB in ([\d.]+) ms",
                     re.M)
PERIOD_S = 1.0
# The first steps compile, and capture.
WARM_STEPS = 20


class Played:
    def __init__(self, result, figures, log):
        self.result, self.log = result, log
        self.steps = figures.get("steps", [])[WARM_STEPS:]


def play(suite, label, command, env, flushed):
    """Runs the program; with a signal every second from its first step on, if so asked."""
    figures = os.path.join(suite.build, f"{label}.json")
    path = os.path.join(suite.build, f"{label}.log")
    for old in figures, path:
        if os.path.exists(old):
            os.remove(old)
    words = [figures if word == "FIGURES" else word for word in command]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(words, env=dict(env, GPUCACHE_LOG=f"info:{path}"), stdout=out,
                                 stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        guard = threading.Timer(400, child.kill)
        guard.start()
        errors, over = [], threading.Event()

        def signal_it():
            while not over.wait(PERIOD_S):
                child.send_signal(signal.SIGUSR1)
        signals = threading.Thread(target=signal_it)
        for line in child.stderr:
            if line == "ready\n":
                if flushed:
                    signals.start()
            elif line == "over\n":
                over.set()
            else:
                errors.append(line)
        rc = child.wait()
        over.set()
        guard.cancel()
        if signals.ident:
            signals.join()
        out.seek(0)
        result = base.Result(rc, out.read(), "".join(errors), time.monotonic() - start)
    log = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            log = file.read()
    return Played(result, frameworks.read_json(figures), log)


def note_flushes(suite, played):
    """Memory has to come back at each flush."""
    returned = [float(mib) for name, mib, _ in RETURNED.findall(played.log) if name == "torch"]
    flushes = [float(mib) for _, mib, _ in FLUSHED.findall(played.log)]
    asked = sum(why != "frameworks" for why, _, _ in FLUSHED.findall(played.log))
    empty = sum(mib == 0 for mib in returned[1:])
    silent = asked - len(returned)
    verdict = f"ok: {len(returned)} times, median {statistics.median(returned):.0f} MiB" \
              if returned else "FAIL: torch was never asked"
    if silent > 1:  # the last one may come as the program ends
        verdict = f"FAIL: {silent} of {asked} flushes did not ask torch"
    # A flush that meets a step with all memory in use finds nothing.
    if empty > max(1, len(returned) // 10):
        verdict = f"FAIL: {empty} of {len(returned)} flushes gave nothing back"
    suite.row("training: what PyTorch gave back", "", f"{sum(returned):.0f} MiB",
              "", verdict)
    suite.row("training: what went to the driver", "", f"{sum(flushes):.0f} MiB", "",
              f"measured: {len(flushes)} flushes")


def training(suite, python):
    steps = "200" if suite.quick else "1500"
    command = [python, frameworks.script("work_cached.py"), "FIGURES", "train", steps]
    bare = play(suite, "torch-cache-bare", command, dict(suite.bare_env, **EXACT), False)
    if bare.result.rc:
        raise base.Skip(f"does not run here bare: {frameworks.last_line(bare.result)}")
    env = suite.shim_env(**EXACT)
    quiet = play(suite, "torch-cache-shim", command, env, False)
    flushed = play(suite, "torch-cache-flushed", command, env, True)
    suite.compare("training with graphs: losses", bare.result, quiet.result)
    suite.compare("flushed every second: losses", bare.result, flushed.result)
    if not quiet.steps or not flushed.steps:
        return
    note_flushes(suite, flushed)
    for name, of in ("median step", statistics.median), ("slowest step", max):
        suite.row(f"training: {name}, bare and under the shim", base.seconds(of(bare.steps)),
                  base.seconds(of(quiet.steps)), base.ratio(of(quiet.steps), of(bare.steps)),
                  "measured")
        suite.row(f"training: {name}, without and with flushes", base.seconds(of(quiet.steps)),
                  base.seconds(of(flushed.steps)), base.ratio(of(flushed.steps), of(quiet.steps)),
                  "measured")


def idle(suite, observer, package, mib, extra):
    """A program that waits for input gives its cache back at once, as a second process sees it."""
    python = frameworks.python_with(suite, package)
    words = [python, frameworks.script("work_cached.py"), "/dev/null", "idle", package, str(mib)]
    child = subprocess.Popen(words, env=suite.shim_env(**extra), text=True, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    guard = threading.Timer(180, child.kill)
    guard.start()
    name = f"{package}{', expandable segments' if extra else ''}: {mib} MiB cached, idle"
    try:
        if not child.stdout.readline().startswith("idle"):
            raise base.Skip(f"{package} does not run here")
        full = observer.settled()
        start = time.monotonic()
        child.send_signal(signal.SIGUSR1)
        wanted = full + (mib << 20) * 9 // 10
        while observer.free_bytes() < wanted and time.monotonic() - start < 60:
            time.sleep(0.001)
        took = time.monotonic() - start
        after = observer.settled()
        out, _ = child.communicate("\n")
    finally:
        guard.cancel()
        child.kill()
        child.wait()
    good = after >= wanted and child.returncode == 0 and out.split()[-1] == "0"
    suite.row(name, "", base.mebibytes(after - full), "",
              f"ok: back after {took * 1e3:.1f} ms" if good
              else f"FAIL: {out.strip() or 'no answer'}, exit {child.returncode}")


def torch_cache(suite):
    python = frameworks.python_with(suite, "torch")
    observer = part_flush.Observer(suite)
    try:
        most = observer.free_bytes() >> 20
        cached = min(10240, most // 2 // 512 * 512)
        for package, mib, extra in (("torch", cached, {}), ("torch", cached, EXPANDABLE),
                                    ("cupy", cached, {}), ("numba", cached // 8, {})):
            try:
                idle(suite, observer, package, mib, extra)
            except base.Skip as reason:
                suite.row(f"{package}: idle", verdict=f"skip: {reason}")
    finally:
        observer.end()
    training(suite, python)
