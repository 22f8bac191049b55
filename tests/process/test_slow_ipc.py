# SPDX-License-Identifier: BSD-2-Clause
"""A handle of another process is opened although each answer takes longer than the first wait for
one (shim/share/mapping.c). They take so long on a GPU whose driver is busy with many processes."""
import os
import subprocess
import sys

import programs
import waiting

LIBRARY, FOLDER = (os.path.realpath(path) for path in sys.argv[1:3])
# Longer than the first wait, and shorter than the second less what is left of the first answer.
SLOW_NS = 1300 * 1000 * 1000

START = """
import ctypes, sys
cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
"""
EXPORTER = START + """
handle = Handle()
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(2 << 20)) == 0
assert cuda.cuIpcGetMemHandle(ctypes.byref(handle), at) == 0
print(bytes(handle.bytes).hex(), flush=True)
sys.stdin.read()
"""
IMPORTER = START + """
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
print(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(at), handle, 1))
"""


class SlowIpc(waiting.Waiting):
    def test_each_answer_takes_longer_than_the_first_wait(self):
        env = programs.environ(LIBRARY, FOLDER, GPUCACHE_DIR=self.scratch(), SIM_REALTIME="1",
                               SIM_COST_cuMemRetainAllocationHandle=str(SLOW_NS))
        with programs.Talker([sys.executable, "-c", EXPORTER], env) as exporter:
            opened = subprocess.run([sys.executable, "-c", IMPORTER, exporter.read()], env=env,
                                    check=True, capture_output=True, text=True, timeout=100)
            self.assertEqual(exporter.finish(), (0, ""))
        self.assertEqual(opened.stdout.strip(), "0")
