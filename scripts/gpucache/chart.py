# SPDX-License-Identifier: BSD-2-Clause
"""Bars, sparklines and the chart of a GPU's last minutes, as signs of a terminal. Each sign has a
style; who draws them has the colours. Knows no terminal."""
from gpucache import text
from gpucache.machine import PARTS

GLYPHS = {"live": "█", "cached": "▓", "idle": "▒", "others": "▚", "free": "·",
          "unknown": " "}
# The terminal's own sixteen colours, so that they suit a light background and a dark one. The signs
# differ, too: the picture reads without colours.
STYLES = {"live": "bright_blue", "cached": "cyan", "idle": "green", "others": "dim", "free": "dim",
          "unknown": ""}
WORDS = {"live": "live", "cached": "cached", "idle": "idle", "others": "others", "free": "free"}
YELLOW, RED = 0.90, 0.97
SCALE = len("99.9 GiB")  # the widest that text.size gives


def shares(values, width):
    """How many of `width` cells each value gets, in proportion. A value above 0 has one at
    least."""
    whole = sum(values)
    if not whole:
        return [0] * len(values)
    exact = [value * width / whole for value in values]
    cells = [max(int(e), 1 if value else 0) for e, value in zip(exact, values)]
    while sum(cells) < width:
        cells[max(range(len(cells)), key=lambda i: exact[i] - cells[i])] += 1
    while sum(cells) > width and max(cells) > 1:
        cells[max((i for i in range(len(cells)) if cells[i] > 1),
                  key=lambda i: cells[i] - exact[i])] -= 1
    return cells


def parts(card):
    """(name, bytes) of all parts of a GPU, which add up to its capacity."""
    told = [(name, getattr(card, name) or 0) for name in PARTS]
    used = sum(size for _, size in told)
    last = "unknown" if card.used is None else "free"
    return told + [(last, max(0, (card.total or used) - used))]


def bar(card, width):
    """[(signs, style)]: as wide as the GPU's capacity."""
    told = parts(card)
    cells = shares([size for _, size in told], width)
    return [(GLYPHS[name] * number, STYLES[name]) for (name, _), number in zip(told, cells)]


def fill_style(card):
    """The colour of the number of a GPU that is nearly full."""
    full = (card.used or 0) / card.total if card.total else 0
    return "bold red" if full >= RED else "bold yellow" if full >= YELLOW else "bold"


def spark(values, width):
    """The values as so many bars of eight heights; each shows the highest of its time, and the
    highest of all is full. Fewer values stand at the right."""
    values = list(values)
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [max(values[a:b]) for a, b in zip(edges, edges[1:])]
    return text.spark(values, width).rjust(width)


def chart(card, width, height, interval_s):
    """Lines of [(signs, style)]: a column for each look, the newest at the right; each column is
    stacked like the bar. A scale is at the left. It goes up to the whole GPU, or to a half or a
    quarter of it where that is enough. The times are below."""
    top = card.total or max([sum(past) for past in card.history] or [1]) or 1
    width, rows = width - SCALE - 2, height - 1
    past = card.history[-width:]
    highest = max([sum(sizes) for sizes in past] or [0])
    while 0 < highest <= top / 2:
        top /= 2
    columns = []
    for sizes in past:
        cells = shares([*sizes, max(0, top - sum(sizes))], rows)[:len(PARTS)]
        columns.append("".join(name[0] * number for name, number in zip(PARTS, cells)))
    names = {name[0]: name for name in PARTS}
    lines = []
    for row in range(rows - 1, -1, -1):
        scale = {rows - 1: text.size(top), rows // 2: text.size(top / 2) if rows > 4 else "",
                 0: "0"}.get(row, "")
        line = [(scale.rjust(SCALE) + (" ┤" if scale else " │"), "dim"),
                (" " * (width - len(past)), "")]
        for column in columns:
            name = names[column[row]] if row < len(column) else None
            line.append((GLYPHS[name], STYLES[name]) if name else (" ", ""))
        lines.append(line)
    oldest = "-" + text.duration(int(len(past) * interval_s * 1e9)) if past else ""
    start = SCALE + 2 + width - len(past)
    times = " " * start + oldest
    if len(times) < SCALE + width - 3:
        times = times.ljust(SCALE + 2 + width - 3) + "now"
    lines.append([(times[:SCALE + 2 + width], "dim")])
    return lines
