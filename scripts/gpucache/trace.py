# SPDX-License-Identifier: BSD-2-Clause
"""Traces (shim/trace/format.h): files that say what happened to a process's GPU memory. A file may
be cut off, of a process that was killed, or be written to while it is read."""
import array
import bisect
import collections
import errno
import heapq
import itertools
import math
import os
import re
import stat
import struct
import time
import weakref

from gpucache import batch, tables, text
from gpucache.batch import KIND, WORD
from gpucache.fault import Fault, reason

NAME = {number: name for name, number in KIND.items()}
CLOCKS = ("clock_gettime", "tsc", "cntvct")
LOW = 0xffffffff
EMPTY_MOST = 4096  # chunks in a row; behind them is nothing
CHUNKS_LOOKED_AT = 16  # for the options, which the thread that begins a trace writes first
ROWS_ADDED = 1000  # to a chunk
NAME_MOST = 80  # bytes
LONG_RUN = 64  # words
EVENTS = set(KIND.values()) - {KIND[name] for name in (
    "SITE", "STACK", "PYTHON_FRAME", "OBJECT", "THREAD", "LOST", "BASE", "TIME", "END")}
# The first record that is not frequent, or has a wide part.
OTHER = re.compile(b"[^" + re.escape(batch.FREQUENT) + b"]")
RATE_MOST = 8192  # ns a tick; no clock ticks so slowly, and all times have 79 binary digits
OTHERS = -1  # stands for many sites
BEFORE = -2  # for the code that asked for blocks of LIVE; in a dump it is known, or 0
FROM_BEFORE = "from before the trace"  # its name
FIRST_PATH = 1 << 63  # sites from here on are call paths, below are addresses

# One record. ns: since the trace began. site: the code that asked, 0: not known; see Trace.frames.
Event = collections.namedtuple("Event", "ns kind a b aux site context tid text")
# A place in a Python function. file: its beginning may be missing. line: 0 if not known.
PythonFrame = collections.namedtuple("PythonFrame", "function file line")
# Code at start to end. offset: of start in the file.
Object = collections.namedtuple("Object", "start end offset path")


class Trace:
    """A file, open for reading. Faults with a sentence if it is no trace, or if it is read after
    this time of CLOCK_MONOTONIC."""

    def __init__(self, path, until_s=math.inf):
        self.path, self.until_s = path, until_s
        try:
            # Not mapped: where the file ends meanwhile, or has a hole on a full tmpfs, that kills.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe may have no writer
            self._close = weakref.finalize(self, os.close, self._fd)
            try:
                found = os.fstat(self._fd)
                if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                    raise Fault(f"{path}: it is no file")
                self._size = found.st_size
                self._read_header(self._bytes(0, tables.TRACE_HEADER_BYTES))
            except BaseException:
                self.close()
                raise
        except (OSError, ValueError) as error:
            raise Fault(f"{path}: {reason(error)}") from None
        self.objects, self._placed = [], (0, [], [])  # see object_of
        self.threads = {}   # tid -> name
        self._paths, self._path_sites = [], {}  # frames, innermost first; their sites
        self.ended = False  # in order
        self.num_torn = self.num_unknown = 0
        self._sites = collections.defaultdict(dict)
        self._rate = 1.0  # ns a tick

    def _bytes(self, offset, size):
        """What is there of them."""
        if time.monotonic() > self.until_s:
            raise Fault(f"{self.path}: to read it takes too long")
        return os.pread(self._fd, size, offset)

    def _field(self, head, name):
        offset, form = tables.TRACE_HEADER[name]
        value = struct.unpack_from(form, head, offset)[0]
        return value.split(b"\0")[0].decode(errors="replace") if isinstance(value, bytes) else value

    def _read_header(self, head):
        magic = tables.TRACE_MAGIC
        if head[:len(magic)] != magic:
            raise Fault(f"{self.path}: it is no trace of libgpucache")
        if len(head) < tables.TRACE_HEADER_BYTES:
            raise Fault(f"{self.path}: it is cut off in its header: nothing can be read")
        if self._field(head, "byte_order") != tables.TRACE_BYTE_ORDER:
            raise Fault(f"{self.path}: it is of a machine with another order of bytes")
        version = self._field(head, "version")
        if version != tables.TRACE_VERSION:
            raise Fault(f"{self.path}: it has version {version}, this tool knows version "
                        f"{tables.TRACE_VERSION}: use the tool of that release")
        self.chunk_bytes = self._field(head, "chunk_bytes")
        if self.chunk_bytes != tables.TRACE_CHUNK_BYTES:
            raise Fault(f"{self.path}: its header is broken")
        self.pid = self._field(head, "pid")
        self.start_unix_ns = self._field(head, "start_unix_ns")
        self.program = text.printable(self._field(head, "program"))
        self.command = text.printable(self._field(head, "command"))
        self.library_version = text.printable(self._field(head, "library_version"))
        clock = self._field(head, "clock")
        self.clock = CLOCKS[clock] if clock < len(CLOCKS) else "an unknown clock"
        self._start = self._field(head, "start_ticks"), self._field(head, "start_ns")
        self._last = self._field(head, "last_ticks"), self._field(head, "last_ns")
        self.start_ns, self.lead_ns = self._start[1], 0
        self.num_lost = self._field(head, "num_lost")  # records may say more
        self.told_ns = self._last[1]  # when the process last said in the header that it records
        offset, form = tables.TRACE_HEADER["boot_id"]
        self.boot_id = struct.unpack_from(form, head, offset)[0]
        self.recording = self.boot_id, self.pid, self.start_unix_ns, self._start  # copies share it

    def add(self, rows):
        """Adds records of PROCESS behind the file, which nobody writes any more. rows: (ns of
        CLOCK_MONOTONIC, uuid, bytes of a process, bytes of the GPU, PID, its name), by their time.
        PID and name are 0 and "" for the process of the trace."""
        with open(self.path, "r+b") as file:
            number = -(-(self._size - tables.TRACE_HEADER_BYTES) // self.chunk_bytes)
            for first in range(0, len(rows), ROWS_ADDED):
                file.seek(tables.TRACE_HEADER_BYTES + number * self.chunk_bytes)
                file.write(self._chunk_of(number, rows[first:first + ROWS_ADDED]))
                number += 1

    def _chunk_of(self, number, rows):
        (start, start_ns), (last, last_ns) = self._start, self._last
        rate = (last - start) / (last_ns - start_ns) if last_ns > start_ns else 1.0
        made, what = b"", (KIND["PROCESS"] | tables.TRACE_WIDE) << 24
        before = first = max(0, start + int((rows[0][0] - start_ns) * rate))
        for now_ns, uuid, used, whole, pid, name in rows:
            now = start + int((now_ns - start_ns) * rate)
            said = uuid.encode()[:80] + f" {name}".encode()[:NAME_MOST] * bool(name)
            step = min(LOW, max(0, now - before) >> tables.TRACE_STEP_SHIFT)
            before += step << tables.TRACE_STEP_SHIFT
            made += struct.pack("=QQQQ", step | len(said) << 32, what | pid, used, whole)
            made += said + bytes(-len(said) % (2 * WORD))
        return struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, number, first, rows[0][0], 0) + made

    def close(self):
        self._close()  # once, and at the latest with the object

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def span_ns(self):
        """From time 0 to the last time that the file tells: a pair of clocks or, where a killed
        process left none, a record."""
        last = {self._thread_of(offset): (ticks, offset) for ticks, offset in self._chunks()}
        self._find_rate()
        ends = [batch.last_ticks(self._data(offset), ticks) for ticks, offset in last.values()]
        return max(self.lead_ns + max(0, self._last[1] - self._start[1]), *map(self._ns, ends), 0)

    def _thread_of(self, offset):
        """Whose record THREAD begins the chunk; 0: nobody's."""
        head = self._bytes(offset + tables.TRACE_CHUNK_HEAD_BYTES, 3 * WORD)
        is_thread = len(head) == 3 * WORD and \
            head[batch.KIND_BYTE] == tables.TRACE_WIDE + KIND["THREAD"]
        return struct.unpack_from("=Q", head, 2 * WORD)[0] if is_thread else 0

    def begin_at(self, lead_ns):
        """Time 0 is so long before the trace began, from the next events on."""
        self.lead_ns = lead_ns

    def _chunks(self):
        """(ticks at the start, offset in the file) of the chunks that are there, in the order in
        which records of the same time are told. The chunks that begin with a dump say what was live
        then, and so come before older ones of rings."""
        offset, empty, found = tables.TRACE_HEADER_BYTES, 0, []
        while offset < self._size and empty < EMPTY_MOST:
            head = self._bytes(offset, tables.TRACE_CHUNK_HEAD_BYTES)
            if len(head) < tables.TRACE_CHUNK_HEAD_BYTES:
                self.num_torn += 1
                break
            magic, _, ticks, now_ns = struct.unpack_from("=IIQQ", head)
            if magic == tables.TRACE_CHUNK_MAGIC:
                found.append((ticks, offset))
                offset, empty = offset + self.chunk_bytes, 0
                if now_ns > self._last[1]:
                    self._last = ticks, now_ns
            else:
                offset, empty = self._behind_hole(offset + self.chunk_bytes), empty + 1
        start = self._start[0]
        found.sort(key=lambda chunk: (max(chunk[0], start), chunk[0] < start, chunk))
        return found

    def _behind_hole(self, offset):
        """The place of the first chunk from there on that has data. A file may have holes of any
        size."""
        try:
            data = os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:  # some file systems do not tell
            return self._size if error.errno == errno.ENXIO else offset
        return offset + (data - offset) // self.chunk_bytes * self.chunk_bytes

    def options(self):
        """{name: value} of the options that were in force at the start and are not the defaults;
        {}: the trace, of an older library, does not tell. For a Trace that is read by nobody else.
        """
        for ticks, offset in self._chunks()[:CHUNKS_LOOKED_AT]:
            its = self._records(ticks, offset)
            told = [wide[1].partition("=") for kind, wide in zip(its.kind, its.wide)
                    if kind == KIND["OPTION"] and wide[0]]
            if told:
                return {name: value for name, _, value in told}
        return {}

    def events(self):
        """All records in the order of time."""
        return map(Event._make, self.rows())

    def rows(self):
        """The same as plain tuples."""
        return itertools.chain.from_iterable(map(batch.rows_of, self.batches()))

    def batches(self):
        """The same as Batches, which take the least time."""
        chunks = collections.deque(self._chunks())
        self._find_rate()
        going = []  # [records, how many of them are taken] of the chunks that are read
        while chunks or going:
            until_ns = min((records.ns[-1] for records, _ in going), default=math.inf)
            if chunks and self._ns(chunks[0][0]) <= until_ns:
                records = self._records(*chunks.popleft())
                if records.ns:
                    going.append([records, 0])
                continue
            parts, left = [], []
            for records, place in going:
                behind = len(records.ns) if records.ns[-1] <= until_ns else \
                    bisect.bisect_right(records.ns, until_ns, place)
                if behind > place:
                    parts.append([column[place:behind] for column in records])
                if behind < len(records.ns):
                    left.append([records, behind])
            going = left
            yield batch.Batch(*parts[0]) if len(parts) == 1 else batch.merged(parts)

    def _find_rate(self):
        (start, start_ns), (last, last_ns) = self._start, self._last
        self._rate = min(RATE_MOST, (last_ns - start_ns) / (last - start)) \
            if last > start and last_ns > start_ns else 1.0

    def _ns(self, ticks):
        return math.floor((ticks - self._start[0]) * self._rate) + self.lead_ns

    def _data(self, offset):
        """Of the records of a chunk, whole ones."""
        begin = offset + tables.TRACE_CHUNK_HEAD_BYTES
        data = self._bytes(begin, self.chunk_bytes - tables.TRACE_CHUNK_HEAD_BYTES)
        return data[:len(data) // (2 * WORD) * 2 * WORD]

    def _records(self, ticks, offset):
        """The records of a chunk. What is torn ends it."""
        data = self._data(offset)
        words = array.array("Q", data)
        kinds = data[batch.KIND_BYTE::2 * WORD]
        marks, tried = batch.marked(kinds), 0
        found, rows = batch.new(), []
        place, base, tid, sites = 0, 0, 0, self._sites[0]
        (start, _), rate, lead = self._start, self._rate, self.lead_ns
        unit, shift, search = tables.TRACE_UNIT_SHIFT, tables.TRACE_STEP_SHIFT, OTHER.search
        while place < len(words):
            behind = 2 * batch.end_of_run(marks, place // 2)
            if behind - place >= LONG_RUN and place >= tried:
                its = batch.Run(data[place * WORD:behind * WORD], marks[place // 2:behind // 2],
                                base, sites)
                tried = behind
                if its.is_known:
                    batch.put(found, rows)
                    ticks, place = self._add_run(its, ticks, tid, found), behind
            behind = search(kinds, place // 2)
            behind = 2 * behind.start() if behind else len(words)
            while place < behind:
                step_at, what = words[place], words[place + 1]
                ticks += (step_at & LOW) << shift
                rows.append((math.floor((ticks - start) * rate) + lead, what >> 24 & 0xff,
                             (step_at >> 32) + base << unit, what & 0xffffff,
                             sites.get(what >> 32 & 0xffffff, 0), what >> 56, tid, None))
                place += 2
            if place == len(words) or not words[place + 1]:
                break
            kind, size, what = kinds[place // 2], words[place] >> 32, words[place + 1]
            ticks += (words[place] & LOW) << shift
            behind = place + 4 + (size + 15) // 16 * 2
            if kind < tables.TRACE_WIDE:
                self.num_unknown += 1
                place += 2
                continue
            if behind > len(words) or size > tables.TRACE_TEXT_MAX:
                self.num_torn += 1
                break
            first, second = words[place + 2], words[place + 3]
            raw = data[(place + 4) * WORD:(place + 4) * WORD + size]
            said = raw.decode(errors="replace") if size else ""
            place = behind
            kind -= tables.TRACE_WIDE
            if kind in EVENTS:
                rows.append((math.floor((ticks - start) * rate) + lead, kind, first, second,
                             sites.get(what >> 32 & 0xffffff, 0), what >> 56, tid,
                             (what & 0xffffff, text.printable(said) if said else "",
                              what >> 56)))
            elif kind == KIND["SITE"]:
                sites[what >> 32 & 0xffffff] = first
            elif kind == KIND["STACK"]:
                site = what >> 32 & 0xffffff
                sites[site] = self._path_site(sites, site, first, raw)
            elif kind == KIND["PYTHON_FRAME"]:
                sites[FIRST_PATH | first] = PythonFrame(
                    *map(text.printable, said.partition("\0")[::2]), second)
            elif kind == KIND["BASE"]:
                base = first
            elif kind == KIND["TIME"]:
                ticks = first
            elif kind == KIND["THREAD"]:
                tid, sites = first, self._sites[first]
                self.threads[tid] = text.printable(said)
            else:
                self._note(kind, first, second, said)
        batch.put(found, rows)
        # A ring may reach further back than others, by less than a nanosecond too: hence floor.
        if found.ns and found.ns[0] < lead:
            kept = [ns >= lead for ns in found.ns]
            return batch.Batch(*([*itertools.compress(column, kept)] for column in found))
        return found

    def _add_run(self, run, ticks, tid, found):
        """Returns the ticks behind it."""
        times, ticks = run.ns(ticks - self._start[0], self._rate)
        behind, number = len(found.ns), len(times)
        found.ns.extend([ns + self.lead_ns for ns in times] if self.lead_ns else times)
        found.kind.extend(run.kinds)
        found.a.extend(run.addrs)
        found.b.extend(run.sizes)
        found.site.extend(run.sites)
        found.context.extend(run.contexts)
        found.tid.extend(itertools.repeat(tid, number))
        found.wide.extend(itertools.repeat(None, number))
        for place, its in run.wide.items():
            found.wide[behind + place] = its
        return self._start[0] + ticks

    def _note(self, kind, first, second, said):
        """What is no event, and of the whole file."""
        if kind == KIND["OBJECT"]:
            self._add_object(first, second, said)
        elif kind == KIND["LOST"]:
            self.num_lost = max(self.num_lost, first)
        elif kind == KIND["END"]:
            self.ended = True
        else:
            self.num_unknown += 1

    def _path_site(self, sites, site, number, raw):
        """The site of a call path. The caller alone, if what is said of it makes no sense."""
        caller = sites.get(site, 0)
        if number * WORD != len(raw) or caller >= FIRST_PATH:
            self.num_torn += 1
            return caller
        frames = (sites.get(word) if word >= FIRST_PATH else word
                  for word in struct.unpack(f"={number}Q", raw))
        frames = caller, *filter(None, frames)
        site = self._path_sites.setdefault(frames, FIRST_PATH + len(self._paths))
        if site == FIRST_PATH + len(self._paths):
            self._paths.append(frames)
        return site

    def frames(self, site):
        """The return addresses of a site's frames, the innermost first, then PythonFrames."""
        at = site - FIRST_PATH
        return self._paths[at] if 0 <= at < len(self._paths) else (site,)

    def _add_object(self, start, size, said):
        offset, _, path = said.partition(" ")
        try:
            self.objects.append(Object(start, start + size, int(offset, 16), text.printable(path)))
        except ValueError:
            self.num_torn += 1

    def object_of(self, address):
        """The Object that was loaded last at a site; None: not known."""
        if self._placed[0] != len(self.objects):
            self._placed = len(self.objects), *self._places()
        _, starts, its = self._placed
        place = bisect.bisect_right(starts, self.frames(address)[0]) - 1
        return its[place] if place >= 0 else None

    def _places(self):
        """Addresses, and from each one on the Object that was loaded last there, or None."""
        starts, found, there = [], [], []  # there: a heap with the last one first
        order = sorted(range(len(self.objects)), key=lambda number: self.objects[number].start)
        edges = sorted({edge for its in self.objects for edge in its[:2]})
        begun = 0
        for edge in edges:
            while begun < len(order) and self.objects[order[begun]].start <= edge:
                heapq.heappush(there, -order[begun])
                begun += 1
            while there and self.objects[-there[0]].end <= edge:
                heapq.heappop(there)
            starts.append(edge)
            found.append(self.objects[-there[0]] if there else None)
        return starts, found


def is_trace(path):
    try:
        with open(path, "rb") as file:
            return file.read(len(tables.TRACE_MAGIC)) == tables.TRACE_MAGIC
    except OSError:
        return False
