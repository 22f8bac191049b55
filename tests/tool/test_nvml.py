# SPDX-License-Identifier: BSD-2-Clause
"""What the tool makes of NVML: GPUs in parts (MIG), devices that do not tell all, processes without
the library. The calls are those of nvidia-ml-py.

test_nvml.py TOOL"""
import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
import types
import unittest

from fake import MIB, UUID, body, flushed_one, pool, tool
from test_page import Case

from gpucache import gpu, tables

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

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        return self._ask(device, "parts", 7 if "parts" in self.gpus[device] else 0)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index not in self.gpus[device]["parts"]:
            raise NotSupported("Not Found")
        return self.gpus[device]["parts"][index]


@contextlib.contextmanager
def nvml(gpus, top=None):
    parts = [part for gpu in gpus.values() for part in gpu.get("parts", {}).values()]
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = made = Nvml({**{part: {} for part in parts}, **gpus},
                                        top or [uuid for uuid in gpus if uuid not in parts])
    try:
        yield made
    finally:
        del sys.modules["pynvml"]
        if before:
            sys.modules["pynvml"] = before


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
            return tables.PAGE_REPLY_DONE, 0, flushed_one(MIG_UUID)
        self.page(body(pool(uuid=MIG_UUID)), answer=answer)
        with nvml({"GPU-other": {}, WHOLE: {"parts": {2: MIG_UUID}}}):
            for wanted in "1:2", MIG_UUID, MIG_UUID.lower(), MIG_UUID[4:], MIG_UUID[:10]:
                done = tool("flush", os.getpid(), "--gpu", wanted)
                self.assertEqual((done.status, done.err), (0, ""), wanted)
                self.assertIn(f"gpu={MIG_UUID}", asked[-1])
                self.assertIn("GPU 1:2:", done.out)
            number = len(asked)
            for wanted in "1", "0", "1:0", WHOLE, "MIG-1111":
                self.assertEqual(tool("flush", os.getpid(), "--gpu", wanted).status, 1, wanted)
            self.assertEqual(len(asked), number)

    def test_without_nvml_a_part_has_the_number_that_its_process_gives_it(self):
        self.page(body(pool(uuid=MIG_UUID)))
        sys.modules["pynvml"] = None
        try:
            self.assertRegex(tool("ps").out, rf"{os.getpid()} +\S+ +0 ")
        finally:
            del sys.modules["pynvml"]

    def test_a_process_in_a_part_is_listed_once(self):
        with subprocess.Popen(["sleep", "100"]) as other:
            try:
                both = [(other.pid, 512 * MIB)]
                with nvml({WHOLE: {"parts": {0: MIG_UUID}, "processes": both},
                           MIG_UUID: {"processes": both}}):
                    (entry,) = tool("ps", "--json").json["without_page"]
                    self.assertEqual((entry["pid"], entry["gpu"], entry["gpu_uuid"]),
                                     (other.pid, "0:0", MIG_UUID))
            finally:
                other.kill()


class Rest(Case):
    def test_a_device_that_does_not_tell_all_is_shown_with_what_it_tells(self):
        self.page(body(pool()))
        with subprocess.Popen(["sleep", "100"]) as other:
            try:
                for refused in "name", "memory", "processes", "parts":
                    with nvml({WHOLE: {"refuses": [refused]},
                               UUID: {"processes": [(other.pid, None)]}}) as module:
                        done, as_json = tool("ps"), tool("ps", "--json").json
                        self.assertEqual((done.status, done.err), (0, ""), refused)
                        self.assertEqual(as_json["nvml"], "ok", refused)
                        self.assertEqual([d["uuid"] for d in as_json["gpus"]], [WHOLE, UUID])
                        self.assertRegex(done.out, rf"{other.pid} +\S+ +1 .* sleep "
                                                   r"\(without the library\)")
                        self.assertEqual(module.shut_down, 2)
                        figures = tool("metrics")
                        self.assertIn(figures.status, (0, 3))  # 3: without prometheus_client
                        self.assertNotIn("None", figures.out)
            finally:
                other.kill()

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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
