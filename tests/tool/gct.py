# SPDX-License-Identifier: BSD-2-Clause
"""Writes traces (shim/trace/format.h) whose times are known: a tick is a nanosecond."""
import struct

from gpucache import tables
from gpucache.trace import KIND

MIB = 1 << 20
GPU = (0, "CONTEXT", 0, 16 << 30)


def _header(span_ns, start_unix_ns):
    head = bytearray(tables.TRACE_HEADER_BYTES)
    head[:len(tables.TRACE_MAGIC)] = tables.TRACE_MAGIC
    for name, value in {
            "version": tables.TRACE_VERSION, "chunk_bytes": tables.TRACE_CHUNK_BYTES,
            "byte_order": tables.TRACE_BYTE_ORDER, "pid": 77, "program": b"a program",
            "start_unix_ns": start_unix_ns, "last_ns": span_ns, "last_ticks": span_ns}.items():
        offset, form = tables.TRACE_HEADER[name]
        struct.pack_into(form, head, offset, value)
    return bytes(head)


def _record(kind, first, second, context=1, said=b""):
    what = (KIND[kind] | tables.TRACE_WIDE) << 24 | context << 56
    return struct.pack("=QQQQ", len(said) << 32, what, first, second) + \
        said + bytes(-len(said) % 16)


def write(path, events, span_ns, start_unix_ns=10**18, more_threads=()):
    """events: (ns, kind, a, b). Each thread has a chunk of its own."""
    with open(path, "wb") as file:
        file.write(_header(span_ns, start_unix_ns))
        for number, its in enumerate([events, *more_threads]):
            chunk = struct.pack("=IIQQQ", tables.TRACE_CHUNK_MAGIC, number, its[0][0], its[0][0],
                                0)
            chunk += _record("THREAD", number + 1, 0)
            for ns, kind, first, second in its:
                chunk += _record("TIME", ns, 0)
                chunk += _record(kind, first, second, first + 1 & 0xff if kind == "CONTEXT" else 1,
                                 said=b"GPU-%d a GPU" % first if kind == "CONTEXT" else b"")
            assert len(chunk) <= tables.TRACE_CHUNK_BYTES
            file.write(chunk.ljust(tables.TRACE_CHUNK_BYTES, b"\0"))
