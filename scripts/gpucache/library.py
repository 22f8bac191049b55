# SPDX-License-Identifier: BSD-2-Clause
"""gpucache library: where libgpucache.so is."""
import json
import os

from gpucache import place, tables
from gpucache.fault import DONE, Fault


def path():
    """Beside this tool in a build folder or an unpacked release, else where it was installed."""
    tool = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    above = os.path.join(os.path.dirname(tool), "..")
    for name in (os.path.join(above, "shim", "libgpucache.so"),
                 os.path.join(above, "lib", "libgpucache.so"), place.LIBRARY):
        if os.path.exists(name):
            return os.path.realpath(name)
    raise Fault(f"there is no {place.LIBRARY}: is libgpucache installed?")


def show(args):
    found = path()
    print(json.dumps({"library": found, "version": tables.VERSION}) if args.json else found)
    return DONE
