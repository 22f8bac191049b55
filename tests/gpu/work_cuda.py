# SPDX-License-Identifier: BSD-2-Clause
"""cuda-python: memory of varying size allocated, filled, copied and freed. Checksums go to stdout;
the seconds to the file named first. work_cuda.py FIGURES driver|runtime"""
import json
import sys
import time

from cuda.bindings import driver, runtime

ROUNDS = 120


def must(answer):
    code, *values = answer
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def start(api):
    """What makes and ends memory; copies, to the device, to the host and within the device."""
    if api == "driver":
        must(driver.cuInit(0))
        device = must(driver.cuDeviceGet(0))
        must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(device))))
        return (driver.cuMemAlloc, driver.cuMemFree, driver.cuMemcpyHtoD, driver.cuMemcpyDtoH,
                driver.cuMemcpyDtoD)
    must(runtime.cudaSetDevice(0))
    kinds = runtime.cudaMemcpyKind
    return (runtime.cudaMalloc, runtime.cudaFree, *(
        lambda to, source, size, kind=kind: runtime.cudaMemcpy(to, source, size, kind)
        for kind in (kinds.cudaMemcpyHostToDevice, kinds.cudaMemcpyDeviceToHost,
                     kinds.cudaMemcpyDeviceToDevice)))


def main():
    malloc, free, put, get, copy = start(sys.argv[2])
    must(free(must(malloc(256))))
    begun = time.perf_counter()
    for i in range(ROUNDS):
        words = 256 + (i * 7919) % 60000
        a, b = (int(must(malloc(words * 4))) for _ in range(2))
        must(driver.cuMemsetD32(a, i * 2654435761 % (1 << 32), words))
        must(copy(b, a, words * 2))
        must(free(a))
        must(put(b + words // 2 // 4 * 4, bytes(range(256)), 256))
        data = bytearray(words * 2)
        must(get(data, b, len(data)))
        must(free(b))
        print(i, words, sum(data), bytes(data[:4]).hex(), bytes(data[-4:]).hex())
    with open(sys.argv[1], "w") as file:
        json.dump({"seconds": time.perf_counter() - begun}, file)


main()
