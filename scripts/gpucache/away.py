# SPDX-License-Identifier: BSD-2-Clause
"""Memory that is parked: its bytes are on the host or in a file, and no device memory is behind its
addresses.

PARK and WAKE say how much went and came back. Which memory it was say the UNMAP records of the time
that PARK tells, and the MAP records ahead of WAKE. A trace that lost those says it of no memory, or
of a part: the rest counts as live as far as there is live memory."""
import bisect
import collections

from gpucache import block_map
from gpucache.detail import AWAY, AWAY_LIVE

LATEST = 1 << 16           # records of a kind that are kept
LOOKS_MOST = 20_000_000    # at blocks, in all parks; from then on it is as if there were no UNMAP


class Away:
    """What the pool holds is without it: a park gives memory to the driver, as a flush does."""

    def __init__(self, begin_ns, blocks, changes):
        """blocks: address -> (bytes, ..) of what is live. changes: it gets (ns, AWAY or AWAY_LIVE,
        bytes, None)."""
        self.bytes, self.live = 0, 0             # live: of these bytes
        self.was_any, self.live_area = False, 0  # live times ns
        # Where it is, as far as that is known. There blocks have to be told: came, freed.
        self.ranges = block_map.Ranges()
        # (ns, start) of the UNMAPs of parks; ns of a WAKE -> {start: bytes} that did not come back.
        self.taken, self.left = set(), {}
        self._blocks, self._changes, self._ns = blocks, changes, begin_ns
        self._placed = self._placed_live = 0     # bytes in the ranges
        self._sizes, self._order = {}, []        # of blocks there; their addresses in order
        self._rest = self._rest_live = 0         # bytes elsewhere
        self._coming = 0                         # bytes that were created, and have no address yet
        self._back, self._num_back = block_map.Ranges(), 0  # what has device memory again
        # (ns, start, bytes) and (ns, bytes)
        self._unmapped, self._released = (collections.deque(maxlen=LATEST) for _ in range(2))
        self._looks = 0

    def pass_to(self, ns):
        """It is as it was until now."""
        step = max(0, ns - self._ns)
        self.live_area += self.live * step
        self._ns += step

    def _changed(self, ns):
        """What is created on the way back is away no more, though it has no address yet: the sum
        with what is held stays."""
        self.pass_to(ns)
        size, live = self.bytes, self.live
        self.bytes = max(0, self._placed + self._rest - self._coming)
        self.live = min(self.bytes, self._placed_live + self._rest_live)
        self.was_any = self.was_any or self.bytes > 0
        if self.bytes != size:
            self._changes.append((ns, AWAY, self.bytes - size, None))
        if self.live != live:
            self._changes.append((ns, AWAY_LIVE, self.live - live, None))

    def parked(self, ns, size, duration_ns, live):
        """PARK. live: what is live in all."""
        known, began_ns, before = 0, ns, self._placed_live
        self._looks += len(self._blocks)
        while self._unmapped and known < size and self._looks < LOOKS_MOST:
            at, start, each = self._unmapped.pop()
            if at < ns - duration_ns:
                break
            known, began_ns = known + self._place(start, each), at
            self.taken.add((at, start))
        self._unmapped.clear()
        self._note_blocks()
        self._rest += max(0, size - known)
        self._rest_live = max(0, min(self._rest, live - self._placed_live))
        self._went(ns, began_ns, (self._placed_live - before) / known if known else 0)
        self._changed(ns)

    def _went(self, ns, began_ns, live_part):
        """Since the UNMAPs it has been given to the driver, piece by piece, and was no idle memory.
        """
        self.live_area += sum(int(live_part * each) * (ns - at) for at, each in self._released
                              if at >= began_ns)
        self._released.clear()

    def released(self, ns, size):
        self._released.append((ns, size))

    def found(self, ns, addr, size):
        """A block that was live when the trace began, at which no device memory was."""
        self._place(addr, size)
        self.came(ns, addr, size)

    def _place(self, start, size):
        new = size - sum(its for _, its in self.ranges.within(start, size))
        self.ranges.take(False, start, size)
        self._placed += new
        return new

    def _note_blocks(self):
        has = self.ranges.has
        self._sizes = {addr: block[0] for addr, block in self._blocks.items() if has(addr)} \
            if self.ranges.ranges else {}
        self._order, self._placed_live = sorted(self._sizes), sum(self._sizes.values())

    def woke(self, ns):
        """WAKE. Returns how much came back; None: it is not known."""
        came = None if self._rest else self._num_back
        if self.ranges.ranges:
            self.left[ns] = dict(self.ranges.ranges)
        self.ended(ns)
        return came

    def ended(self, ns):
        """Nothing is away any more."""
        self.ranges.forget()
        self._back.forget()
        self._sizes, self._order = {}, []
        self._placed = self._placed_live = self._rest = self._rest_live = 0
        self._coming = self._num_back = 0
        self._changed(ns)

    def came(self, ns, addr, size):
        """A block."""
        if self.ranges.has(addr):
            self.freed(ns, addr)
            self._sizes[addr] = size
            bisect.insort(self._order, addr)
            self._placed_live += size
            self._changed(ns)

    def freed(self, ns, addr):
        size = self._sizes.pop(addr, None)
        if size is not None:
            del self._order[bisect.bisect_left(self._order, addr)]
            self._placed_live -= size
            self._changed(ns)

    def created(self, ns, size):
        if self.bytes:
            self._coming += size
            self._changed(ns)

    def mapped(self, ns, start, size):
        if not self._placed and not self._rest:
            return
        self._coming = max(0, self._coming - size)
        for at, each in self.ranges.within(start, size):
            self._back.take(False, at, each)
            self._num_back += each
            self._placed -= each
            first, behind = (bisect.bisect_left(self._order, its) for its in (at, at + each))
            self._placed_live -= sum(map(self._sizes.pop, self._order[first:behind]))
            del self._order[first:behind]
        self.ranges.take(True, start, size)
        self._changed(ns)

    def unmapped(self, ns, start, size):
        """Also what a wake has mapped that fails then."""
        self._unmapped.append((ns, start, size))
        again = self._back.within(start, size)
        for at, each in again:
            self._back.take(True, at, each)
            self._num_back -= self._place(at, each)
        if again:
            self._note_blocks()
            self._changed(ns)
