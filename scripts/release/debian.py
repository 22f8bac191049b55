# SPDX-License-Identifier: BSD-2-Clause
"""The Debian package, from what meson installed for Debian's place of libraries."""
import os
import pathlib
import shutil
import time

from release.archive import gzipped
from release.build import DEBIAN_LIBDIR, GLIBC, run
from release.release import DESCRIPTION, HOMEPAGE, MAINTAINER, SUMMARY

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
REVISION = 1
CONTROL = """Package: libgpucache
Version: {version}-{revision}
Architecture: {architecture}
Maintainer: {maintainer}
Homepage: {homepage}
Installed-Size: {kib}
Depends: libc6 (>= {glibc})
Recommends: python3 (>= 3.8)
Suggests: python3-rich, python3-prometheus-client, python3-argcomplete, python3-pynvml
Section: libs
Priority: optional
Description: {summary}
{description}
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: libgpucache

Files: *
Copyright: 2026 the libgpucache authors
License: BSD-2-Clause
{license}
"""
# The library is preloaded by its name, so it lies where the loader finds it. Nothing is linked with
# it, so it has neither a version in its name nor a file of symbols. The tool is for Python, and the
# library works without: Recommends is enough. The first package closes no report.
OVERRIDES = """libgpucache: package-name-doesnt-match-sonames *
libgpucache: no-symbols-control-file *
libgpucache: shared-library-lacks-version *
libgpucache: python3-script-but-no-python3-dep *
libgpucache: initial-upload-closes-no-bugs *
libgpucache: no-manual-page *
"""


def indented(text):
    return "\n".join(f" {line}" if line else " ." for line in text.splitlines())


def documents(release, folder):
    doc = folder / "usr" / "share" / "doc" / "libgpucache"
    doc.mkdir(parents=True)
    text = (release.root / "COPYING").read_text(encoding="utf-8").split("\n", 4)[4]
    (doc / "copyright").write_text(COPYRIGHT.format(license=indented(text.strip())),
                                   encoding="utf-8")
    gzipped(release.root / "CHANGELOG.md", doc / "changelog.gz")
    when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(release.epoch))
    history = release.work / "changelog.Debian"
    history.write_text(f"libgpucache ({release.version}-{REVISION}) unstable; urgency=medium\n\n"
                       f"  * Release {release.version}.\n\n -- {MAINTAINER}  {when}\n",
                       encoding="utf-8")
    gzipped(history, doc / "changelog.Debian.gz")
    overrides = folder / "usr" / "share" / "lintian" / "overrides" / "libgpucache"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(OVERRIDES, encoding="utf-8")
    for page in (folder / "usr" / "share" / "man").rglob("*.[1-9]"):
        gzipped(page, f"{page}.gz")
        page.unlink()


def interpreter(tool):
    """Packages name the interpreter of the system, not the first one of a user's PATH."""
    head, rest = tool.read_bytes().split(b"\n", 1)
    tool.write_bytes(head.replace(b"/usr/bin/env python3", b"/usr/bin/python3") + b"\n" + rest)


def make(release, arch, out):
    libdir = DEBIAN_LIBDIR[arch]
    folder = release.work / f"{arch}-deb"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(release.stage(arch, libdir), folder)
    interpreter(folder / "usr" / "bin" / "gpucache")
    (folder / "usr" / libdir / "libgpucache.so").chmod(0o644)
    documents(release, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    control = folder / "DEBIAN"
    control.mkdir()
    sums = run("md5sum", *(path.relative_to(folder) for path in files), cwd=folder)
    (control / "md5sums").write_text(sums, encoding="utf-8")
    (control / "triggers").write_text("activate-noawait ldconfig\n", encoding="utf-8")
    (control / "control").write_text(CONTROL.format(
        version=release.version, revision=REVISION, architecture=ARCHITECTURE[arch],
        maintainer=MAINTAINER, homepage=HOMEPAGE, glibc=GLIBC, summary=SUMMARY,
        description=indented(DESCRIPTION),
        kib=sum(-(-path.stat().st_size // 1024) for path in files)), encoding="utf-8")
    release.settle(folder)
    # One thread: the number of threads changes the bytes.
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z9", "--threads-max=1", "--build", folder,
        out / name(release, arch), env=dict(os.environ))


def name(release, arch):
    return pathlib.Path(f"libgpucache_{release.version}-{REVISION}_{ARCHITECTURE[arch]}.deb")
