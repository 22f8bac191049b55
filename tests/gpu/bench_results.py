# SPDX-License-Identifier: BSD-2-Clause
"""tests/bench/RESULTS.md, made from tests/bench/results.json and nothing else: for each part a
table, of one version on one machine, by its entry of SECTIONS."""
import dataclasses
import difflib
import os
import sys
import textwrap
import typing

import bench_frugal
import bench_memory
import bench_peers
import bench_store
import bench_targets
import suite as base
from bench_store import amount, duration, find, size_text, unique

FOLDER = os.path.join(base.ROOT, "tests", "bench")
JSON, PAGE = "results.json", "RESULTS.md"
PEERS = [peer.name for peer in bench_peers.PEERS]

HEAD = """<!-- Made by `tests/gpu/bench --results` from results.json; changes belong there. -->
# Benchmarks

    tests/gpu/bench [--quick] [--only PART,..] --json FILE.. [BUILD FOLDER]
    tests/gpu/bench --results FILE..

The first measures, on a machine with a GPU, the second makes this page. The peers take turns, each
in a process of its own. A figure is the median over the rounds, in brackets their extremes.
gpucache alone is a program with the static runtime under `LD_PRELOAD`. CUB has bins that double up
to 1 GiB, cudaMallocAsync a release threshold without limit.
"""


@dataclasses.dataclass
class Section:
    """How the rows of a part are shown. keys: what tells its lines apart, (head, text of a row).
    cell: the text of a row in its column; several in one cell stand side by side."""
    title: str
    words: str
    keys: tuple
    cell: typing.Callable
    column: typing.Callable = lambda entry: entry["peer"]
    shows: typing.Callable = lambda entry: True
    order: typing.Callable = lambda entry: 0
    more: tuple = ()        # (head, text of a line's {column: row})
    figures: tuple = ()     # what results.json keeps beside value, low, high and note


def with_range(show):
    """The value, and the extremes of its rounds in brackets."""
    def cell(entry):
        value, *ends = (show(entry[key]) for key in ("value", "low", "high") if key in entry)
        return f"{value} ({' to '.join(ends)})" if any(end != value for end in ends) else value
    return cell


def by_unit(entry):
    shows = {"ns": duration, "bytes": amount, "ms": lambda value: duration(value * 1e6),
             "ratio": "{:.3f}".format}
    return with_range(shows[entry["unit"]])(entry)


def by_key(name, show=str):
    return lambda entry: show(entry.get(name, ""))


def pair_cell(entry):
    return f"{entry['threads']}: {duration(entry['value'])} ({duration(entry['p99'])})"


def memory_cell(entry):
    value = entry["value"]
    spread = (entry.get("high", value) - entry.get("low", value)) / 2 / value
    over = f" ({entry['over']:.3f})" if "over" in entry else ""
    return f"{value:.4g} ± {spread:.1%}{over}"


def torch_cell(entry):
    if entry["unit"] == "over native":
        return f"{entry['value']:.2f} ± {entry['error']:.2f}"
    return by_unit(entry)


def suite_cell(entry):
    shown = [f"{entry['value'] / 1e6:g} ms"] if entry["value"] else []
    return ", ".join([*shown, entry["note"]] if "note" in entry else shown)


def target_of(line):
    limit = line[bench_peers.SHIM].get("limit")
    return f"at most {duration(limit)}" if limit else ""


def verdict_of(line):
    entry = line[bench_peers.SHIM]
    return "" if "limit" not in entry else \
        "met" if entry["value"] <= entry["limit"] else "**missed**"


def over_malloc(line):
    mine, its = line.get(bench_peers.SHIM), line.get(bench_peers.BARE)
    return f"{mine['value'] / its['value']:.2f}" if mine and its else ""


WORK = {"pair": "malloc, free", "launch": "malloc, kernel, free", "kernel": "kernel alone"}
STREAM = {"single": "the legacy stream alone", "own": "a stream for each thread",
          "legacy": "the legacy stream, others exist"}
CALLS = {"mem-info": "cudaMemGetInfo", "wild": "free of an unknown address",
         "foreign": "free of a stream-ordered block", "launch": "kernel launch",
         "pair": "malloc and free of 1 MiB, other memory alive"}
FLUSH = {"visible": "visible after", "released": "given back"}
REFILL = {"live": "live then", "returned": "given back", "left": "left beside live blocks",
          "left over live": "over live", "flush": "a flush takes", "step": "a step takes",
          "lost by a flush": "a flush costs the training",
          "lost by a step": "a step takes longer by up to"}
TORCH = ("ms", "over native", "bytes")

def pair_order(entry):
    return (list(STREAM).index(entry["stream"]), entry["streams"],
            list(WORK).index(entry["name"]), entry["size_bytes"], entry["threads"])


SECTIONS = {
    "pairs": Section(
        "Pairs of malloc and free",
        "The time of a pair as its thread sees it. A cell has the number of threads, the mean in "
        "batches, and in brackets the 99th percentile of single pairs. Busy: so many other streams "
        "have long kernels in flight.",
        (("work", by_key("name", WORK.get)), ("streams", by_key("stream", STREAM.get)),
         ("busy", by_key("streams")), ("size", by_key("size_bytes", size_text))),
        pair_cell, order=pair_order, figures=("p99",),
        shows=lambda entry: entry["name"] != "kernel" or not entry["streams"]),
    "overlap": Section(
        "Copies and kernels that overlap",
        "Time over the time with blocks that were allocated before. Items of 4 to 8 MiB: copy in, "
        "two kernels and 150 us of computing, copy out; three blocks each. The host waits for no "
        "result (ahead), or for each in turn (paced).",
        (("streams", by_key("streams")), ("the host goes", by_key("name"))),
        with_range("{:.3f}".format), order=lambda entry: (entry["streams"], entry["name"]),
        figures=("fixed_ns",)),
    "flush": Section(
        "Idle memory given back",
        "One thread launches kernels while another empties the cache.",
        (("idle", lambda entry: f"{entry['count']} × {size_text(entry['size_bytes'])}"),
         ("peer", by_key("peer"))), by_unit,
        column=lambda entry: FLUSH.get(entry["name"], entry["name"])),
    "cold": Section(
        "The first memory of a process",
        "Each case in a process of its own; in brackets the slowest single call.",
        (("total", by_key("total_bytes", amount)), ("blocks of", by_key("size_bytes", size_text))),
        lambda entry: f"{duration(entry['value'])} ({duration(entry['max'])})",
        shows=lambda entry: entry["name"] == "take",
        order=lambda entry: (entry["total_bytes"], -entry["size_bytes"]),
        more=(("ratio", over_malloc),), figures=("max",)),
    "calls": Section(
        "Single calls", "",
        (("call", by_key("name", CALLS.get)),),
        lambda entry: f"{entry['route']} {duration(entry['value'])}"),
    "start": Section("A process without CUDA", "", (("", by_key("name")),),
                     lambda entry: duration(entry["value"])),
    "memory": Section(
        "Memory as the GPU sees it",
        "One contiguous range of addresses. gpucache: a block of the pool in a process that had no "
        "memory before (fresh), after blocks of 1 to 64 MiB came and went in a random order "
        "(churn), or after as many blocks of one size as the range holds. Mapped: by cuMemMap, "
        "without the pool. Loads of 4 bytes at random places by all of the GPU, or by one thread "
        "that waits for each; half of the range copied onto the other half, bytes read and written "
        "counted; 256 MiB in four pieces from and to pinned host memory and a peer. ±: half of the "
        "difference between the extremes of the rounds. In brackets: over cudaMalloc in the same "
        "rounds.",
        (("size", by_key("size_bytes", size_text)), ("memory", by_key("peer")),
         ("how it was made", lambda entry: entry["form"] + (
             f" ({entry['chunks']} chunks)" if "chunks" in entry else ""))), memory_cell,
        column=lambda entry: f"{entry['name']}, {dict(bench_memory.METRICS)[entry['name']]}",
        order=lambda entry: entry["size_bytes"], figures=("over", "chunks")),
    "torch": Section(
        "PyTorch",
        "The time of a step, that over native's in the same rounds, and the peak of reserved "
        "memory. cudaMalloc and gpucache: with PyTorch's own cache off. Live: what the program "
        "asked for at its peak. Libraries: how much of it PyTorch does not count, since its "
        "libraries ask "
        "cudaMalloc for it themselves: with PyTorch's allocators it comes on top.",
        (("workload", by_key("name")),), torch_cell,
        order=lambda entry: TORCH.index(entry["unit"]), figures=("error",)),
    "refill": Section(
        "A flush in the middle of training",
        "The same training with gpucache, without flushes and with one every 0.7 s after the first "
        "3 s. Live then: at the flush. A flush costs: all steps with flushes less all without, for "
        "each flush; below zero, the two trainings differ by more. A step takes longer: than the "
        "same step without flushes.",
        (("workload", by_key("name")),), by_unit,
        column=lambda entry: REFILL[entry["form"]],
        more=(("flushes", lambda line: str(line[REFILL["left"]].get("rounds", 1))),),
        figures=("rounds",)),
    "lend": Section(
        "Memory that processes lend each other",
        "By `tests/gpu/run --only lend --quick`, one run. The first three: from the call that "
        "finds the GPU full to its success; bare on an empty GPU. A turn: one process after the "
        "other takes its memory, works on it and frees it.",
        (("", by_key("name")),), suite_cell),
    "frameworks": Section(
        "Caches of frameworks",
        "By `tests/gpu/run --only torch-cache --quick`, one run. The first four: from the flush of "
        "an idle process to the memory on the GPU. Training: a GPT with CUDA graphs, PyTorch's own "
        "cache on, with the same losses; its slowest steps vary from run to run.",
        (("", by_key("name")),), suite_cell),
    "park": Section(
        "Memory of sleeping processes",
        "By `tests/gpu/run --only park --quick`, one run, all bytes right. Out: by `gpucache "
        "park`, to host memory. Back: at a launch. Again: with `GPUCACHE_PARK=retain`, a park of "
        "the same memory; of what has not changed the median and the 99th percentile of 20.",
        (("", by_key("name")),), by_unit,
        more=(("target", target_of), ("", verdict_of)), figures=("limit",)),
    "whole": Section(
        "Processes off the GPU as a whole",
        "By `tests/gpu/run --only whole`, one run: 24 GiB live, `gpucache park --whole` and "
        "`gpucache wake`; beside it the driver's checkpoint alone.",
        (("", by_key("name")),), by_unit),
    "trace": Section(
        "An event of a trace",
        "By `tests/gpu/run --only report`: what an event takes where a program does nothing but "
        "malloc and free, over the same without a trace.",
        (("where the record goes", by_key("name")),), by_unit,
        more=(("target", target_of), ("", verdict_of)), figures=("limit",)),
    "replay": Section("Recorded programs", "Peak of reserved over peak of live memory.",
                      (("", by_key("name")),), lambda entry: f"{entry['value']:.3f}",
                      column=lambda entry: entry["trace"]),
    "instructions": Section(
        "Instructions of a pair",
        "Of the library and what it calls in libc, by callgrind on the simulated driver.",
        (("route", by_key("route")), ("mode", by_key("name"))),
        lambda entry: f"{entry['value']:.0f}",
        column=lambda entry: size_text(entry["size_bytes"])),
}
# The part whose table is made of processes, not of medians.
FRUGAL = (
    "Programs with random shapes",
    "Training of BERT, of a net of graph attention and convolution, of Mask R-CNN and of GPT-2, "
    "and inference of ViT-S on four streams; random weights, sizes that change. "
    "gpucache: with PyTorch's own cache off. Each figure is the median of processes, in brackets "
    "the least, the quartiles and the most. Reserved over live: the peaks of what was reserved and "
    "of what the program asked for. Time: all steps, against the process with the same shapes that "
    "took turns with it; then the step in the middle.")
ORDER = (*list(SECTIONS)[:8], "frugal", *list(SECTIONS)[8:])


def table(heads, lines):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
            *("| " + " | ".join(line) + " |" for line in lines), ""]


def tabulated(section, rows):
    rows = sorted(filter(section.shows, rows), key=section.order)
    lines, columns = {}, {}
    for entry in rows:
        key = tuple(text(entry) for _, text in section.keys)
        columns.setdefault(section.column(entry))
        lines.setdefault(key, {}).setdefault(section.column(entry), []).append(entry)
    columns = [peer for peer in PEERS if peer in columns] + \
        [column for column in columns if column not in PEERS]
    heads = [head for head, _ in section.keys], [head for head, _ in section.more]
    return table([*heads[0], *columns, *heads[1]],
                 [[*key, *("; ".join(map(section.cell, found.get(column, [])))
                           for column in columns),
                   *(text({column: entries[0] for column, entries in found.items()})
                     for _, text in section.more)] for key, found in lines.items()])


def shown_part(group, rows):
    if group != "frugal":
        section = SECTIONS[group]
        return section.title, section.words, tabulated(section, rows)
    heads, lines, below = bench_frugal.table(rows)
    return (*FRUGAL, [*table(heads, lines), *below])


def sections(rows, groups=ORDER):
    """The lines of all parts that have figures, each with what was measured where, and the notes on
    it."""
    facts = facts_of(rows)
    for group in groups:
        part = find(rows, group=group)
        if part:
            title, words, lines = shown_part(group, part)
            mine = next((facts[part] for part in facts if group_of(part) == group), {})
            where = ", ".join(mine[name].split(",")[0] for name in ("libgpucache", "GPU")
                              if name in mine)
            yield from (f"## {title}" + (f" ({where})" if where else ""), "",
                        *([words, ""] if words else []), *lines)
            notes = [f"- {note['note']}" for note in find(rows, group="note", name=group)]
            yield from [*notes, ""] if notes else []


def folded(line):
    """Prose in lines of at most 100 columns; tables and what has several lines stay."""
    if len(line) <= 100 or "\n" in line or line.startswith("|"):
        return line
    return textwrap.fill(line, 100, subsequent_indent="  " * line.startswith("- "),
                         break_long_words=False, break_on_hyphens=False)


def shown(rows):
    """A part's figures as the page has them, in columns, for those who look on."""
    text = []
    for line in map(folded, sections(rows)):
        cells = line.strip("| ").split(" | ")
        text.append("  ".join(cell.ljust(16) for cell in cells).rstrip()
                    if line.startswith("| ") else line)
    return "\n".join(line for line in text if not line.startswith("|-"))


def facts_of(rows):
    """{part: {fact: what it is}} of the machines."""
    facts = {}
    for entry in find(rows, group="machine"):
        for part in entry.get("parts", "").split(", "):
            facts.setdefault(part, {})[entry["name"]] = entry["note"]
    return facts


def group_of(part):
    """The group of a part's rows."""
    return "pairs" if part == "busy" else part


def machines(facts):
    """Rows of all facts, those of like parts together."""
    alike = {}
    for part, mine in facts.items():
        alike.setdefault(tuple(mine.items()), []).append(part)
    return [bench_store.row("machine", name, "", 0, "", note=note, parts=", ".join(parts))
            for mine, parts in alike.items() for name, note in mine]


def measured_on(rows):
    """A table of the machines: what was measured on each."""
    rows = machines(facts_of(rows))
    heads = [name for name, in unique(rows, "name")]
    return table(["parts", *heads], [
        [parts, *(next((entry["note"] for entry in find(rows, parts=parts, name=head)), "")
                  for head in heads)] for parts, in unique(rows, "parts")])


def page(rows):
    missing = [f"- {entry['name']}, {entry['peer'] or 'all'}: {entry['note']}"
               for entry in find(rows, group="skipped")
               if not find(rows, group=entry["name"], peer=entry["peer"])]
    lines = [HEAD, *measured_on(rows), "## Targets", "", *bench_targets.table(rows),
             *sections(rows, [group for group in ORDER if group != "start"])]
    if missing:
        lines += ["## Not measured", "", *dict.fromkeys(missing), ""]
    return "\n".join(map(folded, lines)).rstrip("\n") + "\n"


def joined(mine, rows):
    """Rows of a part, and later ones of another file: of one machine and library, by their seed.
    Else the later ones take the place of all."""
    machines_of = {entry["machine"] for entry in mine + rows if "machine" in entry}
    if len(machines_of) != 1:
        return rows
    return list({(entry["group"], entry.get("seed"), entry["name"], entry["peer"]): entry
                 for entry in mine + rows}.values())


def kept(entry):
    """A row, without the figures that no page shows."""
    if entry["group"] not in SECTIONS:
        return entry
    names = ("group", "peer", "value", "low", "high", "note", *bench_store.CASE,
             *SECTIONS[entry["group"]].figures)
    return {key: value for key, value in entry.items() if key in names}


def merged(files):
    """The rows of all files. The figures of a part, with what was skipped and noted about it, are
    those of the last file that has it. ValueError: no page can be made of the rows of a file."""
    parts, facts = {}, {}
    for path in files:
        rows = bench_store.load(path)
        try:
            page(rows)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no page can be made of it: {error!r}") from error
        mine = {}
        for entry in rows:
            about = entry["name"] if entry["group"] in ("skipped", "note") else entry["group"]
            mine.setdefault(about, []).append(entry)
        mine.pop("machine", None)
        measured = {group for group, in unique(rows, "group")}
        for group, found in mine.items():
            if group not in parts:
                parts[group] = found
            elif group in measured:  # what was skipped this time stays
                parts[group] = joined(parts[group], found)
        facts = {part: mine for part, mine in facts.items() if group_of(part) not in measured}
        facts.update({part: mine for part, mine in facts_of(rows).items()
                      if group_of(part) in measured})
    return machines(facts) + [kept(entry) for found in parts.values() for entry in found]


def publish(files, folder=FOLDER):
    source = os.path.join(folder, JSON)
    try:
        rows = merged(files or [source])
        text = page(rows)
        bench_store.save(source, rows)
        with open(os.path.join(folder, PAGE), "w") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def check(folder=FOLDER):
    """1 if the page is not what results.json makes, with the first lines that differ. 2 if there is
    none, or no figures."""
    try:
        text = page(merged([os.path.join(folder, JSON)]))
        with open(os.path.join(folder, PAGE)) as file:
            there = file.read()
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.writelines(list(difflib.unified_diff(
        there.splitlines(True), text.splitlines(True), PAGE, "made from results.json", n=0))[:20])
    return int(there != text)
