# SPDX-License-Identifier: BSD-2-Clause
"""Programs whose device memory is on the host between any two of their requests: a model behind
HTTP, and two processes that each need more than half of the GPU."""
import contextlib
import http.client
import statistics
import tempfile
import time

import part_flush
import part_frameworks as frameworks
import suite as base
from parked import GIB, MIB, Ended, Parked, Talker, ending, one_gpu, program, spread
from trainer import EXACT

MODEL_MIB = 2048
# By GPUCACHE_PARK=idle, which waits twice as long each time where requests are short
# (shim/park/asleep.h); all other parks are asked for.
IDLE, BY_ITSELF, PATIENCE_S = "300ms", 3, 15
# Of the GPU that each of two processes holds; and what is left of it for them in a short run.
PART, SHORT_BYTES = 0.6, 16 * GIB
LEND_S, SWITCH_TARGET = 1.0, 1.1


class Client:
    """One that asks a server of work_served.py."""

    def __init__(self, server):
        self.port, self.answers, self.seconds = int(server.said[1]), [], []

    def get(self, number):
        """By a connection of its own, as clients that come once in a while have it."""
        start = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            connection.request("GET", f"/{number}")
            self.answers.append(connection.getresponse().read())
        finally:
            connection.close()
        self.seconds.append(time.monotonic() - start)


def served_bare(suite, command, rounds):
    try:
        server = Talker(command, dict(suite.bare_env, **EXACT))
    except Ended as reason:
        raise base.Skip(f"the server does not run here bare: {reason}") from None
    with ending(server):
        client = Client(server)
        for number in range(1, rounds + 1):
            client.get(number)
    return client


def park_served(suite):
    """The answers are those of the bare server, whatever parks come between them."""
    python = frameworks.python_with(suite, "torch")
    for count in frameworks.gpu_counts(suite, python):
        serve(suite, [python, frameworks.script("work_served.py"), str(MODEL_MIB), str(count)],
              "" if count == 1 else f"{count} GPUs: ", 15 if suite.quick else 1000)


def serve(suite, command, where, rounds):
    bare = served_bare(suite, command, rounds)
    with tempfile.TemporaryDirectory() as folder:
        server = Parked(suite, folder, command, GPUCACHE_PARK=f"idle:{IDLE}", **EXACT)
        with ending(server):
            client, waits, parks = Client(server), [], []
            for number in range(1, rounds + 1):
                if number <= BY_ITSELF:
                    waits.append(server.await_park(PATIENCE_S))
                else:
                    parks.append(server.park())
                client.get(number)
                if number == BY_ITSELF:
                    server.set("PARK=ask")
    by_itself = [wait for wait in waits if wait is not None]
    suite.row(f"{where}parked by itself, idle:{IDLE}", "", ", ".join(map(base.seconds, by_itself)),
              verdict=f"{'ok' if len(by_itself) == BY_ITSELF else 'FAIL'}: {len(by_itself)} of "
                      f"{BY_ITSELF} times")
    wrong = sum(a != b for a, b in zip(bare.answers, client.answers))
    suite.row(f"{where}{rounds} answers, one after each park",
              verdict=f"FAIL: {wrong} differ from bare's" if wrong or
              len(client.answers) != rounds else "ok: equal bytes")
    size, out = (statistics.median(park[i] for park in parks) for i in (0, 1))
    suite.row(f"{where}time of an answer, bare and after a park", spread(bare.seconds),
              spread(client.seconds), "", f"measured: {base.mebibytes(size)} each, out in "
              f"{base.seconds(out)}")


# --- two in turns

def host_room():
    """Bytes of host memory that may still be taken."""
    with open("/proc/meminfo", encoding="ascii") as file:
        rooms = [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError), \
            open("/sys/fs/cgroup/memory.max", encoding="ascii") as most, \
            open("/sys/fs/cgroup/memory.current", encoding="ascii") as used:
        rooms.append(int(most.read()) - int(used.read()))
    return min(rooms)


def alone(suite, folder, env, size):
    """Seconds for each byte, out and back, of a process that has the GPU for itself: the medians of
    three after the first, which makes its staging memory."""
    with ending(Parked(suite, folder, [program(suite)], "started", **env)) as (p,):
        p.do(f"fill {size // MIB}")
        outs, backs = [], []
        for _ in range(4):
            parked, out, _ = p.park()
            outs.append(out / parked)
            backs.append(int(p.do("touch")) / 1e9 / parked)
    return statistics.median(outs[1:]), statistics.median(backs[1:])


def bare_turns(suite, env, size):
    """What becomes of a second process that takes as much."""
    env = dict(suite.bare_env, **env)
    with ending(Talker([program(suite)], env, "started"),
                Talker([program(suite)], env, "started")) as (first, second):
        first.do(f"fill {size // MIB}")
        try:
            second.do(f"fill {size // MIB}")
        except Ended:
            return True
    return False


def switch(one, other):
    """One that is parked wakes and the other one makes room: the time, and what went and came."""
    before, away = one.away_bytes(), other.away_bytes()
    took = int(one.do("touch")) / 1e9
    return took, max(0, other.away_bytes() - away), before - one.away_bytes()


def turns(suite, folder, env, size, mode, each, rounds):
    """Rows for two processes under this option. each: seconds a byte, out and back."""
    env = dict(env, GPUCACHE_PARK=mode)
    if suite.simulate:  # on a machine that does other things too
        env["GPUCACHE_SHARE"] = "10s"
    times, ratios, wrong = [], [], ""
    by_itself = "idle" in mode
    first = Parked(suite, folder, [program(suite)], "started", **env)
    with ending(first) as there:
        first.do(f"fill {size // MIB}")
        time.sleep(LEND_S * 1.5)
        second = Parked(suite, folder, [program(suite)], "started", **env)
        there.append(second)
        try:
            second.do(f"fill {size // MIB}")
            for number in range(2 * rounds):
                one, other = (first, second) if number % 2 == 0 else (second, first)
                if by_itself:
                    other.await_park(PATIENCE_S)
                else:
                    time.sleep(LEND_S * 1.5)
                took, out, back = switch(one, other)
                said = one.do("check")
                wrong = wrong or (said if said != "sound" else "")
                times.append(took)
                ratios.append(took / (out * each[0] + back * each[1]) if back else 0)
        except Ended as reason:
            wrong = str(reason)
    moved = [ratio for ratio in ratios if ratio]
    name = f"{size / GIB:.1f} GiB each in turns, {mode}"
    suite.row(name, "", f"{len(moved)} of {len(ratios)} woke",
              verdict=f"FAIL: {wrong}" if wrong else "ok: all bytes right" if moved
              else "FAIL: none had to wake")
    if moved:
        value = statistics.median(moved)
        suite.row("time of a switch, of out + back alone", "", spread(times), f"{value:.2f}",
                  f"measured: target {SWITCH_TARGET}, " + (
                      "met" if value <= SWITCH_TARGET else "MISSED"))


def park_turns(suite):
    short = suite.quick or suite.simulate
    with one_gpu(suite) as env, tempfile.TemporaryDirectory() as folder:
        bare = dict(suite.bare_env, **env)
        # A bare process leaves so much of the GPU to the others.
        with ending(Talker([program(suite)], bare, "started")) as (filler,):
            with ending(part_flush.Observer(suite, bare)) as (observer,):
                free = observer.settled()
                # Both may be on the host for a moment.
                left = min(free, int(host_room() / 2.5 / PART), SHORT_BYTES if short else free,
                           GIB // 4 if suite.simulate else free)
                filler.do(f"fill {(free - left) // MIB}")
                size = int(observer.settled() * PART) // (2 * MIB) * (2 * MIB)
            fails = bare_turns(suite, env, size)
            suite.row(f"{size / GIB:.1f} GiB each, two at a time", "out of memory" if fails else
                      "both fit", verdict="ok" if fails else "FAIL: the bare processes fit")
            each = alone(suite, folder, env, size)
            suite.row("alone: out, back", "", f"{base.seconds(size * each[0])}, "
                      f"{base.seconds(size * each[1])}", verdict="measured")
            turns(suite, folder, env, size, "lend:1s", each, 2 if short else 10)
            turns(suite, folder, env, size, "idle:1s,lend:1s", each, 1 if short else 2)
