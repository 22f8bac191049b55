# SPDX-License-Identifier: BSD-2-Clause
"""The library for each machine, by the C compiler, linker and C library of the Python package
ziglang. Zig knows the symbols of every glibc since 2.17, so the library asks for no newer one,
whatever machine builds it. The CUDA headers are those of requirements.txt."""
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from release.release import output_of

ARCHES = ("x86_64", "aarch64")
GLIBC = "2.17"
# Where Debian keeps the libraries of a machine; other distributions use lib64.
DEBIAN_LIBDIR = {arch: f"lib/{arch}-linux-gnu" for arch in ARCHES}
LIBDIR = "lib64"
# The names that the debug information has for the folders of the sources and of the CUDA headers.
SOURCES, HEADERS = "/usr/src/libgpucache", "/usr/src/cuda"

# Meson has the compiler read standard input. Zig hands that to clang with the target as it stands,
# and clang knows no versions of the C library. Without optimization Zig adds a sanitizer, whose
# runtime it would build for nothing but Meson's own questions.
COMPILER = """#!/bin/sh
target={arch}-linux-gnu.{glibc}
for word in "$@"; do [ "$word" != - ] || target={arch}-linux-gnu; done
exec '{zig}' cc -target $target -fno-sanitize=undefined \\
    -ffile-prefix-map='{root}'={sources} \\
    -ffile-prefix-map='{work}'={sources}/build -ffile-prefix-map='{cuda}'={headers} \\
    -ffile-prefix-map='{packages}'=/usr/src -ffile-prefix-map='{relative}'={sources} "$@"
"""
CROSS_FILE = """[binaries]
c = '{compiler}'
ar = ['{zig}', 'ar']
strip = 'true'
pkgconfig = 'pkg-config'
[host_machine]
system = 'linux'
cpu_family = '{arch}'
cpu = '{arch}'
endian = 'little'
"""
# The release type, with debug information: meson's own name for that has fewer optimisations.
OPTIONS = ("-Doptimization=3", "-Ddebug=true", "-Db_ndebug=true", "-Dtests=false", "-Dwerror=true",
           "-Dprefix=/usr", "-Dc_link_args=-Wl,--build-id=sha1")


def run(*command, **more):
    """Quietly, if all goes well."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit(f"package: {' '.join(str(c) for c in command)} failed")
    return done.stdout


def cross_file(release, arch):
    packages = pathlib.Path(sysconfig.get_path("purelib"))
    names = {"arch": arch, "glibc": GLIBC, "zig": packages / "ziglang" / "zig",
             "root": release.root, "work": release.work, "cuda": cuda_headers(),
             "packages": packages,
             # Meson names the sources from the build folder, wherever that lies.
             "relative": os.path.relpath(release.root, release.work / f"{arch}-build"),
             "sources": SOURCES, "headers": HEADERS,
             "compiler": release.work / f"{arch}-cc"}
    names["compiler"].write_text(COMPILER.format(**names), encoding="utf-8")
    names["compiler"].chmod(0o755)
    file = release.work / f"{arch}.ini"
    file.write_text(CROSS_FILE.format(**names), encoding="utf-8")
    return file


def programs(release, arch):
    """The demo program and the simulated driver, which run wherever the library does: to show the
    library of the release on other systems. Their folder."""
    folder = release.work / f"{arch}-programs"
    if not (folder / "build.ninja").exists():
        run("meson", "setup", folder, release.root, "--cross-file", cross_file(release, arch),
            "-Dtests=true", "-Dbuildtype=release", f"-Dtoolkit={cuda_headers()}")
    made = [folder / "tests" / "gpu" / "demo", folder / "tests" / "sim" / "lib" / "libcuda.so.1"]
    run("ninja", "-C", folder, *(path.relative_to(folder) for path in made))
    for path in made:
        shutil.copy(path, folder)
    return folder


def cuda_headers():
    return pathlib.Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"


def library(release, arch):
    """Builds, splits the debug information off, and installs for both places of libraries."""
    folder = release.work / f"{arch}-build"
    shutil.rmtree(folder, ignore_errors=True)
    run("meson", "setup", folder, release.root, "--cross-file", cross_file(release, arch),
        *OPTIONS, f"-Dtoolkit={cuda_headers()}", f"-Dlibdir={LIBDIR}")
    run("ninja", "-C", folder)
    whole = release.work / "libgpucache.so"
    shutil.copyfile(folder / "shim" / "libgpucache.so", whole)
    # The name in the library by which debuggers find the rest, beside it or in /usr/lib/debug.
    run("eu-strip", "-F", "libgpucache.so.debug",
        "-f", release.debug(arch), "-o", release.library(arch), whole)
    whole.unlink()
    for libdir in (LIBDIR, DEBIAN_LIBDIR[arch]):
        install(release, arch, folder, libdir)


def install(release, arch, folder, libdir):
    stage = release.stage(arch, libdir)
    shutil.rmtree(stage, ignore_errors=True)
    run("meson", "configure", folder, f"-Dlibdir={libdir}")
    run("ninja", "-C", folder)
    run("meson", "install", "-C", folder, "--no-rebuild",
        env={**os.environ, "DESTDIR": str(stage)})
    shutil.copyfile(release.library(arch), stage / "usr" / libdir / "libgpucache.so")
    run("eu-strip", stage / "usr" / "libexec" / "gpucache-replay")
    release.settle(stage)


def lint(release, arch):
    lints = release.root / "tests" / "lint"
    library_, built = release.library(arch), release.work / f"{arch}-build" / "shim"
    run(sys.executable, lints / "release.py", library_, "--debug", release.debug(arch),
        "--arch", arch, "--readelf", "readelf", "--glibc", GLIBC)
    run(sys.executable, lints / "exports.py", library_, "--nm", "nm", "--docgen",
        built / "docgen", "--cc", "cc")
    if arch == "x86_64":
        # With its symbols; the code is the same.
        run(sys.executable, lints / "patchable.py", built / "libgpucache.so",
            "--objdump", "objdump", "--cc", "cc")


def build_id(library_):
    for line in output_of("readelf", "-nW", library_).splitlines():
        if "Build ID:" in line:
            return line.split()[-1]
    return None
