# SPDX-License-Identifier: BSD-2-Clause
"""Idle memory goes back to the GPU, as another process sees it. Live memory keeps its contents."""
import os
import signal
import time

import suite as base
from parked import Ended, Talker, ending, program


class Observer(Talker):
    """A second process that says what the driver calls free."""

    def __init__(self, suite, env=None):
        super().__init__([suite.small("observe")], env or suite.bare_env)

    def free_bytes(self):
        return int(self.do(""))

    def settled(self, seconds=3.0, at_least=0, patience=30.0):
        """Free memory once it has not changed for a while, and, if it comes in time, is at least
        so much."""
        end = time.monotonic() + patience
        while self.free_bytes() < at_least and time.monotonic() < end:
            time.sleep(0.02)
        end = time.monotonic() + seconds
        best, since = self.free_bytes(), time.monotonic()
        while time.monotonic() < end and time.monotonic() - since < 0.3:
            time.sleep(0.02)
            now = self.free_bytes()
            if now != best:
                best, since = now, time.monotonic()
        return best


def holder(suite, env):
    """A process under the shim that holds memory and does what it is told (park_cycle.c)."""
    try:
        return Talker([program(suite)], dict(env, LD_PRELOAD=suite.lib), "started")
    except Ended as reason:
        raise base.Skip(f"the process that holds memory: {reason}") from None


def fill(held):
    """Live memory and memory to be freed, side by side, so that neither kind has chunks of its
    own."""
    for _ in range(2):
        held.do("fill 250")


def flush_seen(suite, observer, env):
    """Rows: what an observer sees of a holder whose cache is emptied."""
    before = observer.settled()
    with ending(holder(suite, env)) as (held,):
        context = observer.settled()
        fill(held)
        full = observer.settled()
        live, idle = map(int, held.do("drop").split())
        kept = observer.settled()
        held.process.send_signal(signal.SIGUSR1)
        slack = 64 << 20
        after = observer.settled(at_least=context - live - slack)
        contents = held.do("check")
        held.do("fill 250")
        later = held.do("check")
        said, code = held.do("end"), held.end()
    suite.row("held after free", "", base.mebibytes(context - kept), "",
              "ok" if kept <= full + slack else "FAIL: memory went back without being asked for")
    verdict = "ok" if context - after <= live + slack else (
        f"FAIL: {base.mebibytes(context - after)} still taken, {base.mebibytes(live)} live")
    suite.row(f"SIGUSR1 gives back {base.mebibytes(idle)}", "", base.mebibytes(after - kept), "",
              verdict)
    suite.row("live blocks", verdict="ok" if contents == "sound" else f"FAIL: {contents}")
    suite.row("program goes on", verdict="ok" if (later, said, code) == ("sound", "ended", 0) else
              f"FAIL: {later}, {said}, exit {code}")
    suite.row("context of the program", base.mebibytes(before - context), verdict="measured")


def shared_env(suite):
    """The simulated driver counts memory over process bounds, and lets time pass for one that looks
    on, only if asked to."""
    simulated = {"SIM_SHARED": f"gpucache-flush-{os.getpid()}", "SIM_POLL_NS": "1000000"}
    return dict(suite.bare_env, **(simulated if suite.simulate else {}))


def flush(suite):
    env = shared_env(suite)
    with ending(Observer(suite, env)) as (observer,):
        flush_seen(suite, observer, env)
