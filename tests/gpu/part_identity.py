# SPDX-License-Identifier: BSD-2-Clause
"""Every look-up of a driver function gives the driver's own address, except for the wrapped
functions. Every look-up reaches those."""
import os
import subprocess
import sys

import suite as base


def exported(library):
    """The driver functions that the library wraps."""
    text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                          check=True).stdout
    names = [line.split()[-1] for line in text.splitlines()]
    return sorted(n for n in names if n.startswith("cu") and not n.startswith("cuda"))


def answers(text):
    """question -> (result, place)"""
    rows = {}
    for line in text.splitlines():
        kind, *words = line.split()
        count = 1 if kind == "sym" else 3
        rows[(kind, *words[:count])] = (words[count:-1], words[-1])
    return rows


def judge(bare, shim, wrapped):
    """What is wrong with the shim's answers, and how many were replaced."""
    own = {name: bare[("sym", name)][1] for name in wrapped}
    name_at = {}
    for name, where in own.items():
        name_at.setdefault(where, set()).add(name)
    wrong, replaced = [], 0
    for question, (result, where) in bare.items():
        shim_result, shim_where = shim.get(question, (None, "no answer"))
        if shim_result != result:
            wrong.append(f"{' '.join(question)}: result {result}, under the shim {shim_result}")
        elif shim_where.startswith("libgpucache.so:"):
            replaced += 1
            symbol = shim_where.split(":")[1]
            base = question[1]
            if symbol not in name_at.get(where, ()) and not (
                    symbol == base or symbol.startswith((base + "_v", base + "_pt"))):
                wrong.append(f"{' '.join(question)}: {where} replaced by {symbol}")
        elif shim_where != where:
            wrong.append(f"{' '.join(question)}: {where}, under the shim {shim_where}")
        elif where in name_at and where != "null":
            wrong.append(f"{' '.join(question)}: {sorted(name_at[where])[0]} is not reached")
    return wrong, replaced


def aliases(bare, wrapped):
    """Wrapped functions whose exported address no question to cuGetProcAddress_v2 gave."""
    given = {where for question, (_, where) in bare.items() if question[0] == "proc"}
    asked = {question[1] for question in bare if question[0] == "proc"}
    missing = []
    for name in wrapped:
        base = name.removesuffix("_ptsz").removesuffix("_ptds")
        base = base[:-3] if base[-3:-1] == "_v" else base
        where = bare[("sym", name)][1]
        if where != "null" and base in asked and where not in given:
            missing.append(name)
    return missing


def identity(suite):
    wrapped = exported(suite.lib)
    made = os.path.join(suite.build, "made")
    os.makedirs(os.path.join(made, "tests", "sim"), exist_ok=True)
    table = suite.must([sys.executable, os.path.join(base.ROOT, "tests/sim/cudart/entries.py")],
                       "the table of look-ups")
    with open(os.path.join(made, "tests", "sim", "entries.def"), "w") as file:
        file.write(table)
    program = suite.compile("identity", ["identity.c"], "-I", made)
    names = "\n".join(wrapped).encode()
    bare = suite.run([program], suite.bare_env, stdin=names)
    shim = suite.run([program], suite.shim_env(), stdin=names)
    if bare.rc != 0 or shim.rc != 0:
        suite.compare("look-ups", bare, shim)
        return
    bare_answers, shim_answers = answers(bare.out), answers(shim.out)
    wrong, replaced = judge(bare_answers, shim_answers, wrapped)
    for line in wrong[:20]:
        suite.log(f"  {line}")
    suite.row(f"{len(bare_answers)} look-ups", verdict=f"FAIL: {len(wrong)} wrong, first: "
                                                       f"{wrong[0]}" if wrong
              else f"ok: {replaced} answered by the shim, the others are the driver's")
    missing = aliases(bare_answers, wrapped)
    for name in missing:
        suite.log(f"  exported address of {name} never given by cuGetProcAddress_v2")
    absent = [n for n in wrapped if bare_answers[("sym", n)][1] == "null"]
    suite.row("dlsym against cuGetProcAddress", verdict="measured: "
              f"{len(missing)} wrapped functions differ, {len(absent)} are not in this driver")
    with open(os.path.join(suite.build, "identity.bare.txt"), "w") as file:
        file.write(bare.out)
    with open(os.path.join(suite.build, "identity.shim.txt"), "w") as file:
        file.write(shim.out)
