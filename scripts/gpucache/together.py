# SPDX-License-Identifier: BSD-2-Clause
"""Traces of several processes on one axis of time: what each held of a GPU, and their sum."""
from gpucache import usage
from gpucache.fault import Fault


class Process:
    """A trace beside the one that the report is of. The report has the same two members."""

    def __init__(self, its, whole_ns):
        self.trace, self.usage = its, usage.Usage(its, whole_ns=whole_ns)


def align(traces):
    """Gives all the time of the first that began. Returns the whole span in ns. Faults where their
    clocks or GPUs have nothing to do with each other."""
    first = traces[0]
    for its in traces[1:]:
        if its.boot_id != first.boot_id or not any(its.boot_id):
            raise Fault(f"{first.path} and {its.path} are of two boots, or of two machines: there "
                        "is no common time")
    start_ns = min(its.start_ns for its in traces)
    spans = []
    for its in traces:
        lead_ns, span_ns = its.start_ns - start_ns, its.span_ns()
        its.begin_at(lead_ns)
        spans.append(lead_ns + span_ns)
    return max(1, *spans)


def gpus(processes):
    """{uuid: figures} of the GPUs of all. Faults if a process shares none with the first."""
    found = {}
    first = {gpu["uuid"] for gpu in processes[0].usage.gpus.values()}
    for its in processes:
        own = {gpu["uuid"]: gpu for gpu in its.usage.gpus.values()}
        if not first & set(own):
            raise Fault(f"{processes[0].trace.path} and {its.trace.path} have no GPU in common")
        found.update(own)
    return found


def lane(its):
    """[(column's number, bytes held, bytes live)] of a process, where they change."""
    width, found = its.usage.column_ns, []
    for column in its.usage.columns:
        slot = column.ns // width
        entry = slot, max(column.reserved, column.live) - column.away, column.live
        if found and found[-1][0] == slot:
            entry = slot, *map(max, entry[1:], found.pop()[1:])
        found.append(entry)
    end = -(-its.usage.span_ns // width)
    if its.trace.ended and found:  # the process has left
        found.append((max(end, found[-1][0] + 1), 0, 0))
    return found


def whole(processes):
    """[(ns, bytes)] of the GPUs that were not free, as the driver said, where that changes."""
    said = []
    for its in processes:
        uuids = {gpu["device"]: gpu["uuid"] for gpu in its.usage.gpus.values()}
        for device, rows in its.usage.whole.items():
            said += [(ns, uuids.get(device, device), size) for ns, size in rows]
    found, now = [], {}
    for ns, gpu, size in sorted(said, key=lambda row: row[0]):
        now[gpu] = size
        if not found or found[-1][1] != sum(now.values()):
            found.append((ns, sum(now.values())))
    return found


def rest(processes, lanes):
    """[(column's number, bytes)] of the GPUs that were not free, and were none of the lanes'."""
    found, places = [], [0] * len(lanes)
    for ns, size in whole(processes):
        slot = ns // processes[0].usage.column_ns
        for number, its in enumerate(lanes):
            while places[number] < len(its) and its[places[number]][0] <= slot:
                places[number] += 1
            size -= its[places[number] - 1][1] if places[number] else 0
        if not found or found[-1][1] != max(0, size):
            found.append((slot, max(0, size)))
    return found


def highest(lanes):
    """(bytes, column's number) of the highest sum of what the lanes hold."""
    changes = sorted((slot, number, held) for number, its in enumerate(lanes)
                     for slot, held, _ in its)
    now, best = [0] * len(lanes), (0, 0)
    for place, (slot, number, held) in enumerate(changes):
        now[number] = held
        if (place + 1 == len(changes) or changes[place + 1][0] != slot) and sum(now) > best[0]:
            best = sum(now), slot
    return best
