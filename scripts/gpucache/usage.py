# SPDX-License-Identifier: BSD-2-Clause
"""What a trace says: who held how much device memory and when, what was asked for again and again,
what grows, and what went on beside it. Bytes are those that the program asked for; what the library
held for them is `reserved`."""
import collections
import gc
import itertools

from gpucache import beside, block_map, detail, memory, outside, text
from gpucache.site import (AfterPeak, Block, Column, Floors, Largest, Levels, Owners, Site,
                           limit_then, mark_of)
from gpucache.trace import BEFORE, KIND, Event

COLUMNS = 4000      # of the picture; each is its highest moment
ENOUGH = 0.98       # of the time
LATE_FREE_NS, LATE_MOST = 1_000_000, 8  # of one address
NATIVE_PAIR_NS = 88_000  # of cudaMalloc and cudaFree without the library; RESULTS.md
OUT_OF_MEMORY = 2   # CUresult
CUT = 1 << 14       # changes
MAPPED = {"ALLOC_FAILED": "out of memory", "FLUSH": "a flush"}  # moments with a map of the blocks
ALLOCS = tuple(KIND[name] for name in ("ALLOC_FAST", "ALLOC", "ALLOC_DRIVER", "LIVE"))
FREE, FREE_ASYNC, LIVE, ALLOC, ALLOC_FAST, ALLOC_DRIVER = (
    KIND[name] for name in ("FREE", "FREE_ASYNC", "LIVE", "ALLOC", "ALLOC_FAST", "ALLOC_DRIVER"))
NONE_FREED = 0, 0, None  # address, ns, block
BESIDE = {KIND[name]: how for name, how in (
    ("PASSED", beside.Beside.came), ("PASSED_FREE", beside.Beside.given_up),
    ("PASSED_HOLD", beside.Beside.retained), ("PASSED_MAP", beside.Beside.mapped),
    ("PASSED_UNMAP", beside.Beside.unmapped))}


class Usage:
    """All that is known of a trace after one pass."""

    def __init__(self, its, whole_ns=0):
        """its: a Trace. whole_ns: of the picture, which may be longer than the trace."""
        self.trace = its
        self.span_ns = max(1, its.span_ns())
        self.column_ns = max(1, -(-max(whole_ns, self.span_ns) // COLUMNS))
        lead_ns = self.lead_ns = getattr(its, "lead_ns", 0)
        self.own_ns = max(1, self.span_ns - lead_ns)
        self.floors = Floors(lead_ns, self.own_ns)
        self.sites = collections.defaultdict(Site)
        self.blocks, self.marks, self.gpus = {}, [], {}
        self.options = {}       # in force at the start, and not the defaults; {}: not told
        self.outside = outside.Outside()
        self.oom, self.neighbours = None, []  # Event; [(pid, name, bytes)], with most first
        self.limit = None       # bytes of GPUCACHE_MAX_RESERVED, if that refused what oom asked for
        self.live = self.num_events = self.num_unknown_frees = 0
        self.peak = self.peak_ns = 0
        self.after_peak = AfterPeak()
        self.beside = beside.Beside(self._beside_changed)
        self.levels, self.columns = Levels(), []
        self._freed, self._late = NONE_FREED, {}
        # Address -> bytes of a block that the driver served; None: it is from before the trace.
        self._apart, self._apart_freed = {}, NONE_FREED  # address, ns and that, of the last free
        self._level_ns = lead_ns
        # Bytes times ns, of blocks that were freed, and of what was beside the pool.
        self._live_area = self._beside_area = 0
        self._contexts = set()  # those there
        self._unknown = set()   # addresses that were freed and are none that the trace knows
        self._peak_ranges = None  # of the peak, whose blocks are to be kept
        # Of the column: its highest moment, which has a number. has_changed: live memory, since.
        self._best, self._best_ns, self._best_memory, self._moment = 0, 0, (0, 0, 0), 0
        self._has_changed, self._end_ns = False, self.column_ns
        # site -> Site of those that changed since the highest moment of the column before.
        self._largest, self._touched = Largest(), {}
        self._owners = Owners(its)
        self._changes = []  # (ns, site, bytes, address) since the last cut
        self.memory = memory.Memory(lead_ns, its, self.blocks, self._changes, self._note_memory)
        self.moments = self.memory.moments
        self.detail = detail.Detail(lead_ns, self.span_ns)
        collects = gc.isenabled()
        gc.disable()  # there are no cycles among millions of tuples, and a tenth of the time goes
        try:
            self._run(its.batches())
        finally:
            if collects:
                gc.enable()
        self._level(self.span_ns)
        self._held_time = self.memory.pass_to(self.span_ns)
        self._finish_column(self.span_ns)
        self._keep_peak()
        self.moments.at_end(self.span_ns, "the end", self.blocks)
        self.blocks = {addr: Block(*block[:3]) for addr, block in self.blocks.items()}
        blocks = collections.Counter(block.site for block in self.blocks.values())
        beside_blocks = self.beside.num_live()
        for site, found in self.sites.items():
            found.count(blocks[site], beside_blocks[site])
        if not self.sites and not self.memory.peak:
            self.columns = []
        best = max(self.columns, key=lambda column: column.live, default=None)
        self.at_peak = dict(best.held) if best else {}

    def _run(self, batches):
        ns = 0
        for part in itertools.chain.from_iterable(map(self.floors.parts, batches)):
            self._take_batch(part)
            self.floors.worked(part.kind, self._touched, self.sites)
            ns = part.ns[-1]
            self.num_events += len(part.ns)
        # A trace that is recorded meanwhile has more now.
        self.span_ns = max(self.span_ns, ns)
        self.own_ns = max(1, self.span_ns - self.lead_ns)

    def _take_batch(self, batch):
        """A trace may have ten million events: what is frequent is written out here, with local
        names. _take does the same and all the rest."""
        blocks, sites, levels, pop = self.blocks, self.sites, self.levels, self.blocks.pop
        late, apart, change = self._late, self._apart, self._changes.append
        touched, parked = self._touched, self.memory.away.asks
        live, best, moment, has_changed, level_ns, area, freed_addr, freed_ns, freed = self._state()
        level, end_ns = live >> 20, self._end_ns
        for ns, kind, addr, size, site, wide in zip(batch.ns, batch.kind, batch.a, batch.b,
                                                    batch.site, batch.wide):
            if ns >= end_ns:
                self._set(live, best, moment, has_changed, level_ns, area, freed_addr, freed_ns,
                          freed)
                self._finish_column(ns)
                best, moment, has_changed = live, self._moment, False
                end_ns = self._end_ns
            if kind == FREE and addr in blocks and not late and not parked and addr not in apart:
                freed = size, site, since, its = pop(addr)
                freed_addr, freed_ns, life = addr, ns, ns - since
                area += size * life
                its.lives[life.bit_length()] += 1
                held = its.live
                if its.moment != moment:
                    its.moment, its.then, touched[site] = moment, held, its
                its.live = held = held - size
                if held < its.floor:
                    its.floor = held
                size = -size
            elif (kind == ALLOC_FAST or kind == ALLOC) and addr not in blocks and not parked:
                its = sites[site]
                blocks[addr] = size, site, ns, its
                its.bytes_total += size
                held = its.live
                if its.moment != moment:
                    its.moment, its.then, touched[site] = moment, held, its
                its.live = held = held + size
                if held > its.most:
                    its.most = held
            else:
                self._set(live, best, moment, has_changed, level_ns, area, freed_addr, freed_ns,
                          freed)
                self._take(ns, kind, addr, size, site, wide)
                live, best, moment, has_changed, level_ns, area, freed_addr, freed_ns, freed = \
                    self._state()
                level = live >> 20
                continue
            live += size
            if live >> 20 != level:
                levels[level] += ns - level_ns
                level, level_ns = live >> 20, ns
            change((ns, site, size, addr))
            if live > best:
                best, has_changed = live, False
                self._new_best(ns, live)
                moment = self._moment
            else:
                has_changed = True
        self._set(live, best, moment, has_changed, level_ns, area, freed_addr, freed_ns, freed)
        if len(self._changes) >= CUT:
            self._cut()

    def _cut(self):
        """What changed goes to those that keep it."""
        self.after_peak.take(self._changes)
        self.detail.take(self._changes)
        self._changes.clear()

    def _state(self):
        """What is frequent."""
        return (self.live, self._best, self._moment, self._has_changed, self._level_ns,
                self._live_area, *self._freed)

    def _set(self, live, best, moment, has_changed, level_ns, area, *freed):
        self.live, self._best, self._moment, self._has_changed = live, best, moment, has_changed
        self._level_ns, self._live_area, self._freed = level_ns, area, freed

    def _take(self, ns, kind, first, second, site, wide):
        if kind in ALLOCS:
            self._alloc(ns, first, second, site, kind)
        elif kind == FREE or kind == FREE_ASYNC and first in self.blocks:
            self._free(ns, first)
        elif kind == FREE_ASYNC:
            self._free_beside(ns, first)
        elif kind in self._others:
            aux, said, context = wide
            self._others[kind](self, Event(ns, kind, first, second, aux, site, context, 0, said))

    def _change(self, ns, its, site, change, addr):
        if its.moment != self._moment:
            its.moment, its.then, self._touched[site] = self._moment, its.live, its
        its.live += change
        self._level(ns)
        self.live += change
        self._changes.append((ns, site, change, addr))
        if self.live > self._best:
            self._best, self._has_changed = self.live, False
            self._new_best(ns, self.live)
        else:
            self._has_changed = True

    def _level(self, ns):
        """As much was live until now."""
        step = max(0, ns - self._level_ns)
        self.levels[self.live >> 20] += step
        self._level_ns += step

    def live_time(self):
        """Bytes times ns, of the whole time."""
        return self._live_area + self._beside_time() + sum(
            block.bytes * (self._level_ns - block.ns) for block in self.blocks.values())

    def _beside_time(self):
        return self._beside_area + self.beside.live * self._level_ns

    def _new_best(self, ns, live):
        self._moment += 1
        its = self.memory
        self._best_ns, self._best_memory = ns, (its.held, its.away.bytes, its.away.live)
        self.beside.since.clear()
        if live > self.peak:
            self.after_peak.begin(self.peak, len(self._changes))
            self.peak, self.peak_ns = live, ns
            self.detail.peak(ns, self.detail.number + len(self._changes), self._best_memory)

    def _finish_column(self, ns):
        """The column is over; ns: the next event. The column says what was live at its highest
        moment, which its beginning may be."""
        moment, touched = self._moment, self._touched
        self._cut()
        self.floors.note(touched)
        held = self._largest.held([(site, its.then if its.moment == moment else its.live)
                                   for site, its in touched.items()])
        self.columns.append(Column(self._best_ns, held, self._best, *self._best_memory,
                                   self.memory.most))
        now = self._best_memory = self.memory.all()
        since = {site: its for site, its in touched.items() if its.moment == moment}
        touched.clear()
        touched.update(since)
        if ns >= self._end_ns + self.column_ns:  # nothing happened in the columns until ns
            held = self._largest.held([(site, its.live) for site, its in touched.items()])
            self.columns.append(Column(self._end_ns, held, self.live, *now, now[0]))
            touched.clear()
        if self.after_peak.is_new:
            self._peak_ranges = dict(self.moments.ranges)
            self.beside.note_peak()
        else:
            self._keep_peak()
        self.after_peak.end_column(self.peak, self._best)
        self.floors.take(ns, self.sites)
        self._end_ns = (ns // self.column_ns + 1) * self.column_ns
        self._best, self._best_ns = self.live, self._end_ns - self.column_ns
        self.memory.begin_column()
        self._moment += 1
        self._has_changed = False
        self.after_peak.begin_column()
        self.beside.since.clear()

    def _keep_peak(self):
        """The map of the blocks then, unless a higher moment came in the next column: where memory
        rises all the time there are no copies of all blocks."""
        if self._peak_ranges is not None:
            self.moments.at_peak(self.peak_ns, self.blocks, self.after_peak.since,
                                 self._peak_ranges)
            self._peak_ranges = None

    def _alloc(self, ns, addr, size, site, kind):
        if kind == LIVE and (addr in self.blocks or addr in self._unknown):
            return  # it was handed out, or came back, while the trace began
        if addr in self.blocks:  # another thread's free has an older clock
            self._free_block(ns, addr)
            self._late[addr] = [*self._late.get(addr, ())[1 - LATE_MOST:], ns]
        if kind == LIVE and not site and ns > self.lead_ns:  # a dump's come at its start
            site = BEFORE
        its = self.sites[site]
        self.blocks[addr] = size, site, ns, its
        its.count_alloc(size, kind == LIVE)
        if kind == LIVE:
            self._apart[addr] = None
            self.memory.was_live(ns, addr, size)
        elif kind == ALLOC_DRIVER:
            self._apart[addr] = size
            self.memory.change(ns, size)
        self.memory.away.came(ns, addr, size)
        self._change(ns, its, site, size, addr)
        its.most = max(its.most, its.live)

    def _free(self, ns, addr):
        late = [since for since in self._late.pop(addr, ()) if ns - since < LATE_FREE_NS]
        if late[1:]:
            self._late[addr] = late[1:]
        if late:
            return
        if addr in self.blocks:
            self._free_block(ns, addr)
        elif not self._free_beside(ns, addr):
            self.num_unknown_frees += 1
            self._unknown.add(addr)

    def _free_block(self, ns, addr):
        size, site, since, its = self.blocks.pop(addr)
        self._freed = addr, ns, (size, site, since, its)
        self._live_area += size * (ns - since)
        held = self._apart.get(addr, 0)
        its.count_free(ns - since, held is None)
        self._change(ns, its, site, -size, addr)
        self.memory.away.freed(ns, addr)
        its.floor = min(its.floor, its.live)
        if addr in self._apart:
            self._apart_freed = addr, ns, self._apart.pop(addr)
            self.memory.change(ns, -(held or 0))

    def _free_beside(self, ns, addr):
        """Of what is no block. False: it is no memory that is known."""
        if self._freed[0] == addr:  # a second free, which fails
            self._freed = NONE_FREED
        return self.beside.free(ns, addr)

    def _free_failed(self, event):
        """The free was none."""
        addr, ns, block = self._freed
        if self.beside.failed(event, ns if block and addr == event.a else -1) or not block or \
                addr != event.a or addr in self.blocks:
            return
        size, site, since, its = self.blocks[addr] = block
        self._freed, held = NONE_FREED, 0
        if self._apart_freed[:2] == (addr, ns):
            held = self._apart[addr] = self._apart_freed[2]
            self.memory.change(event.ns, held or 0)
        self._live_area -= size * (ns - since)
        its.count_free(ns - since, held is None, -1)
        self.memory.away.came(event.ns, addr, size)
        self._change(event.ns, its, site, size, addr)

    @property
    def reserved(self):
        """What is held on the device."""
        return self.memory.held

    def _note_memory(self, ns):
        """A column has the most that was held, or away, at its highest moment."""
        now, best = self.memory.all(), self._best_memory
        if self.live == self._best and not self._has_changed and \
                now[0] + now[1] > best[0] + best[1]:
            self._best_ns, self._best_memory = ns, now

    def mean_held(self):
        """Device memory that was held, on average of the time."""
        return self._held_time // self.own_ns

    def mean_idle(self):
        live_there = self.live_time() - self.memory.away.live_area
        return max(0, self._held_time - live_there) // self.own_ns

    def _beside_changed(self, ns, site, change):
        """Device memory beside the pool is live and held. It is not in the map of blocks."""
        its = self.sites[site]
        self._beside_area -= change * ns
        self.memory.beside_live = self.beside.live
        self.memory.change(ns, change)
        self._change(ns, its, site, change, None)
        its.most = max(its.most, its.live)
        its.floor = min(its.floor, its.live)

    def _beside(self, event):
        BESIDE[event.kind](self.beside, event)

    def mean_pool(self):
        """mean_held, without what is beside the pool."""
        return self.mean_held() - self._beside_time() // self.own_ns

    def _out_of_memory(self, event):
        self.oom = event
        self.limit = limit_then(self.marks, event.b, event.site)
        self._failed(event.ns)

    def _failed(self, ns):
        self.detail.failed(ns, self.detail.number + len(self._changes), self.sites,
                           self.memory.all())

    def stretches(self):
        """[detail.Near] of the peak, and of failures for want of memory."""
        return self.detail.stretches(self.at_peak, self.span_ns)

    def _neighbour(self, event):
        self.neighbours.append((event.a, event.text, event.b))

    def _context(self, event):
        uuid, _, name = event.text.partition(" ")
        self._contexts.add(event.context)
        self.gpus[event.context] = {"device": event.a, "uuid": uuid, "name": name,
                                    "total_bytes": event.b}

    def _whole_gpu(self, event):
        self.outside.note_gpu(event)

    def _process(self, event):
        self.outside.note_process(event, self.reserved)

    def _option(self, event):
        name, _, value = event.text.partition("=")
        if event.aux:
            self.options[name] = value
        else:
            self._mark(event)

    def _context_end(self, event):
        """All its memory is gone. Of several contexts nobody knows whose is whose."""
        self._mark(event)
        self._contexts.discard(event.context)
        if not self._contexts:
            for addr in list(self.blocks):
                self._free(event.ns, addr)
            self.beside.context_ended(event.ns)
            self.memory.all_ended(event.ns)
        self.memory.context_ended(event)

    def _mark(self, its):
        name = {number: name for name, number in KIND.items()}[its.kind]
        mark = mark_of(its, name, self.live)
        self.marks.append(mark)
        if name in MAPPED and (name != "ALLOC_FAILED" or its.a == OUT_OF_MEMORY):
            self.moments.at(its.ns, MAPPED[name] if mark.limit is None else "the limit",
                            self.blocks)
        if name == "ALLOC_FAILED" and its.a == OUT_OF_MEMORY:
            self._failed(its.ns)

    def _took(self, event):
        self.memory.took(event)

    def _gave(self, event):
        self.memory.gave(event)

    def _mapped(self, event):
        self.memory.mapped(event)

    def _moved(self, event):
        self._mark(self.memory.moved(event, self.live))

    _others = {
        KIND["FREE_FAILED"]: _free_failed, KIND["CREATE"]: _took, KIND["SEGMENT"]: _took,
        KIND["RELEASE"]: _gave, KIND["SEGMENT_FREE"]: _gave, KIND["HELD"]: _took,
        KIND["MAP"]: _mapped, KIND["UNMAP"]: _mapped, KIND["GPU"]: _whole_gpu,
        KIND["PROCESS"]: _process, KIND["OOM"]: _out_of_memory, KIND["NEIGHBOUR"]: _neighbour,
        **dict.fromkeys(BESIDE, _beside), KIND["CONTEXT"]: _context, KIND["ALLOC_FAILED"]: _mark,
        KIND["FLUSH"]: _mark, KIND["OOM_STEP"]: _mark, KIND["LEND_ASK"]: _mark,
        KIND["LEND_GIVE"]: _mark, KIND["OPTION"]: _option, KIND["CONTEXT_END"]: _context_end,
        KIND["PARK"]: _moved, KIND["WAKE"]: _moved, KIND["EXPOSED"]: _mark, KIND["IPC_OPEN"]: _mark,
    }

    def enough(self):
        """Bytes of live memory that were enough for ENOUGH of the time."""
        return min(self.peak, self.levels.enough(ENOUGH))

    def peak_lasted_ns(self):
        """How long as much was live as at the peak, to a MiB."""
        return self.levels[self.peak >> 20]

    def life(self, its):
        """That of half of a Site's blocks, in words."""
        return f"some {text.duration(its.median_life_ns(self.own_ns) or 0)}"

    def grows(self):
        """{site: bytes} by which what a site always has rose in the last half."""
        return self.floors.grows(self.sites)

    def owner(self, site):
        """The library, or the program itself, whose code asked."""
        return self._owners.of(site)

    def held_at_end(self):
        """{site: bytes} of what is live at the end."""
        return {site: its.live for site, its in self.sites.items() if its.live > 0}

    def by_owner(self, held):
        """[(owner, bytes)] of site -> bytes, the most first."""
        return self._owners.sums(held).most_common()
