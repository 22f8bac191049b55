# SPDX-License-Identifier: BSD-2-Clause
"""A release: its version (meson.build), its time (of the last commit), the places of its parts."""
import os
import pathlib
import re
import subprocess
import sys

SUMMARY = "drop-in GPU memory pool for any CUDA program"
DESCRIPTION = """\
libgpucache is preloaded into a CUDA program. It serves cudaMalloc, cudaFree,
cuMemAlloc and cuMemFree from a pool of device memory. Most of these calls then
need no driver call, and a free does not synchronise with the GPU. Idle memory
goes back to the driver on a signal, on a timer or when it is needed. The
program is neither changed nor rebuilt."""
# The project's address: a placeholder until its owner writes the real one here. No other file names
# it; the packages and the Spack recipe take it from here. scripts/package says it while it is one.
ADDRESS = "libgpucache.invalid"
HOMEPAGE = f"https://{ADDRESS}/"
MAINTAINER = f"The libgpucache authors <maintainers@{ADDRESS}>"


def output_of(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, text=True,
                          stdout=subprocess.PIPE, **more).stdout.strip()


class Release:
    def __init__(self, root, work, arches):
        self.root, self.work, self.arches = root, work, arches
        self.tests = work / "tests"
        text = (root / "meson.build").read_text(encoding="utf-8")
        self.version = re.search(r"version: '([^']+)'", text)[1]
        self.commit = output_of("git", "-C", root, "rev-parse", "HEAD")
        self.epoch = int(output_of("git", "-C", root, "log", "-1", "--format=%ct"))
        if output_of("git", "-C", root, "status", "--porcelain", "--untracked-files=no"):
            print("package: the checkout has changes that are not committed", file=sys.stderr)
        os.environ.update(SOURCE_DATE_EPOCH=str(self.epoch), TZ="UTC", LC_ALL="C.UTF-8")
        os.umask(0o022)
        work.mkdir(parents=True, exist_ok=True)

    def stem(self, arch):
        return f"libgpucache-{self.version}-linux-{arch}"

    def library(self, arch):
        return self.work / f"{arch}.so"

    def debug(self, arch):
        return self.work / f"{arch}.so.debug"

    def stage(self, arch, libdir):
        """What is installed below / if libraries lie in /usr/LIBDIR."""
        return self.work / f"{arch}-{pathlib.PurePath(libdir).name}"

    def settle(self, folder):
        """Every file gets the release's time and the usual permissions."""
        for path in [folder, *pathlib.Path(folder).rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (self.epoch, self.epoch), follow_symlinks=False)
