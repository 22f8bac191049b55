# SPDX-License-Identifier: BSD-2-Clause
"""gpucache flush: what it asks for, its receipts, and what ends it."""
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

from fake import (ALONE, MIB, TOOL, UUID, UUID_B, body, flushed, pool, put_text, tool, wait_for,
                  well)
from test_page import USER, Case

from gpucache import ask as ask_module
from gpucache import process, tables

DONE, PARTLY = tables.PAGE_REPLY_DONE, tables.PAGE_REPLY_PARTLY
REFUSED = tables.PAGE_REPLY_REFUSED


class Flush(Case):
    def serve(self, code=DONE, value=156 * MIB, reply=None, **more):
        return self.page(answer=lambda words: (code, value, flushed() if reply is None else reply),
                         **more)

    def test_the_receipt(self):
        self.serve()
        done = well("flush", os.getpid())
        self.assertEqual(done.out, f"PID {os.getpid()} GPU 0: 156 MiB returned in 11 ms, "
                                   "32 MiB live\n")

    def test_the_receipt_says_what_keeps_the_rest(self):
        self.serve(reply={**flushed(idle_bytes=30 * MIB, pending_bytes=8 * MIB,
                                    partly_live_bytes=20 * MIB),
                          "frameworks": [{"name": "torch", "returned_bytes": 5 * MIB,
                                          "ns": 2_000_000, "state": "done"},
                                         {"name": "cupy", "returned_bytes": 0, "state": "absent"},
                                         {"name": "rmm", "returned_bytes": 0, "state": "done"},
                                         {"name": "numba", "state": "late"}]})
        done = tool("flush", os.getpid(), "--wait", "0")
        self.says(done, 1, f"PID {os.getpid()}: not all was done within 0 s: 8 MiB wait for GPU "
                           "work")
        lines = done.out.splitlines()
        self.assertTrue(lines[0].endswith("32 MiB live; 8 MiB wait for GPU work, 20 MiB idle "
                                          "beside live blocks, 10 MiB kept"), lines)
        self.assertEqual(lines[1:], [f"PID {os.getpid()}: torch gave up 5 MiB in 2 ms",
                                     f"PID {os.getpid()}: rmm: it had nothing to give back",
                                     f"PID {os.getpid()}: numba: it has not answered yet; its "
                                     "memory follows"])

    @staticmethod
    def late():
        return PARTLY, 0, {**flushed(returned_bytes=0), "frameworks": "late"}

    @staticmethod
    def late_before():
        """Of an older library, which knew no word for all of them."""
        return DONE, 0, {**flushed(returned_bytes=0), "frameworks": [
            {"name": name, "state": "late", "returned_bytes": 0, "ns": 0}
            for name in ("torch", "cupy", "numba", "rmm")]}

    def test_it_is_done_when_the_packages_have_answered(self):
        for late in self.late, self.late_before:
            self.they_answer_after(late, "look")

    def test_what_goes_back_before_the_tool_looks_counts(self):
        """The packages answer as soon as the first reply has been made."""
        self.they_answer_after(self.late, "flush")

    def they_answer_after(self, late, when):
        """What their memory makes idle goes back by a flush of the library's own: at once (when:
        flush), or before the second look."""
        told = {"flush": 0}

        def publish():
            state = body(pool(flushed_bytes=167 * MIB))
            state["counters"]["torch_returned_bytes"] = 160 * MIB + 3
            page.publish(state)

        def answer(_):
            told["flush"] += 1
            if when == "flush":
                publish()
            if told["flush"] == 1:
                return late()
            page.look = publish
            return DONE, 0, {**flushed(returned_bytes=0),
                             "frameworks": [{"name": "torch", "state": "idle"}]}
        page = self.page(body(pool(flushed_bytes=7 * MIB)), answer=answer)
        done = well("flush", os.getpid())
        self.assertRegex(done.out, rf"^PID {os.getpid()} GPU 0: 160 MiB returned in .*, 32 MiB live"
                         rf"\nPID {os.getpid()}: torch gave up 160 MiB"
                         rf"\nPID {os.getpid()}: its Python packages answered late: what other "
                         r"flushes gave back meanwhile is counted too\n$")
        page.close()

    def test_two_that_wait_for_one_package_say_that_they_count_the_same(self):
        """The library knows of no request whose memory it was."""
        asked = set()

        def publish():
            page.publish(body(pool(flushed_bytes=160 * MIB)))

        def answer(words):
            late = len(asked) < 2  # at least once for each of them
            asked.add(words.rpartition("keep=")[2])
            if late:
                return self.late()
            page.look = publish
            return DONE, 0, {**flushed(returned_bytes=0), "frameworks": []}
        page = self.page(body(pool(flushed_bytes=0)), answer=answer)
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            receipts = list(both.map(self.from_outside, ("1", "2")))
        for receipt in receipts:
            self.assertEqual((receipt["returned_bytes"], receipt["status"],
                              receipt["all_flushes"]), (160 * MIB, "done", True))

    def from_outside(self, keep):
        """The receipt of a flush of this process, by a tool of its own."""
        done = subprocess.run([*ALONE, "flush", str(os.getpid()), "--json", "--wait", "60s",
                               "--keep", keep], capture_output=True, text=True, timeout=90)
        return json.loads(done.stdout)["receipts"][0]

    def test_a_receipt_without_late_packages_counts_its_own_flush_alone(self):
        page = self.serve(text=body(pool(flushed_bytes=0)))
        page.look = lambda: page.publish(body(pool(flushed_bytes=500 * MIB)))
        receipt, = tool("flush", os.getpid(), "--json").json["receipts"]
        self.assertEqual((receipt["returned_bytes"], receipt["all_flushes"]), (156 * MIB, False))

    def test_it_is_not_done_while_packages_have_not_answered(self):
        for late in self.late, self.late_before:
            page = self.page(
                # pylint: disable-next=cell-var-from-loop
                answer=lambda words: late())
            done = tool("flush", os.getpid(), "--wait", "300ms")
            self.says(done, 1, f"PID {os.getpid()}: not all was done within 0.3 s")
            self.assertEqual(done.out.splitlines()[1:], [f"PID {os.getpid()}: its Python packages "
                             "have not answered yet; their memory follows"])
            # One question in 0.1 s: what is to come is not asked for without a pause.
            self.assertLessEqual(len(page.asked), 4)
            page.close()

    def test_json_of_packages_that_have_not_answered(self):
        self.page(answer=lambda words: self.late())
        receipt, = tool("flush", os.getpid(), "--wait", "0", "--json").json["receipts"]
        self.assertEqual((receipt["status"], receipt["frameworks"]),
                         ("partly", [{"state": "late"}]))

    def test_a_package_that_could_not_empty_its_cache_is_not_done(self):
        for name, status in ("failed", 1), ("keeps", 0):
            page = self.serve(reply={**flushed(), "frameworks": [
                {"name": "torch", "state": name, "returned_bytes": 0}]})
            done = tool("flush", os.getpid())
            self.assertEqual(done.status, status)
            self.assertEqual(done.err, f"gpucache: PID {os.getpid()}: torch could not empty its "
                             "cache\n" if status else "")
            page.close()

    def test_it_asks_for_what_the_arguments_say(self):
        page = self.serve(text=body(pool(), pool(1, UUID_B)))
        for words, asked in (((), r"flush wait=(4\d{3}|5000)"),
                             (("--keep", "2G", "--wait", "200ms"),
                              rf"flush wait=\d+ keep={2 << 30}"),
                             (("--wait", "0"), "flush wait=0"),
                             (("--wait", "30s"), "flush wait=10000"),
                             (("--gpu", "1"), rf"flush wait=\d+ gpu={UUID_B}"),
                             (("--gpu", UUID), rf"flush wait=\d+ gpu={UUID}"),
                             (("--no-frameworks",), r"flush wait=\d+ frameworks=0")):
            self.assertEqual(tool("flush", os.getpid(), *words).status, 0)
            self.assertRegex(page.asked[-1], f"^{asked}$")
        self.says(tool("flush", os.getpid(), "--gpu", "7"), 1,
                  f"PID {os.getpid()}: it has no memory on GPU 7")

    def test_not_all_done_is_status_1(self):
        page = self.serve(PARTLY, 1)
        done = tool("flush", os.getpid(), "--wait", "1500ms", "--json")
        self.assertEqual(done.status, 1)
        self.assertIn("not all was done within 1.5 s", done.err)
        # It asks again until the time is up, and adds up what came.
        self.assertGreater(len(page.asked), 1)
        self.assertEqual(done.json["returned_bytes"], len(page.asked))

    def test_the_receipt_of_several_replies_is_their_sum(self):
        replies = [(PARTLY, 100 * MIB, {"gpus": [{**flushed()["gpus"][0], "pending_bytes": MIB,
                                                  "returned_bytes": 100 * MIB}],
                                        "ns": 10**9, "frameworks": [{
                                            "name": "torch", "returned_bytes": 9 * MIB, "ns": 10**6,
                                            "state": "done"}]}),
                   (DONE, MIB, {"gpus": [{**flushed()["gpus"][0], "returned_bytes": MIB}],
                                "ns": 10**9, "frameworks": [{"name": "torch", "state": "idle"}]})]
        self.page(answer=lambda words: replies.pop(0))
        done = well("flush", os.getpid())
        self.assertEqual(done.out.splitlines(), [
            f"PID {os.getpid()} GPU 0: 101 MiB returned in 2 s, 32 MiB live",
            f"PID {os.getpid()}: torch gave up 9 MiB in 1 ms: it had nothing to give back"])

    def test_many_processes_wait_at_the_same_time(self):
        number = 40
        together = threading.Barrier(number)

        def answer(_):
            together.wait(60)  # for the requests to all the others
            return DONE, 0, flushed()
        for pid in range(1, number + 1):
            self.page(pid=pid, namespace=12345, answer=answer)
        done = tool("flush", "--all", "--wait", "60s")
        self.assertEqual((done.status, len(done.out.splitlines())), (0, number), done.err)

    def waits(self, *words, before=()):
        """A page that does not answer, and a tool that has asked it."""
        page = self.page(answer=lambda words: None)
        # pylint: disable-next=consider-using-with
        child = subprocess.Popen([*before, sys.executable, TOOL, "flush", str(os.getpid()), *words],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        self.addCleanup(child.kill)
        self.assertTrue(wait_for(lambda: page.asked))
        return page, child

    def test_the_keyboard_ends_a_long_wait(self):
        _, child = self.waits("--wait", "1h")
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(60), 130)

    def test_what_ends_the_tool_withdraws_its_request(self):
        """The process is busy with another request: it must not do this one later."""
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            page, child = self.waits()
            child.send_signal(number)
            self.assertEqual(child.wait(60), 128 + number)
            start = tables.PAGE["slots"][0]
            self.assertEqual(page.get("ask_bytes", tables.PAGE_SLOT, start), 0)
            page.close()

    def test_a_flush_goes_on_without_its_terminal_where_nohup_says_so(self):
        page, child = self.waits("--wait", "1h", before=["nohup"])
        child.send_signal(signal.SIGHUP)
        page.answer = lambda words: (DONE, 0, flushed())
        start = tables.PAGE["slots"][0]
        page.put("ask_sequence", page.get("ask_sequence", tables.PAGE_SLOT, start),
                 tables.PAGE_SLOT, start)
        self.assertEqual(child.wait(30), 0)

    def test_few_descriptors_are_enough_for_many_processes(self):
        for pid in range(1, 41):
            self.page(pid=pid, namespace=12345, answer=lambda words: (DONE, 0, flushed()))
        done = subprocess.run(["sh", "-c", 'ulimit -n 24; exec "$@" flush --all', "sh", *ALONE],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(done.stdout.splitlines()), 40)

    def test_nobody_waits_long_for_a_container_that_was_killed(self):
        """Its process is not visible here, whether it lives or not."""
        self.page(pid=77, namespace=12345)
        with unittest.mock.patch.object(ask_module, "SILENCE_S", 0.3):
            done = tool("flush", "--all", "--wait", "1h")
        self.says(done, 1, "PID 77*: nobody listens at its page: it has ended, or is stopped")

    def test_a_refusal_is_told(self):
        self.serve(REFUSED, 0, {"error": "a capture is open"})
        self.says(tool("flush", os.getpid()), 1, f"PID {os.getpid()}: a capture is open")

    def test_a_reply_without_sense_is_no_crash(self):
        for reply in ({}, {"gpus": 3}, {"gpus": [1, {}]}, {"frameworks": "x"}, [], 4):
            page = self.serve(reply=reply)
            self.assertEqual(tool("flush", os.getpid()).err, "")
            page.close()

    def test_the_script_that_a_python_runs_is_a_name(self):
        for words, script in (("python3 /srv/serve.py --model a", "serve.py"),
                              ("python -X utf8 -Wd -uW ignore serve.py -m x", "serve.py"),
                              ("python -um vllm.serve -c x", "vllm.serve"), ("python -mpip", "pip"),
                              ("python -c pass serve.py", ""), ("python", ""), ("python -m", ""),
                              ("python - serve.py", ""), ("python app/", "app"),
                              ("python --check-hash-based-pycs always serve.py", "serve.py")):
            self.assertEqual(process.script_of(words.split()), script, words)

    def test_by_name_and_all_of_them(self):
        """What the process calls itself now is none of its names."""
        page = self.serve()
        file = os.path.basename(os.readlink("/proc/self/exe"))
        put_text("/proc/self/comm", "ENGINE")
        self.assertEqual(tool("flush", "--all").status, 0)
        self.assertEqual(tool("flush", "--name", file[:2] + "*").status, 0)
        self.assertEqual(tool("flush", "--name", "trainer").status, 0)
        self.assertEqual(tool("flush", "--name", "run_tests.p?").status, 0)  # the script
        self.assertEqual(len(page.asked), 4)
        self.says(tool("flush", "--name", "ENGINE"), 1,
                  f"no process of {USER} whose name matches ENGINE")
        self.says(tool("flush", "--name", "nosuch*"), 1,
                  f"no process of {USER} whose name matches nosuch*")
        self.says(tool("flush", "--all", "--gpu", "9"), 1,
                  f"no process of {USER} under libgpucache on GPU 9")
        self.assertEqual(tool("flush", "--all", os.getpid()).status, 2)
