# SPDX-License-Identifier: BSD-2-Clause
"""The drawing: the time of pairs by size, threads and work in flight, for every peer. It is
plain SVG that suits a light and a dark page."""
import math

import bench_store
from bench_peers import ASYNC, BARE, CUB, EXPANDABLE, SHIM, TORCH
from bench_text import duration, size_text

MIB = 1 << 20
SIZES = (512, MIB, 64 * MIB)
THREADS = (1, 2, 4, 8, 16)
# The peers that are drawn, with their colours on light and on dark ground.
PEERS = ((SHIM, "#1a7f37", "#56d364"), (ASYNC, "#0969da", "#79c0ff"), (CUB, "#bc4c00", "#ffa657"),
         (TORCH, "#8250df", "#d2a8ff"), (EXPANDABLE, "#bf3989", "#ff9bce"),
         (BARE, "#6e7781", "#8b949e"))
# Rows: title, work, stream, busy streams.
ROWS = (("idle, one stream", "pair", "single", 0), ("idle, several streams", "pair", "own", 0),
        ("kernel in between", "launch", "own", 0), ("the same, legacy stream", "launch", "legacy",
                                                    0),
        ("kernel, 1 busy stream", "launch", "own", 1), ("kernel, 8 busy streams", "launch", "own",
                                                        8),
        ("kernel, 64 busy streams", "launch", "own", 64))
LEFT, TOP, WIDTH, HEIGHT, GAP = 150, 70, 250, 120, 14
LOW_NS, HIGH_NS = 20, 1e8


def y_of(ns):
    """Place of a time within a panel, on a logarithmic scale."""
    share = math.log(min(max(ns, LOW_NS), HIGH_NS) / LOW_NS) / math.log(HIGH_NS / LOW_NS)
    return round(HEIGHT * (1 - share), 1)


def style():
    rules = [".page{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}"
             ".grid{stroke:#d1d9e0;stroke-width:.7}"
             ".frame{fill:none;stroke:#818b98;stroke-width:.8}"]
    dark = [".page{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.grid{stroke:#3d444d}"
            ".frame{stroke:#656c76}"]
    for number, (_, light, night) in enumerate(PEERS):
        rules.append(f".p{number}{{fill:{light};stroke:{light}}}")
        dark.append(f".p{number}{{fill:{night};stroke:{night}}}")
    return "".join(rules) + "@media (prefers-color-scheme:dark){" + "".join(dark) + "}"


def box(x, width, number, entry):
    """A peer's pairs with so many threads: box, median, and the line up to the 99th percentile."""
    top, bottom, middle, tail = (y_of(entry[key]) for key in ("p90", "p10", "p50", "p99"))
    return (f'<g class="p{number}"><line x1="{x + width / 2:.1f}" x2="{x + width / 2:.1f}" '
            f'y1="{tail}" y2="{top}" '
            f'stroke-width="1"/><rect x="{x:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{max(bottom - top, 1):.1f}" '
            f'fill-opacity=".45" stroke-width=".6"/><line x1="{x - .5:.1f}" '
            f'x2="{x + width + .5:.1f}" y1="{middle}" '
            f'y2="{middle}" stroke-width="2"/></g>')


def panel(rows):
    parts = []
    for power in range(2, 9):
        y = y_of(10 ** power)
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
    slot = WIDTH / len(THREADS)
    width = (slot - 10) / len(PEERS) - 1.5
    for place, threads in enumerate(THREADS):
        for number, (peer, _, _) in enumerate(PEERS):
            for entry in bench_store.find(rows, threads=threads, peer=peer):
                parts.append(box(place * slot + 5 + number * (width + 1.5), width, number, entry))
    parts.append(f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>')
    return "".join(parts)


def legend(x):
    parts = []
    for number, (peer, _, _) in enumerate(PEERS):
        parts.append(f'<g class="p{number}"><rect x="{x}" y="32" width="12" height="9" '
                     f'fill-opacity=".45"/></g>'
                     f'<text class="ink" x="{x + 17}" y="41">{peer}</text>')
        x += 34 + 7 * len(peer)
    return "".join(parts)


def axis(row):
    """The scale of times, left of a row of panels."""
    return "".join(f'<text class="soft" x="{LEFT - 6}" '
                   f'y="{TOP + row * (HEIGHT + GAP) + y_of(10 ** power) + 3}" '
                   f'text-anchor="end" font-size="9">{duration(10 ** power)}</text>'
                   for power in range(2, 9))


def drawing(rows):
    rows = bench_store.find(rows, group="pairs")
    shown = [row for row in ROWS if bench_store.find(rows, name=row[1], stream=row[2],
                                                     streams=row[3])]
    width = LEFT + len(SIZES) * (WIDTH + GAP) + 6
    height = TOP + len(shown) * (HEIGHT + GAP) + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             f'width="{width}" '
             f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="11">',
             "<title>Time of a pair of malloc and free, by size, threads and work in "
             "flight</title>",
             f"<style>{style()}</style>", f'<rect class="page" width="{width}" height="{height}"/>',
             f'<text class="ink" x="{LEFT}" y="20" font-size="14" font-weight="600">Time of a '
             f'pair of malloc and free</text>', legend(LEFT)]
    for column, size in enumerate(SIZES):
        x = LEFT + column * (WIDTH + GAP)
        parts.append(f'<text class="ink" x="{x + WIDTH / 2}" y="{TOP - 6}" '
                     f'text-anchor="middle">{size_text(size)}</text>')
        for place, threads in enumerate(THREADS):
            parts.append(f'<text class="soft" x="{x + (place + .5) * WIDTH / len(THREADS):.1f}" '
                         f'y="{height - 11}" '
                         f'text-anchor="middle">{threads}'
                         f'{" threads" * (threads == THREADS[-1])}</text>')
        for number, (_, work, stream, busy) in enumerate(shown):
            part = bench_store.find(rows, name=work, stream=stream, streams=busy, size_bytes=size)
            parts.append(f'<g transform="translate({x} '
                         f'{TOP + number * (HEIGHT + GAP)})">{panel(part)}</g>')
    for number, (title, _, _, _) in enumerate(shown):
        first, _, rest = title.partition(", ")
        y = TOP + number * (HEIGHT + GAP) + HEIGHT / 2
        parts.append(f'<text class="ink" x="8" y="{y - 4}">{first}</text><text class="ink" x="8" '
                     f'y="{y + 11}">{rest}</text>')
        parts.append(axis(number))
    return "\n".join(parts) + "\n</svg>\n"
