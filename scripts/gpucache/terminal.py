# SPDX-License-Identifier: BSD-2-Clause
"""The terminal that `top` and `stat --watch` draw on: its size, what fits into it, and a word when
it has another size. Knows nothing of processes."""
import os
import select
import shutil
import signal
import time
import unicodedata

SIZE = (80, 24)  # of a terminal that does not know it


def size():
    """(columns, lines), each at least 1."""
    return shutil.get_terminal_size(SIZE)


def _cells(letter):
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def width(words):
    """How many columns the words take."""
    return sum(map(_cells, words))


def fit(words, columns, right=False):
    """The words in exactly so many columns, at their left or right edge."""
    words = cut(words, columns)
    blanks = " " * (columns - width(words))
    return blanks + words if right else words + blanks


def cut(words, columns):
    """The words, no longer than so many columns. A … says that something is missing."""
    if width(words) <= columns:
        return words
    if columns < 1:
        return ""
    kept, room = "", columns - 1
    for letter in words:
        room -= _cells(letter)
        if room < 0:
            break
        kept += letter
    return kept + "…"


class Resizes:
    """Tells when the terminal has another size, or when the tool goes on after ctrl-Z: then others
    wrote there. A context. A signal writes to the pipe at once. A handler in Python would wait for
    the end of a select that begins just behind the signal."""

    def __enter__(self):
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fd_before = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.before = [(number, signal.signal(number, lambda *_: None))
                       for number in (signal.SIGWINCH, signal.SIGCONT)]
        return self

    def __exit__(self, *_):
        for number, handler in self.before:
            signal.signal(number, handler)
        signal.set_wakeup_fd(self.fd_before)
        os.close(self.reader)
        os.close(self.writer)

    def wait(self, until, *others):
        """Waits until this moment of time.monotonic, a signal, such as of a new size, or one of the
        other descriptors. (was there a signal?, the others that can be read)"""
        ready, _, _ = select.select([self.reader, *others], [], [],
                                    max(0.0, until - time.monotonic()))
        resized = self.reader in ready
        if resized:
            os.read(self.reader, 4096)
        return resized, [fd for fd in ready if fd != self.reader]


class Picture:
    """Lines on the terminal that are drawn over again, without a screen of their own: the last
    picture stays. The cursor is at the end of its last line."""

    def __init__(self, stream):
        self.stream, self.num_lines = stream, 0

    def draw(self, lines, anew=False):
        """The lines in place of those before. None may be longer than the terminal is wide. anew:
        it has another size, so nobody knows where the lines before are."""
        if anew:
            start = "\033[H\033[2J"
        else:
            start = "\r" + (f"\033[{self.num_lines - 1}A" if self.num_lines > 1 else "") + "\033[J"
        self.num_lines = len(lines)
        self.stream.write(start + "\n".join(lines))
        self.stream.flush()

    def end(self):
        """What follows stands below."""
        if self.num_lines:
            self.stream.write("\n")
            self.stream.flush()
