# SPDX-License-Identifier: BSD-2-Clause
"""gpucache top: the GPUs and their processes, live. This file has the terminal and the keys;
picture.py draws."""
import collections
import contextlib
import json
import os
import re
import select
import signal
import sys
import termios
import time
import tty
import types

from gpucache import cached, flush, machine, many, options, page, setting, state, terminal, text
from gpucache import gpu as gpu_module
from gpucache.fault import DONE, USAGE, Fault, end_in_order, hold_endings, needed
from gpucache.machine import PARTS
from gpucache.picture import render
from gpucache.view import SORTS, View

HISTORY = 240  # looks
DRIVER_PATIENCE_S = 0.2  # later answers are taken by the next look
LEAST_S, MOST_S = 0.1, 3600.0
ESCAPES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "k": "up",
           "j": "down", "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home",
           "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b[1~": "home", "\x1b[4~": "end"}
STEPS = {"up": -1, "down": 1, "home": -1 << 30, "end": 1 << 30}
# A key, or all that a key without a letter sends.
KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])|.", re.DOTALL)
CLICK = re.compile(r"\x1b\[<([0-9]+);([0-9]+);([0-9]+)M")
WHEEL = {64: "up", 65: "down"}
MOUSE_ON, MOUSE_OFF = b"\033[?1000h\033[?1006h", b"\033[?1006l\033[?1000l"
STOP = "\x1a"  # ctrl-Z


def _why_not(holder):
    """Why nothing can be asked of a process without a page."""
    if holder.note == machine.WITHOUT:
        return "it runs without libgpucache"
    if holder.note == machine.NO_FIGURES:
        return f"top cannot ask it; gpucache flush {holder.shown_pid} asks it by its signal"
    return "nothing is known of it"


class Screen(View):
    """What is shown, and what a key does to it. Knows no terminal."""

    def __init__(self, args):
        super().__init__(args.sort)
        self.args = args
        self.gpus = gpu_module.Gpus(stays=True)
        self.packages = None if args.no_ask else cached.Memory()
        self.history = {}
        self.rates = {}  # key -> (published_unix_ns, allocs, rate)
        self.machine = machine.Machine()
        self.asking = None  # the method that takes what was typed
        self.changed = False  # something was asked of a process, or is to be looked at anew
        self.unicode = text.is_unicode()  # rich puts something of its own in stdout's place later

    def look(self):
        """Reads all pages, and asks the driver and the packages."""
        found, complaints = state.running(self.args.all_users, self.gpus)
        self.gpus.refresh(DRIVER_PATIENCE_S)
        if self.packages:
            self.packages.look(found)
        if complaints:
            self.message = page.sum_up(complaints)[0]
        now = machine.Machine()
        now.add(found, self.gpus)
        now.interval_s, now.unix_ns = self.args.interval, time.time_ns()
        history = {}
        for record, value in [(holder, holder.held()) for holder in now.holders] + \
                [(card, [getattr(card, part) or 0 for part in PARTS]) for card in now.cards]:
            key = getattr(record, "key", record.uuid)
            past = self.history.get(key) or collections.deque(maxlen=HISTORY)
            past.append(value)
            history[key] = past
            record.history = list(past)
        for holder in now.holders:
            holder.interval_s = self.args.interval
        self._count(now.holders)
        self.history, self.machine = history, now

    def _count(self, holders):
        """Allocations a second. A look that finds no new state keeps the rate of before."""
        rates = {}
        for holder in holders:
            if holder.allocs is None:
                continue
            at_ns, allocs, holder.rate = self.rates.get(
                holder.key, (holder.published_unix_ns, holder.allocs, None))
            if holder.published_unix_ns > at_ns:
                holder.rate = max(0, holder.allocs - allocs) * 1e9 / \
                    (holder.published_unix_ns - at_ns)
                at_ns, allocs = holder.published_unix_ns, holder.allocs
            rates[holder.key] = at_ns, allocs, holder.rate
        self.rates = rates

    def _chosen(self):
        lines = self.lines(self.machine)
        return lines[self.index(lines)] if lines else None

    def press(self, key):
        """False: the user wants to leave."""
        if self.typed is not None:
            self._type(key)
            return True
        self.message = ""
        if self.help:
            self.help = False
            return key != "\x03"
        if key in ("q", "Q", "\x03"):
            return False
        pages = {"page up": -self.room, "page down": self.room}
        click = CLICK.fullmatch(key)
        if click:
            self._click(*map(int, click.groups()))
        elif key in STEPS or key in pages:
            self.move(self.lines(self.machine), STEPS.get(key) or pages[key])
        elif key in self.keys:
            self.keys[key](self)
        return True

    def _click(self, button, column, row):
        if button in WHEEL:
            self.move(self.lines(self.machine), STEPS[WHEEL[button]])
        elif button == 0:
            self.chosen = self.row_at.get(row - 1, self.chosen)
            for (at, first, last), head in self.head_at.items():
                if at == row - 1 and first <= column - 1 <= last and head in SORTS:
                    self.reverse = not self.reverse if self.sort == head else False
                    self.sort = head

    def _sort(self, step):
        self.next_sort(step)

    def _turn(self):
        self.reverse = not self.reverse

    def _help(self):
        self.help = True

    def _pause(self):
        self.paused = not self.paused

    def _faster(self, factor):
        self.args.interval = min(MOST_S, max(LEAST_S, self.args.interval * factor))
        self.machine.interval_s = self.args.interval

    def _next_gpu(self):
        known = [None] + [card.gpu for card in self.machine.cards]
        at = known.index(self.gpu) if self.gpu in known else 0
        self.gpu = known[(at + 1) % len(known)]

    def _all_users(self):
        if os.geteuid():
            self.message = "only root sees the pages of all users"
        else:
            self.args.all_users = not self.args.all_users
            self.changed = True

    def _ask(self, question, then):
        self.question, self.typed, self.asking = question, "", then

    def _ask_limit(self):
        if self._chosen():
            self._ask("MAX_IDLE, or NAME=VALUE: ", self._set)

    def _ask_filter(self):
        self._ask("show those with: ", self._find)

    def _find(self, words):
        self.filter = words

    def _flush(self):
        holder = self._chosen()
        if holder:
            self._flush_all([holder])

    def _ask_all(self):
        mine = [holder for holder in self.lines(self.machine) if holder.process]
        if mine:
            number = len({holder.process.page.name for holder in mine})
            self._ask(f"flush {number} process{'' if number == 1 else 'es'}? y or n: ",
                      lambda words: words.lower() in ("y", "yes") and self._flush_all(mine))

    def _flush_all(self, holders):
        """Of one process on one GPU the whole receipt; of more their sum."""
        self.changed = True
        args = types.SimpleNamespace(wait=1.0, keep=0, gpu=None, no_frameworks=False,
                                     gpus=self.gpus)
        try:
            if len(holders) == 1:
                holder = holders[0]
                if holder.process is None:
                    raise Fault(_why_not(holder))
                receipt = flush.by_page(holder.process, args, holder.uuid or None)
                said = list(receipt.lines({holder.uuid: holder.gpu}))
                if receipt.status in ("failed", "partly"):
                    said.append(f"PID {receipt.pid}: {receipt.why}")
                self.message = "; ".join(said)
                return
            targets = list({holder.process.page.name: holder.process
                            for holder in holders}.values())
            receipts = list(many.each(flush.VERB, targets, args))
            undone = [receipt for receipt in receipts if receipt.status in ("failed", "partly")]
            self.message = f"{text.size(sum(r.returned_bytes for r in receipts))} returned by " \
                           f"{len(receipts)} processes"
            if undone:
                self.message += f"; of {len(undone)} not all: PID {undone[0].pid}: {undone[0].why}"
        except (Fault, OSError) as error:
            self.message = f"PID {holders[0].shown_pid}: {error}"

    def _type(self, key):
        if key in ("\r", "\n"):
            words, self.typed = self.typed, None
            self.asking(words)
        elif key in ("\x1b", "\x03"):
            self.typed = None
        elif key in ("\x7f", "\b"):
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def _set(self, words):
        if not words:
            return
        self.changed = True
        holder = self._chosen()
        try:
            if holder is None:
                raise Fault("it has ended")
            if holder.process is None:
                raise Fault(_why_not(holder))
            pairs = []
            for word in words.split():
                name, equals, value = word.partition("=")
                pairs.append(options.checked(*((name, value) if equals else ("MAX_IDLE", name))))
            changes = setting.change(holder.process, pairs)
            self.message = f"PID {holder.shown_pid}: " \
                           + ", ".join(setting.line_of(entry) for entry in changes)
        except (Fault, OSError) as error:
            self.message = f"PID {holder.shown_pid if holder else '?'}: {error}"

    # Key -> what it does.
    keys = {"s": lambda self: self._sort(1), ">": lambda self: self._sort(1),
            "<": lambda self: self._sort(-1), "r": _turn, "?": _help, "h": _help, " ": _pause,
            "f": _flush, "F": _ask_all, "l": _ask_limit, "/": _ask_filter, "g": _next_gpu,
            "a": _all_users, "+": lambda self: self._faster(0.5),
            "-": lambda self: self._faster(2.0)}


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


@contextlib.contextmanager
def _mouse():
    """The terminal tells clicks. Nothing of it waits in a buffer: a terminal that is stopped would
    hold up the end of the tool."""
    fd = sys.stdout.fileno()
    try:
        os.write(fd, MOUSE_ON)
        yield
    finally:
        if select.select([], [fd], [], 0)[1]:
            with contextlib.suppress(OSError):
                os.write(fd, MOUSE_OFF)


def _hold_endings():
    """The signals that end the tool wait: half a way in or back would leave the terminal between.
    They do not wait where the terminal is stopped, because then nothing would end the tool."""
    hold_endings(bool(select.select([], [sys.stdout], [], 0)[1]))


def _watch(screen, view, console, fd, resizes):
    """Shows the screen until a key ends it, and returns this key."""
    due = 0.0
    while True:
        if time.monotonic() >= due:
            if not screen.paused or screen.changed:
                screen.look()
            screen.changed = False
            due = time.monotonic() + screen.args.interval
        with contextlib.suppress(AttributeError):  # an old rich, which knows another size for 0x0
            console.size = terminal.size()
        size = terminal.size()
        view.update(render(screen.machine, *size, screen, screen.unicode), refresh=True)
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


def _print_json(args):
    """A line for each look."""
    screen = Screen(args)
    while True:
        found, complaints = state.running(args.all_users, screen.gpus)
        screen.gpus.refresh(DRIVER_PATIENCE_S)
        if screen.packages:
            screen.packages.look(found)
        print(json.dumps({"processes": [p.as_json() for p in found],
                          "gpus": screen.gpus.devices, "nvml": screen.gpus.why or "ok",
                          "complaints": page.sum_up(complaints)}), flush=True)
        time.sleep(args.interval)


def show(args):
    if args.json:
        _print_json(args)
    live, console = needed("rich.live", "top"), needed("rich.console", "top").Console()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Fault("top needs a terminal; gpucache top --json does not", USAGE)
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise Fault("top needs a terminal that can place its cursor, and TERM says that this one "
                    "cannot; gpucache ps and gpucache top --json need none", USAGE)
    screen = Screen(args)
    end_in_order()
    fd, key = sys.stdin.fileno(), STOP
    while True:
        with contextlib.ExitStack() as stack:
            _hold_endings()
            stack.callback(hold_endings, False)
            stack.enter_context(_single_keys(fd))
            resizes = stack.enter_context(terminal.Resizes())
            view = stack.enter_context(live.Live(console=console, screen=True, auto_refresh=False))
            stack.enter_context(_mouse())
            hold_endings(False)
            try:
                key = _watch(screen, view, console, fd, resizes)
            finally:  # before the stack's own code: a signal inside of that would leave it half way
                _hold_endings()
        if key != STOP:
            return DONE
        os.kill(0, signal.SIGTSTP)  # as the terminal would, once it is as before
