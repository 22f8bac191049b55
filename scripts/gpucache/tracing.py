# SPDX-License-Identifier: BSD-2-Clause
"""gpucache trace: records what a running process does with GPU memory, for a time."""
import json
import os
import re
import signal
import time

from gpucache import ask, gpu, machine, options, recording, setting, state, text, trace
from gpucache.fault import DONE, NOT_DONE, Fault, complain, end_in_order, hold_endings, reason

TRACE, TRACE_ON = setting.TRACES
STEP_S = 0.2
LOOK_S = 1.0
PID_MOST = 0xffffff  # of a record
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


def _change(process, *pairs):
    """Sets options in one request: no other comes in between. What became of each, by name. Faults
    with the library's words, but for an option that it has not."""
    found = dict(zip([name for name, _ in pairs], setting.request(process, pairs)))
    why = found.get(TRACE, {}).get("why")
    if why:
        raise Fault(f"PID {process.pid}: {text.printable(str(why))}")
    return found


class Oom:
    """GPUCACHE_TRACE_ON=oom, which a trace that is asked for interrupts."""

    def __init__(self, process):
        self.process = process
        told = process.options()
        name = told.get("TRACE", "none")
        if told.get("TRACE_ON") == "oom" and (UNFIT.search(name) or
                                              len(os.fsencode(name)) > SHOWN_BYTES):
            raise Fault(f"PID {process.pid}: it waits for the end of memory with a file {name}, "
                        "which could not be set again afterwards")
        # The file goes first: TRACE_ON=start would begin a trace in it.
        found = _change(process, (TRACE, "none"), (TRACE_ON, "start"))
        self.is_on = found.get(TRACE_ON, {}).get("old") == "oom"
        self.path = str(found[TRACE].get("old") or "none") if self.is_on else "none"

    def end(self):
        """Ends the trace, as TRACE_ON=oom does. The process waits for the end of memory as before.
        """
        _change(self.process, *([(TRACE_ON, "oom")] if self.is_on else []), (TRACE, self.path))

    def words(self):
        """What was so before, and is no longer."""
        return f"; before, it waited for the end of memory: gpucache set {self.process.pid} " \
               f"TRACE_ON=oom TRACE={self.path} makes it do so" * self.is_on


class Beside:
    """What NVML says meanwhile, each second: of the process, and of others where that changes."""

    def __init__(self, process):
        self.pid, self.rows, self.next = process.pid, [], 0.0
        self.gpus = gpu.Gpus(stays=True)
        self.others, self.names = {}, {}  # (pid, uuid) -> bytes; pid -> name

    def look(self):
        now = time.monotonic()
        if self.gpus.why or now < self.next:
            return
        self.next = now + LOOK_S
        self.gpus.refresh()
        if self.gpus.why:
            return
        now_ns, others = time.monotonic_ns(), {}
        whole = {its["uuid"]: its["used_bytes"] or 0 for its in self.gpus.devices}
        for its in self.gpus.processes:
            pid, uuid, used = its["pid"], its["gpu_uuid"], its["used_bytes"]
            if pid == self.pid and used:
                self.rows.append((now_ns, uuid, used, whole.get(uuid, 0), 0, ""))
            elif pid != self.pid and used and 0 < pid <= PID_MOST:
                others[pid, uuid] = used
        for (pid, uuid), used in {**dict.fromkeys(self.others, 0), **others}.items():
            if self.others.get((pid, uuid), 0) != used:
                self.rows.append((now_ns, uuid, used, whole.get(uuid, 0), pid, self._name(pid)))
        self.others = others

    def _name(self, pid):
        if not self.names.get(pid):
            self.names[pid] = machine.name_of(pid)
        return self.names[pid]

    def write(self, path):
        """Behind the trace, which has ended. Of no others, if NVML lists the process itself by
        another number than the one that it has here."""
        self.gpus.close()
        rows = self.rows if any(not row[4] for row in self.rows) else []
        with trace.Trace(path) as its:
            its.add(rows)


def _begin(process, path):
    if _change(process, (TRACE, options.pattern(path)))[TRACE].get("note"):
        raise Fault(f"PID {process.pid}: it could not write {path}; its log says why")
    if not os.path.exists(path):
        raise Fault(f"PID {process.pid}: it could write {path}, but the file is not here: the "
                    "process sees other folders")


def _told_ns(path):
    """When the process last wrote the time into the trace. None: that is not to be known."""
    try:
        with trace.Trace(path) as its:
            return its.told_ns
    except Fault:
        return None


def _end(process, path, oom):
    """Ends the trace in `path`, and no other. False: a line says why that was not as asked."""
    try:
        its = recording.of(state.one(process.pid))
        if its and its != recording.shown(path):
            complain(f"PID {process.pid}: another trace took its place{oom.words()}")
            return False
        before = _told_ns(path)
        oom.end()
        # The end of a trace that goes on writes it.
        if before is not None and _told_ns(path) == before and not _has_ended(process.pid):
            complain(f"PID {process.pid}: the trace had ended before; the log of the process says "
                     "why")
            return False
    except (Fault, OSError) as error:
        if not _has_ended(process.pid):
            complain(f"PID {process.pid}: it may go on recording: {error}; gpucache set "
                     f"{process.pid} TRACE=none ends it")
            return False
    return True


def show(args):
    with ask.Line(state.one(args.pid, fresh=False).page) as line:
        return _show(args, line.claim())


def _show(args, may):
    process = state.one(args.pid)
    if process.status != "running":
        raise Fault(f"PID {args.pid}: it has ended")
    path, other = _path(args, process), recording.of(process)
    if other:
        raise Fault(f"PID {args.pid}: it records a trace already, in {other}: gpucache set "
                    f"{args.pid} TRACE=none ends it")
    if not may:
        raise Fault(f"PID {args.pid}: another gpucache trace records it at this moment")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_in_order()
    hold_endings(True)
    oom, beside, is_whole = Oom(process), None, False
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
        is_whole = _end(process, path, oom)
        hold_endings(False)
    try:
        if beside:
            beside.write(path)
        size = os.path.getsize(path)
    except OSError as error:
        raise Fault(f"{path}: {reason(error)}") from None
    print(json.dumps({"file": path, "bytes": size}) if args.json else
          f"{path}: {text.size(size)}; gpucache report {path} shows it")
    return DONE if is_whole else NOT_DONE


def _has_ended(pid):
    return ask.process.has_ended(pid)
