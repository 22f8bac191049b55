#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Reads entries.table, and makes entries.def of it: entries.py > entries.def. Its rows are
ENTRY(name, version, flag, first, last): the releases from `first` to `last` ask for them. ENTRY is
undefined at the end."""
import pathlib

TABLE = pathlib.Path(__file__).with_name("entries.table")


def rows():
    """Yields (name, version, flag, first, last)."""
    releases = []
    for line in TABLE.read_text().splitlines():
        words = [] if line.startswith("#") else line.split()
        if words and not line.startswith(" "):
            releases = [int(release) for release in words.pop(0).split("-")]
        for word in words:
            name, version = word.rstrip("*").split("/")
            yield name, int(version), 2 if word.endswith("*") else 0, *releases


if __name__ == "__main__":
    for row in rows():
        print(f"ENTRY({', '.join(map(str, row))})")
    print("#undef ENTRY")
