# SPDX-License-Identifier: BSD-2-Clause
"""Figures as the benchmarks leave them: rows, one measured thing each. In the JSON file neighbours
of one case share a line.

Every row has group, name, peer, value, unit, threads, size_bytes, streams. `value` is the median
over the rounds, `low` and `high` are their extremes. Some rows have more: stream, route, p10 to max
of single calls, note; `machine` and `seed` where the rows of several files make one table."""
import itertools
import json
import math
import statistics

# What the rows of one line of the file share.
SHARED = ("group", "unit", "threads", "size_bytes", "streams", "stream", "total_bytes", "count",
          "machine", "seed")
# What every row has, and of which type.
KEYS = {"group": str, "name": str, "peer": str, "value": (int, float), "unit": str, "threads": int,
        "size_bytes": int, "streams": int}
# By these the rows of several files are joined.
OWN_KEYS = {"frugal": {"seed": int, "machine": str}}


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


def load(path):
    """The rows of a file. ValueError: they are not what save writes."""
    with open(path) as file:
        try:
            lines = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
    if not isinstance(lines, list) or not all(is_line(line) for line in lines):
        raise ValueError(f"{path}: it is no list of rows")
    rows = [entry for line in lines for entry in unfolded(line)]
    if not rows:
        raise ValueError(f"{path}: it has no figures")
    for entry in rows:
        why = why_no_row(entry)
        if why:
            raise ValueError(f"{path}: {why}: {shortened(entry)}")
    return rows


def why_no_row(entry):
    """What is wrong with a row that a file has; or ''."""
    needed = {**KEYS, **OWN_KEYS.get(str(entry.get("group")), {})}
    missing = [key for key in needed if key not in entry]
    if missing:
        return f"a row without {', '.join(missing)}"
    for key, value in entry.items():
        if not isinstance(value, needed.get(key, (str, int, float))) or \
                isinstance(value, float) and not math.isfinite(value):
            return f"a row whose {key} makes no sense"
    return ""


def shortened(entry):
    words = str(entry)
    return words if len(words) <= 300 else words[:297] + "..."


def is_line(line):
    """Is it one row, or columns with rows of values?"""
    if not isinstance(line, dict) or "columns" not in line:
        return isinstance(line, dict)
    rows = line.get("rows")
    return all(isinstance(part, list) for part in
               (line["columns"], rows, *(rows if isinstance(rows, list) else ()))) and \
        all(isinstance(column, str) for column in line["columns"])


def unfolded(line):
    """The rows of a line of the file; a line without columns is one row."""
    if "columns" not in line:
        return [line]
    shared = {key: value for key, value in line.items() if key not in ("columns", "rows")}
    return [{**shared, **{key: value for key, value in zip(line["columns"], values)
                          if value is not None}} for values in line["rows"]]


def dump(rows):
    """Neighbours of one case share a line: what they have in common, and a table of the rest."""
    lines = []
    for shared, group in itertools.groupby(rows, lambda entry: {key: entry[key] for key in SHARED
                                                                if key in entry}):
        group = list(group)
        columns = list(dict.fromkeys(key for entry in group for key in entry if key not in shared))
        table = [[entry.get(key) for key in columns] for entry in group]
        lines.append(json.dumps({**shared, "columns": columns, "rows": table}, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def save(path, rows):
    with open(path, "w") as file:
        file.write(dump(rows))


def find(rows, **keys):
    """The rows that have all these."""
    return [entry for entry in rows if all(entry.get(key) == value for key, value in keys.items())]


def why_apart(rows):
    """A sentence if the rows of a part cannot stand in one table, since they were not measured by
    the same code on the same machine; or None."""
    for part in OWN_KEYS:
        sets = [set(machine.split("; ")) for machine in
                dict.fromkeys(entry["machine"] for entry in find(rows, group=part))]
        for other in sets[1:]:
            mine, its = ("; ".join(sorted(facts)) for facts in (sets[0] - other, other - sets[0]))
            return (f"part {part}: figures of \"{mine}\" and of \"{its}\" do not go into one "
                    f"table: leave out one of the files.")
    return None
