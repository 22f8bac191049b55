# SPDX-License-Identifier: BSD-2-Clause
"""The file in which a process records what it does with GPU memory (GPUCACHE_TRACE)."""
import os
import re
import struct
import time

from gpucache import tables, text

TICK_S = 2.5  # the library writes the time into the header each second


def named(process, name):
    """As the library names the file: %p is the process id."""
    return name.replace("%p", str(process.inner_pid))


def shown(path):
    """As Process.options has it. A page has U+FFFD for each byte that is no UTF-8."""
    words = os.fsencode(path).decode("utf-8", "surrogateescape")
    return text.printable(re.sub("[\udc80-\udcff]", "\ufffd", words))


def place(process, name):
    """Where the tool finds a file of the process."""
    where = "root" if os.path.isabs(name) else "cwd/"
    return f"/proc/{process.pid}/{where}{name}"


def _last_ns(path):
    """When a trace was last written to, as its header says. None: there is no trace. OSError: that
    is not to be known."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(fd, "rb") as file:
        head = file.read(tables.TRACE_HEADER_BYTES)
    offset, form = tables.TRACE_HEADER["last_ns"]
    is_one = head.startswith(tables.TRACE_MAGIC) and len(head) == tables.TRACE_HEADER_BYTES
    return struct.unpack_from(form, head, offset)[0] if is_one else None


def of(process):
    """The file of the trace that is on, as `shown` has it. None: there is none, as with
    GPUCACHE_TRACE_ON=oom, and where the library could not make the file."""
    told = process.options()
    name = told.get("TRACE", "none")
    if name.lower() in ("", "none") or told.get("TRACE_ON") == "oom":
        return None
    name = named(process, name)
    try:
        is_there = bool(re.search("[?\ufffd]", name)) or _last_ns(place(process, name)) is not None
    except OSError:
        is_there = True
    return name if is_there else None


def goes_on(process, name):
    """Is the file of the trace this one, and is it written to? Takes a second."""
    mine, path = of(process), place(process, named(process, name))
    try:
        if not mine or mine != shown(name) and not os.path.samefile(path, place(process, mine)):
            return False
        before, end = _last_ns(path), time.monotonic() + TICK_S
        while before is not None and time.monotonic() < end:
            time.sleep(0.05)
            if _last_ns(path) != before:
                return True
    except OSError:
        pass
    return False
