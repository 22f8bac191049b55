# SPDX-License-Identifier: BSD-2-Clause
"""The RPM package, from what meson installed for /usr/lib64."""
import os
import pathlib
import shutil
import tempfile
import time

from release.archive import gzipped
from release.build import LIBDIR, run
from release.debian import interpreter
from release.release import DESCRIPTION, HOMEPAGE, MAINTAINER

SPEC = pathlib.Path(__file__).with_name("libgpucache.spec")


def name(release, arch):
    return pathlib.Path(f"libgpucache-{release.version}-1.{arch}.rpm")


def make(release, arch, out):
    # rpmbuild takes no folder with a blank in its name.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        build(release, arch, pathlib.Path(scratch), out)


def build(release, arch, top, out):
    folder = top / "stage"
    shutil.copytree(release.stage(arch, LIBDIR), folder)
    interpreter(folder / "usr" / "bin" / "gpucache")
    for kind, file in (("licenses", "COPYING"), ("doc", "CHANGELOG.md")):
        place = folder / "usr" / "share" / kind / "libgpucache"
        place.mkdir(parents=True)
        shutil.copyfile(release.root / file, place / file)
    for page in (folder / "usr" / "share" / "man").rglob("*.[1-9]"):
        gzipped(page, f"{page}.gz")
        page.unlink()
    release.settle(folder)
    macros = {"_topdir": top, "_stage": folder, "_version": release.version, "_who": MAINTAINER,
              "_home": HOMEPAGE, "_text": DESCRIPTION, "_rpmdir": top,
              "_day": time.strftime("%a %b %d %Y", time.gmtime(release.epoch)),
              "_dbpath": top / "db"}
    run("rpmbuild", "-bb", "--target", f"{arch}-linux", SPEC,
        *(word for key, value in macros.items() for word in ("--define", f"{key} {value}")),
        env=dict(os.environ))
    shutil.move(top / arch / name(release, arch), out / name(release, arch))
