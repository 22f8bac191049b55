# SPDX-License-Identifier: BSD-2-Clause
"""What happened near some moments, in finer columns than those of the whole picture: near the peak,
and near each failure for want of memory. The changes nearest to a moment have a column each. Those
further away share columns by their time, and what is furthest is not kept, so that a trace of any
length takes as much memory."""
import array
import collections
import itertools
import math

from gpucache.trace import FIRST_PATH, OTHERS

PART = 40           # the time is divided by it: so much is kept on each side of a moment,
CHANGES = 1 << 18   # and at most so many changes
SLICE = 1 << 14     # changes that are kept or dropped at once
EXACT = 1000        # of these that have a column each
COLUMNS = 2000      # of the others of a stretch
FAILURES = 8        # the first ones; the others have the columns of the picture
# In the place of a site, for what is held on the device, what is away, and what is live of that: no
# code has these addresses.
MEMORY = HOLD, AWAY, AWAY_LIVE = FIRST_PATH - 1, FIRST_PATH - 2, FIRST_PATH - 3

# ns: the highest moment. start: ns. changes: {site: bytes} since the column before, or nothing.
Fine = collections.namedtuple("Fine", "start ns live reserved away away_live changes")
# Columns with no gap between them. The first one has what was held by then as its changes.
Near = collections.namedtuple("Near", "columns end_ns")


class Part:
    """Changes that follow each other. number: of the first one. since_ns: of the last one before.
    """

    def __init__(self, number, since_ns, changes):
        self.number, self.since_ns = number, since_ns
        self.ns, self.sites, self.sizes = (
            self._packed(kind, values) for kind, values in zip("qQq", zip(*(
                change[:3] for change in changes))))

    @staticmethod
    def _packed(kind, values):
        try:
            return array.array(kind, values)
        except OverflowError:  # nonsense of a broken file
            return values

    def end(self):
        return self.number + len(self.ns)


class Moment:
    """number: of changes by then. memory: bytes of MEMORY, then. held: {site: bytes} then."""

    def __init__(self, ns, number, memory, held=None):
        self.ns, self.number, self.memory, self.held = ns, number, memory, held
        self.parts, self.end_ns = [], None  # None: more come


class Detail:
    """A number of a change is its place among all of them."""

    def __init__(self, begin_ns, span_ns):
        self._reach_ns, self._last_ns = max(1, span_ns // PART), begin_ns
        self._parts, self._num_kept = collections.deque(), 0  # the latest
        self.number = 0
        self._highest, self._peak, self._failures = None, None, []

    def peak(self, ns, number, memory):
        """Until now it is the highest moment. It has taken place as the change before this number.
        """
        self._highest = ns, number, memory

    def failed(self, ns, number, sites, memory):
        """sites: address -> Site."""
        last = self._failures[-1].number if self._failures else -EXACT
        if len(self._failures) < FAILURES and number - last >= EXACT:
            held = {site: its.live for site, its in sites.items() if its.live}
            self._failures.append(Moment(ns, number, memory, held))
            self._failures[-1].parts += self._parts

    def take(self, changes):
        """[(ns, site or one of MEMORY, bytes, anything)] since the last call."""
        for first in range(0, len(changes), SLICE):
            self._take(changes[first:first + SLICE])

    def _take(self, changes):
        part = Part(self.number, self._last_ns, changes)
        self.number, self._last_ns = part.end(), part.ns[-1]
        for its in (self._peak, *self._failures):
            if its and its.end_ns is None:
                self._follow(its, part)
        self._parts.append(part)
        self._num_kept += len(part.ns)
        while self._parts[0] is not part and (
                self._num_kept - len(self._parts[0].ns) >= CHANGES or
                self._parts[0].ns[-1] < part.ns[0] - self._reach_ns):
            self._num_kept -= len(self._parts.popleft().ns)
        if self._highest and self._highest[1] <= self.number:
            self._peak, self._highest = Moment(*self._highest), None
            self._peak.parts += self._parts

    def _follow(self, its, part):
        if part.ns[0] > its.ns + self._reach_ns or part.number - its.number >= CHANGES:
            its.end_ns = part.ns[0]
        else:
            its.parts.append(part)

    def stretches(self, held, span_ns):
        """[Near] of what was kept, in the order of time. held: {site: bytes} at the peak."""
        moments = [its for its in (self._peak, *self._failures) if its and its.parts]
        if self._peak:
            self._peak.held = held
        found = []
        for its in sorted(moments, key=lambda its: its.parts[0].number):
            if found and its.parts[0].number <= found[-1][-1].parts[-1].end():
                found[-1].append(its)
                found[-1].sort(key=lambda its: its.parts[-1].number)
            else:
                found.append([its])
        stretches = (Stretch(moments, span_ns) for moments in found)
        return [Near([*its.columns()], its.end_ns) for its in stretches]


class Stretch:
    """Changes of some moments, with no gap between them."""

    def __init__(self, moments, span_ns):
        """moments: by their ends."""
        parts = {part.number: part for its in moments for part in its.parts}
        self.parts = [parts[number] for number in sorted(parts)]
        self.start_ns, self.first = self.parts[0].since_ns, self.parts[0].number
        end_ns = moments[-1].end_ns
        self.end_ns = max(span_ns, self.parts[-1].ns[-1]) if end_ns is None else end_ns
        self.width = max(1, -(-(self.end_ns - self.start_ns) // COLUMNS))
        self.edges = self._edges(sorted(its.number for its in moments))
        self.begin = self._at_first(moments[0])

    def _changes(self):
        """(number, (ns, site, bytes))"""
        return enumerate(itertools.chain.from_iterable(
            zip(part.ns, part.sites, part.sizes) for part in self.parts), self.first)

    def _at_first(self, its):
        """{site: bytes} before all changes. What a moment does not know of its small sites is of
        the others."""
        begin = collections.Counter({**its.held, **dict(zip(MEMORY, its.memory))})
        for _, (_, site, size) in itertools.islice(self._changes(), its.number - self.first):
            begin[site] -= size
        if OTHERS in its.held:
            for site, size in self._least().items():
                missing = -(begin[site] + size)
                if missing > 0 and site not in MEMORY:
                    begin[site] += missing
                    begin[OTHERS] -= missing
        return begin

    def _least(self):
        """{site: bytes}: the least that was there, beside what was there before all changes."""
        now, least = collections.Counter(), {}
        for _, (_, site, size) in self._changes():
            now[site] += size
            least[site] = min(least.get(site, 0), now[site])
        return least

    def _edges(self, numbers):
        """Numbers of the changes with which it begins, or ends, that each has a column."""
        found = []
        for number in numbers:
            if found and number - EXACT <= found[-1]:
                found.pop()
            else:
                found.append(number - EXACT)
            found.append(number + EXACT + 1)
        return iter(found)

    def columns(self):
        """[Fine]"""
        memory = [self.begin.pop(its) for its in MEMORY]
        its = Open(self.start_ns, sum(self.begin.values()), memory, self.begin)
        behind = self.start_ns  # where the columns end that are told
        is_exact, edge = False, next(self.edges)
        for number, (ns, site, size) in self._changes():
            while number >= edge:
                is_exact, edge = not is_exact, next(self.edges, math.inf)
            if is_exact:
                if behind < ns and its.has_more:
                    yield its.close(behind)
                if its.start < ns:
                    yield its.close(ns)
                    its.replaces = True
                behind = ns
            elif ns >= behind:
                begin = self.start_ns + (ns - self.start_ns) // self.width * self.width
                if behind < begin and its.has_more:
                    yield its.close(behind)
                if its.start < begin:
                    yield its.close(begin)
                    its.replaces = begin == ns
                elif its.start < ns:
                    yield its.close(ns)
                    its.replaces = True
                behind = begin + self.width
            its.change(ns, site, size)
        if behind < self.end_ns and its.has_more:
            yield its.close(behind)
        yield its.close(self.end_ns)


class Open:
    """A column that is not over."""

    def __init__(self, start, live, memory, changes):
        self.start, self.live, self.memory = start, live, dict(zip(MEMORY, memory))
        self.best = start, live, *memory
        self._told, self._since = dict(changes), {}  # {site: bytes}
        self.has_more = self.replaces = False  # the first change is the begin

    def change(self, ns, site, size):
        memory = self.memory
        if site in memory:
            memory[site] += size
        else:
            self.live += size
            since = self._since
            since[site] = since.get(site, 0) + size
        at_ns, live, reserved, away, _ = self.best
        now, best = (self.live, memory[HOLD] + memory[AWAY]), (live, reserved + away)
        if self.replaces or now > best or now == best and ns == at_ns:
            self.best, self.replaces, self.has_more = \
                (ns, self.live, *memory.values()), False, False
            for its, change in self._since.items():
                self._told[its] = self._told.get(its, 0) + change
            self._since.clear()
        else:
            self.has_more = True

    def close(self, end_ns):
        """The next one begins there."""
        made = Fine(self.start, *self.best, {site: size for site, size in self._told.items()
                                             if size})
        self._told, self._since = self._since, self._told
        self._since.clear()
        self.start, self.has_more = end_ns, False
        self.best = end_ns, self.live, *self.memory.values()
        return made
