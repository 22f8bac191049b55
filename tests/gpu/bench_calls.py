# SPDX-License-Identifier: BSD-2-Clause
"""Single calls, bare and under the shim: free memory, frees of memory that the pool does not
own, launches."""
import bench_peers
import bench_store

CALLS = ("mem-info", "wild", "foreign", "launch", "pair")
ROUTES = (("static", "static runtime"), ("shared", "shared runtime"), ("driver", "driver API"))


def calls(suite, programs):
    peers = [((name, preload), bench_peers.Peer(name, route, "malloc", preload))
             for route, name in ROUTES for preload in (False, True)]
    times, missing = {}, {}
    # Processes anew in between: what one of them has of luck with its processor, it keeps.
    for _ in range(1 if suite.simulate or suite.quick else 3):
        processes, missing = bench_peers.start_all(suite, programs, "calls", peers)
        for _ in range(1 if suite.simulate else 3):
            for call in CALLS:
                for key, process in processes.items():
                    times.setdefault((call, key), []).append(float(process.ask(call)))
        bench_peers.close_all(processes)
    rows = bench_store.skipped("calls", {name: why for (name, _), why in missing.items()})
    for (call, (route, preload)), values in times.items():
        rows.append(bench_store.row("calls", call, bench_peers.SHIM if preload else "bare", values,
                                    "ns", route=route))
    return rows
