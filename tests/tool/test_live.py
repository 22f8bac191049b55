# SPDX-License-Identifier: BSD-2-Clause
"""The whole way: the tool, and real processes under the library on the simulated driver."""
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

from fake import MIB, TOOL, tool, wait_for, well
from test_page import Case

FAKES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "process")
sys.path.append(FAKES)
import programs  # noqa: E402 # pylint: disable=wrong-import-position

from gpucache import flush
from gpucache import page as page_module
from gpucache import process, state, tables

state.PATIENCE_S = 5.0
FOLDERS = sys.argv[3]
SIZE = 64 * MIB
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
# More that the program can do
MORE = """
def idle(mib, live_mib):
    mine = []
    assert not take(mib << 20, mine) and not alloc(live_mib)
    give(mine)
def torch(mib):  # a package with a cache of its own
    sys.path.insert(0, os.environ["FAKES"])
    import framework_fakes as fakes
    cache = fakes.Cache()
    fakes.put_torch(cache)
    cache.fill(mib << 20)
def hold(path):  # the interpreter's lock, in C, until another opens the pipe too
    libc = ctypes.PyDLL(None)
    sys.setswitchinterval(1000)  # no other thread gets the lock between the two calls
    libc.write(1, b"inside\\n", 7)
    libc.open(path.encode(), os.O_RDONLY)
    sys.setswitchinterval(0.005)
def two_sizes(count):
    mine = []
    for _ in range(count):
        assert not take(1 << 20, mine) and not take(32 << 20, mine)
        give(mine)
"""


class Program(programs.Talker):
    """A process under the library."""

    def __init__(self, case, *options, prefix=(), more=MORE, **env):
        super().__init__(
            [*prefix, sys.executable, TOOL, "run", *options, "--", *programs.python(more)],
            {**os.environ, "LD_LIBRARY_PATH": FOLDERS, "SIM_DEVICES": "2", **env}, stderr=None)
        case.addCleanup(self.end)
        case.addCleanup(self.finish)

    def idle(self):
        """Live and idle memory, and a page."""
        self.do("idle(64, 32)")
        assert wait_for(lambda: tool("stat", self.pid, "--json").status == 0)
        return self

    def stop_between_two_states(self):
        """Stops it. False: it was writing its page, and goes on."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(lambda: all(process.state(f"{self.pid}/task/{task}") == "T"
                             for task in os.listdir(f"/proc/{self.pid}/task")))
        if not page_module.find(self.pid)[0].read().note:
            return True
        os.kill(self.pid, signal.SIGCONT)
        return False


class Live(Case):
    def figures(self, pid, index=0):
        return tool("stat", pid, "--json").json["gpus"][index]

    def test_ps_shows_the_processes_and_flush_empties_them(self):
        programs = [Program(self, "--max-idle", "2G").idle() for _ in range(3)]
        found = {p["pid"]: p for p in tool("ps", "--json").json["processes"]}
        self.assertEqual(set(found), {p.pid for p in programs})
        for its in found.values():
            self.assertEqual(its["gpus"][0]["allocated_bytes"], 32 * MIB)
            self.assertEqual(its["gpus"][0]["idle_bytes"], SIZE)
            self.assertEqual(its["options"]["MAX_IDLE"], "2G")
            self.assertEqual(its["status"], "running")
        one, *others = programs
        done = well("flush", one.pid)
        self.assertRegex(done.out, rf"^PID {one.pid} GPU 0: 64 MiB returned in \d.*, 32 MiB live\n")
        self.assertEqual(self.figures(one.pid)["idle_bytes"], 0)
        done = well("flush", "--all", "--json")
        self.assertEqual(done.json["returned_bytes"], 2 * SIZE)
        # Packages that are late are asked again: the last flush may have found nothing.
        self.assertRegex(tool("stat", others[0].pid).out,
                         r"\nflushed +64 MiB\n(.*\n)*last flush: .*, request, ")
        for program in programs:
            program.do("two_sizes(2)")
            self.assertEqual(program.finish()[0], 0)
        self.assertEqual(os.listdir(self.folder), [])

    def test_one_gpu_of_two(self):
        program = Program(self).idle()
        program.do("cudart.cudaSetDevice(1)")
        program.idle()
        self.assertEqual(len(tool("stat", program.pid, "--json").json["gpus"]), 2)
        done = tool("flush", program.pid, "--gpu", "1", "--json")
        self.assertEqual(done.json["returned_bytes"], SIZE, done.err)
        self.assertEqual([g["device"] for g in done.json["receipts"][0]["gpus"]], [1])
        self.assertEqual(self.figures(program.pid, 0)["idle_bytes"], SIZE)
        self.assertEqual(self.figures(program.pid, 1)["idle_bytes"], 0)

    def test_the_program_goes_on_while_many_ask(self):
        program = Program(self).idle()
        program.send("two_sizes(3000)")
        for _ in range(20):
            done = well("flush", program.pid)
            self.assertEqual(tool("ps").status, 0)
        program.read()
        self.assertEqual(program.finish()[0], 0)

    def test_flush_waits_for_packages_that_answer_late(self):
        opened = []
        self.addCleanup(lambda: [os.close(fd) for fd in opened])  # after the program's end
        program = Program(self, FAKES=FAKES)
        program.do("torch(160)")
        self.assertTrue(wait_for(lambda: tool("stat", program.pid, "--json").status == 0))
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        program.send(f"hold({pipe!r})")
        self.assertEqual(program.read(), "inside")

        def let_go():
            opened.append(os.open(pipe, os.O_RDWR))
        self.addCleanup(let_go)
        done = tool("flush", program.pid, "--wait", "300ms")
        self.says(done, 1, f"PID {program.pid}: not all was done within 0.3 s")
        self.assertIn(": its Python packages have not answered yet; their memory follows", done.out)
        real = flush.Total.waits_for_packages

        def wait_and_let_go(total):
            late = real(total)  # by a reply that came while the lock was held
            if late:
                let_go()
            return late
        with unittest.mock.patch.object(flush.Total, "waits_for_packages", wait_and_let_go):
            done = tool("flush", program.pid, "--wait", "60s")
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertRegex(done.out, rf"^PID {program.pid} GPU 0: 160 MiB returned in .*, 0 B live\n"
                         rf"PID {program.pid}: torch gave up 160 MiB\n"
                         rf"PID {program.pid}: its Python packages answered late: what other "
                         r"flushes gave back meanwhile is counted too\n$")
        program.read()
        self.assertEqual(program.finish()[0], 0)

    def test_stat_tells_the_last_state_of_a_killed_process(self):
        program = Program(self).idle()
        tool("stat", program.pid)
        self.assertTrue(wait_for(program.stop_between_two_states))
        program.process.kill()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)  # its parent has not looked yet
        self.assertEqual(tool("ps", "--json").json["processes"], [])
        program.process.wait()
        self.assertEqual(tool("ps", "--json").json["processes"], [])
        done = well("stat", program.pid)
        self.assertIn("It has ended. This is its last state", done.out)
        self.assertRegex(done.out, r"idle +64 MiB")
        self.says(tool("flush", program.pid), 1, f"PID {program.pid}: no such process")

    def test_a_stopped_process(self):
        program = Program(self).idle()
        os.kill(program.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: process.state(program.pid) == "T")
            for words in (("flush", program.pid), ("set", program.pid, "MAX_RESERVED=1G")):
                self.says(tool(*words), 1, f"PID {program.pid}: it is stopped: ask again when it "
                          "goes on")
        finally:
            os.kill(program.pid, signal.SIGCONT)
        # What was told to be undone does not happen later.
        self.assertRegex(tool("flush", program.pid).out, ": 64 MiB returned")
        options = tool("stat", program.pid, "--json").json["options"]
        self.assertEqual(options["MAX_RESERVED"], "none")

    def test_a_process_without_a_page_gets_the_signal(self):
        program = Program(self, GPUCACHE_DIR="none")
        program.do("churn(64, 1)")
        # The thread that answers may have begun and not have its name yet.
        self.assertTrue(wait_for(lambda: tool("flush", program.pid).status == 4))
        done = tool("flush", program.pid)
        self.assertEqual((done.status, done.err), (4, ""))
        self.assertIn("asked by SIGUSR1: it has no page of live state, so there is no receipt",
                      done.out)
        self.says(tool("stat", program.pid), 1, f"PID {program.pid}: it has no page of live state: "
                  "it was started with GPUCACHE_DIR=none")
        self.says(tool("flush", program.pid, "--keep", "1G"), 1, f"PID {program.pid}: it has no "
                  "page of live state, and its signal knows no --gpu or --keep")
        self.assertEqual(program.finish()[0], 0)

    def test_a_process_without_a_page_is_told_the_folder_that_it_was_to_use(self):
        program = Program(self, GPUCACHE_DIR="/proc/none", GPUCACHE_LOG="off")
        program.do("alloc(64)")
        self.says(tool("stat", program.pid), 1, f"PID {program.pid}: it has no page of live state: "
                  "it has allocated no device memory yet, is about to end, could make no file in "
                  "/proc/none, or has an older library")
        self.assertEqual(program.finish()[0], 0)

    def test_a_process_with_a_folder_of_its_own_is_found_by_its_pid(self):
        folder = os.path.join(self.folder, "elsewhere")
        os.mkdir(folder, 0o700)
        program = Program(self, f"DIR={folder}").idle()
        self.assertEqual(tool("ps", "--json").json["processes"], [])
        self.assertEqual(tool("flush", program.pid).status, 0)

    def test_a_page_that_somebody_cut_or_removed(self):
        program = Program(self).idle()
        path, = glob.glob(self.folder + "/*" + tables.PAGE_SUFFIX)

        def is_back():
            return os.path.exists(path) and os.path.getsize(path) == tables.PAGE_BYTES
        # Stopped, it makes no new page before the tool has looked.
        self.assertTrue(wait_for(program.stop_between_two_states))
        os.truncate(path, 0)
        done = tool("flush", program.pid)
        os.kill(program.pid, signal.SIGCONT)
        self.assertEqual(done.status, 1)
        self.assertEqual(len(done.err.splitlines()), 1, done.err)
        program.do("two_sizes(3)")
        self.assertTrue(wait_for(is_back))
        self.assertEqual(tool("flush", program.pid).status, 0)
        seconds = []
        while min(seconds, default=4) >= 4 and len(seconds) < 3:  # once it is answered at once
            self.assertTrue(wait_for(program.stop_between_two_states))
            os.truncate(path, 0)
            os.unlink(path)
            done = tool("flush", program.pid)
            os.kill(program.pid, signal.SIGCONT)
            self.assertEqual(done.status, 4)  # by signal
            self.assertTrue(wait_for(is_back))
            start = time.monotonic()
            self.assertEqual(tool("flush", program.pid).status, 0)
            seconds.append(time.monotonic() - start)
        self.assertLess(min(seconds), 4)
        program.do("two_sizes(3)")
        self.assertEqual(program.finish()[0], 0)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare") and not subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
        stderr=subprocess.DEVNULL).returncode, "no mount namespaces here")
    def test_a_process_that_sees_other_files(self):
        page_module.PLACES = ("/dev/shm", "/tmp")
        program = Program(self, GPUCACHE_DIR="", prefix=(
            "unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"))
        program.do("churn(64, 1)")
        self.assertTrue(wait_for(lambda: tool("flush", program.pid).status == 0))
        self.assertTrue(page_module.find(program.pid)[0].path.startswith(
            f"/proc/{program.pid}/root" + "/dev/shm/gpucache-0/"))

    @unittest.skipUnless(shutil.which("unshare") and not subprocess.run(
        [*NEW_NAMESPACE, "true"], stderr=subprocess.DEVNULL).returncode, "no pid namespaces here")
    def test_a_process_in_another_pid_namespace(self):
        program = Program(self, prefix=NEW_NAMESPACE)
        program.do("churn(64, 1)")
        found = wait_for(lambda: tool("ps", "--json").json["processes"])[0]
        self.assertEqual((found["status"], found["namespace_pid"]), ("running", 1))
        self.assertNotEqual(found["pid"], 1)
        done = well("flush", found["pid"])
        self.assertIn("64 MiB returned", done.out)
