# SPDX-License-Identifier: BSD-2-Clause
"""skipped.py TESTLOG..: what files of tests skipped beside tests that ran (run_tests.py), of
Meson's testlog.json of several builds. Meson counts such a file as passed."""
import json
import pathlib
import re
import sys

for path in map(pathlib.Path, sys.argv[1:]):
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:  # the stage did not come so far
        continue
    for its in map(json.loads, lines):
        for what in re.findall(r"^skipped in part: (.*)", its.get("stdout") or "", re.MULTILINE):
            print(f"skipped in part, {path.parts[-3]}: {its['name'].split(' / ')[-1]}: {what}")
