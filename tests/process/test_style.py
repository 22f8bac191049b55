# SPDX-License-Identifier: BSD-2-Clause
"""scripts/check-style names each fault in a doctored file, and finds none in a clean one."""
import os
import subprocess
import sys
import tempfile

CHECK = sys.argv[1]
FIRST = "/* What the file holds. */\n"
CASES = {
    "blank at the end of the line": FIRST + "int a; \n",
    "sizeof of an object": FIRST + "int a = sizeof(a);\n",
    "tab": FIRST + "\tint a;\n",
    "no newline at the end": FIRST + "int a;",
    "empty lines at the end": FIRST + "int a;\n\n",
    "at most 500": FIRST + "int a;\n" * 500,
    "101 columns": FIRST + "int " + "a" * 96 + ";\n",
    "mark for later": FIRST + "/* TO" "DO: more */\n",
    "place on a machine": FIRST + '#include "/ho' 'me/me/a.h"\n',
    "foreign word": FIRST + "/* made by co" "pilot */\n",
}


def check(folder, text, name="case.c"):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    result = subprocess.run([CHECK, path], capture_output=True, text=True)
    return result.returncode, result.stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        code, out = check(folder, FIRST + "int a = sizeof(int) + sizeof a;\n" + "int " + "a" * 95 +
                          ";\n")
        assert code == 0, out
        for fault, text in CASES.items():
            code, out = check(folder, text)
            assert code == 1 and fault in out, f"{fault!r} not found: exit {code}, {out!r}"
        for name in ("case.c.orig", "case.c~", "case.rej"):
            code, out = check(folder, FIRST + "int a;\n", name)
            assert code == 1 and "left-over" in out, f"{name} not found: exit {code}, {out!r}"
        for name in ("meson.build", "case.pml", "case.sh"):
            code, out = check(folder, CASES["101 columns"], name)
            assert code == 1 and "101 columns" in out, f"{name}: exit {code}, {out!r}"
    print(f"{len(CASES) + 6} faults found")


main()
