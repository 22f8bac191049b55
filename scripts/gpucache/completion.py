# SPDX-License-Identifier: BSD-2-Clause
"""gpucache completion: the script by which a shell asks this tool what may follow."""
from gpucache.fault import DONE, needed


def show(args):
    print(needed("argcomplete", "completion").shellcode(["gpucache"], shell=args.shell))
    return DONE
