# SPDX-License-Identifier: BSD-2-Clause
"""gpucache ps: one line for each process and GPU, with or without the library."""
import json
import os
import shutil
import sys

from gpucache import gpu as gpu_module
from gpucache import page, process, state, text
from gpucache.fault import DONE, NOT_DONE, complain

HEADS = ("PID", "USER", "GPU", "LIVE", "IDLE", "RESERVED", "PEAK", "HITS", "LIMITS", "JOB", "NAME")
SPARED = ("PEAK", "HITS", "LIMITS", "JOB")
LEFT = ("USER", "LIMITS", "JOB", "NAME")


def rows_of(found):
    """The lines of one process, as lists of cells in the order of HEADS."""
    note = f" ({found.note})" if found.note else ""
    tail = [found.limits() or "-", found.job or "-", found.name + note]
    head = [found.shown_pid(), found.user]
    if not found.gpus:
        return [head + ["-"] * 6 + tail]
    return [head + [gpu.shown(), text.size(gpu.live()), text.size(gpu.idle()),
                    text.size(gpu.reserved()), text.size(gpu["reserved_peak_bytes"]),
                    text.share(gpu["num_hits"], gpu["num_allocs"])] + tail
            for gpu in found.gpus]


def others(gpus, found, all_users):
    """Processes on a GPU that have no page, as NVML lists them: of the user, or of everybody."""
    known = {p.pid for p in found}
    listed = []
    for entry in gpus.processes:
        pid = entry["pid"]
        uid = process.uid(pid)
        if pid in known or uid is None or not (all_users or uid == process.uid("self")):
            continue
        loaded = process.has_library(pid)
        listed.append({"pid": pid, "user": process.user_name(uid), "name": process.name(pid) or "?",
                       "job": process.job(pid), "gpu_uuid": entry["gpu_uuid"],
                       "gpu": gpus.index(entry["gpu_uuid"]), "used_bytes": entry["used_bytes"],
                       "library": loaded})
    return listed


def _table(rows):
    """Columns without a word are left out where a terminal has no room for all."""
    whole = text.table(HEADS, rows, LEFT)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if not rows or not width or max(map(len, whole.splitlines()[1:])) <= width:
        return whole
    said = [i for i, head in enumerate(HEADS)
            if head not in SPARED or any(row[i] != "-" for row in rows)]
    return text.table([HEADS[i] for i in said], [[row[i] for i in said] for row in rows], LEFT)


def show(args):
    gpus = gpu_module.Gpus()
    found, complaints = state.running(args.all_users, gpus, clean=True)
    without = others(gpus, found, args.all_users)
    if args.json:
        print(json.dumps({"processes": [p.as_json() for p in found], "without_page": without,
                          "gpus": gpus.devices, "nvml": gpus.why or "ok"}))
    else:
        rows = [row for p in found for row in rows_of(p)]
        for entry in without:
            mark = "no page" if entry["library"] else "without the library"
            rows.append([str(entry["pid"]), entry["user"], str(entry["gpu"]), "-", "-",
                         text.size(entry["used_bytes"]), "-", "-", "-", entry["job"] or "-",
                         f"{entry['name']} ({mark})"])
        print(_table(rows))
        if not rows and text.is_terminal():
            whose = "" if args.all_users else f" of {process.user_name(os.geteuid())}"
            print(f"no process{whose} is under libgpucache")
        if any(p.status == "elsewhere" for p in found):
            print("* a pid in another pid namespace, which is not visible here")
        if gpus.why and args.verbose:
            print(f"processes without the library are not listed: {gpus.why}")
    for sentence in page.sum_up(complaints):
        complain(sentence)
    return NOT_DONE if complaints else DONE
