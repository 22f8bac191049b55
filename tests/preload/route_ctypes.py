# SPDX-License-Identifier: BSD-2-Clause
"""The basic loop from Python: the runtime and the driver opened by ctypes, as bindings do."""
import ctypes
import sys

SIZES = (1000, 65536, 1 << 20, (5 << 20) + 4)


def play(malloc, free, memset, get, name):
    wrong = 0
    for round_number in range(50):
        blocks = []
        for i, size in enumerate(SIZES):
            pointer = ctypes.c_void_p()
            assert malloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
            assert memset(pointer, (round_number + i) & 0xff, ctypes.c_size_t(size)) == 0
            blocks.append(pointer)
        for i, (pointer, size) in enumerate(zip(blocks, SIZES)):
            back = ctypes.create_string_buffer(16)
            last = ctypes.c_void_p(pointer.value + size - 16)
            assert get(back, last, ctypes.c_size_t(16)) == 0
            wrong += back.raw != bytes([(round_number + i) & 0xff]) * 16
            assert free(pointer) == 0
    print(f"{name}: {wrong} wrong blocks")
    return wrong


def main():
    try:
        runtime = ctypes.CDLL(sys.argv[1])
    except OSError:
        print(f"skipped: no {sys.argv[1]}")
        return 77
    rc = runtime.cudaFree(None)
    if rc in (35, 100):
        print("skipped: no device")
        return 77
    assert rc == 0
    wrong = play(runtime.cudaMalloc, runtime.cudaFree, runtime.cudaMemset,
                 lambda to, source, size: runtime.cudaMemcpy(to, source, size, 2), "runtime")
    driver = ctypes.CDLL("libcuda.so.1")
    wrong += play(driver.cuMemAlloc_v2, driver.cuMemFree_v2,
                  lambda to, byte, size: driver.cuMemsetD8_v2(to, ctypes.c_ubyte(byte), size),
                  driver.cuMemcpyDtoH_v2, "driver")
    return wrong != 0


sys.exit(main())
