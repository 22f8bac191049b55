# SPDX-License-Identifier: BSD-2-Clause
"""Steps of a Python package, which print checksums. What it keeps on the GPU changes with each.

work_packages.py jax|cupy|numba                        says "ready" and does a step for each line of
                                                       its input
work_packages.py jax|cupy|numba FIGURES STEPS [pool]   so many steps; the file gets their seconds.
                                                       CuPy has its pool only if it is named"""
import json
import sys
import time

import numpy as np

SIDE = 1024


def jax():
    import jax as package
    import jax.numpy as jnp
    if package.default_backend() != "gpu":
        print("jax has no GPU backend")
        sys.exit(77)

    @package.jit
    def work(weights, inputs):
        def loss(w):
            return jnp.mean((jnp.tanh(inputs @ w) - inputs) ** 2)
        value, gradient = package.value_and_grad(loss)(weights)
        return weights - 0.1 * gradient, value

    key = package.random.PRNGKey(3)
    kept = [package.random.normal(key, (SIDE, SIDE)) * 0.05]

    def step(i):
        inputs = package.random.normal(package.random.fold_in(key, i), (64 << i % 3, SIDE))
        kept[0], value = work(kept[0], inputs)
        return float(value).hex(), float(kept[0].sum()).hex()
    return step


def cupy():
    import cupy as package
    if sys.argv[2:] and "pool" not in sys.argv:
        package.cuda.set_allocator(None)
    kept = [package.arange(SIDE * SIDE, dtype=package.float32).reshape(SIDE, SIDE) / SIDE ** 2]

    def step(i):
        n = (1 << 18) + 4099 * (i * 13 % 64)
        a = package.arange(n, dtype=package.float64) * 1.000001 % 977
        b = package.cumsum(package.sort(a[::-1].copy()).astype(package.int64))
        c = package.fft.fft(a.astype(package.complex64)[:1 << 16])
        kept[0] = package.tanh(kept[0] @ kept[0].T / SIDE + i % 7 / 10 - 0.3)
        return int(b[-1]), float(package.abs(c).max()).hex(), float(kept[0].sum()).hex()
    return step


def numba():
    # Some versions of Numba look up names that NumPy 2 has taken away.
    for name, stand_in in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
        if not hasattr(np, name):
            setattr(np, name, getattr(np, stand_in))
    from numba import cuda

    @cuda.jit
    def scale(out, values, factor):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = values[i] * factor + i

    kept = cuda.to_device(np.arange(SIDE * SIDE, dtype=np.int64))

    def step(i):
        n = 1000 + i * 7919 % 300000
        values = cuda.to_device(np.arange(n, dtype=np.int64))
        out = cuda.device_array(n, dtype=np.int64)
        scale[(n + 255) // 256, 256](out, values, i)
        scale[(kept.size + 255) // 256, 256](kept, kept, 3)
        return int(out.copy_to_host().sum()), int(kept.copy_to_host().sum())
    return step


def main():
    step = {"jax": jax, "cupy": cupy, "numba": numba}[sys.argv[1]]()
    step(0)
    if not sys.argv[2:]:
        print("ready", flush=True)
        for number, _ in enumerate(sys.stdin, 1):
            print(number, *step(number), flush=True)
        return
    for number in 1, 2:  # of each shape that is compiled
        step(number)
    start = time.perf_counter()
    for number in range(int(sys.argv[3])):
        print(number, *step(number))
    with open(sys.argv[2], "w") as file:
        json.dump({"seconds": time.perf_counter() - start}, file)


main()
