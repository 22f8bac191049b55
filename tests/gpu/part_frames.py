# SPDX-License-Identifier: BSD-2-Clause
"""Programs of other packages than PyTorch, and CUDA graphs of C++, parked before each of their
steps: the checksums of all steps are bare's."""
import collections
import statistics
import tempfile

import part_frameworks as frameworks
import suite as base
from parked import Parked, ending, parked_bytes, stays

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
