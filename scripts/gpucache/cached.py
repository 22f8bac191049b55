# SPDX-License-Identifier: BSD-2-Clause
"""What the Python packages of a process keep of the memory that they took, such as PyTorch's cache.
The library asks them when somebody looks, on a thread of its own, and never by itself. So the
figures may be late, and old ones have their age."""
import queue
import time

from gpucache import ask, tables, text
from gpucache.fault import Fault, start_thread

EVERY_S = 3.0       # a look asks a process again after so long
OLD_S = 4.0         # figures that are older have their age
PATIENCE_S = 0.5    # one look waits so long for all replies together
GRACE_S = 0.1       # for threads to end that are late
THREADS = 32
WAIT_MS = 300       # so long the library waits for the packages
FIGURES = ("done", "idle")  # states of a package that has told its figures


def _number(value):
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 <= value < 1 << 64 else None


class Answer:
    """bytes: device number in the process -> bytes, of all packages. names: the packages that are
    loaded. unknown: those that do not tell, or have never told. at: when the figures were right, by
    time.monotonic."""

    def __init__(self, body):
        self.bytes, self.names, self.unknown = {}, [], []
        self.at = time.monotonic()
        found = body.get("frameworks")
        self.late = not isinstance(found, list)
        age_ns = 0
        for package in () if self.late else found:
            if not isinstance(package, dict):
                continue
            self.names.append(text.printable(str(package.get("name")))[:20])
            gpus = package.get("gpus")
            if package.get("state") not in FIGURES and not gpus:
                self.unknown.append(self.names[-1])
            for gpu in gpus if isinstance(gpus, list) else ():
                device, size = (_number(gpu.get(name)) if isinstance(gpu, dict) else None
                                for name in ("device", "cached_bytes"))
                if device is not None and size is not None:
                    self.bytes[device] = self.bytes.get(device, 0) + size
            age_ns = max(age_ns, _number(package.get("age_ns")) or 0)
        self.at -= age_ns / 1e9

    def of(self, device):
        """The bytes on a device. None: some package does not tell."""
        return None if self.unknown or self.late else self.bytes.get(device, 0)

    def age_s(self):
        return time.monotonic() - self.at


def _one(process, end):
    """The Answer; None: the process does not answer in time, or its library knows no such
    request."""
    try:
        with ask.Line(process.page) as line:
            reply = line.ask(f"cached wait={WAIT_MS}", max(0.0, end - time.monotonic()))
    except (Fault, OSError):
        return None
    told = reply.code in (tables.PAGE_REPLY_DONE, tables.PAGE_REPLY_PARTLY)
    return Answer(reply.body) if told else None


def _each(processes, end):
    """(name of the page, Answer or None) of those that answered in time."""
    waiting, told = queue.SimpleQueue(), []
    for process in processes:
        waiting.put(process)

    def work():
        while time.monotonic() < end:
            try:
                process = waiting.get_nowait()
            except queue.Empty:
                return
            told.append((process.page.name, _one(process, end)))
    for thread in [start_thread(work) for _ in processes[:THREADS]]:
        thread.join(max(0.0, end - time.monotonic()) + GRACE_S)
    return list(told)


class Memory:
    """The last Answer of each process, by the name of its page."""

    def __init__(self):
        self.answers, self.asked_at = {}, {}

    def look(self, processes):
        """Asks those whose turn it is, and gives each process its answer. A process that is late
        keeps the figures of before."""
        names = {process.page.name for process in processes}
        for kept in self.answers, self.asked_at:
            for name in set(kept) - names:
                del kept[name]
        now = time.monotonic()
        due = [p for p in processes if p.pid and not p.note and p.gpus
               and now - self.asked_at.get(p.page.name, -EVERY_S) >= EVERY_S]
        self._ask(due, now)
        for process in processes:
            process.cached = self.answers.get(process.page.name)
            if process.cached is None and process.page.name in self.asked_at:
                process.cached = Answer({})  # it was asked, and has said nothing

    def _ask(self, processes, now):
        for process in processes:
            self.asked_at[process.page.name] = now
        for name, answer in _each(processes, now + PATIENCE_S):
            before = self.answers.get(name)
            if answer and not (before and before.bytes and (answer.late or answer.unknown)):
                self.answers[name] = answer
