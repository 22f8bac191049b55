# SPDX-License-Identifier: BSD-2-Clause
"""gpucache trace: records what a running process does with GPU memory, for a time."""
import json
import os
import re
import signal
import time

from gpucache import ask, gpu, options, recording, setting, state, text, trace
from gpucache.fault import DONE, Fault, complain, end_in_order, hold_endings, reason

STEP_S = 0.2
LOOK_S = 1.0
# A request takes no name with blanks, and a reply has so much of a name, without other than UTF-8.
UNFIT, SHOWN_BYTES = re.compile("[\\s?\ufffd]"), 300


def _path(args, process):
    """Absolute: the process may have another folder. With the process id for %p."""
    name = args.output or f"gpucache-{args.pid}-{time.strftime('%H%M%S')}.gct"
    path = os.path.abspath(recording.named(process, name))
    if any(c.isspace() for c in path):
        raise Fault(f"{path}: a name with blanks cannot be given to a running process")
    if os.path.lexists(path):
        raise Fault(f"{path}: it is there already, and is not written over")
    return path


def _change(process, value, name="GPUCACHE_TRACE"):
    """Sets it. Faults with the library's words."""
    change = setting.change(process, [(name, value)])[0]
    if change.get("why"):
        raise Fault(f"PID {process.pid}: {text.printable(str(change['why']))}")
    return change


def _others(pid, path=None):
    """The file of a trace that is on and not in `path`; None: there is none."""
    name = recording.of(state.one(pid))
    return None if name is None or path and name == recording.shown(path) else name


class Oom:
    """GPUCACHE_TRACE_ON=oom, which a trace that is asked for interrupts."""

    def __init__(self, process):
        self.process, self.is_on = process, False
        told = process.options()
        name = told.get("TRACE", "none")
        if told.get("TRACE_ON") == "oom" and (UNFIT.search(name) or
                                              len(os.fsencode(name)) > SHOWN_BYTES):
            raise Fault(f"PID {process.pid}: it waits for the end of memory with a file {name}, "
                        "which could not be set again afterwards")
        # Before the other option: it would begin a trace in this file.
        self.path = str(_change(process, "none").get("old") or "none")
        try:
            self.is_on = _change(process, "start", "GPUCACHE_TRACE_ON").get("old") == "oom"
        except Fault:
            pass  # a library without that option

    def go_on(self):
        if self.is_on:
            _change(self.process, "oom", "GPUCACHE_TRACE_ON")
            _change(self.process, self.path)


class Beside:
    """What NVML says of the process meanwhile, each second."""

    def __init__(self, process):
        self.pid, self.rows, self.next = process.pid, [], 0.0
        self.gpus = gpu.Gpus(stays=True)

    def look(self):
        now = time.monotonic()
        if self.gpus.why or now < self.next:
            return
        self.next = now + LOOK_S
        self.gpus.refresh()
        whole = {its["uuid"]: its["used_bytes"] for its in self.gpus.devices}
        self.rows += [(time.monotonic_ns(), its["gpu_uuid"], its["used_bytes"],
                       whole.get(its["gpu_uuid"]) or 0)
                      for its in self.gpus.processes
                      if its["pid"] == self.pid and its["used_bytes"] and not self.gpus.why]

    def write(self, path):
        """Behind the trace, which has ended."""
        self.gpus.close()
        with trace.Trace(path) as its:
            its.add(self.rows)


def _begin(process, path):
    if _change(process, options.pattern(path)).get("note"):
        raise Fault(f"PID {process.pid}: it could not write {path}; its log says why")
    if not os.path.exists(path):
        raise Fault(f"PID {process.pid}: it could write {path}, but the file is not here: the "
                    "process sees other folders")


def _end(process, path, oom):
    """Ends the trace in `path`, and no other."""
    try:
        if _others(process.pid, path):
            complain(f"PID {process.pid}: another trace took its place")
        else:
            _change(process, "none")
            oom.go_on()
    except (Fault, OSError) as error:
        if not _has_ended(process.pid):
            complain(f"PID {process.pid}: it may go on recording: {error}; gpucache set "
                     f"{process.pid} TRACE=none ends it")


def show(args):
    process = state.one(args.pid)
    if process.status != "running":
        raise Fault(f"PID {args.pid}: it has ended")
    path, other = _path(args, process), _others(args.pid)
    if other:
        raise Fault(f"PID {args.pid}: it records a trace already, in {other}: gpucache set "
                    f"{args.pid} TRACE=none ends it")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_in_order()
    hold_endings(True)
    oom, beside = Oom(process), None
    try:
        _begin(process, path)
        end = time.monotonic() + args.seconds
        hold_endings(False)
        beside = Beside(process)
        while time.monotonic() < end and not _has_ended(args.pid):
            beside.look()
            time.sleep(min(STEP_S, max(0.0, end - time.monotonic())))
    except KeyboardInterrupt:
        pass  # enough was seen
    finally:
        hold_endings(True)
        _end(process, path, oom)
        hold_endings(False)
    try:
        if beside:
            beside.write(path)
        size = os.path.getsize(path)
    except OSError as error:
        raise Fault(f"{path}: {reason(error)}") from None
    print(json.dumps({"file": path, "bytes": size}) if args.json else
          f"{path}: {text.size(size)}; gpucache report {path} shows it")
    return DONE


def _has_ended(pid):
    return ask.process.has_ended(pid)
