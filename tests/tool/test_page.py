# SPDX-License-Identifier: BSD-2-Clause
"""Pages that the tool finds, refuses and removes. For a wrong page the tool gives one clear
sentence and an exit code, and never a wrong figure."""
import errno
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from fake import MAPPER, MIB, PIPES, FakePage, body, pool, put_text, tool, well

from gpucache import page as page_module
from gpucache import flush, process, setting, signals, tables  # noqa: F401
from gpucache.fault import Fault

ROOT = os.geteuid() == 0
USER = process.user_name(os.geteuid())


def refuse(_):
    """In the place of signals.send: this process is no program under the library."""
    raise Fault("it runs without libgpucache")


class Case(unittest.TestCase):
    def setUp(self):
        # In memory, where there is such a folder: one test makes ten thousand files.
        folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.environ["GPUCACHE_DIR"] = self.folder
        # Pages of other tests and programs are none of ours.
        self.addCleanup(setattr, page_module, "PLACES", page_module.PLACES)
        page_module.PLACES = (self.folder + "/none",)

    def page(self, *args, folder=None, **more):
        made = FakePage(folder or self.folder, *args, **more)
        self.addCleanup(made.close)
        return made

    def sleeper(self, *words, **env):
        """A process that sleeps (map_page gives it its page), and what names its page."""
        # pylint: disable-next=consider-using-with
        child = subprocess.Popen([sys.executable, "-c", MAPPER, *words], **PIPES,
                                 env={**os.environ, **env})
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        namespace, pid, start = process.identity(child.pid)
        return child, {"namespace": namespace, "pid": pid, "start": start}

    def pids(self):
        return [p["pid"] for p in tool("ps", "--json").json["processes"]]

    def says(self, done, status, sentence):
        self.assertEqual((done.status, done.err), (status, f"gpucache: {sentence}\n"))


class Reading(Case):
    def test_no_descriptor_stays_open(self):
        """top and metrics look again and again, for days."""
        page = self.page()
        gc.collect()  # what earlier tests left
        before = len(os.listdir("/proc/self/fd"))
        for words in ("ps",), ("stat", page.pid), ("stat", 4194303):
            for _ in range(5):
                tool(*words)
            self.assertEqual(len(os.listdir("/proc/self/fd")), before, words)

    def test_each_look_at_one_process_has_its_own_patience(self):
        """stat --watch looks again and again, for days."""
        page = self.page()
        page_module.Contents.patience = {None: 0.0}  # as earlier looks may leave it
        page.put("sequence", page.sequence + 1)

        def write(_):
            page.put("sequence", page.sequence + 2)
        with unittest.mock.patch.object(page_module.time, "sleep", write):
            self.assertEqual(tool("stat", page.pid, "--json").json["note"], "")

    def test_a_process_has_not_ended_because_the_tool_lacks_descriptors(self):
        """The page of a process that has ended is removed: what is not known is not the end."""
        page = self.page(age_s=7200)
        with unittest.mock.patch("builtins.open", side_effect=OSError(errno.EMFILE, "none left")):
            for words in ("ps",), ("stat", page.pid), ("flush", page.pid):
                done = tool(*words)
                self.assertEqual((done.status, done.out), (1, ""), words)
                self.assertTrue(done.err.endswith("none left\n"), done.err)
        self.assertTrue(os.path.exists(page.path))

    def test_a_process_that_may_not_be_looked_at_has_not_ended(self):
        """As /proc hides it, mounted with hidepid."""
        for error in PermissionError(), FileNotFoundError():
            with unittest.mock.patch("builtins.open", side_effect=error):
                self.assertFalse(process.has_ended(os.getpid()))
        with unittest.mock.patch("builtins.open", side_effect=FileNotFoundError()):
            for verb in "stat", "flush", "park", "wake":
                self.says(tool(verb, os.getpid()), 1,
                          f"PID {os.getpid()}: it may not be looked at: permission denied")
        for pid in 0, -1, 4194303, 1 << 40:
            self.assertTrue(process.has_ended(pid), pid)

    def test_contexts_of_one_gpu_are_one_line(self):
        self.page(body(pool(), pool(), pool(1, "GPU-" + "0" * 32)))
        gpus = tool("ps", "--json").json["processes"][0]["gpus"]
        self.assertEqual([g["pools"] for g in gpus], [2, 1])
        self.assertEqual(gpus[0]["idle_bytes"], 312 * MIB)

    def test_a_torn_page_shows_no_figures(self):
        page = self.page()
        page.put("sequence", 7)
        found = tool("ps", "--json").json["processes"][0]
        self.assertEqual(found["gpus"], [])
        self.assertIn("while it wrote its page", found["note"])

    def test_figures_of_one_state_are_never_mixed(self):
        page = self.page()
        done = threading.Event()

        def write():
            number = 0
            while not done.is_set():
                number += 1
                page.publish(body(pool(requested_bytes=number, num_fences=number)))
        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen = set()
            start = time.monotonic()
            while (now := time.monotonic()) < start + 0.5 or (len(seen) < 4 and now < start + 30):
                fd = os.open(page.path, os.O_RDONLY)
                contents = page_module.Contents(fd, page.path)
                os.close(fd)
                if contents.body:
                    one = contents.body["pools"][0]
                    self.assertEqual(one["requested_bytes"], one["num_fences"])
                    seen.add(one["num_fences"])
            self.assertGreater(len(seen), 3)
        finally:
            done.set()
            writer.join()

    def test_scribbled_pages_are_told_or_counted_as_nothing(self):
        page = self.page()
        for text, part in ((b"{", "cannot be read"), (b"[]", "cannot be read"),
                           (b"\xff\xfe{}", "cannot be read")):
            page.publish(text)
            self.assertIn(part, tool("ps", "--json").json["processes"][0]["note"])
        page.put("body_bytes", 1 << 31)
        self.assertIn("cannot be read", tool("ps").out)
        page.publish({"pools": [1, {"device": "x", "idle_bytes": -4, "num_allocs": True}],
                      "counters": 3, "options": [], "flush": "soon", "program": 7})
        self.assertEqual(tool("ps").status, 0)
        done = well("stat", os.getpid())

    def test_bodies_made_up_at_random(self):
        dice = random.Random(15)
        page = self.page()
        texts = [b'{"pools":' + b"[" * 20000, b'{"pools":[{"idle_bytes":' + b"9" * 400 + b"}]}",
                 b'{"program":"\\ud800","options":{"\\u001b":"\\ud800"},"pools":[{"uuid":[]}]}']
        good = json.dumps(body(pool())).encode()
        for _ in range(25):
            text = bytearray(good)
            for _ in range(dice.randrange(1, 6)):
                text[dice.randrange(len(text))] = dice.choice(b'0"{}[],:x\\\xff-e')
            texts.append(bytes(text))
        for text in texts:
            page.publish(text)
            for words in (("ps",), ("ps", "--json"), ("stat", os.getpid())):
                done = well(*words)
                self.assertNotIn("\x1b", done.out)
                done.out.encode()

    def test_control_characters_of_a_name_reach_no_terminal(self):
        self.page(body(pool(name="\x1b[2Jx"), command="\x1b]0;x\x07"))
        self.assertNotIn("\x1b", tool("stat", os.getpid()).out)

    def test_endless_words_leave_the_table_readable(self):
        long = "x" * 9000
        self.page(body(pool(name=long, uuid=long), program=long,
                       options={"GPUCACHE_MAX_IDLE": long}), pid=7, namespace=12345)
        self.assertIn("188 MiB", tool("ps").out)
        self.assertLess(max(map(len, tool("ps").out.splitlines())), 500)

    def test_a_page_of_another_version_tells_whose_it_is(self):
        self.page(version=9)
        done = well("ps")
        self.assertIn("page is of version 9, this tool knows version 1", done.out)
        self.assertIn("libgpucache 0.1.0", tool("stat", os.getpid()).out)

    def test_clocks_that_jump_make_no_nonsense(self):
        self.page(age_s=-3600)
        self.assertEqual(tool("ps", "--json").json["processes"][0]["age_ns"], 0)
        page = self.page(age_s=3600)
        page.put("started_unix_ns", (1 << 64) - 1)
        page.put("published_unix_ns", (1 << 64) - 1)
        self.assertEqual(tool("stat", os.getpid()).status, 0)

    def test_a_process_of_another_namespace_has_a_mark(self):
        page = self.page(pid=7, namespace=12345)
        done = tool("ps")
        self.assertRegex(done.out, r"\n *7\*  ")
        self.assertIn("another pid namespace", done.out)
        self.assertTrue(os.path.exists(page.path))


class Refusing(Case):
    def test_control_characters_of_a_path_reach_no_terminal(self):
        for name in ("red\x1b[31m", "two\nlines", "clear\x9b2J"):
            folder = os.path.join(self.folder, name)
            os.mkdir(folder, 0o777)
            os.chmod(folder, 0o777)
            for words in (("ps",), ("stat", os.getpid()), ("metrics", "--json")):
                done = tool(*words, GPUCACHE_DIR=folder)
                self.assertEqual(done.status, 1)
                self.assertTrue((done.err + done.out).replace("\n", "").isprintable(), done.err)
                self.assertEqual(done.err.count("\n"), 0 if "--json" in words else 1)
            os.chmod(folder, 0o700)
            for number in range(5):
                put_text(f"{folder}/1-{number}-3.page")
            err = tool("ps", GPUCACHE_DIR=folder).err
            self.assertTrue(err.rstrip("\n").isprintable(), err)

    def test_folders_that_are_not_the_users_own(self):
        os.chmod(self.folder, 0o777)
        self.says(tool("ps"), 1, f"{self.folder} is not used: others may write to it")
        os.chmod(self.folder, 0o700)
        link = self.folder + "/link"
        os.symlink(self.folder, link)
        for tail in ("/", "/.", "//./"):
            self.says(tool("ps", GPUCACHE_DIR=link + tail), 1,
                      f"{link} is not used: it is no directory")
            self.assertEqual(tool("ps", GPUCACHE_DIR=self.folder + tail).err, "")
        self.says(tool("ps", GPUCACHE_DIR=link), 1, f"{link} is not used: it is no directory")
        self.says(tool("ps", GPUCACHE_DIR="/etc/passwd"), 1,
                  "/etc/passwd is not used: it is no directory")

    @unittest.skipUnless(ROOT, "needs root")
    def test_folders_and_pages_of_somebody_else(self):
        page = self.page()
        os.chown(page.path, 12345, 12345)
        self.says(tool("ps"), 1, f"{page.path} is not used: it belongs to 12345")
        os.chown(self.folder, 12345, 12345)
        self.says(tool("ps"), 1, f"{self.folder} is not used: it belongs to 12345, not to root")

    def test_files_that_are_no_pages(self):
        page = self.page()
        os.truncate(page.path, 100)
        self.says(tool("ps"), 1, f"{page.path} is not used: it is cut short")
        os.truncate(page.path, 0)
        os.truncate(page.path, tables.PAGE_BYTES)
        self.says(tool("ps"), 1, f"{page.path} is not used: it is no page of libgpucache")
        os.unlink(page.path)
        os.symlink("/etc/passwd", page.path)
        self.says(tool("ps"), 1, f"{page.path} is not used: it is a symbolic link")
        os.unlink(page.path)
        os.mkfifo(page.path)
        self.says(tool("ps"), 1, f"{page.path} is not used: it is no file")

    def test_a_page_that_is_cut_in_the_middle(self):
        page = self.page()  # without the thread that answers: it would write behind the cut
        os.truncate(page.path, 300)
        self.assertIn("cut short", tool("ps").out)
        done = tool("flush", os.getpid())
        self.assertEqual(done.status, 1)
        self.assertIn("cut short", done.err)


class Stale(Case):
    def dead(self, pid=4194303, **more):
        return self.page(pid=pid, start=1, **more)

    def test_a_page_of_a_dead_process_is_not_shown_and_removed(self):
        """Also where its number came back as another process, or the page is from the future."""
        for page in self.dead(age_s=3600), self.page(start=5, age_s=3600), \
                self.dead(age_s=-10 * 365 * 86400):
            self.assertEqual(self.pids(), [])
            self.assertFalse(os.path.exists(page.path))

    def test_the_last_state_stays_for_stat_a_while(self):
        page = self.dead(age_s=60)
        self.assertEqual(self.pids(), [])
        self.assertTrue(os.path.exists(page.path))
        done = well("stat", 4194303)
        self.assertIn("It has ended. This is its last state", done.out)
        self.assertIn("PID 4194303 (", done.out)
        self.assertIn("156 MiB", done.out)
        done = tool("flush", 4194303)
        self.says(done, 1, "PID 4194303: no such process")
        self.says(tool("set", 4194303, "MAX_IDLE=1G"), 1, "PID 4194303: it has ended")

    def test_a_process_that_ends_while_it_is_looked_at(self):
        # /proc tells nothing more of it, from some call on.
        self.page()
        for count in (1, 2, 4):
            for name in ("uid", "name", "identity", "start_ticks", "job", "maps", "namespace"):
                real, calls = getattr(process, name), []

                def gone(pid, *more, real=real, calls=calls, count=count):
                    if pid == os.getpid():
                        calls.append(pid)
                    return None if len(calls) >= count else real(pid, *more)
                for words in (("ps",), ("stat", os.getpid()), ("flush", os.getpid(), "--wait", "0"),
                              ("metrics", "--json"), ("set", os.getpid(), "MAX_IDLE=1G")):
                    calls.clear()
                    with unittest.mock.patch.object(process, name, gone), \
                            unittest.mock.patch.multiple("gpucache.setting", PATIENCE_S=0), \
                            unittest.mock.patch.multiple("gpucache.flush", MARGIN_S=0), \
                            unittest.mock.patch.object(signals, "send", refuse):
                        self.assertIn(tool(*words).status, (0, 1), (name, count, words))

    def test_a_page_of_another_namespace_stays_for_a_day(self):
        old = self.page(pid=7, namespace=12345, age_s=90000)
        new = self.page(pid=8, namespace=12345, age_s=80000)
        self.assertEqual(len(tool("ps", "--json").json["processes"]), 1)
        self.assertFalse(os.path.exists(old.path))
        self.assertTrue(os.path.exists(new.path))

    def test_a_page_of_another_machine_is_left_alone_for_a_day(self):
        """Its number, and its namespace, may well be those of a process that has ended here."""
        other = bytes(range(16))
        self.dead(age_s=3600)
        new = self.dead(pid=4194302, age_s=80000, boot_id=other)
        self.assertEqual(self.pids(), [])
        self.assertEqual(os.listdir(self.folder), [new.name])
        self.assertEqual(tool("flush", "--all").err, tool("flush", "--all", GPUCACHE_DIR="").err)
        self.assertTrue(os.path.exists(new.path))
        old = self.dead(pid=4194301, age_s=90000, boot_id=other)
        self.assertEqual(self.pids(), [])
        self.assertFalse(os.path.exists(old.path))


class Who(Case):
    def each_says(self, pid, sentence, **env):
        """Each verb for one process."""
        for words in ("stat", pid), ("set", pid, "MAX_IDLE=1"), ("flush", pid):
            self.says(tool(*words, **env), 1, f"PID {pid}: {sentence}")

    def test_sentences_about_processes_without_a_page(self):
        self.each_says(4194304, "no such process")
        self.each_says(os.getpid(), "it runs without libgpucache")
        for words in (("stat", "x"), ("stat", "-1"), ("stat", "0"), ("flush", "1e3"),
                      ("stat", str(1 << 40)), ("stat",), ("nonsense",), ("flush",)):
            self.assertEqual(tool(*words).status, 2, words)

    def test_other_files_of_a_similar_name_say_nothing(self):
        """Beside the folders of pages, in the place where they are."""
        os.mkdir(self.folder + "/gpucache-tests")
        put_text(self.folder + "/gpucache-notes")
        page_module.PLACES = (self.folder,)
        self.each_says(os.getpid(), "it runs without libgpucache", GPUCACHE_DIR="none")

    def test_a_process_whose_parent_has_not_looked_yet_has_ended(self):
        with subprocess.Popen(["true"]) as child:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            self.each_says(child.pid, "no such process")

    @unittest.skipUnless(ROOT, "needs root, to become somebody else")
    def test_a_user_sees_only_his_own(self):
        roots = "it belongs to root: only root may look at it"
        for words, sentence in (
                (("stat", os.getpid()), f"PID {os.getpid()}: {roots}"),
                (("doctor", os.getpid()), f"PID {os.getpid()}: {roots}"),
                (("flush", os.getpid()), f"PID {os.getpid()}: {roots}"),
                (("park", os.getpid()), f"PID {os.getpid()}: {roots}"),
                (("ps", "--all-users"), "only root sees the processes of all users: leave "
                 "--all-users out, or use sudo")):
            tool(*words)  # he may not be able to read what is imported
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                os.setgid(12345)
                os.setuid(12345)
                done = tool(*words)
                os.write(writer, f"{done.status} {done.err}".encode())
                os._exit(0)
            os.close(writer)
            with open(reader, encoding="utf-8") as said:
                self.assertEqual(said.read(), f"1 gpucache: {sentence}\n")
            os.waitpid(child, 0)

    def test_whose_a_process_is_is_said_by_name(self):
        for uid, sentence in (0, "root: only root"), (12345, "12345: only 12345 and root"):
            with unittest.mock.patch.object(process, "uid", lambda _, uid=uid: uid), \
                    unittest.mock.patch.object(os, "geteuid", lambda: 54321):
                self.says(tool("stat", os.getpid()), 1,
                          f"PID {os.getpid()}: it belongs to {sentence} may look at it")

    @unittest.skipUnless(ROOT, "needs root")
    def test_root_sees_all_that_ask_for_it(self):
        folder = self.folder + "/gpucache-12345"
        os.mkdir(folder, 0o700)
        page = self.page(folder=folder, uid=12345)
        os.chown(page.path, 12345, 12345)
        os.chown(folder, 12345, 12345)
        page_module.PLACES = (self.folder,)
        self.assertEqual(tool("ps", "--json").json["processes"], [])
        self.assertEqual(len(tool("ps", "--json", "--all-users").json["processes"]), 1)

    def test_jobs_of_cgroups(self):
        for text, job in (
                ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "slurm:4711"),
                ("3:memory:/slurm/uid_1000/job_12/step_batch\n", "slurm:12"),
                ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3d9f5e_"
                 "1c4b_4b1e_9c39_5b1d3f2a7c11.slice/cri-containerd-0123.scope\n",
                 "pod:0f3d9f5e-1c4b-4b1e-9c39-5b1d3f2a7c11"),
                ("11:cpu:/kubepods/besteffort/pod0f3d9f5e-1c4b-4b1e-9c39-5b1d3f2a7c11/ab\n",
                 "pod:0f3d9f5e-1c4b-4b1e-9c39-5b1d3f2a7c11"),
                ("0::/system.slice/docker-0123456789abcdef0123456789abcdef.scope\n",
                 "container:0123456789ab"),
                ("5:pids:/docker/0123456789abcdef\n", "container:0123456789ab"),
                ("0::/user.slice/user-1000.slice/session-2.scope\n", ""),
                ("", "")):
            self.assertEqual(process.job_of(text), job, text)
