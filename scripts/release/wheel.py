# SPDX-License-Identifier: BSD-2-Clause
"""The wheel: the Python package `gpucache` with the library in it, the man pages beside. auditwheel
says whether the platform in its name is true."""
import os
import re
import shutil
import subprocess
import sys
import zipfile

from release.build import LIBDIR, run

PLACE = '''# SPDX-License-Identifier: BSD-2-Clause
"""Where the library and the replay are: in this package."""
import os

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpucache.so")
REPLAY = os.path.join(os.path.dirname(LIBRARY), "gpucache-replay")
'''


def unpack_tool(tool, folder):
    """The tool is an archive of the package; place.py in it says where the rest is."""
    with zipfile.ZipFile(tool) as archive:
        for name in archive.namelist():
            if name.startswith("gpucache/"):
                archive.extract(name, folder)
    (folder / "gpucache" / "place.py").write_text(PLACE, encoding="utf-8")


def stage(release, arch):
    folder = release.work / f"{arch}-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    installed = release.stage(arch, LIBDIR) / "usr"
    unpack_tool(installed / "bin" / "gpucache", folder)
    shutil.copyfile(release.library(arch), folder / "gpucache" / "libgpucache.so")
    shutil.copy(installed / "libexec" / "gpucache-replay", folder / "gpucache")
    shutil.copytree(installed / "share", folder / "share")
    release.settle(folder)
    return folder


def make(release, arch, out):
    """hatchling runs scripts/release/hatch_build.py, which takes the files of GPUCACHE_STAGE."""
    # The same platform twice: pip before 20.3, as in Ubuntu 20.04, knows its older name only.
    tag = f"py3-none-manylinux_2_17_{arch}.manylinux2014_{arch}"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=release.root,
        env={**os.environ, "GPUCACHE_STAGE": str(stage(release, arch)), "GPUCACHE_TAG": tag})
    wheel = out / f"libgpucache-{release.version}-{tag}.whl"
    said = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], text=True,
                          stdout=subprocess.PIPE, check=True).stdout
    said = " ".join(said.split())
    if not re.search(rf'consistent with the following platform tag: "manylinux_2_\d+_{arch}"',
                     said) or not re.search(r'"manylinux_2_(5|12|17)_', said):
        sys.exit(f"package: auditwheel: {said}")
