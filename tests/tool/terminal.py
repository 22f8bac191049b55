# SPDX-License-Identifier: BSD-2-Clause
"""The tool on a terminal, for tests. Without rich and pyte they are skipped."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

from fake import ALONE, MIB, UUID_B, body, flushed, map_page, pool
from test_page import Case

from gpucache import tables

try:
    import pyte
    from rich.console import Console
except ImportError:
    print("rich and pyte are not installed: skipped")
    sys.exit(77)

WIDTH, HEIGHT = 120, 24


class Terminal:
    """The tool on a pseudo-terminal, with a screen as a person sees it."""

    def __init__(self, *words, width=WIDTH, height=HEIGHT, command=None):
        command = command or [*ALONE, *map(str, words)]
        self.screen = pyte.Screen(width or 80, height or 24)
        self.stream = pyte.ByteStream(self.screen)
        self.raw, self.status = b"", None
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
            os.environ.pop("NO_COLOR", None)
            os.environ.pop("COLUMNS", None)
            os.environ.pop("LINES", None)
            self.tell_size(1, width, height)
            os.execvp(command[0], command)

    @staticmethod
    def tell_size(fd, width, height):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width, height):
        """As a window that is dragged."""
        self.screen.resize(height, width)
        self.tell_size(self.fd, width, height)

    def feed(self, seconds=0.05):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            self.raw += data
            self.stream.feed(data)
            return bool(data)
        return True

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, pattern, seconds=60):
        """The screen once it matches."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if time.monotonic() > end or not self.feed():
                raise AssertionError(f"no {pattern!r} on the screen:\n{self.text}")
        return self.text

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def close(self):
        """As a window that is closed. The exit status."""
        os.close(self.fd)
        return self.ended(lambda: time.sleep(0.01))

    def quit(self, key="q"):
        """The exit status."""
        self.press(key)
        return self.end()

    def end(self):
        """The exit status."""
        status = self.ended(self.feed)
        os.close(self.fd)
        return status

    def ended(self, meanwhile):
        end = time.monotonic() + 60
        while self.status is None and time.monotonic() < end:
            meanwhile()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return self.status


class Two(Case):
    """Two processes with pages: this one and a child."""

    def setUp(self):
        super().setUp()
        self.other, self.second = self.sleeper()

    def answer(self, words):
        if words.startswith("flush"):
            return tables.PAGE_REPLY_DONE, 156 * MIB, flushed()
        return tables.PAGE_REPLY_DONE, 0, {"options": [
            {"name": "MAX_IDLE", "old": "none", "new": "1G"}]}

    def two(self):
        first = self.page(body(pool(), pool(1, UUID_B)), answer=self.answer)
        second = self.page(body({**pool(), "allocated_bytes": 5 << 30, "idle_bytes": MIB,
                                 "reserved_bytes": (5 << 30) + MIB}),
                           answer=self.answer, **self.second)
        map_page(self.other, second)
        return first, second
