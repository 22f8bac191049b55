/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A GPU full of memory that the program freed. The program fills and frees 80 % of it, then takes
 * 60 % by each call that can take much. It fills and frees all of it, then makes each call that
 * takes little. Prints the code of each call, natively 0.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

enum { BLOCKS = 8192, FILLED = 80, TAKEN = 60 };
#define MIB ((size_t)1 << 20)

static CUdeviceptr blocks[BLOCKS];
static size_t total_bytes;

/* A part of the device in whole megabytes, a multiple of 32. */
static size_t percent(unsigned n)
{
    return total_bytes / 100 * n / (32 * MIB) * (32 * MIB);
}

static size_t fill_with(size_t *count, size_t block_bytes, size_t most_bytes)
{
    size_t sum = 0;
    while (*count < BLOCKS && sum + block_bytes <= most_bytes &&
           driver.cuMemAlloc_v2(&blocks[*count], block_bytes) == CUDA_SUCCESS) {
        DRIVER_CHECK(driver.cuMemsetD32_v2(blocks[*count], 1, 1));
        sum += block_bytes;
        ++*count;
    }
    return sum;
}

/* Afterwards everything is free again, for a program without a cache. */
static void fill(bool whole)
{
    size_t count = 0, piece = percent(100) / 64 / (2 * MIB) * (2 * MIB);
    fill_with(&count, piece, whole ? SIZE_MAX : percent(FILLED));
    if (whole) {
        fill_with(&count, 64 * MIB, SIZE_MAX);
        fill_with(&count, 2 * MIB, SIZE_MAX);
    }
    while (count > 0)
        DRIVER_CHECK(driver.cuMemFree_v2(blocks[--count]));
}

static CUresult take_async(void)
{
    CUdeviceptr block;
    CUresult rc = driver.cuMemAllocAsync(&block, percent(TAKEN), NULL);
    if (rc == CUDA_SUCCESS) {
        DRIVER_CHECK(driver.cuMemFreeAsync(block, NULL));
        DRIVER_CHECK(driver.cuCtxSynchronize());
    }
    return rc;
}

static CUresult take_physical(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CUresult rc = driver.cuMemCreate(&handle, percent(TAKEN), &prop, 0);
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(driver.cuMemRelease(handle));
    return rc;
}

static CUresult take_array(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024,
                                     .Height = 1024,
                                     .Depth = percent(TAKEN) / (16 * MIB),
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 4};
    CUarray array;
    CUresult rc = driver.cuArray3DCreate_v2(&array, &shape);
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(driver.cuArrayDestroy(array));
    return rc;
}

static CUresult take_plain(void)
{
    CUdeviceptr block;
    CUresult rc = driver.cuMemAlloc_v2(&block, percent(TAKEN));
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(driver.cuMemFree_v2(block));
    return rc;
}

static CUresult take_context(void)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice) =
        (CUresult (*)(CUcontext *, unsigned, CUdevice))(uintptr_t)dlsym(driver.handle,
                                                                        "cuCtxCreate_v2");
    CUresult (*destroy)(CUcontext) =
        (CUresult (*)(CUcontext))(uintptr_t)dlsym(driver.handle, "cuCtxDestroy_v2");
    CUcontext context, primary;
    CUresult rc = create(&context, 0, 0);
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(destroy(context));
    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&primary, 0));
    DRIVER_CHECK(driver.cuCtxSetCurrent(primary));
    return rc;
}

/* Loaded anew each time, and launched: code and the memory of local variables. */
static CUresult take_code(void)
{
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr block;
    uint64_t words = 256;
    uint32_t value = 7, got = 0;
    CUresult rc = driver.cuModuleLoadData(&module, kernels_ptx);
    if (rc == CUDA_SUCCESS)
        rc = driver.cuModuleGetFunction(&kernel, module, "fill");
    if (rc != CUDA_SUCCESS)
        return rc;
    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, words * 4));
    rc = driver.cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, NULL,
                               (void *[]){&block, &words, &value}, NULL);
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&got, block, sizeof got));
    DRIVER_CHECK(driver.cuMemFree_v2(block));
    return rc == CUDA_SUCCESS && got != value ? CUDA_ERROR_UNKNOWN : rc;
}

static CUresult take_stream(void)
{
    enum { MANY = 64 };
    CUstream streams[MANY];
    CUresult rc = CUDA_SUCCESS;
    int made = 0;
    while (made < MANY && rc == CUDA_SUCCESS) {
        rc = driver.cuStreamCreate(&streams[made], CU_STREAM_NON_BLOCKING);
        if (rc == CUDA_SUCCESS)
            DRIVER_CHECK(driver.cuMemsetD32Async(blocks[0], 0, 0, streams[made++]));
    }
    while (made > 0)
        DRIVER_CHECK(driver.cuStreamDestroy_v2(streams[--made]));
    return rc;
}

static CUresult take_graph(void)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr block;
    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, MIB));
    fill(true);
    DRIVER_CHECK(driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 100; i++)
        DRIVER_CHECK(driver.cuMemsetD32Async(block, 3, 64, stream));
    DRIVER_CHECK(driver.cuStreamEndCapture(stream, &graph));
    CUresult rc = driver.cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (rc == CUDA_SUCCESS) {
        rc = driver.cuGraphLaunch(exec, stream);
        DRIVER_CHECK(driver.cuStreamSynchronize(stream));
        DRIVER_CHECK(driver.cuGraphExecDestroy(exec));
    }
    DRIVER_CHECK(driver.cuGraphDestroy(graph));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(stream));
    DRIVER_CHECK(driver.cuMemFree_v2(block));
    return rc;
}

static const struct {
    const char *name;
    bool whole;
    CUresult (*take)(void);
} means[] = {
    {"code", true, take_code},
    {"plain", false, take_plain},
    {"stream-ordered", false, take_async},
    {"physical", false, take_physical},
    {"array", false, take_array},
    {"context", true, take_context},
    {"streams", true, take_stream},
    {"graph", true, take_graph},
    {"code again", true, take_code},
};

int main(void)
{
    int failed = 0;
    driver_start(0);
    DRIVER_CHECK(driver.cuMemGetInfo_v2(&(size_t){0}, &total_bytes));
    for (size_t i = 0; i < sizeof means / sizeof *means; i++) {
        fill(means[i].whole);
        CUresult rc = means[i].take();
        printf("%s: %d\n", means[i].name, (int)rc);
        failed += rc != CUDA_SUCCESS;
    }
    return failed != 0;
}
