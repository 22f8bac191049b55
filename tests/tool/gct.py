# SPDX-License-Identifier: BSD-2-Clause
"""Writes traces (shim/trace/format.h) whose times are known: a tick is a nanosecond."""
import struct

from gpucache import batch, tables, usage
from gpucache.trace import FIRST_PATH, KIND, Event

MIB = 1 << 20
GPU = (0, "CONTEXT", 0, 16 << 30)


def _header(span_ns, start_unix_ns, start_ns=0, **more):
    head = bytearray(tables.TRACE_HEADER_BYTES)
    head[:len(tables.TRACE_MAGIC)] = tables.TRACE_MAGIC
    for name, value in {
            "version": tables.TRACE_VERSION, "chunk_bytes": tables.TRACE_CHUNK_BYTES,
            "byte_order": tables.TRACE_BYTE_ORDER, "pid": 77, "program": b"a program",
            "start_unix_ns": start_unix_ns, "start_ns": start_ns, "start_ticks": start_ns,
            "last_ns": span_ns, "last_ticks": span_ns, **more}.items():
        offset, form = tables.TRACE_HEADER[name]
        struct.pack_into(form, head, offset, value)
    return bytes(head)


def _record(kind, first, second, context=1, said=b"", aux=0, site=0):
    what = aux | (KIND[kind] | tables.TRACE_WIDE) << 24 | site << 32 | context << 56
    return struct.pack("=QQQQ", len(said) << 32, what, first, second) + \
        said + bytes(-len(said) % 16)


def write(path, events, span_ns, start_unix_ns=10**18, more_threads=(), start_ns=0,
          **header):
    """events: (ns, kind, a, b), or with aux, text and site. Each thread has a chunk of its own.
    span_ns: the end; start_ns: a dump may have records of before that. header: other fields of it.
    """
    with open(path, "wb") as file:
        file.write(_header(span_ns, start_unix_ns, start_ns, **header))
        for number, its in enumerate([events, *more_threads]):
            chunk = struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, number, its[0][0], its[0][0],
                                0)
            chunk += _record("THREAD", number + 1, 0)
            for ns, kind, first, second, *more in its:
                aux, said, site = (*more, *(0, "", 0)[len(more):])
                chunk += _record("TIME", ns, 0)
                if kind == "CONTEXT":
                    said = "GPU-%d a GPU" % first
                chunk += _record(kind, first, second, first + 1 & 0xff if kind == "CONTEXT" else 1,
                                 said.encode(), aux, site)
            assert len(chunk) <= tables.TRACE_CHUNK_BYTES
            file.write(chunk.ljust(tables.TRACE_CHUNK_BYTES, b"\0"))


BASE, CODE, CODE_BYTES = 0x7f0000000000, 0x400000, 16
STEP = 10 << tables.TRACE_STEP_SHIFT  # ns between the events of write_sites


def _narrow(kind, unit, size, site):
    return struct.pack("=QQ", STEP >> tables.TRACE_STEP_SHIFT | unit << 32,
                       size | KIND[kind] << 24 | site << 32 | 1 << 56)


def site_events(sites, rounds):
    """(kind, unit, bytes, site): each site asks for a block in each round, and frees it when all
    have one more."""
    last = []
    for number in range(rounds):
        asked = [(number % 2 * (sites + 1) + site, 1 + (site * 7919 + number * 104729) % (1 << 20),
                  site) for site in range(1, sites + 1)]
        yield from (("ALLOC_FAST", *its) for its in asked)
        yield from (("FREE", unit, 0, 0) for unit, *_ in last)
        last = asked


def turns(sites, at_once):
    """The same, but each site has one block, and so many are live at once."""
    for site in range(1, sites + at_once + 1):
        if site <= sites:
            yield "ALLOC_FAST", site, MIB, site
        if site > at_once:
            yield "FREE", site - at_once, 0, 0


def write_sites(path, events, objects=1):
    """A trace of one thread, with the sites in so many objects. Returns the number of events."""
    events, known, number, chunk = list(events), set(), 0, b""
    sites = max(site for _, _, _, site in events)
    with open(path, "wb") as file:
        file.write(_header((len(events) + 1) * STEP, 10**18))
        for done, (kind, unit, size, site) in enumerate(events):
            if not chunk:
                chunk = bytearray(struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, number,
                                              done * STEP, done * STEP, 0))
                chunk += _record("THREAD", 1, 0) + _record("BASE", BASE >> 9, 0)
                if not number:
                    chunk += _record("CONTEXT", 0, 16 << 30, said=b"GPU-0 a GPU")
                    each = -(-(sites + 1) // objects) * CODE_BYTES
                    for its in range(objects):
                        chunk += _record("OBJECT", CODE + its * each, each,
                                         said=b"0 /lib/lib%d.so" % its)
                number += 1
            if site not in known:
                known.add(site)
                chunk += struct.pack("=QQQQ", 0, (KIND["SITE"] | tables.TRACE_WIDE) << 24 |
                                     site << 32, CODE + site * CODE_BYTES, 0)
            chunk += _narrow(kind, unit, size, site)
            if len(chunk) > tables.TRACE_CHUNK_BYTES - 100 or done + 1 == len(events):
                assert len(chunk) <= tables.TRACE_CHUNK_BYTES
                file.write(chunk.ljust(tables.TRACE_CHUNK_BYTES, b"\0"))
                chunk = b""
    return len(events)


def _site(kind, site, first, said=b""):
    return struct.pack("=QQQQ", len(said) << 32, (KIND[kind] | tables.TRACE_WIDE) << 24 |
                       site << 32, first, 0) + said + bytes(-len(said) % 16)


def write_paths(path, asks, objects):
    """A trace of blocks that stay. asks: (bytes, frames), the innermost first; a frame is an
    address, or (function, file, line) of Python. objects: (address, bytes, file)."""
    chunk, python = struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, 0, 0, 0, 0), {}
    chunk += _record("THREAD", 1, 0) + _record("CONTEXT", 0, 16 << 30, said=b"GPU-0 a GPU")
    for start, size, file in objects:
        chunk += _record("OBJECT", start, size, said=b"0 " + file.encode())
    for number, (size, frames) in enumerate(asks, 1):
        words = []
        for its in frames:
            if isinstance(its, tuple) and its not in python:
                python[its] = FIRST_PATH | len(python)
                chunk += _record("PYTHON_FRAME", len(python) - 1, its[2],
                                 said=f"{its[0]}\0{its[1]}".encode())
            words.append(python.get(its, its))
        chunk += _site("SITE", number, words[0])
        chunk += _site("STACK", number, len(words[1:]), struct.pack(f"={len(words[1:])}Q",
                                                                    *words[1:]))
        chunk += _record("TIME", 10 * number, 0)
        chunk += struct.pack("=QQQQ", 0, (KIND["ALLOC"] | tables.TRACE_WIDE) << 24 |
                             number << 32 | 1 << 56, BASE + (number << 30), size)
    assert len(chunk) <= tables.TRACE_CHUNK_BYTES
    with open(path, "wb") as file:
        file.write(_header(10 * len(asks) + 10, 10**18))
        file.write(chunk.ljust(tables.TRACE_CHUNK_BYTES, b"\0"))


def write_program(path, events, span_ns, objects, paths, start_ns, **header):
    """A trace of one thread, which ended in order. events: (ns, kind, a, b, fields of _record),
    where a site is the number of one of paths, from 1 on: (frames) as of write_paths."""
    start = [_record("THREAD", 1, 0)]
    for address, size, file in objects:
        start.append(_record("OBJECT", address, size, said=b"0 " + file.encode()))
    for number, words in enumerate(paths, 1):
        start.append(_site("SITE", number, words[0]))
        start.append(_site("STACK", number, len(words[1:]), struct.pack(f"={len(words[1:])}Q",
                                                                        *words[1:])))
    rows = sorted(events, key=lambda its: its[0])
    chunk = struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, 0, start_ns, start_ns, 0) + \
        b"".join(start)
    for ns, kind, first, second, more in [*rows, (span_ns, "END", 0, 0, {})]:
        chunk += _record("TIME", start_ns + ns, 0) + _record(kind, first, second, **more)
    assert len(chunk) <= tables.TRACE_CHUNK_BYTES
    with open(path, "wb") as file:
        file.write(_header(start_ns + span_ns, 10**18 + start_ns, start_ns, **header))
        file.write(chunk.ljust(tables.TRACE_CHUNK_BYTES, b"\0"))


class Given:
    """A trace of these events."""
    def __init__(self, events, span_ns=100):
        self.events, self.span = events, span_ns

    def span_ns(self):
        return self.span

    def batches(self):
        found = batch.new()
        batch.put(found, [(its.ns, its.kind, its.a, its.b, its.site, its.context, its.tid,
                           (its.aux, its.text, its.context)) for its in self.events])
        yield found


def used_of(*rows, span_ns=100):
    """rows: (ns, kind, a, b, site, aux), without the last of them."""
    events = []
    for row in rows:
        ns, kind, first, second, site, aux = (*row, *(0, 1, 0)[len(row) - 3:])
        events.append(Event(ns, KIND[kind], first, second, aux, site, 1, 1, ""))
    return usage.Usage(Given(events, span_ns))
