# SPDX-License-Identifier: BSD-2-Clause
"""Profilers over a program under the shim: a library that the driver injects and that records by
CUPTI (park_work.c), and Nsight Compute. They must see the same launches as bare."""
import collections
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


def recorded(suite, label, command, env, library):
    """A program into which the driver injects park_work.c: its result, and what segments_of() says
    of each of its processes."""
    for old in glob.glob(f"{label}.*"):
        os.remove(old)
    result = suite.run(command, {**env, "INJECTED_FILE": label, "PARK_WORK": library,
                                 "CUDA_INJECTION64_PATH": library}, 200)
    return result, [segments_of(path) for path in sorted(glob.glob(f"{label}.[0-9]*"))]


def kinds_of(processes):
    """{kind: (recorded, by wrappers)} of a program without segments of its own."""
    found = {}
    for segments, _, other in processes:
        if "cupti" in other:
            raise base.Skip(f"CUPTI answers {other['cupti']} here")
        found.update(segments.get("start", {}))
    return found


def injected(suite, program):
    library = with_cupti(suite, "park_work.so", "park_work.c")
    results, counts = [], []
    for name, env in (("bare", suite.bare_env), ("shim", suite.shim_env())):
        result, processes = recorded(suite, os.path.join(suite.build, f"injected-{name}"),
                                     [program, *PROGRAM], env, library)
        results.append(result)
        counts.append({kind: count for kind, (count, _) in kinds_of(processes).items()})
    bare, shim = counts
    if not bare.get("kernels"):
        raise base.Skip("CUPTI sees no kernels here")
    row = suite.compare("CUPTI, injected", *results)
    if row.verdict == "ok":
        row.verdict = f"ok: {bare}" if bare == shim else f"FAIL: {bare} bare, {shim} under the shim"


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
