# SPDX-License-Identifier: BSD-2-Clause
"""Figures and tables for people. Numbers are integers with a unit of powers of 1024; no locale."""
import os
import re
import sys
import time

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
CELL_LEAST = 8  # letters of a cell that is cut
BARS = "▁▂▃▄▅▆▇█"
# What stands for a sign where the terminal has ASCII alone; each is one letter.
ASCII = str.maketrans("█▓▒▚·▁▂▃▄▅▆▇▌│┌┐└┘─┤┬▲▼↑↓…–", "#=-%.._:-=+*>|++++-|+^v^v~-")


def size(num_bytes):
    """12 MiB, 1.5 GiB: at most four letters of number."""
    if num_bytes is None:
        return "-"
    value, power = float(num_bytes), 0
    while value >= 1023.5 and power < len(UNITS) - 1:
        value /= 1024
        power += 1
    digits = f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"
    return f"{digits[:-2] if digits.endswith('.0') else digits} {UNITS[power]}"


def count(number):
    """1,234,567"""
    return f"{number:,}"


def counted(number, noun):
    """1 pair, 1,234 pairs"""
    return f"{count(number)} {noun}{'s' * (number != 1)}"


def rate(a_second):
    """0/s, 310/s, 6.8k/s, 12M/s"""
    if a_second is None:
        return "-"
    for factor, unit in ((10**6, "M"), (10**3, "k")):
        if a_second >= 0.9995 * factor:
            value = a_second / factor
            return f"{value:.1f}{unit}/s" if value < 9.95 else f"{value:.0f}{unit}/s"
    return f"{a_second:.0f}/s"


def change(num_bytes):
    """+82 MiB, -1 GiB, +0: how much more or less."""
    if num_bytes is None:
        return "-"
    return f"{'-' if num_bytes < 0 else '+'}{size(abs(num_bytes))}" if num_bytes else "+0"


def seconds(ns):
    """1.97 s"""
    return f"{ns / 1e9:.3g} s" if ns < 100e9 else f"{ns / 1e9:.0f} s"


def duration(ns):
    """11 ms, 1.50 s, 3 h 12 min"""
    if ns >= 3600 * 10**9:
        return f"{ns // (3600 * 10**9)} h {ns // (60 * 10**9) % 60} min"
    if ns >= 60 * 10**9:
        return f"{ns // (60 * 10**9)} min {ns // 10**9 % 60} s"
    for unit, name in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if ns >= unit:
            value = ns / unit
            return f"{value:.0f} {name}" if value >= 10 else f"{value:.2g} {name}"
    return f"{ns} ns"


def age(seconds):
    """5s, 3min, 2h: as short as a cell needs it."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s"


def moment(unix_ns):
    """2026-01-02 03:04:05, in the local time zone. A nonsensical time is said to be unknown."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def share(part, whole):
    """98.5 %; - where a number is not known, or the whole is nothing."""
    return f"{100 * part / whole:.1f} %" if whole and part is not None else "-"


def parse_size(words):
    """Bytes of 2G, 512M, 1.5g or 100. None: not a size."""
    match = re.fullmatch(r"\s*([0-9]+)(\.[0-9]+)?\s*([kmgt]?)(i?b)?\s*", words,
                         re.ASCII | re.IGNORECASE)
    if not match or (match[4] or "").lower() == "ib" and not match[3]:
        return None
    factor = FACTORS[match[3].lower()]
    if match[2] and factor == 1:
        return None
    found = int(match[1]) * factor + int(float(match[2] or 0) * factor)
    return found if found < 1 << 64 else None


def parse_time(words):
    """Seconds of 5s, 200ms, 1m or 2. None: not a time."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|min|h|)\s*", words,
                         re.ASCII | re.IGNORECASE)
    return float(match[1]) * TIMES[match[2].lower()] if match else None


def printable(words):
    """Text from another process: control characters and broken letters become a question mark."""
    return "".join(c if c.isprintable() else "?" for c in words.replace("\udcff", "?"))


def spark(values, width):
    """The last values as bars of eight heights; the highest of them is full."""
    values = list(values)[-width:]
    top = max(values, default=0)
    return "".join(BARS[min(7, int(7 * v / top + 0.5))] if top else BARS[0] for v in values)


def is_unicode(stream=None):
    """Can the stream, or else stdout, write more than ASCII?"""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    try:
        BARS.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def is_terminal():
    """Is stdout a terminal that can do more than a printer?"""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def has_colours():
    """Only on a terminal, and where NO_COLOR (https://no-color.org) is not set."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def bold(words):
    """The words, bold if stdout is a terminal."""
    return f"\033[1m{words}\033[0m" if words and has_colours() else words


def table(heads, rows, left=()):
    """Columns two blanks apart; the columns named in left begin at their left edge, the others end
    at their right. The last column is as long as it is."""
    widths = [max([len(h)] + [len(r[i]) for r in rows]) for i, h in enumerate(heads)]

    def line(cells, mark=str):
        parts = []
        for head, cell, width in zip(heads, cells, widths):
            parts.append(cell.ljust(width) if head in left else cell.rjust(width))
        return mark("  ".join(parts).rstrip())
    return "\n".join([line(heads, bold)] + [line(r) for r in rows])


def cut(words, most, keep_end=False):
    """At most so many letters of the words; … stands for what is missing, at the end or, to keep a
    third of them behind it, in between."""
    if len(words) <= most:
        return words
    end = max(0, most - 1) // 3 if keep_end else 0
    return words[:max(0, most - 1 - end)] + "…" + words[len(words) - end:]


def fitted(heads, rows, cuts, most):
    """The rows, with cells cut so that their table takes at most so many columns. cuts: {head of a
    column whose cells may be cut: keep_end}. What such columns have for themselves is shared out:
    none is cut while another has more than it. None gets less than CELL_LEAST."""
    widths = {head: max([len(head)] + [len(row[i]) for row in rows])
              for i, head in enumerate(heads)}
    narrow = sorted((head for head in widths if head in cuts), key=widths.get)
    left = most - 2 * (len(heads) - 1) - sum(widths[head] for head in heads if head not in cuts)
    given = {}
    for number, head in enumerate(narrow):
        given[head] = max(CELL_LEAST, min(widths[head], left // (len(narrow) - number)))
        left -= given[head]
    return [[cut(cell, given[head], cuts[head]) if head in given else cell
             for head, cell in zip(heads, row)] for row in rows]
