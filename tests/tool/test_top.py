# SPDX-License-Identifier: BSD-2-Clause
"""`gpucache top` on a terminal: what the screen shows, and what keys do."""
import os
import re
import select
import signal
import sys
import time

from fake import ALONE, TOOL, UUID, body, catches, pool, put_text, text_of, tool, wait_for
from terminal import Terminal, Two

from gpucache import fault, process, tables

# A signal comes right behind the switch to the picture's own screen or back from it, or where the
# way back begins.
SIGNAL_AT_THE_SWITCH = """
import contextlib, os, sys
sys.path.insert(0, sys.argv.pop(1))
from rich.console import Console
from gpucache import cli, page
page.PLACES = ("/proc/none",)
real = Console.set_alt_screen
def switch(console, enable=True):
    done = real(console, enable)
    if "{moment}" == ("there" if enable else "back"):
        os.kill(os.getpid(), {number})
    return done
Console.set_alt_screen = switch
real_end = contextlib.ExitStack.__exit__
def end(stack, *error):
    if "{moment}" == "end":
        os.kill(os.getpid(), {number})
    return real_end(stack, *error)
contextlib.ExitStack.__exit__ = end
sys.exit(cli.main(["top"]))
"""


class Top(Two):
    def test_the_screen(self):
        self.two()
        screen = Terminal("top", "--interval", "100ms")
        text = screen.until(r"2 processes.*\n(.*\n)*.*█████")
        lines = text.splitlines()
        self.assertRegex(lines[0], r"^2 processes, 2 GPUs of \S+ .* each 100 ms$")
        self.assertRegex(lines[1], r"^GPU 0 Simulated GPU +█+▒ +5.2 GiB of 80 GiB +6 %$")
        self.assertRegex(lines[2], r"█ live 5 GiB  ▓ cached 0 B  ▒ idle 157 MiB$")
        self.assertRegex(lines[3], r"^GPU 1 ")
        heads = next(line for line in lines if "LATELY" in line).split("  ")
        self.assertEqual([h.strip() for h in heads if h.strip()],
                         ["PID", "USER", "GPU", "LIVE", "CACHED", "IDLE", "RESERVED▼", "GROWS",
                          "ALLOCS", "HITS", "LIVE, LATELY", "MAX", "NAME"])
        rows = [line[1:].split() for line in lines if re.match(r"[ ▌] *[0-9]+ +\w+ +[01] ", line)]
        self.assertEqual([row[:5] for row in rows],
                         [[str(self.other.pid), process.user_name(os.getuid()), "0", "5", "GiB"],
                          [str(os.getpid()), process.user_name(os.getuid()), "0", "32", "MiB"],
                          [str(os.getpid()), process.user_name(os.getuid()), "1", "32", "MiB"]])
        self.assertEqual([line[0] for line in lines if re.match(r"[ ▌] *[0-9]+ +\w+ +[01] ", line)],
                         ["▌", " ", " "])
        self.assertIn("f flush  F all  l limit  s sort  r reverse  / find  ? help  q quit", text)
        # The box of the chosen process.
        self.assertRegex(text, rf"┌ {self.other.pid} ")
        self.assertIn("flush now   1 MiB back at most: 1 MiB idle and 0 B cached by packages", text)
        self.assertEqual(screen.quit(), 0)
        # The picture of before comes back, with the cursor.
        self.assertIn(b"\x1b[?1049l", screen.raw)
        self.assertEqual(screen.raw.count(b"\x1b[?1000h"), screen.raw.count(b"\x1b[?1000l"))
        self.assertIn(b"\x1b[?25h", screen.raw)

    def test_keys_sort_choose_flush_and_set(self):
        first, second = self.two()
        screen = Terminal("top", "--interval", "200ms")
        screen.until(r"RESERVED▼")
        screen.press("f")
        screen.until(rf"PID {self.other.pid} GPU 0: 156 MiB returned in 11 ms, 32 MiB live")
        self.assertRegex(second.asked[0], rf"^flush wait=\d+ gpu={UUID}$")
        screen.press("s")
        screen.until(r"LIVE▼")
        screen.press("r")
        screen.until(r"LIVE▲")
        screen.press("\x1b[B\x1b[B\x1b[A")
        screen.press("l")
        screen.until(r"MAX_IDLE, or NAME=VALUE: _")
        screen.press("9G\x7f\x7f1Gx\x7f")
        screen.until(r"NAME=VALUE: 1G_")
        screen.press("\r")
        screen.until(r"PID [0-9]+: MAX_IDLE none -> 1G")
        self.assertIn("set MAX_IDLE=1G", first.asked + second.asked)
        screen.press("lMAX_IDLE=much\r")
        screen.until(r"MAX_IDLE=much is not understood")
        screen.press("lqq\x1b")
        screen.until(r"q quit")
        self.assertEqual(screen.quit(), 0)

    def test_what_a_flush_left_undone_is_told(self):
        replies = [(tables.PAGE_REPLY_REFUSED, 0, {"error": "a capture is open"}),
                   (tables.PAGE_REPLY_PARTLY, 0, {"ns": 1, "frameworks": "late", "gpus": []})]
        page = self.page(answer=lambda words: replies[min(len(page.asked), 2) - 1])
        screen = Terminal("top", "--interval", "200ms")
        screen.until("RESERVED▼")
        screen.press("f")
        screen.until(rf"PID {os.getpid()}: a capture is open")
        screen.press("f")
        # Where the line breaks depends on the length of the pid.
        told = "its Python packages have not answered yet; their memory follows; PID " \
               f"{os.getpid()}: not all was done within 1 s"
        screen.until(told.replace(" ", r"\s+"))
        self.assertEqual(screen.quit(), 0)

    def test_processes_come_and_go(self):
        screen = Terminal("top", "--interval", "100ms", width=80)
        screen.until(r"0 processes")
        page = self.page()
        screen.until(rf"1 process,[^$]*{os.getpid()}")
        page.close()
        screen.until(r"0 processes")
        screen.press("fl\x1b[A")  # there is none to flush
        self.assertIn(screen.quit("\x03"), (0, 130))

    def test_more_processes_than_lines(self):
        for number in range(1, 61):
            self.page(pid=number, namespace=12345)
        screen = Terminal("top", "--interval", "100ms", "--sort", "PID")
        text = screen.until(r"^lines 1 to 18 of 60, 60 processes.*\n(.*\n)*.*q quit")
        self.assertRegex(text, r"\n▌ *1\*  ")
        screen.press("\x1b[B" * 20)  # down, to what was not to be seen
        text = screen.until(r"lines 4 to 21 of 60.*\n(.*\n)*▌ *21\*  (.*\n)*.*q quit")
        self.assertNotRegex(text, r"\n *[123]\*  ")
        screen.press("\x1b[6~" * 9)
        screen.until(r"lines 43 to 60 of 60.*\n(.*\n)*▌ *60\*  (.*\n)*.*q quit")
        screen.press("\x1b[A" * 18)
        screen.until(r"lines 42 to 59 of 60")
        screen.press("\x1bOQ\x1b[5~")  # F2 is no Q; page up
        screen.until(r"lines 24 to 41 of 60")
        screen.press("\x1b[H\x1b[<65;3;3M")  # home; the wheel
        screen.until(r"lines 2 to 19 of 60.*\n(.*\n)*▌ *2\*  ")
        screen.press("\x1b[<0;3;10M")  # a click on a line
        screen.until(r"▌ *6\*  ")
        self.assertEqual(screen.quit(), 0)

    def test_a_small_terminal(self):
        self.two()
        for width, height, heads in (
                (96, 24, "PID GPU LIVE CACHED IDLE RESERVED▼ GROWS HITS LIVE, LATELY MAX NAME"),
                (80, 24, "PID GPU LIVE CACHED IDLE RESERVED▼ LIVE, LATELY MAX NAME"),
                (66, 24, "PID GPU LIVE CACHED IDLE RESERVED▼ NAME"),
                (50, 9, "PID GPU LIVE IDLE RESERVED▼ NAME"), (40, 9, "PID GPU LIVE RESERVED▼"),
                (12, 3, None)):
            screen = Terminal("top", "--interval", "100ms", width=width, height=height)
            if heads:
                text = screen.until(r"q quit")
                self.assertRegex(text, r"\n *" + heads.replace(" ", " +"), text)
                self.assertIn("5 GiB", text)
            else:
                screen.until(f"{self.other.pid}")
            self.assertEqual(screen.quit(), 0)

    def test_help_filter_gpu_pause_and_interval(self):
        self.two()
        screen = Terminal("top", "--interval", "200ms", height=30)
        screen.until("q quit")
        screen.press("?")
        screen.until(r"Keys\n(.*\n)*.*flush all(.*\n)*.*Any key goes back")
        screen.press("x")
        screen.until("q quit")
        screen.press("/no such\r")
        screen.until(r"only /no such(.*\n)*No process is so")
        screen.press("/\r")
        screen.until(rf"{self.other.pid} ")
        screen.press("g")
        screen.until(r"^2 processes, only GPU 0")
        screen.press("gg")
        screen.until(r"^2 processes, 2 GPUs")
        screen.press(" ")
        screen.until("stopped, each 200 ms")
        screen.press(" +")
        screen.until(r"\d, each 100 ms")
        screen.press("Fn\rF")
        screen.until(r"flush 2 processes\? y or n: _")
        screen.press("y\r")
        screen.until(r"312 MiB returned by 2 processes")
        screen.press("\x1b[<0;25;6M")
        screen.until("q quit")
        self.assertEqual(screen.quit(), 0)

    def test_cached_memory_is_no_live_memory(self):
        page = self.page(body({**pool(), "allocated_bytes": 3 << 30, "reserved_bytes": 4 << 30,
                               "idle_bytes": 1 << 30}), answer=lambda words: None)
        page.cached = {"ns": 1, "frameworks": [
            {"name": "torch", "state": "done", "age_ns": 0,
             "gpus": [{"device": 0, "cached_bytes": 2 << 30}]}]}
        screen = Terminal("top", "--interval", "200ms")
        text = screen.until(r" 1 GiB +2 GiB +1 GiB ")
        self.assertIn("█ live 1 GiB  ▓ cached 2 GiB  ▒ idle 1 GiB", text)
        self.assertIn("3 GiB back at most: 1 GiB idle and 2 GiB cached by packages", text)
        self.assertEqual(screen.quit(), 0)

    def test_colours_are_of_the_terminal_and_can_be_left_out(self):
        self.two()
        for env, colours in ({}, True), ({"NO_COLOR": "1"}, False):
            words = " ".join(f"{name}={value}" for name, value in env.items())
            screen = Terminal(command=["sh", "-c", f"{words} exec \"$@\"", "sh", *ALONE, "top"])
            screen.until("q quit")
            self.assertEqual(screen.quit(), 0)
            self.assertEqual(bool(re.search(rb"\x1b\[(\d+;)*9?[34][0-7]m", screen.raw)), colours)
            self.assertNotRegex(screen.raw, rb"\x1b\[[0-9;]*[34]8;")  # the sixteen of the terminal

    def test_a_terminal_that_can_do_too_little_is_told_so(self):
        screen = Terminal(command=["sh", "-c", 'TERM=dumb exec "$@"', "sh", *ALONE, "top"])
        screen.until("gpucache: top needs a terminal that can place its cursor")
        self.assertEqual(screen.end(), 2)

    def test_another_size_is_drawn_at_once(self):
        self.two()
        screen = Terminal("top", "--interval", "1h", width=0, height=0)
        screen.until("live")
        screen.resize(80, 25)
        screen.until(r"2 processes[^$]*q quit")
        screen.resize(40, 5)
        text = screen.until(r"^lines 1 to 2 of 3, 2 pro.*\n *PID .*\n(.*\n)*f flush")
        self.assertIn("5 GiB", text)
        screen.resize(120, 24)
        screen.until(r"^2 processes.*\nGPU 0 .*\n(.*\n)+.*ALLOCS.*\n(.*\n)+.*q quit")
        self.assertEqual(screen.quit(), 0)

    def test_ctrl_z_and_a_signal_leave_the_terminal_as_it_was(self):
        before, during, after = (os.path.join(self.folder, n)
                                 for n in ("before", "during", "after"))
        told = os.path.join(self.folder, "pid")
        tool_words = f"'{sys.executable}' '{TOOL}' top --interval 100ms"
        screen = Terminal(command=["bash", "-c", f"""
            set -m; stty -a >'{before}'; {tool_words}; stty -a >'{during}'; jobs -p >'{told}'
            fg >/dev/null; echo "status $?"; stty -a >'{after}'"""])
        screen.until("q quit")
        screen.press("\x1a")
        self.assertTrue(wait_for(lambda: screen.feed() and os.path.exists(told)
                                 and os.path.getsize(told)))
        self.stream_until(screen, rb"\x1b\[\?1049l")
        self.stream_until(screen, rb"\x1b\[\?1049h.*\x1b\[\?1049h")
        os.kill(int(text_of(told)), signal.SIGTERM)
        screen.until("status 143")
        screen.end()
        self.assertEqual(text_of(before), text_of(during))
        self.assertEqual(text_of(before), text_of(after))
        self.assertEqual(screen.raw.count(b"\x1b[?1049l"), 2)
        self.assertEqual(screen.raw.count(b"\x1b[?1049h"), 2)

    def test_a_signal_while_the_picture_begins_or_ends_leaves_the_terminal_as_it_was(self):
        before, after = (os.path.join(self.folder, n) for n in ("before", "after"))
        for number, moment in (signal.SIGTERM, "there"), (signal.SIGHUP, "there"), \
                (signal.SIGINT, "there"), (signal.SIGTERM, "back"), (signal.SIGTERM, "end"):
            kept = os.path.join(self.folder, "code")
            put_text(kept, SIGNAL_AT_THE_SWITCH.format(number=int(number), moment=moment))
            screen = Terminal(command=["bash", "-c", f"""
                stty -a >'{before}'; '{sys.executable}' '{kept}' '{TOOL}'; echo "status $?"
                stty -a >'{after}'"""])
            if moment != "there":
                screen.until("q quit")
                screen.press("q")
            screen.until(f"status {130 if number == signal.SIGINT else 128 + number}")
            screen.end()
            self.assertEqual(text_of(before), text_of(after))
            self.assertEqual(screen.raw.count(b"\x1b[?1049l"), 1, (number, moment))
            self.assertGreater(screen.raw.rfind(b"\x1b[?25h"), screen.raw.rfind(b"\x1b[?25l"))

    def test_signals_come_to_the_main_thread_alone(self):
        """Those that wait there while the screen changes would be taken by another thread."""
        ends, seen = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}, []
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        fault.start_thread(lambda: seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))).join()
        self.assertLessEqual(ends, seen[0])
        self.assertEqual(signal.pthread_sigmask(signal.SIG_BLOCK, ()), before)

    def test_sigterm_ends_it_on_a_stopped_terminal_too(self):
        screen = Terminal("top", "--interval", "50ms")
        screen.until("q quit")
        screen.press("\x13")  # ctrl-S
        while select.select([screen.fd], [], [], 0.5)[0]:
            screen.feed()

        def ended():
            # Stopped, it does not take its handler away between the look and the signal. A signal
            # just before a write that waits is not seen: another one comes.
            os.kill(screen.pid, signal.SIGSTOP)
            wait_for(lambda: process.state(screen.pid) in ("T", "Z"))
            if catches(screen.pid, signal.SIGTERM):
                os.kill(screen.pid, signal.SIGTERM)
            os.kill(screen.pid, signal.SIGCONT)
            time.sleep(0.1)
            return [end for pid, end in [os.waitpid(screen.pid, os.WNOHANG)] if pid]
        status = wait_for(ended)
        if not status:
            os.kill(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)
        os.close(screen.fd)
        self.assertTrue(status, "it waits for the terminal")
        self.assertEqual(os.waitstatus_to_exitcode(status[0]), 143)

    def test_the_end_of_the_terminal_has_its_exit_code(self):
        self.page()
        watch = ("stat", os.getpid(), "--watch", "50ms")
        for words, shown in (("top",), "q quit"), (watch, "live"):
            screen = Terminal(*words)
            screen.until(shown)
            self.assertEqual(screen.close(), 129, words)

    @staticmethod
    def stream_until(screen, pattern):
        """Like until, of all that was sent."""
        assert wait_for(lambda: screen.feed() and re.search(pattern, screen.raw, re.DOTALL))

    def test_without_a_terminal_it_says_so(self):
        self.says(tool("top"), 2, "top needs a terminal; gpucache top --json does not")
