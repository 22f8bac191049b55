# SPDX-License-Identifier: BSD-2-Clause
"""A report as trace events of Chrome, which ui.perfetto.dev reads."""
import collections
import json

from gpucache import text, together
from gpucache.site import telling

US = 1000
ROWS = 10  # of the peak


def _process_name(pid, name):
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def _lane(its):
    """What another process held."""
    pid, width = its.trace.pid, its.usage.column_ns
    yield _process_name(pid, its.trace.program)
    for slot, held, live in together.lane(its):
        yield {"name": "device memory", "ph": "C", "pid": pid, "ts": slot * width / US,
               "args": {"live": live, "idle": held - live}}


def _others(processes):
    """What NVML said of those without a trace."""
    for its in together.others(processes):
        yield _process_name(its.pid, its.name)
        for ns, size in its.steps:
            yield {"name": "device memory", "ph": "C", "pid": its.pid, "ts": ns / US,
                   "args": {"by NVML": size}}


def data(report):
    pid, used = report.trace.pid, report.usage
    rows = [_process_name(pid, report.trace.program)]
    for its in report.beside:
        rows += _lane(its)
    rows += _others([report, *report.beside])
    for column in used.columns:
        sums = dict(used.by_owner(column.held))
        rows.append({"name": "live by library", "ph": "C", "pid": pid, "ts": column.ns / US,
                     "args": sums})
        rows.append({"name": "device memory", "ph": "C", "pid": pid, "ts": column.ns / US,
                     "args": {"live": max(0, column.live - column.away_live),
                              "idle": together.idle_of(column),
                              **({"parked": column.away} if used.memory.away.was_any else {})}})
    for mark in telling(used.marks):
        what, more = report.mark(mark)
        rows.append({"name": f"{what} {more}".strip(), "ph": "i", "s": "p", "pid": pid, "tid": 0,
                     "ts": mark.ns / US})
        if mark.site:
            rows[-1]["args"] = {"call path": report.names(mark.site)}
    if used.peak:
        held = collections.Counter()
        for site, size in used.at_peak.items():
            held[report.names(site)] += size
        rows.append({"name": "peak", "ph": "i", "s": "p", "pid": pid, "tid": 0,
                     "ts": used.peak_ns / US, "args": {
                         names: text.size(size) for names, size in held.most_common(ROWS)}})
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def write(report, out):
    json.dump(data(report), out)
    out.write("\n")
