# SPDX-License-Identifier: BSD-2-Clause
"""Tests of what was made, on this machine. Each thing is installed, a program of the tests runs
under it on the simulated driver, and it is removed without a trace. Packages for the other machine
are looked at, not installed."""
import lzma
import os
import pathlib
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import types
import unittest.mock

from release import check_slurm as check_slurm_
from release import archive, build, debian, rpm, tools
from release.build import DEBIAN_LIBDIR
from release.release import ADDRESS

HERE = platform.machine()
# Ways of a program to the driver, on which the basic scene runs.
ROUTES = ("static", "shared", "driver", "dlsym", "default", "proc1", "proc2", "entry-static")
MODULE_INITS = ("/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash")
MUSL_LOADER = "/lib/ld-musl-x86_64.so.1"
# What a preloaded program sees of the library where there is no CUDA; status 7 is its own.
MUSL_PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    char pair[] = "B=c", line[512], has_library = 0;
    setenv("A", "b", 1);
    putenv(pair);
    void *handle = dlopen(NULL, RTLD_NOW);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        has_library |= strstr(line, "libgpucache") != NULL;
    printf("%d %s %s %d %d %d %d\\n", has_library, getenv("A"), getenv("B"),
           dlsym(RTLD_DEFAULT, "puts") != NULL, dlsym(RTLD_NEXT, "malloc") != NULL,
           dlsym(RTLD_DEFAULT, "curl_easy_init") != NULL, handle && !dlclose(handle));
    return 7;
}
"""


def ask(*command, status=0, **more):
    """Its output. Another status is a failure."""
    done = subprocess.run([str(c) for c in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if done.returncode != status:
        raise AssertionError(f"{' '.join(str(c) for c in command)}: status {done.returncode}\n"
                             f"{done.stdout[-4000:]}")
    return done.stdout.strip()


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


def own(program):
    """The machine's own, which made a build that --tests names. Another ninja cannot read that
    build's log, and would build everything again."""
    return shutil.which(program, path=os.environ["MACHINE_PATH"]) or program


def test_build(release):
    """The tests, built here with the machine's own compiler; their build has its own library."""
    folder = release.tests
    if not (folder / "build.ninja").exists():
        ask(own("meson"), "setup", folder, release.root, "-Dwerror=false")
    ask(own("ninja"), "-C", folder)
    return folder


def suite(release, library, *names):
    """Tests of the tree on this library: it takes the place of the one that the tests were built
    with."""
    folder = test_build(release)
    place = folder / "shim" / "libgpucache.so"
    built = place.read_bytes()
    try:
        place.write_bytes(pathlib.Path(library).read_bytes())
        said = ask(own("meson"), "test", "-C", folder, "--no-rebuild", "-t", "6", *names)
        equal(place.read_bytes() == built, False)
    finally:
        place.write_bytes(built)
    if "Ok:" not in said:
        raise AssertionError(said)


def preloaded(release, library):
    """What the basic scene says, with a library of this name in front."""
    folder = test_build(release)
    environment = {**clean(), "LD_LIBRARY_PATH": str(folder / "tests" / "sim")}
    if library:
        environment["LD_PRELOAD"] = library
    return ask(folder / "tests" / "preload" / "basic-driver", env=environment)


def clean():
    """An environment in which only what is installed is found."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "LD_", "GPUCACHE"))}


def tool_works(release, tool, library):
    """The tool of a package finds its library, and puts it in front of a program."""
    environment = clean()
    equal(ask(*tool, "--version", env=environment).split()[-1], release.version)
    equal(ask(*tool, "library", env=environment), str(library))
    shown = ask(*tool, "run", "MAX_IDLE=2G", "--", "sh", "-c",
                "echo $LD_PRELOAD $GPUCACHE_MAX_IDLE", env=environment)
    equal(shown, f"{library} 2G")
    with tempfile.TemporaryDirectory() as scratch:
        trace = pathlib.Path(scratch, "a.gct")
        trace.write_bytes(lzma.decompress(
            (release.root / "tests" / "tool" / "golden" / "trace-1.gct.xz").read_bytes()))
        equal("MAX_RESERVED=" in ask(*tool, "report", trace, env=environment), True)


def check_wheel(release, out):
    """Installed into a fresh environment, offline; then removed."""
    with tempfile.TemporaryDirectory() as scratch:
        python = pathlib.Path(scratch, "venv", "bin", "python")
        # It runs the pip that is here: to install one of its own takes longer than all the rest.
        ask(sys.executable, "-m", "venv", "--without-pip", python.parents[1])
        pip = [python, pathlib.Path(sysconfig.get_path("purelib"), "pip")]
        before = sorted(python.parents[1].rglob("*"))
        ask(*pip, "install", "--no-index", "--find-links", out, "libgpucache", env=clean())
        library = next(python.parents[1].glob("lib/python3*/site-packages/gpucache/*.so"))
        library = library.resolve()
        # The suite `preload` runs on these bytes (check_preload).
        equal(library.read_bytes() == release.library(HERE).read_bytes(), True)
        tool_works(release, [python.parent / "gpucache"], library)
        tool_works(release, [python, "-m", "gpucache"], library)
        manual = python.parents[1] / "share" / "man"
        equal([p.name for p in sorted(manual.rglob("*.[1-9]"))], ["gpucache.1", "gpucache.7"])
        suite(release, library, *(f"basic-{route}" for route in ROUTES))
        ask(*pip, "uninstall", "--yes", "libgpucache", env=clean())
        left = [p for p in python.parents[1].rglob("*") if p not in before and not p.is_dir()]
        equal(left, [])


def check_deb(release, out):
    """lintian says nothing; as root the package is installed and purged."""
    packages = [out / debian.name(release, arch) for arch in release.arches]
    ask("lintian", "--fail-on", "error,warning", *packages)
    if os.geteuid() != 0 or HERE not in release.arches:
        return "not installed: not root, or no package for this machine"
    package = out / debian.name(release, HERE)
    # Of the triggers the loader's cache alone: the index of all manual pages takes longer, and gets
    # its turn at the end.
    installs(release, ["sh", "-ec", f"dpkg --no-triggers -i '{package}'\n"
                       "dpkg --triggers-only libc-bin"], ["dpkg", "-P", "libgpucache"],
             pathlib.Path("/usr", DEBIAN_LIBDIR[HERE], "libgpucache.so"),
             # By its name alone, as the loader finds it.
             listed("dpkg-deb", "-c", package), "libgpucache.so")
    return None


def listed(*command):
    """Full names of the files in a package."""
    words = [line.split()[-1] for line in ask(*command).splitlines()]
    return [pathlib.Path("/", word) for word in words if not word.endswith("/")]


def check_rpm(release, out):
    """rpmlint says nothing; as root the package is installed, with a database of its own, and
    erased."""
    packages = [out / rpm.name(release, arch) for arch in release.arches]
    said = ask("rpmlint", "-c", pathlib.Path(__file__).with_name("rpmlint.toml"), *packages)
    if " 0 errors, 0 warnings" not in said:
        raise AssertionError(said)
    if os.geteuid() != 0 or HERE not in release.arches:
        return "not installed: not root, or no package for this machine"
    package = out / rpm.name(release, HERE)
    with tempfile.TemporaryDirectory() as database:
        rpm_ = ["rpm", "--dbpath", database]
        there = pathlib.Path("/usr/lib64").exists()
        # This system's packages are not in that database.
        library = pathlib.Path("/usr/lib64/libgpucache.so")
        installs(release, [*rpm_, "-i", "--nodeps", package], [*rpm_, "-e", "libgpucache"],
                 library, listed("rpm", "-qpl", package), str(library))
        if not there and pathlib.Path("/usr/lib64").exists():
            pathlib.Path("/usr/lib64").rmdir()
    return None


def installs(release, install, remove, library, files, preload):
    if any(path.is_file() for path in files):
        raise AssertionError(f"already installed: {library}")
    ask(*install)
    try:
        tool_works(release, ["/usr/bin/gpucache"], library)
        suite(release, library, "basic-driver")
        equal(preloaded(release, preload), preloaded(release, None))
    finally:
        ask(*remove)
    equal([path for path in files if path.is_file()], [])
    equal([path for path in files if "libgpucache" in path.name and path.exists()], [])


def check_tarball(release, out):
    """Unpacked anywhere, its tool finds its library."""
    with tempfile.TemporaryDirectory() as scratch:
        ask("tar", "-xJf", out / f"{release.stem(HERE)}.tar.xz", "-C", scratch)
        folder = pathlib.Path(scratch, release.stem(HERE)).resolve()
        tool_works(release, [folder / "bin" / "gpucache"], folder / "lib" / "libgpucache.so")


def check_address(release, _out):
    """One file of the sources names the project's address."""
    equal(ask("git", "-C", release.root, "grep", "-lF", ADDRESS, "HEAD"),
          "HEAD:scripts/release/release.py")


def check_checksums(_release, out):
    ask("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=out)


def check_preload(release, _out):
    """The suite `preload` on the library that is given to users."""
    suite(release, release.library(HERE), "--suite", "preload")


def check_glibc(release, out):
    """On each C library of TEST_GLIBC the demo program says the same as without the library.
    TEST_GLIBC has folders, with a colon between. Each has libc.so.6 with its loader, libdl and
    libpthread."""
    folders = os.environ.get("TEST_GLIBC", "").split(":")
    if not folders[0]:
        return "TEST_GLIBC names no folder"
    library = out / f"{release.stem(HERE)}.so"
    programs = build.programs(release, HERE)
    for folder in map(pathlib.Path, folders):
        loader = next(folder.glob("ld-linux-*.so.*"))
        demo = [loader, "--library-path", f"{folder}:{programs}", programs / "demo",
                "--steps", "20", "--words", "256"]
        with tempfile.TemporaryDirectory() as scratch:
            report = pathlib.Path(scratch, "report")
            under = ask(*demo, env={**clean(), "LD_PRELOAD": str(library),
                                    "GPUCACHE_STATS": f"exit:{report}"})
            equal(under, ask(*demo, env=clean()))
            if not re.search(r"\| hits +\| +[1-9]", report.read_text(encoding="utf-8")):
                raise AssertionError(report.read_text(encoding="utf-8"))
        said = ask(loader, folder / "libc.so.6")
        print(f"glibc: {re.search(r'version ([0-9.]+[0-9])', said)[1]}")
    return None


def check_musl(release, out):
    """On musl the library is loaded and changes nothing."""
    if not os.path.exists(MUSL_LOADER) or not shutil.which("musl-gcc"):
        return "no musl here"
    with tempfile.TemporaryDirectory() as scratch:
        program = pathlib.Path(scratch, "program")
        ask("musl-gcc", "-x", "c", "-", "-o", program, input=MUSL_PROGRAM)
        bare = ask(program, status=7)
        library = out / f"{release.stem(HERE)}.so"
        under = ask(program, status=7, env={**os.environ, "LD_PRELOAD": str(library)})
        equal((bare, under), ("0 b c 1 1 0 1", "1 b c 1 1 0 1"))
    return None


def check_word_size(release, out):
    """A program of 32 bits (the C library itself is one) gets the loader's own line and goes on."""
    loader, program = "/lib/ld-linux.so.2", "/lib32/libc.so.6"
    if not os.path.exists(loader) or not os.path.exists(program):
        return "no 32-bit C library here"
    library = out / f"{release.stem(HERE)}.so"
    bare = ask(loader, program)
    under = ask(loader, program, env={**os.environ, "LD_PRELOAD": str(library)})
    line, rest = under.split("\n", 1)
    equal(("wrong ELF class" in line and line.endswith("ignored."), rest), (True, bare))
    return None


def one_image(release, deploy):
    """Another name in kustomization.yaml reaches every object."""
    name = "registry.example/other"
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch, "deploy")
        shutil.copytree(deploy, place)
        file = place / "kustomization.yaml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("    newTag:", f"    newName: {name}\n    newTag:"),
                        encoding="utf-8")
        rendered = ask("kubectl", "kustomize", place)
    images = set(re.findall(r"(?:image: \"?|\W')([\w./-]*(?:libgpucache|other)[\w.:]*)", rendered))
    equal(images, {f"{name}:{release.version}"})


def check_deploy(release, _out):
    """One version, Kubernetes' own schemas, and systemd's view of the drop-in."""
    deploy = release.root / "scripts" / "deploy"
    versions = {found for path in deploy.rglob("*") if path.is_file()
                for found in re.findall(r"libgpucache[-_:/](\d+\.\d+\.\d+)|newTag: .([\d.]+)",
                                        path.read_text(encoding="utf-8"))}
    equal({one or other for one, other in versions}, {release.version})
    files = sorted((deploy / "kubernetes").glob("*.yaml"))
    said = ask("kubernetes-validate", "--strict", "--no-warn", *files)
    passed = {line.split()[1] for line in said.splitlines() if " passed for " in line}
    # The operator's own kind has no schema among Kubernetes' own.
    equal({str(f) for f in files} - passed, {str(deploy / "kubernetes" / "servicemonitor.yaml")})
    if shutil.which("kubectl"):
        rendered = ask("kubectl", "kustomize", deploy)
        ask("kubernetes-validate", "--strict", "--no-warn", "-", input=rendered)
        one_image(release, deploy)
    if not shutil.which("systemd-analyze"):
        return "no systemd-analyze here: the drop-in was not looked at"
    drop_in = (deploy / "systemd" / "libgpucache.conf").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        unit = pathlib.Path(scratch, "program.service")
        unit.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
        place = pathlib.Path(scratch, "program.service.d", "libgpucache.conf")
        place.parent.mkdir()

        def complaints(text):
            place.write_text(text, encoding="utf-8")
            return ask("systemd-analyze", "verify", unit,
                       env={**os.environ, "SYSTEMD_UNIT_PATH": f"{scratch}:"})
        if "libgpucache.conf" not in complaints(drop_in + "LogsFolder=x\n"):
            raise AssertionError("systemd-analyze does not look at the drop-in")
        equal(complaints(drop_in), "")
    return None


def check_modulefile(release, out):
    """Environment Modules and Lmod, as far as they are here, load it and leave nothing behind."""
    inits = [path for path in MODULE_INITS if os.path.exists(path)]
    if not inits:
        return "neither Environment Modules nor Lmod here"
    modulefile = release.root / "scripts" / "deploy" / "slurm" / "modulefile"
    text = modulefile.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        ask("tar", "-xJf", out / f"{release.stem(HERE)}.tar.xz", "-C", scratch)
        folder = pathlib.Path(scratch, release.stem(HERE)).resolve()
        place = pathlib.Path(scratch, "modules", "libgpucache", release.version)
        place.parent.mkdir(parents=True)
        place.write_text(re.sub(r"^set folder .*", f"set folder {folder}", text, count=1,
                                flags=re.MULTILINE), encoding="utf-8")
        for init in inits:
            said = ask("bash", "-c", f". {init}; module use {place.parents[1]}; "
                       f"module load libgpucache/{release.version} && echo $LD_PRELOAD && "
                       "gpucache library && man -w 7 gpucache && module unload libgpucache && "
                       "echo [$LD_PRELOAD]", env={**clean(), "MANPATH": ":"})
            library = folder / "lib" / "libgpucache.so"
            equal(said.split("\n"), [str(library), str(library),
                                     str(folder / "share" / "man" / "man7" / "gpucache.7"), "[]"])
    return None


def spack_recipe(file, release_1):
    """What the recipe says to a stand-in for Spack: the class and its directives. release_1: the
    names are where Spack 1.0 has them, otherwise where 0.23 has them."""
    said = []
    build_system = types.ModuleType("spack_repo.builtin.build_systems.meson")
    build_system.MesonPackage = type("MesonPackage", (), {})
    package = types.ModuleType("spack.package")
    for name in ("license", "version", "depends_on"):
        setattr(package, name, lambda *words, name=name, **more: said.append((name, words, more)))
    package.join_path = os.path.join
    modules = {"spack": types.ModuleType("spack"), "spack.package": package}
    if release_1:
        parts = build_system.__name__.split(".")
        modules.update({".".join(parts[:n]): types.ModuleType(".".join(parts[:n]))
                        for n in range(1, len(parts))}, **{build_system.__name__: build_system})
    else:
        package.MesonPackage = build_system.MesonPackage
    with unittest.mock.patch.dict(sys.modules, modules):
        names = runpy.run_path(str(file))
    return names["Libgpucache"], said


def check_spack(release, out):
    """The sources that the recipe names are built as Spack's class for Meson builds them. The
    library lies where the recipe preloads it from. A release build has no warning either. Spack
    itself is not needed."""
    file = out / f"libgpucache-{release.version}.spack.py"
    recipe, said = spack_recipe(file, True)
    equal(said, spack_recipe(file, False)[1])
    sources = out / recipe.url.rpartition("/")[2]
    equal([(words, more) for name, words, more in said if name == "version"],
          [((release.version,), {"sha256": archive.digest(sources)})])
    with tempfile.TemporaryDirectory() as scratch:
        ask("tar", "-xJf", sources, "-C", scratch)
        prefix, made = pathlib.Path(scratch, "prefix"), pathlib.Path(scratch, "made")
        package = recipe()
        package.prefix = types.SimpleNamespace(lib=f"{prefix}/lib")
        package.spec = {"cuda": types.SimpleNamespace(prefix=build.cuda_headers())}
        ask("meson", "setup", made, pathlib.Path(scratch, sources.name.removesuffix(".tar.xz")),
            f"-Dprefix={prefix}", f"-Dlibdir={prefix}/lib", "-Dbuildtype=release", "-Dstrip=false",
            "-Ddefault_library=shared", "-Dwrap_mode=nodownload", "-Dwerror=true",
            *package.meson_args())
        ask("ninja", "-C", made, "install")
        paths = []
        package.setup_run_environment(types.SimpleNamespace(
            prepend_path=lambda name, value: paths.append((name, value))))
        equal(paths, [("LD_PRELOAD", ask(prefix / "bin" / "gpucache", "library", env=clean()))])


def check_slurm(release, out):
    """check_slurm.py"""
    if check_slurm_.missing():
        return check_slurm_.missing()
    tests = test_build(release) / "tests"
    environment = {**clean(), "LD_LIBRARY_PATH": f"{tests}/sim/lib:{tests}/sim/cudart"}
    check_slurm_.run(release.root / "scripts" / "deploy", out / f"{release.stem(HERE)}.so",
                     tests / "preload" / "basic-driver",
                     [tests / "gpu" / "demo", "--steps", "100000000"], environment)
    return None


def check_twice(release, out):
    """A clone in another folder, an hour later by its files, with its builds outside of it, gives
    the same bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        clone = pathlib.Path(scratch, "another name")
        ask("git", "clone", "--quiet", release.root, clone)
        ask("git", "-C", clone, "checkout", "--quiet", release.commit)
        ask(sys.executable, clone / "scripts" / "package",
            "--work", pathlib.Path(scratch, "else", "where", "builds"),
            *(word for arch in release.arches for word in ("--arch", arch)))
        again = (clone / "dist" / "SHA256SUMS").read_text(encoding="utf-8")
        equal(again, (out / "SHA256SUMS").read_text(encoding="utf-8"))


def tests_by_name():
    return {name[len("check_"):]: function for name, function in globals().items()
            if name.startswith("check_") and callable(function)}


def chosen(names):
    """The names; without any, those of all tests."""
    tests = tests_by_name()
    for name in names:
        if name not in tests:
            tools.fail(f"there is no test {name}: {' '.join(tests)}")
    return names or list(tests)


def run(release, out, names):
    failed = 0
    for name in names:
        try:
            skipped = tests_by_name()[name](release, out)
            print(f"{name}: {f'skipped: {skipped}' if skipped else 'passed'}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"{name}: FAILED: {error}", flush=True)
    return 1 if failed else 0
