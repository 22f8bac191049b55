/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cub::CachingDeviceAllocator, with bins that double from 512 B to 1 GiB: its own defaults pass
 * everything above 2 MiB on to cudaMalloc.
 */
#include "tests/gpu/bench_allocator.h"

/* As it is by default, it takes the "not ready" of an event that it asked for a failure of its next
 * call. */
#define CubDebug(call) (call)
#include <cub/util_allocator.cuh>
#include <cstdio>
#include <cstdlib>

static cub::CachingDeviceAllocator *cache;

static void check(cudaError_t result, const char *what)
{
    if (result == cudaSuccess)
        return;
    std::fprintf(stderr, "bench: cub: %s: %s\n", what, cudaGetErrorName(result));
    std::_Exit(2);
}

static void start()
{
    cache = new cub::CachingDeviceAllocator(2, 9, 30);
}

static void *allocate(size_t size_bytes, void *stream)
{
    void *block = nullptr;

    check(cache->DeviceAllocate(&block, size_bytes, static_cast<cudaStream_t>(stream)), "allocate");
    return block;
}

static void release(void *block, void *)
{
    check(cache->DeviceFree(block), "free");
}

static void trim()
{
    check(cache->FreeAllCached(), "free all");
}

extern const struct allocator allocator_cub = {"cub", start, allocate, release, trim};
