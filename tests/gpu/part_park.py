# SPDX-License-Identifier: BSD-2-Clause
"""What a real driver does where memory of a process leaves the GPU while the process sleeps: four
questions, each a program of its own. Each program's header says what its answers mean. The tables
also go to park-NAME.txt of the build folder."""
import collections
import glob
import os
import re
import shutil
import sys
import time

import part_frameworks as frameworks
import part_libraries
import part_profile
import suite as base

SOURCES = {"park_quiet": ["park_quiet.c", "park_quiet_common.c", "park_quiet_kernels.c",
                          "park_quiet_copies.c", "park_quiet_graphs.c", "child.c", "driver.c"],
           "park_pointers": ["park_pointers.c", "park_pointers_questions.c",
                             "park_pointers_graphs.c", "child.c", "driver.c"],
           "park_checkpoint": ["park_checkpoint.c", "park_checkpoint_calls.c",
                               "park_checkpoint_steps.c", "child.c", "driver.c"]}


def program(suite, name):
    return suite.compile(name, SOURCES[name])


def played(suite, name, command, timeout, env=None):
    """Runs a program bare; its table goes to the log and to a file. base.Skip: not possible."""
    result = suite.run(command, dict(suite.bare_env, **(env or {})), timeout)
    path = os.path.join(suite.build, f"park-{name}.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(result.out)
    suite.log(result.out.rstrip())
    if result.rc == base.EXIT_SKIP:
        raise base.Skip(last_words(result).removeprefix("skip: "))
    return result


def last_words(result):
    return ((result.out.strip() or result.err.strip() or "no output").splitlines())[-1][:160]


# --- what still runs behind a context's event

def architecture(suite):
    """The GPU's, as nvcc names it."""
    code = ("import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); c.cuInit(0); n = ctypes.c_int(); "
            "major = c.cuDeviceGetAttribute(ctypes.byref(n), 75, 0) or n.value; "
            "c.cuDeviceGetAttribute(ctypes.byref(n), 76, 0); print(f'sm_{major}{n.value}')")
    return suite.run([sys.executable, "-c", code, suite.libcuda]).out.strip()


def cubin(suite):
    """park_quiet.cu as a file to load; None: no nvcc here, and one row says so."""
    if not suite.nvcc:
        suite.row("kernels of nvcc", verdict="skip: no nvcc, or no use for it")
        return None
    out = os.path.join(suite.build, "park_quiet.cubin")
    suite.must([suite.nvcc, "-O2", "-std=c++17", f"-arch={architecture(suite)}", "-rdc=true",
                "-cubin", "-dlink", "-o", out, os.path.join(base.HERE, "park_quiet.cu"),
                "-lcudadevrt"], "compiling park_quiet.cu")
    return out


def park_quiet(suite):
    path = program(suite, "park_quiet")
    loaded = cubin(suite)
    more = ["--cubin", loaded] if loaded else []
    small = suite.simulate or suite.quick
    command = [path, *more, "--seconds", "2" if small else "15", "--alone",
               "0.1" if small else "0.3"]
    result = played(suite, "quiet", command, 150)
    for line in result.out.splitlines()[1:]:
        name, verdict = line[:30].strip(), re.split(r"\s{2,}", line.strip())[-1]
        if not verdict.startswith("ok"):
            suite.row(name, verdict=verdict.replace("HOLE", "FAIL: HOLE"))
    ran = [line for line in result.out.splitlines()
           if line.endswith("  ok") and not line.startswith("all together")]
    suite.row("work behind the event", verdict=f"ok: {len(ran)} kinds" if result.rc == 0
              else f"FAIL: {last_words(result)}")
    broken = suite.run([path, *more, "--broken", "--alone", "0", "--seconds", "2"])
    suite.row("without the event", verdict="ok: work still ran" if broken.rc == 1 else
              f"FAIL: exit {broken.rc}: {last_words(broken)}")


# --- which calls look at an address's memory

def park_pointers(suite):
    result = played(suite, "pointers", [program(suite, "park_pointers"), "--seconds", "60"], 100)
    suite.row("calls with an address that is away",
              verdict=f"measured: {last_words(result)}" if result.rc == 0
              else f"FAIL: {last_words(result)}")


# --- the driver's checkpoint

def checkpoint(suite, part, more):
    """One part of the program; True: what was asked of it held."""
    env = {}
    if suite.simulate:
        env["SIM_SHARED"] = f"gpucache-park-{os.getpid()}-{time.monotonic_ns()}"
    name = " ".join(["checkpoint:", part, *(["by another process"] if "--other" in more else [])])
    try:
        result = played(suite, f"checkpoint-{part}", [program(suite, "park_checkpoint"), *more,
                                                      part], 90, env)
        suite.row(name, verdict=f"{'measured' if result.rc == 0 else 'FAIL'}: "
                                f"{last_words(result)}")
        return result.rc == 0
    finally:
        for left in glob.glob(f"/dev/shm/simulated-gpu-{env.get('SIM_SHARED', 'none')}"):
            os.unlink(left)


def park_checkpoint(suite):
    """If a process cannot do it by itself, the rest is seen with another one's help."""
    by = [] if checkpoint(suite, "self", []) else ["--other"]
    if by:
        checkpoint(suite, "self", by)
    checkpoint(suite, "calls", [*by, "--limit", "60" if suite.simulate else "80"])
    checkpoint(suite, "full", [*by, "--bytes", str(64 << 20 if suite.simulate else 2 << 30)])


# --- whether all work goes through the wrappers

# What a copy of shim/route/submit.c says and counts, for park_work.c. (old text, new text, times)
COUNTED = [
    ('#include <stdatomic.h>\n', '''#include <stdatomic.h>

static __thread int inside;
static atomic_ulong num_passed;
SHIM_EXPORT int gpucache_inside(void);
SHIM_EXPORT unsigned long gpucache_passed(void);
int gpucache_inside(void)
{
    return inside;
}
unsigned long gpucache_passed(void)
{
    return num_passed;
}
static int begin_inside(void)
{
    num_passed++;
    return inside++;
}
#define COUNTED(call) (begin_inside(), counted_rc = (call), inside--, counted_rc)
''', 1),
    ('"    jne slow_" symbol "\\n"', '"    jmp slow_" symbol "\\n"', 1),
    ('"    cbnz w16, 1f\\n"', '"    b 1f\\n"', 1),
    ("        CUresult rc;  ", "        CUresult rc, counted_rc;", 1),
    ("? driver_fn args :", "? COUNTED(driver_fn args) :", 1),
    ("rc = driver_fn args;", "rc = COUNTED(driver_fn args);", 1),
]


def counting_library(suite):
    """The library from a copy of the sources that counts; returns its path."""
    copy = os.path.join(suite.build, "park-sources")
    shutil.rmtree(copy, ignore_errors=True)
    os.makedirs(copy)
    for name in os.listdir(base.ROOT):
        path = os.path.join(base.ROOT, name)
        if name in ("pool", "shim", "scripts"):
            shutil.copytree(path, os.path.join(copy, name))
        elif os.path.isfile(path) and not os.path.islink(path):
            shutil.copy2(path, copy)
    path = os.path.join(copy, "shim", "route", "submit.c")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for old, new, times in COUNTED:
        if text.count(old) != times:
            raise RuntimeError(f"shim/route/submit.c has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    build = os.path.join(suite.build, "park-library")
    if not os.path.exists(os.path.join(build, "build.ninja")):
        suite.must(["meson", "setup", build, copy, "-Dtests=false", "--buildtype=" +
                    ("plain" if suite.simulate else "release")], "meson setup")
    suite.must(["ninja", "-C", build, "shim/libgpucache.so"], "the build that counts")
    return os.path.join(build, "shim", "libgpucache.so")


def segments_of(path):
    """What park_work.c wrote of one process: {segment: {kind: (recorded, by wrappers)}}, excess
    {segment: [(kind, count, function)]}, and the other lines {word: number}."""
    segments, excess, other = {}, collections.defaultdict(list), collections.Counter()
    segment = "start"
    with open(path, encoding="utf-8") as file:
        for words in (line.split() for line in file):
            if words[0] == "segment":
                segment = words[1]
            elif words[0] == "excess":
                excess[segment].append((words[1], int(words[2]), words[3]))
            elif len(words) == 3:
                segments.setdefault(segment, {})[words[0]] = (int(words[1]), int(words[2]))
            else:
                other[words[0]] += int(words[1])
    return segments, excess, other


# The driver fills memory of its own when it makes a context or takes code.
OWN_MEMORY = re.compile(r"^(cuInit|cuCtxCreate|cuDevicePrimaryCtx|cuModule|cuLibrary|cuKernelGet|"
                        r"cuFuncGet|cuFuncLoad|cuLink)\w*(<-\w+)?$")


def note_segment(suite, name, kinds, excess):
    recorded = sum(kind[0] for kind in kinds.values())
    seen = sum(kind[1] for kind in kinds.values())
    if not recorded:
        return
    words = ", ".join(f"{kinds[kind][0]} {kind}" for kind in kinds)
    routes = ", ".join(f"{count} {kind} by {function}" for kind, count, function in excess)
    odd = [function for _, _, function in excess if not OWN_MEMORY.match(function)]
    verdict = f"ok: {words}" if not excess else f"ok: {words}; of the driver's own: {routes}"
    suite.row(name, str(recorded), str(seen), "", verdict if not odd else
              f"FAIL: {words}; excess: {routes}")


def counted(suite, name, command, library, injected, timeout=200, env=None):
    """A program under the library that counts; a row for each of its segments."""
    label = os.path.join(suite.build, f"park-work-{re.sub('[^a-z]+', '-', name.lower())}")
    for old in glob.glob(f"{label}.*"):
        os.remove(old)
    result = suite.run(command, {**suite.bare_env, "LD_PRELOAD": library, "INJECTED_FILE": label,
                                 "CUDA_INJECTION64_PATH": injected, "PARK_WORK": injected,
                                 **(env or {})}, timeout)
    with open(f"{label}.log", "w", encoding="utf-8") as file:
        file.write(result.out + result.err)
    if result.rc == base.EXIT_SKIP:
        raise base.Skip(last_words(result))
    if result.rc != 0:
        suite.row(name, verdict=f"FAIL: exit {result.rc}: {last_words(result)}")
    total = collections.Counter()
    for path in sorted(glob.glob(f"{label}.[0-9]*")):
        segments, excess, other = segments_of(path)
        total.update(other)
        for segment, kinds in segments.items():
            note_segment(suite, name if segment == "start" else f"{name}: {segment}", kinds,
                         excess[segment])
    if "cupti" in total:
        passed = total["passed"]
        suite.row(name, "", str(passed), "", f"skip: CUPTI answers {total['cupti']} here, {passed} "
                  "calls went through wrappers" if passed else "FAIL: no call counted")
    elif total["dropped"]:
        suite.row(f"{name}: records lost", str(total["dropped"]), verdict="measured")


def seen_without_wrappers(suite, demo, injected):
    """A program without the library: everything is excess, or the count could not fail."""
    label = os.path.join(suite.build, "park-work-bare")
    for old in glob.glob(f"{label}.*"):
        os.remove(old)
    suite.run([demo, "--steps", "5", "--words", "4096"], {
        **suite.bare_env, "INJECTED_FILE": label, "CUDA_INJECTION64_PATH": injected})
    kinds = collections.Counter()
    for path in glob.glob(f"{label}.[0-9]*"):
        segments, _, other = segments_of(path)
        if "cupti" in other:
            raise base.Skip(f"CUPTI answers {other['cupti']} here")
        for recorded, seen in segments.get("start", {}).values():
            kinds.update(recorded=recorded, seen=seen)
    suite.row("without the library", str(kinds["recorded"]), str(kinds["seen"]), "",
              "ok: all of it is excess" if kinds["recorded"] and not kinds["seen"]
              else "FAIL: the count cannot fail")


def onnx(suite):
    python = frameworks.python_with(suite, "onnxruntime")
    frameworks.python_with(suite, "onnx")
    return [python, frameworks.script("work_onnx.py")]


def library_program(suite, name, figures):
    if suite.simulate:
        raise base.Skip("NVIDIA's libraries need a real GPU")
    return [part_libraries.build_c(suite, name), figures]


def park_work(suite):
    injected = part_profile.with_cupti(suite, "park_work.so", "park_work.c")
    library = counting_library(suite)
    figures = os.path.join(suite.build, "park-work-figures.json")
    demo = suite.compile("demo-cc", ["demo.c"], static_cudart=True)
    try:
        seen_without_wrappers(suite, demo, injected)
    except base.Skip as reason:
        suite.row("without the library", verdict=f"skip: {reason}")
    small = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TORCHINDUCTOR_COMPILE_THREADS": "1",
             "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
    torch = [] if not suite.quick else ["train", "cudnn", "graphs"]
    jobs = {
        "demo, static runtime": lambda: [demo, "--steps", "20", "--words", "4096"],
        "PyTorch": lambda: [frameworks.python_with(suite, "torch"),
                            frameworks.script("work_park.py"), *torch],
        "JAX": lambda: [frameworks.python_with(suite, "jax"), frameworks.script("work_jax.py"),
                        figures],
        "CuPy": lambda: [frameworks.python_with(suite, "cupy"), frameworks.script("work_cupy.py"),
                         figures, "5"],
        "Numba": lambda: [frameworks.python_with(suite, "numba"),
                          frameworks.script("work_numba.py"), figures],
        "ONNX Runtime": lambda: onnx(suite),
        **{f"lib{name}": lambda n=name: library_program(suite, n, figures)
           for name in part_libraries.C},
    }

    def guarded(name, command):
        try:
            counted(suite, name, command(), library, injected, env=small)
        except base.Skip as reason:
            suite.row(name, verdict=f"skip: {reason}")
    frameworks.side_by_side(suite, [lambda n=name, c=command: guarded(n, c)
                                    for name, command in jobs.items()])
