# SPDX-License-Identifier: BSD-2-Clause
"""What the tool makes of NVML: GPUs in parts (MIG), devices that do not tell all, processes without
the library. The calls are those of nvidia-ml-py, of a stand-in for the driver's library, or of a
program in the place of nvidia-smi.

test_nvml.py TOOL NEW_LIBRARY OLD_LIBRARY"""
import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
import time
import types
import unittest
import unittest.mock

from fake import MIB, TOOL, UUID, UUID_B, body, flushed, pool, put_text, tool, well
from test_page import Case

from gpucache import gpu, machine, process, tables

WHOLE = "GPU-57484f4c-4500-0000-0000-000000000001"
MIG_UUID = UUID.replace("GPU-", "MIG-")
# Before driver 470 a part had its GPU's name and its place in it.
OLD_MIG_UUID = "MIG-GPU-57484f4c-4500-0000-0000-000000000001/7/0"


class NotSupported(Exception):
    """As NVMLError_NotSupported."""


class Nvml(types.ModuleType):
    """pynvml. gpus: {uuid: {"parts": {number: uuid}, "processes": [(pid, bytes)], "refuses": names
    of calls}}; a part is one more GPU there."""

    def __init__(self, gpus, top):
        super().__init__("pynvml")
        self.gpus, self.top, self.shut_down = gpus, top, 0

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.shut_down += 1

    def nvmlDeviceGetCount(self):
        return len(self.top)

    def _ask(self, uuid, name, answer):
        if name in self.gpus[uuid].get("refuses", ()):
            raise NotSupported("Not Supported")
        return answer

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.top[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetName(self, handle):
        return self._ask(handle, "name", b"H200")

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        return self._ask(handle, "memory", types.SimpleNamespace(total=80 << 30, used=1 << 30))

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        found = [types.SimpleNamespace(pid=pid, usedGpuMemory=used)
                 for pid, used in self.gpus[handle].get("processes", ())]
        return self._ask(handle, "processes", found)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return self._ask(handle, "drawing", [])

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        return self._ask(device, "parts", 7 if "parts" in self.gpus[device] else 0)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index not in self.gpus[device]["parts"]:
            raise NotSupported("Not Found")
        return self.gpus[device]["parts"][index]


@contextlib.contextmanager
def nvml(gpus, top=None):
    parts = [part for gpu in gpus.values() for part in gpu.get("parts", {}).values()]
    made = Nvml({**{part: {} for part in parts}, **gpus},
                top or [uuid for uuid in gpus if uuid not in parts])
    with unittest.mock.patch.dict(sys.modules, pynvml=made):
        yield made


def on_the_host():
    """The numbers of processes are those that the driver tells, also where the test itself runs in
    a pid namespace."""
    return unittest.mock.patch.object(machine, "in_container", lambda: False)


class Parts(Case):
    def test_a_part_is_shown_by_the_numbers_of_its_gpu_and_itself(self):
        for uuid in MIG_UUID, OLD_MIG_UUID:
            with self.subTest(uuid=uuid):
                page = self.page(body(pool(uuid=uuid)))
                with nvml({"GPU-other": {}, WHOLE: {"parts": {2: uuid}}}):
                    (found,) = tool("ps", "--json").json["processes"]
                    self.assertEqual(found["gpus"][0]["index"], "1:2")
                    self.assertRegex(tool("ps").out, rf"{os.getpid()} +\S+ +1:2 ")
                page.close()

    def test_a_part_answers_to_its_number_and_its_uuid(self):
        asked = []

        def answer(words):
            asked.append(words)
            return tables.PAGE_REPLY_DONE, 0, flushed(uuid=MIG_UUID)
        self.page(body(pool(uuid=MIG_UUID)), answer=answer)
        with nvml({"GPU-other": {}, WHOLE: {"parts": {2: MIG_UUID}}}):
            for wanted in "1:2", MIG_UUID, MIG_UUID.lower(), MIG_UUID[4:], MIG_UUID[:10]:
                done = well("flush", os.getpid(), "--gpu", wanted)
                self.assertIn(f"gpu={MIG_UUID}", asked[-1])
                self.assertIn("GPU 1:2:", done.out)
            number = len(asked)
            for wanted in "1", "0", "1:0", WHOLE, "MIG-1111":
                self.assertEqual(tool("flush", os.getpid(), "--gpu", wanted).status, 1, wanted)
            self.assertEqual(len(asked), number)

    def test_without_nvml_a_part_has_the_number_that_its_process_gives_it(self):
        self.page(body(pool(uuid=MIG_UUID)))
        with unittest.mock.patch.dict(sys.modules, pynvml=None):
            self.assertRegex(tool("ps").out, rf"{os.getpid()} +\S+ +0 ")

    def test_a_process_in_a_part_is_listed_once(self):
        """By a package that is too old to know those that draw, too."""
        other, _ = self.sleeper()
        both = [(other.pid, 512 * MIB)]
        with nvml({WHOLE: {"parts": {0: MIG_UUID}, "processes": both},
                   MIG_UUID: {"processes": both}}), unittest.mock.patch.object(
                       Nvml, "nvmlDeviceGetGraphicsRunningProcesses", property()):
            (entry,) = tool("ps", "--json").json["without_page"]
            self.assertEqual((entry["pid"], entry["gpu"], entry["gpu_uuid"]),
                             (other.pid, "0:0", MIG_UUID))


class Rest(Case):
    def test_a_device_that_does_not_tell_all_is_shown_with_what_it_tells(self):
        self.page(body(pool()))
        other, _ = self.sleeper()
        for refused in "name", "memory", "processes", "parts":
            with on_the_host(), nvml({WHOLE: {"refuses": [refused]}, UUID: {
                    "processes": [(other.pid, None), (os.getpid(), MIB)]}}) as module:
                done, as_json = tool("ps"), tool("ps", "--json").json
                self.assertEqual((done.status, done.err), (0, ""), refused)
                self.assertEqual(as_json["nvml"], "ok", refused)
                self.assertEqual([d["uuid"] for d in as_json["gpus"]], [WHOLE, UUID])
                self.assertEqual(as_json["processes"][0]["gpus"][0]["index"], 1)
                self.assertEqual([e["pid"] for e in as_json["without_page"]], [other.pid])
                self.assertRegex(done.out, rf"{other.pid} +\S+ +1 .* python\S* "
                                           r"\(without the library\)")
                self.assertEqual(module.shut_down, 2)
                figures = tool("metrics")
                self.assertIn(figures.status, (0, 3))  # 3: without prometheus_client
                self.assertNotIn("None", figures.out)

    def test_the_calls_are_those_of_nvidia_ml_py(self):
        names = set(re.findall(r"\bnvml[A-Z]\w+", inspect.getsource(gpu)))
        self.assertGreater(len(names), 7)
        self.assertEqual(names - set(dir(Nvml)), set(), "the stand-in has all of them")
        try:
            real = importlib.import_module("pynvml")
        except ImportError:
            self.skipTest("nvidia-ml-py is not installed: its names are not compared")
        for name in names:
            mine = inspect.signature(getattr(Nvml, name)).parameters
            its = inspect.signature(getattr(real, name)).parameters
            self.assertEqual(len(mine) - 1, len(its), name)


# The tool without any package, with a folder's libnvidia-ml.so.1 and nvidia-smi alone.
PLAIN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.modules["pynvml"] = None
from gpucache import cli, gpu, machine, page
page.PLACES = ("/proc/none",)
machine.in_container = lambda: False
gpu.PATIENCE_S = float(sys.argv.pop(1))
sys.exit(cli.main())
"""


class Plain(Case):
    """The tool in a process of its own, by the driver's library or by nvidia-smi."""

    def setUp(self):
        super().setUp()
        self.driver = os.path.join(self.folder, "driver")
        os.mkdir(self.driver)

    def library(self, which):
        link = os.path.join(self.driver, "libnvidia-ml.so.1")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(os.path.realpath(sys.argv[1 + which]), link)

    def tool(self, *words, patience=30, **env):
        return subprocess.run([sys.executable, "-X", "utf8", "-c", PLAIN, TOOL, str(patience),
                               *words], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "LD_LIBRARY_PATH": self.driver,
                                   "PATH": self.driver, **env})

    def child(self):
        return self.sleeper()[0].pid

    def test_a_line_for_each_gpu_then_all_processes_on_it(self):
        self.page(body(pool(), pool(1, UUID_B)))
        computes, draws = self.child(), self.child()
        for which in 1, 2:
            self.library(which)
            done = self.tool("ps", NVML_PROCESSES=f"0:{computes}:{512 << 20},0:{os.getpid()}:1,"
                                                  f"1:{computes}:-,1:4194303:{3 << 30}",
                             NVML_DRAWS=f"0:{draws}:{64 << 20},0:{computes}:{512 << 20}")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = done.stdout.splitlines()
            self.assertEqual(lines[:3], [
                "GPU 0: NVIDIA Stand-in 0, 24 GiB, 23 GiB free; a flush would give back up to "
                "156 MiB", "GPU 1: NVIDIA Stand-in 1, 24 GiB, 22 GiB free; a flush would give back "
                "up to 156 MiB", ""])
            rows = [line.split() for line in lines[4:]]
            self.assertEqual([(int(row[0]), row[2]) for row in rows],
                             [(computes, "0"), (os.getpid(), "0"), (draws, "0"),
                              (4194303, "1"), (os.getpid(), "1"), (computes, "1")])
            self.assertIn("512 MiB", lines[4])
            self.assertIn("(without the library)", lines[4])
            self.assertIn("64 MiB", lines[6])
            self.assertRegex(lines[7], r"4194303 +\? .* 3 GiB .* \? \(has ended\)")
            as_json = self.tool("ps", "--json", NVML_PROCESSES=f"1:{computes}:-").stdout
            self.assertIn('"used_bytes": null', as_json)
            self.assertIn('"nvml": "ok"', as_json)

    def test_where_nothing_runs_a_sentence_says_so(self):
        self.library(1)
        done = self.tool("ps")
        user = process.user_name(os.geteuid())
        self.assertEqual(done.stdout.splitlines()[2:],
                         [f"no process of {user} is under libgpucache, and none is on a GPU"])
        os.unlink(os.path.join(self.driver, "libnvidia-ml.so.1"))
        done = self.tool("ps")
        self.assertEqual(done.stdout.splitlines(),
                         [f"no process of {user} is under libgpucache",
                          "processes without the library are not listed: there is no NVIDIA "
                          "driver: neither libnvidia-ml.so.1 nor nvidia-smi is here"])

    def test_what_the_driver_says_against_it_is_told(self):
        self.library(1)
        self.assertIn("NVML does not answer: Driver Not Loaded",
                      self.tool("ps", "-v", NVML_CODE="9").stdout)

    def test_nobody_waits_long_for_a_slow_driver(self):
        self.page()
        self.library(1)
        start = time.monotonic()
        done = self.tool("ps", "-v", patience=0.2, NVML_SLOW_MS="50000")
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(done.returncode, 0)
        self.assertIn(f"\n{os.getpid()} ", done.stdout)
        self.assertIn("the driver has not answered within 0.2 s", done.stdout)

    def test_processes_that_start_meanwhile_and_many_of_them(self):
        self.library(1)
        many = ",".join(f"0:{4194304 + i}:{1 << 20}" for i in range(500))
        done = self.tool("ps", NVML_PROCESSES=many, NVML_GROWS="1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertGreaterEqual(done.stdout.count("has ended"), 500)

    def test_without_the_library_nvidia_smi_is_asked(self):
        pid = self.child()
        path = os.path.join(self.driver, "nvidia-smi")
        put_text(path, f"""#!{sys.executable}
import sys
if sys.argv[1].startswith("--query-gpu"):
    print("0, {UUID}, NVIDIA H100, 81559, 1024\\n1, {UUID_B}, NVIDIA H100, 81559, [N/A]")
else:
    print("{UUID}, {pid}, 512\\n{UUID_B}, {pid}, [N/A]")
""", 0o755)
        done = self.tool("ps")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("GPU 0: NVIDIA H100, 79.6 GiB, 78.6 GiB free", done.stdout)
        self.assertIn("GPU 1: NVIDIA H100, 79.6 GiB\n", done.stdout)
        self.assertRegex(done.stdout, rf"\n{pid} .* 512 MiB ")
        put_text(path, f"#!{sys.executable}\nprint('No devices were found')\nexit(6)\n")
        self.assertIn("not listed: No devices were found", self.tool("ps", "-v").stdout)

    def test_a_number_of_the_host_is_no_process_of_the_container(self):
        """In a container the driver may tell numbers of the host. A process that has nothing of the
        driver's mapped is none of the GPU's."""
        other = self.child()
        gpus = types.SimpleNamespace(
            processes=[{"pid": other, "gpu_uuid": UUID, "used_bytes": MIB}], index=lambda uuid: 0)
        with unittest.mock.patch.object(process, "namespace",
                                        lambda pid: machine.INITIAL_NAMESPACE):
            (entry,) = machine.without_page(gpus, [])
        self.assertEqual((entry["user"], entry["library"]),
                         (process.user_name(os.geteuid()), False))
        with unittest.mock.patch.object(process, "namespace", lambda pid: 4026532000):
            (entry,) = machine.without_page(gpus, [])
        self.assertEqual((entry["user"], entry["name"]), (None, "?"))

    def test_a_process_that_ended_between_two_looks_is_called_so(self):
        """The driver gives its memory back later. In a container the number may be the host's."""
        gpus = types.SimpleNamespace(
            processes=[{"pid": 4194303, "gpu_uuid": UUID, "used_bytes": MIB}], devices=[], why="",
            index=lambda uuid: 0)
        for namespace, note in (machine.INITIAL_NAMESPACE, "has ended"), \
                (4026532000, "not visible here"), (None, "not visible here"):
            with unittest.mock.patch.object(process, "namespace", lambda _, ns=namespace: ns):
                now = machine.Machine()
                now.add([], gpus)
            self.assertEqual([holder.note for holder in now.holders], [note], namespace)

    def test_a_process_under_the_library_of_which_no_figures_are_known(self):
        other = self.child()
        with nvml({UUID: {"processes": [(other, 512 * MIB)]}}), on_the_host(), \
                unittest.mock.patch.object(process, "has_library", lambda _: True):
            out = tool("ps").out
        self.assertRegex(out, rf"\n{other} .* 512 MiB .*\(with the library, no figures\)\n")
        self.assertTrue(out.endswith(f"no figures: gpucache stat {other} says why\n"), out)
