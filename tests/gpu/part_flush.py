# SPDX-License-Identifier: BSD-2-Clause
"""Idle memory goes back to the GPU, as another process sees it. Live memory keeps its contents."""
import os
import signal
import subprocess
import time

import suite as base


class Observer:
    """A second process that says what the driver calls free."""

    def __init__(self, suite, env=None):
        program = suite.small("observe")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env or suite.bare_env)
        self.free_bytes()

    def ask(self, request=""):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the observing process ended")
        return line

    def free_bytes(self):
        self.ask()
        return int(self.answer())

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

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


class Holder:
    """A process under the shim that holds memory and does what it is told (hold.c)."""

    def __init__(self, suite, env):
        program = suite.small("hold")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=dict(env, LD_PRELOAD=suite.lib))

    def start(self):
        said = self.step("start")
        if said != "started":
            raise base.Skip(f"the holding process said {said!r}")

    def step(self, command):
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return "nothing, it has ended"
        return self.process.stdout.readline().strip()

    def end(self):
        """What it says at the end, and its exit status."""
        status = self.step("end")
        return status, self.process.wait(20)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def flush_seen(suite, observer, holder):
    """Rows: what an observer sees of a holder whose cache is emptied."""
    before = observer.settled()
    holder.start()
    context = observer.settled()
    live, idle = (int(n) for n in holder.step("fill").split())
    full = observer.settled()
    holder.step("free")
    kept = observer.settled()
    holder.process.send_signal(signal.SIGUSR1)
    slack = 64 << 20
    after = observer.settled(at_least=context - live - slack)
    contents = holder.step("check")
    pointers = holder.step("again")
    status, code = holder.end()
    suite.row("held after free", "", base.mebibytes(context - kept), "",
              "ok" if kept <= full + slack else "FAIL: memory went back without being asked for")
    verdict = "ok" if context - after <= live + slack else (
        f"FAIL: {base.mebibytes(context - after)} still taken, {base.mebibytes(live)} live")
    suite.row(f"SIGUSR1 gives back {base.mebibytes(idle)}", "", base.mebibytes(after - kept), "",
              verdict)
    suite.row("live blocks", verdict="ok" if contents == "sound" else f"FAIL: {contents}")
    suite.row("program goes on", verdict="ok" if pointers == "sound" and status == "ended" and
              code == 0 else f"FAIL: {pointers}, {status}, exit {code}")
    suite.row("context of the program", base.mebibytes(before - context), verdict="measured")


def shared_env(suite):
    """The simulated driver counts memory over process bounds, and lets time pass for one that looks
    on, only if asked to."""
    simulated = {"SIM_SHARED": f"gpucache-flush-{os.getpid()}", "SIM_POLL_NS": "1000000"}
    return dict(suite.bare_env, **(simulated if suite.simulate else {}))


def flush(suite):
    env = shared_env(suite)
    observer = Observer(suite, env)
    holder = Holder(suite, env)
    try:
        flush_seen(suite, observer, holder)
    finally:
        holder.kill()
        observer.close()
