# SPDX-License-Identifier: BSD-2-Clause
"""gpucache top: the processes, live. Keys: up and down choose a process, f empties its cache, l
sets a limit of it, s and r sort, q ends, ctrl-Z stops."""
import collections
import contextlib
import json
import os
import re
import select
import signal
import sys
import termios
import textwrap
import time
import tty
import types

from gpucache import flush, options, page, setting, state, terminal, text
from gpucache import gpu as gpu_module
from gpucache.fault import DONE, USAGE, Fault, end_in_order, hold_endings, needed

HISTORY = 120
SPARK = 16
KEYS = "up/down choose  f flush  l limit  s sort  r reverse  q quit"
# Column -> what it sorts by.
SORTS = {
    "LIVE": lambda line: line.gpu.live(),
    "IDLE": lambda line: line.gpu.idle(),
    "RESERVED": lambda line: line.gpu.reserved(),
    "PEAK": lambda line: line.gpu["reserved_peak_bytes"],
    "HITS": lambda line: line.gpu["num_hits"] / max(1, line.gpu["num_allocs"]),
    "PID": lambda line: -(line.process.pid or line.process.inner_pid),
    "NAME": lambda line: line.process.name,
}
ESCAPES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "k": "up",
           "j": "down", "\x1b[5~": "page up", "\x1b[6~": "page down"}
# A key, or all that a key without a letter sends.
KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])|.", re.DOTALL)
STOP = "\x1a"  # ctrl-Z
# On a narrow terminal these columns go, the first one first.
SPARED = ("LIMITS", "USER", "PEAK", "HITS", "LIVE, LATELY", "RESERVED", "GPU", "NAME", "IDLE")
LONG = {"USER": 12, "LIMITS": 12, "NAME": 12}  # columns whose cells may be cut to so many letters
LINES_AROUND = 5  # of the picture, beside those of processes and the last ones, if there is room

Line = collections.namedtuple("Line", "key process gpu history")


class Screen:
    """What is shown, and what a key does to it. Knows no terminal."""

    def __init__(self, args):
        self.args = args
        self.gpus = gpu_module.Gpus()
        self.history = {}
        self.lines, self.chosen = [], None
        self.sort, self.reverse = args.sort, False
        self.typed = None  # the text of the question for a limit
        self.message = ""
        self.changed = False  # something was asked of a process
        self.first, self.room = 0, 1  # of the lines that the terminal has room for

    def look(self):
        """Reads all pages."""
        found, complaints = state.running(self.args.all_users, self.gpus)
        if complaints:
            self.message = page.sum_up(complaints)[0]
        lines, history = [], {}
        for process in found:
            for gpu in process.gpus or [state.Gpu("", 0)]:
                key = (process.page.name, gpu.uuid, gpu.device)
                past = self.history.get(key) or collections.deque(maxlen=HISTORY)
                past.append(gpu["allocated_bytes"])
                history[key] = past
                lines.append(Line(key, process, gpu, past))
        self.history = history
        self.lines = lines
        self._order()

    def _order(self):
        self.lines.sort(key=lambda line: line.key)
        self.lines.sort(key=SORTS[self.sort], reverse=(self.sort != "NAME") != self.reverse)
        if self.lines and self.chosen not in [line.key for line in self.lines]:
            self.chosen = self.lines[0].key

    def _index(self):
        return next((i for i, line in enumerate(self.lines) if line.key == self.chosen), 0)

    def _move(self, step):
        if self.lines:
            place = max(0, min(len(self.lines) - 1, self._index() + step))
            self.chosen = self.lines[place].key

    def visible(self, room):
        """The lines that are shown where there is room for so many, among them the chosen one."""
        self.room = max(1, room)
        self.first = min(self.first, self._index(), max(0, len(self.lines) - self.room))
        self.first = max(self.first, self._index() - self.room + 1)
        return self.lines[self.first:self.first + self.room]

    def press(self, key):
        """False: the user wants to leave."""
        if self.typed is not None:
            self._type(key)
            return True
        self.message = ""
        if key in ("q", "Q", "\x03"):
            return False
        if key in ("up", "down"):
            self._move(-1 if key == "up" else 1)
        elif key in ("page up", "page down"):
            self._move(-self.room if key == "page up" else self.room)
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
            self._order()
        elif key == "r":
            self.reverse = not self.reverse
            self._order()
        elif key == "f" and self.lines:
            self._flush(self.lines[self._index()])
        elif key == "l" and self.lines:
            self.typed = ""
        return True

    def _flush(self, line):
        self.changed = True
        args = types.SimpleNamespace(wait=1.0, keep=0, gpu=None, no_frameworks=False)
        try:
            receipt = flush.by_page(line.process, args, line.gpu.uuid or None)
            names = {line.gpu.uuid: line.gpu.shown()}
            said = list(receipt.lines(names))
            if receipt.status in ("failed", "partly"):
                said.append(f"PID {receipt.pid}: {receipt.why}")
            self.message = "; ".join(said)
        except (Fault, FileNotFoundError) as error:
            self.message = f"PID {line.process.shown_pid()}: {error}"

    def _type(self, key):
        if key in ("\r", "\n"):
            words, self.typed = self.typed, None
            if words:
                self._set(self.lines[self._index()] if self.lines else None, words)
        elif key in ("\x1b", "\x03"):
            self.typed = None
        elif key in ("\x7f", "\b"):
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def _set(self, line, words):
        self.changed = True
        try:
            if line is None:
                raise Fault("it has ended")
            pairs = []
            for word in words.split():
                name, equals, value = word.partition("=")
                pairs.append(options.checked(*((name, value) if equals else ("MAX_IDLE", name))))
            changes = setting.change(line.process, pairs)
            self.message = f"PID {line.process.shown_pid()}: " \
                           + ", ".join(setting.line_of(entry) for entry in changes)
        except (Fault, FileNotFoundError) as error:
            self.message = f"PID {line.process.shown_pid() if line else '?'}: {error}"


def _cells(line, width):
    """Column -> what a line has there, on a terminal of this width."""
    width = SPARK if width >= 100 else len("LIVE, LATELY")
    gpu = line.gpu
    return {
        "PID": line.process.shown_pid(), "USER": line.process.user, "GPU": gpu.shown(),
        "LIVE": text.size(gpu.live()), "IDLE": text.size(gpu.idle()),
        "RESERVED": text.size(gpu.reserved()),
        "PEAK": text.size(gpu["reserved_peak_bytes"]),
        "HITS": text.share(gpu["num_hits"], gpu["num_allocs"]),
        "LIVE, LATELY": text.spark(line.history, width), "LIMITS": line.process.limits(),
        "NAME": line.process.name,
    }


def _widths(rows, width):
    """Column -> its width, of those that fit with three blanks between two. LIMITS takes what the
    others leave."""
    heads = ["PID", "USER", "GPU", "LIVE", "IDLE", "RESERVED", "PEAK", "HITS", "LIVE, LATELY",
             "LIMITS", "NAME"]
    hidden = {"LIMITS", "USER"} if width < 110 else set()
    hidden |= {"PEAK"} if width < 90 else set()
    heads = [h for h in heads if h not in hidden]
    needs = {h: max([len(h) + (h in SORTS)] + [min(len(row[h]), LONG.get(h, width))
                                               for row in rows]) + 3 for h in heads}
    for head in SPARED:
        if head in needs and sum(needs.values()) > width:
            del needs[head]
    if "LIMITS" in needs:
        needs["LIMITS"] += max(0, width - sum(needs.values()))
    return {head: need - 3 for head, need in needs.items()}


def _bottom(screen, width, rows):
    """The last lines: the question and what was typed, a message, or the keys; of that what so many
    rows hold. What is typed is seen at its end."""
    if screen.typed is not None:
        question = f"MAX_IDLE, or NAME=VALUE: {screen.typed}_"
        question = [question[i:i + width] for i in range(0, len(question), width)]
        return question if len(question) <= rows else [f"{screen.typed}_"[-width:]]
    lines = textwrap.wrap(screen.message or KEYS, width)
    return lines if len(lines) <= rows else [*lines[:rows - 1],
                                             terminal.cut(" ".join(lines[rows - 1:]), width)]


def picture(screen, console):
    """The screen as something that rich can show, no larger than the terminal. On a terminal with
    few rows the chosen process and the last line stay longest."""
    box, rich_text = needed("rich.box", "top"), needed("rich.text", "top").Text
    width, height = console.width, console.height
    bottom = _bottom(screen, width, max(1, height // 2))
    room = height - len(bottom)
    roomy = room > LINES_AROUND
    has_title, has_heads = room > 1, room > 2
    shown = screen.visible(room - (LINES_AROUND if roomy else has_title + has_heads))
    if room < 1:  # one row: the question or the message, or else the process
        shown, bottom = ([], bottom) if screen.typed is not None or screen.message else (shown, [])
    parts = [rich_text(_title(screen, len(shown)), style="bold", no_wrap=True,
                       overflow="ellipsis")] if has_title else []
    table = needed("rich.table", "top").Table(box=box.SIMPLE_HEAD if roomy else None, expand=True,
                                              pad_edge=False, show_header=has_heads)
    rows = [_cells(line, width) for line in shown]
    widths = _widths(rows, width)
    for head, widest in widths.items():
        mark = ("^" if screen.reverse else "v") if head == screen.sort else ""
        table.add_column(head + mark, no_wrap=True, overflow="ellipsis",
                         justify="left" if head in ("USER", "LIMITS", "NAME", "LIVE, LATELY")
                         else "right", ratio=1 if head == "NAME" else None,
                         max_width=widest if head in ("USER", "LIMITS") else None)
    for line, cells in zip(shown, rows):
        table.add_row(*(rich_text(cells[head]) for head in widths),
                      style="reverse" if line.key == screen.chosen else "")
    if shown or has_heads:
        parts.append(table)
    parts += [rich_text(line, no_wrap=True, overflow="ellipsis") for line in bottom]
    return needed("rich.console", "top").Group(*parts)


def _title(screen, num_shown):
    total = sum(line.gpu.live() for line in screen.lines)
    idle = sum(line.gpu.idle() for line in screen.lines)
    number = len({line.process.page.name for line in screen.lines})
    words = f"{number} process{'' if number == 1 else 'es'}, {text.size(total)} live, " \
            f"{text.size(idle)} idle"
    if num_shown < len(screen.lines):
        words += f"; lines {screen.first + 1} to {screen.first + num_shown} " \
                 f"of {len(screen.lines)}"
    return words


def keys_of(data):
    """The keys in what a terminal sent."""
    for key in KEY.findall(data):
        yield ESCAPES.get(key, key) if len(key) > 1 else key


@contextlib.contextmanager
def _single_keys(fd):
    """The terminal gives each key at once, ctrl-Z too; as before, at the end."""
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        now = termios.tcgetattr(fd)
        now[6][termios.VSUSP] = b"\0"  # a stopped program would leave its picture there
        termios.tcsetattr(fd, termios.TCSADRAIN, now)
        yield
    finally:
        with contextlib.suppress(termios.error):  # it may have gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _hold_endings():
    """The signals that end the tool wait: half a way in or back would leave the terminal between.
    They do not wait where the terminal is stopped, because then nothing would end the tool."""
    hold_endings(bool(select.select([], [sys.stdout], [], 0)[1]))


def _watch(screen, view, console, fd, resizes):
    """Shows the screen until a key ends it, and returns this key."""
    due = 0.0
    while True:
        if time.monotonic() >= due:
            screen.look()
            due = time.monotonic() + screen.args.interval
        with contextlib.suppress(AttributeError):  # an old rich, which knows another size for 0x0
            console.size = terminal.size()
        view.update(picture(screen, console), refresh=True)
        if not resizes.wait(due, fd)[1]:
            continue
        data = os.read(fd, 256).decode(errors="replace")
        if not data:
            return "q"
        for key in keys_of(data):
            if screen.typed is None:
                key = ESCAPES.get(key, key)
            if key == STOP or not screen.press(key):
                return key
        if screen.changed:
            due = 0.0
            screen.changed = False


def show(args):
    screen = Screen(args)
    if args.json:
        while True:
            found, complaints = state.running(args.all_users, screen.gpus)
            print(json.dumps({"processes": [p.as_json() for p in found],
                              "complaints": page.sum_up(complaints)}), flush=True)
            time.sleep(args.interval)
    live, console = needed("rich.live", "top"), needed("rich.console", "top").Console()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Fault("top needs a terminal; gpucache top --json does not", USAGE)
    end_in_order()
    fd, key = sys.stdin.fileno(), STOP
    while True:
        with contextlib.ExitStack() as stack:
            _hold_endings()
            stack.callback(hold_endings, False)
            stack.enter_context(_single_keys(fd))
            resizes = stack.enter_context(terminal.Resizes())
            view = stack.enter_context(live.Live(console=console, screen=True, auto_refresh=False))
            hold_endings(False)
            try:
                key = _watch(screen, view, console, fd, resizes)
            finally:  # before the stack's own code: a signal inside of that would leave it half way
                _hold_endings()
        if key != STOP:
            return DONE
        os.kill(0, signal.SIGTSTP)  # as the terminal would, once it is as before
