# SPDX-License-Identifier: BSD-2-Clause
"""`gpucache top`'s picture without a terminal: at all sizes, of what was recorded, in ASCII."""
import io
import json
import types
import unittest

from fake import body, pool
from terminal import Console, Two

from gpucache import chart, machine, text, top, view


class Picture(Two):
    def look(self):
        screen = top.Screen(types.SimpleNamespace(all_users=False, sort="RESERVED", no_ask=True,
                                                  interval=1.0))
        screen.look()
        return screen

    def test_on_few_rows_the_chosen_process_and_the_last_line_stay(self):
        self.two()
        screen = self.look()
        long = "PID 1: " + "what the library says of it, " * 9
        wide = "PID 1: " + "\u6f22" * 60
        for height in [*range(1, 14), 20, 24, 40, 50]:
            for width in 1, 8, 20, 40, 60, 100, 200:
                for screen.message, screen.typed in (
                        ("", None), (long, None), (wide, None), ("", "x" * 50 + "1G")):
                    lines = self.picture(screen, width, height)
                    case = f"{width}x{height}, {screen.message}, {screen.typed}\n" + \
                        "\n".join(lines)
                    self.assertLessEqual(len(lines), height, case)
                    self.assertLessEqual(max(map(len, lines)), width, case)
                    if height > 1 and width >= 20:
                        self.assertRegex("\n".join(lines), rf"(^|\n)▌ *{self.other.pid} .*5 GiB",
                                         case)
                    if height > 2 and width >= 20:
                        self.assertIn("2 processes" if height > 12 else "", lines[0], case)
                    if screen.typed:
                        self.assertTrue(lines[-1].rstrip().endswith("1G_"[-width:]), case)
                    elif height > 1 and width >= 20:
                        shown = "PID 1:" if screen.message else "q quit"
                        self.assertTrue(any(shown in line for line in lines[-height // 2 - 1:]),
                                        case)

    @staticmethod
    def picture(screen, width, height, unicode=True):
        console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
        console.print(top.render(screen.machine, width, height, screen, unicode), end="")
        return console.file.getvalue().rstrip("\n").split("\n")

    def test_why_there_is_nothing_to_show_is_told_to_its_end(self):
        screen = self.look()
        screen.machine.why = "there is no NVIDIA driver: neither libnvidia-ml.so.1 nor " \
                             "nvidia-smi is here"
        for width, height in (40, 10), (60, 14), (80, 24), (200, 24):
            lines = self.picture(screen, width, height)
            told = " ".join(" ".join(lines).split())
            self.assertIn(f"Of others nothing is known: {screen.machine.why}.", told)
            self.assertEqual(len(lines), height)
            self.assertLessEqual(max(map(len, lines)), width)
        for width in 1, 8, 30:
            for height in range(1, 8):
                lines = self.picture(screen, width, height)
                self.assertLessEqual(len(lines), height)
                self.assertLessEqual(max(map(len, lines)), width)

    def test_the_count_of_hidden_lines_stays_at_any_width(self):
        for number in range(1, 41):
            self.page(pid=number, namespace=12345)
        screen = self.look()
        for width in range(8, 120):
            lines = self.picture(screen, width, 12)
            self.assertRegex(lines[0], r"^(lines 1 to \d+ of 40|1-\d+/40)", width)

    def test_what_was_recorded_is_drawn_the_same(self):
        self.two()
        screen = self.look()
        recorded = json.loads(json.dumps(screen.machine.as_json()))
        for width, height in (80, 24), (120, 40), (200, 50):
            console = Console(width=width, height=height, file=io.StringIO())
            console.print(top.render(recorded, width, height))
            self.assertEqual(console.file.getvalue().rstrip("\n").split("\n"),
                             self.picture(screen, width, height))

    def test_without_unicode_all_is_ascii(self):
        self.two()
        screen = self.look()
        for width, height in (40, 8), (80, 24), (200, 50):
            self.assertTrue("".join(self.picture(screen, width, height, False)).isascii())
            screen.help = True
            self.assertTrue("".join(self.picture(screen, width, height, False)).isascii())
            screen.help = False

    def test_what_takes_most_of_a_gpu_comes_first(self):
        """A framework's cache, and what a process without the library has, take as much as live
        memory."""
        screen = self.look()
        its = {"user": "me", "gpu": "0", "uuid": "x", "allocs": 9, "hits": 9, "peak": 0}
        screen.machine.holders = [
            machine.Holder(key="1", pid=1, shown_pid="1", name="a", live=9 << 30, cached=0,
                           idle=0, reserved=9 << 30, **its),
            machine.Holder(key="2", pid=2, shown_pid="2", name="b", live=1 << 30, idle=0,
                           cached=19 << 30, reserved=20 << 30, **its),
            machine.Holder(key="3", pid=3, shown_pid="3", name="c", used=12 << 30,
                           note="without the library", **{**its, "allocs": None, "hits": None})]
        rows = [line[1:].split() for line in self.picture(screen, 100, 24)
                if line[:1] in "▌ " and line[1:].split()[:1] in (["1"], ["2"], ["3"])]
        self.assertEqual([row[0] for row in rows], ["2", "3", "1"])
        self.assertEqual(" ".join(rows[1][:7]), "3 0 - - - 12 GiB")

    def test_the_parts_of_all_gpus_are_told_in_one_way(self):
        """Signs stand before all of them, or before none."""
        screen = self.look()
        screen.machine.cards = [machine.Card(gpu=str(i), uuid=str(i), name="H", total=140 << 30,
                                             used=size, live=size // 7, cached=size // 7,
                                             idle=size // 7, others=size // 7)
                                for i, size in enumerate((90 << 30, 777 << 20, 0))]
        for width in range(60, 100):
            lines = [line for line in self.picture(screen, width, 24) if " idle " in line]
            self.assertEqual(len(lines), 3)
            self.assertEqual(len({"█ live" in line for line in lines}), 1, lines)
            if width >= 84:  # they say what the bar's signs mean
                self.assertTrue(all("█ live" in line and " free " in line for line in lines), lines)

    def test_of_what_has_no_figures_the_box_says_why(self):
        screen = self.look()
        for note, words in (("without the library", "It runs without the library"),
                            ("with the library, no figures", "gpucache stat 7 says why"),
                            ("", "It cannot be known whether it runs under the library"),
                            ("has ended", "It has ended, and the driver still counts its memory"),
                            ("not visible here", "another container")):
            screen.machine.holders = [machine.Holder(key="7/x", pid=7, shown_pid="7", user="me",
                                                     gpu="0", uuid="x", name="other", used=5,
                                                     note=note)]
            self.assertIn(words, "\n".join(self.picture(screen, 140, 40)), note)
            screen.press("f")
            self.assertIn("it runs without libgpucache" if "without" in note else
                          "gpucache flush 7 asks it by its signal" if "figures" in note else
                          "nothing is known of it", screen.message)

    def test_what_had_nothing_to_use_again_has_no_hit_rate(self):
        self.page(body({**pool(), "num_allocs": 64, "num_hits": 0, "live_blocks_peak": 64}))
        told = "\n".join(self.picture(self.look(), 140, 40))
        self.assertNotIn("0.0 %", told)
        self.assertIn("at most 1 GiB; 64 allocations, none of them after a free", told)

    def test_a_large_terminal_has_no_large_gap(self):
        self.two()
        screen = self.look()
        for width, height in (120, 40), (200, 50):
            empty, longest = 0, 0
            for line in self.picture(screen, width, height):
                empty = 0 if line.strip() else empty + 1
                longest = max(longest, empty)
            self.assertLessEqual(longest, 3, (width, height))

    def test_long_limits_leave_the_other_columns_whole(self):
        limits = {"GPUCACHE_MAX_RESERVED": "20G", "GPUCACHE_MAX_IDLE": "50%,0=8G,1=50%",
                  "GPUCACHE_MIN_FREE": "512M", "GPUCACHE_IDLE_TIMEOUT": "37s"}
        self.page(body(pool(), options=limits), pid=1234567, namespace=12345)
        screen = self.look()
        screen.machine.holders[0].history = [1] * 100
        for width in range(80, 180):
            lines = self.picture(screen, width, 24)
            self.assertLessEqual(max(map(len, lines)), width)
            bars = "█" * (18 if width >= 110 else 12)
            parts = ["1234567*", "32 MiB", "156 MiB", "188 MiB", bars, "trainer"]
            for part in parts + (["LIMITS", "MAX_RESERVE"] if width >= 130 else []):
                self.assertIn(part, "\n".join(lines), width)


class Lately(unittest.TestCase):
    """The columns GROWS and ALLOCS."""

    @staticmethod
    def grows(values, interval_s=1.0):
        holder = machine.Holder(history=values)
        holder.interval_s = interval_s
        return holder.grows

    def test_a_leak_grows_and_a_peak_does_not(self):
        waves = [(i % 20) << 20 for i in range(240)]
        self.assertEqual(self.grows(waves), 0)
        self.assertEqual(self.grows([w + (i << 10) for i, w in enumerate(waves)]), 60 << 10)
        self.assertEqual(self.grows([w - (i << 10) for i, w in enumerate(waves)]), -60 << 10)
        self.assertEqual(self.grows([0] * 239 + [1 << 40]), 0)
        self.assertEqual(self.grows([0, 5] * 15 + [7, 8] * 15), 7)  # of half a minute
        self.assertEqual(self.grows([i << 20 for i in range(40)], 10.0), 6 << 20)

    def test_of_a_process_that_is_new_nothing_is_said(self):
        for values in ([], [1], [1] * 29, [None] * 60, [1] * 59 + [None]):
            self.assertIsNone(self.grows(values))
        self.assertIsNone(self.grows([1] * 100, 0.1))
        self.assertEqual(self.grows([0, 120], 120.0), 60)

    def test_allocations_are_counted_between_two_states(self):
        screen = top.Screen(types.SimpleNamespace(all_users=False, sort="RESERVED", no_ask=True,
                                                  interval=1.0))

        def rate(at_s, allocs):
            holder = machine.Holder(key="1", allocs=allocs, published_unix_ns=int(at_s * 1e9))
            screen._count([holder, machine.Holder(key="2")])  # pylint: disable=protected-access
            return holder.rate
        self.assertIsNone(rate(10, 500))
        self.assertIsNone(rate(10, 500))
        self.assertEqual(rate(12, 2500), 1000)
        self.assertEqual(rate(12, 2500), 1000)  # no new state
        self.assertEqual(rate(13, 2500), 0)
        self.assertEqual(rate(14, 3), 0)  # another process with its key
        screen._count([])  # pylint: disable=protected-access
        self.assertIsNone(rate(15, 900))

    def test_they_read_at_a_glance(self):
        self.assertEqual([text.rate(value) for value in (
            None, 0, 310, 999.4, 6840, 12345, 999400, 1.2e7)],
            ["-", "0/s", "310/s", "999/s", "6.8k/s", "12k/s", "999k/s", "12M/s"])
        self.assertEqual([text.change(value) for value in (None, 0, 82 << 20, -3 << 30)],
                         ["-", "+0", "+82 MiB", "-3 GiB"])


class Signs(unittest.TestCase):
    def test_the_parts_of_a_bar_fill_it(self):
        for values in ([0, 0], [1, 0, 0], [1] * 5, [10**12, 1, 1], [3, 0, 7, 90], [1, 10**15]):
            for width in range(5, 200):
                cells = chart.shares(values, width)
                self.assertEqual(sum(cells), width if sum(values) else 0, (values, width))
                self.assertTrue(all(cell or not value for cell, value in zip(cells, values)))

    def test_a_sparkline_keeps_the_peak_between_its_columns(self):
        past = [1] * 240
        past[117] = 100
        line = chart.spark(past, 12)
        self.assertEqual((len(line), line.count("█")), (12, 1))
        self.assertEqual(chart.spark([5], 4), "   █")

    def test_each_sign_has_one_letter_of_ascii(self):
        for sign in [*chart.GLYPHS.values(), *text.BARS, "▲", "…"]:
            self.assertTrue(sign.translate(text.ASCII).isascii())
        glyphs = [sign.translate(text.ASCII) for sign in chart.GLYPHS.values()]
        self.assertEqual(len(set(glyphs)), len(glyphs))

    def test_a_chart_is_as_large_as_its_room(self):
        card = machine.Card(gpu="0", uuid="", name="", total=80 << 30, history=[
            [(i % 30) << 30, 1 << 30, 1 << 30, 1 << 30] for i in range(300)])
        for width, height in (60, 6), (120, 20), (200, 30):
            lines = chart.chart(card, width, height, 1.0)
            self.assertEqual(len(lines), height)
            for line in lines:
                self.assertLessEqual(sum(len(words) for words, _ in line), width)

    def test_the_edge_of_a_chart_is_straight(self):
        for total in 80 << 30, 140 << 30, 1000 << 30, 24 << 30, 141 << 20, (1023 << 30) + 1:
            for part in 1, 3, 9, 20:
                card = machine.Card(gpu="0", uuid="", name="", total=total,
                                    history=[[total // part, 0, 0, 0]] * 9)
                told = ["".join(words for words, _ in line)
                        for line in chart.chart(card, 80, 9, 1.0)[:-1]]
                at = {max(line.find("│"), line.find("┤")) for line in told}
                self.assertEqual(len(at), 1, told)

    def test_lines_sort_with_processes_that_have_no_figures(self):
        made = machine.Machine()
        made.holders = [machine.Holder(key="1/x", shown_pid="1*", gpu="0", name="a", used=5),
                        machine.Holder(key="2/x", pid=2, shown_pid="2", gpu="0", name="B", live=7,
                                       idle=1, allocs=2, hits=1)]
        for sort in view.SORTS:
            shown = view.View(sort)
            self.assertEqual(len(shown.lines(made)), 2)
