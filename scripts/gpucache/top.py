# SPDX-License-Identifier: BSD-2-Clause
"""gpucache top: the processes, live. Keys: up and down choose a process, f empties its cache, l
sets a limit of it, s and r sort, q ends."""
import collections
import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
import types

from gpucache import flush, options, setting, state, text
from gpucache import gpu as gpu_module
from gpucache.fault import DONE, USAGE, Fault, needed

HISTORY = 120
SPARK = 16
KEYS = "up/down choose  f flush  l limit  s sort  r reverse  q quit"
# Column -> what it sorts by.
SORTS = {
    "LIVE": lambda line: line.gpu["allocated_bytes"],
    "IDLE": lambda line: line.gpu["idle_bytes"],
    "RESERVED": lambda line: line.gpu["reserved_bytes"],
    "PEAK": lambda line: line.gpu["reserved_peak_bytes"],
    "HITS": lambda line: line.gpu["num_hits"] / max(1, line.gpu["num_allocs"]),
    "PID": lambda line: -int(line.process.pid or 0),
    "NAME": lambda line: line.process.name,
}
ESCAPES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "k": "up",
           "j": "down"}

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

    def look(self):
        """Reads all pages."""
        found, complaints = state.running(self.args.all_users, self.gpus)
        if complaints:
            self.message = complaints[0]
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
            self.message = "; ".join(receipt.lines(names)) or receipt.why
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


def picture(screen, width):
    """The screen as something that rich can show."""
    box, rich_text = needed("rich.box", "top"), needed("rich.text", "top").Text
    total = sum(line.gpu["allocated_bytes"] for line in screen.lines)
    idle = sum(line.gpu["idle_bytes"] for line in screen.lines)
    table = needed("rich.table", "top").Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    heads = ["PID", "USER", "GPU", "LIVE", "IDLE", "RESERVED", "PEAK", "HITS", "LIVE, LATELY",
             "LIMITS", "NAME"]
    hidden = {"LIMITS", "USER"} if width < 110 else set()
    hidden |= {"PEAK"} if width < 90 else set()
    heads = [h for h in heads if h not in hidden]
    for head in heads:
        mark = ("^" if screen.reverse else "v") if head == screen.sort else ""
        table.add_column(head + mark, no_wrap=True, overflow="ellipsis",
                         justify="left" if head in ("USER", "LIMITS", "NAME", "LIVE, LATELY")
                         else "right", ratio=1 if head == "NAME" else None)
    for line in screen.lines:
        gpu = line.gpu
        cells = {
            "PID": line.process.shown_pid(), "USER": line.process.user, "GPU": gpu.shown(),
            "LIVE": text.size(gpu["allocated_bytes"]), "IDLE": text.size(gpu["idle_bytes"]),
            "RESERVED": text.size(gpu["reserved_bytes"]),
            "PEAK": text.size(gpu["reserved_peak_bytes"]),
            "HITS": text.share(gpu["num_hits"], gpu["num_allocs"]),
            "LIVE, LATELY": text.spark(line.history, SPARK), "LIMITS": line.process.limits(),
            "NAME": line.process.name,
        }
        table.add_row(*(rich_text(cells[head]) for head in heads),
                      style="reverse" if line.key == screen.chosen else "")
    number = len({line.process.page.name for line in screen.lines})
    where = f"{number} process{'' if number == 1 else 'es'}, {text.size(total)} live, " \
            f"{text.size(idle)} idle"
    if screen.typed is not None:
        bottom = f"MAX_IDLE, or NAME=VALUE: {screen.typed}_"
    else:
        bottom = screen.message or KEYS
    group = needed("rich.console", "top").Group
    return group(rich_text(where, style="bold"), table, rich_text(bottom))


def keys_of(data):
    """The keys in what a terminal sent."""
    while data:
        for escape, name in ESCAPES.items():
            if data.startswith(escape) and len(escape) > 1:
                yield name
                data = data[len(escape):]
                break
        else:
            yield data[0]
            data = data[1:]


@contextlib.contextmanager
def _single_keys(fd):
    """The terminal gives each key at once; as before, at the end."""
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _loop(screen, view, console, fd):
    due = 0.0
    while True:
        if time.monotonic() >= due:
            screen.look()
            due = time.monotonic() + screen.args.interval
        view.update(picture(screen, console.width), refresh=True)
        if not select.select([fd], [], [], max(0, due - time.monotonic()))[0]:
            continue
        data = os.read(fd, 256).decode(errors="replace")
        if not data:
            return
        for key in keys_of(data):
            if screen.typed is None:
                key = ESCAPES.get(key, key)
            if not screen.press(key):
                return
        if screen.changed:
            due = 0.0
            screen.changed = False


def show(args):
    screen = Screen(args)
    if args.json:
        while True:
            found, _ = state.running(args.all_users, screen.gpus)
            print(json.dumps({"processes": [p.as_json() for p in found]}), flush=True)
            time.sleep(args.interval)
    live, console = needed("rich.live", "top"), needed("rich.console", "top").Console()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Fault("top needs a terminal; gpucache top --json does not", USAGE)
    fd = sys.stdin.fileno()
    with _single_keys(fd), live.Live(console=console, screen=True, auto_refresh=False) as view:
        _loop(screen, view, console, fd)
    return DONE
