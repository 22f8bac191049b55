# SPDX-License-Identifier: BSD-2-Clause
"""Requests to the library in another process, through a slot of its page. The rules are those of
shim/page/layout.h.

The words of the protocol are read and written by pread and pwrite. The only use of a mapping is to
give the kernel an address for futex calls, which fail where the file was cut short."""
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import struct
import threading
import time

from gpucache import process, tables, text
from gpucache.fault import Fault, reason

FUTEX_WAIT, FUTEX_WAKE = 0, 1
F_OFD_SETLK = 37  # fcntl has it from Python 3.9 on
SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221}.get(platform.machine())
MASK = 0xffffffff
# A byte behind each page, locked by the tool that records its process.
RECORDER = 1 << 40
# Another asker may write the same number to the doorbell; who waits rings again.
RING_EVERY_S = 0.05
# The thread at a doorbell rests a millisecond after each ring. Where no ring finds it for so long,
# a process that /proc does not show has ended or is stopped, and another may run another program.
SILENCE_S = 2.0
WATCH_NS = 5 * 10**9


# Requests under way, as (line, slot, lasts); None: the tool ends, and nothing more is asked.
_UNDER_WAY = {"requests": set()}
_LOCK = threading.RLock()  # a signal may come while the main thread holds it


def _lock(fd, kind, start):
    """Locks or unlocks a byte without a wait. The lock is the descriptor's: other threads read the
    same page. Some sandboxes have locks of the process only."""
    try:
        fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, 1, 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        command = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.lockf(fd, command, 1, start)


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Word:
    """A futex in a file."""

    def __init__(self, fd, offset):
        start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        try:
            self.mapping = mmap.mmap(fd, offset - start + 4, offset=start)
        except ValueError:
            raise Fault("its page is cut short") from None
        except OSError as error:
            raise Fault(f"its page cannot be mapped: {reason(error)}") from None
        self.buffer = ctypes.c_char.from_buffer(self.mapping)
        self.address = ctypes.addressof(self.buffer) + offset - start
        self.syscall = ctypes.CDLL(None, use_errno=True).syscall

    def _call(self, operation, value, timeout=None):
        if SYS_FUTEX is None:
            time.sleep(0.002)
            return 1
        return self.syscall(ctypes.c_long(SYS_FUTEX), ctypes.c_void_p(self.address),
                            ctypes.c_long(operation), ctypes.c_long(value), timeout,
                            ctypes.c_void_p(None), ctypes.c_long(0))

    def wake(self):
        """The number of waiters that woke."""
        return max(0, self._call(FUTEX_WAKE, 1))

    def wait(self, value, seconds):
        """Waits while the word has this value."""
        limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        self._call(FUTEX_WAIT, value, ctypes.byref(limit))

    def close(self):
        del self.buffer
        self.mapping.close()


class Reply:
    """code: PAGE_REPLY_...; value: a number of bytes; body: the JSON object, {} if broken."""

    def __init__(self, code, value, body):
        self.code, self.value, self.body = code, value, body

    def why(self):
        """What the library says about a request that it did not carry out."""
        return text.printable(str(self.body.get("error") or "it does not say why"))


class Line:
    """A connection to one process: its page, open for writing, and its doorbell."""

    def __init__(self, page):
        self.page = page
        try:
            self.fd = page.open(os.O_RDWR)
        except FileNotFoundError:
            raise Fault("it has ended") from None
        try:
            head = os.pread(self.fd, 128, 0)
            version = struct.unpack_from(tables.PAGE["version"][1], head,
                                         tables.PAGE["version"][0])[0]
            if head[:8] != tables.PAGE_MAGIC or version != tables.PAGE_VERSION:
                raise Fault(f"its page is of version {version}, this tool knows version "
                            f"{tables.PAGE_VERSION}")
            self.doorbell = _Word(self.fd, tables.PAGE["doorbell"][0])
        except (Fault, struct.error):
            os.close(self.fd)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.doorbell.close()
        os.close(self.fd)

    def claim(self):
        """The right to record the process, until the file is closed. False: another tool has it.
        """
        try:
            _lock(self.fd, fcntl.F_WRLCK, RECORDER)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _get(self, layout, name, start=0):
        offset, form = layout[name]
        data = os.pread(self.fd, struct.calcsize(form), start + offset)
        try:
            return struct.unpack(form, data)[0]
        except struct.error:
            raise Fault("its page is cut short") from None

    def _put(self, layout, name, value, start=0):
        offset, form = layout[name]
        try:
            os.pwrite(self.fd, struct.pack(form, value), start + offset)
        except OSError as error:
            raise Fault(f"its page cannot be written: {reason(error)}") from None

    def ring(self):
        """The number of waiters that heard it."""
        self._put(tables.PAGE, "doorbell", (self._get(tables.PAGE, "doorbell") + 1) & MASK)
        return self.doorbell.wake()

    def watch(self):
        """Asks for a state that is at most one second old, for the next seconds."""
        self._put(tables.PAGE, "watched_until_ns", time.monotonic_ns() + WATCH_NS)
        self.ring()

    def _slot(self, end):
        """The offset of a slot that is ours until the file is closed. One in which no request of an
        asker that gave up is left comes first."""
        while True:
            spare = None
            for index in range(tables.PAGE_SLOTS):
                start = tables.PAGE["slots"][0] + index * tables.PAGE_SLOT_BYTES
                try:
                    _lock(self.fd, fcntl.F_WRLCK, start)
                except OSError:
                    continue
                if self._get(tables.PAGE_SLOT, "ask_sequence", start) == \
                        self._get(tables.PAGE_SLOT, "reply_sequence", start):
                    return start
                if spare is None:
                    spare = start
                else:
                    _lock(self.fd, fcntl.F_UNLCK, start)
            if spare is not None:
                return spare
            if time.monotonic() > end:
                raise Fault(f"{tables.PAGE_SLOTS} others are asking it at present")
            time.sleep(0.01)

    def ask(self, words, seconds, lasts=False):
        """The Reply to a request. Faults when none came within this time. lasts: the process
        finishes what it has begun of it, also if it is withdrawn."""
        data, end = os.fsencode(words), time.monotonic() + seconds
        if len(data) > struct.calcsize(tables.PAGE_SLOT["ask"][1]):
            raise Fault("the request is too long for one time: ask for less at once")
        start = self._slot(end)
        word, replied = _Word(self.fd, start + tables.PAGE_SLOT["reply_sequence"][0]), False
        try:
            # Askers that gave up may have left several numbers behind the last reply. A reply to
            # each of them may still come.
            number = (self._get(tables.PAGE_SLOT, "ask_sequence", start) + 1) & MASK
            if number == self._get(tables.PAGE_SLOT, "reply_sequence", start):
                number = (number + 1) & MASK  # somebody scribbled
            self._put(tables.PAGE_SLOT, "ask", data, start)
            self._put(tables.PAGE_SLOT, "ask_bytes", len(data), start)
            with _LOCK:
                if _UNDER_WAY["requests"] is None:
                    raise Fault("the tool was interrupted")
                _UNDER_WAY["requests"].add((self, start, lasts))
                self._put(tables.PAGE_SLOT, "ask_sequence", number, start)
            heard_at = time.monotonic()
            while True:
                heard = self.ring()
                heard_at = time.monotonic() if heard else heard_at
                now = self._get(tables.PAGE_SLOT, "reply_sequence", start)
                if now != number:
                    word.wait(now, RING_EVERY_S)
                    now = self._get(tables.PAGE_SLOT, "reply_sequence", start)
                if now == number:
                    replied = True
                    return self._reply(start)
                if not heard:
                    self._look_for_life(time.monotonic() - heard_at)
                if time.monotonic() > end:
                    raise Fault(f"it has not answered within {seconds:.2g} s")
        finally:
            with _LOCK:  # until here withdraw_all may use the descriptor
                if not replied:
                    self.withdraw(start)
                (_UNDER_WAY["requests"] or set()).discard((self, start, lasts))
            word.close()
            _lock(self.fd, fcntl.F_UNLCK, start)

    def withdraw(self, start):
        """Nobody waits for the reply any more: a request of no words is refused, not carried
        out."""
        with contextlib.suppress(Fault):
            self._get(tables.PAGE_SLOT, "ask_bytes", start)  # a page that was cut stays cut
            self._put(tables.PAGE_SLOT, "ask_bytes", 0, start)

    def _look_for_life(self, silence_s):
        pid = self.page.pid
        if pid is None:
            if silence_s > SILENCE_S:
                raise Fault("nobody listens at its page: it has ended, or is stopped")
            return
        if process.has_ended(pid) or \
                process.start_ticks(pid) not in (None, self.page.start_ticks):
            raise Fault("it has ended")
        if process.state(pid) in ("T", "t"):
            raise Fault("it is stopped: ask again when it goes on")
        # A program that replaced it may have a page of the same name.
        if silence_s > SILENCE_S and not (os.fstat(self.fd).st_nlink and self.page.is_of(pid)):
            raise Fault("it runs another program by now")

    def _reply(self, start):
        size = min(self._get(tables.PAGE_SLOT, "reply_bytes", start),
                   struct.calcsize(tables.PAGE_SLOT["reply"][1]))
        said = os.pread(self.fd, size, start + tables.PAGE_SLOT["reply"][0])
        try:
            body = json.loads(said.decode(errors="replace"))
        except (ValueError, RecursionError):
            body = {}
        return Reply(self._get(tables.PAGE_SLOT, "reply_code", start),
                     self._get(tables.PAGE_SLOT, "reply_value", start),
                     body if isinstance(body, dict) else {})


def withdraw_all():
    """The tool ends while other threads wait for replies: no process does later what nobody waits
    for. Returns the pages of those that finish what they have begun."""
    with _LOCK:
        requests, _UNDER_WAY["requests"] = _UNDER_WAY["requests"] or set(), None
        for line, start, _ in requests:
            line.withdraw(start)
        return [line.page for line, _, lasts in requests if lasts]


def has_waiter(page):
    """Does a thread of the process listen at this moment?"""
    try:
        with Line(page) as line:
            return line.doorbell.wake() > 0
    except (Fault, OSError):
        return False


def without_waiter(pages):
    """Those at whose doorbell no thread waits. The thread rests a millisecond after each ring, so
    each page is asked twice, with one pause for all."""
    silent = [page for page in pages if not has_waiter(page)]
    if silent:
        time.sleep(0.01)
    return [page for page in silent if not has_waiter(page)]
