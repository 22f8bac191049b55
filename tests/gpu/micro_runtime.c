/* SPDX-License-Identifier: BSD-2-Clause
 *
 * micro.h over the CUDA runtime, static or shared.
 */
#include "tests/gpu/micro.h"
#include "tests/preload/kernels.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static cudaKernel_t fill;

#define RUNTIME_CHECK(call) runtime_check((call), #call)

static void runtime_check(cudaError_t result, const char *what)
{
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "micro: %s: %s (%d)\n", what, cudaGetErrorName(result), (int)result);
    _Exit(2);
}

void micro_start(void)
{
    cudaLibrary_t library;
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        fputs("micro: no CUDA device\n", stderr);
        exit(77);
    }
    RUNTIME_CHECK(cudaSetDevice(0));
    RUNTIME_CHECK(cudaFree(NULL));
    RUNTIME_CHECK(cudaLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    RUNTIME_CHECK(cudaLibraryGetKernel(&fill, library, "fill"));
}

void micro_thread(void)
{
    RUNTIME_CHECK(cudaSetDevice(0));
}

void *micro_malloc(size_t size_bytes)
{
    void *block;

    RUNTIME_CHECK(cudaMalloc(&block, size_bytes));
    return block;
}

void micro_free(void *block)
{
    RUNTIME_CHECK(cudaFree(block));
}

void *micro_malloc_async(size_t size_bytes)
{
    void *block;

    RUNTIME_CHECK(cudaMallocAsync(&block, size_bytes, NULL));
    return block;
}

void micro_free_async(void *block)
{
    RUNTIME_CHECK(cudaFreeAsync(block, NULL));
}

void micro_launch(void)
{
    void *nothing = NULL;
    uint64_t words = 0;
    uint32_t value = 0;

    RUNTIME_CHECK(cudaLaunchKernel((const void *)fill, (dim3){1, 1, 1}, (dim3){32, 1, 1},
                                   (void *[]){&nothing, &words, &value}, 0, NULL));
}

void micro_synchronize(void)
{
    RUNTIME_CHECK(cudaDeviceSynchronize());
}

void micro_mem_info(void)
{
    size_t free_bytes, total_bytes;

    RUNTIME_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
}

void micro_free_foreign(void)
{
    cudaFree((void *)0x1000);
    cudaGetLastError();
}
