#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that runtimes ask the driver for what entries.table says: record.py RECORDER RUNTIME..
RECORDER is the library made of record.c. Each RUNTIME is a libcudart.so or libcudart_static.a, of
NVIDIA or a stand-in, or a folder of such folders as scripts/fetch-cudarts makes. TEST_CUDARTS may
name one more. Prints what differs. A release that is not in the table yet is compared with the
newest one there. Exit status: 0 equal, 1 not, 77 nothing to look at."""
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import entries  # noqa: E402

CALL = """
int cudaRuntimeGetVersion(int *); int cudaFree(void *); int printf(const char *, ...);
int main(void) { int v = 0; cudaFree(0); cudaRuntimeGetVersion(&v); printf("%d\\n", v); }
"""


def table():
    """[(name, version, flag, first, last)] and the span of releases in it."""
    rows = list(entries.rows())
    return rows, min(r[3] for r in rows), max(r[4] for r in rows)


def expected(rows, release):
    """The questions of a release: (way, generation, name, version, flag)."""
    generation = 2 if release >= 12000 else 1
    chosen = 12000 if generation == 2 else 11030
    way = "dlsym"
    if release >= 13010:
        yield way, 0, "cuDriverGetVersion", 0, 0
    if release >= 12020:
        yield way, generation, "", 0, 0
    elif generation == 1:
        yield way, generation, "cuGetProcAddress", 11030, 0
    for name, version, flag, first, last in rows:
        if first <= release <= last:
            yield way, generation, name, version, flag
            if (name, version) == ("cuGetProcAddress", chosen):
                way = "self"


def record(recorder, runtime, scratch):
    """(release, questions) of a runtime; None if no program can be linked with it."""
    os.makedirs(os.path.join(scratch, "driver"), exist_ok=True)
    driver = os.path.join(scratch, "driver", "libcuda.so.1")
    if not os.path.lexists(driver):
        os.symlink(os.path.abspath(recorder), driver)
    source, program, file = (os.path.join(scratch, n) for n in ("call.c", "call", "questions"))
    with open(source, "w") as out:
        out.write(CALL)
    rpath = f"-Wl,-rpath,{os.path.dirname(os.path.abspath(runtime))}"
    command = [os.environ.get("CC", "cc").split()[0], "-o", program, source, runtime, rpath,
               "-lpthread", "-ldl", "-lrt"]
    linked = subprocess.run(command, capture_output=True, text=True)
    if linked.returncode:
        print(f"{runtime}: {linked.stderr.strip().splitlines()[-1]}")
        return None
    if os.path.exists(file):
        os.unlink(file)
    env = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(driver), RECORD_FILE=file)
    env.pop("LD_PRELOAD", None)
    told = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    version = int(told.stdout)
    with open(file) as questions:
        found = [(m[1], int(m[2]), m[3], int(m[4]), int(m[5])) for m in
                 re.finditer(r'^(\w+) (\d) "(\w*)" (\d+) (\d+)$', questions.read(), re.MULTILINE)]
    # Release 11 tells its version only where it could start.
    return version or 11080, found


def libraries(arguments):
    folders = [os.environ.get("TEST_CUDARTS", "")]
    for argument in arguments:
        if os.path.isdir(argument):
            folders.append(argument)
        else:
            yield argument
    for folder in filter(None, folders):
        yield from sorted(glob.glob(os.path.join(folder, "*", "libcudart.so.*")) +
                          glob.glob(os.path.join(folder, "*", "libcudart_static.a")))


def main(recorder, *arguments):
    rows, oldest, newest = table()
    looked_at, wrong = 0, 0
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        for runtime in libraries(arguments):
            recorded = record(recorder, runtime, scratch)
            if recorded is None:
                continue
            looked_at += 1
            release, found = recorded
            wanted = list(expected(rows, min(max(release, oldest), newest)))
            same = wanted == found
            wrong += not same
            verdict = "as in the table" if same else "DIFFERS"
            print(f"{runtime}: {release}, {len(found)} questions, {verdict}")
            for title, some in (("asked, not in the table", [q for q in found if q not in wanted]),
                                ("in the table, not asked", [q for q in wanted if q not in found])):
                for question in some[:40]:
                    print(f"  {title}: {question}")
    if not looked_at:
        print("skipped: no runtime of NVIDIA's here, and TEST_CUDARTS names none")
        return 77
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
