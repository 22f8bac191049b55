# SPDX-License-Identifier: BSD-2-Clause
"""In a program with other rights than its caller's (setuid) the library does nothing. There is no
pool, no signal handler, no thread, no page, and no report to a file that the caller names. The
loader would preload it there only from the system's own list; here the program is linked with it.

test_secure.py LIBRARY FOLDER_OF_THE_SIMULATED_DRIVER SOURCE COMPILER..
Needs root; else it skips (77)."""

import os
import shutil
import subprocess
import sys
import tempfile

NOBODY = 65534
LIBRARY, DRIVER, SOURCE, *COMPILER = sys.argv[1:]


def run(program, report):
    """As another user than the program's owner."""
    pages = report + "-pages"
    env = {"PATH": os.environ["PATH"], "GPUCACHE_STATS": f"exit:{report}", "GPUCACHE_LOG": "debug",
           "GPUCACHE_DIR": pages}
    done = subprocess.run([program], env=env, capture_output=True, text=True, user=NOBODY,
                          group=NOBODY, extra_groups=[], timeout=60, cwd="/")
    wrote = os.path.exists(report)
    if wrote:
        os.remove(report)
    made = os.path.isdir(pages)
    if made:
        os.rmdir(pages)  # the page itself went with the process
    return done.returncode, done.stdout, done.stderr, wrote, made


def make(folder):
    """The program in that folder, with its libraries beside it under their full paths."""
    program = os.path.join(folder, "program")
    for library in (LIBRARY, os.path.join(DRIVER, "libcuda.so.1")):
        shutil.copy(library, folder)
    subprocess.run([*COMPILER, "-o", program, SOURCE, "-Wl,--no-as-needed",
                    os.path.join(folder, os.path.basename(LIBRARY)),
                    os.path.join(folder, "libcuda.so.1"), f"-Wl,-rpath,{folder}"], check=True)
    return program


def main():
    if os.getuid() != 0:
        print("skipped: only root can give a program to another user")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            print("skipped: a program in the temporary folder cannot be setuid")
            return 77
        program, reports = make(folder), os.path.join(folder, "reports")
        os.mkdir(reports)
        os.chmod(reports, 0o777)
        outcomes = []
        for mode in (0o755, 0o4755):
            os.chmod(program, mode)
            outcomes.append(run(program, os.path.join(reports, "report")))
    plain, secure = outcomes
    print("plain ", plain)
    print("setuid", secure)
    # The page is made beside the program, and after it the third thread, at the page's doorbell.
    # Both may come after the count, or not at all before so short a program ends.
    counts = [f"secure 0, handler 1, threads {n}\n" for n in (2, 3)]
    if plain[0] != 0 or plain[1] not in counts or not plain[3]:
        print("FAIL: without setuid the library does not work: this shows nothing")
        return 1
    if secure != (0, "secure 1, handler 0, threads 1\n", "", False, False):
        print("FAIL: the library works in a setuid program")
        return 1
    return 0
