/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The allocators that the benchmarks compare. Which ones a program has is decided when it is built:
 * BENCH_CUB and BENCH_TORCH add the one of CUB and the one of PyTorch.
 */
#ifndef TESTS_GPU_BENCH_ALLOCATOR_H
#define TESTS_GPU_BENCH_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct allocator {
    const char *name;
    /* After gpu_start(), once; NULL if there is nothing to do. */
    void (*start)(void);
    /* A block whose first and last work is on `stream`. Ends the program when there is no memory.
     */
    void *(*allocate)(size_t size_bytes, void *stream);
    void (*release)(void *block, void *stream);
    /* Gives idle memory back to the driver. The shim gets SIGUSR1 and flushes in a thread of its
     * own. The other allocators are done when this returns. */
    void (*trim)(void);
};

/* cudaMalloc or cuMemAlloc; cudaMallocAsync; cub::CachingDeviceAllocator; c10's caching allocator.
 */
extern const struct allocator allocator_malloc, allocator_async, allocator_cub, allocator_torch;

/* The allocator of that name; ends the program with status 2 if it was built without it. */
const struct allocator *allocator_find(const char *name);

/* What is timed: a program `bench-ROUTE PART ALLOCATOR` starts the GPU and the allocator, calls the
 * part's start(), and says "ready". Then it calls answer() until there is no more request. answer()
 * reads one request on stdin and prints one line; it returns false at the end of the input. A
 * request that is wrong ends the program with status 2. */
struct part {
    const char *name;
    void (*start)(const struct allocator *allocator);
    bool (*answer)(void);
};

/* Files bench_NAME.c; part_memory is in the program of the driver API alone. */
extern const struct part part_calls, part_cold, part_flush, part_memory, part_overlap, part_pairs;

#ifdef __cplusplus
}
#endif
#endif
