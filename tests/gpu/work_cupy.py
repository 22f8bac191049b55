# SPDX-License-Identifier: BSD-2-Clause
"""CuPy without its pools: sorts, scans, products and transforms of varying size. Checksums go to
stdout; the seconds to the file named first. work_cupy.py FIGURES [STEPS] [pool]"""
import json
import sys
import time

import cupy

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
if "pool" not in sys.argv:
    cupy.cuda.set_allocator(None)


def step(i):
    n = (1 << 18) + 4099 * ((i * 13) % 64)
    a = cupy.arange(n, dtype=cupy.float64) * 1.000001 % 977
    b = cupy.sort(a[::-1].copy())
    c = cupy.cumsum(b.astype(cupy.int64))
    d = cupy.fft.fft(a.astype(cupy.complex64)[:1 << 16])
    e = (a.reshape(-1)[:512 * 512].reshape(512, 512).astype(cupy.float32) /
         977) @ cupy.eye(512, dtype="f")
    return int(c[-1]), float(cupy.abs(d).max()).hex(), float(e.sum()).hex()


step(0)
cupy.cuda.Device().synchronize()
start = time.perf_counter()
for i in range(steps):
    print(i, *step(i))
cupy.cuda.Device().synchronize()
with open(sys.argv[1], "w") as file:
    json.dump({"seconds": time.perf_counter() - start}, file)
