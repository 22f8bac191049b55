/* SPDX-License-Identifier: BSD-2-Clause
 *
 * bench_gpu.h over the CUDA runtime, static or shared.
 */
#include "tests/gpu/bench_gpu.h"
#include "tests/preload/kernels.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct runtime {
    cudaKernel_t fill, copy, spin;
} runtime;

#define RUNTIME_CHECK(call) runtime_check((call), #call)

static void runtime_check(cudaError_t result, const char *what)
{
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "bench: %s: %s (%d)\n", what, cudaGetErrorName(result), (int)result);
    _Exit(2);
}

/* By the driver, as a runtime may lack the call. */
static void keep_async_memory(void)
{
    __typeof__(cuMemPoolSetAttribute) *set_attribute;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    cudaMemPool_t pool;
    cuuint64_t threshold_bytes = UINT64_MAX;

    RUNTIME_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    *(void **)&set_attribute = driver ? dlsym(driver, "cuMemPoolSetAttribute") : NULL;
    if (!set_attribute || set_attribute((CUmemoryPool)pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                        &threshold_bytes) != CUDA_SUCCESS)
        runtime_check(cudaErrorNotSupported, "release threshold");
}

void gpu_start(void)
{
    cudaLibrary_t library;
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        fputs("bench: no CUDA device\n", stderr);
        exit(77);
    }
    RUNTIME_CHECK(cudaSetDevice(0));
    RUNTIME_CHECK(cudaFree(NULL));
    RUNTIME_CHECK(cudaLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    RUNTIME_CHECK(cudaLibraryGetKernel(&runtime.fill, library, "fill"));
    RUNTIME_CHECK(cudaLibraryGetKernel(&runtime.copy, library, "copy"));
    RUNTIME_CHECK(cudaLibraryGetKernel(&runtime.spin, library, "spin"));
    keep_async_memory();
}

void gpu_thread(void)
{
    RUNTIME_CHECK(cudaSetDevice(0));
}

void *gpu_stream_create(void)
{
    cudaStream_t stream;

    RUNTIME_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

void gpu_stream_synchronize(void *stream)
{
    RUNTIME_CHECK(cudaStreamSynchronize((cudaStream_t)stream));
}

void gpu_synchronize(void)
{
    RUNTIME_CHECK(cudaDeviceSynchronize());
}

void *gpu_malloc(size_t size_bytes)
{
    void *block;

    RUNTIME_CHECK(cudaMalloc(&block, size_bytes));
    return block;
}

void gpu_free(void *block)
{
    RUNTIME_CHECK(cudaFree(block));
}

void *gpu_malloc_async(size_t size_bytes, void *stream)
{
    void *block;

    RUNTIME_CHECK(cudaMallocAsync(&block, size_bytes, (cudaStream_t)stream));
    return block;
}

void gpu_free_async(void *block, void *stream)
{
    RUNTIME_CHECK(cudaFreeAsync(block, (cudaStream_t)stream));
}

void gpu_trim_async(void)
{
    cudaMemPool_t pool;

    RUNTIME_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    RUNTIME_CHECK(cudaMemPoolTrimTo(pool, 0));
}

void *gpu_malloc_host(size_t size_bytes)
{
    void *host;

    RUNTIME_CHECK(cudaHostAlloc(&host, size_bytes, 0));
    return host;
}

static void launch(cudaKernel_t kernel, unsigned blocks, unsigned threads, void **parameters,
                   void *stream)
{
    RUNTIME_CHECK(cudaLaunchKernel((const void *)kernel, (dim3){blocks, 1, 1},
                                   (dim3){threads, 1, 1}, parameters, 0, (cudaStream_t)stream));
}

void gpu_launch(void *block, void *stream)
{
    uint64_t words = 32;
    uint32_t value = 1;

    launch(runtime.fill, 1, 32, (void *[]){&block, &words, &value}, stream);
}

void gpu_copy(void *to, const void *from, size_t size_bytes, void *stream)
{
    uint64_t words = size_bytes / 4;

    launch(runtime.copy, 256, 256, (void *[]){&to, &from, &words}, stream);
}

void gpu_spin(uint64_t ns, void *stream)
{
    launch(runtime.spin, 1, 32, (void *[]){&ns}, stream);
}

void gpu_copy_in(void *to, const void *host, size_t size_bytes, void *stream)
{
    RUNTIME_CHECK(
        cudaMemcpyAsync(to, host, size_bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
}

void gpu_copy_out(void *host, const void *from, size_t size_bytes, void *stream)
{
    RUNTIME_CHECK(
        cudaMemcpyAsync(host, from, size_bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream));
}

size_t gpu_mem_info(void)
{
    size_t free_bytes, total_bytes;

    RUNTIME_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
}

void gpu_free_foreign(void)
{
    cudaFree((void *)0x1000);
    cudaGetLastError();
}

uint64_t gpu_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
