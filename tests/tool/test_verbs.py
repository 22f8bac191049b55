# SPDX-License-Identifier: BSD-2-Clause
"""What verbs have in common: their arguments, their help, where they write; and what set does."""
import os
import re
import subprocess
import sys
import unittest
import unittest.mock

from fake import MIB, TOOL, pythons, text_of, tool
from test_page import Case

from gpucache import manual, options, tables, text

DONE, REFUSED = tables.PAGE_REPLY_DONE, tables.PAGE_REPLY_REFUSED


class Arguments(Case):
    def refused(self, sentence, *words):
        """With this last line, and the usage of this verb."""
        done = tool(*words)
        lines = done.err.splitlines()
        self.assertEqual((done.status, lines[-1]), (2, f"gpucache {words[0]}: error: {sentence}"))
        self.assertTrue(lines[0].startswith(f"usage: gpucache {words[0]} "), lines)

    def test_flags_may_stand_between_words(self):
        page = self.page(answer=lambda words: (DONE, 0, {"options": [
            {"name": "MAX_IDLE", "old": "none", "new": "3G"}], "gpus": [], "ns": 1}))
        done = tool("set", os.getpid(), "--json", "MAX_IDLE=3G", "MIN_FREE=1G")
        self.assertEqual((done.status, page.asked), (0, ["set MAX_IDLE=3G MIN_FREE=1G"]), done.err)
        self.assertEqual(done.json["results"][0]["changes"][0]["new"], "3G")
        done = tool("flush", os.getpid(), "--json", 4194303, "--wait", "0", 4194304)
        self.assertEqual((done.status, [r["pid"] for r in done.json["receipts"]]),
                         (1, [os.getpid(), 4194303, 4194304]))
        self.refused("x is no process id", "flush", os.getpid(), "--json", "x")

    def test_what_a_verb_does_not_know_is_told_with_its_usage(self):
        self.refused("unrecognized arguments: --bogus", "ps", "--bogus")
        self.refused("unrecognized arguments: 12", "stat", os.getpid(), "12")
        self.refused("unrecognized arguments: --bogus", "set", os.getpid(), "--bogus", "MAX_IDLE=1")
        self.refused("unrecognized arguments: --maxidle; the nearest option is --max-idle", "run",
                     "--maxidle", "1G", "true")
        for words in (("report", "x.gct", "-o"), ("trace", os.getpid(), "-o"),
                      ("metrics", "--textfile")):
            self.refused(f"argument {words[-1].replace('-o', '-o/--output')}: "
                         "the name of the file is empty", *words, "")

    def test_a_python_that_is_too_old_is_told_in_one_sentence(self):
        """Before anything is imported that such a Python may not understand."""
        project = text_of(os.path.dirname(__file__), "..", "..", "pyproject.toml")
        least = re.search(r'^requires-python = ">=(3[.](\d+))"$', project, re.MULTILINE)
        older = f"3.{int(least[2]) - 1}"
        code = "import runpy, sys; sys.version_info = (3, int(sys.argv.pop(1)), 9); " \
               "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
        for minor, status, said in (
                (int(least[2]) - 1, 1,
                 f"gpucache: it needs Python {least[1]} or newer, and this is {older}\n"),
                (int(least[2]), 2, "")):
            done = subprocess.run([sys.executable, "-c", code, str(minor), TOOL], check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stderr), (status, said))

    def test_the_help_of_run_is_short_and_has_each_kind_of_value_once(self):
        done = tool("run", "--help", COLUMNS="80")
        lines = done.out.splitlines()
        self.assertLessEqual(len(lines), 68)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertEqual(done.out.count("50% of the device"), 1)
        for row in tables.OPTIONS:
            self.assertIn(f"  {options.flag(row['env'])} {options.kind_of(row)}", done.out)

    def test_the_synopsis_of_the_man_page_fits_a_terminal(self):
        page = "\n".join(manual.page())
        synopsis = page.partition(".nf\n")[2].partition("\n.fi")[0].replace("\\-", "-")
        for line in synopsis.splitlines():
            self.assertLessEqual(len(line), 73, line)
        for word in "[--sort COLUMN]", "[--wait TIME]", "PID ... NAME=VALUE ...":
            self.assertIn(word, synopsis)
        # The page has the whole text of an option.
        self.assertIn("The rest goes back to the driver", page)

    def test_a_name_that_is_like_no_option_is_compared_with_none(self):
        self.says(tool("run", "GPUCACHE_FOO=1", "true"), 2, "there is no option GPUCACHE_FOO")
        self.says(tool("set", os.getpid(), "MEMINF=1"), 2,
                  "there is no option MEMINF; the nearest is MEMINFO")

    def test_times_that_are_too_long_are_told_so(self):
        for words, flag in (("flush", "1", "--wait"), "--wait"), (("top", "--interval"),
                                                                  "--interval"):
            self.refused(f"argument {flag}: 25h is too long: at most 24h", *words, "25h")
            self.refused(f"argument {flag}: 1d is no time: it takes 5s, 200ms, 1m or 1h", *words,
                         "1d")

    def test_top_in_json_says_what_it_could_not_use(self):
        os.chmod(self.folder, 0o777)
        with unittest.mock.patch("time.sleep", side_effect=KeyboardInterrupt):
            done = tool("top", "--json")
        self.assertEqual((done.status, done.json["complaints"]),
                         (130, [f"{self.folder} is not used: others may write to it"]))

    def test_metrics_go_to_one_place(self):
        path = self.folder + "/figures"
        for words in (("--listen", "127.0.0.1:0", "--textfile", path),
                      ("--textfile", path, "--json"),
                      ("--listen", "127.0.0.1:0", "--json")):
            self.says(tool("metrics", *words), 2,
                      "metrics takes one of --listen, --textfile and --json")
        self.assertFalse(os.path.exists(path))

    def test_the_parts_of_a_peak_have_words_that_tell_them(self):
        self.page()
        said = tool("stat", os.getpid()).out
        for words in "free in whole chunks", "free in cut chunks", "free in small blocks", \
                "time since the start":
            self.assertRegex(said, rf"\n{words} +")
        self.assertNotRegex(said, r"\n(whole|cut|small|running time) ")


class Set(Case):
    def test_old_and_new_values_and_why_not(self):
        def answer(words):
            self.assertEqual(words, "set MAX_IDLE=1G BACKING=arena")
            return REFUSED, 0, {"options": [
                {"name": "GPUCACHE_MAX_IDLE", "old": "none", "new": "1G", "note": "so it is"},
                {"name": "GPUCACHE_BACKING", "why": "it is chosen at the start"}]}
        self.page(answer=answer)
        done = tool("set", os.getpid(), "MAX_IDLE=1G", "GPUCACHE_BACKING=arena")
        self.assertEqual(done.status, 1)
        self.assertEqual(done.out, f"PID {os.getpid()}: MAX_IDLE none -> 1G (so it is)\n"
                         f"PID {os.getpid()}: BACKING is unchanged: it is chosen at the start\n")

    def test_wrong_names_and_values_ask_nothing(self):
        page = self.page(answer=lambda words: (DONE, 0, {}))
        pid = os.getpid()
        self.says(tool("set", pid, "MAX_IDEL=1G"), 2,
                  "there is no option MAX_IDEL; the nearest is MAX_IDLE")
        done = tool("set", pid, "MAX_IDLE=much")
        self.assertEqual(done.status, 2)
        self.assertIn("MAX_IDLE=much is not understood: it takes a size", done.err)
        for words in ((pid,), ("MAX_IDLE=1G",), (pid, "x"), (pid, "ONLY=a, b"),
                      (0, "MAX_IDLE=1G"), ("9" * 5000, "MAX_IDLE=1G")):
            self.assertEqual(tool("set", *words).status, 2, words)
        self.assertEqual(page.asked, [])

    def test_names_in_no_encoding_reach_the_library(self):
        page = self.page(answer=lambda words: (DONE, 0, {}))
        self.assertEqual(tool("set", os.getpid(), "LOG=debug:/tmp/\udcff").status, 0)
        self.assertEqual(page.asked, ["set LOG=debug:/tmp/\udcff"])


class Completion(Case):
    def test_a_shell_is_offered_verbs_options_and_processes(self):
        try:
            import argcomplete  # noqa: F401 # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("argcomplete is not installed")
        self.page()
        for shell, part in (("bash", "complete"), ("zsh", "#compdef"), ("fish", "function")):
            self.assertIn(part, tool("completion", shell).out)
            self.assertIn(part, tool("completion", shell, "--json").json["script"])
        target = os.path.join(self.folder, "offered")

        def offered(line):
            subprocess.run([sys.executable, TOOL], timeout=60, check=True, env={
                **os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
                "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n",
                "_ARGCOMPLETE_STDOUT_FILENAME": target})
            return text_of(target).split("\n")
        self.assertIn("flush ", offered("gpucache fl"))
        self.assertIn("--max-idle ", offered("gpucache run --max-i"))
        self.assertIn(str(os.getpid()), " ".join(offered("gpucache stat ")))
        self.assertIn("MAX_IDLE=", " ".join(offered("gpucache set MAX_I")))


    def test_without_its_package_a_shell_is_offered_nothing(self):
        script = ("import sys; sys.modules['argcomplete'] = None\nsys.path.insert(0, sys.argv[1])\n"
                  "from gpucache import cli; sys.exit(cli.main())")
        done = subprocess.run([sys.executable, "-c", script, TOOL], capture_output=True, text=True,
                              timeout=60, env={**os.environ, "_ARGCOMPLETE": "1",
                                               "COMP_LINE": "gpucache ", "COMP_POINT": "9"})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "", ""))


class Figures(unittest.TestCase):
    def test_sizes(self):
        for value, shown in ((0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"),
                             (156 * MIB, "156 MiB"), (1 << 30, "1 GiB"), ((1 << 30) - 1, "1 GiB"),
                             (5 << 40, "5 TiB"), (9 << 50, "9216 TiB"), (None, "-")):
            self.assertEqual(text.size(value), shown)
        for words, value in (("2G", 2 << 30), ("1.5g", 3 << 29), ("100", 100), ("1MiB", MIB),
                             ("3kb", 3072), ("2X", None), ("-1", None), ("1.5", None), ("", None),
                             ("99999999999T", None), ("5\u212a", None)):
            self.assertEqual(text.parse_size(words), value, words)

    def test_times(self):
        for ns, shown in ((5, "5 ns"), (11_000_000, "11 ms"), (1_500_000_000, "1.5 s"),
                          (61 * 10**9, "1 min 1 s"), (2 * 3600 * 10**9, "2 h 0 min")):
            self.assertEqual(text.duration(ns), shown)
        for words, value in (("5s", 5), ("200ms", 0.2), ("2", 2), ("1m", 60), ("x", None),
                             ("5\u017f", None)):
            self.assertEqual(text.parse_time(words), value)

    def test_sparklines(self):
        self.assertEqual(text.spark([0, 1, 2, 4, 8], 4), "▂▃▅█")
        self.assertEqual(text.spark([0, 0], 8), "▁▁")
        self.assertEqual(text.spark([], 8), "")


class Versions(unittest.TestCase):
    def test_all_pythons_from_3_8_on_read_the_package(self):
        for python in pythons():
            script = ("import sys\nsys.path.insert(0, sys.argv.pop(1))\n"
                      "import importlib, zipfile\n"
                      "for name in zipfile.ZipFile(sys.path[0]).namelist():\n"
                      "    if '/' in name and name[-3:] == '.py' and '__main__' not in name:\n"
                      "        importlib.import_module(name[:-3].replace('/', '.'))\n"
                      "from gpucache import cli\n"
                      "cli.make_parser().format_help(); sys.exit(cli.main(['ps', '--json']))")
            done = subprocess.run([python, "-c", script, TOOL], capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""), python)


class Replaced(Case):
    def test_a_process_that_became_another_program_has_ended(self):
        self.page().mapping.close()
        self.assertEqual(tool("ps", "--json").json["processes"], [])
        self.assertIn("It has ended", tool("stat", os.getpid()).out)
        self.says(tool("set", os.getpid(), "MAX_IDLE=1G"), 1, f"PID {os.getpid()}: it has ended")


class Streams(Case):
    """The tool as a program of its own, with streams that take nothing."""

    def end_of(self, words, redirection):
        self.page()
        return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirection}', TOOL, *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**os.environ, "GPUCACHE_DIR": self.folder}, check=False)

    def test_a_closed_stdout_takes_what_is_printed(self):
        for words in (("ps",), ("ps", "--json"), ("stat", str(os.getpid())), ("--help",)):
            done = self.end_of(words, ">&-")
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)

    def test_a_full_stdout_is_told_in_one_line(self):
        for words in (("ps",), ("ps", "--json"), ("stat", str(os.getpid())), ("top", "--json")):
            done = self.end_of(words, ">/dev/full")
            self.assertEqual((done.returncode, done.stderr),
                             (1, "gpucache: stdout: no space left on device\n"), words)

    def test_with_a_closed_stderr_stdout_has_no_complaints(self):
        done = self.end_of(("flush", "999999999"), "2>&-")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
