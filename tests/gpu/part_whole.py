# SPDX-License-Identifier: BSD-2-Clause
"""A process leaves the GPU as a whole, by the driver's checkpoint, and comes back: how long that
takes, what is left, what each of many calls does as the first one, and what happens where there is
no room to come back. park_cycle.c, park_whole.c and work_sleep.py are the processes.

With --verbose each step is told as it begins. No step waits longer than its bound: then stuck.py
tells where the process is, the process is killed, and the next case begins."""
import contextlib
import os
import re
import select
import subprocess
import sys
import tempfile
import time

import part_flush
import part_frameworks as frameworks
import stuck
import suite as base
from parked import (GIB, MIB, Ended, Parked, Talker, ending, on_target, one_gpu, parked_bytes,
                    program)

LEFT_BYTES = 8 * MIB        # the driver's figures jump by so much
STEP_S, START_S = 25, 45    # bounds
TELL_S = 12                 # a step that takes so long is told with the stacks
WAITS_S, EXIT_S = 1.5, 30   # it waits for room by then; an exit has ended by then
LEAVES_S = 4                # an exit with a short GPUCACHE_PARK_WAIT has ended by then
PART_S = 165                # no case begins later
MUCH_S = 1.8, 1.3           # targets of 24 GiB: out, and back with the check
NEEDS = "(570)", "MIG", "MPS"
TRAINED = "PyTorch, out before each step"
# In a process of its own, because a driver may not return. NVML may list no process, or others.
USED = """import sys; sys.path.insert(0, sys.argv[1])
from gpucache import nvml
n = nvml.Nvml(); n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    for p in n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(i)):
        print(p.pid, p.usedGpuMemory or 0)"""

CHECKPOINT = """import ctypes, sys, time
cuda, limit_ms = ctypes.CDLL("libcuda.so.1"), (ctypes.c_uint64 * 8)(10000)
cuda.cuInit(0)
for step, args in ("Lock", limit_ms), ("Checkpoint", None), ("Restore", None), ("Unlock", None):
    start = time.monotonic()
    code = getattr(cuda, "cuCheckpointProcess" + step)(int(sys.argv[1]), args)
    print(step, code, time.monotonic() - start)"""

# Makes such a step for each line of its input.
STEPS = """import ctypes, sys
cuda, limit_ms = ctypes.CDLL("libcuda.so.1"), (ctypes.c_uint64 * 8)(10000)
print("ready", cuda.cuInit(0), flush=True)
for line in sys.stdin:
    step = getattr(cuda, "cuCheckpointProcess" + line.strip())
    print(step(int(sys.argv[1]), limit_ms if line.strip() == "Lock" else None), flush=True)"""


class Late(Exception):
    """A step passed its bound. The process is killed."""


class Process(Parked):
    """A process under the library; each step with it is told and has a bound."""

    def __init__(self, suite, folder, command, ready="ready", **options):
        self.suite, self.pages = suite, os.path.join(folder, "pages")
        self.tell("starts")
        super().__init__(suite, folder, command, ready, GPUCACHE_LOG="info", **options)
        self.tell("has started")

    def tell(self, words):
        if self.suite.verbose:
            pid = self.process.pid if hasattr(self, "process") else "-"
            self.suite.log(f"  {time.monotonic() - self.suite.start:.1f} s    {pid} {words}")

    def late(self, step, seconds):
        self.process.kill()
        raise Late(f"{step}: not over in {seconds:g} s")

    def wait(self, step, is_over, seconds):
        """is_over waits a moment, and says whether the step is."""
        start, told = time.monotonic(), False
        while not is_over():
            took = time.monotonic() - start
            if took > TELL_S and not told:
                told = True
                self.suite.log(f"  {step}: not over in {took:.0f} s")
                stuck.tell(self.suite, self.process.pid, self.pages)
            if took > seconds:
                self.late(step, seconds)

    def say(self, line):
        self.said_last = line
        self.tell(line)
        super().say(line)

    def hear(self, seconds=STEP_S):
        limit = min(seconds, STEP_S) if self.page else START_S
        self.wait(self.said_last if self.page else "start",
                  lambda: select.select([self.process.stdout], [], [], 0.5)[0], limit)
        return super().hear(limit)

    def do(self, line, seconds=STEP_S):
        return super().do(line, seconds)

    def ask(self, words, seconds=STEP_S):
        self.tell(f"is asked: {words}")
        start = time.monotonic()
        slot, got = self.page.put_ask(words), []

        def is_over():
            with contextlib.suppress(TimeoutError):
                got.extend(self.page.await_reply(*slot, 0.5))
            if not got and self.process.poll() is not None:
                raise Ended(f"{words}: it ended with status {self.process.poll()}")
            return got
        self.page.ring()
        self.wait(words, is_over, seconds)
        code, _, reply = got
        self.tell(f"{words}: {code} {reply.get('why', reply.get('state', ''))}, "
                  f"{time.monotonic() - start:.2f} s")
        return code, reply, time.monotonic() - start

    def end(self, seconds=EXIT_S):
        """None: it did not end by itself."""
        self.tell("is to end")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

        def is_over():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
            return self.process.poll() is not None
        with contextlib.suppress(Late):
            self.wait("exit", is_over, seconds)
        status = self.process.poll()
        super().end()
        self.tell(f"has ended: {status}")
        return status


class Observer(part_flush.Observer):
    def __init__(self, suite, env):
        self.env = env
        super().__init__(suite, env)

    def hear(self, seconds=STEP_S):
        return super().hear(min(seconds, STEP_S))

    def settled(self, at_least=0):
        return super().settled(at_least=at_least, patience=10)


def options_of(suite, shared):
    """What processes need besides, to share simulated devices, with an NVML for them."""
    if not suite.simulate:
        return {}
    folders = [suite.bare_env["LD_LIBRARY_PATH"], os.path.join(suite.simulate, "tests/sim/nvml")]
    return {**shared, "SIM_CAPACITY": "2560M", "SIM_CTX_BYTES": str(300 * MIB),
            "SIM_CHECKPOINTED": "segv", "LD_LIBRARY_PATH": ":".join(folders)}


def sound(suite, name, wrong):
    suite.row(name, verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")


def leave(p):
    """The process leaves the GPU; the reply. base.Skip: no process can leave this one."""
    code, reply, _ = p.ask("park whole=1")
    if code == p.tables.PAGE_REPLY_DONE and reply.get("whole"):
        return reply
    why = f"it does not leave: {reply.get('why', reply)}"
    raise (base.Skip if any(word in why for word in NEEDS) else RuntimeError)(why)


def park_of(p):
    p.ask("look")
    return p.page.state()[0].get("park", {})


def used_bytes(suite, pid):
    """Device memory of a process, as NVML tells; None: it tells nothing of it."""
    if suite.simulate:
        return None
    scripts = os.path.join(base.ROOT, "scripts")
    done = suite.run([sys.executable, "-c", USED, scripts], timeout=STEP_S)
    listed = dict(line.split() for line in done.out.splitlines()) if done.rc == 0 else {}
    return int(listed[str(pid)]) if str(pid) in listed else None


def alone(suite, name, shared, mib):
    """The driver's checkpoint of such memory, without the library, by another process."""
    env = dict(suite.bare_env, **shared)
    with ending(Talker([program(suite)], env, "started", START_S)) as (p,):
        p.do(f"fill {mib}", START_S)
        done = suite.run([sys.executable, "-c", CHECKPOINT, str(p.process.pid)], env, 60)
        steps = [line.split() for line in done.out.splitlines()]
        for step in steps:
            suite.log(f"    {' '.join(step)}")
        wrong = [f"{step} answers {code}" for step, code, _ in steps if code != "0"]
        if done.rc != 0 or wrong:
            raise base.Skip("; ".join(wrong) or frameworks.last_line(done))
        took = [float(seconds) for _, _, seconds in steps]
        suite.row(f"{name}: out; back", f"{took[0] + took[1]:.2f} s; {took[2] + took[3]:.2f} s")
        sound(suite, f"{name}: contents", p.do("check"))


def away_and_back(suite, name, p, observer, before, back, targets=(None, None)):
    """Out, and back by `back`; before: what was free without the process. targets: out and back, in
    seconds."""
    listed = used_bytes(suite, p.process.pid)
    reply = leave(p)
    seen = observer.settled(before - LEFT_BYTES)
    left = used_bytes(suite, p.process.pid) if listed else None
    begun = time.monotonic()
    wrong = back(p)
    out_s, back_s = reply["ns"] / 1e9, time.monotonic() - begun
    suite.row(f"{name}: {parked_bytes(reply) / GIB:.1f} GiB out; back, and checked", "",
              f"{out_s:.2f} s; {back_s:.2f} s",
              verdict=f"measured: {reply['room_ns'] / 1e9:.2f} s for room, "
                      f"{reply['copy_ns'] / 1e9:.2f} s for copies; the checkpoint freed "
                      f"{reply['whole_bytes'] // MIB} MiB more"
                      f"{on_target(suite, out_s, targets[0], 'out')}"
                      f"{on_target(suite, back_s, targets[1], 'back')}")
    suite.row(f"{name}: left on the GPU", base.mebibytes(listed or 0),
              base.mebibytes(max(left or 0, before - seen)),
              verdict="FAIL: memory stays" if left or seen < before - LEFT_BYTES else "ok")
    sound(suite, f"{name}: contents", wrong)


def wake_and_check(p):
    code, reply, _ = p.ask("wake")
    return p.do("check") if code == p.tables.PAGE_REPLY_DONE else f"it does not wake: {reply}"


def smallest(suite, start, observer):
    before = observer.settled()
    with ending(start()) as (p, ):
        away_and_back(suite, "64 MiB, by a request", p, observer, before, wake_and_check)
        away_and_back(suite, "64 MiB, by a use", p, observer, before, lambda p: p.do("check"))


def two(suite, start):
    """Both are away at once."""
    with ending(start()) as listed:
        leave(listed[0])
        listed.append(start())
        leave(listed[1])
        for number, p in enumerate(reversed(listed), 1):
            sound(suite, f"two at once: contents of number {number}", p.do("check"))


def large(suite, start, observer):
    before = observer.settled()
    with ending(start()) as (p, ):
        for name in "much memory", "much memory, again":
            away_and_back(suite, name, p, observer, before, lambda p: p.do("check"), MUCH_S)


def exits(suite, start):
    with ending(start()) as (p, ):
        leave(p)
        begun = time.monotonic()
        p.say("end")
        status = p.end()
        suite.row("an exit while it is out", "", base.seconds(time.monotonic() - begun),
                  verdict="ok" if status == 0 else f"FAIL: status {status}")


def trained(suite, folder):
    """PyTorch, out before each step."""
    rounds = 3 if suite.quick else 8
    command = [frameworks.python_with(suite, "torch"), frameworks.script("work_sleep.py")]
    bare = suite.run(command, None, 60, b"step\n" * rounds + b"end\n")
    if bare.rc != 0:
        raise base.Skip(f"the training fails bare: {frameworks.last_line(bare)}")
    outs, backs, wrong = [], [], 0
    with ending(Process(suite, folder, command)) as (p, ):
        listed = used_bytes(suite, p.process.pid)
        for loss in bare.out.split("\n")[1:rounds + 1]:
            outs.append(leave(p)["ns"] / 1e9)
            left = used_bytes(suite, p.process.pid) if listed and len(outs) == 1 else 0
            begun = time.monotonic()
            wrong += p.do("step") != loss
            backs.append(time.monotonic() - begun)
            wrong += bool(left)
    suite.row(f"{TRAINED}: {rounds} times", base.mebibytes(listed or 0),
              f"{max(outs):.2f} s; {max(backs):.2f} s",
              verdict=f"FAIL: {wrong} losses differ, or memory stays" if wrong else
              "ok: equal losses")


def first_call(p, index, answer_s):
    """What a call did as the first one."""
    leave(p)
    p.say(f"call {index}")
    answers = select.select([p.process.stdout], [], [], answer_s)[0]
    if not answers:
        p.ask("wake")
    _, code, _ = p.hear().split()
    how = ("blocked until a request woke it" if not answers else
           "was answered" if park_of(p).get("whole") else "woke")
    p.ask("wake")
    return how if code == "0" else f"{how}: error {code}"


def first_calls(suite, start, end):
    """Calls of the CUDA runtime come back by themselves. Of the driver's functions that no table of
    the library has, some do not."""
    done = {}
    with ending(start()) as listed:
        names = listed[0].do("calls").split()
        for index, name in enumerate(names):
            if time.monotonic() > end:
                done.setdefault("left out, no time", []).append(name)
                continue
            try:
                how = first_call(listed[-1], index, 12 if name.startswith("cuda") else 1)
            except (Ended, Late) as ended:
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


def locked(suite, start, env):
    """Another process locks it, and takes a checkpoint. Requests say so at once."""
    with ending(start()) as listed:
        p = listed[0]
        listed.append(Talker([sys.executable, "-c", STEPS, str(p.process.pid)], env))
        for steps in ("Lock", "Unlock"), ("Lock", "Checkpoint", "Restore", "Unlock"):
            for number, step in enumerate(steps):
                code = listed[1].do(step)
                if code != "0":
                    raise base.Skip(f"{step} answers {code}")
                if number >= len(steps) // 2:
                    continue
                for words in "park", "park whole=1", "wake":
                    code, reply, seconds = p.ask(words)
                    said = reply.get("why", reply)
                    right = code == p.tables.PAGE_REPLY_REFUSED and "locked" in said
                    suite.row(f"{step}ed by another process: {words}", "", base.seconds(seconds),
                              verdict=f"ok: {said}" if right else f"FAIL: {code}, {said}")
        code, reply, _ = p.ask("park")
        suite.row("unlocked: park", verdict="ok" if code == p.tables.PAGE_REPLY_DONE else
                  f"FAIL: {code}, {reply}")
        sound(suite, "unlocked: contents", p.do("check"))


def hog(suite, observer):
    """A process, without the library, that takes what a restore needs. It has a context, too."""
    taken = observer.settled() - GIB * 3 // 2
    p = Talker([program(suite)], observer.env, "started", START_S)
    p.do(f"fill {taken // MIB}", START_S)
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


def end_without_room(suite, name, start, wait, observer):
    """It waits for room, because the driver's own handlers come next. What these do in a process
    that has nothing on the GPU is measured."""
    with ending(start(wait=wait)) as listed:
        p = listed[0]
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
                  f"{'ok' if status == 0 else 'FAIL'}: status {status}, once there was room")


def tried(suite, end, name, part, *arguments):
    """A process that ends before its time, or does not go on, fails its own case alone."""
    if time.monotonic() > end:
        suite.row(name, verdict="skip: no time is left")
        return
    if suite.verbose:
        suite.log(f"  {time.monotonic() - suite.start:.1f} s  -- {name}")
    try:
        part(suite, *arguments)
    except base.Skip as reason:
        suite.row(name, verdict=f"skip: {reason}")
    except (Ended, Late, OSError, RuntimeError, TimeoutError) as reason:
        suite.row(name, verdict=f"FAIL: {reason}")


def whole(suite):
    end = time.monotonic() + PART_S
    size = GIB // 8 if suite.simulate else 24 * GIB
    with tempfile.TemporaryDirectory() as folder, one_gpu(suite) as shared, \
            contextlib.ExitStack() as stack:
        options = options_of(suite, shared)

        def start(path=program(suite), mib=64, wait="10m"):
            p = Process(suite, folder, [path], "started", GPUCACHE_PARK_WAIT=wait, **options)
            p.do(f"fill {mib}")
            return p

        def case(name, part, *arguments):
            tried(suite, end, name, part, *arguments)

        case("the driver alone", alone, "the driver alone, 64 MiB", options, 64)
        observer = Observer(suite, dict(suite.bare_env, **options))
        stack.callback(observer.end)
        case("64 MiB", smallest, start, observer)
        case("two at once", two, start)
        case("a process that is locked", locked, start, dict(suite.bare_env, **options))
        case("an exit while it is out", exits, start)
        case("much memory", large, lambda: start(mib=size // MIB), observer)
        case("the driver alone, much memory", alone, f"the driver alone, {size / GIB:g} GiB",
             options, size // MIB)
        case(TRAINED, trained, folder)
        case("first calls", first_calls, lambda: start(suite.compile(
            "park_whole", ["park_whole.c"], static_cudart=True)), end)
        case("no room", without_room, start, observer)
        case("no room: an exit", end_without_room, "no room: an exit", start, "10m", observer)
        case("no room: an exit after the wait", end_without_room,
             "no room: an exit after the wait", start, "1s", observer)
