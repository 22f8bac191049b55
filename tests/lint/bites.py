# SPDX-License-Identifier: BSD-2-Clause
"""Each entry of tests/bites/*.bites applies to the sources as they are: the lines that it changes
stand in its file once. scripts/bites tries the entries; this builds nothing."""
import importlib.machinery
import importlib.util
import sys

from lint import ROOT

sys.dont_write_bytecode = True


def load(path):
    """scripts/bites as a module."""
    loader = importlib.machinery.SourceFileLoader("bites", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bites", loader))
    loader.exec_module(module)
    return module


def faults(bites, entries):
    for entry in entries:
        try:
            entry.mutated((ROOT / entry.file).read_text())
        except (bites.Wrong, OSError) as error:
            yield f"{entry.name}: {error}"


def main():
    bites = load(ROOT / "scripts" / "bites")
    entries = [b for path in sorted((ROOT / "tests/bites").glob("*.bites"))
               for b in bites.read_bites(path)]
    for change in ("file", "hunk"):
        doctored = bites.Bite("doctored", "doctored", False)
        doctored.file, doctored.hunk = entries[0].file, entries[0].hunk
        setattr(doctored, change, "no/file.c" if change == "file" else [("-", "no line of it")])
        assert list(faults(bites, [doctored])), f"a wrong {change} is not seen"
    found = list(faults(bites, entries))
    print("\n".join(found) or f"{len(entries)} entries apply")
    return 1 if found or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
