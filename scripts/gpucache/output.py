# SPDX-License-Identifier: BSD-2-Clause
"""Files that the tool writes: never one of its inputs nor a trace, and whole or not at all."""
import contextlib
import os
import stat
import time

from gpucache import trace
from gpucache.fault import USAGE, Fault


def _found(path):
    try:
        return os.stat(path)
    except OSError:
        return None


def check(path, inputs=()):
    """Faults if a write to path destroys one of the inputs, or a trace, which may be recorded now.
    path: None: stdout."""
    its = _found(1 if path is None else path)
    if not its or not stat.S_ISREG(its.st_mode):  # to open a pipe would wait
        return
    name = path or "stdout"
    if any(other and os.path.samestat(its, other) for other in map(_found, inputs)):
        raise Fault(f"{name}: it is one of the inputs, and is not written over", USAGE)
    if trace.is_trace(path or "/proc/self/fd/1"):
        raise Fault(f"{name}: it is a trace, and is not written over", USAGE)


def _part(path):
    """(descriptor, name) of a new file beside path that may take its place. None: path is written
    to itself: a device, a link, a file with other names or of another user."""
    name, mode = f".gpucache-{os.getpid()}-{time.time_ns()}.part", None
    part = os.path.join(os.path.dirname(path), name)
    try:
        if os.path.lexists(path):
            its = os.lstat(path)
            if not stat.S_ISREG(its.st_mode) or its.st_nlink > 1 or its.st_uid != os.geteuid() \
                    or not os.access(path, os.W_OK):
                return None
            mode = stat.S_IMODE(its.st_mode)
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        if mode is not None:
            os.fchmod(number, mode)
        return number, part
    except OSError:
        return None  # open() of path says why, if that fails, too


@contextlib.contextmanager
def written(path, is_binary):
    """The file, open for writing. A reader sees the old contents or all of the new ones."""
    part = _part(path)
    form = {"mode": "wb"} if is_binary else {"mode": "w", "encoding": "utf-8"}
    try:
        with open(part[0] if part else path, **form) as out:
            yield out
        if part:
            os.replace(part[1], path)
    except BaseException:
        if part:
            os.unlink(part[1])
        raise
