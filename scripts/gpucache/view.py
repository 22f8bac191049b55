# SPDX-License-Identifier: BSD-2-Clause
"""What the user of `top` chose: the line, the order, the filter, and what is typed. Knows no
terminal."""

# Column -> what it sorts by; a process without the library has no figures but one.
SORTS = {
    "RESERVED": lambda holder: holder.takes() or 0,
    "LIVE": lambda holder: holder.live or 0,
    "CACHED": lambda holder: holder.cached or 0,
    "IDLE": lambda holder: holder.idle or 0,
    "PEAK": lambda holder: holder.peak or 0,
    "GROWS": lambda holder: holder.grows or 0,
    "ALLOCS": lambda holder: holder.rate or 0,
    "HITS": lambda holder: (holder.hits or 0) / max(1, holder.allocs or 0),
    "PID": lambda holder: -(holder.pid or int(holder.shown_pid.rstrip("*"))),
    "NAME": lambda holder: holder.name.lower(),
}


class View:
    """first, room: of the lines that the terminal has room for. typed: the text after a question;
    None: there is none. message: what the last key led to."""

    def __init__(self, sort="RESERVED"):
        self.sort, self.reverse = sort, False
        self.chosen, self.first, self.room = None, 0, 1
        self.filter, self.gpu = "", None
        self.question, self.typed, self.message = "", None, ""
        self.help = self.paused = False
        self.row_at = {}  # row of the picture -> key of the holder there; for the mouse
        self.head_at = {}  # the same for (row, first column, last column) -> column

    def lines(self, machine):
        """The holders that are wanted, in their order."""
        wanted = self.filter.lower()
        lines = [holder for holder in machine.holders
                 if (self.gpu is None or holder.gpu == self.gpu) and
                 (not wanted or any(wanted in str(words).lower() for words in (
                     holder.name, holder.user, holder.job, holder.shown_pid)))]
        lines.sort(key=lambda holder: holder.key)
        lines.sort(key=SORTS[self.sort], reverse=(self.sort != "NAME") != self.reverse)
        if lines and self.chosen not in [holder.key for holder in lines]:
            self.chosen = lines[0].key
        return lines

    def index(self, lines):
        """The place of the chosen line."""
        return next((i for i, holder in enumerate(lines) if holder.key == self.chosen), 0)

    def visible(self, lines, room):
        """The lines that are shown where there is room for so many, among them the chosen one."""
        self.room = max(1, room)
        self.first = min(self.first, self.index(lines), max(0, len(lines) - self.room))
        self.first = max(self.first, self.index(lines) - self.room + 1)
        return lines[self.first:self.first + self.room]

    def move(self, lines, step):
        if lines:
            place = max(0, min(len(lines) - 1, self.index(lines) + step))
            self.chosen = lines[place].key

    def next_sort(self, step):
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + step) % len(names)]
