# SPDX-License-Identifier: BSD-2-Clause
"""gpucache ps: a line for each GPU, then one for each process on it, with and without the
library."""
import json
import os
import shutil
import sys

from gpucache import cached, machine, page, process, state, text
from gpucache import gpu as gpu_module
from gpucache.fault import DONE, NOT_DONE, complain

HEADS = ("PID", "USER", "GPU", "LIVE", "CACHED", "IDLE", "RESERVED", "PARKED", "PEAK", "HITS",
         "LIMITS", "JOB", "NAME")
# On a narrow terminal these columns go if they say nothing, then the others of them from the left.
SPARED = ("LIMITS", "JOB", "PEAK", "HITS", "USER", "CACHED")
LEFT = ("USER", "LIMITS", "JOB", "NAME")


def row_of(holder):
    """The line of a process on one GPU, as cells in the order of HEADS."""
    mine = holder.live is not None
    if mine and not holder.gpu_known:
        cells = ["-"] * 8
    elif mine:
        cells = [holder.gpu, text.size(holder.live), holder.cached_words(), text.size(holder.idle),
                 text.size(holder.reserved), text.size(holder.parked or None),
                 text.size(holder.peak),
                 text.share(holder.hits, holder.allocs)]
    else:
        cells = [holder.gpu, "-", "-", "-", text.size(holder.used), "-", "-", "-"]
    note = f" ({holder.note})" if holder.note else ""
    return [holder.shown_pid, holder.user, *cells, holder.limits or "-", holder.job or "-",
            holder.name + note]


def card_line(card):
    """GPU 0: its name, 24 GiB, 5.8 GiB free; a flush would give 6 GiB back."""
    free = "" if card.free is None else f", {text.size(card.free)} free"
    back = f"; a flush would give back up to {text.size(card.back())}" if card.back() else ""
    return f"GPU {card.gpu}: {card.name or 'a GPU without a name'}, " \
           f"{text.size(card.total) if card.total else 'of unknown size'}{free}{back}"


def _table(rows):
    """Some columns are left out where a terminal has no room for all, those without a word
    first."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0

    def made(heads):
        at = [HEADS.index(head) for head in heads]
        return text.table(heads, [[row[i] for i in at] for row in rows], LEFT)

    def too_wide(heads):
        return width and max(map(len, made(heads).splitlines()[1:])) > width
    heads = [head for head in HEADS if head != "PARKED" or any(row[HEADS.index(head)] != "-"
                                                               for row in rows)]
    for is_empty in True, False:
        for head in SPARED:
            says = any(row[HEADS.index(head)] != "-" for row in rows)
            if too_wide(heads) and head in heads and says != is_empty:
                heads.remove(head)
    return made(heads)


def _print(now, found, args):
    for card in now.cards:
        print(card_line(card))
    holders = sorted(now.holders, key=lambda h: (machine.place(h.gpu), -(h.takes() or 0)))
    if holders:
        print(*[""] * bool(now.cards), _table([row_of(holder) for holder in holders]), sep="\n")
    else:
        whose = "" if args.all_users else f" of {process.user_name(os.geteuid())}"
        print(f"no process{whose} is under libgpucache" +
              ("" if now.why else ", and none is on a GPU"))
    silent = [holder.shown_pid for holder in holders if holder.note == machine.NO_FIGURES]
    if silent:
        print(f"no figures: gpucache stat {silent[0]} says why")
    if any(p.status == "elsewhere" for p in found):
        print("* a pid in another pid namespace, which is not visible here")
    if now.why and (args.verbose or not holders):
        print(f"processes without the library are not listed: {now.why}")


def show(args):
    gpus = gpu_module.Gpus()
    found, complaints = state.running(args.all_users, gpus, clean=True)
    if not args.no_ask:
        cached.Memory().look(found)
    now = machine.Machine()
    now.add(found, gpus)
    if args.json:
        print(json.dumps({"processes": [p.as_json() for p in found],
                          "without_page": machine.without_page(gpus, found),
                          "gpus": gpus.devices, "nvml": gpus.why or "ok"}))
    else:
        _print(now, found, args)
    for sentence in page.sum_up(complaints):
        complain(sentence)
    return NOT_DONE if complaints else DONE
