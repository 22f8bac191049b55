# SPDX-License-Identifier: BSD-2-Clause
"""Idle memory goes back to the GPU, as another process sees it, and what is live stays as it was."""
import os
import signal
import subprocess
import time

import suite as base

FLAGS = ["-Wno-overlength-strings"]


class Observer:
    """A second process that says what the driver calls free."""

    def __init__(self, suite, env=None):
        program = suite.compile("observe", ["observe.c", "driver.c"], *FLAGS)
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=env or suite.bare_env)
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

    def settled(self, seconds=3.0):
        """Free memory once it has not grown for a while."""
        end, best, since = time.monotonic() + seconds, self.free_bytes(), time.monotonic()
        while time.monotonic() < end and time.monotonic() - since < 0.3:
            time.sleep(0.02)
            now = self.free_bytes()
            if now != best:
                best, since = now, time.monotonic()
        return best

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def flush(suite):
    # The simulated driver counts memory over process bounds, and lets time pass for one that looks on, only if asked to.
    env = dict(suite.bare_env)
    if suite.simulate:
        env.update(SIM_SHARED=f"gpucache-flush-{os.getpid()}", SIM_POLL_NS="1000000")
    observer = Observer(suite, env)
    program = suite.compile("hold", ["hold.c", "driver.c"], *FLAGS)
    before = observer.settled()
    holder = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env=dict(env, LD_PRELOAD=suite.lib))

    def step(command):
        holder.stdin.write(command + "\n")
        holder.stdin.flush()
        return holder.stdout.readline().strip()

    try:
        started = step("start")
        if started != "started":
            raise base.Skip(f"the holding process said {started!r}")
        context = observer.settled()
        live, idle = (int(n) for n in step("fill").split())
        full = observer.settled()
        step("free")
        kept = observer.settled()
        holder.send_signal(signal.SIGUSR1)
        after = observer.settled()
        contents = step("check")
        pointers = step("again")
        status = step("end")
        holder.wait(20)
    finally:
        if holder.poll() is None:
            holder.kill()
        observer.close()
    slack = 64 << 20
    suite.row("held after free", "", base.mebibytes(context - kept), "",
              "ok" if kept <= full + slack else "FAIL: memory went back without being asked for")
    verdict = "ok" if context - after <= live + slack else (
        f"FAIL: {base.mebibytes(context - after)} still taken, {base.mebibytes(live)} live")
    suite.row(f"SIGUSR1 gives back {base.mebibytes(idle)}", "", base.mebibytes(after - kept), "", verdict)
    suite.row("live blocks", verdict="ok" if contents == "sound" else f"FAIL: {contents}")
    suite.row("program goes on", verdict="ok" if pointers == "sound" and status == "ended" and
              holder.returncode == 0 else f"FAIL: {pointers}, {status}, exit {holder.returncode}")
    suite.row("context of the program", base.mebibytes(before - context), verdict="measured")
