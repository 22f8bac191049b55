# SPDX-License-Identifier: BSD-2-Clause
"""What PyTorch keeps in its blocks. With its own cache on it asks for large segments, so a trace
sees no tensors. PyTorch's snapshot (torch.cuda.memory._dump_snapshot) knows the parts of each
segment, and the code that asked for them. Here it is joined to the blocks of a trace, by address.

The file is a pickle, which may name any code to run. Here it may name none: numbers, texts, lists
and the like are all that is in a snapshot. What it says is foreign like all of a trace."""
import bisect
import collections
import contextlib
import io
import itertools
import pickle
import resource

from gpucache import text
from gpucache.fault import Fault, reason
from gpucache.trace import KIND
from gpucache.usage import ALLOCS, FREE, FREE_ASYNC

# The memory that a snapshot may take, in bytes for each of the file, and beside that.
GROWTH, ROOM = 128, 256 << 20
PART_LEAST = 8   # bytes of a part, or of a segment, in the file
NUMBER_MOST = (1 << 64) - 1
NAME_MOST = 300  # letters
ALLOCATED, INACTIVE = "active_allocated", "inactive"
ENOUGH = 0.5  # of the segments: with less it is said that the snapshot may be another process's
NO_PATHS = "The snapshot has no call paths: PyTorch notes them after " \
           "torch.cuda.memory._record_memory_history(), from then on."
KEPT = "inactive: PyTorch keeps it for its next tensors"
AWAITS = "freed, and waits for work of other streams"
NAMELESS = "call path not noted", ""
CONTEXT, CONTEXT_END, FREE_FAILED = map(KIND.get, ("CONTEXT", "CONTEXT_END", "FREE_FAILED"))

# A part of a segment. site: (where, who called it) of the code that asked, or else what it is.
Part = collections.namedtuple("Part", "bytes requested state site")
Segment = collections.namedtuple("Segment", "address bytes parts")
# A block of the trace, with the segments in it.
Joined = collections.namedtuple("Joined", "address bytes site segments")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name, global_name):
        raise pickle.UnpicklingError(f"it names code, {module_name}.{global_name}")


@contextlib.contextmanager
def _little_memory(size):
    """A number in a pickle can make its reader take any amount of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + GROWTH * size + ROOM
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _number(row, name, default=None):
    value = row.get(name, default)
    if not isinstance(value, int) or not 0 <= value <= NUMBER_MOST:
        raise ValueError(name)
    return value


def _word(value):
    if not isinstance(value, str):  # what else it is may be of any size, once it is a word
        raise ValueError("no word")
    return value


def _frame(row):
    """(function, file, line)"""
    return (text.printable(_word(row["name"])[:NAME_MOST]),
            text.printable(_word(row["filename"])[-NAME_MOST:]), _number(row, "line", 0))


class _Reader:
    """Makes segments of the lists and dicts of a snapshot. In a pickle one list can stand in many
    places, for a few bytes each: PyTorch writes a call path so, and nothing else."""

    def __init__(self, size):
        """size: bytes of the file."""
        self._left = size // PART_LEAST
        self._sites = {}    # id of a list of frames, which lives as long as the snapshot -> site

    def _count(self, rows):
        self._left -= len(rows)
        if self._left < 0:
            raise ValueError("more than the file can have")
        return rows

    def _site(self, block):
        """Of releases before 2.1, too: there the newest of `history` has the frames."""
        history = block.get("history")
        frames = block.get("frames") or (history[0].get("frames") if history else None)
        if not frames:
            return NAMELESS
        if id(frames) not in self._sites:
            self._sites[id(frames)] = site_of([*map(_frame, frames)])
        return self._sites[id(frames)]

    def _part(self, block):
        size, state = _number(block, "size"), _word(block["state"])
        return Part(size, min(size, _number(block, "requested_size", size)), state,
                    self._site(block) if state == ALLOCATED else
                    (KEPT if state == INACTIVE else AWAITS, ""))

    def _segment(self, row):
        parts = [*map(self._part, self._count(row["blocks"]))]
        if sum(part.bytes for part in parts) != _number(row, "total_size"):
            raise ValueError("total_size")
        return Segment(_number(row, "address"), row["total_size"], parts)

    def segments(self, rows):
        """[Segment] by their addresses."""
        found = sorted((its for its in map(self._segment, self._count(rows)) if its.bytes),
                       key=lambda its: its.address)
        if any(its.address + its.bytes > behind.address for its, behind in zip(found, found[1:])):
            raise ValueError("memory of two segments")
        return found


def _load(data, path):
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        why = f": {error}" if "it names code" in str(error) else ""
        raise Fault(f"{path}: it is no snapshot of PyTorch{why}") from None
    except Exception:  # pylint: disable=broad-exception-caught # a broken pickle raises any
        raise Fault(f"{path}: it is no snapshot of PyTorch") from None


def read(path):
    """[Segment] by their addresses."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, MemoryError) as error:
        raise Fault(f"{path}: {reason(error) if isinstance(error, OSError) else 'too large'}") \
            from None
    try:
        with _little_memory(len(data)):
            found = _load(data, path)
            # Without history, torch.cuda.memory_snapshot() is the list of segments alone.
            rows = found["segments"] if isinstance(found, dict) else found
            segments = _Reader(len(data)).segments(rows)
    except MemoryError:
        raise Fault(f"{path}: it takes too much memory for a snapshot of PyTorch") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise Fault(f"{path}: it is no snapshot of PyTorch that this tool knows") from None
    if not segments:
        raise Fault(f"{path}: it has no segments: PyTorch held no memory of a GPU")
    return segments


def is_python(frame):
    return frame[1].endswith(".py") or frame[1].startswith("<")


def site_of(frames):
    """(where, who called it): the innermost function of the program's, else of PyTorch's. frames:
    (function, file, line), the innermost first."""
    python = [frame for frame in frames if is_python(frame)] or frames
    at = next((n for n, its in enumerate(python) if "/torch/" not in its[1]), 0)
    shown = [f"{name} ({file.rpartition('/')[2]}:{line})" for name, file, line in
             python[at:at + 5]]
    more = ", .." * (len(shown) > 4)
    return shown[0], f"called by {', '.join(shown[1:4])}{more}" if shown[1:] else ""


class Tensors:
    """A snapshot and a trace. Faults if they have nothing in common."""

    def __init__(self, its, path):
        """its: a Trace that is read by nobody else."""
        self.segments = read(path)
        self.ns, self.blocks = self._join(its, path)
        self.found = [its for block in self.blocks for its in block.segments]

    def _join(self, its, path):
        """The moment of the trace that has most of the segments, and [Joined] then."""
        starts = [its.address for its in self.segments]
        ends = [its.address + its.bytes for its in self.segments]
        sums = [0, *itertools.accumulate(its.bytes for its in self.segments)]
        # Address -> [begin, end or None, address, bytes, site, first segment, behind the last]; a
        # begin and an end are numbers of changes.
        live, ever, gone, contexts = {}, [], (0, None), set()
        now, changes, best, best_change, best_ns = 0, 0, -1, 0, 0

        def end(addr):
            nonlocal now, changes, gone
            found = live.pop(addr, None)
            if found:
                changes += 1
                found[1] = changes
                now -= sums[found[6]] - sums[found[5]]
            if found or addr == gone[0]:  # a second free fails, and brings nothing back
                gone = addr, found

        def begin(ns, found):
            nonlocal now, changes, best, best_change, best_ns
            changes += 1
            found[:2] = found[0] or changes, None
            live[found[2]] = found
            now += sums[found[6]] - sums[found[5]]
            if now >= best:
                best, best_change, best_ns = now, changes, ns
        for batch in its.batches():
            for ns, kind, addr, size, site, context in zip(*batch[:6]):
                if kind in ALLOCS:
                    first = bisect.bisect_left(starts, addr)
                    behind = bisect.bisect_right(ends, addr + size, first)
                    end(addr)  # its free has an older clock
                    if first < behind:
                        ever.append([0, None, addr, size, site, first, behind])
                        begin(ns, ever[-1])
                elif kind in (FREE, FREE_ASYNC):
                    end(addr)
                elif kind == FREE_FAILED and addr == gone[0] and gone[1] and addr not in live:
                    begin(ns, gone[1])
                    gone = 0, None
                elif kind == CONTEXT:
                    contexts.add(context)
                elif kind == CONTEXT_END:
                    contexts.discard(context)
                    for each in [] if contexts else list(live):  # as usage does
                        end(each)
        if not ever:
            raise Fault(f"{path}: none of its {text.count(len(starts))} segments lies in a block "
                        "of the trace: it is of another process or of another time, or PyTorch "
                        "maps memory itself (expandable_segments)")
        return best_ns, [Joined(addr, size, site, self.segments[first:behind])
                         for since, until, addr, size, site, first, behind in ever
                         if since <= best_change and (until is None or until > best_change)]

    def by_state(self):
        """Counter: state -> bytes of the segments that are found."""
        sums = collections.Counter()
        for segment in self.found:
            for part in segment.parts:
                sums[part.state] += part.bytes
        return sums

    @staticmethod
    def sites(segments):
        """[((where, who called it), bytes, parts)], the most first; of the parts without an owner
        the words are what they are."""
        sums, numbers = collections.Counter(), collections.Counter()
        for part in (part for segment in segments for part in segment.parts):
            sums[part.site] += part.bytes
            numbers[part.site] += 1
        return [(site, size, numbers[site]) for site, size in sums.most_common()]

    def has_paths(self):
        return any(part.site != NAMELESS for segment in self.found for part in segment.parts
                   if part.state == ALLOCATED)

    def rows(self, number):
        """(bytes, part, how many, where, who called it) of call sites, the most first."""
        found = self.sites(self.found)
        whole = sum(size for _, size, _ in found) or 1
        return [(text.size(size), f"{size / whole:.0%}", text.count(parts), *site)
                for site, size, parts in found[:number]]

    def block_rows(self, number):
        """(bytes, address, allocated, inactive, most of it by) of blocks, the largest first."""
        told = []
        for block in sorted(self.blocks, key=lambda its: -its.bytes)[:number]:
            sums = collections.Counter()
            for part in (part for segment in block.segments for part in segment.parts):
                sums[part.state] += part.bytes
            (most, _), size, _ = self.sites(block.segments)[0]
            told.append((text.size(block.bytes), f"0x{block.address:x}",
                         text.size(sums[ALLOCATED]), text.size(sums[INACTIVE]),
                         f"{text.size(size)} {most}"))
        return told

    def sentences(self):
        sums, whole = self.by_state(), sum(its.bytes for its in self.segments)
        held = sum(its.bytes for its in self.found)
        asked = sum(part.requested for its in self.found for part in its.parts
                    if part.state == ALLOCATED)
        yield f"PyTorch's snapshot fits the trace at {text.seconds(self.ns)}: " \
              f"{text.count(len(self.found))} of its {text.count(len(self.segments))} segments, " \
              f"{text.size(held)}, lie in blocks of the trace. {text.size(sums[ALLOCATED])} of " \
              f"it are allocated, for {text.size(asked)} of tensors; {text.size(sums[INACTIVE])} " \
              "are inactive."
        if held < ENOUGH * whole:
            yield "Most of the snapshot is not in the trace: it may be of another process, or of " \
                  "another time."
        if sums[ALLOCATED] and not self.has_paths():
            yield NO_PATHS
