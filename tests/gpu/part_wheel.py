# SPDX-License-Identifier: BSD-2-Clause
"""The wheel that TEST_WHEEL names: installed offline into a folder of the build folder. PyTorch
trains bare, under `gpucache run` of the wheel and under the library of the local build, with
PyTorch's cache off and on. The losses and the counts of allocations must be equal."""
import os
import shutil

import part_frameworks as frameworks
import part_torch
import suite as base
from trainer import CACHE_OFF, Peer, train

# Workers end in any order, and each asks a little for itself at its end.
COUNTS_DIFFER = 0.01
# The same code by two compilers: how far the times differ is measured, not judged.
ROUNDS = 2


def install(suite, python, wheel):
    """The folder of the installed package, and the library in it."""
    folder = os.path.join(suite.build, "wheel")
    shutil.rmtree(folder, ignore_errors=True)
    if suite.run([python, "-m", "pip", "--version"]).rc:
        raise base.Skip("this Python has no pip")
    suite.must([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--no-index", "--no-deps", "--target", folder, os.path.abspath(wheel)],
               "installing the wheel", env=suite.bare_env)
    return folder, os.path.join(os.path.realpath(folder), "gpucache", "libgpucache.so")


def python_path(folder):
    """In front of what the machine sets itself."""
    return ":".join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


def tool_works(suite, tool, folder, library):
    """The installed tool, as a module and as a program, puts the installed library in front."""
    environment = dict(suite.bare_env, PYTHONPATH=python_path(folder))
    for words in (tool, [os.path.join(folder, "bin", "gpucache")]):
        shown = suite.run([*words, "run", "--", "printenv", "LD_PRELOAD"], environment)
        verdict = "ok" if shown.out.strip() == library else \
            f"FAIL: {(shown.out + shown.err).strip()[-120:]!r}, not {library}"
        suite.row(f"the tool of the wheel, {'as a module' if words is tool else 'by its name'}",
                  verdict=verdict)


def peers(tool, folder):
    """(cache off, cache on), each bare, under the local build, under the wheel."""
    sets = []
    for name, env in (("cache off", CACHE_OFF), ("cache on", {})):
        sets.append((Peer(f"{name} bare", env), Peer(f"{name} local", env, True),
                     Peer(f"{name} wheel", {**env, "PYTHONPATH": python_path(folder)}, True,
                          before=(*tool, "run", "--"))))
    return sets


def compare(suite, workload, bare, local, wheel):
    """The rows of three runs that differ in the library alone."""
    name = f"{workload}: {bare.peer.name.removesuffix(' bare')}"
    for run in (bare, local, wheel):
        if run.failure:
            suite.row(f"{workload}: {run.peer.name}", verdict=f"FAIL: {run.failure}"
                      if run.peer.preload else f"skip: does not run here bare: {run.failure}")
            return
    row = suite.row(f"{name}: losses", verdict="ok" if bare.out == local.out == wheel.out else
                    "FAIL: " + base.first_difference(bare.out, wheel.out if bare.out == local.out
                                                     else local.out))
    off = "PYTORCH_NO_CUDA_MEMORY_CACHING" in bare.peer.env
    frameworks.note_served(row, wheel.statistics, at_least=100 * wheel.steps if off else 1)
    counts = [run.statistics.total("num_allocs") for run in (local, wheel)]
    suite.row(f"{name}: served, local build and wheel", f"{counts[0]}", f"{counts[1]}",
              base.ratio(counts[1], counts[0]),
              "ok" if abs(counts[1] - counts[0]) <= COUNTS_DIFFER * counts[0] else
              "FAIL: the counts differ")
    bytes_ = [run.reserved_bytes() for run in (local, wheel)]
    suite.row(f"{name}: peak reserved, local build and wheel", base.mebibytes(bytes_[0]),
              base.mebibytes(bytes_[1]), base.ratio(bytes_[1], bytes_[0]), "measured")
    part_torch.compare_times(suite, f"{name}: bare and wheel", bare, wheel)
    part_torch.compare_times(suite, f"{name}: local build and wheel", local, wheel)


def wheel(suite):
    file = os.environ.get("TEST_WHEEL")
    if not file:
        raise base.Skip("TEST_WHEEL names no wheel")
    python = frameworks.python_with(suite, "torch")
    folder, library = install(suite, python, file)
    tool = [python, "-m", "gpucache"]
    tool_works(suite, tool, folder, library)
    off, on = peers(tool, folder)
    command = [python, frameworks.script("work_torch.py"), "/dev/null", "--warm", "1"]
    for runs in train(suite, (*off, *on), command, ("gpt",), 20, ROUNDS, "-wheel"):
        by_name = {run.peer.name: run for run in runs}
        for three in (off, on):
            compare(suite, runs[0].workload, *(by_name[peer.name] for peer in three))
