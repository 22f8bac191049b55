# SPDX-License-Identifier: BSD-2-Clause
"""A process whose device memory others park, for the tests of that. The program's arguments are
LIBRARY FOLDERS_OF_THE_SIMULATED_DRIVER PARKER TABLES.PY"""
import contextlib
import os
import sys
import time

import page_client
import programs
import waiting

LIBRARY, FOLDERS, PARKER, TABLES = sys.argv[1:5]
T = page_client.load_tables(TABLES)
DONE, PARTLY, REFUSED = T.PAGE_REPLY_DONE, T.PAGE_REPLY_PARTLY, T.PAGE_REPLY_REFUSED
MIB = 1 << 20


class Process:
    """A process under the library, and its page. prefix: a command that runs the program."""

    def __init__(self, test, gpu, pages, prefix=(), **options):
        env = programs.environ(LIBRARY, FOLDERS, SIM_SHARED=gpu, GPUCACHE_DIR=pages,
                               **{"SIM_DEVICES": "1", **options})
        self.talker = programs.Talker([*prefix, PARKER], env, stderr=None)
        test.addCleanup(self.talker.end)
        self.pid = self.talker.pid
        self.do("make 1 1", "drop")
        self.path = test.wait_for(lambda: page_client.page_of(pages, self.pid), "no page")
        self.page = page_client.Page(T, self.path)
        test.addCleanup(self.page.close)
        test.wait_for(lambda: self.page.state()[0]["pools"], "no pool")

    def do(self, *lines):
        """What the last line gave; each other one is done."""
        for line in lines:
            said = self.talker.do(line)
            if line.split()[0] not in ("check", "copies", "poked", "rest", "info", "rss", "peek",
                                       "told", "calls"):
                assert said == "done", said
        return said

    def ask(self, words, wait_s=60):
        return self.page.ask(words, wait_s)

    def state(self):
        self.ask("look")
        return self.page.state()[0]

    def park_fields(self):
        self.ask("look")
        base = T.PAGE["parks"][0]
        return {name: self.page.get(name, "PAGE_PARK", base) for name in T.PAGE_PARK}


class Base(waiting.Waiting):
    def setUp(self):
        self.pages = os.path.join(self.scratch(), "pages")
        self.gpu = self.shared_gpu()
        self.other = self.start_bare()

    def capacity(self):
        return {"SIM_CAPACITY": "1G"}

    def start_bare(self):
        """A process without the library."""
        talker = programs.Talker([PARKER], programs.bare(
            LD_LIBRARY_PATH=FOLDERS, SIM_SHARED=self.gpu, SIM_DEVICES="1", **self.capacity()),
                                 stderr=None)
        self.addCleanup(talker.end)
        talker.do("info")
        return talker

    def start(self, *lines, **options):
        """A process that has done these lines."""
        p = Process(self, self.gpu, self.pages, **{**self.capacity(), **options})
        if lines:
            p.do(*lines)
        return p

    def free_mib(self):
        """What the device has, as a process without the library sees it."""
        return int(self.other.do("info")) / 1024

    def park(self, p, words="park", code=DONE):
        got, value, reply = p.ask(words)
        self.assertEqual(got, code, reply)
        self.assertEqual(reply["state"], "refused" if code == REFUSED else "parked", reply)
        return value, reply

    def wake(self, p, words="wake"):
        """How many bytes came back."""
        code, value, reply = p.ask(words)
        self.assertEqual((code, reply["state"]), (DONE, "woken"), reply)
        return value

    def hold(self, p, function, begin):
        """Begins something, and waits until its call of that function is held in the driver."""
        p.do("hold " + function)
        before = int(p.do("calls " + function))
        begun = begin()
        self.wait_for(lambda: int(p.do("calls " + function)) > before, "it is never called")
        return begun

    def bring(self, p, state, words="park"):
        """The process is in that state of its gate (shim/park/gate.h), and stays until its program
        has done the lines that this returns; they have no effect on others. The second result is
        the request without a reply by then; None: there is none."""
        out, back, given = "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemRelease"

        def begin(request):
            ask = p.page.put_ask(request)
            p.page.ring()
            return ask

        if state in ("closing", "leaving"):
            ask = self.hold(p, out, lambda: begin(words))
            if state == "closing":
                return ["let " + out], ask
            self.hold(p, given, lambda: p.do("let " + out))  # all is copied by then
            return ["let " + given], ask
        if state in ("parked", "waking"):
            self.park(p, words)
        if state == "waking":
            return ["let " + back], self.hold(p, back, lambda: begin("wake"))
        return [], None

    def parks_of_one_at_work(self, p, most, seconds, then=None):
        """Parks a process whose threads work until there were so many parks, or for so long after
        the first. Behind every third another request. How often it was parked, with all it has:
        memory that a thread was getting from the driver stays."""
        parked, begun = 0, time.monotonic()
        while parked < most and time.monotonic() < begun + (seconds if parked else 60):
            code, _, reply = p.ask("park wait=20")
            self.assertIn(code, (DONE, PARTLY, REFUSED), reply)
            parked += code == DONE
            if then and parked % 3 == 0:
                p.ask(then)
        self.assertEqual(p.do("rest"), "right")
        self.assertEqual(p.do("check"), "right")
        self.assertGreater(parked, 0)
        return parked


class Group:
    """A memory cgroup of its own for a process. Skips the test where the machine allows none."""

    KINDS = ((":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
              "memory.usage_in_bytes"), ("0::", "/sys/fs/cgroup", "memory.max", "memory.current"))

    def __init__(self, test, pid):
        for mark, mount, self.limit, self.usage in self.KINDS:
            own = [line.split(mark)[1] for line in programs.read("/proc/self/cgroup").splitlines()
                   if mark in line]
            self.path = f"{mount}{own[0] if own else ''}/gpucache-{os.getpid()}"
            with contextlib.suppress(OSError):
                os.mkdir(self.path)
                test.addCleanup(self.remove)
                self.put("cgroup.procs", pid)
                self.put(self.limit, 1 << 40)
                return
        test.skipTest("no memory cgroup can be made here")

    def put(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def used(self):
        return int(programs.read(os.path.join(self.path, self.usage)))

    def remove(self):
        for _ in range(500):  # until the kernel has seen the process's end
            with contextlib.suppress(OSError):
                return os.rmdir(self.path)
            time.sleep(0.01)
        raise AssertionError("a cgroup is left")
