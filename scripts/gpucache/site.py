# SPDX-License-Identifier: BSD-2-Clause
"""What usage.Usage tells: of the code that asks for memory, of blocks, moments and columns."""
import collections
import heapq
import itertools
import operator
import os

from gpucache.detail import MEMORY
from gpucache.trace import BEFORE, FROM_BEFORE, KIND, OTHERS

SITES_MOST = 300    # of a column; the others count as OTHERS
WINDOWS = 24        # for growth: the least of each is compared
LAST, QUIET = 4, 3  # of them: in which work ends; at the end, in which nothing changes
MOST, NEARLY_ALL = 0.5, 0.75
TILL_IDLE = ", until the program was idle: a leak, or what it loads once"
FREES = KIND["FREE"], KIND["FREE_ASYNC"]
# Of a program that does nothing, too: each second; and what was live before the trace.
IDLE = KIND["GPU"], KIND["PROCESS"], KIND["LIVE"]

Block = collections.namedtuple("Block", "bytes site ns")
# Something that happened at a moment. kind: the name of a row of kinds.def. live: bytes, then.
# limit: of ALLOC_FAILED the bytes of GPUCACHE_MAX_RESERVED, if that refused it.
Mark = collections.namedtuple("Mark", "ns kind bytes text site live limit", defaults=(None, ))
# ns: the highest moment. held: site -> bytes there. reserved: the device memory of the library and
# of blocks that the driver served, then; away: bytes that are parked, beside it; away_live: live
# ones of them. most: of reserved, in the whole column.
Column = collections.namedtuple("Column", "ns held live reserved away away_live most",
                                defaults=(0, 0, 0))


LIMIT = "GPUCACHE_MAX_RESERVED"
DETAILS = ("OOM_STEP", "EXPOSED", "IPC_OPEN")  # of which there may be very many


def telling(marks):
    """Without flushes that gave back nothing: a park has two, one before it waits and one after."""
    return [mark for mark in marks if mark.kind != "FLUSH" or mark.bytes]


def select_marks(marks, most):
    """The latest of them in the order of time: so many, and so many that tell a detail. What failed
    comes before all others."""
    failed = [mark for mark in marks if mark.kind == "ALLOC_FAILED"][-most:]
    others = [mark for mark in marks if mark.kind not in ("ALLOC_FAILED", *DETAILS)]
    details = [mark for mark in marks if mark.kind in DETAILS][-most:]
    room = most - len(failed)
    return sorted([*failed, *(others[-room:] if room else []), *details], key=lambda mark: mark.ns)


def mark_of(event, name, live):
    """name: of the event's kind."""
    if name != "ALLOC_FAILED":
        said = event.text or str(event.a)
        if name == "LEND_ASK":
            said = "some came" if event.b else "none came"
        return Mark(event.ns, name, event.a, said, event.site, live)
    refused_by, _, size = event.text.partition("=")
    limit = int(size) if refused_by == LIMIT and size.isascii() and size.isdecimal() else None
    return Mark(event.ns, name, event.b, str(event.a), event.site, live, limit)


def limit_then(marks, size, site):
    """Bytes of the limit that refused this code's latest request of this size; None: none did."""
    return next((mark.limit for mark in reversed(marks)
                 if (mark.kind, mark.bytes, mark.site) == ("ALLOC_FAILED", size, site)), None)


class Site:
    """Code that asks for memory, by its address."""
    __slots__ = ("num_allocs", "num_frees", "num_before", "bytes_total", "live", "blocks", "most",
                 "floor", "lives", "then", "moment", "is_sum")

    def __init__(self):
        self.bytes_total = 0
        self.num_before = 0     # blocks that are live and were so when the trace began
        self.live = self.most = 0
        # Known at the end. num_frees: of blocks that were asked for in the trace.
        self.num_allocs = self.num_frees = self.blocks = 0
        self.floor = 0          # the least of a window
        self.then, self.moment = 0, -1  # what was live at this moment of Usage
        self.lives = [0] * 80   # by the binary digits of the life in ns
        self.is_sum = False

    def count(self, blocks, beside):
        """All is known; blocks: those that are live; beside: parts beside the pool."""
        self.num_frees, self.blocks = sum(self.lives), blocks + beside
        self.num_allocs = self.num_frees + blocks - self.num_before

    def count_alloc(self, size_bytes, is_before):
        """is_before: the block is from before the trace."""
        if is_before:
            self.num_before += 1
        else:
            self.bytes_total += size_bytes

    def count_free(self, life_ns, is_before, number=1):
        """number: -1 takes it back."""
        if is_before:
            self.num_before -= number
        else:
            self.lives[life_ns.bit_length()] += number

    def __add__(self, other):
        """Of two at the end. The most of both at once is not known: no more than the sum."""
        its = Site()
        for name in ("num_allocs", "num_frees", "num_before", "bytes_total", "live", "blocks",
                     "most"):
            setattr(its, name, getattr(self, name) + getattr(other, name))
        its.lives, its.is_sum = [*map(sum, zip(self.lives, other.lives))], True
        return its

    def median_life_ns(self, most_ns):
        """Half of its blocks lived no longer; one digit, known to a third. most_ns: of the trace.
        None: none was freed."""
        half, seen = sum(self.lives) / 2, 0
        for digits, number in enumerate(self.lives):
            seen += number
            if number and seen >= half:
                life = 3 << digits >> 2
                step = 10 ** (len(str(life)) - 1)
                return min((2 * life + step) // (2 * step) * step, most_ns)
        return None


class Owners:
    """The libraries, or the program itself, whose code asked."""

    def __init__(self, trace):
        self._trace, self._known = trace, {}

    def of(self, site):
        if site not in self._known:
            its = self._trace.object_of(site) if site else None
            self._known[site] = os.path.basename(its.path) if its else \
                FROM_BEFORE if site == BEFORE else "not known"
        return self._known[site]

    def sums(self, held):
        """Counter: owner -> bytes, of site -> bytes."""
        sums = collections.Counter()
        for site, size in held.items():
            sums[self.of(site)] += size
        return sums


class Levels(collections.Counter):
    """MiB of live memory -> ns for which as much was live."""

    def enough(self, part):
        """Bytes that were enough for this part of the time."""
        whole, seen, level = sum(self.values()), 0, 0
        for level in sorted(self):
            seen += self[level]
            if seen >= part * whole:
                break
        return (level + 1) << 20


class AfterPeak:
    """The peak's last block came; then freed, (ns, site, bytes), was the first to go. before,
    after: the highest moments on both sides."""

    def __init__(self):
        self.freed, self.before, self.after = None, 0, 0
        self.is_open = self.is_new = self._notes = False
        # (ns, site, bytes, address) that changed since, in the column of the peak and in the next
        # one; the place of the first one among those that are not taken.
        self.since, self._place = [], 0

    def begin(self, before, place):
        self.freed, self.before, self.after = None, before, 0
        self.is_open = self.is_new = self._notes = True
        self.since.clear()
        self._place = place

    def take(self, changes):
        if self._notes:
            self.since += [its for its in changes[self._place:] if its[1] not in MEMORY]
        self._place = 0

    def end_column(self, peak, best):
        if not self.is_open:
            if self.freed:
                self.after = max(self.after, best)
            return
        level = peak
        for change in self.since:
            level += change[2]
            if self.freed is None and change[2] < 0:
                self.freed, self.is_open = change[:3], False
            if self.freed:
                self.after = max(self.after, level)

    def begin_column(self):
        self._notes = self.is_open or self.is_new
        if not self.is_new:
            self.since.clear()
        self.is_new = False

    def other_order(self, peak):
        """The peak, had its last block come after the first free that followed it."""
        return max(self.before, self.after) if self.freed else peak


def _follows(part, its):
    """Puts part, {site: (least, live at the end)} of the sites that changed, behind its."""
    for site, (floor, live) in part.items():
        its[site] = min(floor, its[site][0]) if site in its else floor, live
    return its


class Windows:
    """The least of each site in each window."""

    def __init__(self):
        self.found, self.now = [], {}

    def close(self):
        self.found.append(self.now)
        self.now = {}

    def halve(self):
        """Two are one from now on."""
        self.found = [_follows(last, first) for first, last in zip(self.found[::2],
                                                                    self.found[1::2])]

    def grows(self, part, last=0):
        """{site: bytes} by which the least of a site rose in the last half of the windows. Only of
        those whose least never fell there, and rose in more than this part of them, and in more
        than half of the last ones."""
        half, found = len(self.found) // 2, {}
        often = collections.Counter(itertools.chain.from_iterable(self.found[half:]))
        for site in [site for site, number in often.items()
                     if number > part * (len(self.found) - half) and len(self.found) - half > 3]:
            live, past = 0, []
            for window in self.found:
                floor, live = window.get(site, (live, live))
                past.append(floor)
            past = past[half:]
            steps = [b - a for a, b in zip(past, past[1:])]
            rises = [step > 0 for step in steps]
            if min(steps) >= 0 and sum(rises) > part * len(past) and \
                    2 * sum(rises[len(rises) - last:]) >= last:
                found[site] = past[-1] - past[0]
        return found


class Floors:
    """What grows: in windows of the time, and in windows of the work, which have as many
    events each. A program that leaks and then is idle does so by its work alone."""

    def __init__(self, begin_ns, span_ns):
        self._begin_ns, self._span_ns = begin_ns, span_ns
        self._time, self._work, self._changed = Windows(), Windows(), set()
        self._step, self._num_events, self._num_frees = 1, 0, [0]
        self.till_idle = set()  # the sites that grow by the work alone

    def note(self, sites):
        """They changed, or may have."""
        self._changed.update(sites)

    def _fold(self, sites):
        part = {}
        self._changed.discard(BEFORE)  # it is told at the start, little by little
        for site in self._changed:
            its = sites[site]
            part[site], its.floor = (its.floor, its.live), its.live
        self._changed.clear()
        _follows(part, self._time.now)
        _follows(part, self._work.now)

    def take(self, ns, sites):
        """A window ends with a column, which ends at ns. sites: address -> Site."""
        number = min(WINDOWS, (ns - self._begin_ns) * WINDOWS // self._span_ns)
        if len(self._time.found) < number:
            self._fold(sites)
        while len(self._time.found) < number:
            self._time.close()

    def parts(self, its):
        """Of a Batch, each as long as a window of work. The caller says worked() of each."""
        place = 0
        while place < len(its.ns):
            behind = place + self._step
            yield its if not place and behind >= len(its.ns) else \
                type(its)(*(column[place:behind] for column in its))
            place = behind

    def worked(self, kinds, touched, sites):
        """touched: the sites that changed lately."""
        self._num_events += len(kinds) - sum(map(kinds.count, IDLE))
        self._num_frees[-1] += sum(map(kinds.count, FREES))
        if self._num_events < self._step:
            return
        self.note(touched)
        self._fold(sites)
        self._work.close()
        if len(self._work.found) == 2 * WINDOWS:
            self._work.halve()
            self._num_frees = [*map(sum, zip(self._num_frees[::2], self._num_frees[1::2]))]
            self._step *= 2
        self._num_events = 0
        self._num_frees.append(0)

    def grows(self, sites):
        """{site: bytes} by which a site grew in the last half. By work only if the end was quiet,
        the site grew till then, and more was freed meanwhile than it got: else it loads its data
        and then waits. What makes its data of others, and frees these, looks like a leak there."""
        found, half = self._time.grows(MOST), len(self._work.found) // 2
        quiet = sum(1 for _ in itertools.takewhile(operator.not_, reversed(self._time.found)))
        if half < WINDOWS // 2 or quiet < QUIET:
            return found
        for site, size in self._work.grows(NEARLY_ALL, LAST).items():
            its = sites[site]
            if 2 * sum(self._num_frees[half:]) * its.bytes_total >= 3 * size * its.num_allocs:
                if site not in found:
                    self.till_idle.add(site)
                    found[site] = size
        return found


class Largest:
    """The sites with most live bytes, and the sum of the others. A change of a site takes the same
    time with few sites and with many, and so does a question, but for the logarithm."""

    def __init__(self):
        self._sizes, self._whole = {}, 0
        # _rest: a heap of (-bytes, site) with those that are not kept, and more that is no longer
        # so; None: it is to be made.
        self._kept, self._rest = {}, None

    def held(self, changes):
        """{site: bytes}, with OTHERS if these are not all. changes: [(site, bytes)] since the last
        question, each site once."""
        self._take(changes)
        if len(self._sizes) <= SITES_MOST:
            self._kept, self._rest = dict(self._sizes), None
        elif self._rest is None:
            self._kept = {site: size for size, site in heapq.nlargest(
                SITES_MOST, zip(self._sizes.values(), self._sizes))}
        else:
            self._exchange()
        found = dict(self._kept)
        if len(found) < len(self._sizes):
            found[OTHERS] = self._whole - sum(found.values())
        return found

    def _take(self, changes):
        sizes, kept = self._sizes, self._kept
        if 4 * len(changes) > len(sizes):
            self._rest = None  # to look at all takes no longer
        elif len(sizes) > SITES_MOST and (self._rest is None or
                                          len(self._rest) > 4 * len(sizes)):
            self._rest = [(-size, site) for site, size in sizes.items() if site not in kept]
            heapq.heapify(self._rest)
        rest = self._rest
        for site, size in changes:
            self._whole += size - sizes.pop(site, 0)
            if size:
                sizes[site] = size
            if rest is None:
                continue
            if kept.pop(site, 0) and size:
                kept[site] = size
            elif size:
                heapq.heappush(rest, (-size, site))

    def _next(self):
        """(bytes, site): the largest that is not kept."""
        rest = self._rest
        while rest and (rest[0][1] in self._kept or
                        self._sizes.get(rest[0][1]) != -rest[0][0]):
            heapq.heappop(rest)
        return (-rest[0][0], rest[0][1]) if rest else (0, 0)

    def _exchange(self):
        """What is kept are the largest again."""
        kept = self._kept
        while len(kept) < SITES_MOST:
            size, site = self._next()
            kept[site] = size
        least = [(size, site) for site, size in kept.items()]
        heapq.heapify(least)
        found = self._next()
        while found > least[0]:
            size, site = heapq.heapreplace(least, found)
            del kept[site]
            kept[found[1]] = found[0]
            heapq.heappush(self._rest, (-size, site))
            found = self._next()
