/* SPDX-License-Identifier: BSD-2-Clause
 *
 * micro.h over the driver API.
 */
#include "tests/gpu/micro.h"
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

static CUcontext context;
static CUfunction fill;

void micro_start(void)
{
    CUmodule module;

    context = driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill, module, "fill"));
}

void micro_thread(void)
{
    DRIVER_CHECK(driver.cuCtxSetCurrent(context));
}

void *micro_malloc(size_t size_bytes)
{
    CUdeviceptr block;

    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, size_bytes));
    return (void *)(uintptr_t)block;
}

void micro_free(void *block)
{
    DRIVER_CHECK(driver.cuMemFree_v2((CUdeviceptr)(uintptr_t)block));
}

void *micro_malloc_async(size_t size_bytes)
{
    CUdeviceptr block;

    DRIVER_CHECK(driver.cuMemAllocAsync(&block, size_bytes, NULL));
    return (void *)(uintptr_t)block;
}

void micro_free_async(void *block)
{
    DRIVER_CHECK(driver.cuMemFreeAsync((CUdeviceptr)(uintptr_t)block, NULL));
}

void micro_launch(void)
{
    CUdeviceptr nothing = 0;
    uint64_t words = 0;
    uint32_t value = 0;

    DRIVER_CHECK(driver.cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, NULL,
                                       (void *[]){&nothing, &words, &value}, NULL));
}

void micro_synchronize(void)
{
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

void micro_mem_info(void)
{
    size_t free_bytes, total_bytes;

    DRIVER_CHECK(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));
}

void micro_free_foreign(void)
{
    driver.cuMemFree_v2(0x1000);
}
