# SPDX-License-Identifier: BSD-2-Clause
"""Tests that part `wheel` notices a wheel that differs. A wheel is made of the tool and the library
of a build folder. A program that only allocates, on the simulated driver, stands in for PyTorch.
check_wheel.py BUILD. Exit status 77: this Python has no pip."""
import os
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True
import check_parts  # noqa: E402
import part_wheel  # noqa: E402
import suite as base  # noqa: E402

sys.path.insert(0, os.path.join(base.ROOT, "scripts"))

# Goes wrong only under the library of the wheel.
STAND_IN = check_parts.STAND_IN.replace('"LD_PRELOAD" in os.environ',
                                        '"/wheel/" in os.environ.get("LD_PRELOAD", "")')
PLACE = '''import os
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpucache.so")
'''
ABOUT = "Metadata-Version: 2.1\nName: libgpucache\nVersion: 1\n"
KIND = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY = "[console_scripts]\ngpucache = gpucache.cli:main\n"
# What is wrong with the wheel, or under its library, and what the part has to say then.
CASES = {"": None, "losses": "FAIL: line 1", "idle": "FAIL: 0 allocations served",
         "library": "FAIL: 0 allocations served"}


def make_wheel(build, folder, wrong):
    """As scripts/release/wheel.py lays it out; its library may be one that the loader ignores."""
    path = os.path.join(folder, "libgpucache-1-py3-none-any.whl")
    with open(os.path.join(build, "shim", "libgpucache.so"), "rb") as file:
        library = file.read()
    files = {"gpucache/libgpucache.so": b"nothing" if wrong == "library" else library,
             "gpucache/place.py": PLACE}
    with zipfile.ZipFile(os.path.join(build, "scripts", "gpucache")) as archive:
        for name in archive.namelist():
            if name.startswith("gpucache/") and name.endswith(".py"):
                files.setdefault(name, archive.read(name))
    about = "libgpucache-1.dist-info"
    files.update({f"{about}/METADATA": ABOUT, f"{about}/WHEEL": KIND,
                  f"{about}/entry_points.txt": ENTRY})
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def faults(build, folder, wrong):
    """The part's rows that fail, and how many there are in all."""
    suite = base.Suite(os.path.join(folder, f"suite-{wrong}"), True, build, False)
    suite.build_library()
    suite.part = "wheel"
    suite.bare_env["WRONG"] = wrong
    os.environ["TEST_WHEEL"] = make_wheel(build, folder, wrong)
    part_wheel.wheel(suite)
    return [row.verdict for row in suite.rows if row.verdict.startswith("FAIL")], len(suite.rows)


def install_once():
    """The same, but a wheel is installed at its first use only. There are two: one is broken."""
    install, folders = part_wheel.install, {}

    def installed(suite, python, wheel):
        broken = suite.bare_env["WRONG"] == "library"
        if broken not in folders:
            folders[broken] = install(suite, python, wheel)
        return folders[broken]
    part_wheel.install = installed


def main():
    build, failed = sys.argv[1], 0
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        return base.EXIT_SKIP
    with tempfile.TemporaryDirectory() as folder:
        check_parts.stand_in(folder, STAND_IN)
        install_once()
        for wrong, expected in CASES.items():
            said, rows = faults(build, folder, wrong)
            good = any(fault.startswith(expected) for fault in said) if expected \
                else not said and rows == 12
            failed += check_parts.judged(good, f"{wrong or 'nothing'} wrong, {rows} rows, the part "
                                               f"says {said}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
