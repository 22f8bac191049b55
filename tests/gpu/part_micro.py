# SPDX-License-Identifier: BSD-2-Clause
"""What single calls cost, by driver API, static and shared runtime."""
import suite as base

FLAGS = ["-Wno-overlength-strings"]


def figures(text):
    rows = {}
    for line in text.splitlines():
        name, size, threads, ns = line.split()
        rows[name, int(size), int(threads)] = float(ns)
    return rows


def size_text(size):
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f" {size // factor} {unit}"
    return f" {size} B" if size else ""


def micro(suite):
    programs = [("driver", suite.compile("micro-driver", ["micro.c", "micro_driver.c", "driver.c"], *FLAGS)),
                ("static cudart", suite.compile("micro-static", ["micro.c", "micro_runtime.c"], *FLAGS,
                                                static_cudart=True)),
                ("shared cudart", suite.compile("micro-shared", ["micro.c", "micro_runtime.c"], *FLAGS,
                                                shared_cudart=True))]
    for route, program in programs:
        command = [program] + (["--quick"] if suite.quick else [])
        bare, shim = suite.bare_and_shim(command, timeout=150)
        if bare.rc != 0 or shim.rc != 0:
            suite.compare(route, bare, shim)
            continue
        bare_ns, shim_ns = figures(bare.out), figures(shim.out)
        for key, ns in bare_ns.items():
            name, size, threads = key
            text = f"{route}: {name}{size_text(size)}" + (f", {threads} threads" if threads > 1 else "")
            suite.row(text, base.nanoseconds(ns), base.nanoseconds(shim_ns[key]),
                      base.ratio(shim_ns[key], ns), "measured")
