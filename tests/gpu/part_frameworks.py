# SPDX-License-Identifier: BSD-2-Clause
"""Python's GPU packages other than PyTorch: the same numbers bare and under the shim, the time
of both, and how many allocations the pool served. Other parts run Python by the functions here."""
import concurrent.futures
import json
import os
import shutil
import sys

import suite as base

JAX_EXACT = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"


def python_with(suite, package, simulated=False):
    """A Python that has the package, or a reason to skip. Its time to import is not measured."""
    if suite.simulate and not simulated:
        raise base.Skip(f"{package} needs a real GPU")
    for python in dict.fromkeys([shutil.which("python3"), sys.executable]):
        if python and suite.run([python, "-c", f"import importlib.util as u, sys; "
                                 f"sys.exit(u.find_spec('{package}') is None)"]).rc == 0:
            return python
    raise base.Skip(f"no {package}")


def gpu_counts(suite, python):
    """1, and 2 where this Python's PyTorch has so many."""
    said = suite.run([python, "-c", "import torch; print(torch.cuda.device_count())"]).out.strip()
    return (1, 2) if said.isdigit() and int(said) > 1 else (1,)


def script(name):
    return os.path.join(base.HERE, name)


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def last_line(result):
    return (result.err.strip().splitlines() or ["no message"])[-1][:100]


class Statistics:
    """What the processes of a run under the shim report when they exit: a file for each."""

    def __init__(self, suite, label, pid=None):
        """With a pid: what one process of an earlier run has reported."""
        self.folder = os.path.join(suite.build, "statistics")
        self.label = f"{label}.{pid}." if pid else f"{label}."
        os.makedirs(self.folder, exist_ok=True)
        if not pid:
            for path in self.paths():
                os.remove(path)
        self.env = {"GPUCACHE_STATS": f"exit:{self.folder}/{label}.%p.json"}

    def paths(self):
        return [os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder))
                if name.startswith(self.label)]

    def pools(self):
        return [pool for path in self.paths() for pool in read_json(path).get("pools", [])]

    def total(self, name):
        """The sum of a figure over all pools of all processes."""
        return sum(pool.get(name, 0) for pool in self.pools())

    def text(self):
        """How many allocations were served, and what went to the driver."""
        counters = [read_json(path).get("counters", {}) for path in self.paths()]
        words = [f"{self.total('num_allocs')} served"]
        for what, name in (("driver", "num_driver_allocs"), ("async", "num_async_allocs"),
                           ("own VMM", "num_vmm_allocs"), ("managed", "num_managed_allocs")):
            count = sum(counter.get(name, 0) for counter in counters)
            if count:
                words.append(f"{count} {what}")
        return ", ".join(words)


def note_served(row, statistics, at_least):
    """Adds to a good row how many allocations were served; fewer than the program makes is a
    failure."""
    if not row.verdict.startswith("ok"):
        return
    served = statistics.total("num_allocs")
    if served < at_least:
        row.verdict = (f"FAIL: {served} allocations served, of at least {at_least} "
                       f"({len(statistics.paths())} reports)")
    else:
        row.verdict += f": {statistics.text()}"


def compared(suite, name, label, command, env, at_least=1, timeout=120):
    """A row for one program, bare and under the shim. FIGURES in the command stands for a file that
    names the seconds of the part that counts. Returns the figures of both."""
    figures, results = [], []
    statistics = Statistics(suite, label)
    for side in ("bare", "shim"):
        file = os.path.join(suite.build, f"{label}-{side}.json")
        if os.path.exists(file):
            os.remove(file)
        words = [file if word == "FIGURES" else word for word in command]
        whole = suite.shim_env(**env, **statistics.env) if side == "shim" else dict(suite.bare_env,
                                                                                    **env)
        result = suite.run(words, whole, timeout)
        with open(os.path.join(suite.build, f"{label}-{side}.log"), "w") as log:
            log.write(result.out + result.err)
        if side == "bare" and result.rc not in (0, base.EXIT_SKIP):
            suite.row(name, verdict=f"skip: does not run here bare: {last_line(result)}")
            return {}, {}
        figures.append(read_json(file))
        result.seconds = figures[-1].get("seconds", result.seconds)
        results.append(result)
    row = suite.compare(name, *results)
    note_served(row, statistics, at_least)
    if not row.verdict.startswith(("ok", "skip")):
        suite.log(results[1].err[-2000:])
    return figures


def package(suite, name, *words):
    """The command of work_packages.py for a package, or a reason to skip."""
    return [python_with(suite, name), script("work_packages.py"), name, *map(str, words)]


def cupy(suite):
    command = package(suite, "cupy", "FIGURES", 20 if suite.quick else 60)
    _, off = compared(suite, "pool off", "cupy", command, {}, at_least=100)
    own, over = compared(suite, "its own pool", "cupy-pool", [*command, "pool"], {})
    if off and own:
        suite.row("its own pool, bare, against pool off under the shim",
                  base.seconds(own["seconds"]),
                  base.seconds(off["seconds"]), base.ratio(off["seconds"], own["seconds"]),
                  "measured")
        suite.row("its own pool, bare and over the shim", base.seconds(own["seconds"]),
                  base.seconds(over["seconds"]), base.ratio(over["seconds"], own["seconds"]),
                  "measured")


def guarded(suite, name, job):
    """Runs a function that adds rows. If it fails, a row of this name says so: others still
    tell."""
    try:
        job()
    except base.Skip as reason:
        suite.row(name, verdict=f"skip: {reason}")
    except Exception as error:
        suite.row(name, verdict=f"FAIL: {type(error).__name__}: {error}".splitlines()[0])


def side_by_side(suite, jobs, at_once=6):
    """Runs functions that add rows, by names, guarded; the rows come in the order of their
    names."""
    first = len(suite.rows)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for future in [pool.submit(guarded, suite, name, job) for name, job in jobs.items()]:
            future.result()
    suite.rows[first:] = sorted(suite.rows[first:], key=lambda row: row.name)


def numba(suite):
    compared(suite, "numba: arrays, kernels", "numba", package(suite, "numba", "FIGURES", 100), {},
             at_least=200)


def jax(suite, name, env, at_least):
    compared(suite, f"jax: {name}", f"jax-{name.split()[0]}", package(suite, "jax", "FIGURES", 60),
             dict(env, XLA_FLAGS=JAX_EXACT), at_least)


def cuda_python(suite, api):
    command = [python_with(suite, "cuda.bindings", simulated=api == "driver"),
               script("work_cuda.py"), "FIGURES", api]
    compared(suite, f"cuda-python: {api}", f"cuda-{api}", command, {}, at_least=200)


def languages(suite):
    """Side by side: what they compute is compared, their times are only told."""
    # By default JAX takes three quarters of the device at the start, which others need here.
    jobs = {"numba": lambda: numba(suite),
            "cuda-python: driver": lambda: cuda_python(suite, "driver"),
            "cuda-python: runtime": lambda: cuda_python(suite, "runtime"),
            "jax: platform": lambda: jax(suite, "platform allocator",
                                         {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
                                          "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 1),
            "jax: default": lambda: jax(suite, "default allocator",
                                        {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"}, 0),
            "jax: growing": lambda: jax(suite, "growing allocator",
                                        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0)}
    side_by_side(suite, jobs)
