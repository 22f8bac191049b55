# SPDX-License-Identifier: BSD-2-Clause
"""The picture of `top`, of a machine and a view of it, as something that rich can show. It needs no
terminal: render() draws what was recorded, too. No line is wider than it may be, and there are no
more than there is room for. Where room is scarce, the chosen process, the question or the last
words, and the number of lines that are hidden stay longest."""
import textwrap
import time

from gpucache import chart, state, terminal, text
from gpucache.fault import needed
from gpucache.machine import ENDED, HIDDEN, NO_FIGURES, WITHOUT, Machine
from gpucache.view import SORTS, View

# The last line: the first of these that there is room for.
KEYS = ("↑↓ choose  f flush  F all  l limit  s sort  r reverse  / find  ? help  q quit",
        "f flush  l limit  s sort  ? help  q quit", "f flush  ? help  q quit", "? help  q quit")
HELP = (
    ("up down, j k, pages", "choose a process; so does a click"),
    ("f", "flush: give the idle memory of the chosen process back, and its packages' caches"),
    ("F", "flush all that are listed, after a question"),
    ("l", "limit: a size for MAX_IDLE, or NAME=VALUE; Esc leaves it"),
    ("s, < >", "sort by the next or another column; so does a click on its head"),
    ("r", "reverse the order"),
    ("/", "show those whose name, user, job or number has these letters"),
    ("g", "show one GPU alone, the next one, or all"),
    ("a", "show all users or only you (root)"),
    ("space", "stop the picture, and go on"),
    ("+ -", "look less or more often"),
    ("q, ctrl-C", "quit"),
)
LEGEND = ("LIVE is held by the program. CACHED is what its Python packages keep; they are asked "
          "each few seconds, and a figure that is older has its age. IDLE is the library's. A "
          "flush gives CACHED and IDLE back. RESERVED is all that a process takes of the GPU, and "
          "all that is known of one without the library. PARKED went to the host. "
          "GROWS is by how much the lowest value of LIVE rose from one minute to the next: a leak "
          "lifts it, a peak does not. '?': a package does not tell.")
# What the box tells of a process without figures, by its note.
UNKNOWN = {
    WITHOUT: "It runs without the library: nothing of its memory can be given back. Start it by "
             "gpucache run.",
    NO_FIGURES: "It runs under the library, and its figures are not known here: gpucache stat {} "
                "says why.",
    HIDDEN: "The driver names it by a number that is none here: it runs in another container or on "
            "the host, or has just ended.",
    ENDED: "It has ended, and the driver still counts its memory.",
    "": "It cannot be known whether it runs under the library: it may not be looked at."}
LEFT = ("USER", "LIVE, LATELY", "LIMITS", "NAME")
# On a narrow terminal these columns go, the first one first.
SPARED = ("PEAK", "LIMITS", "USER", "ALLOCS", "GROWS", "HITS", "MAX", "LIVE, LATELY", "CACHED",
          "IDLE", "NAME", "GPU", "PARKED")
SPARK, SPARK_LEAST = 18, 12
MIN_BAR, TWO_IN_A_ROW = 10, 6  # cells of a bar; GPUs
LAYOUTS = (6, 2), (6, 1), (2, 1), (0, 1)  # blanks before the parts of a GPU, and between them
BOX_LINES, CHART_LEAST, CHART_MOST = 6, 6, 30


def _cells(holder, spark):
    """Column -> (words, style)."""
    mine = holder.live is not None
    size = text.size
    takes = "?" if holder.takes() is None else size(holder.takes())
    past = [value or 0 for value in holder.history]
    name = holder.name + (f" ({holder.note})" if mine and holder.note else "")
    grows = holder.grows if mine else None
    leaks = (grows or 0) > 0.01 * (holder.live or 0)
    hits = holder.hits / holder.allocs if holder.allocs and holder.hits is not None else 1

    def faint(value, style):
        return style if value else "dim"
    return {
        "PID": (holder.shown_pid, ""), "USER": (holder.user, ""), "GPU": (holder.gpu, ""),
        "LIVE": (size(holder.live), "bold" if mine else "dim"),
        "CACHED": (holder.cached_words(), faint(holder.cached, "cyan")),
        "IDLE": (size(holder.idle), faint(holder.idle, "green")),
        "RESERVED": (takes, "" if mine else "dim"),
        "PARKED": (size(holder.parked or None), faint(holder.parked, "")),
        "PEAK": (size(holder.peak), ""),
        "GROWS": (text.change(grows), "yellow" if leaks else "dim"),
        "ALLOCS": (text.rate(holder.rate), faint(holder.rate, "")),
        "HITS": (text.share(holder.hits, holder.allocs), "yellow" if hits < 0.9 else ""),
        "LIVE, LATELY": (chart.spark(past, spark) if any(past) else "", chart.STYLES["live"]),
        "MAX": (size(max(past)) if any(past) else "", "dim"),
        "LIMITS": (holder.limits or "-", ""), "NAME": (name, ""),
    }


def _widths(rows, width):
    """Column -> its width, of those that fit with two blanks between two. NAME, or else LIMITS,
    takes what the others leave."""
    heads = ["PID", "USER", "GPU", "LIVE", "CACHED", "IDLE", "RESERVED", "PARKED", "PEAK", "GROWS",
             "ALLOCS", "HITS", "LIVE, LATELY", "MAX", "LIMITS", "NAME"]
    if all(row["PARKED"][0] == "-" for row in rows):
        heads.remove("PARKED")
    needs = {}
    for head in heads:
        widest = max([terminal.width(row[head][0]) for row in rows] or [0])
        most = {"USER": 12, "LIMITS": 12, "NAME": 12}.get(head, width)
        needs[head] = max(len(head) + (head in SORTS), min(widest, most)) + 2
    for head in SPARED:
        if sum(needs.values()) > width + 2:
            needs.pop(head, None)
    spare = width + 2 - sum(needs.values())
    longest = {head: max([terminal.width(row[head][0]) for row in rows] or [0]) + 2
               for head in ("NAME", "LIMITS")}
    for head in ("LIMITS", "NAME"):
        if head in needs and spare > 0:
            more = spare if head == "NAME" else min(spare, max(0, longest[head] - needs[head]))
            needs[head] += more
            spare -= more
    return {head: need - 2 for head, need in needs.items()}


class _Picture:
    """Lines, each a list of (words, style)."""

    def __init__(self, machine, view, width, height):
        self.machine, self.view = machine, view
        self.width, self.height = max(1, width), max(1, height)
        self.lines = view.lines(machine)

    def bottom(self, rows):
        """The last lines: the question and what was typed, a message, or the keys; of that what so
        many rows hold. What is typed is seen at its end."""
        view, width = self.view, self.width
        if view.typed is not None:
            asked = f"{view.question}{view.typed}_"
            told = [asked[i:i + width] for i in range(0, len(asked), width)]
            return told if len(told) <= rows else [f"{view.typed}_"[-width:]]
        if not view.message:
            return [next((keys for keys in KEYS if len(keys) <= width),
                         terminal.cut(KEYS[-1], width))]
        told = textwrap.wrap(view.message, width)
        return told if len(told) <= rows else [*told[:rows - 1],
                                               terminal.cut(" ".join(told[rows - 1:]), width)]

    def title(self, num_shown):
        """What matters most comes first, and stays longest: how much is hidden."""
        machine, view, lines = self.machine, self.view, self.lines
        number = len({holder.key.rpartition("/")[0] if holder.live is None else
                      holder.key.split("/")[0] for holder in lines})
        told = []
        if num_shown < len(lines):
            told.append(f"lines {view.first + 1} to {view.first + num_shown} of {len(lines)}")
        told.append(f"{number} process{'' if number == 1 else 'es'}")
        if view.filter or view.gpu is not None:
            told.append("only " + " ".join(
                ([f"GPU {view.gpu}"] if view.gpu is not None else []) +
                ([f"/{view.filter}"] if view.filter else [])))
        cards = len(machine.cards)
        told.append(f"{cards} GPU{'' if cards == 1 else 's'} of {machine.host}")
        while len(told) > 1 and len(", ".join(told)) > self.width:
            told.pop()
        words = ", ".join(told)
        if len(words) > self.width and num_shown < len(lines):
            words = f"{view.first + 1}-{view.first + num_shown}/{len(lines)}"
        clock = time.strftime("%H:%M:%S", time.localtime(machine.unix_ns / 1e9))
        right = f"{'stopped' if view.paused else clock}, each " \
                f"{text.duration(int(machine.interval_s * 1e9))}"
        words = terminal.cut(words, self.width)
        if len(words) + len(right) + 2 <= self.width:
            words = words.ljust(self.width - len(right)) + right
        return [(words, "bold")]

    def card(self, card, width):
        """A line: the bar of a GPU and how full it is."""
        total = text.size(card.total) if card.total else "?"
        mine = sum(getattr(card, part) or 0 for part in ("live", "cached", "idle"))
        used = mine if card.used is None else card.used
        tail = f" {text.size(used)} of {total}"
        if width >= 100 and card.total:
            tail += f"{100 * used / card.total:4.0f} %"
        name = terminal.fit(card.name, min(width // 5, 24)) + " " if width >= 100 else ""
        head = f"GPU {card.gpu} {name}"
        room = width - len(head) - max(len(tail), 18 if width >= 60 else 0)
        if room < MIN_BAR:
            return [(terminal.fit(f"GPU {card.gpu}:{tail}", width), chart.fill_style(card))]
        return [(head, "bold"), *chart.bar(card, room),
                (terminal.fit(tail, width - len(head) - room), chart.fill_style(card))]

    @staticmethod
    def parts(card):
        """[(name and size, name)] of the parts of a GPU."""
        return [(f"{name} {text.size(size)}", name) for name, size in chart.parts(card)
                if name != "unknown" and (name != "others" or card.used is not None)]

    def layout(self, cards):
        """(blanks before, blanks between, has signs) of the lines of all these GPUs' parts."""
        for before, between in LAYOUTS:
            if all(before + sum(len(words) + 2 + between for words, _ in self.parts(card))
                   - between <= self.width for card in cards):
                return before, between, True
        return (*LAYOUTS[0], False)

    def figures(self, card, before, between, has_signs):
        """A line: the parts of a GPU in words."""
        line, room = [(" " * before, "")], self.width - before
        for words, name in self.parts(card):
            words = (chart.GLYPHS[name] + " " if has_signs else "") + words
            if len(words) > room:
                break
            line.append((words + " " * between, chart.STYLES[name]))
            room -= len(words) + between
        return line

    def cards(self, room):
        """The lines of the GPUs, in no more than so much room; no line if there is too little."""
        cards = [card for card in self.machine.cards
                 if self.view.gpu in (None, card.gpu)]
        if not cards:
            return []
        if len(cards) >= TWO_IN_A_ROW and self.width >= 80:
            half = (self.width - 2) // 2
            rows = []
            for i in range(0, len(cards), 2):
                row = self.card(cards[i], half)
                if i + 1 < len(cards):
                    row = row + [("  ", "")] + self.card(cards[i + 1], half)
                rows.append(row)
        else:
            rows = [self.card(card, self.width) for card in cards]
            if room >= 2 * len(cards):
                layout = self.layout(cards)
                rows = [line for row, card in zip(rows, cards) for line in
                        (row, self.figures(card, *layout))]
        if len(rows) > room:
            mine = next((card for card in cards if card.gpu == self.gpu()), cards[0])
            rows = [self.card(mine, self.width)]
        return rows[:room]

    def gpu(self):
        """The GPU of the chosen process."""
        return self.lines[self.view.index(self.lines)].gpu if self.lines else None

    def table(self, shown, has_heads, at):
        """The heads and the lines. at: the row of the picture where they begin."""
        view = self.view
        spark = SPARK if self.width >= 110 else SPARK_LEAST
        rows = [_cells(holder, spark) for holder in shown]
        widths = _widths(rows, self.width - 1)
        view.row_at, view.head_at = {}, {}
        lines = []
        if has_heads:
            line, column = [(" ", "")], 1
            for head, width in widths.items():
                mark = ("▲" if view.reverse else "▼") if head == view.sort else ""
                line.append((terminal.fit(head + mark, width, head not in LEFT) + "  ", "bold"))
                view.head_at[(at, column, column + width)] = head
                column += width + 2
            lines.append(line)
        for holder, cells in zip(shown, rows):
            chosen = holder.key == view.chosen
            line = [("▌" if chosen else " ", chart.STYLES["live"])]
            for head, width in widths.items():
                words, style = cells[head]
                line.append((terminal.fit(words, width, head not in LEFT) + "  ",
                             f"{style} bold".strip() if chosen and style != "dim" else style))
            view.row_at[at + len(lines)] = holder.key
            lines.append(line)
        return lines

    @staticmethod
    def hits(holder):
        number = text.count(holder.allocs)
        if holder.allocs and holder.hits is None:
            return f"{number} allocations, none of them after a free"
        return f"of {number} allocations {text.share(holder.hits, holder.allocs)} needed no " \
               "driver call"

    def box(self):
        """What is known of the chosen process, in a frame."""
        holder = self.lines[self.view.index(self.lines)]
        inner = self.width - 4
        who = [holder.user] + ([holder.job] if holder.job else [])
        if holder.started_unix_ns:
            up = max(0, self.machine.unix_ns - holder.started_unix_ns)
            who.append(f"up {text.duration(up)}")
        title = f" {holder.shown_pid}  {terminal.cut(holder.command or holder.name, inner // 2)}" \
                f"   {', '.join(who)} "
        title = terminal.cut(title, self.width - 2)
        if holder.live is None:
            told = [UNKNOWN[holder.note].format(holder.shown_pid)]
        else:
            cached = holder.cached or 0
            back = holder.idle + cached
            told = [f"flush now   {text.size(back)} back at most: {text.size(holder.idle)} idle"
                    f" and {text.size(cached)} cached by packages",
                    f"reserved    {text.size(holder.reserved)}, at most "
                    f"{text.size(holder.peak)}; {self.hits(holder)}",
                    "options     " + (" ".join(f"{n}={v}" for n, v in
                                               (holder.options or {}).items())
                                      or "all at their defaults"),
                    f"last flush  {state.last_flush(holder.flush)}"]
        lines = [[(f"┌{title}".ljust(self.width - 1 - terminal.width(title) + len(title), "─")
                   + "┐", "")]]
        for words in told:
            lines.append([("│ " + terminal.fit(words, inner) + " │", "")])
        lines.append([("└" + "─" * (self.width - 2) + "┘", "")])
        return lines

    def charts(self, room):
        """The last minutes of the chosen process's GPU, and of others that there is room for."""
        cards = sorted((card for card in self.machine.cards if card.history),
                       key=lambda card: card.gpu != self.gpu())
        cards = cards[:max(1, room // (CHART_LEAST + 2))]
        height = min(CHART_MOST, room // max(1, len(cards)) - 2)
        lines = []
        for card in cards if height >= CHART_LEAST else ():
            lines.append([])
            lines.append([(f"GPU {card.gpu}: {card.name}", "bold")])
            lines += chart.chart(card, self.width, height, self.machine.interval_s)
        return lines

    def help(self):
        lines = [[("Keys", "bold")]]
        widest = max(len(key) for key, _ in HELP) + 2
        for key, words in HELP:
            lines.append([(terminal.cut(key.ljust(widest) + words, self.width), "")])
        lines.append([])
        lines += [[(line, "")] for line in textwrap.wrap(LEGEND, self.width)]
        last = [[("Any key goes back.", "bold")]]
        return lines[:max(0, self.height - 1)] + last

    def draw(self):
        if self.view.help:
            return self.help()
        bottom = self.bottom(max(1, self.height // 2))
        room = self.height - len(bottom)
        if room < 1:  # one row: the question or the message, or else the process
            asked = self.view.typed is not None or self.view.message
            if not self.lines or asked:
                return [[(words, "")] for words in bottom[:self.height]]
            return self.table(self.view.visible(self.lines, 1), False, 0)
        has_title, has_heads = room > 1, room > 2
        room -= has_title + has_heads
        wanted = max(1, len(self.lines))
        # First one line for each GPU, then the processes, then the rest.
        cards = self.cards(max(0, min(room - min(wanted, 3), 2 * len(self.machine.cards))))
        rest = room - len(cards)
        gap = [[]] if cards and rest > min(wanted, 4) else []
        rest -= len(gap)
        shown = self.view.visible(self.lines, rest)
        rest -= max(1, len(shown))
        after = []
        if self.lines and rest >= BOX_LINES + 1 and self.width >= 60:
            after += [[], *self.box()]
        if self.lines and rest - len(after) >= CHART_LEAST + 2 and self.width >= 60:
            after += self.charts(rest - len(after))
        title = [self.title(len(shown))] if has_title else []
        above = title + cards + gap
        table = self.table(shown, has_heads, len(above))
        if not self.lines and (room >= 1):
            table += [[(line, "")] for line in self.nothing(1 + max(0, rest))]
        lines = above + table + after
        return lines + [[]] * (self.height - len(lines) - len(bottom)) \
            + [[(words, "" if self.view.message or self.view.typed is not None else "dim")]
               for words in bottom]

    def nothing(self, rows):
        """Why there is no process to show, on so many lines at most."""
        if self.view.filter or self.view.gpu is not None:
            words = "No process is so. / and g change what is shown."
        elif self.machine.why:
            words = f"No process runs under libgpucache. Of others nothing is known: " \
                    f"{self.machine.why}."
        else:
            words = "No process is on a GPU."
        lines = textwrap.wrap(words, self.width)
        if len(lines) <= rows:
            return lines
        return lines[:rows - 1] + [terminal.cut(" ".join(lines[rows - 1:]), self.width)]


def render(recorded, width, height, view=None, unicode=True):
    """The picture as a rich renderable. recorded: a Machine, or what its as_json() gave. view: what
    the user chose; by default the first line by RESERVED. unicode: False draws with ASCII."""
    machine = recorded if isinstance(recorded, Machine) else Machine.of_json(recorded)
    rich_text = needed("rich.text", "top").Text
    lines = []
    for told in _Picture(machine, view or View(), width, height).draw()[:height]:
        line = rich_text(no_wrap=True, overflow="crop", end="")
        for words, style in told:
            line.append(words if unicode else words.translate(text.ASCII), style or None)
        line.rstrip()
        line.truncate(width)
        lines.append(line)
    return rich_text("\n", end="").join(lines)
