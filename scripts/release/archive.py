# SPDX-License-Identifier: BSD-2-Clause
"""Tarballs and checksums. The same files give the same bytes: sorted names, one time, one owner."""
import gzip
import hashlib
import io
import lzma
import pathlib
import shutil
import subprocess
import tarfile

from release.build import LIBDIR
from release.release import HOMEPAGE


def packed(release, members, target):
    """members: (name in the archive, path), sorted here."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(members):
            info = tar.gettarinfo(path, name)
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = release.epoch
            if info.isreg():
                with open(path, "rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    target.write_bytes(lzma.compress(data.getvalue(), preset=9))


def tarball(release, arch, out):
    """One folder that works wherever it is unpacked."""
    stem = release.stem(arch)
    folder = release.work / stem
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(release.stage(arch, LIBDIR) / "usr", folder)
    (folder / LIBDIR).rename(folder / "lib")
    shutil.copyfile(release.debug(arch), folder / "lib" / "libgpucache.so.debug")
    for name in ("COPYING", "CHANGELOG.md", "README.md"):
        shutil.copyfile(release.root / name, folder / name)
    release.settle(folder)
    members = [(str(path.relative_to(release.work)), path) for path in folder.rglob("*")]
    packed(release, [(stem, folder), *members], out / f"{stem}.tar.xz")


def sources(release, out):
    stem = f"libgpucache-{release.version}"
    # Of a commit, so all files have its time.
    archive = ["git", "-C", release.root, "archive", f"--prefix={stem}/", release.commit]
    tar = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
    (out / f"{stem}.tar.xz").write_bytes(lzma.compress(tar, preset=9))


def spack(release, out):
    """The recipe, for the sources that were made before it."""
    tarball_ = out / f"libgpucache-{release.version}.tar.xz"
    recipe = release.root / "scripts" / "deploy" / "spack" / "package.py"
    text = recipe.read_text(encoding="utf-8")
    for name, value in (("HOMEPAGE", HOMEPAGE), ("VERSION", release.version),
                        ("SHA256", digest(tarball_))):
        text = text.replace(f"@{name}@", value)
    (out / f"libgpucache-{release.version}.spack.py").write_text(text, encoding="utf-8")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksums(out):
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def gzipped(source, target):
    """As policies want manual pages and changelogs: smallest, without a name or time."""
    pathlib.Path(target).write_bytes(
        gzip.compress(pathlib.Path(source).read_bytes(), compresslevel=9, mtime=0))
