# SPDX-License-Identifier: BSD-2-Clause
"""What a trace says: who held how much device memory and when, what was asked for again and again,
what grows, and what went on beside it. Bytes are those that the program asked for; what the library
held for them is `reserved`."""
import collections
import os

from gpucache import tables
from gpucache.trace import KIND

COLUMNS = 4000      # of the picture; each is its highest moment
SITES_MOST = 300    # of a column; the others count as site 0
ENOUGH = 0.98       # of the time
WINDOWS = 24        # for growth: the least of each is compared
LATE_FREE_NS = 1_000_000
ALLOCS = tuple(KIND[name] for name in ("ALLOC_FAST", "ALLOC", "ALLOC_DRIVER", "LIVE"))
FREE, LIVE = KIND["FREE"], KIND["LIVE"]
GROUPS = [row["name"] for row in tables.COUNTERS]

Block = collections.namedtuple("Block", "bytes site ns tid")
# Something that happened at a moment. kind: the name of a row of kinds.def.
Mark = collections.namedtuple("Mark", "ns kind bytes text site")
# ns: the highest moment. held: site -> bytes there. reserved: the library's device memory then.
Column = collections.namedtuple("Column", "ns held live reserved")


class Site:
    """Code that asks for memory, by its address."""

    def __init__(self):
        self.num_allocs = self.num_frees = self.num_driver = self.bytes_total = 0
        self.live = self.blocks = self.most = 0
        self.lives = collections.Counter()  # binary digits of the life in ns -> blocks

    def median_life_ns(self):
        """Half of its blocks lived no longer; to a factor of two. None: none was freed."""
        half, seen = sum(self.lives.values()) / 2, 0
        for digits in sorted(self.lives):
            seen += self.lives[digits]
            if seen >= half:
                return 3 << digits >> 2
        return None


class _Columns:
    """The columns, one after the other. Within one the changes are kept, and those up to its
    highest moment are made at its end."""

    def __init__(self, span_ns):
        self.width_ns = max(1, -(-max(1, span_ns) // COLUMNS))
        self.found, self.held = [], collections.Counter()
        self.end_ns, self.changes, self.best = self.width_ns, [], None

    def note(self, ns, site, change, live, reserved):
        if ns >= self.end_ns:
            self.finish(ns)
        if self.best is None or live > self.best[1] or (live == self.best[1]
                                                        and reserved > self.best[2]):
            self.best = ns, live, reserved, len(self.changes) + 1
        self.changes.append((site, change))

    def finish(self, ns):
        """The column is over. Those until ns are as it was left."""
        if self.best:
            at_ns, live, reserved, number = self.best
            for site, change in self.changes[:number]:
                self.held[site] += change
            self.found.append(Column(at_ns, self._most(), live, reserved))
            for site, change in self.changes[number:]:
                self.held[site] += change
            self.held = +self.held
        self.changes, self.best = [], None
        self.end_ns = (ns // self.width_ns + 1) * self.width_ns

    def _most(self):
        held = {site: size for site, size in self.held.items() if size > 0}
        if len(held) <= SITES_MOST:
            return held
        kept = dict(sorted(held.items(), key=lambda item: -item[1])[:SITES_MOST])
        kept[0] = kept.get(0, 0) + sum(held.values()) - sum(kept.values())
        return kept


class Usage:
    """All that is known of a trace after one pass."""

    def __init__(self, its, progress=None):
        """its: a Trace. progress: called with the number of events so far, at times."""
        self.trace = its
        self.span_ns = max(1, its.span_ns())
        self.sites = collections.defaultdict(Site)
        self.blocks, self.marks, self.gpus = {}, [], {}
        self.live = self.reserved = self.num_events = self.num_unknown_frees = 0
        self.peak = self.reserved_peak = 0
        self.peak_ns = 0
        self.at_peak = {}
        self.passed = collections.defaultdict(lambda: [0, 0])  # group -> [calls, bytes]
        self.driver_ns = 0   # in calls that took or gave device memory
        self.levels = collections.Counter()  # MiB of live memory -> ns
        self.floors = []     # of each window: site -> least bytes
        self._owned, self._freed, self._late = {}, {}, {}
        self._contexts = set()  # that are there
        self._reserved = collections.Counter()  # of each context
        self._unknown = set()  # addresses that were freed and are none that the trace knows
        self._columns = _Columns(self.span_ns)
        self._level_ns = 0
        self._floor, self._window_ns = {}, self.span_ns / WINDOWS
        for event in its.events():
            self.num_events += 1
            if progress and not self.num_events % 100_000:
                progress(self.num_events)
            self._take(event)
        self._columns.finish(self.span_ns)
        self._level(self.span_ns)
        self.columns = self._columns.found
        self._find_peak()

    def _take(self, event):
        ns, kind, first, second, _, site, _, tid, _ = event
        if kind in ALLOCS:
            self._alloc(ns, first, Block(second, site, ns, tid), kind)
        elif kind == FREE:
            self._free(ns, first)
        else:
            self._others[kind](self, event) if kind in self._others else None

    def _change(self, ns, site, change):
        self._level(ns)
        self.live += change
        if self.live > self.peak:
            self.peak, self.peak_ns = self.live, ns
        self._columns.note(ns, site, change, self.live, self.reserved)

    def _level(self, ns):
        self.levels[self.live >> 20] += max(0, ns - self._level_ns)
        self._level_ns = max(ns, self._level_ns)

    def _alloc(self, ns, addr, block, kind):
        if kind == LIVE and (addr in self.blocks or addr in self._unknown):
            return  # it was handed out, or came back, while the trace began
        if addr in self.blocks:  # another thread's free has an older clock
            self._free(ns, addr)
            self._late[addr] = ns
        its = self.sites[block.site]
        if kind != LIVE:
            its.num_allocs += 1
            its.bytes_total += block.bytes
            its.num_driver += kind == KIND["ALLOC_DRIVER"]
        its.live += block.bytes
        its.blocks += 1
        its.most = max(its.most, its.live)
        self.blocks[addr] = block
        self._windows(ns)
        self._change(ns, block.site, block.bytes)

    def _free(self, ns, addr):
        if self._late and ns - self._late.pop(addr, ns - LATE_FREE_NS) < LATE_FREE_NS:
            return
        block = self.blocks.pop(addr, None)
        if block is None:
            self.num_unknown_frees += 1
            self._unknown.add(addr)
            return
        its = self.sites[block.site]
        its.num_frees += 1
        its.live -= block.bytes
        its.blocks -= 1
        its.lives[(ns - block.ns).bit_length()] += 1
        self._freed = {addr: block}
        self._windows(ns)
        floor = self._floor
        if its.live < floor.get(block.site, 1 << 63):
            floor[block.site] = its.live
        self._change(ns, block.site, -block.bytes)

    def _windows(self, ns):
        """The least of each site in each window. A site that frees nothing there has what it had at
        the start."""
        while ns >= (len(self.floors) + 1) * self._window_ns and len(self.floors) < WINDOWS:
            self.floors.append(self._floor)
            self._floor = {site: its.live for site, its in self.sites.items() if its.live}

    def _free_failed(self, event):
        block = self._freed.pop(event.a, None)
        if block:
            self._alloc(event.ns, event.a, block, LIVE)

    def _hold(self, event, change):
        self.reserved += change
        self._reserved[event.context] += change
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.driver_ns += event.aux
        self._columns.note(event.ns, 0, 0, self.live, self.reserved)

    def _took(self, event):
        self._owned[event.a] = event.b
        self._hold(event, event.b)

    def _gave(self, event):
        self._hold(event, -self._owned.pop(event.a, 0) if event.kind == KIND["SEGMENT_FREE"]
                   else -event.b)

    def _held(self, event):
        self._owned[event.a] = event.b
        self._hold(event, event.b)

    def _other_memory(self, event):
        group = GROUPS[event.aux] if event.aux < len(GROUPS) else "other"
        entry = self.passed[group]
        entry[0] += 1
        entry[1] += event.b

    def _context(self, event):
        uuid, _, name = event.text.partition(" ")
        self._contexts.add(event.context)
        self.gpus[event.context] = {"device": event.a, "uuid": uuid, "name": name,
                                    "total_bytes": event.b}

    def _context_end(self, event):
        """All its memory is gone. Of several contexts nobody knows whose is whose."""
        self._mark(event)
        self._contexts.discard(event.context)
        if not self._contexts:
            for addr in list(self.blocks):
                self._free(event.ns, addr)
        self._hold(event, -self._reserved[event.context])  # segments go with their context

    def _mark(self, event):
        name = {number: name for name, number in KIND.items()}[event.kind]
        size = event.b if name == "ALLOC_FAILED" else event.a
        self.marks.append(Mark(event.ns, name, size, event.text or str(event.a), event.site))

    _others = {
        KIND["FREE_FAILED"]: _free_failed, KIND["CREATE"]: _took, KIND["SEGMENT"]: _took,
        KIND["RELEASE"]: _gave, KIND["SEGMENT_FREE"]: _gave, KIND["HELD"]: _held,
        KIND["PASSED"]: _other_memory, KIND["CONTEXT"]: _context, KIND["ALLOC_FAILED"]: _mark,
        KIND["FLUSH"]: _mark, KIND["OOM_STEP"]: _mark, KIND["LEND_ASK"]: _mark,
        KIND["LEND_GIVE"]: _mark, KIND["OPTION"]: _mark, KIND["CONTEXT_END"]: _context_end,
    }

    def _find_peak(self):
        best = max(self.columns, key=lambda column: column.live, default=None)
        self.at_peak = dict(best.held) if best else {}

    def enough(self):
        """Bytes of live memory that were enough for ENOUGH of the time."""
        whole, seen = sum(self.levels.values()), 0
        for level in sorted(self.levels):
            seen += self.levels[level]
            if seen >= ENOUGH * whole:
                return min(self.peak, (level + 1) << 20)
        return self.peak

    def peak_lasted_ns(self):
        """How long as much was live as at the peak, to a MiB."""
        return self.levels[self.peak >> 20]

    def grows(self):
        """{site: bytes} by which the floor of a site rose in the last half of the time. Only of
        those whose floor never fell there, and rose in most windows."""
        found, floors = {}, self.floors[len(self.floors) // 2:]
        for site in self.sites if len(floors) > 3 else ():
            past = [floor.get(site, 0) for floor in floors]
            rises = sum(b > a for a, b in zip(past, past[1:]))
            if all(b >= a for a, b in zip(past, past[1:])) and 2 * rises > len(past):
                found[site] = past[-1] - past[0]
        return found

    def owner(self, site):
        """The library, or the program itself, whose code asked."""
        its = self.trace.object_of(site) if site else None
        return os.path.basename(its.path) if its else "not known"

    def by_owner(self, held):
        """[(owner, bytes)] of site -> bytes, the most first."""
        sums = collections.Counter()
        for site, size in held.items():
            sums[self.owner(site)] += size
        return sums.most_common()
