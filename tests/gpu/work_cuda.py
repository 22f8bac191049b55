# SPDX-License-Identifier: BSD-2-Clause
"""cuda-python: memory of varying size allocated, filled, copied, checked by a kernel and freed.
Checksums go to stdout; the seconds to the file named first. work_cuda.py FIGURES driver|runtime"""
import ctypes
import json
import sys
import time

ROUNDS = 120

def must(answer):
    code, *values = answer
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


# fill(p, n, v): p[i] = v for n words. The simulated driver knows the name.
FILL = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 p, .param .u64 n, .param .u32 v)
{
    .reg .pred %end;
    .reg .b32 %r<5>;
    .reg .b64 %d<7>;
    ld.param.u64 %d0, [p];
    ld.param.u64 %d1, [n];
    ld.param.u32 %r0, [v];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %d2, %r1, %r2;
    cvt.u64.u32 %d3, %r3;
    add.u64 %d2, %d2, %d3;
    mul.wide.u32 %d4, %r4, %r2;
LOOP:
    setp.ge.u64 %end, %d2, %d1;
    @%end bra DONE;
    shl.b64 %d5, %d2, 2;
    add.u64 %d6, %d0, %d5;
    st.u32 [%d6], %r0;
    add.u64 %d2, %d2, %d4;
    bra LOOP;
DONE:
    ret;
}
\0"""


class Driver:
    def __init__(self):
        from cuda.bindings import driver
        self.cuda = driver
        must(driver.cuInit(0))
        self.device = must(driver.cuDeviceGet(0))
        must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(self.device))))

    def malloc(self, size):
        return int(must(self.cuda.cuMemAlloc(size)))

    def free(self, pointer):
        must(self.cuda.cuMemFree(pointer))

    def to_device(self, pointer, data):
        must(self.cuda.cuMemcpyHtoD(pointer, data, len(data)))

    def to_host(self, pointer, size):
        data = bytearray(size)
        must(self.cuda.cuMemcpyDtoH(data, pointer, size))
        return data

    def copy(self, to, source, size):
        must(self.cuda.cuMemcpyDtoD(to, source, size))


class Runtime:
    def __init__(self):
        from cuda.bindings import runtime
        self.cuda = runtime
        must(runtime.cudaSetDevice(0))

    def malloc(self, size):
        return int(must(self.cuda.cudaMalloc(size)))

    def free(self, pointer):
        must(self.cuda.cudaFree(pointer))

    def to_device(self, pointer, data):
        must(self.cuda.cudaMemcpy(pointer, data, len(data),
                                  self.cuda.cudaMemcpyKind.cudaMemcpyHostToDevice))

    def to_host(self, pointer, size):
        data = bytearray(size)
        must(self.cuda.cudaMemcpy(data, pointer, size,
                                  self.cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost))
        return data

    def copy(self, to, source, size):
        must(self.cuda.cudaMemcpy(to, source, size,
                                  self.cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice))


class Launcher:
    """The kernel `fill`, by the driver, in whatever context is current."""

    def __init__(self):
        from cuda.bindings import driver
        self.cuda = driver
        self.module = must(driver.cuModuleLoadData(FILL))
        self.fill_kernel = must(driver.cuModuleGetFunction(self.module, b"fill"))

    def fill(self, pointer, words, value):
        must(self.cuda.cuLaunchKernel(self.fill_kernel, 4, 1, 1, 128, 1, 1, 0, 0,
                                      ((pointer, words, value), (ctypes.c_uint64, ctypes.c_uint64,
                                                                 ctypes.c_uint32)), 0))


def main():
    api = {"driver": Driver, "runtime": Runtime}[sys.argv[2]]()
    api.free(api.malloc(256))
    launcher, start = Launcher(), time.perf_counter()
    for i in range(ROUNDS):
        words = 256 + (i * 7919) % 60000
        a, b = api.malloc(words * 4), api.malloc(words * 4)
        launcher.fill(a, words, i * 2654435761 % (1 << 32))
        api.copy(b, a, words * 2)
        api.free(a)
        api.to_device(b + words // 2 // 4 * 4, bytes(range(256)))
        data = api.to_host(b, words * 2)
        api.free(b)
        print(i, words, sum(data), bytes(data[:4]).hex(), bytes(data[-4:]).hex())
    with open(sys.argv[1], "w") as file:
        json.dump({"seconds": time.perf_counter() - start}, file)


main()
