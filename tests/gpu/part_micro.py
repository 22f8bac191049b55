# SPDX-License-Identifier: BSD-2-Clause
"""The time of pairs and of single calls, bare and under the shim: some of the benchmarks' cases."""
import bench_parts
import bench_peers
import bench_store
import suite as base
from bench_store import size_text

WORK = {"pair": "malloc, free", "launch": "malloc, kernel, free"}
ROUTES = {bench_peers.SHIM: "static runtime", bench_peers.SHIM_SHARED: "shared runtime",
          bench_peers.SHIM_DRIVER: "driver API"}


def micro(suite):
    programs = bench_peers.Programs(suite)
    programs.prepare()
    single, many = (bench_parts.fewer(cases) for cases in bench_parts.idle_cases())
    rows = bench_parts.played(suite, programs, [(single, 10), (many, 30)])
    for entry in rows:
        if entry["peer"] not in ROUTES or entry["name"] not in WORK or entry["stream"] == "legacy":
            continue
        keys = {key: entry[key] for key in ("group", "name", "stream", "size_bytes", "threads",
                                            "streams")}
        bare, other = (bench_store.find(rows, peer=peer, **keys)
                       for peer in (bench_peers.BARE, bench_peers.ASYNC))
        if not bare:
            continue
        stream = "one stream" if entry["stream"] == "single" else "several streams"
        suite.row(f"{ROUTES[entry['peer']]}: {WORK[entry['name']]}, "
                  f"{size_text(entry['size_bytes'])}, {stream}" +
                  (f", {entry['threads']} threads" if entry["threads"] > 1 else ""),
                  base.nanoseconds(bare[0]["value"]), base.nanoseconds(entry["value"]),
                  base.ratio(entry["value"], bare[0]["value"]),
                  f"measured; stream-ordered {base.nanoseconds(other[0]['value'])}" if other
                  else "measured")
    calls = bench_parts.calls(suite, programs)
    for entry in bench_store.find(calls, group="calls", peer=bench_peers.SHIM):
        bare = bench_store.find(calls, peer="bare", name=entry["name"], route=entry["route"])
        if bare:
            suite.row(f"{entry['route']}: {entry['name']}", base.nanoseconds(bare[0]["value"]),
                      base.nanoseconds(entry["value"]),
                      base.ratio(entry["value"], bare[0]["value"]), "measured")
