# SPDX-License-Identifier: BSD-2-Clause
"""Device memory of a process goes to the host and comes back (GPUCACHE_PARK): how long both take,
what an observer sees, and that no byte differs. park_cycle.c is the process."""
import concurrent.futures
import os
import statistics
import tempfile
import time

import part_flush
import part_frameworks as frameworks
import suite as base
from parked import GIB, MIB, Parked, ending, on_target, one_gpu, p99, program, speed, spread
from trainer import CACHE_OFF

SEEN_BYTES = 64 * MIB  # of what was free before, so much may be missing once all is parked
# Targets, for the sizes that a GPU is given
CANCEL_S = 0.003    # what a launch may wait that ends a park
UNCHANGED_S = 0.05  # a park of what has not changed since the last one
CHANGED_S = 0.5     # and of what has changed, all of it
FIRST_S = 0.9, 0.6  # the first park of 16 GiB, and back
MUCH_S = 3.3, 2.2   # a park of 60 GiB to the host, and back
LAUNCH_S = 0.05     # the first launch after a park of 64 MiB, p99

def holder(suite, folder, **options):
    return Parked(suite, folder, [program(suite)], "started", **options)


def large(suite, folder, size):
    """One park and one wake of much memory. Once the reply is there, the memory is: another process
    has its share at the first look."""
    with one_gpu(suite) as env, \
            ending(part_flush.Observer(suite, {**suite.bare_env, **env})) as (observer,):
        p = holder(suite, folder, **env)
        before = observer.settled()
        p.do(f"fill {size // MIB}")
        rss = int(p.do("rss"))
        full = observer.settled()
        parked, out, asked = p.park()
        seen = observer.free_bytes()
        host = int(p.do("rss"))
        back = int(p.do("touch")) / 1e9
        end = time.monotonic() + 30
        while (after := int(p.do("rss"))) > rss * 1.01 + 2048 and time.monotonic() < end:
            time.sleep(0.01)
        name = f"{size / GIB:g} GiB"
        suite.row(f"{name} out", "", speed(parked, out), verdict=f"measured: {asked:.3f} s for the "
                  f"asker{on_target(suite, out, FIRST_S[0])}")
        suite.row(f"{name} back, at a launch", "", speed(parked, back),
                  verdict=f"measured{on_target(suite, back, FIRST_S[1])}")
        suite.row(f"{name} seen as free at the reply", base.mebibytes(seen - full),
                  base.mebibytes(parked),
                  verdict="ok" if seen >= before - SEEN_BYTES else "FAIL: memory stays")
        suite.row(f"{name} host memory before, parked, after", "",
                  f"{rss >> 10}, {host >> 10}, {after >> 10} MiB",
                  verdict="ok" if after <= rss * 1.01 + 2048 else "FAIL: the process grew")
        wrong = p.do("check")
        suite.row(f"{name} contents", verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")
        p.end()


def places(suite, folder, size, rounds, where, targets=(None, None)):
    """What a park's time is made of once the machine has given the host memory: until there is room
    for the bytes, and behind the gate until they are copied. targets: out and back, medians."""
    for place in where:
        p = holder(suite, folder)
        p.do(f"fill {size // MIB}")
        p.set(f"PARK_TO={place}")
        took, backs, refused = [], [], ""
        for _ in range(rounds + 1):
            code, reply, _ = p.ask("park")
            if code != p.tables.PAGE_REPLY_DONE:
                refused = f"skip: {reply.get('why', reply)}"
                break
            took.append([reply[name] / 1e9 for name in ("ns", "room_ns", "copy_ns")])
            backs.append(int(p.do("touch")) / 1e9)
        for name, times in zip(("out", "of it, room", "of it, copies"), zip(*took[1:])):
            target = targets[0] if name == "out" else None
            suite.row(f"{size / GIB:g} GiB to {place}: {name}", "", spread(times),
                      verdict=f"measured: {rounds} times, and once before"
                              f"{on_target(suite, statistics.median(times), target)}")
        suite.row(f"{size / GIB:g} GiB to {place}: back", "",
                  spread(backs[1:]) if backs[1:] else "", verdict=refused or "measured" + (
                      on_target(suite, statistics.median(backs[1:]), targets[1])))
        wrong = p.do("check")
        suite.row(f"{size / GIB:g} GiB to {place}: contents",
                  verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")
        p.end()


def small(suite, folder, rounds):
    """The first launch after a park of 64 MiB."""
    p = holder(suite, folder)
    p.do("fill 64")
    waits = []
    for _ in range(rounds):
        p.park()
        waits.append(int(p.do("touch")) / 1e9)
    wrong = p.do("check")
    suite.row("64 MiB: first launch after a park", "", spread(waits),
              verdict=f"measured: {rounds} times{on_target(suite, p99(waits), LAUNCH_S)}")
    suite.row("64 MiB contents", verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")
    p.end()


def cancelled(suite, folder, size, rounds):
    """A launch that comes while memory is copied ends the park (shim/park/gate.h): how long it
    waits. The launches come at different moments of the copies."""
    p = holder(suite, folder)
    p.do(f"fill {size // MIB}")
    p.park()
    p.do("touch")
    _, reply, _ = p.ask("park")
    p.do("touch")
    waits = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for i in range(rounds):
            asked = pool.submit(p.ask, "park")
            time.sleep((reply["room_ns"] + reply["copy_ns"] * (i + 0.5) / rounds) / 1e9)
            took = int(p.do("touch")) / 1e9
            # Refused, because the program used the GPU: the launch came before the memory went.
            if asked.result()[0] == p.tables.PAGE_REPLY_REFUSED:
                waits.append(took)
    name = f"{size / GIB:g} GiB: a launch that ends a park"
    wrong = p.do("check")
    most = max(waits, default=0)
    suite.row(name, "", spread(waits) if waits else "", verdict=f"FAIL: {wrong}" if wrong != "sound"
              else f"measured: {len(waits)} of {rounds} parks; target {CANCEL_S * 1e3:.0f} ms, " + (
                  "none came in time" if not waits else "met" if most <= CANCEL_S else "MISSED"))
    p.end()


def cycles(suite, folder, size, rounds):
    """Parks and wakes, with changes in between."""
    p = holder(suite, folder)
    p.do(f"fill {size // MIB}")
    failure, start = "", time.monotonic()
    for i in range(rounds):
        p.park()
        if i % 2:
            p.do("change")
        wrong = p.do("check")
        if wrong != "sound":
            failure = failure or f"FAIL: {wrong} in round {i}"
    suite.row(f"{rounds} cycles of {size / GIB:g} GiB with changes", "",
              base.seconds((time.monotonic() - start) / rounds), verdict=failure or "ok")
    p.end()


def retained(suite, folder, size):
    """GPUCACHE_PARK=retain: what has not changed is not copied again."""
    p = holder(suite, folder, GPUCACHE_PARK=f"ask,retain:{2 * size}")
    p.do(f"fill {size // MIB}")
    rounds = 2 if suite.simulate else 20
    # A launch that wakes writes one word, and a check counts in it.
    few = 4 * MIB
    for name, command, least, most in (("first", "rss", size, 2 * size),
                                       ("again, nothing changed", "rss", 0, few),
                                       ("again, all changed", "refill", size, 2 * size),
                                       ("one byte changed", "poke", 2 * MIB, 2 * MIB + few),
                                       ("again, nothing changed after a check", "rss", 0, few)):
        p.do(command)
        _, reply, _ = p.ask("park")
        parked, copied = (sum(gpu[n] for gpu in reply["gpus"])
                          for n in ("parked_bytes", "copied_bytes"))
        out = reply["ns"] / 1e9
        back = int(p.do("touch")) / 1e9
        target = CHANGED_S if name == "again, all changed" else None
        suite.row(f"{size / GIB:g} GiB retained, {name}: out, back", "",
                  f"{speed(parked, out)}; {back:.3f} s; {copied / MIB:.0f} MiB copied",
                  verdict=f"ok{on_target(suite, out, target)}" if least <= copied <= most else
                  "FAIL: wrong amount")
        if name == "again, nothing changed":
            replies = [reply]
            while len(replies) < rounds:
                replies.append(p.ask("park")[1])
                p.do("touch")
            outs = [its["ns"] / 1e9 for its in replies]
            suite.row(f"{size / GIB:g} GiB retained, nothing changed: out", "", spread(outs),
                      verdict=f"measured: {rounds} times; target {UNCHANGED_S * 1e3:.0f} ms, "
                      f"{'met' if statistics.median(outs) <= UNCHANGED_S else 'MISSED'}")
            suite.row(f"{size / GIB:g} GiB retained, nothing changed: of it, what tells so", "",
                      spread([its["copy_ns"] / 1e9 for its in replies]), verdict="measured")
        if name.startswith(("again, all", "one byte")):
            wrong = p.do("check")
            suite.row(f"{size / GIB:g} GiB retained, {name}: contents",
                      verdict="ok" if wrong == "sound" else f"FAIL: {wrong}")
    rss = int(p.do("rss"))
    code, _, _ = p.ask("wake drop=1")
    after = int(p.do("rss"))
    wrong = p.do("check")
    suite.row(f"{size / GIB:g} GiB retained, host memory, after wake --drop", "",
              f"{rss >> 10}, {after >> 10} MiB",
              verdict="ok" if code == p.tables.PAGE_REPLY_DONE and wrong == "sound" and
              after < rss - size // 2048 else f"FAIL: {wrong}")
    p.end()


def device_graph(suite, folder):
    """A park beside a graph that a kernel launched."""
    if not suite.nvcc:
        suite.row("a graph that a kernel launches", verdict="skip: no nvcc")
        return
    p = Parked(suite, folder, [suite.compile_cuda("park_device_graph", "-rdc=true", "-lcudadevrt")])
    for how in "child", "sibling", "tail":
        said = p.do(how)
        code, reply, _ = p.ask("park wait=100")
        refused = code == p.tables.PAGE_REPLY_REFUSED and reply.get("why") == "GPU work still runs"
        wrong = p.do("check")
        p.park()
        wrong = [words for words in (wrong, p.do("check")) if words != "sound"]
        suite.row(f"a graph that a kernel launches, {how}", verdict=f"FAIL: {said}, {code}, {reply}"
                  if said != "launched" or not refused else
                  f"FAIL: {wrong[0]} wrong words" if wrong else "ok: refused while it runs")
    p.end()


def park(suite):
    rounds = 5 if suite.simulate else 20 if suite.quick else 0
    with tempfile.TemporaryDirectory() as folder:
        large(suite, folder, GIB // 4 if suite.simulate else 16 * GIB)
        places(suite, folder, GIB // 16 if suite.simulate else 16 * GIB, 3,
               ("host", "/dev/shm", suite.build))
        much = GIB // 16 if suite.simulate else 60 * GIB
        if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 1.2 * much:
            places(suite, folder, much, 2, ("host",), MUCH_S)
        else:
            suite.row(f"{much / GIB:g} GiB to host", verdict="skip: the host has less memory free")
        small(suite, folder, rounds or 500)
        cancelled(suite, folder, GIB // 8 if suite.simulate else 16 * GIB, 20)
        retained(suite, folder, GIB // 8 if suite.simulate else 16 * GIB)
        device_graph(suite, folder)
        cycles(suite, folder, GIB // 16 if rounds else GIB, rounds or 1000)


def losses(suite, command, rounds, env):
    """What the training says without the library."""
    done = suite.run(command, dict(suite.bare_env, **env), 600,
                     b"step\n" * rounds + b"end\n")
    if done.rc != 0:
        raise base.Skip(f"the training fails bare: {frameworks.last_line(done)}")
    return done.out.split("\n")[1:rounds + 1]


def park_steps(suite, command, env, wanted):
    """A training that is parked before each step: the seconds of the parks and of the steps, and
    what is wrong with its losses."""
    outs, backs, wrong = [], [], 0
    with tempfile.TemporaryDirectory() as folder, ending() as there:
        try:
            there.append(Parked(suite, folder, command, **env))
            for loss in wanted:
                _, seconds, _ = there[0].park()
                start = time.monotonic()
                wrong += there[0].do("step") != loss
                outs.append(seconds)
                backs.append(time.monotonic() - start)
        except RuntimeError as reason:
            return outs, backs, f"{reason}, in step {len(outs)}"
    return outs, backs, f"{wrong} losses differ" if wrong else ""


def park_torch(suite):
    """PyTorch, parked before each step, with its cache off and on, on one GPU and on two."""
    python = frameworks.python_with(suite, "torch")
    rounds = 50 if suite.quick else 1000
    for count in frameworks.gpu_counts(suite, python):
        park_training(suite, [python, frameworks.script("work_sleep.py"), str(count)],
                      "" if count == 1 else f", {count} GPUs", rounds)


def park_training(suite, command, where, rounds):
    for name, env in ("off", CACHE_OFF), ("on", {}):
        wanted = losses(suite, command, rounds, env)
        outs, backs, wrong = park_steps(suite, command, env, wanted)
        figures = f"out {statistics.median(outs) * 1e3:.1f} ms, step " \
                  f"{statistics.median(backs) * 1e3:.1f} ms" if backs else ""
        suite.row(f"PyTorch{where}, cache {name}: {rounds} parks, one before each step", "",
                  figures, verdict=f"FAIL: {wrong}" if wrong else "ok: equal losses")
