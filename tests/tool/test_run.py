# SPDX-License-Identifier: BSD-2-Clause
"""What `gpucache run` takes. Its flags are the library's options. Before anything starts it refuses
the values that the library's own parser does not understand."""
import ast
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

from fake import tool, well

from gpucache import options, tables
from gpucache.fault import Fault

LIBRARY, FOLDERS = os.path.realpath(sys.argv[2]), sys.argv[3]
PROGRAM = os.path.realpath(sys.argv[4])
SIZES = """0 1 2G 1.5g 512M 1.5 1b 3kb 3kib 3ib 4T 50% 100% 100.5% 12.5% 101% -1 1e3 2X none None
unlimited 0=8G,1=50% 0=8G,0=1G 0=,1 8G, ,8G 1G,2G 0=none 64=1G 63=1G 2_G .5G 5.G 1=unlimited 0x10
99999999999999999999 % G =1G
16777216T 16777215.9999999T 18446744073709551615 18446744073709551616 17179869184g
0=16777216T
99999999999999999999=1G""".split() + ["9" * 240] + ["", " 2G ", "2 G", "0 = 1G", "2 % ", "1 kb"]
SIZES += "5%b 50%B 1=5%b 5bb 1kbb 1kibb 1b% 3ki 2.0 2.0b 100.0000001% 100.000001%".split() + \
    ["5 %b", "0" * 240 + "1=1G", "0" * 254 + "1", "0" * 255 + "1", "5\u212a"]
TIMES = ["30", "0.5s", "200ms", "5m", "5min", "1h", "none", "-1", "5 s", "x", "1d", "1.s", "",
         " 7 ", "5 s,", "99999999999999h", "off", "18446744073.709551s", "18446744073.71",
         "5124095h", "5124096h", "307445734min", "307445735m", "0.0000009ms", "0" * 256,
         "5\u017f"]
CANDIDATES = {
    "BYTES": SIZES, "LIMIT": SIZES, "SECONDS": TIMES,
    "BACKING": "auto arena Segment driver or none auto,arena x".split() + ["", " auto "],
    "REUSE": "auto order READY wait or none x".split() + ["", " wait\t"],
    "TRACE_ON": "start OOM oom off none x start,oom".split() + ["", " oom "],
    "TRACE_STACKS": "0 1 8 64 65 08 000 0064 -1 8.0 off none no false x python 8,python 8,PYTHON "
                    "0,python off,python 8,python,python 8,8 python,8 8, ,python 9999999 8,off "
                    "999999999999999999999".split() + ["", " 8 ", " 8 , python ", "8 python"],
    "SWITCH": "0 1 on off yes no true false none ON 2 x on,off".split() + ["", " on "],
    "SIGNAL": "USR1 sigusr2 RTMIN rtmin+3 RTMIN+ RTMIN+-3 0 off none no false TERM 9 USR3 "
              "RTMIN+1,2 RTMIN+30 RTMIN+31 RTMIN+99999999999999999999".split()
              + ["", "RTMIN +1", "RTMIN+ 1", "RTMIN+1 ", " USR1 "],
    "EMPTY_CACHE": "1 all on oom every:5s every:0.5 every:x every: device=1 device= device=64 "
                   "keep=2G keep=50% keep=none keep= off 0 none off,1 oom,every:1h,device=0,"
                   "keep=1G x 1, every:0.1ms every:1ms every:0.9999999ms device=63 "
                   "device=99999999999999999999 keep=16777216T every:9999999h".split()
                   + ["", " oom , device=1", "device = 1", "keep= 1G", "every: 5s"],
    "PARK": "ask off 0 none idle:5s idle:0.5 lend:5s lend:1 lend:0.9s idle:x idle: idle:0.1ms "
            "idle:1m,lend:5m ask,idle:1h off,ask x lend:1s,off ASK idle:9999999h retain:1G "
            "retain: retain:0 retain:none retain:10% Retain:2.5g,idle:1s off,retain:1G "
            "retain:16777216T".split()
            + ["", " ask , lend:2", "idle: 5s", "idle :5s", "retain: 1G", "retain:1 G"],
    "STATS": "off none exit exit-json exit:/tmp/none/x EXIT-JSON:/tmp/none/y exit: exitx json 0 "
             "no".split() + ["", " exit", "exit "],
    "LOG": "off error warn warning info debug 0 none debug: loud warn:/tmp/none/x no".split()
           + ["", " warn"],
    "PATH": ["/tmp/none/x", "none", "x", "", " "],
    "PATTERN": ["/tmp/none/x", "none", "x", "", " ", "%"],
    "DIR": ["/tmp/none/x", "none", "x", "", " "],
    "PLACE": ["host", "HOST", " host ", "/tmp/none/x", "/", "x", "./x", "none", "", " ", " /tmp",
              "/" + "x" * 254, "/" + "x" * 255, "hosts"],
    "GLOBS": ["ends", "a*,b?", "none", "", "a,,b", ",", " a , b ", "x" * 255, "x" * 300, "None",
              "\u00e9" * 200, "\udcff"],
}


def the_library_takes(values):
    """env -> bool, of {env: value}: which of them one process under the library understands."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUCACHE")}
    env.update(values, LD_PRELOAD=LIBRARY, LD_LIBRARY_PATH=FOLDERS)
    done = subprocess.run([PROGRAM, "exit"], capture_output=True, text=True, timeout=60, env=env,
                          errors="replace")
    refused = re.findall(r"gpucache: warning: (\w+)=.* is not understood", done.stderr)
    return {name: name not in refused for name in values}


class Values(unittest.TestCase):
    def test_the_tool_understands_what_the_library_does(self):
        rows = [row for row in tables.OPTIONS if row["env"] not in ("GPUCACHE", "GPUCACHE_LOG",
                                                                    "GPUCACHE_ONLY",
                                                                    "GPUCACHE_SKIP")]
        lists = {row["env"]: CANDIDATES[row["type"]] for row in rows}
        rounds = [{env: values[i] for env, values in lists.items() if i < len(values)}
                  for i in range(max(map(len, lists.values())))]
        # These may keep the library out, or its warnings away: one at a time, the rest unset.
        rounds += [{"GPUCACHE": value} for value in CANDIDATES["SWITCH"]
                   if value.lower() not in ("0", "off", "no", "none", "false")]
        rounds += [{"GPUCACHE_LOG": value} for value in CANDIDATES["LOG"]
                   if value.lower() not in ("0", "off", "none", "error")]
        rounds += [{"GPUCACHE_SKIP": value} for value in CANDIDATES["GLOBS"] if value != "ends"]
        compared = 0
        for values in rounds:
            said = the_library_takes(values)
            for env, value in values.items():
                try:
                    options.checked(env, value)
                    mine = True
                except Fault:
                    mine = False
                compared += 1
                with self.subTest(f"{env}={value!r}"):
                    self.assertEqual(mine, said[env])
        self.assertGreater(compared, 300)

    def test_numbers_without_end_are_refused(self):
        for words in (("run", "MAX_IDLE=" + "9" * 5000, "false"),
                      ("run", "MAX_IDLE=" + "9" * 5000 + "=1G", "false"),
                      ("run", "MAX_IDLE=" + "0" * 5000 + "1=1G", "false"),
                      ("set", 1, "IDLE_TIMEOUT=" + "9" * 5000),
                      ("metrics", "--listen", ":" + "9" * 5000),
                      ("flush", 1, "--keep", "9" * 5000), ("flush", 1, "--wait", "9" * 5000)):
            self.assertEqual(tool(*words).status, 2, words[:2])

    def test_what_is_no_time_to_record_for_is_refused(self):
        for words in "0", "-1", "nan", "inf", "1e400", "", "-0.0", "x", "9" * 5000:
            done = tool("trace", 1, f"--seconds={words}")
            self.assertEqual((done.status, done.out), (2, ""), words[:9])
            self.assertIn("is no number of seconds", done.err)

    def test_an_empty_word_is_not_an_option_left_out(self):
        for words in (("flush", 1, "--gpu="), ("park", 1, "--gpu= "), ("wake", 1, "--gpu="),
                      ("metrics", "--listen="), ("plan", "--gpu=0", "x")):
            done = tool(*words)
            self.assertEqual((done.status, done.out), (2, ""), words)

    def test_defaults_are_values(self):
        for row in tables.OPTIONS:
            options.checked(row["env"], row["default"])


class Run(unittest.TestCase):
    def environment(self, *words):
        done = well("run", "--json", *words)
        return done.json

    def test_every_option_is_a_flag(self):
        for row in tables.OPTIONS:
            value = row["default"] or "/x"
            found = self.environment(options.flag(row["env"]), value, "--", "true")
            self.assertEqual(found["environment"][row["env"]], value)
            self.assertEqual(found["command"], ["true"])

    def test_assignments_without_prefix_are_options_only_if_there_is_one(self):
        found = self.environment("CUDA_VISIBLE_DEVICES=0", "MAX_IDLE=2G", "GPUCACHE_LOG=debug",
                                 "GPUCACHE=1", "max_idle=x", "--", "prog", "A=b")
        self.assertEqual({k: v for k, v in found["environment"].items() if k != "LD_PRELOAD"},
                         {"CUDA_VISIBLE_DEVICES": "0", "GPUCACHE_MAX_IDLE": "2G",
                          "GPUCACHE_LOG": "debug", "GPUCACHE": "1", "max_idle": "x"})
        self.assertEqual(found["command"], ["prog", "A=b"])

    def test_a_variable_that_looks_like_an_option_is_set_and_told(self):
        told = "gpucache: MAX_IDEL is no option: it is set as a variable of the command; " \
               "was MAX_IDLE meant?\n"
        for name, err in (("MAX_IDEL", told), ("MAX_JOBS", ""), ("LOGDIR", ""),
                          ("TMPDIR", ""), ("CUDA_VISIBLE_DEVICES", ""), ("max_idel", "")):
            done = tool("run", "--json", name + "=1", "--", "true")
            self.assertEqual((done.status, done.err), (0, err))
            self.assertEqual(done.json["environment"][name], "1")

    def test_names_of_files_are_from_where_run_is_called(self):
        """The program may change its folder before the library makes them absolute."""
        with tempfile.TemporaryDirectory() as top:
            here = os.path.join(os.path.realpath(top), "p%p")
            os.mkdir(here)
            given = {"LOG": "debug:l.log", "STATS": "exit-json:s", "EMPTY_CACHE_FILE": "e",
                     "DIR": "d", "TRACE": "t-%p.gct"}
            words = [f"{name}={value}" for name, value in given.items()]
            folder = os.getcwd()
            self.addCleanup(os.chdir, folder)
            os.chdir(here)
            found = self.environment(*words, "true")["environment"]
            none = self.environment("TRACE= none", "true")["environment"]["GPUCACHE_TRACE"]
            os.chdir(folder)
        twice = here.replace("%", "%%")
        self.assertEqual([found["GPUCACHE_" + name] for name in given],
                         [f"debug:{twice}/l.log", f"exit-json:{twice}/s", f"{here}/e",
                          f"{here}/d", f"{twice}/t-%p.gct"])
        self.assertEqual(none, " none")

    def test_the_commands_own_flags_stay_its_own(self):
        found = self.environment("--max-idle", "1G", "prog", "--json", "--max-idle", "3G")
        self.assertEqual(found["command"], ["prog", "--json", "--max-idle", "3G"])
        self.assertEqual(found["environment"]["GPUCACHE_MAX_IDLE"], "1G")

    def test_nothing_starts_with_a_wrong_name_or_value(self):
        for words, sentence in (
                (("--max-idle", "much", "--", "false"), "MAX_IDLE=much is not understood"),
                (("MAX_IDLE=much", "false"), "MAX_IDLE=much is not understood"),
                (("GPUCACHE_MAX_IDEL=1G", "false"), "there is no option GPUCACHE_MAX_IDEL; the "
                                                    "nearest is MAX_IDLE"),
                (("A=b", "--max-idle", "1G", "false"), "--max-idle: flags of run stand before "
                 "words NAME=VALUE, and -- before a command that begins with a dash"),
                (("MAX_IDLE=1G",), "run needs a command")):
            done = tool("run", *words)
            self.assertEqual(done.status, 2)
            self.assertIn(sentence, done.err)
        self.assertEqual(tool("run", "--max-idel", "1G", "true").status, 2)


class Place(unittest.TestCase):
    def test_a_library_that_the_loader_cannot_name(self):
        for name in "/a b/libgpucache.so", "/a:b/libgpucache.so":
            with unittest.mock.patch("gpucache.library.path", lambda name=name: name):
                done = tool("run", "--json", "--", "true")
            self.assertEqual((done.status, done.out), (1, ""))
            self.assertEqual(done.err, f"gpucache: the loader cannot preload {name}: its path has "
                             "a blank or a colon\n")


class Source(unittest.TestCase):
    def test_it_is_written_for_python_3_8(self):
        with zipfile.ZipFile(sys.argv[1]) as archive:
            names = archive.namelist()
            self.assertIn("gpucache/top.py", names)
            for name in filter(lambda name: name.endswith(".py"), names):
                ast.parse(archive.read(name), name, feature_version=(3, 8))
        with self.assertRaises(SyntaxError):
            ast.parse("match x:\n    case 1: pass", feature_version=(3, 8))
