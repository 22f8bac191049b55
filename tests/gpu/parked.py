# SPDX-License-Identifier: BSD-2-Clause
"""Processes that do what lines of their input say, and whose device memory other processes park:
bare or under the shim. One thread uses an object at a time."""
import contextlib
import functools
import glob
import os
import statistics
import subprocess
import sys
import threading
import time

import suite as base

sys.path.insert(0, os.path.join(base.ROOT, "tests", "process"))
import page_client  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
SHARED_SIM = "/dev/shm/simulated-gpu-"


class Ended(RuntimeError):
    """The process has ended, or was ended because it did not answer."""


class Talker:
    """A process that answers each line of its input with a line. Its first line begins with the
    word `ready`; the other words of that line are in `said`."""

    def __init__(self, command, env, ready="ready", seconds=90):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env)
        first = self.hear(seconds)
        word, *self.said = first.split()
        if word != ready:
            self.process.kill()
            raise Ended(f"it began with {first!r}")

    def say(self, line):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def hear(self, seconds=90):
        """Its next line. A process that says nothing for so long is killed."""
        guard = threading.Timer(seconds, self.process.kill)
        guard.start()
        try:
            said = self.process.stdout.readline().strip()
            late = guard.finished.is_set()
        finally:
            guard.cancel()
        if not said:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            raise Ended(f"it says nothing for {seconds} s" if late else
                        f"it ended with status {self.process.poll()}")
        return said

    def do(self, line, seconds=90):
        self.say(line)
        return self.hear(seconds)

    def end(self):
        """Its exit status, once its input has ended."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()


class Parked(Talker):
    """The same under the shim, with its page. If the first line has words more, the page is that of
    the process whose id is the first of them. before: a line that it is told first, where it takes
    no device memory until then, and so has no page."""

    def __init__(self, suite, folder, command, ready="ready", before=None, **options):
        self.tables = page_client.load_tables(os.path.join(os.path.dirname(suite.lib),
                                                           "tables.py"))
        self.page = None
        pages = os.path.join(folder, "pages")
        super().__init__(command, suite.shim_env(GPUCACHE_DIR=pages, **options), ready)
        if before:
            self.do(before)
        pid = int(self.said[0]) if self.said else self.process.pid
        end = time.monotonic() + 60
        while not (found := glob.glob(os.path.join(pages, f"*-{pid}-*.page"))):
            if time.monotonic() > end:
                self.end()
                raise RuntimeError("the process has no page")
            time.sleep(0.01)
        self.page = page_client.Page(self.tables, found[0])

    def ask(self, words):
        """The code and the body of the reply, and how long it took."""
        start = time.monotonic()
        code, _, reply = self.page.ask(words, 120)
        return code, reply, time.monotonic() - start

    def set(self, words):
        """Changes options."""
        code, reply, _ = self.ask(f"set {words}")
        if code != self.tables.PAGE_REPLY_DONE:
            raise RuntimeError(f"it does not set {words}: {reply}")

    def park(self):
        """The bytes that went, the seconds that it says it took, and those of the asker."""
        code, reply, taken = self.ask("park")
        if code != self.tables.PAGE_REPLY_DONE:
            raise RuntimeError(f"it is not parked: {reply}")
        return parked_bytes(reply), reply["ns"] / 1e9, taken

    def wake(self):
        """The seconds that it says it took."""
        code, reply, _ = self.ask("wake")
        if code != self.tables.PAGE_REPLY_DONE:
            raise RuntimeError(f"it is not woken: {reply}")
        return reply["ns"] / 1e9

    def away_bytes(self):
        """What it says is on the host."""
        self.ask("look")
        _, gpus = self.page.state()
        at, step = self.tables.PAGE["parks"][0], self.tables.PAGE_PARK_BYTES
        return sum(self.page.get("away_bytes", "PAGE_PARK", at + i * step)
                   for i in range(len(gpus)))

    def await_park(self, seconds):
        """The time until it has parked itself; None: it has not, within so many seconds."""
        start = time.monotonic()
        while not self.away_bytes():
            if time.monotonic() > start + seconds:
                return None
            time.sleep(0.01)
        return time.monotonic() - start

    def end(self):
        if self.page:
            self.page.close()
            self.page = None
        return super().end()


def parked_bytes(reply):
    return sum(gpu["parked_bytes"] for gpu in reply.get("gpus", ()))


def stays(reply):
    """What stays on the GPU: "12 MiB exposed", or nothing."""
    return ", ".join(f"{base.mebibytes(stay['bytes'])} {stay['what']}"
                     for gpu in reply.get("gpus", ()) for stay in gpu["stays"] if stay["bytes"])


@contextlib.contextmanager
def ending(*talkers):
    """Ends all in any case. More may be appended to the list that it gives."""
    listed = list(talkers)
    try:
        yield listed
    finally:
        for talker in listed:
            talker.end()


@contextlib.contextmanager
def one_gpu(suite):
    """The environment of processes that share the GPU. A simulated one is small: its kernels are
    slow."""
    if not suite.simulate:
        yield {}
        return
    name = f"gpucache-parked-{os.getpid()}-{time.monotonic_ns()}"
    try:
        yield {"SIM_SHARED": name, "SIM_CAPACITY": "512M"}
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SHARED_SIM + name)


@functools.cache
def program(suite):
    """The C program that holds blocks: see its head."""
    return suite.compile("park_cycle", ["park_cycle.c", "driver.c"])


def speed(size, seconds):
    return f"{seconds:.3f} s, {size / seconds / GIB:.1f} GiB/s"


def p99(seconds):
    return sorted(seconds)[len(seconds) * 99 // 100]


def on_target(suite, seconds, target, what=""):
    """What a verdict says of it; nothing where no target is, or where the GPU is simulated: there,
    sizes are others, and times mean nothing."""
    if target is None or suite.simulate:
        return ""
    return (f"; target {what + ' ' if what else ''}{target:g} s, "
            f"{'met' if seconds <= target else 'MISSED'}")


def spread(seconds):
    """Median, p99 and most of some times, in ms."""
    times = sorted(value * 1e3 for value in seconds)
    return (f"{statistics.median(times):.1f} ms, p99 {p99(times):.1f} ms, most "
            f"{times[-1]:.1f} ms")
