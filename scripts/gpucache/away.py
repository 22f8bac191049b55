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


class Part(block_map.Ranges):
    """Memory, and the live blocks that begin there."""

    def __init__(self):
        super().__init__()
        self.live, self._sizes, self._order = 0, {}, []

    def put(self, blocks):
        """address -> bytes. As a rule there is no other one between them."""
        for addr in blocks.keys() & self._sizes.keys():  # in a broken trace
            self.drop(addr)
        order = sorted(blocks)
        place = bisect.bisect_left(self._order, order[0]) if order else 0
        if order and self._order[place:place + 1] and self._order[place] < order[-1]:
            self._order = sorted(self._order + order)
        else:
            self._order[place:place] = order
        self._sizes.update(blocks)
        self.live += sum(blocks.values())

    def note(self, blocks):
        """These are all that there are; address -> (bytes, ..), with others."""
        self._sizes = {addr: its[0] for addr, its in blocks.items() if self.has(addr)}
        self._order, self.live = sorted(self._sizes), sum(self._sizes.values())

    def drop(self, addr):
        """True: there was such a block."""
        size = self._sizes.pop(addr, None)
        if size is not None:
            del self._order[bisect.bisect_left(self._order, addr)]
            self.live -= size
        return size is not None

    def cut(self, start, size):
        """[(start, bytes)] of these that were there, and are no more; their blocks, as put has
        them."""
        found, blocks = self.within(start, size), {}
        self.take(True, start, size)
        for at, each in found:
            first, behind = (bisect.bisect_left(self._order, its) for its in (at, at + each))
            for addr in self._order[first:behind]:
                blocks[addr] = self._sizes.pop(addr)
            del self._order[first:behind]
        self.live -= sum(blocks.values())
        return found, blocks

    def forget(self):
        super().forget()
        self.live, self._sizes, self._order = 0, {}, []


class Away:
    """What the pool holds is without it: a park gives memory to the driver, as a flush does."""

    def __init__(self, begin_ns, blocks, changes):
        """blocks: address -> (bytes, ..) of what is live. changes: it gets (ns, AWAY or AWAY_LIVE,
        bytes, None)."""
        self.bytes, self.live = 0, 0             # live: of these bytes
        self.was_any, self.live_area = False, 0  # live times ns
        # Where it is, as far as that is known. While asks has something, all blocks have to be told
        # (came, freed).
        self.gone, self.asks = Part(), []
        # (ns, start) of the UNMAPs of parks; ns of a WAKE -> {start: bytes} that did not come back.
        self.taken, self.left = set(), {}
        self._blocks, self._changes, self._ns = blocks, changes, begin_ns
        self._placed = 0                         # bytes that are gone
        self._rest = self._rest_live = 0         # bytes at addresses that are not known
        self._back = Part()                      # what has device memory again
        self._bare = 0                           # bytes of device memory without an address
        # (ns, start, bytes) and (ns, bytes)
        self._unmapped, self._released = (collections.deque(maxlen=LATEST) for _ in range(2))
        self._looks = 0

    def pass_to(self, ns):
        """It is as it was until now."""
        step = max(0, ns - self._ns)
        self.live_area += self.live * step
        self._ns += step

    def _changed(self, ns):
        """What is created on the way back is away no more, though it has no address yet; a wake
        that fails gives it back in the other order. The sum with what is held stays."""
        self.pass_to(ns)
        size, live = self.bytes, self.live
        self.bytes = max(0, self._placed + self._rest - self._bare)
        self.live = min(self.bytes, self.gone.live + self._rest_live)
        self.was_any = self.was_any or self.bytes > 0
        if self.bytes != size:
            self._changes.append((ns, AWAY, self.bytes - size, None))
        if self.live != live:
            self._changes.append((ns, AWAY_LIVE, self.live - live, None))

    def parked(self, ns, size, duration_ns, live):
        """PARK. live: what is live in all."""
        known, began_ns, before = 0, ns, self.gone.live
        self._looks += len(self._blocks)
        while self._unmapped and known < size and self._looks < LOOKS_MOST:
            at, start, each = self._unmapped.pop()
            if at < ns - duration_ns:
                break
            known, began_ns = known + self._place(start, each), at
            self.taken.add((at, start))
        self._unmapped.clear()
        if known:
            self.gone.note(self._blocks)
        self._rest += max(0, size - known)
        self._rest_live = max(0, min(self._rest, live - self.gone.live))
        self._went(ns, began_ns, (self.gone.live - before) / known if known else 0)
        self._changed(ns)

    def _went(self, ns, began_ns, live_part):
        """Since the UNMAPs it has been given to the driver, piece by piece, and was no idle memory.
        """
        self.live_area += sum(int(live_part * each) * (ns - at) for at, each in self._released
                              if at >= began_ns)
        self._released.clear()

    def released(self, ns, size):
        self._released.append((ns, size))
        if self._bare:  # a wake has failed
            self._bare = max(0, self._bare - size)
            self._changed(ns)

    def found(self, ns, addr, size):
        """A block that was live when the trace began, at which no device memory was."""
        self._place(addr, size)
        self.came(ns, addr, size)

    def _place(self, start, size):
        self._back.cut(start, size)
        new = size - sum(its for _, its in self.gone.within(start, size))
        self.gone.take(False, start, size)
        self.asks[:] = [True]
        self._placed += new
        return new

    def woke(self, ns):
        """WAKE. Returns how much came back; None: it is not known."""
        came = None if self._rest else sum(self._back.ranges.values())
        if self.gone.ranges:
            self.left[ns] = dict(self.gone.ranges)
        self.ended(ns)
        return came

    def ended(self, ns):
        """Nothing is away any more."""
        for its in self.gone, self._back:
            its.forget()
        self.asks.clear()
        self._placed = self._rest = self._rest_live = self._bare = 0
        self._changed(ns)

    def came(self, ns, addr, size):
        """A block."""
        for its in self.gone, self._back:
            if its.has(addr):
                its.drop(addr)
                its.put({addr: size})
                self._changed(ns)

    def freed(self, ns, addr):
        if self.gone.drop(addr) or self._back.drop(addr):
            self._changed(ns)

    def created(self, ns, size):
        if self._placed or self._rest:  # also where all of it is on its way back
            self._bare += size
            self._changed(ns)

    def mapped(self, ns, start, size):
        if not self._placed and not self._rest:
            return
        self._bare = max(0, self._bare - size)
        found, blocks = self.gone.cut(start, size)
        for at, each in found:
            self._back.take(False, at, each)
            self._placed -= each
        self._back.put(blocks)
        if not found:  # as if it came back
            self._rest = max(0, self._rest - size)
            self._rest_live = min(self._rest, self._rest_live)
        self._changed(ns)

    def unmapped(self, ns, start, size):
        """Also what a wake has mapped that fails then."""
        self._unmapped.append((ns, start, size))
        found, blocks = self._back.cut(start, size)
        for at, each in found:
            self._place(at, each)
            self._bare += each
        if found:
            self.gone.put(blocks)
            self._changed(ns)
