# SPDX-License-Identifier: BSD-2-Clause
"""Names of code, by its address in a trace: the object, and with addr2line (binutils) or
llvm-symbolizer the function and the line. Without these, the place in the object.

Of code without lines these programs name the nearest symbol before it, also when its function ends
there: a library without its local symbols would show some exported name for all of its code. So
such a name counts only if nm says that the symbol's bytes hold the address."""
import bisect
import itertools
import os
import re
import shutil
import struct
import subprocess

from gpucache import frame, text
from gpucache.trace import BEFORE, FROM_BEFORE, OTHERS, PythonFrame

PROGRAMS = ("llvm-symbolizer", "addr2line")
PATIENCE_S = 30
NAMES = {0: "code that is not known", OTHERS: "other call sites", BEFORE: FROM_BEFORE}
PT_LOAD = 1
INTERPRETER = re.compile(r"(lib)?python[0-9]")
# Code that calls the first function of a program or a thread.
BEFORE_MAIN = ("_start", "__libc_start_main", "start_thread", "clone", "clone3")


def _segments(path):
    """[(offset, vaddr, size in the file)] of an ELF file's loaded parts; [] if it is none."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return []
            start, = struct.unpack_from("<Q", head, 32)
            size, number = struct.unpack_from("<HH", head, 54)
            file.seek(start)
            rows = file.read(size * number)
    except OSError:
        return []
    found = []
    for at in range(0, len(rows) - 55, size or 56):
        kind, _, offset, vaddr, _, in_file = struct.unpack_from("<IIQQQQ", rows, at)
        if kind == PT_LOAD:
            found.append((offset, vaddr, in_file))
    return found


def _functions(path):
    """The first and the last byte of each symbol of an object that has a size, by the last one."""
    found = set()
    for more in ([], ["--dynamic"]):
        try:
            done = subprocess.run(["nm", "--defined-only", "--print-size", *more, path], text=True,
                                  timeout=PATIENCE_S, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, errors="replace", check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        for row in map(str.split, done.stdout.splitlines()):
            if len(row) == 4 and row[2] in "tTwWiuV":
                start, size = int(row[0], 16), int(row[1], 16)
                found.add((start + size - 1, start))
    return sorted(found)


class Place:
    """Where a site is. path, function, line: "" if not known. function: the whole name; str() makes
    the short one."""
    is_python = False

    def __init__(self, path, offset):
        self.path, self.offset = path, offset
        self.object = os.path.basename(path) or "not known"
        self.function = self.line = ""

    def __str__(self):
        if not self.path and self.offset in NAMES:
            return NAMES[self.offset]
        return frame.short(self.function) if self.function else f"{self.object}+0x{self.offset:x}"

    def whole(self):
        """The name with all that it says."""
        return self.function or str(self)


class PythonPlace:
    """Where a Python function is: the same members."""
    is_python = True

    def __init__(self, its):
        self.path, self.function = its.file, its.function
        self.object = os.path.basename(its.file)
        self.line = f"{self.object}:{its.line}"

    def __str__(self):
        return f"{self.function} ({self.line})"

    whole = __str__


class Symbols:
    """The places of all sites of a trace. with_names: ask a program for functions and lines."""

    def __init__(self, its, sites, with_names=True):
        self.places, self.trace, asked = {}, its, {}
        for address in {address for site in sites for address in its.frames(site)}:
            place = self._place(address)
            if isinstance(place, Place) and place.path:
                asked.setdefault(place.path, []).append(place)
        program = next(filter(shutil.which, PROGRAMS), None) if with_names else None
        for path, places in asked.items() if program else ():
            self._name(program, path, places)

    def _place(self, address):
        """Of an address, or of a PythonFrame."""
        if address not in self.places:
            found = isinstance(address, int) and address and self.trace.object_of(address)
            self.places[address] = Place(found.path, address - found.start + found.offset) \
                if found else Place("", address) if isinstance(address, int) \
                else PythonPlace(address)
        return self.places[address]

    @staticmethod
    def _name(program, path, places):
        segments = _segments(path)

        def vaddr(place):
            """Of the call: the site is where it returns to."""
            for offset, start, size in segments:
                if offset <= place.offset < offset + size:
                    return place.offset - offset + start - 1
            return None
        known = [(place, vaddr(place)) for place in places]
        known = [(place, at) for place, at in known if at is not None]
        if not known:  # the file is not here
            return
        words = [f"0x{at:x}" for _, at in known]
        command = [program, "-f", "-C", "-e", path] if program == "addr2line" else \
            [program, "--functions=linkage", "--demangle", "--inlining=false", "--output-style=GNU",
             f"--obj={path}"]
        try:
            done = subprocess.run(command, input="\n".join(words) + "\n", text=True,
                                  timeout=PATIENCE_S, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, errors="replace", check=False)
        except (OSError, subprocess.TimeoutExpired):
            return
        lines = done.stdout.rstrip("\n").split("\n")  # nothing else ends one
        if len(lines) > 2 * len(known):
            return  # a name has a line break: nobody knows which
        unsure = []
        for (place, at), function, line in zip(known, lines[::2], lines[1::2]):
            place.function = "" if function == "??" else text.printable(function)
            line = line.split(" (")[0]
            place.line = "" if line.startswith("??") or line.endswith(":?") else \
                text.printable(os.path.basename(line))
            if place.function and not place.line:
                unsure.append((place, at))
        functions = _functions(path) if unsure else []
        for place, at in unsure:
            index = bisect.bisect_left(functions, (at, 0))
            if index == len(functions) or not functions[index][1] <= at:
                place.function = ""

    def __getitem__(self, site):
        """Of the code that asked."""
        return self.path(site)[0]

    def path(self, site):
        """The places from the code that asked outwards (frame.py says which that is)."""
        found = self.whole_path(site)
        return found[frame.asked(found):]

    def through(self, site):
        """The place whose call it was, if other code asked for it; or None."""
        found = self.whole_path(site)
        return found[0] if frame.asked(found) else None

    def whole_path(self, site):
        """The places of a site's frames, the innermost first, without those before main. Frames of
        Python functions stand in place of those of their interpreter."""
        found = [self._place(address) for address in self.trace.frames(site)]
        python = [place for place in found if place.is_python]
        if python:
            native = found[:len(found) - len(python)]
            return [*itertools.takewhile(lambda its: not INTERPRETER.match(its.object), native),
                    *python]
        while len(found) > 1 and (found[-1].function in BEFORE_MAIN or
                                  found[-1].object.startswith("libc.so")):
            found.pop()
        return found
