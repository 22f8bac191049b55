# SPDX-License-Identifier: BSD-2-Clause
"""The device memory that a trace's process holds: that of the library, of blocks that the driver
served, and what is beside the pool."""
import collections
import copy

from gpucache import away, block_map
from gpucache.detail import HOLD
from gpucache.trace import KIND

MOVES = KIND["PARK"], KIND["WAKE"]


class Memory:
    def __init__(self, begin_ns, trace, blocks, changes, noted):
        """blocks, changes: as Away has them. noted: is called with the time of each change."""
        self.held = self.peak = self.pool_peak = 0  # pool: without what is beside it
        self.whole_peak = 0  # of what is held and what is away
        self.most = 0        # held since begin_column
        self.beside_live = 0
        self.driver_ns = 0   # in calls that took or gave memory
        self.away = away.Away(begin_ns, blocks, changes)
        self.moments = block_map.Moments()
        self._trace, self._changes, self._noted = trace, changes, noted
        self._time, self._ns = 0, begin_ns  # bytes times ns
        self._owned, self._of_contexts = {}, collections.Counter()
        # What has come, with its address; bytes that have none so far.
        self._came, self._created = block_map.Ranges(), 0
        self._is_dump, self._parked = False, 0

    def all(self):
        """Bytes of detail.MEMORY."""
        return self.held, self.away.bytes, self.away.live

    def pass_to(self, ns):
        """It is as it was until now. Returns bytes times ns so far."""
        self._time += self.held * max(0, ns - self._ns)
        self._ns = max(ns, self._ns)
        self.away.pass_to(ns)
        return self._time

    def change(self, ns, size):
        self.pass_to(ns)
        self.held += size
        if size:
            self._changes.append((ns, HOLD, size, None))
        self.peak, self.most = max(self.peak, self.held), max(self.most, self.held)
        self.pool_peak = max(self.pool_peak, self.held - self.beside_live)
        self._note(ns)

    def _note(self, ns):
        self.whole_peak = max(self.whole_peak, self.held + self.away.bytes)
        self._noted(ns)

    def begin_column(self):
        self.most = self.held

    def _change_of(self, event, size):
        self.driver_ns += event.aux
        self._of_contexts[event.context] += size
        self.change(event.ns, size)

    def took(self, event):
        size = event.b
        if event.kind == KIND["CREATE"]:
            self._created += size
            self.away.created(event.ns, size)
        elif event.kind == KIND["SEGMENT"]:
            self._came.take(False, event.a, size)
        elif event.a:  # HELD, but for what came while the trace began
            size -= sum(its for _, its in self._came.within(event.a, size))
        else:  # a dump says only how much it was, with what is parked
            if not self._is_dump:
                self._is_dump, self._parked = True, self._away_at_end()
            size = max(0, event.b - self._parked)
            self._parked -= event.b - size
        self._owned[event.a] = event.b
        if event.kind != KIND["CREATE"] and event.a:
            self.moments.take(False, event.a, event.b)
        self._change_of(event, size)

    def _away_at_end(self):
        found = 0
        for part in copy.copy(self._trace).batches():  # which counts what is torn
            for kind, size in zip(part.kind, part.a):
                if kind in MOVES:
                    found = found + size if kind == KIND["PARK"] else 0
        return found

    def gave(self, event):
        """RELEASE says how much, SEGMENT_FREE where."""
        if event.kind == KIND["SEGMENT_FREE"]:
            self.moments.take(True, event.a, self._owned.get(event.a, 0))
            self._change_of(event, -self._owned.pop(event.a, 0))
        else:
            self._change_of(event, -event.b)
            self.away.released(event.ns, event.b)  # behind it: at no moment is it twice there
            self._note(event.ns)

    def mapped(self, event):
        if event.kind == KIND["MAP"] and self._created >= event.b:
            self._created -= event.b
            self._came.take(False, event.a, event.b)
        self.moments.take(event.kind == KIND["UNMAP"], event.a, event.b)
        its = self.away.unmapped if event.kind == KIND["UNMAP"] else self.away.mapped
        its(event.ns, event.a, event.b)
        self._note(event.ns)

    def moved(self, event, live):
        """Memory went to the host, or all that was there came back. live: what is live in all.
        Returns the event with the bytes that did."""
        came = None
        if event.kind == KIND["PARK"]:
            self.away.parked(event.ns, event.a, event.b, live)
        else:
            came = self.away.woke(event.ns)
        self._note(event.ns)
        return event if came is None else event._replace(a=came)

    def was_live(self, ns, addr, size):
        """A block of LIVE: the pool's, so what is at no device memory is parked. If records were
        lost nobody knows."""
        if not self._is_dump and not self.moments.has(addr) and \
                not getattr(self._trace, "num_lost", 0):
            self.away.found(ns, addr, size)
            self._note(ns)

    def all_ended(self, ns):
        """There is no context any more."""
        self.moments.forget()
        self.away.ended(ns)

    def context_ended(self, event):
        """Segments go with their context."""
        self._change_of(event, -self._of_contexts[event.context])
