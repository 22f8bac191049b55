# SPDX-License-Identifier: BSD-2-Clause
"""What a real driver does where memory of a process leaves the GPU while the process sleeps: two
questions, each a program of its own. Each program's header says what its answers mean."""
import collections
import os
import re
import shlex

import part_frameworks as frameworks
import part_libraries
import part_profile
import suite as base


def last_words(result):
    return ((result.out.strip() or result.err.strip() or "no output").splitlines())[-1][:160]


def park_pointers(suite):
    """A program that asks the driver, bare. Its lines go to the log."""
    result = suite.run([suite.small("park_pointers")], timeout=100)
    suite.log(result.out.rstrip())
    words = last_words(result)
    suite.row("calls with an address that is away", verdict=f"ok: {words}" if result.rc == 0 else
              words if result.rc == base.EXIT_SKIP else f"FAIL: {words}")


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
    """The library with a copy of submit.c that counts: its path. All else is the build's."""
    with open(os.path.join(base.ROOT, "shim", "route", "submit.c"), encoding="utf-8") as file:
        text = file.read()
    for old, new, times in COUNTED:
        if text.count(old) != times:
            raise RuntimeError(f"shim/route/submit.c has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    source = os.path.join(suite.build, "park-submit.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    tree = os.path.dirname(os.path.dirname(suite.lib))
    lines = suite.must(["ninja", "-C", tree, "-t", "commands", "shim/libgpucache.so"],
                       "ninja").splitlines()
    library = os.path.join(suite.build, "park-library.so")
    put_at = {"route_submit.c.o": source + ".o", "route_submit.c.o.d": source + ".d",
              "submit.c": source, "libgpucache.so": library}
    for made in "route_submit.c.o", "libgpucache.so":
        command, = [words for words in map(shlex.split, lines) if "-o" in words
                    and os.path.basename(words[words.index("-o") + 1]) == made]
        suite.must([put_at.get(os.path.basename(word), word) for word in command],
                   "the build that counts", cwd=tree)
    return library


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


def counted(suite, name, command, library, injected, env=None):
    """A program under the library that counts; a row for each of its segments."""
    label = os.path.join(suite.build, f"park-work-{re.sub('[^a-z]+', '-', name.lower())}")
    result, processes = part_profile.recorded(
        suite, label, command, {**suite.bare_env, "LD_PRELOAD": library, **(env or {})}, injected)
    with open(f"{label}.log", "w", encoding="utf-8") as file:
        file.write(result.out + result.err)
    if result.rc == base.EXIT_SKIP:
        raise base.Skip(last_words(result))
    if result.rc != 0:
        suite.row(name, verdict=f"FAIL: exit {result.rc}: {last_words(result)}")
    total = collections.Counter()
    for segments, excess, other in processes:
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
    _, processes = part_profile.recorded(
        suite, os.path.join(suite.build, "park-work-bare"),
        [demo, "--steps", "5", "--words", "4096"], suite.bare_env, injected)
    kinds = part_profile.kinds_of(processes).values()
    recorded, seen = (sum(kind[n] for kind in kinds) for n in (0, 1))
    suite.row("without the library", str(recorded), str(seen), "", "ok: all of it is excess"
              if recorded and not seen else "FAIL: the count cannot fail")


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
        "JAX": lambda: frameworks.package(suite, "jax", figures, 60),
        "CuPy": lambda: frameworks.package(suite, "cupy", figures, 5),
        "Numba": lambda: frameworks.package(suite, "numba", figures, 100),
        "ONNX Runtime": lambda: onnx(suite),
        **{f"lib{name}": lambda n=name: library_program(suite, n, figures)
           for name in part_libraries.C},
    }
    frameworks.side_by_side(suite, {
        name: lambda n=name, c=command: counted(suite, n, c(), library, injected, env=small)
        for name, command in jobs.items()})
