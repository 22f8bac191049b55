# SPDX-License-Identifier: BSD-2-Clause
"""What PyTorch keeps in its blocks. With its own cache on it asks for large segments, so a trace
sees no tensors. PyTorch's snapshot (torch.cuda.memory._dump_snapshot) knows the parts of each
segment, and the code that asked for them. Here it is joined to a trace, by address: to its blocks,
and to what PyTorch maps itself (expandable_segments).

The library takes no snapshot itself. A snapshot is Python code, which needs the interpreter's lock,
and it reads the allocator under the allocator's lock. The thread whose cudaMalloc fails is inside
the allocator, as a rule with that lock, and need not have the interpreter's. If it waited for that
one, it would wait for a thread that has it and waits for the allocator: a deadlock. A thread of the
library's would get the allocator's lock only after the call that fails has returned, and PyTorch
empties its cache then. PyTorch calls its observers of the end of memory without its lock: there the
program can take the snapshot (scripts/recipes/whose-memory.md). Nor does it take one at a quiet
moment: what a snapshot has beyond a trace are call paths. PyTorch keeps them only where the program
has switched its history on, and such a program can take it.

The file is a pickle, which may name any code to run. Here it may name none: numbers, texts, lists
and the like are all that is in a snapshot. What it says is foreign like all of a trace."""
import bisect
import collections
import contextlib
import io
import itertools
import pickle
import resource

from gpucache import beside, frame, text
from gpucache.fault import Fault, reason
from gpucache.trace import KIND, Event
from gpucache.usage import ALLOCS, BESIDE, FREE, FREE_ASYNC

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
LIES_IN = {(True, False): "blocks of the trace",
           (False, True): "memory that the program mapped itself",
           (True, True): "blocks of the trace and in memory that the program mapped itself"}

# A part of a segment. site: (where, who called it) of the code that asked, or else what it is.
Part = collections.namedtuple("Part", "bytes requested state site")
Segment = collections.namedtuple("Segment", "address bytes parts")
# A block of the trace, or what the program mapped itself of a segment, with the segments in it.
Joined = collections.namedtuple("Joined", "address bytes is_mapped segments")


class Unfit(Fault):
    """It is a snapshot, but none of this trace."""


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
        raise Unfit(f"{path}: it has no segments: PyTorch held no memory of a GPU")
    return segments


def is_python(frame):
    return frame[1].endswith(".py") or frame[1].startswith("<")


def _shown(function, file, line):
    base = file.rpartition("/")[2]
    if is_python((function, file)):
        return f"{function} ({base}:{line})"
    return frame.short(function) + (f" ({base}:{line})" if line else "")


def site_of(frames):
    """(where, who called it): the innermost function of the program's, else of PyTorch's, as
    frame.py says it of native ones. frames: (function, file, line), the innermost first."""
    python = [its for its in frames if is_python(its)]
    found = python or [its for its in frames if not frame.is_plumbing(its[0])] or frames
    at = next((n for n, its in enumerate(python) if not frame.is_framework(its[1])), 0)
    shown = [_shown(*its) for its in found[at:at + 5]]
    more = ", .." * (len(shown) > 4)
    return shown[0], f"called by {', '.join(shown[1:4])}{more}" if shown[1:] else ""


class _Span:
    """Memory of the trace that has segments, or parts of them. It may be there several times, from
    one number of a change to another."""
    __slots__ = ("key", "address", "bytes", "weight", "is_mapped", "since", "until")

    def __init__(self, key, address, size, weight):
        self.key, self.address, self.bytes, self.weight = key, address, size, weight
        self.is_mapped, self.since, self.until = key < 0, 0, None


class _Spans:
    """What is there of the segments, and the moment with the most of them. A block has whole
    segments. What a program maps by itself may have parts of them: PyTorch's expandable segments
    grow by a part that has a handle of its own."""

    def __init__(self, segments):
        self.segments = segments
        self._starts = [its.address for its in segments]
        self._ends = [its.address + its.bytes for its in segments]
        self._sums = [0, *itertools.accumulate(its.bytes for its in segments)]
        self._edges = {}    # number of a segment -> where its parts begin, and its end
        # Key -> _Span: a key is an address, or, of what is mapped, -1 minus it.
        self.live, self.ever = {}, []
        self._now = self._changes = 0
        self._best, self._best_change, self.best_ns = -1, 0, 0

    def _within(self, addr, size):
        """Numbers of the segments that lie wholly there: the first, and the one behind the last."""
        first = bisect.bisect_left(self._starts, addr)
        return first, bisect.bisect_right(self._ends, addr + size, first)

    def _below(self, addr):
        """Bytes of segments."""
        at = bisect.bisect_left(self._starts, addr) - 1
        return self._sums[at] + min(addr, self._ends[at]) - self._starts[at] if at >= 0 else 0

    def block(self, ns, addr, size):
        first, behind = self._within(addr, size)
        if first < behind:
            self.begin(ns, _Span(addr, addr, size, self._sums[behind] - self._sums[first]))

    def moved(self, ns, addr, part):
        """As beside.Beside says it."""
        weight = self._below(addr + part.bytes) - self._below(addr) if part else 0
        if weight:
            self.begin(ns, _Span(-1 - addr, addr, part.bytes, weight))
        elif not part:
            self.end(-1 - addr)

    def begin(self, ns, span):
        self._changes += 1
        if not span.since:
            span.since = self._changes
            self.ever.append(span)
        span.until = None
        self.live[span.key] = span
        self._now += span.weight
        if self._now >= self._best:
            self._best, self._best_change, self.best_ns = self._now, self._changes, ns

    def end(self, key):
        """The span; or None: it is not there."""
        found = self.live.pop(key, None)
        if found:
            self._changes += 1
            found.until = self._changes
            self._now -= found.weight
        return found

    def joined(self):
        """[Joined] of the moment."""
        then = [its for its in self.ever if its.since <= self._best_change and
                (its.until is None or its.until > self._best_change)]
        runs = []
        for its in sorted((its for its in then if its.is_mapped), key=lambda its: its.address):
            if runs and runs[-1][1] == its.address:
                runs[-1][1] += its.bytes
            else:
                runs.append([its.address, its.address + its.bytes])
        blocks = [Joined(its.address, its.bytes, False, self.segments[slice(*self._within(
            its.address, its.bytes))]) for its in then if not its.is_mapped]
        cuts = [cut for run in runs for cut in self._cuts(*run)]
        return [*blocks, *(Joined(its.address, its.bytes, True, [its]) for its in cuts)]

    def _cuts(self, start, end):
        """The segments of a range, each with those of its parts that lie in it."""
        at = max(0, bisect.bisect_right(self._starts, start) - 1)
        for number in range(at, bisect.bisect_left(self._starts, end)):
            its = self.segments[number]
            if number not in self._edges:
                self._edges[number] = [*itertools.accumulate((part.bytes for part in its.parts),
                                                             initial=its.address)]
            edges = self._edges[number]
            first = bisect.bisect_left(edges, start)
            behind = bisect.bisect_right(edges, end) - 1
            if first < behind:
                yield Segment(edges[first], edges[behind] - edges[first], its.parts[first:behind])


class Tensors:
    """A snapshot and a trace. Unfit if they have nothing in common."""

    def __init__(self, its, path):
        """its: a Trace that is read by nobody else."""
        self.segments = read(path)
        self.ns, self.blocks = self._join(its, path)
        self.found = [its for block in self.blocks for its in block.segments]

    def _join(self, its, path):
        """The moment of the trace that has most of the segments, and [Joined] then."""
        spans, contexts, gone = _Spans(self.segments), set(), (0, 0, None)
        mapped = beside.Beside(lambda *_: None, spans.moved)

        def end(ns, addr):
            nonlocal gone
            found = spans.end(addr)
            if found or addr == gone[0]:  # a second free fails, and brings nothing back
                gone = addr, ns, found
            return found
        for batch in its.batches():
            mapped.since.clear()
            for ns, kind, addr, size, site, context, tid, wide in zip(*batch):
                if kind in ALLOCS:
                    end(ns, addr)  # its free has an older clock
                    spans.block(ns, addr, size)
                elif kind in (FREE, FREE_ASYNC):
                    if not end(ns, addr):
                        mapped.free(ns, addr)
                elif kind in BESIDE:
                    BESIDE[kind](mapped, Event(ns, kind, addr, size, wide[0], site, context, tid,
                                               wide[1]))
                elif kind == FREE_FAILED:
                    event = Event(ns, kind, addr, size, 0, site, context, tid, "")
                    its_free = gone[2] if gone[0] == addr else None
                    if not mapped.failed(event, gone[1] if its_free else -1) and its_free and \
                            addr not in spans.live:
                        spans.begin(ns, its_free)
                        gone = 0, 0, None
                elif kind == CONTEXT:
                    contexts.add(context)
                elif kind == CONTEXT_END:
                    contexts.discard(context)
                    for each in [] if contexts else [*spans.live]:  # as usage does
                        if each >= 0:
                            end(ns, each)
        if not spans.ever:
            raise Unfit(f"{path}: none of its {text.count(len(self.segments))} segments lies in a "
                        "block of the trace, or in memory that the program mapped: it is of "
                        "another process or of another time")
        return spans.best_ns, spans.joined()

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

    def _num_found(self):
        """How many segments are there, or parts of them."""
        starts = [its.address for its in self.segments]
        return len({bisect.bisect_right(starts, its.address) for its in self.found})

    def sentences(self):
        sums, whole = self.by_state(), sum(its.bytes for its in self.segments)
        held = sum(its.bytes for its in self.found)
        asked = sum(part.requested for its in self.found for part in its.parts
                    if part.state == ALLOCATED)
        kinds = {block.is_mapped for block in self.blocks}
        yield f"PyTorch's snapshot fits the trace at {text.seconds(self.ns)}: " \
              f"{text.count(self._num_found())} of its {text.count(len(self.segments))} " \
              f"segments, {text.size(held)}, lie in {LIES_IN[False in kinds, True in kinds]}. " \
              f"{text.size(sums[ALLOCATED])} of it are allocated, for {text.size(asked)} of " \
              f"tensors; {text.size(sums[INACTIVE])} are inactive."
        if held < ENOUGH * whole:
            yield "Most of the snapshot is not in the trace: it may be of another process, or of " \
                  "another time."
        if sums[ALLOCATED] and not self.has_paths():
            yield NO_PATHS
