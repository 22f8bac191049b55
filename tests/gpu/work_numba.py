# SPDX-License-Identifier: BSD-2-Clause
"""Numba: arrays of varying size made, used by a kernel, copied back. Checksums go to stdout; the
seconds to the file named first."""
import json
import sys
import time

import numpy as np

# Some versions of Numba look up names that NumPy 2 has taken away.
for name, stand_in in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
    if not hasattr(np, name):
        setattr(np, name, getattr(np, stand_in))
from numba import cuda  # noqa: E402


@cuda.jit
def scale(out, values, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = values[i] * factor + i


start = None
for i in range(101):
    n = 1000 + (i * 7919) % 300000
    values = cuda.to_device(np.arange(n, dtype=np.int64))
    out = cuda.device_array(n, dtype=np.int64)
    scale[(n + 255) // 256, 256](out, values, i)
    print(i, n, int(out.copy_to_host().sum()))
    del values, out
    if i == 0:
        cuda.synchronize()
        start = time.perf_counter()
cuda.synchronize()
with open(sys.argv[1], "w") as file:
    json.dump({"seconds": time.perf_counter() - start}, file)
