# SPDX-License-Identifier: BSD-2-Clause
"""A process leaves the GPU as a whole, by the driver's checkpoint, and comes back: how long that
takes, what is left, what each of many calls does as the first one, and what happens where there is
no room to come back. park_cycle.c, park_whole.c and work_sleep.py are the processes."""
import ctypes
import os
import select
import sys
import tempfile
import time

import part_cycle
import part_flush
import part_frameworks as frameworks
import suite as base
from parked import GIB, MIB, Ended, Parked, Talker, ending, one_gpu, parked_bytes, program

sys.path.insert(0, os.path.join(base.ROOT, "scripts"))
from gpucache import nvml  # noqa: E402

LEFT_BYTES = 8 * MIB        # the driver's figures jump by so much
WAITS_S, EXIT_S = 1.5, 30   # it waits for room by then; an exit has ended by then
LEAVES_S = 5                # an exit with a short GPUCACHE_PARK_WAIT has ended by then
NEEDS = "(570)", "MIG", "MPS"
TRAINED = "PyTorch, out before each step"


def options_of(suite, shared):
    """What processes need besides, to share simulated devices, with an NVML for them."""
    if not suite.simulate:
        return {}
    folders = [suite.bare_env["LD_LIBRARY_PATH"], os.path.join(suite.simulate, "tests/sim/nvml")]
    return {**shared, "SIM_CAPACITY": "4G", "SIM_CTX_BYTES": str(300 * MIB),
            "SIM_CHECKPOINTED": "segv", "LD_LIBRARY_PATH": ":".join(folders)}


def sound(suite, name, wrong):
    suite.row(name, verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")


def leave(p):
    """The process leaves the GPU; the reply. base.Skip: no process can leave this one."""
    code, reply, _ = p.ask("park whole=1")
    if code == p.tables.PAGE_REPLY_DONE:
        return reply
    why = f"it does not leave: {reply.get('why', reply)}"
    raise (base.Skip if any(word in why for word in NEEDS) else RuntimeError)(why)


def park_of(p):
    p.ask("look")
    return p.page.state()[0].get("park", {})


def used_bytes(pid):
    """Device memory of a process, as NVML tells; 0: it lists others only; None: it lists none."""
    library = nvml.Nvml()
    library.nvmlInit()
    listed = [found for number in range(library.nvmlDeviceGetCount()) for found in
              library.nvmlDeviceGetComputeRunningProcesses(library.nvmlDeviceGetHandleByIndex(
                  number))]
    library.nvmlShutdown()
    return sum(found.usedGpuMemory or 0 for found in listed if found.pid == pid) if listed else None


def row_of_nvml(suite, name, pid, before):
    if suite.simulate or not before:
        suite.row(name, verdict="skip: NVML does not list the process")
        return
    after = used_bytes(pid)
    suite.row(name, base.mebibytes(before), base.mebibytes(after or 0),
              verdict="FAIL: memory stays" if after else "ok")


def large(suite, name, start, observer):
    """One way out and back of much memory."""
    before = observer.settled()
    with ending(start()) as (p, ):
        listed = None if suite.simulate else used_bytes(p.process.pid)
        reply = leave(p)
        seen = observer.settled(at_least=before - LEFT_BYTES)
        row_of_nvml(suite, f"{name}: of the process, by NVML", p.process.pid, listed)
        begun = time.monotonic()
        wrong = p.do("check")
        back = time.monotonic() - begun
    suite.row(f"{name}: {parked_bytes(reply) / GIB:.1f} GiB out; back, and checked", "",
              f"{reply['ns'] / 1e9:.2f} s; {back:.2f} s",
              verdict=f"measured: the checkpoint freed {reply['whole_bytes'] // MIB} MiB more")
    suite.row(f"{name}: left on the GPU", "", base.mebibytes(before - seen),
              verdict="ok" if seen >= before - LEFT_BYTES else "FAIL: memory stays")
    sound(suite, f"{name}: contents", wrong)


def alone(suite, size):
    """The driver's checkpoint of such memory, without the library, by its parent."""
    library = ctypes.CDLL(suite.libcuda)
    library.cuInit(0)
    with ending(Talker([program(suite)], suite.bare_env, "started")) as (p, ):
        p.do(f"fill {size // MIB}")
        took = []
        for name in "Lock", "Checkpoint", "Restore", "Unlock":
            limit = (ctypes.c_uint * 16)(5000) if name == "Lock" else None  # in ms
            start = time.monotonic()
            code = getattr(library, f"cuCheckpointProcess{name}")(p.process.pid, limit)
            if code:
                suite.row("the driver's checkpoint alone", verdict=f"skip: {name}: error {code}")
                return
            took.append(time.monotonic() - start)
    suite.row(f"the driver's checkpoint alone, {size / GIB:g} GiB: out; back", "",
              f"{took[0] + took[1]:.2f} s; {took[2] + took[3]:.2f} s", verdict="measured")


def hog(suite, observer):
    """A process, without the library, that takes what a restore needs. It has a context, too."""
    taken = observer.settled() - GIB * 3 // 2
    p = Talker([program(suite)], observer.env, "started")
    p.do(f"fill {taken // MIB}")
    return p


def without_room(suite, start, observer):
    """While another process has the memory that a restore takes, no restore is tried."""
    with ending(start()) as listed:
        p = listed[0]
        leave(p)
        listed.append(hog(suite, observer))
        code, reply, seconds = p.ask("wake")
        refused = code == p.tables.PAGE_REPLY_REFUSED and "lacks memory" in reply.get("why", "")
        suite.row("no room: a request", "", base.seconds(seconds),
                  verdict=f"ok: {reply['why']}" if refused else f"FAIL: {reply}")
        p.say("check")
        time.sleep(WAITS_S)
        state = park_of(p)
        suite.row("no room: a use", verdict="ok: it waits" if state.get("state") == "waits" and
                  state.get("whole") else f"FAIL: {state}")
        listed.pop().end()
        begun = time.monotonic()
        wrong = p.hear()
        suite.row("no room: back once there is", "", base.seconds(time.monotonic() - begun))
        sound(suite, "no room: contents", wrong)


def exits(suite, start):
    p = start()
    leave(p)
    begun = time.monotonic()
    p.say("end")
    status = p.end()
    seconds = time.monotonic() - begun
    suite.row("an exit while it is out", "", base.seconds(seconds),
              verdict="ok" if status == 0 and seconds < EXIT_S else f"FAIL: status {status}")


def ends_without_room(suite, start, observer):
    """It waits for room, because the driver's own handlers come next. What these do in a process
    that has nothing on the GPU is measured."""
    for name, wait in ("an exit", "10m"), ("an exit after the wait", "1s"):
        end_without_room(suite, f"no room: {name}", start(wait=wait), observer)


def end_without_room(suite, name, p, observer):
    with ending(p) as listed:
        leave(p)
        listed.append(hog(suite, observer))
        begun = time.monotonic()
        p.say("end")
        ended = None
        while ended is None and time.monotonic() < begun + LEAVES_S:
            time.sleep(0.1)
            ended = p.process.poll()
        listed.pop().end()
        status = p.end()
        suite.row(name, "", base.seconds(time.monotonic() - begun),
                  verdict=f"measured: status {status}, without room" if ended is not None else
                  f"{'FAIL' if status else 'ok'}: status {status}, once there was room")


def first_call(p, index, answer_s):
    """What a call did as the first one."""
    leave(p)
    p.say(f"call {index}")
    answers = select.select([p.process.stdout], [], [], answer_s)[0]
    if not answers:
        p.ask("wake")
    _, code, _ = p.hear(10).split()
    how = ("blocked until a request woke it" if not answers else
           "was answered" if park_of(p).get("whole") else "woke")
    p.ask("wake")
    return how if code == "0" else f"{how}: error {code}"


def first_calls(suite, start):
    """Calls of the CUDA runtime come back by themselves. Of the driver's functions that no table of
    the library has, some do not."""
    done = {}
    with ending(start()) as listed:
        names = listed[0].do("calls").split()
        for index, name in enumerate(names):
            try:
                how = first_call(listed[-1], index, 1.5 if suite.quick else 3)
            except Ended as ended:
                how = f"ended the process: {ended}"
                listed.append(start())
            done.setdefault(how, []).append(name)
        wrong = listed[-1].do("check")
    for how, found in sorted(done.items()):
        suite.log(f"{how}: {', '.join(found)}")
        bad = [name for name in found if name.startswith("cuda")] \
            if how.startswith(("blocked", "ended")) or "error" in how else []
        suite.row(f"first calls: {how}", "", str(len(found)),
                  verdict=f"FAIL: {', '.join(bad)}" if bad else
                  f"measured: {', '.join(found)[:100]}")
    sound(suite, "first calls: contents", wrong)


def trained(suite, folder):
    """PyTorch, out before each step."""
    rounds = 3 if suite.quick else 50
    command = [frameworks.python_with(suite, "torch"), frameworks.script("work_sleep.py")]
    wanted = part_cycle.losses(suite, command, rounds, {})
    outs, backs, wrong = [], [], 0
    with ending(Parked(suite, folder, command)) as (p, ):
        listed = used_bytes(p.process.pid)
        for loss in wanted:
            outs.append(leave(p)["ns"] / 1e9)
            if len(outs) == 1:
                row_of_nvml(suite, "PyTorch: of the process, by NVML", p.process.pid, listed)
            start = time.monotonic()
            wrong += p.do("step") != loss
            backs.append(time.monotonic() - start)
    suite.row(f"{TRAINED}: {rounds} times", "", f"{max(outs):.2f} s; {max(backs):.2f} s",
              verdict=f"FAIL: {wrong} losses differ" if wrong else "ok: equal losses")


def tried(suite, name, part, *arguments):
    """A process that ends before its time fails its own part alone."""
    try:
        part(suite, *arguments)
    except base.Skip as reason:
        suite.row(name, verdict=f"skip: {reason}")
    except (Ended, RuntimeError) as reason:
        suite.row(name, verdict=f"FAIL: {reason}")


def park_whole(suite):
    size, small = (GIB // 8, GIB // 8) if suite.simulate else (24 * GIB, 2 * GIB)
    runtime = suite.compile("park_whole", ["park_whole.c"], static_cudart=True)
    with tempfile.TemporaryDirectory() as folder, one_gpu(suite) as shared:
        options = options_of(suite, shared)

        def start(path=program(suite), mib=64, wait="10m"):
            p = Parked(suite, folder, [path], "started", GPUCACHE_PARK_WAIT=wait, **options)
            p.do(f"fill {mib}")
            return p

        observer = part_flush.Observer(suite, dict(suite.bare_env, **options))
        observer.env = dict(suite.bare_env, **options)
        try:
            tried(suite, "driver", large, "driver", lambda: start(mib=size // MIB), observer)
            tried(suite, "static runtime", large, "static runtime",
                  lambda: start(runtime, small // MIB), observer)
            if not suite.simulate:
                tried(suite, "alone", alone, size)
            tried(suite, "no room", without_room, start, observer)
            tried(suite, "an exit while it is out", exits, start)
            tried(suite, "no room: an exit", ends_without_room, start, observer)
        finally:
            observer.close()
        tried(suite, "first calls", first_calls, lambda: start(runtime))
        tried(suite, TRAINED, trained, folder)
