# SPDX-License-Identifier: BSD-2-Clause
"""gpucache stat --owners: the live memory of a process by the library whose code asked for it, as
the process's trace says so far. Without a trace nobody knows: the library keeps no owner with a
block, as each allocation and each free out of a thread's cache would have to note it, and one that
is noted at large blocks only is wrong as soon as the cache hands such a block to other code."""
import collections
import json
import math
import os
import stat
import time

from gpucache import recording, text, trace, usage
from gpucache.fault import Fault

ABOUT = "Who asked for live memory is known while a trace records: start the program with " \
        "`gpucache run --trace FILE`, or record from now on with `gpucache trace PID`."


def _path(process):
    """The file of the trace that is on. Faults if there is none."""
    told, name = process.options(), recording.of(process)
    if told.get("TRACE_ON") == "oom":
        raise Fault(f"PID {process.pid}: it keeps its latest events in memory, and writes them "
                    "when an allocation fails (GPUCACHE_TRACE_ON=oom). " + ABOUT)
    if not name:
        raise Fault(f"PID {process.pid}: it records no trace. {ABOUT}")
    where = recording.place(process, name)
    try:
        found = os.stat(where)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.stat(f"/proc/{process.pid}").st_uid:
            return where
    except OSError:
        pass
    raise Fault(f"PID {process.pid}: its trace {name} cannot be read from here")


def of(process, seconds=math.inf):
    """[(owner, bytes, blocks)] of what is live, in the pool and beside it, the most first. Faults
    if that takes longer."""
    if process.status != "running":
        raise Fault(f"PID {process.pid}: it has ended; gpucache report shows its trace")
    with trace.Trace(_path(process), time.monotonic() + seconds) as its:
        used = usage.Usage(its)
        sizes, blocks = collections.Counter(), collections.Counter()
        for site, its in used.sites.items():
            if its.blocks:
                owner = used.owner(site)
                sizes[owner] += its.live
                blocks[owner] += its.blocks
        return [(owner, size, blocks[owner]) for owner, size in sizes.most_common()]


def words(process, as_json):
    """For people, or one line of JSON."""
    found = of(process)
    if as_json:
        return json.dumps({"pid": process.pid, "owners": [
            {"owner": owner, "bytes": size, "blocks": number} for owner, size, number in found]})
    rows = [[text.size(size), text.count(number), owner] for owner, size, number in found]
    return text.table(("LIVE", "BLOCKS", "ASKED FOR BY"), rows, left=("ASKED FOR BY",)) \
        if rows else "No memory is live."
