# SPDX-License-Identifier: BSD-2-Clause
"""The man page gpucache(1), of the parser in cli. The build calls it."""
import argparse
import re
import sys
import textwrap

from gpucache import cli, fault, tables

DATE = "2026-11-25"
WIDTH = 72  # man indents by some columns


CACHED = (
    ".SH CACHED MEMORY",
    "PyTorch, CuPy and Numba keep memory that no tensor or array uses.",
    "For the library such memory is live.",
    "ps, stat and top ask each process how much it is, and top does so every three seconds.",
    "The library never asks by itself, and with \\-\\-no\\-ask nobody asks.",
    "The question runs on a thread of the library's own, which waits for the interpreter's lock.",
    "If no answer comes within 0.3 s, the last figure is shown with its age; ? if there is none.",
    ".PP",
    "PyTorch tells the figure under a lock of its allocator.",
    "So it is not asked while a thread of the program waits in the driver for GPU work, or while a",
    "graph is being captured: the lock may be held then.",
    "The library tries again until the time is over.",
    ".PP",
    "? stands for what cannot be known safely.",
    "RMM tells the size of its pools, and not how much of it is free.",
    "PyTorch in a free\\-threaded Python is not asked, as other threads might have to wait for the "
    "answer.",
    "A process with an older libgpucache knows no such question.",
    "JAX and TensorFlow have no cache that a flush could empty, and count as LIVE.",
)
NVML = (
    ".SH PROCESSES WITHOUT THE LIBRARY",
    "ps and top take them from the driver: by the Python package nvidia\\-ml\\-py if it is there, "
    "else by libnvidia\\-ml.so.1, else by the program nvidia\\-smi.",
    "If the driver does not answer within three seconds, they go on without it, and say so.",
    "In a container the driver may tell process ids of the host.",
    "What is no process here with the driver's files mapped is shown as not visible here.",
    "One that has ended is shown until the driver counts its memory no longer.",
)


def roff(words):
    """Text as roff: nothing in it is an escape or a control line; a minus sign can be copied. Each
    sentence begins a line."""
    words = words.replace("\\", "\\e").replace("-", "\\-").replace("%%", "%")
    lines = re.sub(r"(?<=[a-z)]\.) +(?=[A-Z])", "\n", words).split("\n")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def _arguments(parser):
    for action in parser._actions:  # pylint: disable=protected-access # argparse has no other way
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        name = ", ".join(action.option_strings)
        value = action.metavar or "|".join(action.choices or ())
        yield ".TP"
        if not name:
            yield f".I {roff(value)}"
        elif action.nargs == 0:
            yield f".B {roff(name)}"
        else:
            yield f'.BI "{roff(name)} " "{roff(value)}"'
        words = getattr(action, "full", action.help or "").rstrip(".")
        yield roff(words[:1].upper() + words[1:]) + "."


def _synopsis(parser):
    """Lines that are no wider than a terminal."""
    usage = re.sub(r"\s+", " ", parser.format_usage().replace("usage: ", "", 1)).strip()
    # No break inside of brackets.
    words = re.sub(r"\[[^]]*\]", lambda m: m[0].replace(" ", "\0"), usage.replace(" [-h]", ""))
    return [line.replace("\0", " ") for line in
            textwrap.wrap(words, WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False)]


def page():
    """The lines of the man page."""
    parser = cli.make_parser()
    subs = cli.verbs_of(parser)
    yield '.\\" SPDX-License-' 'Identifier: BSD-2-Clause'
    yield '.\\" Generated from the arguments of the tool.'
    yield f'.TH GPUCACHE 1 {DATE} "libgpucache {tables.VERSION}"'
    yield ".SH NAME"
    yield "gpucache \\- run programs under libgpucache; see and steer their GPU memory"
    yield ".SH SYNOPSIS"
    yield ".nf"
    for sub in subs.values():
        yield from map(roff, _synopsis(sub))
    yield ".fi"
    yield ".SH DESCRIPTION"
    yield roff(parser.description + " The library keeps the state of each process in a page, a "
               "file in the directory GPUCACHE_DIR (see gpucache(7)). The tool reads these pages "
               "and asks through them; reading disturbs no program. It sees the processes of its "
               "own user; root may ask for all.")
    for verb, sub in subs.items():
        yield f".SH GPUCACHE {verb.upper()}"
        yield roff(sub.description)
        yield from _arguments(sub)
    yield from CACHED
    yield from NVML
    yield ".SH EXIT STATUS"
    for code, meaning in fault.EXIT_CODES:
        yield f".TP\n.B {code}\n{roff(meaning[0].upper() + meaning[1:])}."
    yield ".SH FILES"
    yield f".TP\n.I {roff('/dev/shm/gpucache-UID/*' + tables.PAGE_SUFFIX)}"
    yield "The pages of a user's processes; in /tmp where there is no /dev/shm."
    yield ".SH ENVIRONMENT\n.TP\n.B GPUCACHE_DIR"
    yield "A directory of pages in which the tool looks first."
    yield ".TP\n.B NO_COLOR\nIf it is set and not empty, there are no colours."
    yield ".SH SEE ALSO\n.BR gpucache (7)"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
