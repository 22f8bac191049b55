# SPDX-License-Identifier: BSD-2-Clause
"""Shared by all parts of the GPU suite: the machine's tools, builds, processes bare and under
the shim, and the table of results. Only Suite.run_pairs() uses threads; its rows come in order."""
import argparse
import concurrent.futures
import dataclasses
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Threads that allocate while the process exits: seen to end a bare process, driver 580.
FRAIL = ("exit_threads", "life")
EXIT_SKIP = 77
# What a small program may take beside others: a context alone is a matter of seconds on some
# machines.
PROGRAM_S = 240

MORE_SOURCES = {"canary": ["canary_round.c", "canary_pool.c"]}


class Skip(Exception):
    """A part cannot run here; the text says why."""


@dataclasses.dataclass
class Result:
    rc: int
    out: str
    err: str
    seconds: float

    @property
    def timed_out(self):
        return self.rc is None


@dataclasses.dataclass
class Program:
    """What run_pairs() runs bare and under the shim; `before` and `beside` are preloaded with the
    shim."""
    name: str
    command: list
    env: dict
    alone: bool = False
    before: tuple = ()
    beside: tuple = ()


@dataclasses.dataclass
class Row:
    part: str
    name: str
    bare: str = ""
    shim: str = ""
    ratio: str = ""
    verdict: str = "ok"


def seconds(value):
    return f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


def nanoseconds(value):
    return f"{value / 1000:.2f} µs" if value >= 1000 else f"{value:.0f} ns"


def ratio(shim, bare):
    if not bare or not shim:
        return ""
    value = shim / bare
    return f"{value:.2f}" if value >= 0.01 else f"1/{bare / shim:.0f}"


def mebibytes(value):
    return f"{value / (1 << 20):.0f} MiB"


def numbers(path):
    """What a program left in a file: {name: number}, a line each; nothing without the file."""
    try:
        with open(path, encoding="utf-8") as file:
            return {key: int(value) for key, value in (line.split() for line in file)}
    except FileNotFoundError:
        return {}


def number_from(least):
    """For argparse: a whole number that is not less than this."""
    def read(words):
        if not words.isdecimal() or int(words) < least:
            raise argparse.ArgumentTypeError(f"{words} is no number from {least} on")
        return int(words)
    return read


def expression(words):
    """For argparse: a regular expression."""
    try:
        re.compile(words)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{words} is no regular expression: {error}") from None
    return words


def why_refused(parts, known, simulate):
    """A sentence about parts that are not known, or a build folder without the simulated driver;
    or ''."""
    unknown = [name or "''" for name in parts if name not in known]
    if unknown:
        return f"no such part: {', '.join(unknown)} (have: {', '.join(known)})"
    if simulate and not os.path.exists(simulated_driver(simulate)):
        return f"{simulate}: there is no simulated driver (tests/sim) in this build folder"
    return ""


def simulated_driver(build):
    return os.path.join(build, "tests", "sim", "lib", "libcuda.so.1")


def first_difference(bare, shim):
    """One line that says where two texts part."""
    a, b = bare.splitlines(), shim.splitlines()
    for i in range(max(len(a), len(b))):
        left = a[i] if i < len(a) else "(nothing)"
        right = b[i] if i < len(b) else "(nothing)"
        if left != right:
            return f"line {i + 1}: bare {left!r}, shim {right!r}"
    return "no difference"


class Suite:
    def __init__(self, build, quick, simulate, verbose, match=""):
        self.build = os.path.abspath(build)
        self.match = re.compile(match)
        self.quick = quick
        self.simulate = os.path.abspath(simulate) if simulate else None
        self.verbose = verbose
        self.start = time.monotonic()
        self.rows = []
        self.part = ""
        self.cc = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
        self.cuda = subprocess.run([os.path.join(ROOT, "scripts", "cuda-path")], check=True,
                                   capture_output=True, text=True).stdout.strip()
        self.nvcc = None if simulate else self.find_nvcc()
        self.libcuda = self.find_libcuda()
        self.bare_env = self.environment()
        self.lib = self.backtrace = None
        os.makedirs(self.build, exist_ok=True)

    # The machine

    def find_nvcc(self):
        nvcc = shutil.which("nvcc") or os.path.join(self.cuda, "bin", "nvcc")
        return nvcc if os.path.exists(nvcc) else None

    def find_libcuda(self):
        if self.simulate:
            return simulated_driver(self.simulate)
        try:
            known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
        except OSError:
            known = ""
        for line in known.splitlines():
            if "libcuda.so.1 (libc6,AArch64)" in line or \
                    "libcuda.so.1 " in line and "x86-64" in line:
                return line.split("=>")[1].strip()
        for path in ("/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
                     "/usr/lib/x86_64-linux-gnu/libcuda.so.1"):
            if os.path.exists(path):
                return path
        return None

    def has_gpu(self):
        code = ("import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int(); r = "
                "c.cuInit(0) or "
                "c.cuDeviceGetCount(ctypes.byref(n)); print(r, n.value); sys.exit(r != 0 or "
                "n.value == 0)")
        return bool(self.libcuda) and self.run([sys.executable, "-c", code, self.libcuda]).rc == 0

    def cudart_dir(self):
        """The folder of libcudart.so and libcudart_static.a."""
        if self.simulate:
            return os.path.join(self.simulate, "tests", "sim", "cudart")
        for sub in ("lib64", "lib", "targets/x86_64-linux/lib"):
            path = os.path.join(self.cuda, sub)
            if glob.glob(os.path.join(path, "libcudart.so*")):
                return path
        raise Skip("no libcudart beside the CUDA headers")

    def shared_cudart(self):
        libraries = sorted(glob.glob(os.path.join(self.cudart_dir(), "libcudart.so.1[2-9]")))
        if not libraries:
            raise Skip("no shared libcudart beside the CUDA headers")
        return libraries[-1]

    def environment(self):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("GPUCACHE") and k != "LD_PRELOAD"}
        if self.simulate:
            env.update(self.library_path({}))
            env.setdefault("SIM_CAPACITY", "8G")
            # Programs that only look on see work end, as they do on a real GPU.
            env.setdefault("SIM_POLL_NS", "50000")
        env["PYTHONUNBUFFERED"] = "1"
        return env

    def library_path(self, env):
        """LD_LIBRARY_PATH for programs that open libcudart or libcuda by name. Not for Python's
        packages: they bring libraries of their own along."""
        folders = [f for f in [env.get("LD_LIBRARY_PATH")] if f]
        return {"LD_LIBRARY_PATH": ":".join([*folders, os.path.dirname(self.libcuda),
                                             self.cudart_dir()])}

    def shim_env(self, **extra):
        env = dict(self.bare_env, **extra)
        env["LD_PRELOAD"] = self.lib
        return env

    # Building

    def log(self, text):
        print(text, file=sys.stderr, flush=True)

    def must(self, command, what, **kwargs):
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, **kwargs)
        if result.returncode:
            raise RuntimeError(f"{what} failed:\n  {' '.join(command)}\n{result.stdout[-4000:]}")
        return result.stdout

    def meson(self, folder, *options):
        """Configures and builds the project in a folder under the build folder."""
        path = os.path.join(self.build, folder)
        if not os.path.exists(os.path.join(path, "build.ninja")):
            self.must(["meson", "setup", path, ROOT, *options], "meson setup")
        self.must(["ninja", "-C", path], "the build")
        return path

    def build_library(self):
        if self.simulate:
            self.lib = os.path.join(self.simulate, "shim", "libgpucache.so")
        else:
            path = self.meson("library", "-Dtests=false", "--buildtype=release")
            self.lib = os.path.join(path, "shim", "libgpucache.so")
        if not os.path.exists(self.lib):
            raise RuntimeError(f"{self.lib} was not built")
        self.backtrace = self.compile("backtrace.so", ["backtrace.c"], "-shared", "-fPIC")

    def small(self, name):
        """One of the small programs that call the driver: NAME.c and what it needs."""
        sources = [f"{name}.c", "driver.c", *MORE_SOURCES.get(name, [])]
        return self.compile(name, sources)

    def compile(self, name, sources, *flags, shared_cudart=False, static_cudart=False):
        """A C program of this folder, by the C compiler; returns its path."""
        out = os.path.join(self.build, name)
        command = [self.cc, "-std=c17", "-D_GNU_SOURCE", "-O2", "-Wno-overlength-strings", "-I",
                   ROOT, "-isystem", os.path.join(self.cuda, "include"), "-o", out,
                   *[os.path.join(HERE, s) for s in sources], *flags]
        if shared_cudart:
            command += [self.shared_cudart(), f"-Wl,-rpath,{self.cudart_dir()}"]
        if static_cudart:
            command.append(os.path.join(self.cudart_dir(), "libcudart_static.a"))
        command += ["-lpthread", "-ldl", "-lrt"]
        self.must(command, f"compiling {name}")
        return out

    def compile_cuda(self, name, *flags):
        """The program NAME.cu of this folder, by nvcc; returns its path."""
        if not self.nvcc:
            raise Skip("no nvcc")
        out = os.path.join(self.build, name)
        self.must([self.nvcc, "-O2", "-std=c++17", "-arch=native", "-I", ROOT, "-o", out,
                   os.path.join(HERE, f"{name}.cu"), *flags], f"compiling {name}")
        return out

    # Running

    def run(self, command, env=None, timeout=120, stdin=None):
        """Runs a command in a process group of its own; rc None when it ran too long."""
        start = time.monotonic()
        process = subprocess.Popen(command, env=env or self.bare_env, stdin=subprocess.DEVNULL
                                   if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
            rc = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            rc = None
        return Result(rc, out.decode(errors="replace"), err.decode(errors="replace"),
                      time.monotonic() - start)

    def bare_and_shim(self, command, env=None, timeout=120, before=(), beside=()):
        extra = env or {}
        bare = self.run(command, dict(self.bare_env, **extra), timeout)
        if bare.rc == EXIT_SKIP:
            return bare, bare  # time on a GPU is short
        # Some programs look for their own page; no other program's page is in this folder.
        with tempfile.TemporaryDirectory() as pages:
            shim = dict(self.shim_env(**{"GPUCACHE_DIR": pages, **extra}),
                        LD_PRELOAD=" ".join([*before, self.lib, *beside, self.backtrace]))
            return bare, self.run(command, shim, timeout)

    # Results

    def row(self, name, bare="", shim="", ratio="", verdict="ok"):
        row = Row(self.part, name, bare, shim, ratio, verdict)
        self.rows.append(row)
        if self.verbose or not verdict.startswith(("ok", "skip")):
            figures = ", ".join(filter(None, (bare, shim, ratio)))
            self.log(f"  {time.monotonic() - self.start:.1f} s  {row.name}: "
                     f"{figures + ': ' if figures else ''}{row.verdict}")
        return row

    def compare(self, name, bare, shim, same_stderr=False, may_fail=False):
        """A row for two results that have to be equal byte for byte. may_fail: being equal is
        enough."""
        verdict = "ok"
        if bare.timed_out or shim.timed_out:
            verdict = "FAIL: ran too long " + ("bare" if bare.timed_out else "under the shim")
        elif bare.rc == EXIT_SKIP and shim.rc == EXIT_SKIP:
            reason = (bare.out.strip() or bare.err.strip() or "not possible here").splitlines()[-1]
            verdict = f"skip: {reason}"
        elif bare.rc is not None and bare.rc < 0 and shim.rc == 0:
            # Two threads that free the same pointer at once can crash a real driver.
            verdict = f"ok: ended by signal {-bare.rc} bare, goes on under the shim"
        elif bare.rc != shim.rc:
            tail = (shim.err.strip().splitlines() or [""])[-1]
            verdict = f"FAIL: exit {bare.rc} bare, {shim.rc} under the shim ({tail})"
            if bare.out != shim.out:
                verdict += "; output, " + first_difference(bare.out, shim.out)
            if (shim.rc or 0) < 0:
                self.log(f"  {name}, stderr:\n{shim.err[-6000:]}")
        elif bare.out != shim.out:
            verdict = "FAIL: output, " + first_difference(bare.out, shim.out)
        elif same_stderr and bare.err != shim.err:
            verdict = "FAIL: stderr, " + first_difference(bare.err, shim.err)
        elif bare.rc != 0:
            verdict = f"{'ok' if may_fail else 'FAIL'}: exit {bare.rc} both bare and under the shim"
        return self.row(name, seconds(bare.seconds), seconds(shim.seconds),
                        ratio(shim.seconds, bare.seconds), verdict)

    def patient_pair(self, p):
        """Both results; of programs that a real driver sometimes does not survive, also bare, the
        first of three runs in which it did."""
        for _ in range(3):
            bare, shim = self.bare_and_shim(p.command, p.env, PROGRAM_S, p.before, p.beside)
            if not p.name.startswith(FRAIL) or (bare.rc == shim.rc == 0):
                break
        return bare, shim

    def run_pairs(self, programs, jobs):
        """Those programs that are not alone run side by side, each one bare and then under the
        shim. Returns the bare results by name."""
        results = {}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [(p, pool.submit(self.patient_pair, p)) for p in programs if not p.alone]
            for p, future in futures:
                results[p.name] = future.result()
                self.compare(p.name, *results[p.name], same_stderr=True, may_fail=True)
        for p in programs:
            if p.alone:
                results[p.name] = self.patient_pair(p)
                self.compare(p.name, *results[p.name], same_stderr=True, may_fail=True)
        return {name: bare for name, (bare, _) in results.items()}

    def table(self):
        """The table of all rows, as text; part by part."""
        heads = ("part", "name", "bare", "shim", "ratio", "verdict")
        lines = [tuple(getattr(row, h) for h in heads) for row in self.rows]
        widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(5)]
        text = []
        for line in [heads, tuple("-" * w for w in widths) + ("-------",), *lines]:
            cells = [line[0].ljust(widths[0]), line[1].ljust(widths[1])]
            cells += [line[i].rjust(widths[i]) for i in (2, 3, 4)]
            text.append("  ".join(cells + [line[5]]).rstrip())
        return "\n".join(text)

    def failed(self):
        return sum(row.verdict.startswith("FAIL") for row in self.rows)

    def skipped(self):
        return sum(row.verdict.startswith("skip") for row in self.rows)
