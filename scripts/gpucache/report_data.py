# SPDX-License-Identifier: BSD-2-Clause
"""Figures for the scripts of a report's page. Most are told as the first one and the differences,
which take fewer digits. A slot is a number of a column of the picture."""
import collections
import itertools

from gpucache import together


def steps(values):
    """The differences."""
    return [values[0], *(b - a for a, b in zip(values, values[1:]))] if values else []


def _near_of_lane(its):
    """its: a detail.Near."""
    return {"starts": steps([column.start for column in its.columns]),
            "held": steps([together.on_device(column) for column in its.columns]),
            "live": steps([column.live for column in its.columns]), "end": its.end_ns}


def _ends_of_lane(its):
    """its: a together.Process. behind: what it holds, and has live, after its trace."""
    used = its.usage
    behind = [0, 0] if its.trace.ended else \
        [max(used.reserved, used.live - used.memory.away.live), used.live]
    return {"begin": used.lead_ns, "end": used.span_ns, "behind": behind}


def lanes(report, own_near, others, told):
    """The processes of the GPU, and the GPU. own_near: [detail.Near] of the report's process.
    others: outside.Others. told: what the page says of marks."""
    processes = [report, *report.beside]
    gpus, width = report.gpus or together.gpus(processes), report.usage.column_ns
    found = [together.lane(its) for its in processes]
    found += [together.lane_of(its, width) for its in others]
    rest = together.rest(processes, found)
    most, slot = together.highest(found)
    names = [f"GPU {gpu['device']} {gpu['name']}".strip() for gpu in gpus.values()]
    rows = []
    for its, lane in zip(processes, found):
        slots, held, live = map(list, zip(*lane)) if lane else ([], [], [])
        stretches = own_near if its is report else its.usage.stretches() if lane else ()
        rows.append({"name": f"PID {its.trace.pid} {its.trace.program}", "slots": steps(slots),
                     "held": steps(held), "live": steps(live), "marks": told(its.usage.marks),
                     "near": [*map(_near_of_lane, stretches)], **_ends_of_lane(its)})
    for its, lane in zip(others, found[len(processes):]):
        slots, held, _ = map(list, zip(*lane))
        rows.append({"name": together.name_of(its), "slots": steps(slots), "held": steps(held)})
    return {"lanes": rows, "rest_slots": steps([slot for slot, _ in rest]),
            "rest": steps([size for _, size in rest]),
            "gpu": names[0] if len(names) == 1 else f"{len(names)} GPUs",
            "capacity": sum(gpu["total_bytes"] for gpu in gpus.values()), "most": most,
            "most_slot": slot}


def nvml(report):
    """What NVML said that the process had, beyond what it held, from a slot on."""
    used = report.usage
    found = [(ns // used.column_ns, size) for ns, size in used.outside.beyond]
    if found and used.span_ns < report.whole_ns - used.column_ns:
        found.append((used.span_ns // used.column_ns, -1))  # others go on; it is not known
    return {"nvml_slots": steps([slot for slot, _ in found]),
            "nvml": steps([size for _, size in found])} if found else {}


def memory(columns, was_any):
    """What was held and what was away, together; with the latter and what is live of it apart, if
    there was any."""
    told = {"reserved": [column.reserved + column.away for column in columns]}
    if was_any:
        told.update(away=[column.away for column in columns],
                    away_live=[column.away_live for column in columns])
    return {name: steps(values) for name, values in told.items()}


def near(its, place, was_any):
    """its: a detail.Near. place: the number of a site's series. changes: of each column a number of
    pairs, and these: a series, and its bytes since the column before."""
    changes = []
    for column in its.columns:
        sums = collections.Counter()
        for site, size in column.changes.items():
            sums[place(site)] += size
        pairs = [(number, size) for number, size in sums.items() if size]
        changes += [len(pairs), *itertools.chain.from_iterable(pairs)]
    told = {"starts": [column.start for column in its.columns],
            "at": [column.ns for column in its.columns]}
    return {"end": its.end_ns, "changes": changes, **memory(its.columns, was_any),
            **{name: steps(values) for name, values in told.items()}}
