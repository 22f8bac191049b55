# SPDX-License-Identifier: BSD-2-Clause
"""Processes that train, one for each allocator, in turns, so that a disturbance of the machine
hits all alike. The protocol has one word a line. A process says "ready PID". It says "turn"
after each "go". After "end" it prints its results and then "done FIGURES"; the process that
forked it prints "gone STATUS". Then the next workload begins."""
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time

import part_frameworks as frameworks

CACHE_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# The same results every time, and Python's tables laid out alike; and no more threads than there
# are processors for several processes.
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0"}


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    env: dict
    preload: bool = False
    workloads: tuple = ()     # all if empty
    before: tuple = ()        # the words before the command that put the library in front

    def runs(self, workload):
        return not self.workloads or workload in self.workloads


@dataclasses.dataclass
class Run:
    """One workload of one peer."""
    workload: str
    peer: Peer
    steps: int
    out: str = ""
    failure: str = ""
    figures: dict = dataclasses.field(default_factory=dict)
    statistics: object = None
    pid: str = ""

    def seconds(self):
        return self.figures.get("seconds", [])

    def reserved_bytes(self):
        """Peak of what was taken from the driver, as far as somebody keeps count."""
        if self.peer.preload:
            return self.statistics.total("reserved_peak_bytes")
        if "PYTORCH_NO_CUDA_MEMORY_CACHING" in self.peer.env:
            return 0
        return self.figures.get("reserved_peak_bytes", 0)


class Trainer:
    """The process of one peer, going through its workloads."""

    def __init__(self, suite, peer, command, workloads, steps, tag):
        self.suite, self.peer, self.steps = suite, peer, steps
        self.label = f"torch{tag}-" + peer.name.translate(str.maketrans(" /", "--", ","))
        self.workloads = [workload for workload in workloads if peer.runs(workload)]
        self.statistics = frameworks.Statistics(suite, self.label)
        self.run = None
        env = {**EXACT, **peer.env}
        if peer.preload:
            env.update(self.statistics.env)
        env = suite.shim_env(**env) if peer.preload and not peer.before else {**suite.bare_env,
                                                                              **env}
        self.log = open(os.path.join(suite.build, f"{self.label}.log"), "w+")
        self.process = subprocess.Popen([*peer.before, *command, "--turns", "--steps",
                                         str(steps), *self.workloads], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, start_new_session=True)

    def kill(self):
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
        self.log.close()

    def lines_until(self, word, seconds):
        """The lines before the one that begins with the word, and that line; or None for it."""
        guard = threading.Timer(seconds, self.kill_for_time)
        guard.start()
        lines = []
        try:
            for line in self.process.stdout:
                if line.split(" ", 1)[0].strip() == word:
                    return lines, line.strip()
                lines.append(line)
                if line.startswith("gone "):
                    break
            return lines, None
        finally:
            guard.cancel()

    def kill_for_time(self):
        os.killpg(self.process.pid, signal.SIGKILL)

    def tail(self):
        with open(self.log.name) as log:
            return (log.read().strip().splitlines() or ["no message"])[-1][:120]

    def expect(self, word, seconds=90):
        lines, line = self.lines_until(word, seconds)
        if line is None:
            instead = f" but {lines[-1].strip()!r}" if lines else ""
            self.run.failure = f"no {word!r}{instead}: {self.tail()}"
        return lines, line

    def begin(self, workload):
        """The next workload's model is built and warm."""
        self.run = Run(workload, self.peer, self.steps)
        _, line = self.expect("ready")
        if line:
            pid = self.run.pid = line.split()[1]
            self.run.statistics = frameworks.Statistics(self.suite, self.label, None
                                                        if pid == "all" else pid)
        return self.run

    def say(self, word):
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def turn(self):
        if not self.run.failure:
            self.say("go")
            self.expect("turn")

    def end(self):
        """Before collect(), so that all of them end side by side."""
        if not self.run.failure:
            self.say("end")

    def collect(self):
        if self.run.failure:
            return
        lines, line = self.expect("done")
        if not line:
            return
        self.run.out = "".join(lines)
        figures = json.loads(line.split(" ", 1)[1])
        lines, line = self.lines_until("gone", 60)
        status = line.split()[1] if line else str(self.process.wait())
        if status != "0":
            self.run.failure = f"status {status} at its end: {self.tail()}"
        else:
            self.run.figures = figures


def train(suite, peers, command, workloads, steps, rounds, tag=""):
    """All workloads by all peers, in turns: yields a list of Run for each workload. tag: in the
    names of their files, so that those of an earlier call stay."""
    trainers = [Trainer(suite, peer, command, workloads, steps, tag) for peer in peers]
    try:
        for played, workload in enumerate(workloads):
            times = [time.monotonic()]
            mine = [trainer for trainer in trainers if workload in trainer.workloads]
            runs = [trainer.begin(workload) for trainer in mine]
            times.append(time.monotonic())
            for number in range(rounds):
                at = (played + number) % len(mine)
                for trainer in mine[at:] + mine[:at]:
                    trainer.turn()
            times.append(time.monotonic())
            for trainer in mine:
                trainer.end()
            for trainer in mine:
                trainer.collect()
            times.append(time.monotonic())
            seconds = ", ".join(f"{b - a:.1f} s {what}" for a, b,
                                what in zip(times, times[1:], ("start", "turns", "end")))
            suite.log(f"  {workload}: {seconds}")
            yield runs
    finally:
        for trainer in trainers:
            trainer.kill()
