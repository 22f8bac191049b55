# SPDX-License-Identifier: BSD-2-Clause
"""NVIDIA's runtimes of several releases: the programs of tests/preload/releases, linked again with
the real libraries in the folder that TEST_CUDARTS names (scripts/fetch-cudarts makes one)."""
import dataclasses
import glob
import json
import os
import re
import sys

import part_frameworks as frameworks
import part_programs
import suite as base

SUITE = "preload-releases"
# The packages of these releases have no static archive; the nearest one of the same interface has.
STATIC_OF = {"12.8": "12.9"}
# Left out of a quick run: scenes in which the releases differ least.
SLOW = re.compile(r"(pitch|reset)-")


def release_of(name):
    """The release that a stand-in library stands for, and whether it is the archive; None for
    others."""
    archive = re.fullmatch(r"libcudart_static(?:-([\d.]+))?\.a", name)
    if archive:
        return archive[1] or "13.0", True
    shared = re.fullmatch(r"libcudart\.so\.(\d+)(?:\.(\d+))?", name)
    if not shared:
        return None
    release = {"11.0": "11.8", "12": "12.8", "13": "13.0"}
    version = ".".join(filter(None, shared.groups()))
    return release.get(version, version), False


class Releases(part_programs.Relinker):
    """Links with the library of the release that a program was made for."""

    def __init__(self, suite, tree, programs, folder):
        super().__init__(suite, tree, programs, "releases")
        self.folder, self.folders = folder, []

    def library(self, release, archive):
        """Path of the real library; base.Skip if there is none."""
        pattern = "libcudart_static.a" if archive else "libcudart.so.*"
        if archive:
            release = STATIC_OF.get(release, release)
        found = sorted(glob.glob(os.path.join(self.folder, release, pattern)))
        if not found:
            kind = "static archive" if archive else "shared library"
            raise base.Skip(f"the folder has no {kind} of release {release}")
        return found[0]

    def replace(self, word):
        known = release_of(os.path.basename(word)) if not word.startswith("-") else None
        if known is None:
            return super().replace(word)
        path = self.library(*known)
        if not known[1]:
            self.folders.append(os.path.dirname(path))
        return path

    def runtime_folders(self):
        folders, self.folders = self.folders, []
        return folders


def served(suite, name, command):
    """How many allocations of a program the pool served."""
    statistics = frameworks.Statistics(suite, name)
    result = suite.run(command, suite.shim_env(**statistics.env))
    count = statistics.total("num_allocs")
    verdict = f"ok: {count} allocations served" if result.rc == 0 and count else \
        f"FAIL: exit {result.rc}, {count} allocations served"
    suite.row(f"{name} reaches the pool", verdict=verdict)


def static_inside(suite, folder):
    """NVIDIA's static runtime of release 11.8, which no package has but inside of other
    libraries."""
    library = os.path.join(folder, "11.8", "libnvjpeg.so.11")
    if not os.path.exists(library):
        suite.row("nvJPEG, static 11.8 inside", verdict="skip: the folder has no libnvjpeg.so.11")
        return
    command = [sys.executable, os.path.join(base.HERE, "work_nvjpeg.py"), library]
    if suite.compare("nvJPEG, static 11.8 inside", *suite.bare_and_shim(command)).verdict == "ok":
        served(suite, "nvJPEG", command)


def agreement(suite, tree, results):
    """The stand-in runtimes on the simulated driver say of first calls what NVIDIA's said here."""
    simulated = {"LD_LIBRARY_PATH": os.path.join(tree, "tests", "sim", "lib"),
                 "SIM_DEVICES": str(devices(suite))}

    for name, real in results.items():
        if not re.fullmatch(r"first-calls-shared-[\d.]+", name):
            continue
        stand_in = suite.run([os.path.join(tree, "tests", "preload", "releases", name)],
                             dict(suite.bare_env, **simulated))
        same = (stand_in.rc, stand_in.out) == (real.rc, real.out)
        difference = base.first_difference(real.out, stand_in.out)
        difference = difference.replace("bare", "real").replace("shim", "stand-in")
        suite.row(f"{name}, the stand-in", verdict="ok: as NVIDIA's" if same
                  else f"FAIL: {difference}")


def devices(suite):
    code = ("import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int(); c.cuInit(0); "
            "c.cuDeviceGetCount(ctypes.byref(n)); print(n.value)")
    return int(suite.run([sys.executable, "-c", code, suite.libcuda]).out)


def cudart(suite):
    folder = os.environ.get("TEST_CUDARTS")
    if not folder and not suite.simulate:
        raise base.Skip("TEST_CUDARTS is not set (scripts/fetch-cudarts makes such a folder)")
    tree = suite.simulate or part_programs.scenes_tree(suite)
    tests = json.loads(suite.must(["meson", "introspect", "--tests", tree], "meson introspect"))
    pairs = [p for t in tests if SUITE in part_programs.suites_of(t)
             for p in part_programs.program_of(t, suite)
             if not (suite.quick and SLOW.match(p.name))]
    if not pairs:
        raise base.Skip("the build has no programs of several releases, or none of that name")
    linker = Releases(suite, tree, pairs, os.path.abspath(folder or ""))
    first, found = len(suite.rows), []
    for p in pairs:
        soname = {"ctypes-11.8": "11.8", "ctypes-12.8": "12.8", "ctypes-13.0": "13.0"}.get(p.name)
        env = p.env
        try:
            command = linker.command(p.command)
            if not suite.simulate:
                # Nothing that would come before the libraries that the programs were linked with
                folders = [os.path.dirname(linker.library(soname, False))] if soname else []
                folders.append(os.path.dirname(suite.libcuda))
                env = dict(env, LD_LIBRARY_PATH=":".join(folders))
        except base.Skip as reason:
            suite.row(p.name, verdict=f"skip: {reason}")
            continue
        found.append(dataclasses.replace(p, command=command, env=env))
    suite.log(f"  {len(found)} programs")
    results = suite.run_pairs(found, jobs=8)
    part_programs.fold(suite, first)
    for p in found:
        if re.fullmatch(r"basic-(static|shared)-[\d.]+", p.name):
            served(suite, p.name, p.command)
    if not suite.simulate:
        agreement(suite, tree, results)
        if suite.match.search("nvJPEG"):
            static_inside(suite, os.path.abspath(folder))
