/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The allocators that CUDA itself has, and the list of all.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *malloc_allocate(size_t size_bytes, void *stream)
{
    (void)stream;
    return gpu_malloc(size_bytes);
}

static void malloc_release(void *block, void *stream)
{
    (void)stream;
    gpu_free(block);
}

const struct allocator allocator_malloc = {"malloc", NULL, malloc_allocate, malloc_release};
const struct allocator allocator_async = {"async", NULL, gpu_malloc_async, gpu_free_async};

static const struct allocator *const allocators[] = {
    &allocator_malloc,
    &allocator_async,
#ifdef BENCH_CUB
    &allocator_cub,
#endif
#ifdef BENCH_TORCH
    &allocator_torch,
#endif
};

const struct allocator *allocator_find(const char *name)
{
    for (size_t i = 0; i < sizeof allocators / sizeof *allocators; i++) {
        if (strcmp(allocators[i]->name, name))
            continue;
        if (allocators[i]->start)
            allocators[i]->start();
        return allocators[i];
    }
    fprintf(stderr, "bench: built without the allocator %s\n", name);
    exit(2);
}
