# SPDX-License-Identifier: BSD-2-Clause
"""A process leaves the GPU as a whole, by the driver's checkpoint, and comes back: how long that
takes, what is left, and what each of many calls does as the first one. park_cycle.c and
park_whole.c are the processes."""
import ctypes
import os
import select
import tempfile
import time

import part_flush
import suite as base
from parked import GIB, MIB, Ended, Parked, Talker, ending, one_gpu, parked_bytes, program

ANSWER_S = 2    # what has not answered by then blocks


def options_of(suite, shared):
    """What processes need besides, to share simulated devices, with an NVML for them."""
    if not suite.simulate:
        return {}
    folders = [suite.bare_env["LD_LIBRARY_PATH"], os.path.join(suite.simulate, "tests/sim/nvml")]
    return {**shared, "SIM_CTX_BYTES": str(300 * MIB), "SIM_CHECKPOINTED": "segv",
            "LD_LIBRARY_PATH": ":".join(folders)}


def leave(p):
    """The process leaves the GPU; the reply. base.Skip: it is refused."""
    code, reply, _ = p.ask("park whole=1")
    if code != p.tables.PAGE_REPLY_DONE:
        raise base.Skip(f"it does not leave: {reply.get('why', reply)}")
    return reply


def is_whole(p):
    p.ask("look")
    return bool(p.page.state()[0].get("park", {}).get("whole"))


def large(suite, name, p, observer, before):
    """One way out and back of much memory. before: what was free without the process."""
    reply = leave(p)
    seen = observer.settled(at_least=before - 8 * MIB)
    start = time.monotonic()
    wrong = p.do("check")
    back = time.monotonic() - start
    suite.row(f"{name}: {parked_bytes(reply) / GIB:.1f} GiB out; back, and checked", "",
              f"{reply['ns'] / 1e9:.2f} s; {back:.2f} s",
              verdict=f"measured: the checkpoint freed {reply['whole_bytes'] // MIB} MiB more")
    suite.row(f"{name}: left on the GPU", "", base.mebibytes(before - seen),
              verdict="ok" if seen >= before - 8 * MIB else "FAIL: memory stays")
    suite.row(f"{name}: contents", verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")


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
    suite.row(f"the driver's checkpoint alone, {size / GIB:g} GiB: out, back", "",
              f"{took[0] + took[1]:.2f} s, {took[2] + took[3]:.2f} s", verdict="measured")


def first_call(p, index):
    """The name of a call, and what it did as the first one."""
    leave(p)
    p.say(f"call {index}")
    answers = select.select([p.process.stdout], [], [], ANSWER_S)[0]
    if not answers:
        p.ask("wake")
    name, code, _ = p.hear(10).split()
    how = ("blocked until a request woke it" if not answers else "was answered" if is_whole(p)
           else "woke")
    p.ask("wake")
    return name if code == "0" else f"{name} (error {code})", how


def first_calls(suite, start):
    done = {"woke": [], "was answered": [], "blocked until a request woke it": [],
            "ended the process": []}
    with ending(start()) as listed:
        for index in range(int(listed[0].do("calls"))):
            try:
                name, how = first_call(listed[-1], index)
            except Ended as ended:
                name, how = f"call {index} of park_whole.def ({ended})", "ended the process"
                listed.append(start())
            done[how].append(name)
        wrong = listed[-1].do("check")
    for how, names in done.items():
        if names:
            suite.log(f"{how}: {', '.join(names)}")
            suite.row(f"first calls: {how}", "", str(len(names)),
                      verdict=f"measured: {', '.join(names)[:100]}")
    suite.row("first calls: contents", verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")


def park_whole(suite):
    size, small = (GIB // 8, 0) if suite.simulate else (24 * GIB, 8 * GIB)
    runtime = suite.compile("park_whole", ["park_whole.c"], static_cudart=True)
    with tempfile.TemporaryDirectory() as folder, one_gpu(suite) as shared:
        options = options_of(suite, shared)
        observer = part_flush.Observer(suite, dict(suite.bare_env, **options))
        try:
            for name, path in ("driver", program(suite)), ("static runtime", runtime):
                before = observer.settled()
                with ending(Parked(suite, folder, [path], "started", **options)) as (p, ):
                    p.do(f"fill {size // MIB}")
                    large(suite, name, p, observer, before)
        finally:
            observer.close()
        if small:
            alone(suite, small)
        first_calls(suite, lambda: Parked(suite, folder, [runtime], "started",
                                          **options))
