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
import pickle
import resource

from gpucache import text
from gpucache.fault import Fault, reason
from gpucache.usage import ALLOCS, FREE, FREE_ASYNC

# The memory that a snapshot may take, in bytes for each of the file, and beside that.
GROWTH, ROOM = 128, 256 << 20
ALLOCATED, INACTIVE = "active_allocated", "inactive"
ENOUGH = 0.5  # of the segments: with less it is said that the snapshot may be another process's
NO_PATHS = "The snapshot has no call paths: PyTorch notes them after " \
           "torch.cuda.memory._record_memory_history(), from then on."
KEPT = "inactive: PyTorch keeps it for its next tensors"
AWAITS = "freed, and waits for work of other streams"
NAMELESS = "call path not noted"

# A part of a segment. frames: (function, file, line), the innermost first.
Part = collections.namedtuple("Part", "bytes requested state frames")
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


def _load(path):
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, MemoryError) as error:
        raise Fault(f"{path}: {reason(error) if isinstance(error, OSError) else 'too large'}") \
            from None
    try:
        with _little_memory(len(data)):
            return _Unpickler(io.BytesIO(data)).load()
    except MemoryError:
        raise Fault(f"{path}: it takes too much memory for a snapshot of PyTorch") from None
    except pickle.UnpicklingError as error:
        why = f": {error}" if "it names code" in str(error) else ""
        raise Fault(f"{path}: it is no snapshot of PyTorch{why}") from None
    except Exception:  # pylint: disable=broad-exception-caught # a broken pickle raises any
        raise Fault(f"{path}: it is no snapshot of PyTorch") from None


def _number(row, name, default=None):
    value = row.get(name, default)
    if not isinstance(value, int) or value < 0:
        raise ValueError(name)
    return value


def _frames(block):
    """Of releases before 2.1, too: there the newest of `history` has them."""
    history = block.get("history")
    found = block.get("frames") or (history[0].get("frames") if history else None) or ()
    return tuple((text.printable(str(its["name"])), text.printable(str(its["filename"])),
                  _number(its, "line", 0)) for its in found)


def _segment(row):
    parts = []
    for block in row["blocks"]:
        size = _number(block, "size")
        state = str(block["state"])
        parts.append(Part(size, min(size, _number(block, "requested_size", size)), state,
                          _frames(block) if state == ALLOCATED else ()))
    if sum(part.bytes for part in parts) != _number(row, "total_size"):
        raise ValueError("total_size")
    return Segment(_number(row, "address"), row["total_size"], parts)


def read(path):
    """[Segment] by their addresses."""
    found = _load(path)
    try:
        # Without history, torch.cuda.memory_snapshot() is the list of segments alone.
        rows = found["segments"] if isinstance(found, dict) else found
        segments = sorted(map(_segment, rows), key=lambda its: its.address)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise Fault(f"{path}: it is no snapshot of PyTorch that this tool knows") from None
    if not segments:
        raise Fault(f"{path}: it has no segments: PyTorch held no memory of a GPU")
    return segments


def is_python(frame):
    return frame[1].endswith(".py") or frame[1].startswith("<")


def site_of(frames):
    """(where, who called it): the innermost function of the program's, else of PyTorch's."""
    python = [frame for frame in frames if is_python(frame)] or list(frames)
    if not python:
        return NAMELESS, ""
    at = next((n for n, its in enumerate(python) if "/torch/" not in its[1]), 0)
    shown = [f"{name} ({file.rpartition('/')[2]}:{line})" for name, file, line in python[at:]]
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
        live, ever, now, best, best_ns = {}, [], 0, 0, 0

        def end(ns, addr):
            nonlocal now
            live[addr][1] = ns
            now -= sum(each.bytes for each in live.pop(addr)[2].segments)
        for batch in its.batches():
            for ns, kind, addr, size, site in zip(*batch[:5]):
                if kind in ALLOCS:
                    place = bisect.bisect_left(starts, addr)
                    inside = []
                    while place < len(starts) and starts[place] < addr + size:
                        if starts[place] + self.segments[place].bytes <= addr + size:
                            inside.append(self.segments[place])
                        place += 1
                    if not inside:
                        continue
                    if addr in live:  # its context ended
                        end(ns, addr)
                    live[addr] = [ns, None, Joined(addr, size, site, inside)]
                    ever.append(live[addr])
                    now += sum(each.bytes for each in inside)
                    if now >= best:
                        best, best_ns = now, ns
                elif kind in (FREE, FREE_ASYNC) and addr in live:
                    end(ns, addr)
        if not ever:
            raise Fault(f"{path}: none of its {text.count(len(starts))} segments lies in a block "
                        "of the trace: it is of another process or of another time, or PyTorch "
                        "maps memory itself (expandable_segments)")
        return best_ns, [joined for since, until, joined in ever
                         if since <= best_ns and (until is None or until > best_ns)]

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
            site = site_of(part.frames) if part.state == ALLOCATED else \
                (KEPT if part.state == INACTIVE else AWAITS, "")
            sums[site] += part.bytes
            numbers[site] += 1
        return [(site, size, numbers[site]) for site, size in sums.most_common()]

    def has_paths(self):
        return any(part.frames for segment in self.found for part in segment.parts)

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
