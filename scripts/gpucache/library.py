# SPDX-License-Identifier: BSD-2-Clause
"""gpucache library: where libgpucache.so is."""
import json
import os

from gpucache import place, tables
from gpucache.fault import DONE, Fault


def path():
    """Beside this tool in a build folder, else where it was installed, or moved with the tool. A
    wheel's place has only LIBRARY."""
    archive = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    folder = os.path.dirname(archive)
    for name in (os.path.join(folder, "..", "shim", "libgpucache.so"),
                 os.path.join(folder, getattr(place, "FROM_TOOL", place.LIBRARY)), place.LIBRARY):
        if os.path.exists(name):
            return os.path.realpath(name)
    raise Fault(f"there is no {place.LIBRARY}: is libgpucache installed?")


def show(args):
    found = path()
    print(json.dumps({"library": found, "version": tables.VERSION}) if args.json else found)
    return DONE
