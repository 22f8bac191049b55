# SPDX-License-Identifier: BSD-2-Clause
"""Figures as the benchmarks leave them: a JSON list of rows, one measured thing each, a row a line.

Every row has group, name, peer, value, unit, threads, size_bytes, streams. Value is the median over the
rounds, low and high their extremes. Some have more: stream, work, p10 to max of single calls, note."""
import json
import statistics

KEYS = ("group", "name", "peer", "value", "unit", "threads", "size_bytes", "streams")


def rounded(value):
    """Four digits are more than a measurement holds."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def row(group, name, peer, values, unit, threads=1, size_bytes=0, streams=0, **more):
    """A row from the values of all rounds."""
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    entry = dict(group=group, name=name, peer=peer, value=statistics.median(values), unit=unit,
                 threads=threads, size_bytes=size_bytes, streams=streams)
    if len(values) > 1:
        entry.update(low=min(values), high=max(values), rounds=len(values))
    entry.update(more)
    return {key: rounded(value) for key, value in entry.items()}


def skipped(group, missing):
    """Rows that say what was not measured, {peer: why}."""
    return [row("skipped", group, peer, 0, "", note=note) for peer, note in missing.items()]


def load(path):
    with open(path) as file:
        rows = json.load(file)
    for entry in rows:
        missing = [key for key in KEYS if key not in entry]
        if missing:
            raise ValueError(f"{path}: a row without {', '.join(missing)}: {entry}")
    return rows


def dump(rows):
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in rows) + "\n]\n"


def save(path, rows):
    with open(path, "w") as file:
        file.write(dump(rows))


def find(rows, **keys):
    """The rows that have all these."""
    return [entry for entry in rows if all(entry.get(key) == value for key, value in keys.items())]
