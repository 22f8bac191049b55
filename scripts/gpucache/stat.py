# SPDX-License-Identifier: BSD-2-Clause
"""gpucache stat: everything that a page says, as a table in the manner of PyTorch's memory
summary. After the process ended: its last state."""
import json
import sys
import time

from gpucache import fault, gpu, state, tables, text

WIDTH = 76
RULE = "=" * WIDTH


def label(name):
    """The words of a field's name, without what says its kind before and its unit behind."""
    words = name
    for head in ("num_", "at_peak_"):
        if words.startswith(head):
            words = words[len(head):]
    for tail, said in (("_bytes", ""), ("_ns", " time")):
        if words.endswith(tail):
            words = words[:-len(tail)] + said
    return words.replace("_", " ")


def figure(value, unit):
    if unit == "BYTES":
        return text.size(value)
    return text.duration(value) if unit == "NS" else text.count(value)


def _line(name, now, peak=""):
    return f"{name:<34}{now:>20}{peak:>22}".rstrip()


def _gpu_lines(its_gpu):
    what = its_gpu.name or "a GPU without a name"
    yield text.bold(f"GPU {its_gpu.shown()}: {what}, {text.size(its_gpu.total_bytes)}")
    pools = "" if its_gpu.num_pools == 1 else f", {its_gpu.num_pools} contexts together"
    yield f"{its_gpu.uuid or 'no UUID'}, {its_gpu.backing or 'unknown'} backing{pools}"
    yield "-" * WIDTH
    yield text.bold(_line("", "now", "peak"))
    rows = tables.STATS
    for i, row in enumerate(rows):
        if row["kind"] == "GAUGE":
            peak = rows[i + 1] if i + 1 < len(rows) and rows[i + 1]["kind"] == "PEAK" else None
            yield _line(label(row["name"]), figure(its_gpu[row["name"]], row["unit"]),
                        figure(its_gpu[peak["name"]], peak["unit"]) if peak else "")
    yield _line("idle", text.size(its_gpu["idle_bytes"]))
    yield "-" * WIDTH
    yield _line("when reserved peaked", text.size(its_gpu["reserved_peak_bytes"]))
    for row in rows:
        if row["kind"] == "AT_PEAK":
            yield _line(label(row["name"]), figure(its_gpu[row["name"]], row["unit"]))
    yield "-" * WIDTH
    for row in rows:
        if row["kind"] == "COUNTER" and its_gpu[row["name"]]:
            yield _line(label(row["name"]), figure(its_gpu[row["name"]], row["unit"]))
    if its_gpu["num_allocs"]:
        yield _line("hit rate", text.share(its_gpu["num_hits"], its_gpu["num_allocs"]))
        yield _line("driver calls saved", text.count(its_gpu["num_driver_calls_saved"]))
        yield _line("time saved, at least", text.duration(its_gpu["saved_ns"]))


def _flush_line(last):
    if not isinstance(last, dict) or not state.number(last.get("count")):
        return "last flush: none was asked for yet"
    when = last.get("unix_ns", last.get("unix_time_ns", 0))
    return f"last flush: {text.moment(state.number(when))}, " \
           f"{text.printable(str(last.get('reason') or 'unknown reason'))}, " \
           f"{text.size(state.number(last.get('bytes')))} in " \
           f"{text.duration(state.number(last.get('ns')))}; " \
           f"{text.count(state.number(last.get('count')))} in all"


def summary(found):
    """The whole text about one process."""
    contents = found.contents
    lines = [RULE, text.bold(f"PID {found.shown_pid()} ({found.name}) of {found.user}, "
                             f"libgpucache {contents.library_version}")]
    if found.command != found.name:
        lines.append(found.command if len(found.command) <= WIDTH
                     else found.command[:WIDTH - 3] + "...")
    lines.append(f"under the library since {text.moment(contents.started_unix_ns)}"
                 + (f", {found.job}" if found.job else ""))
    if found.status == "ended":
        lines.append(text.bold("It has ended. This is its last state, of "
                               f"{text.moment(contents.published_unix_ns)}."))
    if found.note:
        lines.append(f"Nothing more is known: {found.note}.")
    for its_gpu in found.gpus:
        lines += [RULE, *_gpu_lines(its_gpu)]
    lines.append(RULE)
    if not found.note:
        changed = found.changed_options()
        lines.append("options: " + (" ".join(f"{n}={v}" for n, v in changed.items())
                                    or "all at their defaults"))
        lines.append(_flush_line(found.body.get("flush")))
        for row in tables.COUNTERS:
            value = found.counters().get(row["name"], 0)
            if value:
                unit = "BYTES" if row["name"].endswith("_bytes") else "COUNT"
                lines.append(_line(label(row["name"]), figure(value, unit)))
        lines.append(RULE)
    return "\n".join(lines)


def _once(pid, gpus, as_json):
    found = state.one(pid, gpus)
    return json.dumps(found.as_json()) if as_json else summary(found)


def _watch(args, gpus):
    """Until the process ends. On a terminal one picture; else one after the other."""
    if args.json or not sys.stdout.isatty():
        while True:
            print(_once(args.pid, gpus, args.json), flush=True)
            if state.one(args.pid, gpus, fresh=False).status == "ended":
                return
            time.sleep(args.watch)
    fault.end_in_order()
    live, ansi = (fault.needed("rich." + name, "stat --watch") for name in ("live", "text"))
    with live.Live(auto_refresh=False) as view:
        while True:
            found = state.one(args.pid, gpus)
            view.update(ansi.Text.from_ansi(summary(found)), refresh=True)
            if found.status == "ended":
                return
            time.sleep(args.watch)


def show(args):
    gpus = gpu.Gpus()
    if args.watch:
        _watch(args, gpus)
    else:
        print(_once(args.pid, gpus, args.json))
    return fault.DONE
