# SPDX-License-Identifier: BSD-2-Clause
"""Programs in Python with caches of their own switched off: the same numbers bare and under the shim,
and how long both take."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import part_flush
import suite as base

CACHE_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def python_with(suite, package):
    """A Python that has the package, or a reason to skip. Its time to import is not measured."""
    if suite.simulate:
        raise base.Skip(f"{package} needs a real GPU")
    for python in dict.fromkeys([shutil.which("python3"), sys.executable]):
        if python and suite.run([python, "-c", f"import importlib.util as u, sys; "
                                 f"sys.exit(u.find_spec('{package}') is None)"]).rc == 0:
            return python
    raise base.Skip(f"no {package}")


def script(name):
    return os.path.join(base.HERE, name)


def read_figures(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def peak_reserved(path):
    """The largest reserved_peak_bytes in a statistics file, at whatever depth."""
    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "reserved_peak_bytes" and isinstance(value, (int, float)):
                    yield value
                else:
                    yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)
    return max(walk(read_figures(path)), default=0)


def measured(suite, label, arguments, env, shim=False):
    """One run: (result, its figures)."""
    file = os.path.join(suite.build, f"{label}.json")
    if os.path.exists(file):
        os.remove(file)
    command = [a if a != "FIGURES" else file for a in arguments]
    result = suite.run(command, suite.shim_env(**env) if shim else dict(suite.bare_env, **env), timeout=240)
    with open(os.path.join(suite.build, f"{label}.log"), "w") as log:
        log.write(result.out + result.err)
    return result, read_figures(file)


def torch(suite):
    python = python_with(suite, "torch")
    steps = ["--steps", "8" if suite.quick else "24"]
    names = ["gpt", "conv", "streams"]
    command = [python, script("work_torch.py"), "FIGURES", *steps, *names]
    stats = os.path.join(suite.build, "torch.stats.json")
    native, native_figures = measured(suite, "torch-native", command, EXACT)
    bare, bare_figures = measured(suite, "torch-bare", command, {**EXACT, **CACHE_OFF})
    shim, shim_figures = measured(suite, "torch-shim", command,
                                  {**EXACT, **CACHE_OFF, "GPUCACHE_STATS": f"exit:{stats}"}, shim=True)
    if bare.rc != 0:
        raise base.Skip(f"does not run here bare: {(bare.err.strip().splitlines() or ['no message'])[-1][:100]}")
    row = suite.compare("losses, cache off", bare, shim)
    if row.verdict != "ok":
        suite.log(shim.err[-2000:])
    if native.rc == 0:
        suite.row("losses against the native allocator's", verdict="ok: equal" if native.out == shim.out
                  else "measured: differ, " + base.first_difference(native.out, shim.out)[:80])
    for name in names:
        times = [f.get(name) for f in (native_figures, bare_figures, shim_figures)]
        if all(times):
            suite.row(f"{name}: cache off", base.seconds(times[1]), base.seconds(times[2]),
                      base.ratio(times[2], times[1]), "measured")
            suite.row(f"{name}: native allocator against shim", base.seconds(times[0]),
                      base.seconds(times[2]), base.ratio(times[2], times[0]), "measured")
    native_peak, shim_peak = native_figures.get("reserved_peak_bytes", 0), peak_reserved(stats)
    suite.row("peak reserved, native against shim", base.mebibytes(native_peak), base.mebibytes(shim_peak),
              base.ratio(shim_peak, native_peak), "measured")
    torch_flush(suite, python)


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


def torch_flush(suite, python):
    """SIGUSR1 in the middle of a training: afterwards the process takes what it takes without a cache."""
    observer = part_flush.Observer(suite)
    file = os.path.join(suite.build, "torch-flush.json")
    command = [python, script("work_torch.py"), file, "--steps", "8", "--repeats", "1", "--pause", "gpt"]
    try:
        bare, bare_taken, _, live = paused_run(suite, observer, command,
                                               dict(suite.bare_env, **EXACT, **CACHE_OFF), False)
        shim, taken, after, _ = paused_run(suite, observer, command,
                                           suite.shim_env(**EXACT, **CACHE_OFF), True)
    finally:
        observer.close()
    suite.compare("SIGUSR1 half way, losses", bare, shim)
    slack = 64 << 20
    verdict = "ok" if after <= bare_taken + slack else (
        f"FAIL: {base.mebibytes(after - bare_taken)} more than without a cache")
    if verdict == "ok":
        verdict = f"ok: {base.mebibytes(taken - after)} given back, {base.mebibytes(live)} live"
    suite.row("device memory after the flush", base.mebibytes(bare_taken), base.mebibytes(after),
              base.ratio(after, bare_taken), verdict)


def simple(suite, package, work, env, *arguments):
    python = python_with(suite, package)
    command = [python, script(work), "FIGURES", *arguments]
    bare, bare_figures = measured(suite, f"{package}-bare", command, env)
    if bare.rc not in (0, base.EXIT_SKIP):
        raise base.Skip(f"does not run here bare: {(bare.err.strip().splitlines() or ['no message'])[-1][:100]}")
    shim, shim_figures = measured(suite, f"{package}-shim", command, env, shim=True)
    if package in bare_figures and package in shim_figures:
        bare.seconds, shim.seconds = bare_figures[package], shim_figures[package]
    row = suite.compare("checksums", bare, shim)
    if not row.verdict.startswith(("ok", "skip")):
        suite.log(shim.err[-2000:])
    return python, shim_figures


def cupy(suite):
    steps = "20" if suite.quick else "60"
    python, shim = simple(suite, "cupy", "work_cupy.py", {}, steps)
    pool, figures = measured(suite, "cupy-pool", [python, script("work_cupy.py"), "FIGURES", steps, "pool"], {})
    if pool.rc == 0 and "cupy" in shim:
        suite.row("its own pool against shim", base.seconds(figures["cupy"]), base.seconds(shim["cupy"]),
                  base.ratio(shim["cupy"], figures["cupy"]), "measured")


def numba(suite):
    simple(suite, "numba", "work_numba.py", {})


def jax(suite):
    simple(suite, "jax", "work_jax.py", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
                                         "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                                         "XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"})
