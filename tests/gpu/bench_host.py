# SPDX-License-Identifier: BSD-2-Clause
"""The parts that need no GPU: recorded programs replayed on the pool, instructions of a pair,
and the start of a process without CUDA. Also the rows about the machine."""
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

import bench_peers
import bench_store
import suite as base

REPLAYS = {
    "arena": [],
    "arena, work in flight": ["--busy"],
    "segments": ["--backing", "segment"],
    "segments, work in flight": ["--backing", "segment", "--busy"],
}


def tests_folder(suite):
    """A finished build of the project with its tests."""
    return suite.simulate or suite.meson("tests", "--buildtype=release", f"-Dtoolkit={suite.cuda}")


def replay(suite, programs):
    program = os.path.join(tests_folder(suite), "tests", "bench", "replay")
    if not os.path.exists(program):
        raise base.Skip("no replay: liblzma is missing")
    folder = os.path.join(base.ROOT, "tests", "bench", "traces")
    traces = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    rows = []
    for name, arguments in REPLAYS.items():
        out = suite.must([program, "--json", *arguments, *traces], "replay")
        for line in out.splitlines():
            found = json.loads(line)
            rows.append(bench_store.row("replay", name, bench_peers.SHIM, found["ratio"], "ratio",
                                        trace=found["trace"], peak_live=found["peak_live"],
                                        peak_reserved=found["peak_reserved"]))
    return rows


def instructions(suite, programs):
    folder = tests_folder(suite)
    script = os.path.join(base.ROOT, "tests", "bench", "instructions.py")
    modes = "single" if suite.quick else "single,fenced,launches"
    libraries = [os.path.join(folder, "tests", "sim", sub) for sub in ("lib", "cudart")]
    result = suite.run([sys.executable, script, "--api", "driver,runtime", "--mode", modes,
                        "--sizes", "512,1M,64M", os.path.join(folder, "tests", "bench", "pair"),
                        os.path.join(folder, "shim", "libgpucache.so")],
                       dict(suite.bare_env, LD_LIBRARY_PATH=":".join(libraries)), timeout=300)
    if result.rc == base.EXIT_SKIP:
        raise base.Skip(result.out.strip())
    if result.rc:
        raise RuntimeError(result.err)
    rows = []
    for api, mode, size, count in re.findall(r"api=(\w+) mode=(\w+) size=(\w+) "
                                             r"instructions=([\d.]+)", result.out):
        number, unit = re.match(r"(\d+)([KMG]?)", size).groups()
        rows.append(bench_store.row("instructions", mode, bench_peers.SHIM, float(count),
                                    "instructions", route=api,
                                    size_bytes=int(number) << {"": 0, "K": 10, "M": 20,
                                                               "G": 30}[unit]))
    return rows


def start(suite, programs):
    """How much later a program without CUDA ends, in turns with the bare one."""
    times = {False: [], True: []}
    for _ in range(20 if suite.quick else 400):
        for preload, column in times.items():
            env = suite.shim_env() if preload else suite.bare_env
            begin = time.perf_counter_ns()
            subprocess.run(["/bin/true"], env=env, check=True)
            column.append(time.perf_counter_ns() - begin)
    return [bench_store.row("start", "a process without CUDA", peer,
                            statistics.median(times[preload]), "ns")
            for peer, preload in (("bare", False), (bench_peers.SHIM, True))]


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            names = re.findall(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} of them"


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              timeout=60).stdout.strip().splitlines()[-1]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ""


def machine(suite, parts):
    """A row for each fact that a reader needs to judge the figures of these parts."""
    query = ["nvidia-smi", "--format=csv,noheader"]
    facts = {"processor": processor(), "system": platform.release(),
             "libgpucache": first_line(["git", "-C", base.ROOT, "describe", "--always", "--dirty"])}
    if not set(parts) - {"replay", "instructions", "start"}:
        pass
    elif suite.simulate:
        facts["GPU"] = "a simulated one: these figures say nothing about speed"
    else:
        facts["GPU"] = first_line([*query, "--query-gpu=name,memory.total"])
        facts["driver"] = first_line([*query, "--query-gpu=driver_version"])
        facts["CUDA Toolkit"] = first_line([suite.nvcc, "--version"]) if suite.nvcc else ""
        python = base.shutil.which("python3") or sys.executable
        facts["PyTorch"] = first_line([python, "-c",
                                       "import importlib.metadata as m; print(m.version('torch'))"])
    return [bench_store.row("machine", name, "", 0, "", note=fact, parts=", ".join(parts))
            for name, fact in facts.items() if fact]
