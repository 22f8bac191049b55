# SPDX-License-Identifier: BSD-2-Clause
"""gpucache metrics: the figures of all processes for Prometheus, by its conventions: base units,
counters that end in _total. The rows are those of the generated tables."""
import contextlib
import json
import os
import signal
import threading

from gpucache import fault, gpu, output, owners, page, state, tables
from gpucache.fault import DONE, Fault, needed

PREFIX = "gpucache_"
OWNERS_S = 10  # for the trace of a process; what takes longer is left out
OF_GPU = ("pid", "process", "user", "gpu", "gpu_uuid")
OF_PROCESS = ("pid", "process", "user")
INFO = OF_PROCESS + ("version", "job", "status")


def metric_name(row, kind):
    """gpucache_flush_seconds of flush_ns. Counters get their _total from whoever prints them."""
    name = row["name"][4:] if row["name"].startswith("num_") else row["name"]
    if name.endswith("_ns"):
        name = name[:-3] + "_seconds"
    return PREFIX + name + ("_total" if kind == "COUNTER" else "")


# Fields of which a process says more than is on the device: (help, what is there of a state.Gpu).
HERE = {
    "reserved_bytes": ("Memory taken from the driver, without what is parked",
                       state.Gpu.reserved_here),
    "idle_bytes": ("Memory on the device that is neither live nor pending", state.Gpu.idle_here),
}
AWAY = "Memory that is parked: its bytes are on the host or in a file, and no device memory is " \
       "behind it"
HELPS = {"away_bytes": AWAY, **{field: words for field, (words, _) in HERE.items()}}
# (name, kind, help, field, divisor) of what there is for each GPU of a process.
GPU_ROWS = [(metric_name(row, row["kind"]), row["kind"], HELPS.get(row["name"], row["help"]),
             row["name"], 10**9 if row["unit"] == "NS" else 1) for row in tables.STATS]
GPU_ROWS += [
    (PREFIX + "idle_bytes", "GAUGE", HELPS["idle_bytes"], "idle_bytes", 1),
    (PREFIX + "saved_seconds_total", "COUNTER", "Time of driver calls that were saved, at least",
     "saved_ns", 10**9),
]
PROCESS_ROWS = [(metric_name(row, "COUNTER"), "COUNTER", row["help"], row["name"],
                 10**9 if row["name"].endswith("_ns") else 1) for row in tables.COUNTERS]
OTHER_ROWS = [
    (PREFIX + "process_info", "GAUGE", "A process under the library; always 1"),
    (PREFIX + "process_state", "GAUGE",
     "Whether the process is parked: 1 for one of the states running, parked, waking and waiting "
     "(for device memory, to wake), 0 for the others"),
    (PREFIX + "process_start_time_seconds", "GAUGE",
     "When the library started in the process, in Unix time"),
    (PREFIX + "state_age_seconds", "GAUGE", "Time since the process wrote these figures"),
    (PREFIX + "gpu_total_bytes", "GAUGE", "Memory of the GPU"),
    (PREFIX + "unreadable_pages", "GAUGE",
     "Pages and directories that could not be used, and those where some were left out"),
]
OWNER_ROW = (PREFIX + "owner_live_bytes", "GAUGE",
             "Live memory by the library whose code asked for it, while a trace records")
NAMES = [row[0] for row in GPU_ROWS + PROCESS_ROWS + OTHER_ROWS]


def _pid_label(process):
    """Two pid namespaces that are not visible here may have the same pid. The namespace tells them
    apart, because Prometheus takes two samples with the same labels for an error."""
    return str(process.pid) if process.pid else f"{process.page.namespace}-{process.inner_pid}"


class Collector:
    """Reads the pages at each scrape."""

    def __init__(self, args):
        self.all_users, self.has_owners = args.all_users, args.owners
        self.core = needed("prometheus_client.core", "metrics")

    def _family(self, name, kind, text, labels=()):
        if kind == "COUNTER":
            return self.core.CounterMetricFamily(name, text, labels=labels)
        return self.core.GaugeMetricFamily(name, text, labels=labels)

    def collect(self):
        gpus = gpu.Gpus()
        found, complaints = state.running(self.all_users, gpus)
        labels = {id(p): [_pid_label(p), p.name, p.user] for p in found}
        for name, kind, text, field, divisor in GPU_ROWS:
            family = self._family(name, kind, text, OF_GPU)
            for process in found:
                for its_gpu in process.gpus:
                    value = HERE[field][1](its_gpu) if field in HERE else its_gpu[field]
                    family.add_metric(labels[id(process)] + [its_gpu.shown(), its_gpu.uuid],
                                      value / divisor)
            yield family
        for name, kind, text, field, divisor in PROCESS_ROWS:
            family = self._family(name, kind, text, OF_PROCESS)
            for process in found:
                if process.counters():
                    family.add_metric(labels[id(process)], process.counters()[field] / divisor)
            yield family
        info, parked, start, age, total, bad = (
            self._family(*row, labels=names) for row, names in zip(
                OTHER_ROWS, (INFO, OF_PROCESS + ("state",), OF_PROCESS, OF_PROCESS,
                             ("gpu", "gpu_uuid"), ())))
        sizes = {}
        for process in found:
            contents = process.contents
            info.add_metric(labels[id(process)] + [contents.library_version, process.job,
                                                   process.status], 1)
            for each in state.PARK_STATES:
                parked.add_metric(labels[id(process)] + [each], process.park_state() == each)
            start.add_metric(labels[id(process)], contents.started_unix_ns / 1e9)
            age.add_metric(labels[id(process)], contents.age_ns() / 1e9)
            sizes.update({(g.shown(), g.uuid): g.total_bytes for g in process.gpus})
        sizes.update({(str(d["index"]), d["uuid"]): d["total_bytes"] for d in gpus.devices
                      if d["total_bytes"] is not None})
        for key, num_bytes in sorted(sizes.items()):
            total.add_metric(key, num_bytes)
        bad.add_metric((), len(complaints))
        yield from (info, parked, start, age, total, bad)
        if self.has_owners:
            yield self._owners(found, labels)

    def _owners(self, found, labels):
        family = self._family(*OWNER_ROW, labels=OF_PROCESS + ("owner",))
        for process in found:
            with contextlib.suppress(Fault, OSError):  # most record no trace
                for owner, size, _ in owners.of(process, OWNERS_S):
                    family.add_metric(labels[id(process)] + [owner], size)
        return family


def _address(words):
    """(host, port) of 127.0.0.1:9465, :9465, 9465 or [::1]:9465."""
    host, _, port = words.rpartition(":")
    if not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise Fault(f"{words} is no address: it takes HOST:PORT, such as 127.0.0.1:9465",
                    fault.USAGE)
    return host.strip("[]") or "127.0.0.1", int(port)


def _registry(args):
    registry = needed("prometheus_client", "metrics").CollectorRegistry(auto_describe=False)
    registry.register(Collector(args))
    return registry


def _serve(args, client, host, port):
    try:
        started = client.start_http_server(port, host, _registry(args))
    except (OSError, OverflowError) as error:
        why = fault.reason(error) if isinstance(error, OSError) else str(error)
        raise Fault(f"cannot listen on {args.listen}: {why}") from None
    if isinstance(started, tuple):  # (server, thread) since prometheus_client 0.19
        port = started[0].server_port
    print(f"serving http://{host}:{port}/metrics", flush=True)
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    done.wait()
    return DONE


def show(args):
    if sum((args.listen is not None, args.textfile is not None, args.json)) > 1:
        raise Fault("metrics takes one of --listen, --textfile and --json", fault.USAGE)
    if args.json:
        found, complaints = state.running(args.all_users, gpu.Gpus())
        print(json.dumps({"processes": [p.as_json() for p in found],
                          "complaints": page.sum_up(complaints)}))
        return fault.NOT_DONE if complaints else DONE
    address = None if args.listen is None else _address(args.listen)
    if args.textfile is not None:
        output.check(args.textfile)
    client = needed("prometheus_client", "metrics")
    page.need_right(args.all_users)  # each scrape would be refused, one by one
    if address:
        return _serve(args, client, *address)
    if args.textfile is not None:
        try:
            # Written beside it first, so that a reader sees the old text or the new one.
            client.write_to_textfile(os.path.abspath(args.textfile), _registry(args))
        except OSError as error:
            raise Fault(f"{args.textfile}: {fault.reason(error)}") from None
        return DONE
    print(client.generate_latest(_registry(args)).decode(), end="")
    return DONE
