# SPDX-License-Identifier: BSD-2-Clause
"""A page of live state as a process under the library would have it. A test writes it, and a thread
answers requests. Also calls of the tool inside of this process. The tool is the first argument of
its tests."""
import contextlib
import glob
import io
import json
import mmap
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOOL = os.path.realpath(sys.argv[1])
sys.path.insert(0, TOOL)

from gpucache import ask, cached, cli, process  # noqa: E402 # pylint: disable=C0413
from gpucache import state, tables, trace  # noqa: E402 # pylint: disable=C0413

# A shell starts what runs in its background with SIGINT ignored, and nohup with SIGHUP: tests of
# these signals inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Nobody publishes the pages of most tests anew when the tool rings, and their bells are polled.
state.PATIENCE_S = 0.0
cached.PATIENCE_S = 0.1
ask.SILENCE_S = 1000

# The tool in a process of its own that sees only the pages of GPUCACHE_DIR: other programs of this
# user are none of a test's.
ALONE = [sys.executable, "-X", "utf8", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1));"
         "from gpucache import cli, page; page.PLACES = ('/proc/none',); sys.exit(cli.main())",
         TOOL]

UUID = "GPU-73696d75-6c61-7465-642d-6770752d3030"
UUID_B = "GPU-73696d75-6c61-7465-642d-6770752d3031"
MIB = 1 << 20


# A process that sleeps, with the page that its input names mapped.
MAPPER = """
import mmap, time
file = open(input(), "r+b")
mapping = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(100)
"""
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def map_page(sleeper, page):
    sleeper.stdin.write(page.path + "\n")
    sleeper.stdin.flush()
    sleeper.stdout.readline()


def pool(device=0, uuid=UUID, **figures):
    found = {"device": device, "name": "Simulated GPU", "backing": "arena", "reason": "it works",
             "uuid": uuid, "total_bytes": 80 << 30, "idle_bytes": 156 * MIB,
             "num_driver_calls_saved": 1990, "saved_ns": 4179000,
             **{row["name"]: 0 for row in tables.STATS}}
    found.update(allocated_bytes=32 * MIB, reserved_bytes=188 * MIB, reserved_peak_bytes=1 << 30,
                 num_allocs=1000, num_hits=985, num_frees=990, **figures)
    return found


def flushed(**figures):
    """The receipt of a flush of one GPU."""
    found = {"uuid": UUID, "device": 0, "returned_bytes": 156 * MIB, "idle_bytes": 0,
             "pending_bytes": 0, "allocated_bytes": 32 * MIB, "partly_live_bytes": 0, **figures}
    return {"gpus": [found], "ns": 11_000_000, "frameworks": []}


def body(*pools, **more):
    options = {row["env"]: row["default"] for row in tables.OPTIONS}
    options.update(more.pop("options", {}))
    return {"library": "libgpucache", "version": "0.1.0", "pid": os.getpid(), "program": "trainer",
            "elapsed_ns": 10**9, "driver_call_ns": 2100, "pools": list(pools),
            "counters": {row["name"]: 3 for row in tables.COUNTERS}, "uid": os.getuid(),
            "signal": 10, "command": "trainer --epochs 3", "options": options,
            "flush": {"count": 0, "reason": "", "unix_ns": 0, "bytes": 0, "ns": 0}, **more}


class FakePage:
    """By default the page of this very process. answer: a function of the request that returns
    (code, value, reply); with it a thread answers, and publishes when the doorbell rings. look:
    what is done at a request to look, which is not among those that are asked."""

    def __init__(self, folder, text=None, pid=None, start=None, namespace=None, answer=None,
                 version=tables.PAGE_VERSION, age_s=0, uid=None, boot_id=None):
        own = process.identity(os.getpid())
        self.namespace = own[0] if namespace is None else namespace
        self.pid = own[1] if pid is None else pid
        self.start = own[2] if start is None else start
        self.name = f"{self.namespace}-{self.pid}-{self.start}{tables.PAGE_SUFFIX}"
        self.path = os.path.join(folder, self.name)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(self.fd, tables.PAGE_BYTES)
        self.mapping = mmap.mmap(self.fd, tables.PAGE_BYTES)  # as the library has it
        self.put("magic", tables.PAGE_MAGIC)
        self.put("version", version)
        self.put("size_bytes", tables.PAGE_BYTES)
        self.put("pid", self.pid)
        self.put("start_ticks", self.start)
        self.put("pid_namespace", self.namespace)
        self.put("uid", os.getuid() if uid is None else uid)
        self.put("started_unix_ns", time.time_ns() - age_s * 10**9)
        self.put("library_version", b"0.1.0")
        self.put("boot_id", process.boot_id() if boot_id is None else boot_id)
        self.asked, self.sequence, self.text = [], 0, b"{}"
        self.publish(body(pool()) if text is None else text, age_s)
        self.answer, self.look, self.going = answer, lambda: None, True
        # What it says of its packages; None: it knows no such request.
        self.cached, self.looks = None, 0
        self.thread = threading.Thread(target=self._serve, daemon=True)
        if answer:
            self.thread.start()

    def put(self, name, value, layout=None, start=0):
        offset, form = (layout or tables.PAGE)[name]
        os.pwrite(self.fd, struct.pack(form, value), start + offset)

    def get(self, name, layout=None, start=0):
        offset, form = (layout or tables.PAGE)[name]
        return struct.unpack(form, os.pread(self.fd, struct.calcsize(form), start + offset))[0]

    def publish(self, text, age_s=0):
        data = self.text = text if isinstance(text, bytes) else json.dumps(text).encode()
        self.put("sequence", self.sequence + 1)
        os.pwrite(self.fd, data, tables.PAGE["body"][0])
        self.put("body_bytes", len(data))
        self.put("published_ns", max(1, time.monotonic_ns() - age_s * 10**9))
        self.put("published_unix_ns", time.time_ns() - age_s * 10**9)
        self.sequence += 2
        self.put("sequence", self.sequence)

    def _serve(self):
        heard = 0
        while self.going:
            if heard != self.get("doorbell"):
                heard = self.get("doorbell")
                self.publish(self.text)
            for i in range(tables.PAGE_SLOTS):
                start = tables.PAGE["slots"][0] + i * tables.PAGE_SLOT_BYTES
                number = self.get("ask_sequence", tables.PAGE_SLOT, start)
                if number != self.get("reply_sequence", tables.PAGE_SLOT, start):
                    self._reply(start, number)
            time.sleep(0.001)

    def _reply(self, start, number):
        size = self.get("ask_bytes", tables.PAGE_SLOT, start)
        words = os.fsdecode(os.pread(self.fd, size, start + tables.PAGE_SLOT["ask"][0]))
        if words.startswith("cached "):
            self.looks += 1
            answer = (tables.PAGE_REPLY_BAD, 0, {"error": "no such request"}) \
                if self.cached is None else (tables.PAGE_REPLY_DONE, 0, self.cached)
        elif words == "look":
            answer = self.look() or (tables.PAGE_REPLY_DONE, 0, {})
        else:
            self.asked.append(words)
            answer = self.answer(words)
        if answer is None:
            return  # a library that hangs
        code, value, reply = answer
        data = json.dumps(reply).encode()
        os.pwrite(self.fd, data, start + tables.PAGE_SLOT["reply"][0])
        self.put("reply_bytes", len(data), tables.PAGE_SLOT, start)
        self.put("reply_code", code, tables.PAGE_SLOT, start)
        self.put("reply_value", value, tables.PAGE_SLOT, start)
        self.put("reply_sequence", number, tables.PAGE_SLOT, start)

    def close(self):
        if self.going:
            self.going = False
            if self.thread.is_alive():
                self.thread.join()
            self.mapping.close()
            os.close(self.fd)
            if os.path.exists(self.path):
                os.unlink(self.path)


class Scratch(unittest.TestCase):
    """With a folder, and a path in it for a trace."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "a.gct")

    def trace(self, path=None):
        its = trace.Trace(path or self.path)
        self.addCleanup(its.close)
        return its

    def read(self, path=None):
        its = self.trace(path)
        return its, list(its.events())


class Done:
    """What a call of the tool gave."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def json(self):
        return json.loads(self.out)


def tool(*words, **env):
    """Calls the tool in this process, with GPUCACHE_DIR and the like in the environment."""
    out, err, before = io.StringIO(), io.StringIO(), dict(os.environ)
    os.environ.update(env)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = cli.main([str(word) for word in words])
            except SystemExit as end:
                status = end.code
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Done(status, out.getvalue(), err.getvalue())


def well(*words, **env):
    """The same of a call that has to end well."""
    done = tool(*words, **env)
    assert (done.status, done.err) == (0, ""), (words, done.status, done.err)
    return done


def out(path, ending):
    """A report of that kind, from its file."""
    done = tool("report", path, "-o", f"{path}.{ending}")
    assert done.status == 0, done.err
    return pathlib.Path(f"{path}.{ending}").read_bytes()


def pythons():
    """This Python, and those of pyenv, that are 3.8 or newer."""
    found = {*glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python")), sys.executable}
    return [path for path in sorted(found) if not subprocess.run(
        [path, "-c", "import sys; sys.exit(sys.version_info < (3, 8))"], check=False).returncode]


def lines_of(call):
    """What the call gives, and how many lines of Python ran for it."""
    count = 0

    def note(_frame, event, _arg):
        nonlocal count
        count += event == "line"
        return note
    sys.settrace(note)
    try:
        found = call()
    finally:
        sys.settrace(None)
    return found, count


def text_of(*path):
    return pathlib.Path(*path).read_text(encoding="utf-8")


def put_text(path, text="", mode=None):
    pathlib.Path(path).write_text(text, encoding="utf-8")
    if mode is not None:
        os.chmod(path, mode)


def catches(pid, number):
    """Has the process a handler of its own for the signal?"""
    caught = re.search(r"^SigCgt:\s*(\w+)", text_of(f"/proc/{pid}/status"), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


def wait_for(what, seconds=60):
    """Polls until what() is true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.01)
