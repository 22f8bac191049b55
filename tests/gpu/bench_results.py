# SPDX-License-Identifier: BSD-2-Clause
"""tests/bench/RESULTS.md and its drawing, made from tests/bench/results.json and nothing else."""
import difflib
import os
import sys
import textwrap

import bench_figure
import bench_frugal
import bench_memory
import bench_peers
import bench_refill
import bench_store
import bench_targets
import suite as base
from bench_text import amount, duration, size_text

FOLDER = os.path.join(base.ROOT, "tests", "bench")
JSON, PAGE, DRAWING = "results.json", "RESULTS.md", "results.svg"
PEERS = [peer.name for peer in bench_peers.PEERS]
# What makes two rows speak of the same thing.
IDENTITY = ("group", "name", "peer", "unit", "threads", "size_bytes", "streams", "stream", "route",
            "trace", "total_bytes", "count", "parts", "note", "form", "seed")

HEAD = """<!-- Made by `tests/gpu/bench --results` from results.json; changes belong there. -->
# Benchmarks

    tests/gpu/bench [--quick] [--only PART,..] --json FILE.. [BUILD FOLDER]
    tests/gpu/bench --results FILE..

The first measures on a machine with a GPU, the second makes this page of what it left. Every peer
is measured in the same run, in turns, each in a process of its own. A figure is the median over the
rounds; results.json has their extremes. gpucache without more is a program with the static runtime,
as nvcc makes it, under `LD_PRELOAD`. CUB has bins that double up to 1 GiB, cudaMallocAsync a
release threshold without limit; PyTorch's allocators are called from C++.
"""


def merged(files):
    """Rows of all files; of two that speak of the same thing, the later one. ValueError: no page
    can be made of the rows of a file."""
    rows = {}
    for path in files:
        loaded = bench_store.load(path)
        try:
            made(loaded)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no page can be made of it: {error}") from error
        for entry in loaded:
            rows[tuple(entry.get(key) for key in IDENTITY)] = entry
    return list(rows.values())


def folded(line):
    """Prose in lines of at most 100 columns; tables and what has several lines stay."""
    if len(line) <= 100 or "\n" in line or line.startswith("|"):
        return line
    return textwrap.fill(line, 100, subsequent_indent="  " * line.startswith("- "),
                         break_long_words=False, break_on_hyphens=False)


def table(heads, lines):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
            *("| " + " | ".join(line) + " |" for line in lines), ""]


def machine(rows):
    """Each machine once, with what was measured on it."""
    facts = {}
    for entry in bench_store.find(rows, group="machine"):
        facts.setdefault(entry.get("parts", ""), []).append((entry["name"], entry["note"]))
    machines = {}
    for parts, said in facts.items():
        machines.setdefault(tuple(said), []).append(parts)
    lines = []
    for said, parts in machines.items():
        lines.append(f"- {', '.join(filter(None, parts))}: " +
                     "; ".join(f"{name} {note}" for name, note in said))
    return lines


def present(rows):
    have = {entry["peer"] for entry in rows}
    return [peer for peer in PEERS if peer in have] + sorted(have - set(PEERS))


def pair_table(rows, kernels):
    """Lines by size and threads, columns by peer: the mean, and the 99th percentile behind it."""
    peers = present(rows)
    cells = {(entry["size_bytes"], entry["threads"], entry["peer"]): entry for entry in rows}
    alone = {entry["threads"]: entry["value"] for entry in kernels
             if entry["peer"] == bench_peers.BARE}
    lines = []
    for size, threads in sorted({key[:2] for key in cells}):
        line = [size_text(size), str(threads)]
        if alone:
            line.append(duration(alone[threads]) if threads in alone else "")
        for peer in peers:
            entry = cells.get((size, threads, peer))
            line.append(f"{duration(entry['value'])} ({duration(entry['p99'])})" if entry else "")
        lines.append(line)
    return table(["size", "threads", *(["kernel alone"] if alone else []), *peers], lines)


WORK = {"pair": "malloc, free", "launch": "malloc, kernel, free"}
STREAM = {"single": "a program with the legacy stream alone", "own": "a stream for each thread",
          "legacy": "all on the legacy stream, in a program with more streams"}


def pairs(rows):
    lines = []
    for stream in STREAM:
        for busy in sorted({entry["streams"] for entry in rows}):
            for work in WORK:
                part = bench_store.find(rows, name=work, stream=stream, streams=busy)
                if not part:
                    continue
                kernels = bench_store.find(rows, name="kernel", stream=stream,
                                           streams=busy) if work == "launch" else []
                more = f", {busy} other stream{'s' * (busy > 1)} busy" if busy else ""
                lines += [f"### {WORK[work]}: {STREAM[stream]}{more}", "",
                          *pair_table(part, kernels)]
    return lines


def overlap(rows):
    lines = []
    for streams, name in sorted({(entry["streams"], entry["name"]) for entry in rows}):
        part = bench_store.find(rows, streams=streams, name=name)
        for peer in present(part):
            entry = bench_store.find(part, peer=peer)[0]
            lines.append([str(streams), "as far ahead as it can" if name == "ahead"
                          else "takes each result in turn", peer,
                          f"{entry['value']:.3f}", f"{entry.get('low', entry['value']):.3f} to "
                          f"{entry.get('high', entry['value']):.3f}", duration(entry["fixed_ns"])])
    return table(["streams", "the host goes", "peer", "time over time without allocations", "range",
                  "without"], lines)


def flush(rows):
    lines = []
    for count, size in sorted({(entry["count"], entry["size_bytes"]) for entry in rows}):
        for peer in present(rows):
            part = {entry["name"]: entry for entry in
                    bench_store.find(rows, count=count, size_bytes=size, peer=peer)}
            if not part:
                continue
            launches = [part.get(f"slowest launch, {when}")
                        for when in ("nothing else", "meanwhile")]
            seen = part.get("visible")
            lines.append([f"{count} × {size_text(size)}", peer, duration(seen["value"]) if seen
                          else "not seen",
                          amount(part["released"]["value"]) if "released" in part else "",
                          *(f"{duration(entry['value'])}, at most "
                            f"{duration(entry.get('high', entry['value']))}"
                            if entry else "" for entry in launches)])
    return table(["idle", "peer", "visible after", "given back",
                  "slowest launch, nothing else going on", "slowest launch meanwhile"], lines)


def cold(rows):
    lines = []
    taken = bench_store.find(rows, name="take")
    for total, size in sorted({(entry["total_bytes"], entry["size_bytes"]) for entry in taken},
                              key=lambda k: (k[0], -k[1])):
        part = {entry["peer"]: entry for entry in bench_store.find(taken, total_bytes=total,
                                                                   size_bytes=size)}
        bare, shim = part.get(bench_peers.BARE), part.get(bench_peers.SHIM)
        if not bare or not shim:
            continue
        others = ", ".join(f"{peer} {duration(part[peer]['value'])}"
                           for peer in present(part.values())
                           if peer not in (bench_peers.BARE, bench_peers.SHIM))
        lines.append([amount(total), size_text(size), duration(bare["value"]),
                      duration(shim["value"]),
                      f"{shim['value'] / bare['value']:.2f}", duration(bare["max"]),
                      duration(shim["max"]), others])
    return table(["total", "blocks of", "cudaMalloc", "gpucache", "ratio", "slowest cudaMalloc",
                  "slowest under gpucache", "others"], lines)


def calls(rows):
    names = {"mem-info": "cudaMemGetInfo", "wild": "free of an unknown address",
             "foreign": "free of a stream-ordered block", "launch": "kernel launch",
             "pair": "malloc and free of 1 MiB, other memory alive"}
    lines = []
    for entry in bench_store.find(rows, peer=bench_peers.SHIM):
        bare = bench_store.find(rows, peer="bare", name=entry["name"], route=entry["route"])
        if bare and entry["name"] in names:
            lines.append([names[entry["name"]], entry["route"], duration(bare[0]["value"]),
                          duration(entry["value"]), f"{entry['value'] - bare[0]['value']:+.0f} ns",
                          f"{entry['value'] / bare[0]['value']:.3f}"])
    return table(["call", "route", "bare", "gpucache", "more", "ratio"], lines)


def memory(rows):
    lines = table(*bench_memory.table(rows))
    for sentence in bench_memory.missing(rows):
        lines += [sentence, ""]
    return lines


def torch(rows):
    lines = []
    for name in dict.fromkeys(entry["name"] for entry in rows):
        for unit, show in (("ms", lambda value: duration(value * 1e6)), ("bytes", amount)):
            part = bench_store.find(rows, name=name, unit=unit)
            native = bench_store.find(part, peer=bench_peers.TORCH)
            for peer in present(part):
                entry = bench_store.find(part, peer=peer)[0]
                over = ""
                if native and native[0]["value"]:
                    over = f"{entry['value'] / native[0]['value']:.2f}"
                if unit == "ms":
                    for pairs in bench_store.find(rows, name=name, peer=peer, unit="over native"):
                        over = f"{pairs['value']:.2f} ± {pairs['error']:.2f}"
                lines.append([name, "time of a step" if unit == "ms" else "peak reserved", peer,
                              show(entry["value"]),
                              f"{show(entry['low'])} to {show(entry['high'])}" if "low" in entry
                              else "", over])
    return table(["workload", "", "peer", "value", "range", "over native"], lines)


def frugal(rows):
    heads, lines, below = bench_frugal.table(rows)
    return [*table(heads, lines), *below]


def refill(rows):
    return table(*bench_refill.table(rows))


def replay(rows):
    traces = list(dict.fromkeys(entry["trace"] for entry in rows))
    lines = []
    for name in dict.fromkeys(entry["name"] for entry in rows):
        found = {entry["trace"]: entry["value"] for entry in bench_store.find(rows, name=name)}
        lines.append([name, *(f"{found[trace]:.3f}" if trace in found else "" for trace in traces)])
    return table(["", *traces], lines)


def instructions(rows):
    sizes = sorted({entry["size_bytes"] for entry in rows})
    lines = []
    for route, mode in dict.fromkeys((entry["route"], entry["name"]) for entry in rows):
        found = {entry["size_bytes"]: entry["value"]
                 for entry in bench_store.find(rows, route=route, name=mode)}
        lines.append([route, mode, *(f"{found[size]:.0f}" if size in found else ""
                                     for size in sizes)])
    return table(["route", "mode", *(size_text(size) for size in sizes)], lines)


def beside(rows):
    """What the suite measured (tests/gpu/run): a program bare and under the library."""
    lines = []
    for name in dict.fromkeys(entry["name"] for entry in rows):
        found = {entry["peer"]: entry for entry in bench_store.find(rows, name=name)}
        shown_of = {peer: f"{entry['value'] / 1e6:g} ms" if entry["value"] else entry["note"]
                    for peer, entry in found.items()}
        notes = [entry["note"] for entry in found.values() if entry["value"] and "note" in entry]
        lines.append([name, shown_of.get("bare", ""), shown_of.get("gpucache", ""),
                      "; ".join(notes)])
    return table(["", "bare", "gpucache", ""], lines)


SECTIONS = [
    ("pairs", "Pairs of malloc and free",
     "Time of a pair as its thread sees it: the mean in batches, behind it in brackets the 99th "
     "percentile of single pairs. With a kernel in between, a launch is in it; what that takes "
     "alone, bare, stands beside it. Nothing else is allocated: where the driver has part of 2 MiB "
     "in use, its cudaMalloc of up to 1 MiB is faster, see single calls.", pairs),
    ("overlap", "Copies and kernels that overlap",
     "Items of 4 to 8 MiB: copy in, two kernels and 150 us of computing, copy out; three blocks "
     "for each item, against three that were allocated before.", overlap),
    ("flush", "Idle memory given back",
     "One thread launches kernels while another empties the cache.", flush),
    ("cold", "The first memory of a process", "Each case in a process of its own.", cold),
    ("calls", "Single calls", "", calls),
    ("memory", "Memory as the GPU sees it",
     "One contiguous range of addresses of each size, made in several ways. gpucache: one block "
     "of the pool. Fresh: in a process that had no memory before; after churn: after blocks of 1 "
     "to 64 MiB came and went in a random order; after blocks of a size: after as many of them as "
     "the range holds came and went. How many pieces of physical memory (chunks) the block then "
     "lies on stands in brackets. Mapped: by cuMemMap, without the pool, chunks of one size, at a "
     "multiple of 1 GiB if nothing else is said. The figures: 67 million loads of 4 bytes at "
     "random places, by all of the GPU; loads of one thread that wait for each other; half of the "
     "range copied onto the other half by a kernel and by the driver, bytes read and written "
     "counted; 256 MiB in four pieces from and to pinned host memory and a peer. ±: half of the "
     "difference between the extremes of the rounds. In brackets: over cudaMalloc in the same "
     "rounds. There is no time to measure each way with each size: those without figures are "
     "named below the table.", memory),
    ("torch", "PyTorch",
     "cudaMalloc and gpucache: with PyTorch's own cache off. Live: what the program asked for at "
     "its peak; libraries: how much of it PyTorch does not count, since its libraries ask "
     "cudaMalloc for it themselves: with PyTorch's allocators it comes on top.", torch),
    ("frugal", "Programs with random shapes",
     "PyTorch, training of BERT, of a net of graph attention and convolution, of Mask R-CNN and of "
     "GPT-2, and inference of ViT-S on four streams; random weights, sizes that change with every "
     "step. gpucache: with PyTorch's own cache off. Each figure is the median of processes, in "
     "brackets the least, the quartiles and the most. Reserved over live: the peak of reserved "
     "memory over the peak of what the program asked for, which may come at another time. With "
     "gpucache both have what PyTorch's libraries ask cudaMalloc for themselves; PyTorch's "
     "allocators do not count that. Time: all steps, against the process with the same shapes that "
     "took turns with it; then the step in the middle. Native again: a second process of it, which "
     "tells how far two processes differ that do the same. Whole chunks: free, and the pool could "
     "move them. Cut chunks: free, but other blocks lie there too.",
     frugal),
    ("refill", "A flush in the middle of training",
     "Training as above, with gpucache, once without flushes and once with a flush every 0.7 s "
     "after the first 3 s, at any place of a step. A flush gives back whole chunks: memory that is "
     "free beside a live block of the same chunk stays. Live then: at the flush. A flush costs: "
     "all steps with flushes less all without, for each flush; below zero, the two trainings "
     "differ by more than flushes cost. A step takes longer: than the same step without flushes. "
     "In brackets the least and the most.", refill),
    ("lend", "Memory that processes lend each other",
     "By `tests/gpu/run --only lend --quick`, one run. The first three: from the call that finds "
     "the GPU full to its success, with the memory idle in another process; bare on an empty GPU. "
     "A turn: one process after the other takes its memory, works on it and frees it. One H100, "
     "581f384.", beside),
    ("frameworks", "Caches of frameworks",
     "By `tests/gpu/run --only torch-cache --quick`, one run. The first four: from the flush of an "
     "idle process to the memory on the GPU. Training: a GPT with CUDA graphs and "
     "`torch.compile(mode=\"reduce-overhead\")`, PyTorch's own cache on, with the same losses; "
     "PyTorch answered all six flushes and gave back 1.2 GiB at the median one. The slowest steps "
     "vary from run to run. One H100, 581f384.", beside),
    ("replay", "Recorded programs", "Peak of reserved over peak of live memory.", replay),
    ("instructions", "Instructions of a pair",
     "Of the library and what it calls in libc, by callgrind on the simulated driver.",
     instructions),
]


def sections(rows):
    for group, title, words, show in SECTIONS:
        part = bench_store.find(rows, group=group)
        if not part:
            continue
        try:
            shown_part = show(part)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"part {group}: {type(error).__name__}: {error}") from error
        yield from (f"## {title}", "", *([words, ""] if words else []), *shown_part)


def shown(rows):
    """A part's figures as the page has them, in columns, for those who look on."""
    started = [f"{entry['name']}, {entry['peer']}: {duration(entry['value'])}"
               for entry in bench_store.find(rows, group="start")]
    text = []
    for line in [*map(folded, sections(rows)), *started]:
        cells = line.strip("| ").split(" | ")
        text.append("  ".join(cell.ljust(16) for cell in cells).rstrip()
                    if line.startswith("| ") else line)
    return "\n".join(line for line in text if not line.startswith("|-"))


def page(rows):
    lines = [HEAD, "Measured on", "", *machine(rows), "", "## Targets", "",
             *bench_targets.table(rows), ""]
    notes = bench_store.find(rows, group="note")
    if notes:
        lines += ["What stands behind the verdicts:", "",
                  *(f"- {entry['note']}" for entry in notes), ""]
    if bench_store.find(rows, group="pairs"):
        lines += ["## The distribution of pairs", "",
                  "Boxes reach from the 10th to the 90th percentile, the bar is the "
                  "median, the line goes up to the 99th.", "",
                  f"![pairs by size, threads and work in flight]({DRAWING})", ""]
    lines += sections(rows)
    missing = dict.fromkeys(f"- {entry['name']}, {entry['peer'] or 'all'}: {entry['note']}"
                            for entry in bench_store.find(rows, group="skipped")
                            if not bench_store.find(rows, group=entry["name"], peer=entry["peer"]))
    if missing:
        lines += ["## Not measured", "", *missing, ""]
    return "\n".join(map(folded, lines)).rstrip("\n") + "\n"


def made(rows):
    """File name to contents."""
    return {PAGE: page(rows), DRAWING: bench_figure.drawing(rows)}


def publish(files, folder=FOLDER):
    source = os.path.join(folder, JSON)
    try:
        rows = merged(files or [source])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    apart = bench_store.why_apart(rows)
    if apart:
        print(apart, file=sys.stderr)
        return 2
    pages = made(rows)  # a fault in them leaves the files as they were
    try:
        bench_store.save(source, rows)
        for name, contents in pages.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(contents)
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def check(folder=FOLDER):
    """1 if the page or the drawing is not what results.json makes, with the first lines that
    differ. 2 if there are none, or no figures."""
    wrong = 0
    try:
        pages = made(merged([os.path.join(folder, JSON)]))
        present_text = {}
        for name in pages:
            with open(os.path.join(folder, name)) as file:
                present_text[name] = file.read()
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, contents in pages.items():
        there = present_text[name]
        if there != contents:
            wrong = 1
            sys.stdout.writelines(list(difflib.unified_diff(there.splitlines(True),
                                                            contents.splitlines(True), name,
                                                            "made from results.json", n=0))[:20])
    return wrong
