/* SPDX-License-Identifier: BSD-2-Clause
 *
 * bench_gpu.h over the driver API.
 */
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

static struct bench_driver {
    CUcontext context;
    CUfunction fill, copy, spin;
    CUmemoryPool pool;
} bench;

static CUdeviceptr address(const void *block)
{
    return (CUdeviceptr)(uintptr_t)block;
}

void gpu_start(void)
{
    cuuint64_t threshold_bytes = UINT64_MAX;
    CUmodule module;

    bench.context = driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&bench.fill, module, "fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&bench.copy, module, "copy"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&bench.spin, module, "spin"));
    DRIVER_CHECK(driver.cuDeviceGetDefaultMemPool(&bench.pool, 0));
    DRIVER_CHECK(driver.cuMemPoolSetAttribute(bench.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                              &threshold_bytes));
}

void gpu_thread(void)
{
    DRIVER_CHECK(driver.cuCtxSetCurrent(bench.context));
}

void *gpu_stream_create(void)
{
    CUstream stream;

    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void gpu_stream_synchronize(void *stream)
{
    DRIVER_CHECK(driver.cuStreamSynchronize((CUstream)stream));
}

void gpu_synchronize(void)
{
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

void *gpu_malloc(size_t size_bytes)
{
    CUdeviceptr block;

    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, size_bytes));
    return (void *)(uintptr_t)block;
}

void gpu_free(void *block)
{
    DRIVER_CHECK(driver.cuMemFree_v2(address(block)));
}

void *gpu_malloc_async(size_t size_bytes, void *stream)
{
    CUdeviceptr block;

    DRIVER_CHECK(driver.cuMemAllocAsync(&block, size_bytes, (CUstream)stream));
    return (void *)(uintptr_t)block;
}

void gpu_free_async(void *block, void *stream)
{
    DRIVER_CHECK(driver.cuMemFreeAsync(address(block), (CUstream)stream));
}

void gpu_trim_async(void)
{
    DRIVER_CHECK(driver.cuMemPoolTrimTo(bench.pool, 0));
}

void *gpu_malloc_host(size_t size_bytes)
{
    void *host;

    DRIVER_CHECK(driver.cuMemAllocHost_v2(&host, size_bytes));
    return host;
}

static void launch(CUfunction kernel, unsigned blocks, unsigned threads, void **parameters,
                   void *stream)
{
    DRIVER_CHECK(driver.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, (CUstream)stream,
                                       parameters, NULL));
}

void gpu_launch(void *block, void *stream)
{
    uint64_t words = 32;
    uint32_t value = 1;

    launch(bench.fill, 1, 32, (void *[]){&block, &words, &value}, stream);
}

void gpu_copy(void *to, const void *from, size_t size_bytes, void *stream)
{
    uint64_t words = size_bytes / 4;

    launch(bench.copy, 256, 256, (void *[]){&to, &from, &words}, stream);
}

void gpu_spin(uint64_t ns, void *stream)
{
    launch(bench.spin, 1, 32, (void *[]){&ns}, stream);
}

void gpu_copy_in(void *to, const void *host, size_t size_bytes, void *stream)
{
    DRIVER_CHECK(driver.cuMemcpyHtoDAsync_v2(address(to), host, size_bytes, (CUstream)stream));
}

void gpu_copy_out(void *host, const void *from, size_t size_bytes, void *stream)
{
    DRIVER_CHECK(driver.cuMemcpyDtoHAsync_v2(host, address(from), size_bytes, (CUstream)stream));
}

size_t gpu_mem_info(void)
{
    size_t free_bytes, total_bytes;

    DRIVER_CHECK(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));
    return free_bytes;
}

void gpu_free_foreign(void)
{
    driver.cuMemFree_v2(0x1000);
}

uint64_t gpu_now_ns(void)
{
    return driver_now_ns();
}
