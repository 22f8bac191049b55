/* SPDX-License-Identifier: BSD-2-Clause
 *
 * PyTorch's caching allocator, called as PyTorch calls it, without Python. Whether it uses
 * expandable segments says PYTORCH_CUDA_ALLOC_CONF.
 */
#include "tests/gpu/bench_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>

static void start()
{
    c10::cuda::CUDACachingAllocator::init(1);
}

static void *allocate(size_t size_bytes, void *stream)
{
    return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(
        size_bytes, static_cast<cudaStream_t>(stream));
}

static void release(void *block, void *)
{
    c10::cuda::CUDACachingAllocator::raw_delete(block);
}

static void trim()
{
    c10::cuda::CUDACachingAllocator::emptyCache();
}

extern const struct allocator allocator_torch = {"torch", start, allocate, release, trim};
