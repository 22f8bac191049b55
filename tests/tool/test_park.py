# SPDX-License-Identifier: BSD-2-Clause
"""gpucache park and wake: what they ask for, their receipts, and what ps, top, stat and metrics
show of a parked process."""
import json
import os
import signal
import subprocess
import threading
import time
import types
import unittest.mock

from fake import ALONE, MIB, UUID, UUID_B, body, map_page, pool, tool, wait_for
from test_page import USER, Case

from gpucache import host, picture, tables, top

DONE, PARTLY = tables.PAGE_REPLY_DONE, tables.PAGE_REPLY_PARTLY
REFUSED, BAD = tables.PAGE_REPLY_REFUSED, tables.PAGE_REPLY_BAD
ME = f"PID {os.getpid()}"


def parked(stays=(), **figures):
    its_gpu = {"uuid": UUID, "device": 0, "parked_bytes": 188 * MIB, "live_bytes": 32 * MIB,
               "away_bytes": 188 * MIB, "stays": [{"what": what, "bytes": size}
                                                  for what, size in stays], **figures}
    return {"ns": 11_000_000, "state": "parked", "to": "host", "gpus": [its_gpu]}


def sleeper(state="parked", **more):
    """What the page of a parked process says."""
    told = {"state": state, "since_unix_ns": time.time_ns() - 720 * 10**9,
            "needs_bytes": 14 << 30, **more}
    return body(pool(away_bytes=128 * MIB), park=told)


class Asked(Case):
    def serve(self, code=DONE, reply=None, value=188 * MIB, **more):
        return self.page(answer=lambda words: (code, value, parked() if reply is None else reply),
                         **more)

    def told(self, verb, code, reply, value=0):
        """What the tool says of a reply."""
        page = self.serve(code, reply, value)
        done = tool(verb, os.getpid())
        page.close()
        return done.status, done.out, done.err

    def test_receipts(self):
        """The words of each reply, and the exit code."""
        exposed = (("exposed", 8 * MIB), ("stream-ordered", 2 * MIB), ("new", MIB))
        for verb, code, reply, value, status, out, err in (
                ("park", DONE, parked(), 188 * MIB, 0,
                 " GPU 0: 188 MiB parked in 11 ms, 32 MiB of it live", ""),
                ("park", DONE, parked(copied_bytes=2 * MIB), 188 * MIB, 0,
                 " GPU 0: 188 MiB parked in 11 ms, 32 MiB of it live, 2 MiB of that copied", ""),
                ("park", DONE, parked(copied_bytes=32 * MIB), 188 * MIB, 0,
                 " GPU 0: 188 MiB parked in 11 ms, 32 MiB of it live", ""),
                ("park", DONE, {**parked(), "to": "/scratch"}, 188 * MIB, 0,
                 " GPU 0: 188 MiB parked in 11 ms, 32 MiB of it live, in /scratch", ""),
                ("park", DONE, parked(parked_bytes=0), 0, 0,
                 " GPU 0: nothing to park; 188 MiB parked in all", ""),
                ("park", DONE, parked((("kept", MIB),)), 188 * MIB, 0,
                 " GPU 0: 188 MiB parked in 11 ms, 32 MiB of it live; 1 MiB kept stay on the GPU",
                 ""),
                ("park", PARTLY, parked(exposed), 188 * MIB, 1,
                 " GPU 0: 188 MiB parked in 11 ms, 32 MiB of it live; 8 MiB known to other "
                 "processes or devices, 2 MiB in the driver's own pools, 1 MiB new stay on the GPU",
                 ": not all is parked: 8 MiB known to other processes or devices, 2 MiB in the "
                 "driver's own pools, 1 MiB new"),
                ("park", DONE, {"state": "used"}, 0, 0,
                 ": left out: it used the GPU within the last 2 s", ""),
                ("park", DONE, {"state": "parked", "gpus": []}, 0, 0,
                 ": it has no memory on a GPU", ""),
                ("park", DONE, {"state": "parked", "gpus": [], "whole": True, "whole_bytes": MIB},
                 0, 0, ": off the GPU as a whole, 1 MiB more; it wakes by itself only at calls of "
                 "the library's tables", ""),
                ("park", DONE, {"state": "parked", "gpus": [], "whole": True, "whole_bytes": 0},
                 0, 0, ": off the GPU as a whole; it wakes by itself only at calls of the "
                 "library's tables", ""),
                ("park", PARTLY, {"state": "parked", "gpus": [], "why": "it is late"}, 0, 1, "",
                 ": not all is parked: it is late"),
                ("park", REFUSED, {"state": "refused", "why": "GPU work still runs"}, 0, 1, "",
                 ": GPU work still runs"),
                ("park", REFUSED, {"error": "the process leaves"}, 0, 1, "",
                 ": the process leaves"),
                ("park", REFUSED, {}, 0, 1, "", ": it does not say why"),
                ("park", BAD, {"error": 'no verb "park"'}, 0, 1, "", ': no verb "park"'),
                ("wake", DONE, {"ns": 600_000_000, "state": "woken"}, 128 * MIB, 0,
                 ": 128 MiB back in 600 ms", ""),
                ("wake", DONE, {"ns": 0, "state": "woken"}, 0, 0, ": it was not parked", ""),
                ("wake", REFUSED, {"state": "refused", "why": "14 GiB of GPU 0 are missing"}, 0, 1,
                 "", ": 14 GiB of GPU 0 are missing")):
            self.assertEqual(self.told(verb, code, reply, value), (
                status, f"{ME}{out}\n" if out else "", f"gpucache: {ME}{err}\n" if err else ""))

    def test_a_process_as_a_whole(self):
        """Off the GPU with its context, or not, and why."""
        reply = {**parked(), "whole": True, "whole_bytes": 500 * MIB, "wakes": "only at .."}
        page = self.serve(DONE, reply)
        done = tool("park", os.getpid(), "--whole")
        self.assertEqual(page.asked, ["park wait=1000 whole=1"])
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn(f"{ME}: off the GPU as a whole, 500 MiB more; it wakes by itself only at "
                      "calls of the library's tables\n", done.out)
        receipt, = tool("park", os.getpid(), "--whole", "--json").json["receipts"]
        self.assertEqual((receipt["whole"], receipt["whole_bytes"]), (True, 500 * MIB))
        page.close()
        why = "the driver does not lock the process: error 600"
        self.assertEqual(self.told("park", PARTLY, {**parked(), "why": why}, 188 * MIB)[2],
                         f"gpucache: {ME}: not all is parked: {why}\n")

    def test_a_driver_with_which_machines_hang(self):
        """Who takes a process off the GPU as a whole learns it first."""
        page = self.serve(DONE, {**parked(), "whole": True, "whole_bytes": 0})
        for version, words, hangs in (("595.71.05", ["--whole"], True), ("595.71.05", [], False),
                                      ("580.159.04", ["--whole"], False), ("", ["--whole"], False)):
            with unittest.mock.patch.object(host, "driver_version", lambda value=version: value):
                done = tool("park", os.getpid(), *words)
            self.assertEqual(done.status, 0)
            self.assertEqual("driver 595.71.05: " in done.err and "again before you end it" in
                             done.err, hangs, (version, words, done.err))
        page.close()

    def test_whole_processes_go_one_after_another(self):
        """Each looks at what is free before and behind its checkpoint."""
        under_way, most = [], 0

        def answer(_):
            nonlocal most
            under_way.append(1)
            most = max(most, len(under_way))
            time.sleep(0.1)
            under_way.pop()
            return DONE, 188 * MIB, parked()
        pids = []
        for _ in range(3):
            child, its = self.sleeper()
            map_page(child, self.page(answer=answer, **its))
            pids.append(child.pid)
        for options, at_once in ((["--whole"], 1), ([], 3)):
            most = 0
            self.assertEqual(tool("park", *pids, *options).status, 0)
            self.assertEqual(most, at_once, options)

    def test_one_that_hangs_costs_the_others_no_time(self):
        held = threading.Event()

        def hang(_=None):
            return DONE, 0, parked() if held.wait(40) else {}
        self.page(answer=hang).look = hang
        child, its = self.sleeper()

        def answer(_):
            held.set()  # only the other's turn ends the hanging
            return DONE, 188 * MIB, parked()
        map_page(child, self.page(answer=answer, **its))
        begun = time.monotonic()
        self.assertEqual(tool("park", "--whole", os.getpid(), child.pid).status, 0)
        self.assertLess(time.monotonic() - begun, 30)

    def test_who_ends_the_tool_reads_what_goes_on(self):
        """Of the other nothing has begun: it waits for its turn."""
        child, its = self.sleeper()
        pages = [self.page(answer=lambda words: None, **more) for more in (its, {})]
        map_page(child, pages[0])
        # pylint: disable-next=consider-using-with
        asker = subprocess.Popen([*ALONE, "park", "--whole", *[str(p.pid) for p in pages]],
                                 stderr=subprocess.PIPE, text=True)
        begun = wait_for(lambda: [page.pid for page in pages if page.asked])
        time.sleep(0.2)
        asker.send_signal(signal.SIGINT)
        self.assertEqual((asker.communicate(timeout=60)[1], asker.returncode), (
            f"gpucache: interrupted: what PID {begun[0]} has begun goes on\n", 130))

    def test_a_whole_process_without_memory_in_arenas_is_parked(self):
        page = self.serve(DONE, {"ns": 1, "state": "woken"}, text=sleeper())
        nothing = body(pool(), park={"state": "parked", "since_unix_ns": time.time_ns() - 10**9,
                                     "needs_bytes": 0, "whole": True})
        page.publish(nothing)
        self.assertRegex(tool("ps").out, r"parked [^,]*, off the GPU")
        self.assertEqual((tool("wake", "--all").status, page.asked), (0, ["wake"]))

    def test_json(self):
        self.serve(PARTLY, {**parked((("exposed", 8 * MIB),)), "to": "/x", "room_ns": 5})
        done = tool("park", os.getpid(), "--json")
        receipt, = done.json["receipts"]
        self.assertEqual((receipt["to"], receipt["room_ns"]), ("/x", 5))
        self.assertEqual((done.status, done.json["bytes"], receipt["status"], receipt["state"],
                          receipt["gpus"][0]["stays"]),
                         (1, 188 * MIB, "partly", "parked", [{"what": "exposed",
                                                              "bytes": 8 * MIB}]))

    def test_it_asks_for_what_the_arguments_say(self):
        page = self.serve(text=body(pool(), pool(1, UUID_B)))
        for words, asked in (((), "wait=1000"), (("--wait", "0"), "wait=0"),
                             (("--gpu", "1"), f"wait=1000 gpu={UUID_B}"),
                             (("--keep", "2G"), f"wait=1000 keep={2 << 30}"),
                             (("--to", "host"), "wait=1000 to=host"),
                             (("--to", "/var/tmp/"), "wait=1000 to=/var/tmp"),
                             (("--to", "."), f"wait=1000 to={os.getcwd()}"),
                             (("--no-frameworks",), "wait=1000 frameworks=0")):
            self.assertEqual(tool("park", os.getpid(), *words).status, 0)
            self.assertEqual(page.asked[-1], f"park {asked}")
        for words in ("trainer",), ("train*", os.getpid()), (os.getpid(), "--json", "trainer"):
            asked = len(page.asked)
            self.assertEqual(tool("park", *words).status, 0)
            self.assertEqual(page.asked[asked:], ["park wait=1000"], words)
        tool("park", "--all")
        self.assertEqual(page.asked[-1], "park wait=1000 unused=2000")
        tool("wake", "trainer")
        self.assertEqual(page.asked[-1], "wake")

    def test_wake_all_asks_those_that_are_parked(self):
        page = self.serve(DONE, {"ns": 1, "state": "woken"})
        self.says(tool("wake", "--all"), 1, f"no process of {USER} is parked")
        self.assertEqual((tool("wake", "--all", "--drop").status, page.asked),
                         (0, ["wake drop=1"]))
        page.publish(sleeper())
        self.assertEqual((tool("wake", "--all").status, page.asked[1:]), (0, ["wake"]))

    def test_a_drop_says_what_was_freed(self):
        none = "the host kept no copy of its memory"
        for value, dropped, back in ((0, {}, f"it was not parked; {none}"),
                                     (128 * MIB, {}, f"128 MiB back in 600 ms; {none}"),
                                     (0, {"dropped_bytes": 96 * MIB}, "it was not parked; "
                                      "96 MiB of its copies on the host are freed")):
            page = self.serve(DONE, {"ns": 600_000_000, "state": "woken", **dropped}, value)
            said = [tool("wake", os.getpid(), *words).out for words in (["--drop"], [])]
            self.assertEqual(said, [f"{ME}: {back}\n", f"{ME}: {back.partition(';')[0]}\n"])
            page.close()

    def test_what_cannot_be_asked(self):
        """One sentence and the exit code."""
        page = self.serve(text=body(pool()))
        for words, status, sentence in (
                ((4194303,), 1, "PID 4194303: no such process"),
                ((1 << 40,), 2, f"{1 << 40} is no process id"),
                (("nosuch*",), 1, f"no process of {USER} whose name matches nosuch*"),
                ((os.getpid(), "--gpu", "7"), 1, f"{ME}: it has no memory on GPU 7"),
                ((os.getpid(), "--all"), 2, "give process ids and names, or --all: not both"),
                ((), 2, None)):
            for verb in "park", "wake":
                self.says(tool(verb, *words), status,
                          sentence or f"{verb} needs process ids, names or --all")
        off = "--whole takes the process off each GPU with all it has: leave --"
        for words, sentence in ((("--whole", "--gpu", "0"), f"{off}gpu out"),
                                (("--whole", "--keep", "1M"), f"{off}keep out"),
                                (("--wait", "11s"), "--wait is 10s at most")):
            self.says(tool("park", os.getpid(), *words), 2, sentence)
        self.assertEqual(page.asked, [])
        older = body(pool())
        for name in "GPUCACHE_PARK", "GPUCACHE_PARK_WAIT":
            older["options"].pop(name)
        page.publish(older)
        self.says(tool("park", os.getpid()), 1, f"{ME}: its library is older, and cannot park")
        page.close()
        self.says(tool("park", os.getpid()), 1, f"{ME}: it runs without libgpucache")
        page = self.page(version=99)
        self.assertEqual(tool("wake", os.getpid()).status, 1)
        for words in (("--keep", "2X"), ("--wait", "soon"), ("--keep",), ("--to", "/a b"),
                      ("--to", ""), ("--to", "/" + "x" * 255)):
            self.assertEqual(tool("park", os.getpid(), *words).status, 2, words)

    def test_a_reply_without_sense_is_no_crash(self):
        for reply in ({}, {"gpus": 3}, {"state": "parked", "gpus": [1, {"stays": [2, {}]}]}, [], 4):
            for verb, code in ("park", DONE), ("park", PARTLY), ("wake", REFUSED):
                status, _, err = self.told(verb, code, reply)
                self.assertEqual(status, code != DONE, err)


class Shown(Case):
    def test_ps_has_a_column_where_one_is_parked(self):
        page = self.page()
        self.assertNotIn("PARKED", tool("ps").out)
        for state, note in (("parked", "parked 12min"), ("waking", "waking"),
                            ("waits", "waits for 14 GiB")):
            page.publish(sleeper(state))
            lines = tool("ps").out.splitlines()
            self.assertIn("RESERVED   PARKED", lines[-2])
            # Live stays what the program holds, reserved is device memory.
            self.assertRegex(lines[-1], r"32 MiB .* 60 MiB +128 MiB +1 GiB .*trainer "
                             rf"\({note}\)$")
            self.assertIn(f"GPU memory: {note}\n", tool("stat", os.getpid()).out)
        self.assertEqual(tool("ps", "--json").json["processes"][0]["park"], "waits for 14 GiB")

    def test_a_page_may_say_anything(self):
        page = self.page()
        for park in 3, [], {}, {"state": []}, {"state": "parked", "since_unix_ns": -1}, \
                {"state": "parked", "since_unix_ns": 1 << 63}:
            page.publish({**sleeper(), "park": park})
            self.assertIn("(parked)", tool("ps").out, park)

    def test_top_has_it_too(self):
        page = self.page()
        for shows in False, True:
            page.publish(sleeper() if shows else body(pool()))
            screen = top.Screen(types.SimpleNamespace(all_users=False, sort="LIVE", no_ask=True,
                                                      interval=1.0))
            screen.look()
            words = picture.render(screen.machine, 160, 24, screen).plain
            self.assertEqual(("PARKED" in words, "128 MiB" in words, "(parked 12min)" in words),
                             (shows,) * 3, words)
            # What is on the host takes no part of the GPU's bar.
            self.assertEqual(screen.machine.cards[0].live, (0 if shows else 32) * MIB)

    def test_metrics_and_stat_count_it(self):
        told = sleeper()
        told["counters"]["wake_ns"] = 1_500_000_000
        self.page(told)
        out = tool("metrics").out
        self.assertRegex(out, r"(?m)^gpucache_away_bytes\{.*\} 1\.34217728e\+08$")
        self.assertRegex(out, r"(?m)^gpucache_wake_seconds_total\{.*\} 1\.5$")
        self.assertRegex(tool("stat", os.getpid()).out, r"(?m)^wake time +1\.5 s$")
        json.dumps(tool("stat", os.getpid(), "--json").json)
