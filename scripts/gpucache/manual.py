# SPDX-License-Identifier: BSD-2-Clause
"""The man page gpucache(1), of the parser in cli. The build calls it."""
import argparse
import re
import sys

from gpucache import cli, fault, tables

DATE = "2026-11-22"


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
        yield roff((action.help or "").rstrip(".")[:1].upper()
                   + (action.help or "").rstrip(".")[1:]) + "."


def _synopsis(parser):
    usage = re.sub(r"\s+", " ", parser.format_usage().replace("usage: ", "", 1)).strip()
    if "--max-idle" in usage:  # one flag for each option would be half a page
        usage = "gpucache run [--json] [--OPTION VALUE ...] [NAME=VALUE ...] [--] COMMAND ..."
    return usage.replace(" [-h]", "")


def page():
    """The lines of the man page."""
    parser = cli.make_parser()
    subs = cli.verbs_of(parser)
    yield '.\\" SPDX-License-Identifier: BSD-2-Clause'
    yield '.\\" Generated from the arguments of the tool.'
    yield f'.TH GPUCACHE 1 {DATE} "libgpucache {tables.VERSION}"'
    yield ".SH NAME"
    yield "gpucache \\- run programs under libgpucache; see and steer their GPU memory"
    yield ".SH SYNOPSIS"
    yield ".nf"
    for sub in subs.values():
        yield roff(_synopsis(sub))
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
