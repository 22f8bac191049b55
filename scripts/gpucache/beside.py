# SPDX-License-Identifier: BSD-2-Clause
"""Memory that the driver served beside the pool, as a trace tells it: of which kind, and how much
there was at once. A part has a name: its address, or its handle. Memory of cuMemCreate is there
until it was given up as often as it was taken, and has no address any more."""
import collections

from gpucache import tables

GROUPS = [row["name"] for row in tables.COUNTERS]
NAMES = {"num_async_allocs": "cudaMallocAsync", "num_managed_allocs": "managed memory",
         "num_vmm_allocs": "cuMemCreate", "num_array_allocs": "arrays",
         "num_host_allocs": "pinned memory"}
DEVICE = ("num_async_allocs", "num_vmm_allocs", "num_array_allocs")  # in device memory
BY_ADDRESS = ("num_async_allocs", "num_managed_allocs")  # FREE and FREE_ASYNC free them


class Kind:
    """num_calls and bytes_total: of all that the driver served. The others: of what has a name."""

    def __init__(self):
        self.num_calls = self.bytes_total = 0
        self.live = self.most = self.at_peak = 0
        self.is_named = True


class Part:
    __slots__ = ("group", "bytes", "site", "holders")

    def __init__(self, group, size, site):
        self.group, self.bytes, self.site, self.holders = group, size, site, 1


class Beside:
    """changed: called with (ns, site, bytes) when there is so much more device memory, or less."""

    def __init__(self, changed):
        self.kinds = collections.defaultdict(Kind)
        self.live = self.most = 0  # in device memory
        self._changed = changed
        self._parts, self._mapped, self._gone = {}, {}, None
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
            self._end(event.ns, event.a)
        self._begin(event.ns, event.a, Part(group, event.b, event.site))

    def free(self, ns, addr):
        """FREE or FREE_ASYNC. False: it was of other memory."""
        part = self._parts.get(addr)
        if part is None or part.group not in BY_ADDRESS:
            return False
        self._end(ns, addr)
        return True

    def given_up(self, event):
        part = self._parts.get(event.a)
        if part is not None:
            self._gone = event.a, part
            self._leave(event.ns, event.a, part)

    def failed(self, event):
        """What FREE_FAILED names is still there. False: it is none of these."""
        if not self._gone or self._gone[0] != event.a:
            return False
        name, part = self._gone
        self._gone = None
        if name in self._parts:
            part.holders += 1
        else:
            part.holders = 1
            self._begin(event.ns, name, part)
        return True

    def retained(self, event):
        if event.a in self._parts:
            self._parts[event.a].holders += 1

    def mapped(self, event):
        part = self._parts.get(event.b)
        if part is not None:
            part.holders += 1
            self._mapped[event.a] = event.b

    def unmapped(self, event):
        """It may be of several parts, which most programs do not do."""
        part = self._parts.get(self._mapped.get(event.a))
        for addr in [event.a] if part and part.bytes == event.b else \
                [addr for addr in self._mapped if event.a <= addr < event.a + event.b]:
            name = self._mapped.pop(addr)
            if name in self._parts:
                self._leave(event.ns, name, self._parts[name])

    def context_ended(self, ns):
        """No context is left. Memory of cuMemCreate and of the host does not end with one."""
        for name, part in list(self._parts.items()):
            if part.group not in ("num_vmm_allocs", "num_host_allocs"):
                self._end(ns, name)

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
        return collections.Counter(part.site for part in self._parts.values()
                                   if part.group in DEVICE)

    def _leave(self, ns, name, part):
        part.holders -= 1
        if not part.holders:
            self._end(ns, name)

    def _begin(self, ns, name, part):
        self._parts[name] = part
        self._change(ns, part, part.bytes)

    def _end(self, ns, name):
        part = self._parts.pop(name)
        self._gone = name, part
        self._change(ns, part, -part.bytes)

    def _change(self, ns, part, change):
        kind = self.kinds[part.group]
        kind.live += change
        kind.most = max(kind.most, kind.live)
        self.since.append((part.group, change))
        if part.group in DEVICE:
            self.live += change
            self.most = max(self.most, self.live)
            self._changed(ns, part.site, change)
