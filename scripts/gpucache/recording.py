# SPDX-License-Identifier: BSD-2-Clause
"""The file in which a process records what it does with GPU memory (GPUCACHE_TRACE)."""
import os
import re
import stat
import struct
import time

from gpucache import tables, text

TICK_S = 2.5  # the library writes the time into the header each second


def named(process, name):
    """As the library names the file: %p is the process id, and %% is %."""
    return re.sub("%[p%]", lambda m: "%" if m[0] == "%%" else str(process.inner_pid), name)


def shown(path):
    """As Process.options has it. A page has U+FFFD for each byte that is no UTF-8."""
    words = os.fsencode(path).decode("utf-8", "surrogateescape")
    return text.printable(re.sub("[\udc80-\udcff]", "\ufffd", words))


def place(process, name):
    """Where the tool finds a file of the process."""
    where = "root" if os.path.isabs(name) else "cwd/"
    return f"/proc/{process.pid}/{where}{name}"


def _last_ns(process, name):
    """When the process last wrote to this trace, as the header says. None: there is no trace of
    this process. OSError: that is not to be known."""
    try:
        fd = os.open(place(process, name), os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # to open a device may do something
            return None
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            head = file.read(tables.TRACE_HEADER_BYTES)
    finally:
        os.close(fd)
    if not head.startswith(tables.TRACE_MAGIC) or len(head) < tables.TRACE_HEADER_BYTES:
        return None
    pid, last_ns = (struct.unpack_from(form, head, offset)[0] for offset, form in
                    (tables.TRACE_HEADER["pid"], tables.TRACE_HEADER["last_ns"]))
    return last_ns if pid == process.inner_pid else None


def of(process):
    """The file of the trace that is on, as `shown` has it. None: there is none, as with
    GPUCACHE_TRACE_ON=oom, and where the library could not make the file."""
    told = process.options()
    name = told.get("TRACE", "none")
    if name.lower() in ("", "none") or told.get("TRACE_ON") == "oom":
        return None
    name = named(process, name)
    try:
        is_there = bool(re.search("[?\ufffd]", name)) or _last_ns(process, name) is not None
    except OSError:
        is_there = True
    return name if is_there else None


def goes_on(process, name):
    """Is the file of the trace this one, and is it written to? Takes a second."""
    mine, name = of(process), named(process, name)
    try:
        if not mine or shown(name) not in (mine, os.path.basename(mine)) and \
                not os.path.samefile(place(process, name), place(process, mine)):
            return False
        before, end = _last_ns(process, name), time.monotonic() + TICK_S
        while before is not None and time.monotonic() < end:
            time.sleep(0.05)
            if _last_ns(process, name) != before:
                return True
    except OSError:
        pass
    return False
