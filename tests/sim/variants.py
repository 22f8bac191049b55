#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Makes variants.def, the table of all driver functions that the simulator knows:
variants.py INCLUDE functions.def > variants.def
INCLUDE is the toolkit's folder of headers. Its *Typedefs.h name each variant of a function: the
base name, the CUDA version that brought the variant, and the default stream. The rows are
    FUNCTION(symbol, base, version, flags, cost_ns, mib_ns)
    UNSIMULATED(symbol, base, version, flags)
    LOOKUP_ONLY(symbol, base, version, flags)
A kind of row that is not defined is left out. All are undefined at the end.
FUNCTION rows are the simulated variants, from functions.def. UNSIMULATED rows are the other
variants of all functions there. LOOKUP_ONLY rows are what only runtimes ask for
(cudart/entries.table)."""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).with_name("cudart")))
import entries  # noqa: E402

HEADERS = ("cudaTypedefs.h", "cudaEGLTypedefs.h", "cudaGLTypedefs.h", "cudaProfilerTypedefs.h",
           "cudaVDPAUTypedefs.h")
# Simulated variants that may be newer than the toolkit.
NEWER = {("cuMulticastBindAddr", 13010, "")}


def known_variants(include):
    """{base: {(version, stream suffix)}}"""
    variants = {}
    for header in filter(pathlib.Path.exists, (include / name for name in HEADERS)):
        text = header.read_text()
        for base, version, stream in re.findall(r"\*\s*PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)", text):
            variants.setdefault(base, set()).add((int(version), stream))
    newest = max(version for of_base in variants.values() for version, _ in of_base)
    newer = {(base, version, "_ptsz" if flag else "") for base, version, flag, *_ in entries.rows()}
    # What the toolkit does not know, because it is older or lacks a header. One name that runtimes
    # 12.0 to 12.2 ask for is a slip of theirs, with the stream's suffix in it.
    given = set(variants)
    for base, version, stream in newer | NEWER:
        if version > newest or not (base in given or base.endswith("_ptsz")):
            variants.setdefault(base, set()).add((version, stream))
    return variants


def symbols(base, variants):
    """{symbol: (version, stream suffix)}. NVIDIA numbers the variants of a function by version."""
    plain = sorted(version for version, stream in variants if not stream)
    found = {}
    for version, stream in variants:
        number = max(1, sum(1 for other in plain if other <= version))
        found[base + (f"_v{number}" if number > 1 else "") + stream] = (version, stream)
    return found


def main(include, functions):
    functions = pathlib.Path(functions).read_text()
    variants = known_variants(pathlib.Path(include))
    rows = re.findall(r"^FUNCTION\(([\w\s]+),\s+([\w\s]+),\s+(\w+),\s+(\d+),\s+(\d+)\)$", functions,
                      re.M)
    others = re.findall(r"^UNSIMULATED\(([\w\s]+)\)$", functions, re.M)
    if len(rows) + len(others) != len(re.findall(r"^(?:FUNCTION|UNSIMULATED)\(", functions, re.M)):
        sys.exit("functions.def: a row that is none")
    rows = [(base, *rest) for bases, *rest in rows for base in bases.split()]
    table = {}
    for base, numbers, flags, cost_ns, mib_ns in rows:
        of_base = symbols(base, variants.get(base, ()))
        for number in numbers.split():
            symbol = base + number.removeprefix("v1").replace("v", "_v", 1)
            if symbol not in of_base or symbol in table:
                sys.exit(f"functions.def: {symbol}: no such function, or twice")
            version, stream = of_base[symbol]
            table[symbol] = f"FUNCTION({symbol}, {base}, {version}, " \
                f"{'PER_THREAD' if stream else flags}, {cost_ns}, {mib_ns})"
    asked = {row[0] for row in entries.rows()}
    named = {row[0] for row in rows} | set(" ".join(others).split())
    for base in sorted(named | (asked & set(variants))):
        kind = "UNSIMULATED" if base in named else "LOOKUP_ONLY"
        for symbol, (version, stream) in sorted(symbols(base, variants.get(base, ())).items()):
            if symbol not in table:
                table[symbol] = f"{kind}({symbol}, {base}, {version}, " \
                    f"{'PER_THREAD' if stream else 'BARE'})"
    for kind, more in (("FUNCTION", ", cost_ns, mib_ns"), ("UNSIMULATED", ""), ("LOOKUP_ONLY", "")):
        print(f"#ifndef {kind}\n#define {kind}(symbol, base, since, flags{more})\n#endif")
    print("\n".join(table.values()))
    print("#undef FUNCTION\n#undef UNSIMULATED\n#undef LOOKUP_ONLY")


if __name__ == "__main__":
    main(*sys.argv[1:])
