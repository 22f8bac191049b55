# SPDX-License-Identifier: BSD-2-Clause
"""What /proc says of a process. Each function returns None where the process has ended, or where
the caller may not know; nothing here changes anything. OSError: the tool itself lacks descriptors
or memory."""
import errno
import os
import pwd
import re
from functools import lru_cache

from gpucache import text

COMMAND_BYTES = 16384  # of a command that are read; a process may have megabytes of it
OWN_TROUBLES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
JOBS = (
    ("slurm", re.compile(r"/job_([0-9]+)(?:/|$)")),
    ("pod", re.compile(r"kubepods[^/]*(?:/[^/]+)*?/[^/]*pod([0-9a-f]{8}[-_0-9a-f]{20,})")),
    ("container", re.compile(r"(?:docker|libpod|crio|cri-containerd)[-/]([0-9a-f]{12})[0-9a-f]*")),
)


def _read(pid, name, most=-1):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(most)
    except OSError as error:
        if error.errno in OWN_TROUBLES:
            raise
        return None


def is_pid(words):
    """Can this be a process id?"""
    return words.isdecimal() and len(words) <= 10 and 0 < int(words) < 1 << 31


def pids():
    """All that /proc shows."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def stat_fields(pid):
    """The fields of /proc/PID/stat from the third on, as text."""
    data = _read(pid, "stat")
    return data.rpartition(b")")[2].decode().split() if data else None


def start_ticks(pid):
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def state(pid):
    """A letter: R, S, D, T, t, Z ..."""
    fields = stat_fields(pid)
    return fields[0] if fields else None


def _is_gone(pid):
    """The kernel's answer. /proc may hide processes of other users (mount option hidepid)."""
    try:
        if pid > 0:
            os.kill(pid, 0)
    except PermissionError:
        return False
    except (ProcessLookupError, OverflowError):
        return True
    return pid <= 0


def has_ended(pid):
    """Is it gone, or does it only wait for its parent? The first thread of a process may end before
    the others: it is then in the same state as a process that has ended."""
    letter = state(pid)
    if letter != "Z":
        return letter is None and _is_gone(pid)
    try:
        return len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


def uid(pid):
    """The user, as the owner of its files in /proc; an undumpable process shows as root's."""
    data = _read(pid, "status")
    match = re.search(rb"^Uid:\s*[0-9]+\s+([0-9]+)", data or b"", re.MULTILINE)
    return int(match[1]) if match else None


def namespace(pid):
    """The inode of its pid namespace."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except (OSError, ValueError):
        return None


def inner_pid(pid):
    """Its pid in its own namespace."""
    match = re.search(rb"^NSpid:\s*([0-9 \t]+)$", _read(pid, "status") or b"", re.MULTILINE)
    return int(match[1].split()[-1]) if match else None


@lru_cache(maxsize=None)
def boot_id():
    """Of this machine's kernel, as a page has it. b"": /proc does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""


def identity(pid):
    """(namespace or None, pid there, start): what the name of a page has. None: it has ended."""
    start, inner = start_ticks(pid), inner_pid(pid)
    if start is None or inner is None or has_ended(pid):
        return None
    return namespace(pid), inner, start


def name(pid):
    """The name of the file that runs, which GPUCACHE_ONLY knows too; where the caller may not know
    it, what the process calls itself."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        return text.printable(re.sub(r" \(deleted\)$", "", os.path.basename(path)))
    except OSError:
        pass
    data = _read(pid, "comm")
    return text.printable(data.decode(errors="replace").rstrip("\n")) if data else None


def command(pid):
    data = _read(pid, "cmdline", COMMAND_BYTES + 1) or b""
    words = data[:COMMAND_BYTES].decode(errors="replace").rstrip("\0")
    words = text.printable(re.sub("[\0\t\n\r]", " ", words))
    return words + "..." * (len(data) > COMMAND_BYTES) or name(pid)


def script_of(words):
    """The name of the script, or of the module, that Python runs, by the words of its command. ""
    if it runs none."""
    rest = iter(words[1:])
    for word in rest:
        if word == "--check-hash-based-pycs":
            next(rest, "")
        elif not word.startswith("-"):
            return os.path.basename(word.rstrip("/"))
        if word == "-":
            return ""
        option = re.match("-[a-zA-Z?]*?([cmWX])(.*)", word)
        value = option and (option[2] or next(rest, ""))
        if option and option[1] in "cm":
            return value if option[1] == "m" else ""
    return ""


def script(pid):
    """Of a process whose file is a Python. The program itself may have written something else over
    its command."""
    if not re.fullmatch("(python|pypy)[0-9.]*[a-z]?", name(pid) or ""):
        return ""
    data = _read(pid, "cmdline", COMMAND_BYTES) or b""
    return text.printable(script_of(data.decode(errors="replace").rstrip("\0").split("\0")))


def environ(pid, variable):
    """The value that the process had at its start. None: unset, or not to be known."""
    head = variable.encode() + b"="
    for item in (_read(pid, "environ") or b"").split(b"\0"):
        if item.startswith(head):
            return os.fsdecode(item[len(head):])
    return None


def environment(pid):
    """All variables that the process had at its start, as far as one may know."""
    items = [item.partition(b"=") for item in (_read(pid, "environ") or b"").split(b"\0")]
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in items if equals}


def mapped(pid, pattern):
    """What of the mapped files' names matches, as a set. None: as of maps."""
    data = _read(pid, "maps")
    return {found.decode() for found in pattern.findall(data)} if data else None


def maps(pid, file_name):
    """Is a file whose path has this in it mapped? None: not to be known, as of a process whose
    first thread has ended."""
    data = _read(pid, "maps")
    return file_name.encode() in data if data else None


def has_library(pid):
    """Is libgpucache loaded? None: not to be known."""
    return maps(pid, "/libgpucache")


def job_of(cgroup):
    """slurm:1234, pod:UID, container:0123456789ab, or "", of the text of /proc/PID/cgroup."""
    for kind, pattern in JOBS:
        match = pattern.search(cgroup)
        if match:
            return f"{kind}:{match[1].replace('_', '-') if kind == 'pod' else match[1]}"
    return ""


def job(pid):
    return job_of((_read(pid, "cgroup") or b"").decode(errors="replace"))


@lru_cache(maxsize=None)
def user_name(number):
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)
