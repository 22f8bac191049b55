# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch: training and inference, its cache off under the shim beside its own allocators. A process for
each workload and peer stays, and they take turns, so that what disturbs the machine disturbs all."""
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import part_flush
import part_frameworks as frameworks
import suite as base

CACHE_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    env: dict
    preload: bool = False
    workloads: tuple = ()     # all if empty


NATIVE = Peer("PyTorch native", {})
BARE = Peer("cudaMalloc", CACHE_OFF)
SHIM = Peer("gpucache", CACHE_OFF, True)
# PyTorch's own cache on top of ours: no harm, and its mapped segments pass through.
OVER = Peer("PyTorch native over gpucache", {}, True, ("gpt", "streams"))
OVER_EXPANDABLE = Peer("PyTorch expandable over gpucache", EXPANDABLE, True, ("gpt",))
PEERS = (NATIVE, Peer("PyTorch expandable", EXPANDABLE), BARE, SHIM, OVER, OVER_EXPANDABLE)
# At once in memory, and so waiting for their turns.
BATCHES = (("gpt", "streams", "lstm"), ("conv", "unet", "decode"))
QUICK_BATCHES = (("gpt", "streams"),)


class Worker:
    """One workload of one peer: a process that waits for its turns."""

    def __init__(self, suite, python, workload, peer, steps, program="work_torch.py", wrapper=()):
        self.suite, self.workload, self.peer, self.steps = suite, workload, peer, steps
        label = f"torch-{workload}-{peer.name.replace(' ', '-')}"
        self.file = os.path.join(suite.build, f"{label}.json")
        if os.path.exists(self.file):
            os.remove(self.file)
        self.statistics = frameworks.Statistics(suite, label)
        env = {**EXACT, **peer.env}
        env = suite.shim_env(**env, **self.statistics.env) if peer.preload else dict(suite.bare_env, **env)
        self.log = open(os.path.join(suite.build, f"{label}.log"), "w+")
        self.out, self.figures, self.failure = "", {}, ""
        self.process = subprocess.Popen(
            [python, *wrapper, frameworks.script(program), self.file, "--turns", "--steps", str(steps), workload],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            start_new_session=True)

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def expect(self, word, seconds=90):
        """Waits for the word; False, and the worker is out, if it does not come."""
        guard = threading.Timer(seconds, self.kill)
        guard.start()
        line = self.process.stdout.readline()
        guard.cancel()
        if line.strip() == word:
            return True
        self.kill()
        status = self.process.wait()
        self.log.seek(0)
        tail = (self.log.read().strip().splitlines() or ["no message"])[-1][:120]
        self.failure = f"no {word!r}, status {status}: {tail}"
        return False

    def turn(self):
        if self.failure:
            return
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        self.expect("turn")

    def finish(self):
        if self.failure:
            return
        guard = threading.Timer(60, self.kill)
        guard.start()
        self.process.stdin.close()
        self.out = self.process.stdout.read()
        status = self.process.wait()
        guard.cancel()
        self.figures = frameworks.read_json(self.file)
        if status or not self.figures:
            self.failure = f"status {status} at its end"

    def seconds(self):
        return self.figures.get("seconds", [])

    def reserved_bytes(self):
        """Peak of what was taken from the driver, for those that keep count."""
        if self.peer.preload:
            return self.statistics.total("reserved_peak_bytes")
        return 0 if self.peer.name == BARE.name else self.figures.get("reserved_peak_bytes", 0)


def take_turns(workers, rounds):
    """Every workload by itself: its workers one after the other, in an order that rotates."""
    ready = [worker for worker in workers if worker.expect("ready")]
    for workload in dict.fromkeys(worker.workload for worker in ready):
        mine = [worker for worker in ready if worker.workload == workload]
        for number in range(rounds):
            at = number % len(mine)
            for worker in mine[at:] + mine[:at]:
                worker.turn()
    for worker in ready:
        worker.finish()


def measure(suite, python, batches):
    """All workers, with their figures."""
    steps, rounds = (8, 2) if suite.quick else (20, 7)
    done = []
    for batch in batches:
        start = time.monotonic()
        workers = [Worker(suite, python, workload, peer, steps) for workload in batch for peer in PEERS
                   if not peer.workloads or workload in peer.workloads]
        try:
            take_turns(workers, rounds)
        finally:
            for worker in workers:
                worker.kill()
        done += workers
        suite.log(f"  {', '.join(batch)}: {time.monotonic() - start:.1f} s")
    return done


def by_peer(workers, workload):
    return {worker.peer.name: worker for worker in workers if worker.workload == workload}


def figure(name, peer, values, unit, **more):
    """A row as the benchmarks keep them: the median, and the extremes."""
    row = {"group": "torch", "name": name, "peer": peer, "value": statistics.median(values), "unit": unit,
           "threads": 1, "size_bytes": 0, "streams": 4 if name == "streams" else 1}
    if len(values) > 1:
        row.update(low=min(values), high=max(values), rounds=len(values))
    row.update(more)
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}


def figures(workers):
    """The JSON rows: milliseconds a step, and bytes of peak reserved memory, for each workload and peer;
    the peer "live" is what the program itself asked for."""
    rows = []
    for worker in workers:
        if worker.failure:
            continue
        name, peer = worker.workload, worker.peer.name
        rows.append(figure(name, peer, [value / worker.steps * 1e3 for value in worker.seconds()], "ms",
                           waited=statistics.median(worker.figures["waited"]) / worker.steps * 1e3))
        if worker.reserved_bytes():
            rows.append(figure(name, peer, [worker.reserved_bytes()], "bytes"))
        if worker.peer.name == SHIM.name:
            rows.append(figure(name, "live", [worker.statistics.total("requested_peak_bytes")], "bytes"))
    return rows


def save(suite, name, rows):
    path = os.path.join(suite.build, name)
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    suite.log(f"  figures in {path}")


def rows_of(suite, python=None):
    """What the benchmarks want of this part: the JSON rows."""
    python = python or frameworks.python_with(suite, "torch")
    return figures(measure(suite, python, QUICK_BATCHES if suite.quick else BATCHES))


def compare_times(suite, name, left, right):
    """A row for two workers that took turns: the medians, and the ratio round by round."""
    if left.failure or right.failure:
        return
    a, b = statistics.median(left.seconds()), statistics.median(right.seconds())
    ratios = sorted(y / x for x, y in zip(left.seconds(), right.seconds()))
    suite.row(name, base.seconds(a), base.seconds(b), f"{statistics.median(ratios):.2f}",
              f"measured: {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds")


def compare_losses(suite, workload, workers):
    """Under the shim what the same program gives bare; failures of a peer that is not ours are no
    failures of ours."""
    bare, shim, native = (workers.get(peer.name) for peer in (BARE, SHIM, NATIVE))
    for worker in workers.values():
        if worker.failure and not worker.peer.preload:
            suite.row(f"{workload}: {worker.peer.name}", verdict=f"skip: does not run here bare: {worker.failure}")
        elif worker.failure:
            suite.row(f"{workload}: {worker.peer.name}", verdict=f"FAIL: {worker.failure}")
    if not bare.failure and not shim.failure:
        same = bare.out == shim.out
        row = suite.row(f"{workload}: losses, cache off", verdict="ok" if same else
                        "FAIL: " + base.first_difference(bare.out, shim.out))
        frameworks.note_served(row, shim.statistics, at_least=100 * shim.steps)
        if not native.failure:
            equal = native.out == shim.out
            suite.row(f"{workload}: losses, native", verdict="ok: equal" if equal else "FAIL: differ from cache off "
                      "under the shim" if native.out == bare.out else "measured: differ from cache off, bare as well")
    for peer in (OVER, OVER_EXPANDABLE):
        over = workers.get(peer.name)
        if over and not over.failure and not native.failure:
            row = suite.row(f"{workload}: losses, {peer.name}", verdict="ok" if over.out == native.out else
                            "FAIL: " + base.first_difference(native.out, over.out))
            frameworks.note_served(row, over.statistics, at_least=1)


def torch(suite):
    python = frameworks.python_with(suite, "torch")
    batches = QUICK_BATCHES if suite.quick else BATCHES
    workers = measure(suite, python, batches)
    for workload in [name for batch in batches for name in batch]:
        mine = by_peer(workers, workload)
        compare_losses(suite, workload, mine)
        native, shim = mine[NATIVE.name], mine[SHIM.name]
        compare_times(suite, f"{workload}: cache off", mine[BARE.name], shim)
        compare_times(suite, f"{workload}: native against shim", native, shim)
        for peer in (OVER, OVER_EXPANDABLE):
            if peer.name in mine:
                compare_times(suite, f"{workload}: native against {peer.name}", native, mine[peer.name])
        expandable = mine["PyTorch expandable"]
        if not (native.failure or shim.failure):
            suite.row(f"{workload}: peak reserved, native against shim", base.mebibytes(native.reserved_bytes()),
                      base.mebibytes(shim.reserved_bytes()),
                      base.ratio(shim.reserved_bytes(), native.reserved_bytes()),
                      f"measured: expandable {base.mebibytes(expandable.reserved_bytes())}, live "
                      f"{base.mebibytes(shim.statistics.total('requested_peak_bytes'))}")
    save(suite, "torch.json", figures(workers))


def paused_run(suite, observer, command, env, flush):
    """Runs a training that pauses half way: (result, device memory taken then, and after a flush)."""
    before = observer.settled()
    start = time.monotonic()
    log = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=log, text=True)
    guard = threading.Timer(180, process.kill)
    guard.start()
    out, taken, after, live = "", 0, 0, 0
    for line in process.stdout:
        if line.startswith("paused "):
            live = int(line.split()[1])
            taken = before - observer.settled()
            if flush:
                process.send_signal(signal.SIGUSR1)
            after = before - observer.settled()
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            out += line
    rc = process.wait()
    guard.cancel()
    log.seek(0)
    return base.Result(rc, out, log.read(), time.monotonic() - start), taken, after, live


def torch_flush(suite):
    """SIGUSR1 in the middle of a training: afterwards the process takes what it takes without a cache."""
    python = frameworks.python_with(suite, "torch")
    observer = part_flush.Observer(suite)
    file = os.path.join(suite.build, "torch-flush.json")
    command = [python, frameworks.script("work_torch.py"), file, "--steps", "8", "--repeats", "1", "--pause", "gpt"]
    try:
        bare, bare_taken, _, live = paused_run(suite, observer, command,
                                               dict(suite.bare_env, **EXACT, **CACHE_OFF), False)
        shim, taken, after, _ = paused_run(suite, observer, command,
                                           suite.shim_env(**EXACT, **CACHE_OFF), True)
    finally:
        observer.close()
    if bare.rc:
        raise base.Skip(f"does not run here bare: {frameworks.last_line(bare)}")
    suite.compare("SIGUSR1 half way, losses", bare, shim)
    slack = 64 << 20
    verdict = "ok" if after <= bare_taken + slack else (
        f"FAIL: {base.mebibytes(after - bare_taken)} more than without a cache")
    if verdict == "ok":
        verdict = f"ok: {base.mebibytes(taken - after)} given back, {base.mebibytes(live)} live"
    suite.row("device memory after the flush", base.mebibytes(bare_taken), base.mebibytes(after),
              base.ratio(after, bare_taken), verdict)
