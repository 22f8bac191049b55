# SPDX-License-Identifier: BSD-2-Clause
"""Which backing a process gets by itself. Where a library is loaded that registers memory it gets
segments, and the statistics name the library. Everywhere else, and wherever it is asked for, it is
the arena."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import programs

LIBRARY, FOLDERS, ANY, DEFINITIONS = sys.argv[1:5]
with open(DEFINITIONS, encoding="utf-8") as file:
    ROWS = dict(re.findall(r'^LIBRARY\("([^"]+)", "([^"]+)"\)', file.read(), re.MULTILINE))

# Loads the libraries named first and allocates.
PROGRAM = """
import ctypes, sys
for name in sys.argv[1:]:
    ctypes.CDLL(name)
cudart = ctypes.CDLL("libcudart.so.13")
p = ctypes.c_void_p()
assert cudart.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(1 << 20)) == 0
"""

# Exports a block of so many bytes once the process may start no thread.
EXPORT = """
import ctypes, os, resource, sys
cudart = ctypes.CDLL("libcudart.so.13")
p, handle = ctypes.c_void_p(), (ctypes.c_char * 64)()
assert cudart.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(int(sys.argv[1]))) == 0
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:  # for which the limit does not hold
    os.setuid(65534)
print(cudart.cudaIpcGetMemHandle(handle, p))
"""


def exported(size_bytes, backing):
    """What the export of a block gives, and what the library says."""
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, str(size_bytes)], text=True, capture_output=True, timeout=60,
        check=True, env=programs.environ(LIBRARY, FOLDERS, GPUCACHE_BACKING=backing))
    return int(done.stdout), done.stderr


def pool_of(file_names, **options):
    """The pool's entry in the report of a process that has loaded libraries of these names."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [shutil.copy(ANY, os.path.join(folder, name)) for name in file_names]
        done, text = programs.reported([sys.executable, "-c", PROGRAM, *paths],
                                       programs.environ(LIBRARY, FOLDERS, **options))
    if done.returncode:
        raise AssertionError(done.stderr)
    return programs.pool_of(text)


class Backing(unittest.TestCase):
    def test_is_segments_beside_a_library_that_registers_memory(self):
        self.assertGreater(len(ROWS), 10)
        for name, reason in ROWS.items():
            with self.subTest(name):
                pool = pool_of([f"{name}.so.7"])
                self.assertEqual((pool["backing"], pool["reason"]), ("segment", reason))

    def test_knows_the_copies_of_packages_and_the_parts_of_a_family(self):
        for file_name in ("libucp-1a2b3c4d.so.0.0.0", "libuct_cuda.so.0", "libmpi_cxx.so.40",
                          "libmpi_gtl_cuda.so", "libnixl.so", "libfabric-99.so.1.24"):
            with self.subTest(file_name):
                self.assertEqual(pool_of([file_name])["backing"], "segment")

    def test_is_the_arena_beside_others(self):
        pool = pool_of(["libnccl.so.2", "libcufile.so.0", "libnvshmem_host.so.3",
                        "libibverbs.so.1", "libmpifr.so.1", "libfabrics.so.1", "libucs.so.0"])
        self.assertEqual(pool["backing"], "arena")

    def test_is_what_was_asked_for(self):
        self.assertEqual(pool_of(["libucp.so.0"], GPUCACHE_BACKING="arena")["backing"], "arena")
        self.assertEqual(pool_of([], GPUCACHE_BACKING="segment")["backing"], "segment")

    def test_an_export_without_a_thread_says_what_helps_for_this_block(self):
        small, large = 1 << 20, 4 << 20
        self.assertEqual(exported(large, "segment"), (0, ""))
        for size_bytes, backing in ((small, "segment"), (small, "arena"), (large, "arena")):
            with self.subTest(size_bytes=size_bytes, backing=backing):
                rc, said = exported(size_bytes, backing)
                self.assertEqual(rc, 801)
                self.assertIn("raise the limit of threads", said)
                self.assertEqual("GPUCACHE_BACKING=segment" in said, size_bytes == large, said)

    def test_is_segments_where_there_is_nothing_else(self):
        pool = pool_of([], SIM_VMM="0")
        self.assertEqual((pool["backing"], pool["reason"]),
                         ("segment", "the device has no virtual memory management"))
