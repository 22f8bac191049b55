# SPDX-License-Identifier: BSD-2-Clause
"""Python's multiprocessing: workers forked before the parent uses CUDA, spawned and from a fork
server after it, and os.fork() after it, whose child CUDA refuses. Each allocates, writes and reads
back."""
import ctypes
import multiprocessing
import os
import sys
import warnings

SIZES = (1000, 1 << 20, (5 << 20) + 4)


def open_runtime():
    return ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else os.environ["SCENE_RUNTIME"])


def play(seed):
    """How many blocks came back wrong; a CUDA code as a negative number."""
    runtime = open_runtime()
    wrong = 0
    for round_number in range(10):
        for i, size in enumerate(SIZES):
            pointer, back = ctypes.c_void_p(), ctypes.create_string_buffer(16)
            byte = (seed + round_number + i) & 0xff
            rc = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
            if rc != 0:
                return -rc
            assert runtime.cudaMemset(pointer, byte, ctypes.c_size_t(size)) == 0
            last = ctypes.c_void_p(pointer.value + size - 16)
            assert runtime.cudaMemcpy(back, last, ctypes.c_size_t(16), 2) == 0
            wrong += back.raw != bytes([byte]) * 16
            assert runtime.cudaFree(pointer) == 0
    return wrong


def pool_of(method):
    with multiprocessing.get_context(method).Pool(3) as pool:
        print(method, pool.map(play, range(6)), flush=True)


def fork_before_cuda():
    """Python 3.12 and newer warn of a fork beside other threads: nobody has started one yet."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        child = os.fork()
        if child == 0:
            os._exit(3)
        rc = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("before CUDA:", len(os.listdir("/proc/self/task")), "thread,", len(told),
      "warnings, exit", rc)


def main():
    try:
        runtime = open_runtime()
    except OSError:
        print(f"skipped: no {sys.argv[1]}")
        return 77
    os.environ["SCENE_RUNTIME"] = sys.argv[1]
    fork_before_cuda()
    pool_of("fork")
    rc = runtime.cudaFree(None)
    if rc in (35, 100):
        print("skipped: no device")
        return 77
    assert rc == 0
    print("parent", play(100), flush=True)
    pool_of("spawn")
    pool_of("forkserver")
    warnings.simplefilter("ignore")  # the driver has threads of its own, and so has this library
    child = os.fork()
    if child == 0:
        os._exit(0 if play(1) < 0 else 1)
    print("forked afterwards:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("parent", play(200))
    return 0


if __name__ == "__main__":
    sys.exit(main())
