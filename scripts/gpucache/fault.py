# SPDX-License-Identifier: BSD-2-Clause
"""What keeps a verb from its work, as one sentence for the user, and the exit codes."""
import importlib
import os
import shutil
import signal
import sys
import sysconfig
import threading

from gpucache import text

DONE, NOT_DONE, USAGE, MISSING, NO_RECEIPT = 0, 1, 2, 3, 4
EXIT_CODES = (
    (DONE, "everything that was asked for is done"),
    (NOT_DONE, "something was not found, not permitted or not done; a line on stderr says what"),
    (USAGE, "the arguments are wrong; nothing was done"),
    (MISSING, "a Python package is missing that this verb needs"),
    (NO_RECEIPT, "flush: a process without a page was asked by its signal; nothing tells the rest"),
    (126, "run: the command cannot be started"),
    (127, "run: there is no such command"),
    (129, "the terminal was closed; what was not done is withdrawn"),
    (130, "interrupted from the keyboard; what was not done is withdrawn"),
    (141, "the reader of the output stopped reading"),
    (143, "ended by SIGTERM; what was not done is withdrawn"),
)

NOT_SHOWN = "it may not be looked at: permission denied"

# Module -> the name by which pip installs it.
PACKAGES = {"rich": "rich", "prometheus_client": "prometheus_client", "pynvml": "nvidia-ml-py",
            "argcomplete": "argcomplete"}


class Fault(Exception):
    """One clear sentence, without a full stop, and the exit code that it leads to. It may quote
    what another user chose, such as the name of a directory: no control character gets through."""

    def __init__(self, sentence, status=NOT_DONE):
        super().__init__(text.printable(sentence))
        self.status = status


def complain(sentence):
    """Writes one line to stderr."""
    print(f"gpucache: {sentence}", file=sys.stderr)


def end_in_order():
    """SIGTERM and the end of the terminal end the tool like an exit: requests are withdrawn, and
    the terminal is as before. nohup has SIGHUP ignored, and it stays so."""
    def leave(number, _):
        sys.exit(128 + number)
    for number in signal.SIGTERM, signal.SIGHUP:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)


def hold_endings(hold):
    """The signals that end the tool wait from now on, or no longer."""
    signal.pthread_sigmask(signal.SIG_BLOCK if hold else signal.SIG_UNBLOCK,
                           (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def start_thread(target):
    """A thread that ends with the tool. No signal comes to it: those that wait in the main thread
    would not wait there."""
    thread = threading.Thread(target=target, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def ending(error):
    """The exit code of the signal that was ending the tool when this error came. A last word to a
    terminal that has gone is such an error. None: there was none."""
    while error is not None and not isinstance(error, SystemExit):
        error = error.__context__
    return error.code if error else None


def remedy(module):
    """What to type for a module that is missing. pip refuses to install for the Python of Debian's
    packages, where a file says so."""
    refuses = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and os.path.exists(refuses) and shutil.which("apt-get"):
        return f"sudo apt-get install python3-{module.replace('_', '-')}"
    return f"pip install {PACKAGES[module]}"


def needed(module, verb):
    """The module, which is no part of Python."""
    top = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Fault(f"{verb} needs the Python package {PACKAGES[top]}: {remedy(top)}",
                    MISSING) from None


def reason(error):
    """What an OSError says, without its number."""
    return (error.strerror or str(error)).lower()
