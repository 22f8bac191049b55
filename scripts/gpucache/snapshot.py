# SPDX-License-Identifier: BSD-2-Clause
"""A trace as a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot), for its viewers:
pytorch.org/memory_viz and torch.cuda._memory_viz. A segment is device memory with consecutive
addresses, a block what the program asked for. All is on stream 0, since an allocation of this kind
has no stream.

A viewer begins with the end and takes the events back, so each block has a segment at each moment:
memory that came or went has an event, and what the library did not hold is the block's own. What is
parked stays, because its blocks do."""
import bisect
import collections
import pickle

from gpucache import block_map, tables, usage
from gpucache.trace import KIND

EVENTS_MOST = 500_000  # the latest: viewers take them all into their memory
DEVICES_MOST = 64  # what has a higher number is none
UNIT = 1 << tables.TRACE_UNIT_SHIFT
OUT_OF_MEMORY = 2  # CUresult


class Snapshot:
    """its: a report.Report."""

    def __init__(self, its):
        self.report, self.usage = its, its.usage
        devices = [gpu["device"] for gpu in self.usage.gpus.values()
                   if gpu["device"] < DEVICES_MOST]
        self.first_device = min(devices, default=0)
        self.num_devices = max(devices, default=0) + 1
        self.entries = [collections.deque(maxlen=EVENTS_MOST) for _ in range(self.num_devices)]
        self._frames, self._blocks = {0: []}, {}
        self._ranges, self._starts = {}, []  # start -> (bytes, device); what was ever there
        self._there = block_map.Ranges()     # or parked
        self._held = block_map.Ranges()      # of that what is no block's own
        self._own = {}                       # address of a block -> parts that it brought along
        self._contexts = set()               # that are there
        self._given = 0, 0, 0                # address, bytes and site of the last free
        self._num_before = self.usage.num_events - EVENTS_MOST  # of which no viewer is told
        for event in its.trace.events():
            self._num_before -= 1
            self._take(event)

    def frames(self, site):
        if site not in self._frames:
            self._frames[site] = []
            for place in self.report.symbols.whole_path(site):
                file, _, line = place.line.rpartition(":")
                if place.is_python:
                    file = place.path
                self._frames[site].append({"filename": file or place.object,
                                           "name": place.function or str(place),
                                           "line": int(line) if line.isdecimal() else 0})
        return self._frames[site]

    def device(self, addr):
        if self.num_devices == 1:
            return 0
        place = bisect.bisect_right(self._starts, addr) - 1
        if place >= 0:
            size, device = self._ranges[self._starts[place]]
            if addr < self._starts[place] + size:
                return device
        return self.first_device

    def _come(self, event, addr, size, is_new=True):
        """Memory is there from now on. is_new: it was not before. Returns [(start, bytes)] of what
        is new."""
        parts, at = [], addr
        for start, its in [*self._there.within(addr, size), (addr + size, 0)]:
            if start > at:
                parts.append((at, start - at))
            at = start + its
        for start, its in parts:
            self._there.take(False, start, its)
            if is_new:
                self._add(event, "segment_map", start, its, event.site)
        return parts

    def _go(self, event, addr, size):
        for start, its in self._there.within(addr, size):
            self._there.take(True, start, its)
            self._held.take(True, start, its)
            self._add(event, "segment_unmap", start, its, event.site)

    def _hold(self, event):
        if not event.a:
            return  # a dump says only how much it was
        gpu = self.usage.gpus.get(event.context)
        if event.a not in self._ranges:
            bisect.insort(self._starts, event.a)
        self._ranges[event.a] = event.b, gpu["device"] \
            if gpu and gpu["device"] < self.num_devices else self.first_device
        self._held.take(False, event.a, event.b)
        self._come(event, event.a, event.b, event.kind != KIND["HELD"])

    def _end_context(self, event):
        """As usage does: of several contexts nobody knows whose is whose."""
        self._contexts.discard(event.context)
        if not self._contexts:
            for addr in list(self._blocks):
                self._give(event._replace(a=addr))
            for start, size in list(self._there.ranges.items()):
                self._go(event, start, size)

    def _add(self, event, action, addr, size, site):
        if self._num_before >= 0:
            return
        entry = {"action": action, "addr": addr, "size": size, "stream": 0,
                 "time_us": (self.report.trace.start_unix_ns + event.ns) // 1000,
                 "frames": self.frames(site)}
        if action == "oom":
            del entry["addr"]
            entry["device_free"] = self.usage.oom.a if self.usage.oom else 0
        self.entries[self.device(addr)].append(entry)

    def _give(self, event):
        size, site = self._blocks.pop(event.a, (0, 0))
        if size:
            self._given = event.a, size, site
            for action in "free_requested", "free_completed":
                self._add(event, action, event.a, size, event.site)
        elif self._given[0] == event.a:  # a second free, which fails
            self._given = 0, 0, 0
        for part in self._own.pop(event.a, ()):
            if not self._held.has(part[0]):  # it was parked when the block came
                self._go(event, *part)

    def _give_failed(self, event):
        """The block is there again, in a viewer as a new one of the same code."""
        addr, size, site = self._given
        if size and addr == event.a and addr not in self._blocks:
            self._take(event._replace(kind=usage.ALLOC, b=size, site=site))
            self._given = 0, 0, 0

    def _take(self, event):
        kind = event.kind
        if kind in usage.ALLOCS:
            if event.a in self._blocks:
                if kind == usage.LIVE:
                    return
                self._give(event)
            self._blocks[event.a] = event.b, event.site
            size = -(-event.b // UNIT) * UNIT
            own = self._come(event, event.a, size, kind != usage.LIVE)
            if own:
                self._own[event.a] = own
            if kind != usage.LIVE:
                self._add(event, "alloc", event.a, event.b, event.site)
        elif kind in (usage.FREE, usage.FREE_ASYNC):
            self._give(event)
        elif kind == KIND["FREE_FAILED"]:
            self._give_failed(event)
        elif kind in (KIND["SEGMENT"], KIND["MAP"], KIND["HELD"]):
            self._hold(event)
        elif kind == KIND["SEGMENT_FREE"]:
            self._go(event, event.a, self._ranges.get(event.a, (0, 0))[0])
        elif kind == KIND["UNMAP"]:
            if (event.ns, event.a) not in self.usage.memory.away.taken:
                self._go(event, event.a, event.b)
        elif kind == KIND["WAKE"]:
            for start, size in self.usage.memory.away.left.get(event.ns, {}).items():
                self._go(event, start, size)
        elif kind == KIND["CONTEXT"]:
            self._contexts.add(event.context)
        elif kind == KIND["CONTEXT_END"]:
            self._end_context(event)
        elif kind == KIND["ALLOC_FAILED"] and event.a == OUT_OF_MEMORY:
            self._add(event, "oom", 0, event.b, event.site)

    def _regions(self, blocks):
        """[[start, end, device]] of device memory and of the blocks, without gaps in one."""
        parts = [(start, start + size) for start, size in self._there.ranges.items()]
        parts += [(addr, -(-(addr + block.bytes) // UNIT) * UNIT)
                  for addr, block in blocks.items()]
        found = []
        for start, end in sorted(parts):
            device = self.device(start)
            if found and start <= found[-1][1] and device == found[-1][2]:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([start, end, device])
        return found

    def _block(self, addr, size, block=None):
        return {"address": addr, "size": size, "requested_size": block.bytes if block else 0,
                "state": "active_allocated" if block else "inactive",
                "frames": self.frames(block.site) if block else []}

    def segments(self):
        blocks, found = self.usage.blocks, []
        order = sorted(blocks)
        for start, end, device in self._regions(blocks):
            inside, at = [], start
            first, behind = bisect.bisect_left(order, start), bisect.bisect_left(order, end)
            for addr, limit in zip(order[first:behind], [*order[first + 1:behind], end]):
                if addr > at:
                    inside.append(self._block(at, addr - at))
                at = min(limit, -(-(addr + blocks[addr].bytes) // UNIT) * UNIT)
                inside.append(self._block(addr, at - addr, blocks[addr]))
            if at < end:
                inside.append(self._block(at, end - at))
            used = sum(its["size"] for its in inside if its["requested_size"])
            found.append({"device": device, "address": start, "total_size": end - start,
                          "allocated_size": used, "active_size": used,
                          "requested_size": sum(its["requested_size"] for its in inside),
                          "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
                          "is_expandable": False, "frames": [], "blocks": inside})
        return found

    def write(self, out):
        pickle.dump({"segments": self.segments(),
                     "device_traces": [list(entries) for entries in self.entries]}, out)
