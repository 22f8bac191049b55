# SPDX-License-Identifier: BSD-2-Clause
"""Memory that the driver served beside the pool, as a trace tells it: of which kind, and how much
there was at once. A part has a name: its address, or its handle. It is there until it was given up
as often as it was taken, and, memory of cuMemCreate, has no address any more."""
import bisect
import collections

from gpucache import tables

GROUPS = [row["name"] for row in tables.COUNTERS]
NAMES = {"num_async_allocs": "cudaMallocAsync", "num_managed_allocs": "managed memory",
         "num_vmm_allocs": "cuMemCreate", "num_array_allocs": "arrays",
         "num_host_allocs": "pinned memory"}
DEVICE = ("num_async_allocs", "num_vmm_allocs", "num_array_allocs")  # in device memory
BY_ADDRESS = ("num_async_allocs", "num_managed_allocs")  # FREE and FREE_ASYNC free them
LASTING = ("num_vmm_allocs", "num_host_allocs")  # though no context is left
CALLS_KEPT = 64  # of the latest that gave something up: they may have failed


class Kind:
    """num_calls and bytes_total: of all that the driver served. The others: of what has a name."""

    def __init__(self):
        self.num_calls = self.bytes_total = 0
        self.live = self.most = self.at_peak = 0
        self.is_named = True


class Part:
    """handles: how often it has to be given up. mapped: addresses that it has."""
    __slots__ = ("group", "bytes", "site", "name", "handles", "mapped")

    def __init__(self, group, size, site, name):
        self.group, self.bytes, self.site, self.name = group, size, site, name
        self.handles, self.mapped = 1, 0

    def is_there(self):
        return self.handles or self.mapped


class Beside:
    """changed: called with (ns, site, bytes) when there is so much more device memory, or less."""

    def __init__(self, changed):
        self.kinds = collections.defaultdict(Kind)
        self.live = self.most = 0  # in device memory
        self._changed = changed
        self._parts, self._mapped, self._starts = {}, {}, []  # address -> Part; the addresses
        # What a call named -> (ns, Part whose handle it gave up or None, [(address, Part)] that it
        # unmapped).
        self._calls = {}
        self.since = []  # (group, bytes) that changed since the highest moment so far

    def came(self, event):
        group = GROUPS[event.aux] if event.aux < len(GROUPS) else "other"
        kind = self.kinds[group]
        kind.num_calls += 1
        kind.bytes_total += event.b
        if not event.a:  # older libraries did not name it
            kind.is_named = False
            return
        if event.a in self._parts:  # what freed it is not known
            self._set(event.ns, self._parts[event.a], 0)
        part = self._parts[event.a] = Part(group, event.b, event.site, event.a)
        self._change(event.ns, part, part.bytes)

    def free(self, ns, addr):
        """FREE or FREE_ASYNC. False: it was of other memory."""
        part = self._parts.get(addr)
        if part is None or part.group not in BY_ADDRESS or not part.handles:
            self._calls.pop(addr, None)
            return False
        self._call(ns, addr, part)
        self._set(ns, part, 0)
        return True

    def given_up(self, event):
        part = self._parts.get(event.a)
        if part is None or not part.handles:
            self._calls.pop(event.a, None)
            return
        self._call(event.ns, event.a, part)
        self._set(event.ns, part, part.handles - 1)

    def failed(self, event, since_ns):
        """What FREE_FAILED names is still there. False: it is none of these. since_ns: when a block
        of the pool was freed there; -1: never."""
        if event.a not in self._calls or self._calls[event.a][0] < since_ns:
            return False
        _, part, unmapped = self._calls.pop(event.a)
        if part:
            self._set(event.ns, part, part.handles + 1)
        for addr, its in unmapped:
            self._map(event.ns, addr, its)
        return True

    def retained(self, event):
        part = self._parts.get(event.a)
        if part is not None:
            self._set(event.ns, part, part.handles + 1)

    def mapped(self, event):
        part = self._parts.get(event.b)
        if part is not None:
            self._map(event.ns, event.a, part)

    def unmapped(self, event):
        """It may be of several parts, and of a part of one."""
        first = bisect.bisect_left(self._starts, event.a)
        behind = bisect.bisect_left(self._starts, event.a + event.b, first)
        addrs = self._starts[first:behind]
        self._call(event.ns, event.a, None, [(addr, self._mapped[addr]) for addr in addrs])
        for addr in addrs:
            self._unmap(event.ns, addr)

    def context_ended(self, ns):
        """No context is left. Memory of cuMemCreate and of the host does not end with one."""
        if any(kind.live for group, kind in self.kinds.items() if group not in LASTING):
            for part in [its for its in self._parts.values() if its.group not in LASTING]:
                self._set(ns, part, 0)

    def note_peak(self):
        """The highest moment so far was before what `since` lists."""
        for kind in self.kinds.values():
            kind.at_peak = kind.live
        for group, change in self.since:
            self.kinds[group].at_peak -= change

    def rows(self, size):
        """[(what it is, calls, bytes at the peak, most bytes, at the end, in all)]; "-": not known.
        size: bytes to words."""
        for group, kind in self.kinds.items():
            at_once = (kind.at_peak, kind.most, kind.live)
            yield (NAMES.get(group, group.partition("num_")[2].replace("_", " ") or group),
                   kind.num_calls, *(size(its) if kind.is_named else "-" for its in at_once),
                   size(kind.bytes_total))

    def not_known(self):
        """Bytes in all of device memory of which nobody knows how much there was at once."""
        return sum(kind.bytes_total for group, kind in self.kinds.items()
                   if group in DEVICE and not kind.is_named)

    def num_live(self):
        """{site: parts} in device memory at the end."""
        parts = {id(part): part for part in (*self._parts.values(), *self._mapped.values())}
        return collections.Counter(part.site for part in parts.values() if part.group in DEVICE)

    def _call(self, ns, name, part, unmapped=()):
        self._calls.pop(name, None)
        self._calls[name] = ns, part, unmapped
        if len(self._calls) > CALLS_KEPT:
            del self._calls[next(iter(self._calls))]

    def _map(self, ns, addr, part):
        if addr in self._mapped:  # what unmapped it is not known
            self._unmap(ns, addr)
        bisect.insort(self._starts, addr)
        self._mapped[addr] = part
        self._set(ns, part, part.handles, part.mapped + 1)

    def _unmap(self, ns, addr):
        del self._starts[bisect.bisect_left(self._starts, addr)]
        part = self._mapped.pop(addr)
        self._set(ns, part, part.handles, part.mapped - 1)

    def _set(self, ns, part, handles, mapped=None):
        """It has so many from now on."""
        before = part.is_there()
        part.handles, part.mapped = handles, part.mapped if mapped is None else mapped
        if part.is_there():
            self._parts.setdefault(part.name, part)
        elif self._parts.get(part.name) is part:
            del self._parts[part.name]
        if bool(before) != bool(part.is_there()):
            self._change(ns, part, -part.bytes if before else part.bytes)

    def _change(self, ns, part, change):
        kind = self.kinds[part.group]
        kind.live += change
        kind.most = max(kind.most, kind.live)
        self.since.append((part.group, change))
        if part.group in DEVICE:
            self.live += change
            self.most = max(self.most, self.live)
            self._changed(ns, part.site, change)
