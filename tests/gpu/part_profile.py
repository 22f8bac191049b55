# SPDX-License-Identifier: BSD-2-Clause
"""Profilers over a program under the shim: a library that the driver injects and that counts by
CUPTI, and Nsight Compute. They must see the same launches as bare; the driver gets fewer
requests for memory."""
import glob
import os
import re
import shutil

import suite as base

# A program that launches the same kernels each time, and allocates in between.
PROGRAM = ["--steps", "20", "--words", "4096"]


def cupti_folders(suite):
    """Where CUPTI may be."""
    return [os.path.join(suite.cuda, "extras", "CUPTI"), suite.cuda,
            os.path.join(suite.cuda, "targets", "x86_64-linux")]


def cupti_include(suite):
    """The folder of CUPTI's headers. base.Skip: there are none."""
    for folder in cupti_folders(suite):
        include = os.path.join(folder, "include")
        if os.path.exists(os.path.join(include, "cupti.h")):
            return include
    raise base.Skip("no headers of CUPTI beside those of CUDA")


def with_cupti(suite, name, source):
    """A library of one source that uses CUPTI; returns its path. base.Skip: there is no CUPTI."""
    include = cupti_include(suite)
    found = [path for folder in cupti_folders(suite)
             for path in sorted(glob.glob(os.path.join(folder, "lib*", "libcupti.so*")))]
    if not found:
        raise base.Skip("no CUPTI beside the CUDA headers")
    return suite.compile(name, [source], "-shared", "-fPIC", "-I", include, found[0],
                         f"-Wl,-rpath,{os.path.dirname(found[0])}")


def both(suite, name, command_of, env_of=lambda file: {}):
    """A program bare and under the shim, each with a file of its own for its figures: (results, the
    figures bare, those under the shim). command_of, env_of: what the program gets, for the file."""
    results, seen = [], []
    for kind, env in (("bare", suite.bare_env), ("shim", suite.shim_env())):
        file = os.path.join(suite.build, f"{name}.{kind}")
        if os.path.exists(file):
            os.remove(file)
        results.append(suite.run(command_of(file), {**env, **env_of(file)}))
        seen.append(base.numbers(file))
    return results, *seen


def injected(suite, program):
    library = with_cupti(suite, "injected.so", "injected.c")
    results, bare, shim = both(suite, "injected", lambda _: [program, *PROGRAM], lambda file: {
        "CUDA_INJECTION64_PATH": library, "INJECTED_FILE": file})
    if not bare.get("kernels"):
        raise base.Skip("CUPTI sees no kernels here: " +
                        (results[0].err.strip()[-120:] or "no words"))
    row = suite.compare("CUPTI, injected", *results)
    if row.verdict == "ok":
        same = all(bare[key] == shim.get(key) for key in ("kernels", "memsets"))
        words = (f"{bare['kernels']} kernels, memory {bare['memory']} bare, "
                 f"{shim.get('memory')} under the shim")
        row.verdict = f"ok: {words}" if same else f"FAIL: {bare} bare, {shim} under the shim"


def nsight(suite, program):
    found = glob.glob("/opt/nvidia/nsight-compute/*/ncu") + [os.path.join(suite.cuda, "bin", "ncu")]
    tool = shutil.which("ncu") or next((path for path in found if os.path.exists(path)), None)
    if not tool:
        raise base.Skip("no Nsight Compute")
    command = [tool, "--launch-count", "8", "--section", "LaunchStats", "--csv", program, *PROGRAM]
    bare, shim = suite.bare_and_shim(command, timeout=100)
    if bare.rc != 0:
        raise base.Skip("Nsight Compute does not run here: " + (bare.out + bare.err).strip()[-120:])
    launches = [len(set(re.findall(r'^"(\d+)"', result.out, re.MULTILINE)))
                for result in (bare, shim)]
    same = shim.rc == 0 and launches[0] == launches[1] > 0
    suite.row("Nsight Compute", base.seconds(bare.seconds), base.seconds(shim.seconds),
              base.ratio(shim.seconds, bare.seconds),
              f"ok: {launches[0]} launches" if same
              else f"FAIL: exit {shim.rc}, launches {launches}")


def profile(suite):
    if suite.simulate:
        raise base.Skip("profilers want a real driver")
    program = suite.compile("demo-cc", ["demo.c"], static_cudart=True)
    for part in (injected, nsight):
        try:
            part(suite, program)
        except base.Skip as reason:
            suite.row(part.__name__, verdict=f"skip: {reason}")
