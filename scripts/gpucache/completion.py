# SPDX-License-Identifier: BSD-2-Clause
"""gpucache completion: the script by which a shell asks this tool what may follow."""
import json

from gpucache.fault import DONE, needed


def show(args):
    script = needed("argcomplete", "completion").shellcode(["gpucache"], shell=args.shell)
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script)
    return DONE
