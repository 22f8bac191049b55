# SPDX-License-Identifier: BSD-2-Clause
"""Where blocks lay in device memory at a few moments of a trace, and whose they were. The memory is
what the library had mapped, and what the driver served beside it, in the order of addresses and
without the gaps between."""
import bisect
import collections

CELLS = 3072            # of a moment, at most; each has a power of two of bytes
SHADES = 4              # how full a cell is
OF_A_KIND = 3           # moments of a kind
MOMENTS = 8
BLOCKS_MOST = 200_000   # with more there is no map: it would take longer than all the rest
UNIT = 512


class Moment:
    """blocks: address -> (bytes, site, ..). ranges: address -> bytes. Both are copied."""

    def __init__(self, ns, name, blocks, ranges):
        self.ns, self.name = ns, name
        self.blocks = sorted((addr, block[0], block[1]) for addr, block in blocks.items())
        self.ranges = sorted(ranges.items())

    def live(self):
        return sum(size for _, size, _ in self.blocks)

    def _spans(self):
        """[(start, end)] of the memory."""
        parts = [(start, start + size) for start, size in self.ranges]
        parts += [(addr, addr + -(-size // UNIT) * UNIT) for addr, size, _ in self.blocks]
        found = []
        for start, end in sorted(parts):
            if found and start <= found[-1][1]:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([start, end])
        return found

    def runs(self, owner_of):
        """[(bytes, owner)] that follow each other; None: no block. owner_of: site -> owner."""
        found = []

        def add(size, owner):
            if size > 0 and found and found[-1][1] == owner:
                found[-1][0] += size
            elif size > 0:
                found.append([size, owner])
        place, starts = 0, [block[0] for block in self.blocks]
        for start, end in self._spans():
            at, behind = start, bisect.bisect_left(starts, end)
            for addr, size, site in self.blocks[place:behind]:
                add(addr - at, None)
                over = min(size, end - addr) - max(0, at - addr)
                add(over, owner_of(site))
                at = max(at, addr + size)
            place = behind
            add(end - at, None)
        return found

    @staticmethod
    def cells(runs):
        """(bytes of a cell, [[how many, owner or None, shade], ..]): of each cell the owner with
        most bytes. Shade 0: nothing, SHADES: full."""
        whole = sum(size for size, _ in runs)
        cell = UNIT
        while cell * CELLS < whole:
            cell *= 2
        found, held, left = [], collections.Counter(), cell

        def close():
            owner = max(held, key=held.get) if held else None
            shade = -(-SHADES * sum(held.values()) // cell)
            add(1, owner, shade)
            held.clear()

        def add(number, owner, shade):
            if found and found[-1][1:] == [owner, shade]:
                found[-1][0] += number
            elif number:
                found.append([number, owner, shade])
        for size, owner in runs:
            while size:
                if left == cell and size >= cell:  # cells of one owner
                    add(size // cell, owner, SHADES if owner is not None else 0)
                    size %= cell
                    continue
                part = min(size, left)
                if owner is not None:
                    held[owner] += part
                size, left = size - part, left - part
                if not left:
                    close()
                    left = cell
        if left < cell:
            close()
        return cell, found


class Ranges:
    """Memory, by its addresses."""

    def __init__(self):
        self.ranges, self._starts = {}, []  # start -> bytes; in order

    def take(self, unmapped, addr, size):
        """Memory has an address, or has none any more. It may lose that in larger parts than it
        got it, or in smaller ones."""
        end = addr + size
        place = max(0, bisect.bisect_left(self._starts, addr) - 1)
        while place < len(self._starts) and self._starts[place] < end:
            start = self._starts[place]
            behind = start + self.ranges[start]
            if behind <= addr:
                place += 1
                continue
            del self._starts[place], self.ranges[start]
            for first, last in (start, min(behind, addr)), (max(start, end), behind):
                if first < last:
                    self._add(first, last - first)
                    place += first < addr
        if not unmapped and size:
            self._add(addr, size)

    def within(self, addr, size):
        """[(start, bytes)] of the memory from addr on that is there."""
        found, place = [], max(0, bisect.bisect_right(self._starts, addr) - 1)
        while place < len(self._starts) and self._starts[place] < addr + size:
            start = self._starts[place]
            end = min(start + self.ranges[start], addr + size)
            if end > addr:
                found.append((max(start, addr), end - max(start, addr)))
            place += 1
        return found

    def has(self, addr):
        place = bisect.bisect_right(self._starts, addr) - 1
        return place >= 0 and addr < self._starts[place] + self.ranges[self._starts[place]]

    def _add(self, addr, size):
        bisect.insort(self._starts, addr)
        self.ranges[addr] = size

    def forget(self):
        """There is none any more."""
        self.ranges.clear()
        self._starts.clear()


class Moments(Ranges):
    """What is mapped, and what is collected of it while a trace is read: the highest moment, some
    of other kinds, the end."""

    def __init__(self):
        super().__init__()
        self.peak, self.others, self.end = None, [], None

    def at_peak(self, ns, blocks, changes, ranges):
        """blocks: address -> (bytes, site, ..), now. changes: (ns, site, bytes, address or None:
        beside the pool), since the peak. ranges: of the peak."""
        if len(blocks) > BLOCKS_MOST:
            self.peak = None
            return
        then = dict(blocks)
        for _, site, change, addr in reversed(changes):
            if change > 0:
                then.pop(addr, None)
            elif addr is not None:
                then[addr] = -change, site
        self.peak = ns, then, ranges

    def at(self, ns, name, blocks):
        if len(blocks) <= BLOCKS_MOST and \
                sum(its.name == name for its in self.others) < OF_A_KIND:
            self.others.append(Moment(ns, name, blocks, self.ranges))

    def at_end(self, ns, name, blocks):
        if len(blocks) <= BLOCKS_MOST:
            self.end = Moment(ns, name, blocks, self.ranges)

    def all(self):
        """[Moment], by their time."""
        peak = [Moment(self.peak[0], "the peak", *self.peak[1:])] if self.peak else []
        found = sorted([*self.others[:MOMENTS - 2], *peak], key=lambda its: its.ns)
        return [its for its in (*found, *filter(None, [self.end])) if its.blocks or its.ranges]
