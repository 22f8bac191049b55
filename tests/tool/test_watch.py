# SPDX-License-Identifier: BSD-2-Clause
"""`gpucache stat --watch` and `ps` on a terminal."""
import os
import re
import sys

from fake import TOOL, UUID_B, body, pool
from terminal import Terminal
from test_page import Case


class Stat(Case):
    def test_watch_shows_new_figures_in_place(self):
        page = self.page()
        screen = Terminal("stat", os.getpid(), "--watch", "50ms")
        screen.until(r"live blocks +0\b")
        page.publish(body(pool(live_blocks=4711)))
        text = screen.until(r"live blocks +4,711")
        self.assertEqual(len(re.findall("live blocks", text)), 1)
        self.assertEqual(screen.quit("\x03"), 130)

    def test_watch_keeps_what_matters_on_a_small_terminal(self):
        self.page(body(pool(), pool(1, UUID_B), command="train " * 40), answer=lambda words: None)
        for width, height, parts in (
                (80, 24, ("allocated +32 MiB", "reserved +188 MiB +1 GiB", "idle +156 MiB",
                          "hit rate +98.5 %", "last flush: none", "GPU 1: ")),
                (80, 8, ("allocated +32 MiB", "reserved +188 MiB", "idle +156 MiB")),
                (30, 8, ("allocated +32 MiB", "reserved +188 MiB", "idle +156 MiB")),
                (80, 3, ("GPU 0: ",)), (80, 2, ()), (80, 1, ()), (8, 3, ())):
            screen = Terminal("stat", os.getpid(), "--watch", "50ms", width=width, height=height)
            more = r"[^$]*\n[0-9]+ more lines" if height > 1 else ""
            if width == 8:
                more = r"[^$]*\n[0-9]+ mor"
            text = screen.until(rf"^PID {os.getpid()}"[:width] + more)
            for part in parts:
                self.assertRegex(text, part)
            self.assertEqual(screen.quit("\x03"), 130)

    def test_watch_is_drawn_anew_at_another_size(self):
        self.page()
        screen = Terminal("stat", os.getpid(), "--watch", "1h", width=0, height=0)
        screen.until("more lines")
        screen.resize(80, 80)
        screen.until(r"last flush: none[^$]*=====")
        screen.resize(50, 12)
        text = screen.until(r"[0-9]+ more lines")
        self.assertEqual(len(re.findall(rf"PID {os.getpid()}", text)), 1, text)
        screen.resize(100, 80)
        text = screen.until(r"^=====[^$]*last flush: none[^$]*=====")
        self.assertEqual((len(re.findall("live blocks", text)), text.count("more lines")), (1, 0))
        self.assertEqual(screen.quit("\x03"), 130)

    def test_the_last_picture_stays_with_the_cursor_below(self):
        page = self.page()
        screen = Terminal(command=["bash", "-c", f"'{sys.executable}' '{TOOL}' stat {os.getpid()} "
                                   "--watch 50ms; echo below"])
        screen.until("live blocks")
        os.unlink(page.path)  # still mapped: else the process has become another program
        text = screen.until("below")
        self.assertRegex(text, r"\ngpucache: PID [^$]*\nbelow")
        screen.end()

    def test_ps_leaves_empty_columns_out_where_there_is_no_room(self):
        self.page()
        for width, heads in ((120, r"LIMITS +JOB +NAME\n"), (80, r"PEAK +HITS +(JOB +)?NAME\n"),
                             (64, r"RESERVED +NAME\n")):
            screen = Terminal("ps", width=width)
            screen.until(heads)
            self.assertEqual(screen.end(), 0)

    def test_ps_says_where_there_is_none(self):
        screen = Terminal("ps")
        screen.until(r"^no process of \w+ is under libgpucache")
        self.assertEqual(screen.end(), 0)

    def test_heads_are_bold_on_a_terminal_alone(self):
        self.page()
        screen = Terminal("ps")
        self.assertEqual(screen.end(), 0)
        self.assertIn(b"\x1b[1m", screen.raw)
