# SPDX-License-Identifier: BSD-2-Clause
"""Figures as the benchmarks leave them, and as a reader wants them. A row is one measured thing:
group (the part that measured it), name, peer, value, unit, threads, size_bytes, streams. `value` is
the median over the rounds, `low` and `high` are their extremes. In the file a part is one table:
what all its rows share, the keys that tell its cases apart, and each peer's figures."""
import json
import math
import statistics

# What tells the cases of a part apart; all other keys are figures.
CASE = ("name", "unit", "stream", "route", "trace", "form", "threads", "size_bytes", "streams",
        "total_bytes", "count", "seed", "parts", "machine")


def rounded(value):
    """Four digits are more than a measurement holds."""
    if not isinstance(value, float):
        return value
    value = float(f"{value:.4g}")
    return int(value) if value.is_integer() else value


def row(group, name, peer, values, unit, threads=1, size_bytes=0, streams=0, **more):
    """A row from the values of all rounds."""
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    entry = dict(group=group, name=name, peer=peer, value=statistics.median(values), unit=unit,
                 threads=threads, size_bytes=size_bytes, streams=streams)
    if len(values) > 1:
        entry.update(low=min(values), high=max(values), rounds=len(values))
    entry.update(more)
    return {key: rounded(value) for key, value in entry.items()}


def median_error(values):
    """The standard error of the median of values that are spread normally."""
    return 1.25 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def geometric_mean(values):
    """(mean, its standard error)"""
    mean = statistics.geometric_mean(values)
    logs = [math.log(value) for value in values]
    error = mean * statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return mean, error


def skipped(group, missing):
    """Rows that say what was not measured, {peer: why}."""
    return [row("skipped", group, peer, 0, "", note=note) for peer, note in missing.items()]


def find(rows, **keys):
    """The rows that have all these."""
    return [entry for entry in rows if all(entry.get(key) == value for key, value in keys.items())]


def unique(rows, *keys):
    """The values of these keys that the rows have, each once, in their order."""
    return list(dict.fromkeys(tuple(entry.get(key) for key in keys) for entry in rows))


def without_none(entry):
    return {key: value for key, value in entry.items() if value is not None}


def folded(group, rows):
    """The table of one part."""
    same = [key for key in CASE if len(unique(rows, key)) == 1 and key in rows[0]]
    case = [key for key in CASE if key not in same and any(key in entry for entry in rows)]
    figures = [key for key in dict.fromkeys(key for entry in rows for key in entry)
               if key not in (*CASE, "group", "peer")]
    peers = [peer for peer, in unique(rows, "peer")]
    lines = {}
    for entry in rows:
        values = [entry.get(key) for key in figures]
        while values and values[-1] is None:
            values.pop()
        lines.setdefault(tuple(entry.get(key) for key in case), {})[entry["peer"]] = values
    return {"group": group, "same": {key: rows[0][key] for key in same}, "case": case,
            "figures": figures, "peers": peers,
            "rows": [[*line, *map(found.get, peers)] for line, found in lines.items()]}


def unfolded(table):
    for line in table["rows"]:
        case = dict(zip(table["case"], line))
        for peer, values in zip(table["peers"], line[len(case):], strict=True):
            if values is not None:
                yield without_none({"group": table["group"], "peer": peer, **table["same"], **case,
                                    **dict(zip(table["figures"], values))})


def dump(rows):
    tables = [json.dumps(folded(group, find(rows, group=group)), ensure_ascii=False)
              for group, in unique(rows, "group")]
    return "[\n" + ",\n".join(tables) + "\n]\n"


def save(path, rows):
    with open(path, "w") as file:
        file.write(dump(rows))


def load(path):
    """The rows of a file. ValueError: they are not what save writes."""
    try:
        with open(path) as file:
            rows = [entry for table in json.load(file) for entry in unfolded(table)]
        for entry in rows:
            if not all(isinstance(value, str) or math.isfinite(value)
                       for value in (*entry.values(), entry["name"], entry["value"] + 0)):
                raise ValueError(f"a row that makes no sense: {entry}")
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
            ValueError) as error:
        raise ValueError(f"{path}: no figures: {type(error).__name__}: {error}"[:300]) from None
    if not rows:
        raise ValueError(f"{path}: it has no figures")
    return rows


def duration(ns):
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= factor:
            value = ns / factor
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{ns:.0f} ns"


def size_text(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def amount(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"
