# SPDX-License-Identifier: BSD-2-Clause
"""Reads a page and asks through it, for tests: written from shim/page/layout.h alone."""

import ctypes
import fcntl
import importlib.util
import json
import mmap
import os
import platform
import struct
import time

FUTEX_WAIT, FUTEX_WAKE = 0, 1
NUMBERS = {"x86_64": 202, "aarch64": 98}
LIBC = ctypes.CDLL(None, use_errno=True)


def load_tables(path):
    spec = importlib.util.spec_from_file_location("tables", path)
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    return tables


def futex(address, operation, value, timeout_s=None):
    timeout = struct.pack("=qq", int(timeout_s), int(timeout_s % 1 * 1e9)) if timeout_s else None
    return LIBC.syscall(NUMBERS[platform.machine()], ctypes.c_void_p(address), operation, value,
                        timeout, None, 0)


class Page:
    """A page, mapped. Its file may have gone meanwhile."""

    def __init__(self, tables, path):
        self.tables = tables
        self.file = open(path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), tables.PAGE_BYTES)
        self.bytes = (ctypes.c_char * tables.PAGE_BYTES).from_buffer(self.map)
        self.address = ctypes.addressof(self.bytes)

    def close(self):
        del self.bytes
        self.map.close()
        self.file.close()

    def get(self, name, record="PAGE", base=0):
        offset, form = getattr(self.tables, record)[name]
        return struct.unpack_from(form, self.map, base + offset)[0]

    def put(self, name, value, record="PAGE", base=0):
        offset, form = getattr(self.tables, record)[name]
        struct.pack_into(form, self.map, base + offset, value)

    def state(self, wait_s=30.0):
        """The JSON body and the table of GPUs, of one publication."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            before = self.get("sequence")
            count, size = self.get("num_gpus"), self.get("body_bytes")
            body = self.get("body")[:size]
            base, step = self.tables.PAGE["gpus"][0], self.tables.PAGE_GPU_BYTES
            gpus = [{name: self.get(name, "PAGE_GPU", base + i * step)
                     for name in self.tables.PAGE_GPU} for i in range(min(count, 32))]
            if before % 2 == 0 and before == self.get("sequence"):
                return json.loads(body), gpus
            time.sleep(0.0001)
        raise AssertionError("no whole state")

    def ring(self):
        self.put("doorbell", (self.get("doorbell") + 1) & 0xFFFFFFFF)
        return futex(self.address + self.tables.PAGE["doorbell"][0], FUTEX_WAKE, 1)

    def slots(self):
        base, step = self.tables.PAGE["slots"][0], self.tables.PAGE_SLOT_BYTES
        return range(base, base + self.tables.PAGE_SLOTS * step, step)

    def take_slot(self):
        for at in self.slots():
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            except OSError:
                continue
            asked = self.get("ask_sequence", "PAGE_SLOT", at)
            if asked == self.get("reply_sequence", "PAGE_SLOT", at):
                return at
            fcntl.lockf(self.file, fcntl.LOCK_UN, 1, at)
        raise AssertionError("no free slot")

    def put_ask(self, text):
        """Puts a request into a free slot, without a ring: the slot and its sequence."""
        at = self.take_slot()
        data = text.encode() if isinstance(text, str) else text
        self.put("ask", data, "PAGE_SLOT", at)
        self.put("ask_bytes", len(data), "PAGE_SLOT", at)
        sequence = (self.get("ask_sequence", "PAGE_SLOT", at) + 1) & 0xFFFFFFFF
        self.put("ask_sequence", sequence, "PAGE_SLOT", at)
        return at, sequence

    def num_asks(self):
        """How many requests the page has had."""
        return sum(self.get("ask_sequence", "PAGE_SLOT", at) for at in self.slots())

    def await_reply(self, at, sequence, wait_s=30.0):
        """(code, value, reply) of the request in that slot."""
        end = time.monotonic() + wait_s
        offset = self.tables.PAGE_SLOT["reply_sequence"][0]
        while (seen := self.get("reply_sequence", "PAGE_SLOT", at)) != sequence:
            if time.monotonic() > end:
                raise TimeoutError("no reply")
            futex(self.address + at + offset, FUTEX_WAIT, seen, 0.5)
        size = self.get("reply_bytes", "PAGE_SLOT", at)
        reply = json.loads(self.get("reply", "PAGE_SLOT", at)[:size])
        code = self.get("reply_code", "PAGE_SLOT", at)
        value = self.get("reply_value", "PAGE_SLOT", at)
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, at)
        return code, value, reply

    def ask(self, text, wait_s=30.0):
        """(code, value, reply) of a request."""
        at, sequence = self.put_ask(text)
        self.ring()
        return self.await_reply(at, sequence, wait_s)


def whole_pages_in(tables, folder):
    """Those that are there and have all their bytes."""
    return [path for path in pages_in(folder) if path.endswith(tables.PAGE_SUFFIX) and
            os.path.getsize(path) == tables.PAGE_BYTES]


def page_of(folder, pid):
    """The page of the process; None: it is not there yet."""
    return next((path for path in pages_in(folder)
                 if os.path.basename(path).split("-")[1:2] == [str(pid)] and
                 path.endswith(".page")), None)


def pages_in(folder):
    try:
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except FileNotFoundError:
        return []
