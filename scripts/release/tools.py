# SPDX-License-Identifier: BSD-2-Clause
"""What a release is made with. Python packages of fixed versions (requirements.txt) lie in a folder
of the user's cache. A few programs are the machine's. The program runs again inside that folder."""
import os
import pathlib
import shutil
import subprocess
import sys

# Program: the Debian package that has it.
PROGRAMS = {"cc": "gcc", "git": "git", "eu-strip": "elfutils", "readelf": "binutils",
            "dpkg-deb": "dpkg", "rpmbuild": "rpm"}
# The same for tests of scripts/release/check.py, by their names. Others skip without what they use.
TESTING = {"deb": {"lintian": "lintian"}, "rpm": {"rpmlint": "rpmlint"},
           "musl": {"musl-gcc": "musl-tools"},
           "aarch64": {"qemu-aarch64-static": "qemu-user-static",
                       "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"}}
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


# What test runners take for "cannot be done here".
SKIP = 77


def fail(text):
    print(f"package: {text}", file=sys.stderr)
    sys.exit(SKIP)


def install(packages):
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        fail("some packages are missing. Please run:\n"
             f"    sudo apt-get install -y {' '.join(packages)}")
    print("installing", *packages, file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
                   env=environment, check=True, stdout=subprocess.DEVNULL)


def virtual_environment():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(cache, "libgpucache", "package-venv")


def python_packages(folder):
    """Whole or not at all: the copy of the list is written last."""
    wanted, done = REQUIREMENTS.read_text(encoding="utf-8"), folder / "requirements.txt"
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    print("installing the Python packages of", REQUIREMENTS.name, "in", folder, file=sys.stderr)
    for command in ([sys.executable, "-m", "venv", "--clear", folder],
                    [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check",
                     "-r", REQUIREMENTS]):
        if subprocess.run(command, check=False).returncode:
            fail("the Python packages cannot be installed")
    done.write_text(wanted, encoding="utf-8")


def ready(tests):
    wanted = dict(PROGRAMS)
    for name in tests:
        wanted.update(TESTING.get(name, {}))
    missing = [p for name, p in wanted.items() if not shutil.which(name)]
    if missing:
        install(sorted(set(" ".join(missing).split())))
    folder = virtual_environment()
    if pathlib.Path(sys.prefix) != folder:
        python_packages(folder)
        python = folder / "bin" / "python"
        os.execv(python, [str(python), *sys.argv])
    os.environ["MACHINE_PATH"] = os.environ["PATH"]
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
