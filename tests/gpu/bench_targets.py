# SPDX-License-Identifier: BSD-2-Clause
"""The targets, the figures for each, and whether it is met. A target without figures is "not
measured"."""
import statistics

import bench_frugal
import bench_store
from bench_peers import (ASYNC, BARE, CUB, EXPANDABLE, LIBRARIES, SHIM, SHIM_DRIVER, SHIM_SHARED,
                         TORCH)
from bench_text import amount, duration, size_text

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Figures:
    """Rows by what they say."""

    def __init__(self, rows):
        self.rows = rows

    def all(self, group, **keys):
        return bench_store.find(self.rows, group=group, **keys)

    def one(self, group, **keys):
        found = self.all(group, **keys)
        return found[0]["value"] if found else None

    def pair(self, peer, work, stream, size, threads, busy=0):
        return self.one("pairs", peer=peer, name=work, stream=stream, size_bytes=size,
                        threads=threads, streams=busy)


def met(value, limit):
    return "met" if value <= limit else f"{value / limit:.2f} × the target"


SIZES = (512, MIB, 64 * MIB)
ROUTES = {SHIM_DRIVER: "driver API", SHIM_SHARED: "shared runtime", SHIM: "static runtime"}


def by_size(values, limit):
    """Verdict on {size: value}: met, or where not and how far."""
    over = {size: value for size, value in values.items() if value > limit}
    if not over:
        return "met"
    most = f"{max(over.values()) / limit:.2f} × the target"
    if len(over) == len(values):
        return most
    return f"met, but for {', '.join(map(size_text, over))}: {most}"


def single_stream(figures):
    said, judged = [], None
    for peer, route in ROUTES.items():
        column = {size: figures.pair(peer, "pair", "single", size, 1) for size in SIZES}
        column = {size: value for size, value in column.items() if value is not None}
        if not column:
            return None
        judged = judged or column
        said.append(f"{route} " + ", ".join(f"{value:.0f}" for value in column.values()) + " ns")
    return f"{'; '.join(said)} ({', '.join(map(size_text, judged))})", by_size(judged, 60)


def against_malloc(figures):
    ratios = [(bare / shim, size) for size in (512, MIB, 64 * MIB)
              for bare, shim in [(figures.pair(BARE, "pair", "single", size, 1),
                                  figures.pair(SHIM_SHARED, "pair", "single", size, 1))] if bare
              and shim]
    if not ratios:
        return None
    least = min(ratios)[0]
    return (", ".join(f"{ratio:.0f} × at {size_text(size)}" for ratio, size in ratios) +
            ", shared runtime", "met" if least >= 500 else f"{least / 500:.2f} of the target")


def instruction_count(figures):
    counts = {row["size_bytes"]: row["value"] for row in figures.all("instructions", name="single",
                                                                     route="driver")}
    if not counts:
        return None
    return (", ".join(f"{value:.0f} at {size_text(size)}" for size, value in counts.items()) +
            ", driver API", by_size(counts, 150))


def overlapping(one, other):
    """Whether the ranges of the rounds meet: no telling then which is faster."""
    return one.get("low", one["value"]) <= other.get("high", other["value"])


def fenced(figures):
    """Every case with a kernel in between, beside each of the two peers."""
    said, above = [], set()
    for peer in (ASYNC, CUB):
        ratios, below, alike = [], 0, 0
        for row in figures.all("pairs", name="launch", peer=SHIM):
            if row["stream"] == "single":
                continue
            keys = {key: row[key] for key in ("name", "stream", "size_bytes", "threads", "streams")}
            for other in figures.all("pairs", peer=peer, **keys):
                ratios.append((row["value"] / other["value"], row))
                below += row["value"] < other["value"]
                if row["value"] >= other["value"] and overlapping(row, other):
                    alike += 1
                elif row["value"] >= other["value"]:
                    above.add(tuple(keys.values()))
        if not ratios:
            return None
        worst, row = max(ratios, key=lambda pair: pair[0])
        said.append(f"below {peer} in {below} of {len(ratios)} cases, above by less than the "
                    f"rounds differ in {alike}, "
                    f"at worst {worst:.2f} × ({row['threads']} thread{'s' * (row['threads'] > 1)}, "
                    f"{size_text(row['size_bytes'])}, {row['stream']} stream, {row['streams']} "
                    f"busy)")
    return "; ".join(said), f"not in {len(above)} of them" if above else "met"


def scaling(figures):
    said, verdict = [], "met"
    for stream, what in (("single", "one stream"), ("own", "a stream for each thread")):
        for size in SIZES:
            one, many = (figures.pair(SHIM_DRIVER, "pair", stream, size, threads)
                         for threads in (1, 16))
            if not one or not many:
                continue
            said.append(f"{what}, {size_text(size)}: {duration(one)} and {duration(many)}")
            if many >= 2 * one:
                verdict = "not everywhere"
    return ("; ".join(said), verdict) if said else None


def torch_medians(figures):
    """Of figures that do not say how the times of the same rounds compare."""
    ratios = []
    for row in figures.all("torch", peer=SHIM, unit="ms"):
        native = figures.one("torch", peer=TORCH, unit="ms", name=row["name"])
        if native:
            ratios.append((row["value"] / native, row["name"]))
    if not ratios:
        return None
    return ", ".join(f"{name} {ratio:.2f}" for ratio, name in ratios), met(round(max(ratios)[0], 2),
                                                                           1.0)


def times_over_native(times):
    """(words, verdict) of {name: (median of the ratios, its standard error)}: at most 1.0."""
    said = ", ".join(f"{name} {value:.2f} ± {error:.2f}" for name, (value, error) in times.items())
    over = {name: value for name, (value, _) in times.items() if round(value, 2) > 1.0}
    unclear = [name for name, value in over.items() if value - times[name][1] <= 1.0]
    if over and len(unclear) == len(over):
        return said, f"met, as far as can be told of {', '.join(over)}"
    return said, met(max(over.values()), 1.0) if over else "met"


def torch_time(figures):
    rows = figures.all("torch", peer=SHIM, unit="over native")
    if not rows:
        return torch_medians(figures)
    return times_over_native({row["name"]: (row["value"], row["error"]) for row in rows})


def torch_peak(figures):
    ratios = []
    for row in figures.all("torch", peer=SHIM, unit="bytes"):
        expandable = figures.one("torch", peer=EXPANDABLE, unit="bytes", name=row["name"])
        if expandable:
            libraries = figures.one("torch", peer=LIBRARIES, unit="bytes", name=row["name"]) or 0
            ratios.append((row["value"] / (expandable + libraries), row["name"]))
    if not ratios:
        return None
    return ", ".join(f"{name} {ratio:.2f}" for ratio, name in ratios), met(max(ratios)[0], 1.0)


def frugal_rows(figures, peer):
    return [row for row in figures.all("frugal", peer=peer.name) if "failure" not in row]


def with_failed(figures, said, verdict):
    """A process that failed has kept no bound."""
    failed = sum("failure" in row for row in figures.all("frugal", peer=bench_frugal.SHIM.name))
    if not failed:
        return said, verdict
    return (f"{said}; {failed} failed",
            f"not in {failed} that failed" if verdict == "met" else verdict)


def frugal_peak(figures):
    """The most of all processes of each workload."""
    most = {}
    for row in frugal_rows(figures, bench_frugal.SHIM):
        most[row["name"]] = max(most.get(row["name"], 0.0), bench_frugal.over_live(row))
    if not most:
        return None
    return with_failed(
        figures, ", ".join(f"{name} {value:.3f}" for name, value in most.items()),
        met(max(value / bench_frugal.bound_of(name) for name, value in most.items()), 1.0))


def frugal_beside(figures):
    """In how many processes it is less than in that of expandable segments with the same shapes."""
    beside = {(row["name"], row["seed"]): bench_frugal.over_live(row)
              for row in frugal_rows(figures, bench_frugal.EXPANDABLE)}
    below = [bench_frugal.over_live(row) < beside[row["name"], row["seed"]]
             for row in frugal_rows(figures, bench_frugal.SHIM)
             if (row["name"], row["seed"]) in beside]
    if not below:
        return None
    return with_failed(
        figures, f"in {sum(below)} of {len(below)}",
        "met" if all(below) else f"not in {len(below) - sum(below)} of them")


def frugal_time(figures):
    """Judged by all processes together: one differs too much from the next to tell much alone."""
    times = {}
    for row in frugal_rows(figures, bench_frugal.SHIM):
        if "over_native" in row:
            times.setdefault(row["name"], []).append(row["over_native"])
    if not times:
        return None
    said, _ = times_over_native({name: (statistics.median(ratios), bench_store.median_error(ratios))
                                 for name, ratios in times.items()})
    together, verdict = times_over_native(
        {"all": bench_store.geometric_mean([ratio for ratios in times.values()
                                            for ratio in ratios])})
    return f"{said}; {together}", verdict


def replayed(kind, limit):
    def target(figures):
        rows = figures.all("replay", name=kind)
        if not rows:
            return None
        return (", ".join(f"{row['trace']} {row['value']:.3f}" for row in rows),
                met(max(row["value"] for row in rows), limit))
    return target


def cold_start(figures):
    ratios = []
    for row in figures.all("cold", name="take", peer=SHIM):
        bare = figures.one("cold", name="take", peer=BARE, size_bytes=row["size_bytes"],
                           total_bytes=row["total_bytes"])
        if bare:
            ratios.append((row["value"] / bare, row))
    if not ratios:
        return None
    worst, row = max(ratios, key=lambda pair: pair[0])
    within = sum(ratio <= 1.1 for ratio, _ in ratios)
    return (f"{within} of {len(ratios)} cases within 1.10 ×; at worst {worst:.2f} × "
            f"({amount(row['total_bytes'])} in blocks "
            f"of {size_text(row['size_bytes'])}), at best "
            f"{min(ratios, key=lambda pair: pair[0])[0]:.2f} ×", met(worst, 1.1))


def flush_time(figures):
    rows = figures.all("flush", name="visible", peer=SHIM)
    if not rows:
        return None
    idle = [row["count"] * row["size_bytes"] for row in rows]
    freed = [figures.one("flush", name="released", peer=SHIM, size_bytes=row["size_bytes"])
             for row in rows]
    said = ", ".join(f"{duration(row['value'])} for {row['count']} × "
                     f"{size_text(row['size_bytes'])}, {amount(back)} of "
                     f"{amount(held)} back" for row, held, back in zip(rows, idle, freed))
    return said, met(max(row["value"] for row in rows), 100e6)


def flush_delay(figures):
    loud = figures.all("flush", name="slowest launch, meanwhile", peer=SHIM)
    quiet = figures.all("flush", name="slowest launch, nothing else", peer=SHIM)
    if not loud or not quiet:
        return None
    worst, floor = (max(row["value"] for row in rows) for rows in (loud, quiet))
    return (f"slowest launch {duration(worst)} during a flush, {duration(floor)} with nothing "
            f"else going on "
            f"(median over rounds)", met(worst, 100e3))


def least_calls(figures, name):
    """Yields a route's least of all rounds, bare and under the shim. Nothing else happens in such a
    call, so whatever is on top of the least is the machine's."""
    for row in figures.all("calls", name=name, peer=SHIM):
        for bare in figures.all("calls", name=name, peer="bare", route=row["route"]):
            yield row["route"], bare.get("low", bare["value"]), row.get("low", row["value"])


def mem_info(figures):
    ratios = [(shim / bare, route) for route, bare, shim in least_calls(figures, "mem-info")]
    if not ratios:
        return None
    return ", ".join(f"{route} {ratio:.3f}" for ratio, route in ratios), met(max(ratios)[0], 1.1)


def foreign(figures):
    over = []
    for name, what in (("wild", "unknown address"), ("foreign", "stream-ordered block")):
        over += [(shim - bare, f"{what}, {route}") for route, bare,
                 shim in least_calls(figures, name)]
    if not over:
        return None
    worst = max(over)[0]
    return (", ".join(f"{what} {value:+.0f} ns" for value, what in over),
            "met" if worst <= 20 else f"{worst - 20:.0f} ns above the target")


def process_start(figures):
    bare, shim = (figures.one("start", peer=peer) for peer in ("bare", SHIM))
    if bare is None or shim is None:
        return None
    return f"{(shim - bare) / 1e6:+.3f} ms", met(shim - bare, 200e3)


TARGETS = [
    ("pair in a program with one stream: at most 60 ns", single_stream),
    ("the same: at least 500 times below cudaMalloc + cudaFree", against_malloc),
    ("the same: at most 150 instructions", instruction_count),
    ("pair with a kernel in between, several streams: below cudaMallocAsync and CUB at 1 to 16 "
     "threads", fenced),
    ("16 threads scale: with 1 and with 16 threads a pair takes as long, or less than twice that",
     scaling),
    ("unmodified PyTorch, its cache off: at most 1.00 × the time of its native allocator",
     torch_time),
    ("the same: peak of reserved memory below expandable segments and what libraries take beside "
     "them", torch_peak),
    ("PyTorch with random shapes, its cache off: peak of reserved over peak of live at most "
     f"{bench_frugal.BOUNDS['bert']} in every process, {bench_frugal.BOUNDS['vit']} in those of "
     "ViT on four streams", frugal_peak),
    ("the same: below expandable segments in every process", frugal_beside),
    ("the same: at most 1.00 × the time of PyTorch's native allocator", frugal_time),
    ("peak reserved over peak live, arena: at most 1.05 on every trace", replayed("arena", 1.05)),
    ("the same with work in flight", replayed("arena, work in flight", 1.05)),
    ("the same, segments: at most 1.20", replayed("segments", 1.20)),
    ("first memory: at most 1.10 × the time of cudaMalloc", cold_start),
    ("flush of 32 GiB: visible to other processes in 100 ms", flush_time),
    ("the same: no launch delayed by more than 100 us", flush_delay),
    ("cuMemGetInfo: at most 1.10 × native (the least of the rounds)", mem_info),
    ("free of a foreign pointer: at most 20 ns over native (the least of the rounds)", foreign),
    ("a process without CUDA: less than 0.2 ms", process_start),
]


def table(rows):
    figures = Figures(rows)
    lines = ["| target | measured | |", "|---|---|---|"]
    for what, target in TARGETS:
        said, verdict = target(figures) or ("", "not measured")
        lines.append(f"| {what} | {said} | {verdict} |")
    return lines
