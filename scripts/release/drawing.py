# SPDX-License-Identifier: BSD-2-Clause
"""The parts of README.svg: a GPU's memory as a bar, and a terminal with the characters of a screen.
Bars, rules and dots of a terminal are drawn as shapes, as fonts differ in them."""
from xml.sax.saxutils import escape

WIDTH, MARGIN = 920, 30
CELL, LINE = 8.3, 18.0
GIB_WIDTH = 860 / 80  # of a bar that stands for 80 GiB

STYLE = """
    text { font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 14px }
    .cells text { font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace;
      font-size: 13.8px; white-space: pre }
    .cells rect { shape-rendering: crispEdges }
    .page { fill: #ffffff } .ink { fill: #1f2933 } .soft { fill: #52606d }
    .bold { font-weight: 600 }
    .small { font-size: 12.5px } .on { fill: #ffffff } .onidle { fill: #14351a }
    .live { fill: #2f6fb3 } .other { fill: #7a4fb0 } .idle { fill: #8fce93 }
    .none { fill: none; stroke: #8a949e; stroke-dasharray: 4 3 }
    .frame { fill: none; stroke: #8a949e }
    .wrong { fill: #c0392b } .right { fill: #2e7d32 } .arrow { stroke: #52606d; stroke-width: 1.6 }
    .head { fill: #52606d } .window { fill: #14181d; stroke: #6b7782 } .title { fill: #aab4be }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 } .ink { fill: #e8edf2 } .soft { fill: #aab4be }
      .wrong { fill: #ff8a80 } .right { fill: #7ddc82 } .arrow { stroke: #aab4be }
      .head { fill: #aab4be }
    }"""
# Of a terminal that is dark on every page.
INK, GROUND = "#d5dbe1", "#14181d"
COLOURS = {"black": "#3b4252", "red": "#f07178", "green": "#8fce93", "brown": "#e8b85f",
           "yellow": "#e8b85f", "blue": "#6ea8e0", "magenta": "#c49be8", "cyan": "#6fd0d8",
           "white": "#d5dbe1", "brightblack": "#7d8a97", "brightred": "#ff9aa0",
           "brightgreen": "#b4e3b7", "brightyellow": "#ffd98a", "brightbrown": "#ffd98a",
           "brightblue": "#9cc7f2", "brightmagenta": "#dcc2f5", "brightcyan": "#a1e6ec",
           "brightwhite": "#ffffff"}
CORNERS = "\u250c\u2510\u2514\u2518\u256d\u256e\u2570\u256f"
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))  # of a braille letter


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def rect(x, y, width, height, what):
    return f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" ' \
           f'height="{number(height)}" {what}/>'


def colour(name, usual):
    if name == "default":
        return usual
    if name in COLOURS:
        return COLOURS[name]
    return f"#{name}" if len(name) == 6 else usual


def shape(letter, x, y, fill):
    """Rectangles for a letter that is made of such. None: a font has to draw it."""
    code, paint = ord(letter), f'fill="{fill}"'
    if 0x2581 <= code <= 0x2588:  # eighths from below
        height = LINE * (code - 0x2580) / 8
        return rect(x, y + LINE - height, CELL + 0.1, height, paint)
    if 0x2589 <= code <= 0x258f:  # eighths from the left
        return rect(x, y, CELL * (0x2590 - code) / 8, LINE, paint)
    if letter == "\u2580":
        return rect(x, y, CELL + 0.1, LINE / 2, paint)
    if 0x2591 <= code <= 0x2593:
        return rect(x, y, CELL + 0.1, LINE, f'{paint} opacity="{(code - 0x2590) / 4}"')
    if letter in "\u2500\u2501\u2574\u2576":
        return rect(x, y + LINE / 2, CELL + 0.1, 2 if letter == "\u2501" else 1, paint)
    if letter in "\u2502\u2503":
        return rect(x + CELL / 2, y, 1, LINE, paint)
    if letter in CORNERS:
        right, down = letter in "\u250c\u2514\u256d\u2570", letter in "\u250c\u2510\u256d\u256e"
        return rect(x + (CELL / 2 if right else 0), y + LINE / 2, CELL / 2 + 0.6, 1, paint) + \
            rect(x + CELL / 2, y + (LINE / 2 if down else 0), 1, LINE / 2, paint)
    if 0x2800 <= code <= 0x28ff:
        return "".join(rect(x + CELL * (column * 2 + 0.6) / 4, y + LINE * (row + 0.3) / 4,
                            CELL * 0.3, CELL * 0.3, paint)
                       for bit, (column, row) in enumerate(DOTS) if code >> bit & 1)
    return None


def runs(line):
    """Neighbours that look the same, as (first column, letters, ink, ground, is bold)."""
    found = []
    for column, cell in enumerate(line):
        ink, ground = colour(cell.fg, INK), colour(cell.bg, GROUND)
        if cell.reverse:
            ink, ground = ground, ink
        look = (ink, ground, cell.bold)
        if found and found[-1][2:] == look:
            found[-1][1].append(cell.data or " ")
        else:
            found.append((column, [cell.data or " "], *look))
    return found


def words_of(letters):
    """(place, text) of the words of a run that fonts draw; two blanks part them."""
    text = "".join(c if shape(c, 0, 0, "") is None else " " for c in letters)
    place = 0
    for part in text.split("  "):
        stripped = part.strip(" ")
        if stripped:
            yield place + len(part) - len(part.lstrip(" ")), stripped
        place += len(part) + 2


def terminal(lines, x, y):
    """The characters, from their upper left corner on."""
    parts = ['<g class="cells">']
    for row, line in enumerate(lines):
        top = y + row * LINE
        for column, letters, ink, ground, bold in runs(line):
            left = x + column * CELL
            if ground != GROUND:
                parts.append(rect(left, top, len(letters) * CELL + 0.1, LINE + 0.1,
                                  f'fill="{ground}"'))
            for place, letter in enumerate(letters):
                parts.append(shape(letter, left + place * CELL, top, ink) or "")
            for place, text in words_of(letters):
                weight = ' font-weight="700"' if bold else ""
                parts.append(f'<text x="{number(left + place * CELL)}" '
                             f'y="{number(top + 0.76 * LINE)}" fill="{ink}"{weight} '
                             f'textLength="{number(len(text) * CELL)}" '
                             f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>')
    return "\n".join([part for part in parts if part] + ["</g>"])


def text(x, y, words, kind, anchor=""):
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{number(x)}" y="{number(y)}"{anchor}>{escape(words)}</text>'


def bar(y, parts):
    """A GPU of 80 GiB: parts as (GiB, class of the box, words, class of the words)."""
    x, made = MARGIN, []
    for gib, box, words, kind in parts:
        width = gib * GIB_WIDTH
        made += [rect(x, y, width, 44, f'class="{box}"'),
                 text(x + width / 2, y + 27, words, kind, "middle")]
        x += width
    return "\n".join(made + [rect(MARGIN, y, 860, 44, 'class="frame"')])


def story():
    """Two processes on one GPU, before and after."""
    return "\n".join([
        text(MARGIN, 38, "Two processes on one GPU of 80 GiB", "ink bold"),
        text(MARGIN, 68, "before", "ink bold"),
        text(MARGIN + 56, 68, "a notebook holds memory that it does not use", "soft"),
        text(890, 68, "train wants 40 GiB: out of memory", "wrong bold", "end"),
        bar(80, [(14, "live", "notebook, live", "on small"),
                 (48, "idle", "notebook, idle: 48 GiB", "onidle small"),
                 (18, "none", "free: 18 GiB", "soft small")]),
        '<line class="arrow" x1="460" y1="132" x2="460" y2="164"/>',
        '<path class="head" d="M454 160 L466 160 L460 171 z"/>',
        text(474, 154, "gpucache flush, a limit, or train's own request", "soft"),
        text(MARGIN, 168, "after", "ink bold"),
        text(890, 168, "both run", "right bold", "end"),
        bar(180, [(14, "live", "notebook, live", "on small"),
                  (40, "other", "train: 40 GiB", "on small"),
                  (26, "none", "free: 26 GiB", "soft small")])])


def page(lines):
    """The whole drawing, with a screen of these characters."""
    while lines and not "".join(cell.data for cell in lines[-1]).strip():
        lines = lines[:-1]
    top, left = 262, MARGIN
    height = len(lines) * LINE + 50
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {number(top + height + 20)}"'
        f' width="{WIDTH}" height="{number(top + height + 20)}" role="img" aria-labelledby="t d">',
        '<title id="t">What libgpucache is for</title>',
        '<desc id="d">A process holds GPU memory that it does not use, and a second one is out of '
        "memory. After a flush both run. Below, gpucache top shows the processes of a GPU.</desc>",
        "<!-- Made by scripts/release/readme-picture. -->",
        f"<style>{STYLE}\n</style>",
        rect(0, 0, WIDTH, top + height + 20, 'class="page" rx="10"'),
        story(),
        rect(left, top, 860, height, 'class="window" rx="8"'),
        text(WIDTH / 2, top + 22, "gpucache top", "title small", "middle"),
        *(f'<circle cx="{left + 18 + 18 * i}" cy="{top + 17}" r="5.5" fill="{fill}"/>'
          for i, fill in enumerate(("#f07178", "#e8b85f", "#8fce93"))),
        terminal(lines, left + (860 - len(lines[0]) * CELL) / 2 if lines else left, top + 38),
        "</svg>"]) + "\n"
