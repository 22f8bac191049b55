# SPDX-License-Identifier: BSD-2-Clause
"""gpucache stat: everything that a page says, as a table in the manner of PyTorch's memory
summary. After the process ended: its last state."""
import collections
import json
import re
import sys
import time

from gpucache import cached, fault, gpu, owners, state, tables, terminal, text

WIDTH = 76

# A line of the summary. rank: on a terminal with few rows those of the highest go first.
Line = collections.namedtuple("Line", "rank words strong")
WHO, RATE, MORE, COUNTS, PAST, ABOUT, RULES = range(7)
FIRST = ("allocated_bytes", "reserved_bytes")  # figures that are WHO
RULE, THIN = Line(RULES, "=" * WIDTH, False), Line(RULES, "-" * WIDTH, False)


# Fields whose names say too little.
WORDS = {"at_peak_whole_bytes": "free in whole chunks", "at_peak_cut_bytes": "free in cut chunks",
         "at_peak_small_bytes": "free in small blocks",
         "at_peak_running_ns": "time since the start",
         "num_device_alloc": "taken from the driver",
         "num_device_free": "given back to the driver"}


def label(name):
    """The words of a field's name, without what says its kind before and its unit behind."""
    if name in WORDS:
        return WORDS[name]
    words = name
    for head in ("num_", "at_peak_"):
        if words.startswith(head):
            words = words[len(head):]
    for tail, said in (("_bytes", ""), ("_ns", " time")):
        if words.endswith(tail):
            words = words[:-len(tail)] + said
    return words.replace("_", " ")


def is_async(row):
    """Is it a figure of the driver's own pools, which few programs have?"""
    return row["name"].startswith("async_")


def figure(value, unit):
    if unit == "BYTES":
        return text.size(value)
    return text.duration(value) if unit == "NS" else text.count(value)


def _line(rank, name, now, peak="", strong=False):
    return Line(rank, f"{name:<34}{now:>20}{peak:>22}".rstrip(), strong)


def _cached_words(answer, its_gpu):
    """What the packages keep of what is allocated, with the age of an old figure."""
    size = answer.of(its_gpu.device)
    if size is None:
        return "?"
    old = answer.age_s() >= cached.OLD_S
    return text.size(size) + (f", {text.age(answer.age_s())} ago" if old else "")


def _gpu_lines(its_gpu, answer):
    what = its_gpu.name or "a GPU without a name"
    yield Line(WHO, f"GPU {its_gpu.shown()}: {what}, {text.size(its_gpu.total_bytes)}", True)
    pools = "" if its_gpu.num_pools == 1 else f", {its_gpu.num_pools} contexts together"
    yield Line(ABOUT, f"{its_gpu.uuid or 'no UUID'}, {its_gpu.backing or 'unknown'} backing{pools}",
               False)
    yield THIN
    yield _line(MORE, "", "now", "peak", True)
    rows = tables.STATS
    for i, row in enumerate(rows):
        if row["kind"] == "GAUGE" and (its_gpu[row["name"]] or not is_async(row)):
            peak = rows[i + 1] if i + 1 < len(rows) and rows[i + 1]["kind"] == "PEAK" else None
            yield _line(WHO if row["name"] in FIRST else MORE, label(row["name"]),
                        figure(its_gpu[row["name"]], row["unit"]),
                        figure(its_gpu[peak["name"]], peak["unit"]) if peak else "")
    yield _line(WHO, "idle", text.size(its_gpu["idle_bytes"]))
    if answer and answer.names:
        yield _line(WHO, f"cached by {', '.join(answer.names)}", _cached_words(answer, its_gpu))
    yield THIN
    yield _line(PAST, "when reserved peaked", text.size(its_gpu["reserved_peak_bytes"]))
    for row in rows:
        if row["kind"] == "AT_PEAK":
            yield _line(PAST, label(row["name"]), figure(its_gpu[row["name"]], row["unit"]))
    yield THIN
    for row in rows:
        if row["kind"] == "COUNTER" and its_gpu[row["name"]]:
            yield _line(COUNTS, label(row["name"]), figure(its_gpu[row["name"]], row["unit"]))
    if its_gpu["num_allocs"]:
        yield _line(RATE, "hit rate", text.share(its_gpu.hits(), its_gpu["num_allocs"]))
        yield _line(COUNTS, "driver calls saved", text.count(its_gpu["num_driver_calls_saved"]))
        yield _line(COUNTS, "time saved, at least", text.duration(its_gpu["saved_ns"]))


def summary(found):
    """The whole text about one process, as lines."""
    contents = found.contents
    yield RULE
    yield Line(WHO, f"PID {found.shown_pid()} ({found.name}) of {found.user}, libgpucache "
               f"{contents.library_version}", True)
    if found.command != found.name:
        yield Line(ABOUT, found.command if len(found.command) <= WIDTH
                   else found.command[:WIDTH - 3] + "...", False)
    yield Line(ABOUT, f"under the library since {text.moment(contents.started_unix_ns)}"
               + (f", {found.job}" if found.job else ""), False)
    if found.status == "ended":
        yield Line(WHO, "It has ended. This is its last state, of "
                   f"{text.moment(contents.published_unix_ns)}.", True)
    if found.park_words():
        yield Line(WHO, f"GPU memory: {found.park_words()}", True)
    if found.note:
        yield Line(WHO, f"Nothing more is known: {found.note}.", False)
    for its_gpu in found.gpus:
        yield RULE
        yield from _gpu_lines(its_gpu, found.cached)
    yield RULE
    if not found.note:
        changed = found.changed_options()
        yield Line(RATE, "options: " + (" ".join(f"{n}={v}" for n, v in changed.items())
                                        or "all at their defaults"), False)
        yield Line(RATE, "last flush: " + state.last_flush(found.body.get("flush")), False)
        for row in tables.COUNTERS:
            value = found.counters().get(row["name"], 0)
            if value:
                unit = {"bytes": "BYTES", "ns": "NS"}.get(row["name"].rpartition("_")[2], "COUNT")
                yield _line(COUNTS, label(row["name"]), figure(value, unit))
        yield RULE


def _shown(line, columns=None):
    """A line as the terminal gets it. Where it has too few columns, blanks go before words."""
    words = line.words
    if columns and len(words) > columns:
        words = terminal.cut(re.sub(" {3,}", "  ", words), columns)
    return text.bold(words) if line.strong else words


def fitted(lines, columns, rows):
    """The lines for a terminal of this size: what matters most, and how many are left out."""
    lines = list(lines)
    if len(lines) > rows:
        by_rank = sorted(range(len(lines)), key=lambda i: (lines[i].rank, i))
        kept = sorted(by_rank[:max(1, rows - 1)])
        more = Line(WHO, f"{len(lines) - len(kept)} more lines: see gpucache stat without --watch",
                    False)
        lines = [lines[i] for i in kept] + ([more] if rows > 1 else [])
    return [_shown(line, columns) for line in lines]


class _Look:
    """One look after the other at one process."""

    def __init__(self, args):
        self.args, self.gpus = args, gpu.Gpus()
        self.packages = None if args.no_ask else cached.Memory()

    def process(self):
        found = state.one(self.args.pid, self.gpus)
        if self.packages:
            self.packages.look([found])
        return found

    def words(self, found):
        return json.dumps(found.as_json()) if self.args.json else \
            "\n".join(map(_shown, summary(found)))


def _draw(look):
    """One picture, drawn again and again."""
    fault.end_in_order()
    picture, resized = terminal.Picture(sys.stdout), False
    with terminal.Resizes() as resizes:
        try:
            while True:
                found = look.process()
                picture.draw(fitted(summary(found), *terminal.size()), resized)
                if found.status == "ended":
                    return
                resized, _ = resizes.wait(time.monotonic() + look.args.watch)
        finally:
            picture.end()


def _watch(look):
    """Until the process ends. On a terminal one picture; else one after the other."""
    if not look.args.json and text.is_terminal():
        _draw(look)
        return
    while True:
        found = look.process()
        print(look.words(found), flush=True)
        if found.status == "ended":
            return
        time.sleep(look.args.watch)


def show(args):
    if args.owners:
        print(owners.words(state.one(args.pid), args.json))
        return fault.DONE
    look = _Look(args)
    if args.watch:
        _watch(look)
    else:
        print(look.words(look.process()))
    return fault.DONE
