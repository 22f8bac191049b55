# SPDX-License-Identifier: BSD-2-Clause
"""The signal that empties a cache, for a process without a page (GPUCACHE_DIR=none, or a library
older than pages). A process that would not survive the signal does not get it."""
import os
import re
import signal

from gpucache import process
from gpucache.fault import NOT_SHOWN, Fault, reason


def signal_of(pid):
    """The signal that the library in the process listens to. The library takes its default for what
    it does not understand (parse_SIGNAL). Any other reading here would send a signal that means
    something else to the program."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        values = [item.partition(b"=")[2].strip(b" \t\r\n").upper()
                  for item in file.read().split(b"\0") if item.startswith(b"GPUCACHE_SIGNAL=")]
    value = values[0] if values else b""
    if value in (b"0", b"OFF", b"NO", b"NONE", b"FALSE"):
        raise Fault(f"it listens to no signal (GPUCACHE_SIGNAL={value.decode().lower()})")
    name = re.fullmatch(rb"(?:SIG)?(?:(USR2)|RTMIN(?:\+([0-9]+))?)", value)
    if not name:
        return signal.SIGUSR1
    if name[1]:
        return signal.SIGUSR2
    number = signal.SIGRTMIN + int((name[2] or b"0")[:255])
    return number if number <= signal.SIGRTMAX else signal.SIGUSR1


def has_control_thread(pid):
    """The thread that answers the signal is there once memory of a pool may be idle. Before, a
    handler for the signal is the program's own, or finds nothing to give back."""
    for task in set(os.listdir(f"/proc/{pid}/task")) - {str(pid)}:  # the first has the own name
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8", errors="replace") as comm:
                if comm.read() == "gpucache\n":
                    return True
        except OSError:
            pass  # it has ended
    return False


def send(pid):
    """Asks the process to give its idle memory back. Returns the signal's number."""
    try:
        if process.has_ended(pid):
            raise Fault("no such process")
        if not process.has_library(pid):
            with open(f"/proc/{pid}/maps", "rb"):
                raise Fault("it runs without libgpucache")
        number = signal_of(pid)
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            masks = re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status.read(), re.MULTILINE)
        if len(masks) != 2:
            raise Fault("it has ended")
        ignored, caught = (int(mask, 16) >> (number - 1) & 1 for mask in masks)
        if ignored:
            raise Fault(f"it ignores the signal ({int(number)}): choose another with "
                        "GPUCACHE_SIGNAL")
        if not caught:
            raise Fault("it has allocated no device memory yet, and the signal would end it")
        if not has_control_thread(pid):
            raise Fault("it has no idle device memory yet: nothing to give back")
        os.kill(pid, number)
        return int(number)
    except FileNotFoundError:
        raise Fault("no such process" if process.has_ended(pid) else NOT_SHOWN) from None
    except ProcessLookupError:
        raise Fault("it has ended") from None
    except OSError as error:
        raise Fault(reason(error)) from None
