# SPDX-License-Identifier: BSD-2-Clause
"""What gpucache report --json prints of a trace: the figures of the text, and its sentences."""
from gpucache import together


def _rows(report, sizes):
    """sizes: {site: bytes}."""
    for site, size in sorted(report.told(sizes).items(), key=lambda row: -row[1]):
        code, where = report.where(site)
        yield {"code": code, "in": where, "bytes": size}


def data(report):
    its, used = report.trace, report.usage
    return {
        "file": its.path, "pid": its.pid, "program": its.program, "command": its.command,
        "started_unix_ns": its.start_unix_ns, "span_ns": used.own_ns, "ended": its.ended,
        "num_events": used.num_events, "num_lost": its.num_lost, "options": used.options,
        "gpus": [*used.gpus.values()], "out_of_memory": used.oom is not None and used.limit is None,
        "limit_bytes": used.limit,
        "headline": report.headline(), "explained": report.explained(),
        "peak_bytes": used.peak, "peak_ns": used.peak_ns, "peak_lasted_ns": used.peak_lasted_ns(),
        "enough_bytes": used.enough(), "reserved_peak_bytes": used.memory.peak,
        "mean_idle_bytes": used.mean_idle(), "driver_ns": used.memory.driver_ns,
        "owners": [{"owner": owner, "bytes": size} for owner, size in used.by_owner(used.at_peak)],
        "at_peak": [*_rows(report, used.at_peak)], "grows": [*_rows(report, used.grows())],
        "live_at_end": [*_rows(report, used.held_at_end())],
        "other_processes": [{"pid": its.pid, "name": its.name, "steps": its.steps}
                            for its in together.others([report, *report.beside])],
        "answers": [{"question": question, "answer": answer}
                    for question, answer in report.answers()],
    }
