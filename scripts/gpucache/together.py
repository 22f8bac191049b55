# SPDX-License-Identifier: BSD-2-Clause
"""Traces of several processes on one axis of time: what each held of a GPU, and their sum."""
from gpucache import outside, usage
from gpucache.fault import USAGE, Fault

OTHERS_MOST = 12  # lanes of processes without a trace


class Process:
    """A trace beside the one that the report is of. The report has the same two members."""

    def __init__(self, its, whole_ns):
        self.trace, self.usage = its, usage.Usage(its, whole_ns=whole_ns)


def align(traces):
    """Gives all the time of the first that began. Returns the whole span in ns. Faults where their
    clocks or GPUs have nothing to do with each other, or where two are of one recording."""
    first, known = traces[0], {}
    for its in traces:
        other = known.setdefault(its.recording, its)
        if other is not its:
            twice = f"{its.path} is given twice" if other.path == its.path else \
                f"{other.path} and {its.path} are one trace"
            raise Fault(f"{twice}: a sum would count it twice", USAGE)
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
    """{uuid: figures} of the GPUs of all; of one without a context {device: figures}. Faults if a
    process shares none with the first."""
    found = {gpu["uuid"]: gpu for gpu in processes[0].usage.gpus.values()}
    first = set(found)
    if len(processes) == 1:
        return found or {device: {"device": device, "name": "", "total_bytes": size}
                         for device, size in processes[0].usage.outside.totals.items()}
    for its in processes:
        own = {gpu["uuid"]: gpu for gpu in its.usage.gpus.values()}
        if not own:
            raise Fault(f"{its.trace.path} does not say which GPU it is of, so nothing can be "
                        "shown beside it")
        if not first & set(own):
            raise Fault(f"{processes[0].trace.path} and {its.trace.path} have no GPU in common")
        found.update(own)
    return found


def on_device(its):
    """What a process holds of the device, with what is live before the driver's call is told."""
    return max(its.reserved, its.live - its.away_live)


def idle_of(its):
    """What of that is not in use."""
    return max(0, its.reserved - max(0, its.live - its.away_live))


def lane(its):
    """[(column's number, bytes held, bytes live)] of a process, where they change."""
    width, found = its.usage.column_ns, []
    for column in its.usage.columns:
        slot = column.ns // width
        entry = slot, max(column.most, on_device(column)), column.live
        if found and found[-1][0] == slot:
            entry = slot, *map(max, entry[1:], found.pop()[1:])
        found.append(entry)
    end = -(-its.usage.span_ns // width)
    if its.trace.ended and found:  # the process has left
        found.append((max(end, found[-1][0] + 1), 0, 0))
    return found


def others(processes):
    """[outside.Other] of the processes whose traces are not here, as NVML said to those that are;
    the smallest ones as one."""
    uuids = sorted({gpu["uuid"] for its in processes for gpu in its.usage.gpus.values()})
    own, found = {its.trace.pid for its in processes}, {}
    for its in processes:
        for other in its.usage.outside.others(uuids):
            if other.pid not in own:
                found.setdefault(other.pid, []).append(other)
    told = [outside.Other(pid, max(one.name for one in same),
                          sorted(step for one in same for step in one.steps))
            for pid, same in found.items()]
    told.sort(key=lambda its: (-max(size for _, size in its.steps), its.pid))
    if len(told) > OTHERS_MOST:
        rest = told[OTHERS_MOST - 1:]
        told[OTHERS_MOST - 1:] = [outside.Other(0, f"{len(rest)} other processes",
                                                outside.summed([its.steps for its in rest]))]
    return told


def name_of(other):
    return f"PID {other.pid} {other.name}".strip() if other.pid else other.name


def lane_of(other, width):
    """The same as lane(), with None for bytes live."""
    found = []
    for ns, size in other.steps:
        slot = ns // width
        if found and found[-1][0] == slot:
            size = max(size, found.pop()[1])
        found.append((slot, size, None))
    return found


def whole(processes):
    """[(ns, bytes)] of the GPUs that were not free, as the driver said, where that changes."""
    said = []
    for its in processes:
        uuids = {gpu["device"]: gpu["uuid"] for gpu in its.usage.gpus.values()}
        for device, rows in its.usage.outside.whole.items():
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
