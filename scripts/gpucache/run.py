# SPDX-License-Identifier: BSD-2-Clause
"""gpucache run: starts a program under the library."""
import json
import os
import re

from gpucache import library, options
from gpucache.fault import USAGE, Fault, complain, reason

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)

SLIP = 0.8  # a name that is so much like an option's is one that was mistyped


def environment(args):
    """The changed variables, and the command. Options come as flags, and as words NAME=VALUE before
    the command; all are checked before anything starts. A word NAME=VALUE whose name is no option
    sets a variable of the program's own; but all names that begin with GPUCACHE are options. The
    library itself warns of variables that were set before."""
    changes, words = {}, list(args.command)
    for env in options.ROWS:
        value = getattr(args, env, None)
        if value is not None:
            changes.update([options.checked(env, value)])
    while words and ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        if name.upper().startswith("GPUCACHE") or options.full(name) and name == name.upper():
            changes.update([options.checked(name, value)])
        else:
            near = options.nearest(name, SLIP) if name == name.upper() else None
            if near:
                complain(f"{name} is no option: it is set as a variable of the command; "
                         f"was {near} meant?")
            changes[name] = value
    if words[:1] == ["--"]:
        words = words[1:]
    elif words and words[0].startswith("-"):
        raise Fault(f"{words[0]}: flags of run stand before words NAME=VALUE, and -- before a "
                    "command that begins with a dash", USAGE)
    if not words:
        raise Fault("run needs a command; gpucache run --help says more", USAGE)
    changes = {env: options.absolute(env, value) for env, value in changes.items()}
    # The loader separates by colons and by blanks.
    before = changes.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
    others = [p for p in re.split(r"[:\s]+", before) if p]
    mine = library.path()
    if re.search(r"[:\s]", mine):
        raise Fault(f"the loader cannot preload {mine}: its path has a blank or a colon")
    if mine not in (os.path.realpath(p) for p in others):
        others.insert(0, mine)
    changes["LD_PRELOAD"] = ":".join(others)
    return changes, words


def show(args):
    changes, words = environment(args)
    if args.json:
        print(json.dumps({"environment": changes, "command": words}))
        return 0
    try:
        os.execvpe(words[0], words, {**os.environ, **changes})
    except OSError as error:
        raise Fault(f"{words[0]}: {reason(error)}",
                    127 if isinstance(error, FileNotFoundError) else 126) from None
