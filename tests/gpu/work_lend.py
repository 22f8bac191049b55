# SPDX-License-Identifier: BSD-2-Clause
"""Takes memory of the GPU in turns, as it is told on standard input; for part_lend.py.

work_lend.py driver|torch
  free             "free BYTES TOTAL": what the driver calls free
  turn BYTES       takes so much in blocks of 64 MiB or less, works on it, frees it:
                   "done SECONDS", or "failed" without memory
  take BYTES       one block of that size, taken and freed: "done SECONDS", or "failed"
driver: calls of the driver. torch: PyTorch's allocator; a turn multiplies matrices."""
import ctypes
import sys
import time

BLOCK = 64 << 20


class Driver:
    def __init__(self):
        self.cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.must(self.cuda.cuInit(0))
        self.must(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.must(self.cuda.cuCtxSetCurrent(context))

    @staticmethod
    def must(code):
        if code:
            sys.exit(f"CUDA error {code}")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.must(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def allocate(self, size):
        block = ctypes.c_uint64()
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size))
        return None if code else block

    def turn(self, size, piece):
        blocks, left = [], size
        while left > 0:
            block = self.allocate(min(piece, left))
            if block is None:
                break
            blocks.append(block)
            left -= piece
            self.must(self.cuda.cuMemsetD8_v2(block, 1, ctypes.c_size_t(4096)))
        self.must(self.cuda.cuCtxSynchronize())
        for block in blocks:
            self.must(self.cuda.cuMemFree_v2(block))
        return left <= 0


class Torch:
    def __init__(self):
        import torch
        self.torch = torch
        torch.zeros(1, device="cuda")

    def free(self):
        return self.torch.cuda.mem_get_info()

    def turn(self, size, piece):
        torch, tensors, left = self.torch, [], size
        try:
            while left > 0:
                side = int((min(piece, left) // 2) ** 0.5) or 1
                tensors.append(torch.randn(side, side, dtype=torch.float16, device="cuda"))
                left -= piece
            for a, b in zip(tensors[::2], tensors[1::2]):
                if a.shape == b.shape and a.shape[0] <= 8192:
                    torch.mm(a, b, out=a.clone())
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            torch.cuda.synchronize()
            tensors.clear()
        return True


def main():
    worker = Torch() if sys.argv[1] == "torch" else Driver()
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *sizes = line.split()
        if verb == "free":
            print("free", *worker.free(), flush=True)
            continue
        size = int(sizes[0])
        start = time.perf_counter()
        done = worker.turn(size, BLOCK if verb == "turn" else size)
        print(f"done {time.perf_counter() - start:.6f}" if done else "failed", flush=True)


main()
