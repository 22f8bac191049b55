# SPDX-License-Identifier: BSD-2-Clause
"""The page of live state and the requests through it, of processes on the simulated driver."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import page_client
import programs
import waiting

LIBRARY, FOLDERS, TABLES = sys.argv[1:4]
T = page_client.load_tables(TABLES)
MIB = 1 << 20
NOBODY = 65534

# More that the program can do
MORE = """
def keep_async(mib):
    pool, block, cuda = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.CDLL("libcuda.so.1")
    return (cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0) or
            cuda.cuMemPoolSetAttribute(pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1))) or
            cudart.cudaMallocAsync(ctypes.byref(block), ctypes.c_size_t(mib << 20), None) or
            cudart.cudaFreeAsync(block, None) or cudart.cudaDeviceSynchronize())
def keep_async_elsewhere(mib):
    # The same in a stream of device 0, while device 1 is current
    cuda, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    pool, block = ctypes.c_void_p(), ctypes.c_void_p()
    return (cudart.cudaSetDevice(0) or cudart.cudaStreamCreate(ctypes.byref(stream)) or
            cudart.cudaSetDevice(1) or alloc(4) or
            cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0) or
            cuda.cuMemPoolSetAttribute(pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1))) or
            cudart.cudaMallocAsync(ctypes.byref(block), ctypes.c_size_t(mib << 20), stream) or
            cudart.cudaFreeAsync(block, stream) or cudart.cudaStreamSynchronize(stream))
def close_elsewhere():
    return ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset(0)
def open_elsewhere(mib):
    # Allocates so much
    cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    return (cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or
            mib and (cuda.cuCtxSetCurrent(context) or
                     cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(mib << 20))))
def open_contexts(count):
    # Of device 1, each with a pool
    cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    return sum(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 1) or
               cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(4096)) or
               cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) for _ in range(count))
def capture(begin):
    global stream
    if begin:
        stream = ctypes.c_void_p()
        assert cudart.cudaStreamCreate(ctypes.byref(stream)) == 0
        assert cudart.cudaStreamBeginCapture(stream, 0) == 0
    else:
        graph = ctypes.c_void_p()
        assert cudart.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
"""


class Program(programs.Talker):
    """A process under the library, with its pages in a folder of its own. Its packages are left
    alone: where their answer is late, a flush is done only in part."""

    def __init__(self, folder, before=(), **options):
        self.folder, self.pages = folder, []
        options = {"GPUCACHE_DIR": folder, "GPUCACHE_FRAMEWORKS": "0", **options}
        super().__init__([*before, *programs.python(MORE)],
                         programs.environ(LIBRARY, FOLDERS, **options))

    def __exit__(self, *unused):
        for page in self.pages:
            page.close()
        super().__exit__(*unused)

    def page_path(self):
        end = time.monotonic() + 30
        while not (path := page_client.page_of(self.folder, self.pid)):
            assert time.monotonic() < end, "no page"
            time.sleep(0.01)
        return path

    def page(self):
        """The page, with the present state, until the program ends."""
        page = page_client.Page(T, self.page_path())
        self.pages.append(page)
        if page.ask("look")[0] != T.PAGE_REPLY_DONE:
            raise AssertionError("look was refused")
        return page

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Case(waiting.Waiting):
    def setUp(self):
        self.folder = os.path.join(self.scratch(), "pages")

    @contextlib.contextmanager
    def running(self, *lines, **options):
        """A program that has done these lines, and its page."""
        with Program(self.folder, **options) as program:
            program.do(*lines)
            yield program, program.page()

    def leaves_nothing(self, program):
        self.assertEqual(program.finish(), (0, ""))
        self.assertEqual(os.listdir(self.folder), [])


class State(Case):
    def test_comes_with_the_first_pool_and_goes_with_the_process(self):
        with Program(self.folder) as program:
            program.do("1")
            self.assertEqual(page_client.pages_in(self.folder), [])
            self.assertNotIn("gpucache", programs.threads(program.pid))
            with Program("none") as without:
                without.do("alloc(64)")
                before = without.descriptors()
                self.assertNotIn("gpucache-bell", programs.threads(without.pid))
            program.do("alloc(64)")
            page = program.page()
            body, gpus = page.state()
            self.wait_for(lambda: "gpucache-bell" in programs.threads(program.pid),
                          "no thread at the doorbell")
            self.assertEqual(program.descriptors(), before)
            self.assertEqual(body["pid"], program.process.pid)
            self.assertEqual(page.get("pid"), program.process.pid)
            self.assertEqual(body["version"], T.VERSION)
            self.assertEqual(body["uid"], os.geteuid())
            self.assertEqual(body["signal"], signal.SIGUSR1)
            self.assertIn(" -c ", body["command"])
            self.assertEqual(set(body["options"]), {o["env"] for o in T.OPTIONS})
            self.assertEqual(body["options"]["GPUCACHE_DIR"], self.folder)
            self.assertEqual(set(body["counters"]), {c["name"] for c in T.COUNTERS})
            pool = body["pools"][0]
            self.assertLessEqual({s["name"] for s in T.STATS}, set(pool))
            self.assertRegex(pool["uuid"], r"^GPU(-[0-9a-f]+){5}$")
            self.assertEqual(pool["uuid"].replace("-", "")[3:], gpus[0]["uuid"].hex())
            self.assertEqual(gpus[0]["allocated_bytes"], 64 * MIB)
            self.assertGreater(pool["total_bytes"], 64 * MIB)
            self.leaves_nothing(program)

    def test_of_a_part_of_a_gpu_has_the_uuid_of_the_part(self):
        with self.running("alloc(1)", SIM_MIG="1") as (_, page):
            body, gpus = page.state()
            self.assertRegex(body["pools"][0]["uuid"], r"^MIG(-[0-9a-f]+){5}$")
            self.assertEqual(gpus[0]["uuid"][:9], b"partition")

    def test_is_a_second_old_at_most_while_somebody_looks(self):
        with self.running("alloc(1)") as (program, page):
            page.put("watched_until_ns", time.monotonic_ns() + 9 * 10**9)
            page.ring()
            program.do("alloc(32)")
            self.wait_for(lambda: page.state()[1][0]["allocated_bytes"] == 33 * MIB, "old", 8)
            program.do("alloc(1)")
            self.wait_for(lambda: page.state()[1][0]["allocated_bytes"] == 34 * MIB, "old", 8)

    def test_is_not_written_again_while_nothing_changes_and_nobody_looks(self):
        with self.running("alloc(1)") as (program, page):
            self.wait_for(lambda: "gpucache-bell" in programs.threads(program.pid),
                          "no thread at the doorbell")
            page.put("watched_until_ns", time.monotonic_ns() + 10**15)  # beyond what is allowed
            time.sleep(0.5)

            def rests():  # the last state of before may come late
                before = page.get("sequence")
                time.sleep(2.5)
                return page.get("sequence") == before
            self.wait_for(rests, "states of nothing new", 30)

    def test_tells_of_the_last_flush_and_who_asked_for_it(self):
        with self.running("alloc(64)", "free(1)") as (program, page):
            self.assertEqual(page.state()[0]["flush"]["count"], 0)
            os.kill(program.process.pid, signal.SIGUSR1)
            body = self.wait_for(lambda: page.state()[0]["flush"]["count"] == 1 and page.state()[0],
                                 "no flush")
            flush = body["flush"]
            self.assertEqual((flush["reason"], flush["bytes"]), ("signal", 64 * MIB))
            self.assertLess(abs(flush["unix_ns"] - time.time_ns()), 60 * 10**9)
            self.assertGreater(flush["ns"], 0)

    def test_that_somebody_removed_comes_back(self):
        with Program(self.folder + "/./") as program:
            program.do("alloc(64)")
            program.page()
            shutil.rmtree(self.folder)
            # Without a reason for a new state it comes within ten seconds.
            self.wait_for(lambda: page_client.pages_in(self.folder), "no page")
            page = program.page()
            self.assertEqual(page.state()[1][0]["allocated_bytes"], 64 * MIB)
            self.assertEqual(page.ask("flush wait=0")[0], T.PAGE_REPLY_DONE)
            shutil.rmtree(self.folder)
            program.process.send_signal(signal.SIGUSR1)
            self.wait_for(lambda: page_client.pages_in(self.folder), "no page", 8)
            self.leaves_nothing(program)

    def test_that_somebody_cut_off_comes_back_as_soon_as_its_folder_serves(self):
        with Program(self.folder) as program:
            program.do("alloc(64)")
            program.page()
            path = program.page_path()
            os.chmod(self.folder, 0o777)
            os.truncate(path, 0)
            for _ in range(3):
                program.process.send_signal(signal.SIGUSR1)
                time.sleep(0.2)
            self.assertEqual(os.path.getsize(path), 0)
            os.chmod(self.folder, 0o700)
            self.wait_for(lambda: os.path.getsize(path) == T.PAGE_BYTES, "no page", 30)
            page = program.page()
            self.assertEqual(page.state()[1][0]["allocated_bytes"], 64 * MIB)
            self.leaves_nothing(program)

    def test_of_a_process_that_becomes_another_program_is_replaced(self):
        with Program(self.folder) as program:
            program.do("alloc(64)")
            first = program.page_path()
            inode = os.stat(first).st_ino
            program.do("os.execve(sys.executable, sys.orig_argv, "
                       "{**os.environ, 'FIRST': 'alloc(1)'})")
            self.wait_for(lambda: os.path.exists(first) and os.stat(first).st_ino != inode,
                          "the old page")
            self.assertEqual(os.listdir(self.folder), [os.path.basename(first)])
            page = program.page()
            self.assertEqual(page.state()[1][0]["allocated_bytes"], MIB)
            self.leaves_nothing(program)


class Folder(Case):
    def test_that_the_user_named_and_that_does_not_serve_is_told_once(self):
        target = self.folder + "-target"
        os.mkdir(target, 0o700)
        os.symlink(target, self.folder)
        for tail in "", "/", "/.", "/.//":
            with self.subTest(tail=tail), Program(self.folder + tail) as program:
                program.do("alloc(64)", "free(1)", "alloc(1)")
                error = program.process.stderr.readline()
                time.sleep(0.3)
                status, more = program.finish()
                self.assertEqual((status, more, os.listdir(target)), (0, "", []))
                self.assertRegex(error, "gpucache: warning: GPUCACHE_DIR=.*symbolic link")

    def test_of_the_user_by_default(self):
        folder = f"/dev/shm/gpucache-{os.geteuid()}"
        with Program("") as program:
            program.folder = folder
            program.do("alloc(1)")
            path = program.page_path()
            self.assertEqual(os.stat(folder).st_mode & 0o7777, 0o700)
            self.assertEqual(program.finish(), (0, ""))
            self.assertFalse(os.path.exists(path))

    def test_is_in_tmp_where_shared_memory_does_not_serve(self):
        """In a mount namespace of its own; of a user other than root, in a user namespace too."""
        unshare = ["unshare", "--mount"] if not os.geteuid() else \
            ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
        name = f"gpucache-{os.geteuid()}"
        if shutil.which("unshare") is None or subprocess.run(
                [*unshare, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=False,
                capture_output=True).returncode:
            self.skipTest("no mounts of its own here (unshare --mount)")
        for what in ("mount -t tmpfs -o ro tmpfs /dev/shm",  # also where there is none
                     "mount -t tmpfs -o size=16k tmpfs /dev/shm",
                     f"mount -t tmpfs tmpfs /dev/shm; ln -s /tmp /dev/shm/{name}",
                     f"mount -t tmpfs tmpfs /dev/shm; mkdir -m 777 /dev/shm/{name}"):
            with self.subTest(what=what):
                before = [*unshare, "sh", "-c", what + '; exec "$@"', "sh"]
                with Program("", before=before) as program:
                    program.do("alloc(64)")
                    program.folder = f"/tmp/{name}"
                    page = program.page()
                    self.assertEqual(page.state()[1][0]["allocated_bytes"], 64 * MIB)
                    rest = os.path.join(f"/proc/{program.process.pid}", "root", "dev/shm", name)
                    left = os.listdir(rest) if os.path.isdir(rest) and \
                        not os.path.islink(rest) else []
                    self.assertEqual(left, [])
                    self.assertEqual(program.finish(), (0, ""))
                    self.assertEqual([name for name in os.listdir(program.folder)
                                      if f"-{program.process.pid}-" in name], [])

    @unittest.skipIf(os.geteuid(), "only root can become another user")
    def test_is_closed_to_other_users(self):
        os.chmod(os.path.dirname(self.folder), 0o755)
        with Program(self.folder) as program:
            program.do("alloc(1)")
            path = program.page_path()
            for command in (["ls", self.folder], ["cat", path], ["touch", path]):
                done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[],
                                      capture_output=True)
                self.assertIn(b"ermission denied", done.stderr, command)


class Request(Case):
    def ask(self, page, text, code=T.PAGE_REPLY_DONE):
        answer = page.ask(text)
        self.assertEqual(answer[0], code, answer)
        return answer[1:]

    def test_flush_gives_a_receipt(self):
        with self.running("alloc(64)", "alloc(32)", "alloc(16)", "free(1)", SIM_DEVICES="2") \
                as (program, page):
            uuid = page.state()[0]["pools"][0]["uuid"]
            value, receipt = self.ask(page, "flush")
            self.assertEqual(value, 64 * MIB)
            self.assertGreater(receipt["ns"], 0)
            (gpu,) = receipt["gpus"]
            self.assertEqual((gpu["uuid"], gpu["device"]), (uuid, 0))
            self.assertEqual((gpu["returned_bytes"], gpu["allocated_bytes"]),
                             (64 * MIB, 48 * MIB))
            self.assertEqual((gpu["pending_bytes"], gpu["idle_bytes"]),
                             (0, gpu["partly_live_bytes"]))
            program.do("free(1)", "alloc(8)", "cudart.cudaSetDevice(1)", "alloc(64)", "live.pop()",
                       "alloc(2)", "cudart.cudaFree(live.pop())")
            value, receipt = self.ask(page, f"flush gpu={uuid.lower()} keep={8 * MIB}")
            self.assertEqual([g["device"] for g in receipt["gpus"]], [0])
            self.assertEqual(value, receipt["gpus"][0]["returned_bytes"])
            self.assertGreaterEqual(receipt["gpus"][0]["idle_bytes"], 8 * MIB)
            value, receipt = self.ask(page, "flush gpu=1")
            self.assertEqual([g["device"] for g in receipt["gpus"]], [1])
            reply = self.ask(page, "flush gpu=7", T.PAGE_REPLY_REFUSED)[1]
            self.assertIn("no pool", reply["error"])
            body = self.wait_for(
                lambda: page.state()[0]["flush"]["count"] == 3 and page.state()[0], "no flushes")
            self.assertEqual(body["flush"]["reason"], "request")

    def test_flush_counts_what_the_drivers_own_pools_gave_back(self):
        with Program(self.folder) as program:
            self.assertEqual(program.do("alloc(4)", "keep_async(64)"), "0")
            page = program.page()
            self.ask(page, "look")
            self.assertEqual(page.state()[0]["pools"][0]["async_reserved_bytes"], 64 * MIB)
            self.assertEqual(page.state()[1][0]["async_idle_bytes"], 64 * MIB)
            for keep, value in (16, 48), (0, 16):
                given, reply = self.ask(page, f"flush keep={keep * MIB}")
                left = reply["gpus"][0]["async_idle_bytes"]
                self.assertEqual((given, left), (value * MIB, keep * MIB))

    def test_a_device_with_memory_of_the_drivers_pools_alone_is_told_and_flushed(self):
        with Program(self.folder) as program:
            self.assertEqual(program.do("keep_async_elsewhere(64)"), "0")
            page = program.page()
            self.ask(page, "look")
            body, gpus = page.state()
            self.assertEqual([(pool["device"], pool["async_idle_bytes"]) for pool in body["pools"]],
                             [(1, 0), (0, 64 * MIB)])
            self.assertEqual([gpu["async_idle_bytes"] for gpu in gpus[:2]], [0, 64 * MIB])
            given, reply = self.ask(page, f"flush gpu={body['pools'][1]['uuid']} keep={16 * MIB}")
            self.assertEqual([given, reply["gpus"][0]["async_idle_bytes"]], [48 * MIB, 16 * MIB])
            given, reply = self.ask(page, "flush")
            self.assertEqual([given, [gpu["device"] for gpu in reply["gpus"]]], [16 * MIB, [1, 0]])

    def test_the_row_of_a_device_that_was_told_stays_and_no_counter_of_it_falls(self):
        for back in 0, 64 * MIB:
            with self.subTest(back=back), Program(self.folder) as program:
                self.assertEqual(program.do("keep_async_elsewhere(64)"), "0")
                page = program.page()
                if back:
                    self.assertEqual(self.ask(page, "flush gpu=0")[0], back)
                for step in ("close_elsewhere()", "open_elsewhere(0)", "close_elsewhere()",
                             "open_elsewhere(4)"):
                    self.assertEqual(program.do(step), "0")
                    self.ask(page, "look")
                    self.assertEqual([(pool["device"], pool["async_returned_bytes"])
                                      for pool in page.state()[0]["pools"]], [(1, 0), (0, back)])
                    given, reply = self.ask(page, "flush")
                    self.assertEqual([given, [gpu["device"] for gpu in reply["gpus"]]],
                                     [0, [1, 0]])

    def test_a_device_without_a_record_is_told_behind_as_many_records_as_there_can_be(self):
        with Program(self.folder) as program:
            self.assertEqual(program.do("keep_async_elsewhere(64)", "open_contexts(127)"), "0")
            given, reply = self.ask(program.page(), f"flush gpu=0 keep={16 * MIB}")
            self.assertEqual([given, [gpu["device"] for gpu in reply["gpus"]]], [48 * MIB, [0]])

    def test_that_is_not_understood_says_so_and_does_nothing(self):
        with self.running("alloc(64)", "free(1)") as (_, page):
            for text in ("", " ", "Flush", "flush\n", "flush\0", "flush x", "flush x=1",
                         "look gpu=0", "cached gpu=0", "flush keep=", "flush keep=-1",
                         "flush keep=1M", "flush wait=10001",
                         "flush frameworks=2", "flush gpu=0 gpu=0", "flush =1", "flushkeep=1",
                         "flush keep=18446744073709551616", b"\xff" * 992, "flush " + "a=1 " * 246,
                         "give", "set"):
                value, reply = page.ask(text)[1:]
                self.assertEqual(value, 0, text)
                if text not in ("give", "set"):
                    self.assertTrue(reply["error"], text)
            self.ask(page, "look")
            body, gpus = page.state()
            self.assertEqual((body["flush"]["count"], gpus[0]["idle_bytes"]), (0, 64 * MIB))

    def test_to_flush_waits_for_the_end_of_a_capture_and_look_does_not(self):
        with self.running("alloc(64)", "free(1)", "capture(True)") as (program, page):
            with self.assertRaises(TimeoutError):
                page.ask("flush", 0.5)
            self.ask(page, "look")
            self.assertEqual(page.state()[1][0]["idle_bytes"], 64 * MIB)
            program.do("capture(False)")
            self.wait_for(lambda: page.state()[1][0]["idle_bytes"] == 0, "no flush")

    def test_to_flush_begins_a_millisecond_after_the_last_one_at_the_soonest(self):
        with self.running("alloc(1)") as (_, page):
            took_ms = []
            for _ in range(30):
                start = time.monotonic()
                asked = [page.put_ask("flush") for _ in range(T.PAGE_SLOTS)]
                page.ring()
                for at, sequence in asked:
                    self.assertEqual(page.await_reply(at, sequence)[0], T.PAGE_REPLY_DONE)
                took_ms.append((time.monotonic() - start) * 1000)
            self.assertGreaterEqual(min(took_ms), T.PAGE_SLOTS - 1)
