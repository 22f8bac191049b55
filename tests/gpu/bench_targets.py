# SPDX-License-Identifier: BSD-2-Clause
"""The targets, the figures for each, and whether it is met. A target without figures is "not
measured"."""
import statistics

import bench_frugal
import bench_store
from bench_peers import ASYNC, BARE, CUB, EXPANDABLE, LIBRARIES, SHIM, SHIM_DRIVER, SHIM_SHARED
from bench_store import amount, duration, find, size_text

MIB = 1 << 20
SIZES = (512, MIB, 64 * MIB)
ROUTES = {SHIM_DRIVER: "driver API", SHIM_SHARED: "shared runtime", SHIM: "static runtime"}


def one(rows, group, **keys):
    found = find(rows, group=group, **keys)
    return found[0]["value"] if found else None


def met(value, limit):
    return "met" if value <= limit else f"{value / limit:.2f} × the target"


def judged(items, limit, show="{:.2f}".format):
    """(words, verdict) of [(what, value)]: at most the limit, each; None without any."""
    if not items:
        return None
    return (", ".join(f"{what} {show(value)}" for what, value in items),
            met(max(value for _, value in items), limit))


def beside(rows, group, peer, other, *keys, **fixed):
    """Pairs of rows of two peers that agree in these keys."""
    others = find(rows, group=group, peer=other, **fixed)
    return [(mine, its) for mine in find(rows, group=group, peer=peer, **fixed) for its in others
            if all(mine.get(key) == its.get(key) for key in keys)]


def single_pair(rows, peer, size, threads=1, stream="single"):
    return one(rows, "pairs", peer=peer, name="pair", stream=stream, size_bytes=size,
               threads=threads, streams=0)


def single_stream(rows):
    columns = {route: [single_pair(rows, peer, size) for size in SIZES]
               for peer, route in ROUTES.items()}
    if not all(map(all, columns.values())):
        return None
    said = "; ".join(f"{route} " + ", ".join(f"{value:.0f}" for value in column) + " ns"
                     for route, column in columns.items())
    return f"{said} ({', '.join(map(size_text, SIZES))})", met(max(columns["driver API"]), 60)


def against_malloc(rows):
    ratios = [(size, bare / shim) for size in SIZES
              for bare, shim in [(single_pair(rows, BARE, size),
                                  single_pair(rows, SHIM_SHARED, size))] if bare and shim]
    if not ratios:
        return None
    least = min(ratio for _, ratio in ratios)
    return (", ".join(f"{ratio:.0f} × at {size_text(size)}" for size, ratio in ratios) +
            ", shared runtime", "met" if least >= 500 else f"{least / 500:.2f} of the target")


def instruction_count(rows):
    return judged([(size_text(entry["size_bytes"]), entry["value"]) for entry in
                   find(rows, group="instructions", name="single", route="driver")], 150,
                  "{:.0f}".format)


def fenced(rows):
    """Every case with a kernel in between, beside each of the two peers. Where the ranges of the
    rounds meet, there is no telling which is faster."""
    said, above = [], set()
    keys = ("stream", "size_bytes", "threads", "streams")
    for peer in (ASYNC, CUB):
        cases = [pair for pair in beside(rows, "pairs", SHIM, peer, *keys, name="launch")
                 if pair[0]["stream"] != "single"]
        if not cases:
            return None
        over = [pair for pair in cases if pair[0]["value"] >= pair[1]["value"]]
        clear = [pair for pair in over if pair[0].get("low", pair[0]["value"]) >
                 pair[1].get("high", pair[1]["value"])]
        above |= {tuple(mine[key] for key in keys) for mine, _ in clear}
        worst, its = max(cases, key=lambda pair: pair[0]["value"] / pair[1]["value"])
        said.append(f"below {peer} in {len(cases) - len(over)} of {len(cases)} cases, above by "
                    f"less than the rounds differ in {len(over) - len(clear)}, at worst "
                    f"{worst['value'] / its['value']:.2f} × ({worst['threads']} thread"
                    f"{'s' * (worst['threads'] > 1)}, {size_text(worst['size_bytes'])}, "
                    f"{worst['stream']} stream, {worst['streams']} busy)")
    return "; ".join(said), f"not in {len(above)} of them" if above else "met"


def scaling(rows):
    said, verdict = [], "met"
    for stream, what in (("single", "one stream"), ("own", "a stream for each thread")):
        for size in SIZES:
            alone, many = (single_pair(rows, SHIM_DRIVER, size, threads, stream)
                           for threads in (1, 16))
            if alone and many:
                said.append(f"{what}, {size_text(size)}: {duration(alone)} and {duration(many)}")
                verdict = "not everywhere" if many >= 2 * alone else verdict
    return ("; ".join(said), verdict) if said else None


def times_over_native(times):
    """(words, verdict) of {name: (median of the ratios, its standard error)}: at most 1.0."""
    said = ", ".join(f"{name} {value:.2f} ± {error:.2f}" for name, (value, error) in times.items())
    over = {name: value for name, (value, _) in times.items() if round(value, 2) > 1.0}
    unclear = [name for name, value in over.items() if value - times[name][1] <= 1.0]
    if over and len(unclear) == len(over):
        return said, f"met, as far as can be told of {', '.join(over)}"
    return said, met(max(over.values()), 1.0) if over else "met"


def torch_time(rows):
    times = {entry["name"]: (entry["value"], entry["error"])
             for entry in find(rows, group="torch", peer=SHIM, unit="over native")}
    return times_over_native(times) if times else None


def torch_peak(rows):
    return judged([(mine["name"], mine["value"] / (its["value"] + (
        one(rows, "torch", peer=LIBRARIES, unit="bytes", name=mine["name"]) or 0)))
                   for mine, its in beside(rows, "torch", SHIM, EXPANDABLE, "name", unit="bytes")],
                  1.0)


def with_failed(rows, result):
    """A process that failed has kept no bound."""
    failed = sum("failure" in entry for entry in find(rows, group="frugal", peer=SHIM))
    if not failed or not result:
        return result
    said, verdict = result
    return (f"{said}; {failed} failed",
            f"not in {failed} that failed" if verdict == "met" else verdict)


def frugal_rows(rows, peer=SHIM):
    return [entry for entry in find(rows, group="frugal", peer=peer) if "failure" not in entry]


def frugal_peak(rows):
    """The most of all processes of each workload."""
    most = {}
    for entry in frugal_rows(rows):
        most[entry["name"]] = max(most.get(entry["name"], 0.0), bench_frugal.over_live(entry))
    if not most:
        return None
    return with_failed(rows, (", ".join(f"{name} {value:.3f}" for name, value in most.items()),
                              met(max(value / bench_frugal.BOUNDS[name]
                                      for name, value in most.items()), 1.0)))


def frugal_beside(rows):
    """In how many processes it is less than in that of expandable segments with the same shapes."""
    its = {(entry["name"], entry["seed"]): bench_frugal.over_live(entry)
           for entry in frugal_rows(rows, EXPANDABLE)}
    below = [bench_frugal.over_live(entry) < its[entry["name"], entry["seed"]]
             for entry in frugal_rows(rows) if (entry["name"], entry["seed"]) in its]
    if not below:
        return None
    return with_failed(rows, (f"in {sum(below)} of {len(below)}", "met" if all(below) else
                              f"not in {len(below) - sum(below)} of them"))


def frugal_time(rows):
    """Judged by all processes together: one differs too much from the next to tell much alone."""
    times = {}
    for entry in frugal_rows(rows):
        if "over_native" in entry:
            times.setdefault(entry["name"], []).append(entry["over_native"])
    if not times:
        return None
    said, _ = times_over_native({name: (statistics.median(ratios), bench_store.median_error(ratios))
                                 for name, ratios in times.items()})
    together, verdict = times_over_native(
        {"all": bench_store.geometric_mean([ratio for ratios in times.values()
                                            for ratio in ratios])})
    return f"{said}; {together}", verdict


def replayed(kind, limit):
    return lambda rows: judged([(entry["trace"], entry["value"]) for entry in
                                find(rows, group="replay", name=kind)], limit, "{:.3f}".format)


def cold_start(rows):
    ratios = [(mine["value"] / its["value"], mine) for mine, its in
              beside(rows, "cold", SHIM, BARE, "size_bytes", "total_bytes", name="take")]
    if not ratios:
        return None
    worst, entry = max(ratios, key=lambda pair: pair[0])
    return (f"{sum(ratio <= 1.1 for ratio, _ in ratios)} of {len(ratios)} cases within 1.10 ×; at "
            f"worst {worst:.2f} × ({amount(entry['total_bytes'])} in blocks of "
            f"{size_text(entry['size_bytes'])}), at best {min(ratio for ratio, _ in ratios):.2f} ×",
            met(worst, 1.1))


def flush_time(rows):
    seen = find(rows, group="flush", name="visible", peer=SHIM)
    if not seen:
        return None
    said = [f"{duration(entry['value'])} for {entry['count']} × {size_text(entry['size_bytes'])}, "
            f"{amount(one(rows, 'flush', name='released', peer=SHIM, count=entry['count']))} of "
            f"{amount(entry['count'] * entry['size_bytes'])} back" for entry in seen]
    return ", ".join(said), met(max(entry["value"] for entry in seen), 100e6)


def flush_delay(rows):
    loud, quiet = ([entry["value"] for entry in
                    find(rows, group="flush", name=f"slowest launch, {when}", peer=SHIM)]
                   for when in ("meanwhile", "nothing else"))
    if not loud or not quiet:
        return None
    return (f"slowest launch {duration(max(loud))} during a flush, {duration(max(quiet))} with "
            f"nothing else going on (median over rounds)", met(max(loud), 100e3))


def least_calls(rows, name):
    """[(route, least of all rounds under the shim, and bare)]. Nothing else happens in such a call,
    so whatever is on top of the least is the machine's."""
    return [(mine["route"], mine.get("low", mine["value"]), its.get("low", its["value"]))
            for mine, its in beside(rows, "calls", SHIM, "bare", "route", name=name)]


def mem_info(rows):
    return judged([(route, mine / its) for route, mine, its in least_calls(rows, "mem-info")], 1.1,
                  "{:.3f}".format)


def foreign(rows):
    over = [(f"{what}, {route}", mine - its)
            for name, what in (("wild", "unknown address"), ("foreign", "stream-ordered block"))
            for route, mine, its in least_calls(rows, name)]
    if not over:
        return None
    worst = max(value for _, value in over)
    return (", ".join(f"{what} {value:+.0f} ns" for what, value in over),
            "met" if worst <= 20 else f"{worst - 20:.0f} ns above the target")


def process_start(rows):
    bare, shim = (one(rows, "start", peer=peer) for peer in ("bare", SHIM))
    if bare is None or shim is None:
        return None
    return f"{(shim - bare) / 1e6:+.3f} ms", met(shim - bare, 200e3)


def within(group):
    """Rows that have a limit of their own."""
    def found(rows):
        entries = [entry for entry in find(rows, group=group) if "limit" in entry]
        if not entries:
            return None
        over = [entry for entry in entries if entry["value"] > entry["limit"]]
        said = ", ".join(f"{entry['name']} {duration(entry['value'])} "
                         f"({duration(entry['limit'])})" for entry in entries)
        return said, f"missed in {len(over)} of {len(entries)}" if over else "met"
    return found


TARGETS = [
    ("pair in a program with one stream: at most 60 ns", single_stream),
    ("the same: at least 500 times below cudaMalloc + cudaFree", against_malloc),
    ("the same, driver API: at most 150 instructions", instruction_count),
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
    ("parks, wakes, and a launch that ends a park: at most the time in brackets", within("park")),
    ("an event of a trace, in a pair of malloc and free: at most the time in brackets",
     within("trace")),
]


def table(rows):
    lines = ["| target | measured | |", "|---|---|---|"]
    for what, target in TARGETS:
        said, verdict = target(rows) or ("", "not measured")
        lines.append(f"| {what} | {said} | {verdict} |")
    return [*lines, ""]
