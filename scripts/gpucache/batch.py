# SPDX-License-Identifier: BSD-2-Clause
"""Records of a trace (shim/trace/format.h) by column. A trace may have ten million records: what is
done for all of a column at once takes a fourth of the time."""
import array
import collections
import itertools
import math
import operator
import re

from gpucache import tables

KIND = {row["name"]: int(row["number"]) for row in tables.TRACE_KINDS}
WORD = 8
RECORD = 2 * WORD
STEP = 1 << tables.TRACE_STEP_SHIFT
KIND_BYTE, CONTEXT_BYTE = 11, 15  # of a record, on a machine that counts from the low end
FREQUENT = bytes(KIND[name] for name in ("ALLOC_FAST", "ALLOC", "FREE"))
# In the kinds of a chunk the halves of a wide record, of which the second has a zero for its kind,
# get marks that are no kinds: those of SITE, and those of frequent kinds.
SITE, ADDRESS, FIRST, SECOND = 0xfe, 0xff, 0xf0, 0xf0
HALVES = {bytes([tables.TRACE_WIDE + KIND["SITE"], 0]): bytes([SITE, ADDRESS]), **{
    bytes([tables.TRACE_WIDE + kind, 0]): bytes([FIRST + kind, SECOND]) for kind in FREQUENT}}
MARKS = bytes({mark for marks in HALVES.values() for mark in marks})
WIDE = bytes(FIRST + kind for kind in FREQUENT)
BEHIND = bytes([ADDRESS, SECOND])
NO_MARKS = bytes.maketrans(MARKS, bytes([FIRST - 1]) * len(MARKS))
NO_HALVES = bytes.maketrans(WIDE, FREQUENT)
# The first record that is not in a run.
OTHER = re.compile(b"[^" + re.escape(FREQUENT + MARKS) + b"]")

# Columns, each a sequence; ns and so on as in trace.Event. wide: None, or (aux, text, context).
Batch = collections.namedtuple("Batch", "ns kind a b site context tid wide")


def _one_of(marks):
    """A table that makes 1 of these, and 0 of others."""
    return bytes(byte in marks for byte in range(256))


# Of the marks of a run, and of its records.
IS_SITE, IS_WIDE, IS_FIRST, IS_EVENT, IS_RECORD = map(_one_of, (
    [SITE], WIDE, [SITE, *WIDE], WIDE + FREQUENT, [SITE, *WIDE, *FREQUENT]))


def new():
    return Batch(*([] for _ in Batch._fields))


def put(batch, rows):
    """Moves the rows of a list behind the columns."""
    for column, part in zip(batch, zip(*rows)):
        column.extend(part)
    rows.clear()


def rows_of(batch):
    """As plain tuples with the fields of an Event."""
    for ns, kind, first, second, site, context, tid, wide in zip(*batch):
        aux, said, _ = wide or (0, "", 0)
        yield ns, kind, first, second, aux, site, context, tid, said


def merged(parts):
    """Of batches one, by time; at the same time, in the order of the parts."""
    columns = [[*itertools.chain.from_iterable(column)] for column in zip(*parts)]
    order = sorted(range(len(columns[0])), key=columns[0].__getitem__)
    return Batch(*([*map(column.__getitem__, order)] for column in columns))


def marked(kinds):
    """The kinds of a chunk with the marks of runs."""
    found = kinds.translate(NO_MARKS)
    for halves, marks in HALVES.items():
        found = found.replace(halves, marks)
    return found


def end_of_run(marks, place):
    """Where a run ends that begins there. A mark may be none: at the start of a run one of a second
    half is, since there a record begins."""
    if place < len(marks) and marks[place] in BEHIND:
        return place
    found = OTHER.search(marks, place)
    return found.start() if found else len(marks)


def last_ticks(data, ticks):
    """The time of the last record of a chunk. data: its records. ticks: where it begins."""
    words, steps = array.array("Q", data), array.array("I", data)[::4]
    kinds, place = data[KIND_BYTE::RECORD], 0
    marks = marked(kinds)
    while place < len(kinds):
        behind = end_of_run(marks, place)
        ticks += STEP * sum(itertools.compress(steps[place:behind],
                                               marks[place:behind].translate(IS_RECORD)))
        place = behind
        if place == len(kinds) or not words[2 * place + 1]:
            break
        size = words[2 * place] >> 32
        behind += 1 if kinds[place] < tables.TRACE_WIDE else 2 + -(-size // RECORD)
        if behind > len(kinds) or behind > place + 1 and size > tables.TRACE_TEXT_MAX:
            break  # torn
        ticks += STEP * steps[place]
        if kinds[place] == tables.TRACE_WIDE + KIND["TIME"]:
            ticks = words[2 * place + 2]
        place = behind
    return ticks


class Run:
    """Records of frequent kinds, with those of SITE among them. steps: of the clock, of each. wide:
    place -> (aux, text, context). Not known are runs in which a site gets another address, so that
    the order matters, or text."""

    def __init__(self, data, marks, base, sites):
        """sites: number -> site, to which those of the run are added."""
        fields = bytearray(data)
        fields[KIND_BYTE::RECORD] = fields[CONTEXT_BYTE::RECORD] = bytes(len(marks))
        fields = array.array("I", bytes(fields))
        self.steps, ats, sizes, whos = (fields[field::4] for field in range(4))
        self.contexts, self.marks, self.wide = data[CONTEXT_BYTE::RECORD], marks, {}
        self.kinds = marks.translate(NO_HALVES, bytes([SITE]) + BEHIND)
        self.is_known, halves = True, ()
        if len(self.kinds) < len(marks):
            halves = self._halves(data, ats, sizes, whos, sites)
            self.steps, ats, sizes, whos, contexts = (
                itertools.compress(field, marks.translate(kind)) for field, kind in (
                    (self.steps, IS_RECORD), (ats, IS_EVENT), (sizes, IS_EVENT), (whos, IS_EVENT),
                    (self.contexts, IS_EVENT)))
            self.contexts = bytes(contexts)
        if self.is_known:
            self.addrs = [at + base << tables.TRACE_UNIT_SHIFT for at in ats]
            self.sizes = [*sizes]
            self.sites = map(sites.get, whos, itertools.repeat(0))
            for place, addr, size, aux in halves:
                self.addrs[place], self.sizes[place] = addr, size
                if aux:
                    self.wide[place] = aux, "", self.contexts[place]

    def _halves(self, data, ats, sizes, whos, sites):
        """(place, a, b, aux) of the wide records that are events; notes those of SITE."""
        marks, words = self.marks, array.array("Q", data)
        places = [*itertools.compress(range(len(marks)), marks.translate(IS_FIRST))]
        firsts = bytes(map(marks.__getitem__, places))
        numbers, ats, sizes, addrs, its = (
            [*map(field.__getitem__, places)]
            for field in (whos, ats, sizes, words[2::2], words[3::2]))
        is_site, is_wide = firsts.translate(IS_SITE), firsts.translate(IS_WIDE)
        pick = itertools.compress
        numbers, known = [*pick(numbers, is_site)], [*pick(addrs, is_site)]
        self.is_known = len(set(numbers)) == len(numbers) and not any(ats) and \
            [*map(sites.get, numbers, known)] == known
        if self.is_known:
            sites.update(zip(numbers, known))
        kinds = marks.translate(IS_WIDE, bytes([SITE]) + BEHIND)
        return zip(pick(itertools.count(), kinds), *(pick(field, is_wide)
                                                     for field in (addrs, its, sizes)))

    def ns(self, since, rate):
        """[ns] of the events, and the ticks behind all. since: ticks at the begin. rate: ns of one.
        """
        times = [*itertools.accumulate(self.steps, initial=since / STEP)]
        kinds = b"\0" + self.marks.translate(None, BEHIND)
        steps = itertools.compress(times, kinds.translate(IS_EVENT))
        return [*map(math.floor, map(operator.mul, steps, itertools.repeat(rate * STEP)))], \
            int(times[-1] * STEP)
