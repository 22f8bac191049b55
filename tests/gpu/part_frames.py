# SPDX-License-Identifier: BSD-2-Clause
"""Programs of other packages than PyTorch, and CUDA graphs of C++, parked before each of their
steps: the checksums of all steps are bare's."""
import collections
import concurrent.futures
import contextlib
import os
import signal
import statistics
import tempfile
import threading
import time

import part_frameworks as frameworks
import suite as base
from parked import Parked, ending, one_gpu, parked_bytes, program, stays

GROWS = {"XLA_FLAGS": frameworks.JAX_EXACT, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

# Name: the command, and its environment.
JOBS = {
    "JAX, its allocator": (lambda suite: frameworks.package(suite, "jax"), GROWS),
    "JAX, platform allocator": (lambda suite: frameworks.package(suite, "jax"),
                                {**GROWS, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "CuPy": (lambda suite: frameworks.package(suite, "cupy"), {}),
    "Numba": (lambda suite: frameworks.package(suite, "numba"), {}),
    "CUDA graphs of C++": (lambda suite: [suite.compile_cuda("park_graphs")], {}),
}


def bare_lines(suite, command, env, rounds):
    done = suite.run(command, dict(suite.bare_env, **env), 150, b"step\n" * rounds)
    if done.rc != 0:
        raise base.Skip(f"does not run here bare: {frameworks.last_line(done)}")
    return done.out.splitlines()[1:]


class Seen:
    """What the parks and the steps of a program said."""

    def __init__(self):
        self.words = collections.Counter()
        self.bytes, self.outs, self.wakes = [], [], 0

    def park(self, p):
        """Parks it. True: at least something went."""
        code, reply, _ = p.ask("park")
        size = parked_bytes(reply)
        if code == p.tables.PAGE_REPLY_REFUSED:
            self.words[f"refused: {reply.get('why')}"] += 1
        elif code == p.tables.PAGE_REPLY_PARTLY:
            self.words[f"partly: {stays(reply)} stay"] += 1
        if size:
            self.bytes.append(size)
            self.outs.append(reply["ns"] / 1e9)
        return size > 0

    def verdict(self, rounds):
        more = "".join(f"; {count} times {words}" for words, count in self.words.items())
        if len(self.bytes) < rounds:
            return f"FAIL: parked {len(self.bytes)} of {rounds} times{more}"
        return f"ok: equal, {self.wakes} woken by request{more}"


def one(suite, name, command, env, rounds):
    wanted = bare_lines(suite, command, env, rounds)
    seen, wrong = Seen(), ""
    with tempfile.TemporaryDirectory() as folder:
        with ending(Parked(suite, folder, command, **env)) as (p,):
            try:
                for number in range(rounds):
                    # Every second time the step itself wakes it.
                    if seen.park(p) and number % 2:
                        p.wake()
                        seen.wakes += 1
                    said = p.do("step")
                    if said != wanted[number]:
                        wrong = wrong or f"step {number}: {said!r}, bare {wanted[number]!r}"
            except RuntimeError as reason:
                wrong = wrong or str(reason)
    figures = f"{base.mebibytes(statistics.median(seen.bytes))} out in " \
              f"{statistics.median(seen.outs) * 1e3:.1f} ms" if seen.bytes else ""
    suite.row(f"{name}: {rounds} parks, one before each step", "", figures, "",
              f"FAIL: {wrong}" if wrong else seen.verdict(rounds))


def park_frameworks(suite):
    rounds = 10 if suite.quick or suite.simulate else 100
    frameworks.side_by_side(suite, {
        name: lambda n=name, c=command, e=env: one(suite, n, c(suite), e, rounds)
        for name, (command, env) in JOBS.items()})


# --- many at once

def change_blocks(p, rounds, mib):
    """Parks of a program with blocks of mixed sizes, of which every second one changes. None: all
    bytes were right."""
    p.do(f"fill {mib}")
    for number in range(rounds):
        p.park()
        if number % 2:
            p.do("change")
        if (said := p.do("check")) != "sound":
            return f"{said} in round {number}"
    return None


def take_steps(p, rounds, wanted):
    """Parks of a program that says of each step what bare says."""
    for number in range(rounds):
        p.park()
        if (said := p.do("step")) != wanted[number]:
            return f"step {number}: {said!r}, bare {wanted[number]!r}"
    return None


@contextlib.contextmanager
def signals(pids):
    """SIGUSR1 to one of these after the other."""
    stopped = threading.Event()

    def send():
        while not stopped.wait(0.01):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[int(time.monotonic() * 100) % len(pids)], signal.SIGUSR1)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        stopped.set()
        sender.join()


def many_jobs(suite, rounds):
    """(command, its first word, what parks it, what that needs) of each program."""
    jobs = [([program(suite)], "started", change_blocks, 4 if suite.simulate else 64)] * 5
    try:
        graphs = [suite.compile_cuda("park_graphs")]
        jobs += [(graphs, "ready", take_steps, bare_lines(suite, graphs, {}, rounds))] * 3
    except base.Skip as reason:
        suite.row("CUDA graphs of C++", verdict=f"skip: {reason}")
    return jobs


def park_many(suite):
    rounds = 6 if suite.simulate else 100 if suite.quick else 1250
    jobs = many_jobs(suite, rounds)
    begin = time.monotonic()
    with one_gpu(suite) as env, tempfile.TemporaryDirectory() as folder, ending() as there:
        for command, ready, _, _ in jobs:
            there.append(Parked(suite, folder, command, ready, **env))
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool, \
                signals([p.process.pid for p in there]):
            ends = [pool.submit(play, p, rounds, given)
                    for p, (_, _, play, given) in zip(there, jobs)]
            wrong = [str(end.exception() or end.result()) for end in ends
                     if end.exception() or end.result()]
    taken = (time.monotonic() - begin) / rounds
    suite.row(f"{len(jobs)} programs, {rounds} parks each, flushed by signals", "",
              f"{base.seconds(taken)} a round", "", f"FAIL: {'; '.join(wrong)}" if wrong else "ok")
