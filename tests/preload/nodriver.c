/* SPDX-License-Identifier: BSD-2-Clause */
/* A program of the CUDA runtime on a machine without a driver: what every call says then. Skips
 * where there is one. Built with NVIDIA's runtime and with the stand-in, which has to agree. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

static void report(const char *what, cudaError_t rc)
{
    cudaError_t last = cudaGetLastError();
    printf("%s: %d %s (%s), last %d\n", what, rc, cudaGetErrorName(rc), cudaGetErrorString(rc),
           last);
}

int main(void)
{
    if (dlopen("libcuda.so.1", RTLD_NOW) != NULL) {
        printf("skipped: there is a driver\n");
        return 77;
    }
    void *block = &block;
    cudaStream_t stream = NULL;
    size_t free_bytes = 0;
    int number = 7;
    printf("first of all: %d, %d\n", cudaPeekAtLastError(), cudaGetLastError());
    report("malloc", cudaMalloc(&block, 100));
    printf("untouched: %s\n", block == &block ? "yes" : "no");
    report("malloc to NULL", cudaMalloc(NULL, 100));
    report("malloc of 0", cudaMalloc(&block, 0));
    report("free", cudaFree(block));
    report("free of NULL", cudaFree(NULL));
    report("memory information", cudaMemGetInfo(&free_bytes, NULL));
    report("count", cudaGetDeviceCount(&number));
    printf("count is %d\n", number);
    report("set", cudaSetDevice(0));
    report("get", cudaGetDevice(&number));
    report("stream", cudaStreamCreate(&stream));
    report("synchronise", cudaDeviceSynchronize());
    report("reset", cudaDeviceReset());
    report("driver version", cudaDriverGetVersion(&number));
    printf("driver version is %d\n", number);
    return 0;
}
