/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A pipeline of copies and kernels on several streams, with and without allocations inside. Reads
 * one case a line on stdin,
 *   MODE STREAMS PACED ITEMS SIZE_BYTES COMPUTE_NS
 * and answers the nanoseconds until the last item is out.
 *   MODE   alloc: each item allocates an input, a workspace and an output, copies in, computes,
 *          copies out, frees all three. fixed: the same on memory that was allocated before.
 *   PACED  1: the host takes a stream's last result before it gives it more work
 * Items vary in size between a half and all of SIZE_BYTES.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>

enum { STREAMS_MAX = 16, PARTS = 3 };

struct test {
    char mode[16];
    unsigned streams, paced, items;
    size_t size_bytes;
    uint64_t compute_ns;
};

static struct pipeline {
    const struct allocator *allocator;
    void *streams[STREAMS_MAX], *host[STREAMS_MAX];
    void *fixed[STREAMS_MAX][PARTS];
    size_t room_bytes; /* of each part and of the host's memory */
} pipeline;

/* Streams and memory for the largest case so far; not timed. */
static void prepare(const struct test *test)
{
    for (unsigned i = 0; i < test->streams; i++) {
        if (pipeline.streams[i])
            continue;
        pipeline.streams[i] = gpu_stream_create();
        pipeline.host[i] = gpu_malloc_host(test->size_bytes);
        for (unsigned part = 0; part < PARTS; part++)
            pipeline.fixed[i][part] = gpu_malloc(test->size_bytes);
    }
}

/* Multiples of 64 KiB, in no order that a cache of exact sizes would like. */
static size_t item_bytes(const struct test *test, unsigned item)
{
    size_t half = test->size_bytes / 2, steps = half >> 16;

    return steps ? half + ((item * 7u % (steps + 1)) << 16) : test->size_bytes;
}

static void play_item(const struct test *test, unsigned item)
{
    unsigned lane = item % test->streams;
    void *stream = pipeline.streams[lane], *block[PARTS];
    size_t bytes = item_bytes(test, item);
    int allocates = test->mode[0] == 'a';

    if (test->paced)
        gpu_stream_synchronize(stream);
    for (unsigned part = 0; part < PARTS; part++)
        block[part] =
            allocates ? pipeline.allocator->allocate(bytes, stream) : pipeline.fixed[lane][part];
    gpu_copy_in(block[0], pipeline.host[lane], bytes, stream);
    gpu_copy(block[1], block[0], bytes, stream);
    gpu_spin(test->compute_ns, stream);
    if (allocates)
        pipeline.allocator->release(block[0], stream);
    gpu_copy(block[2], block[1], bytes, stream);
    if (allocates)
        pipeline.allocator->release(block[1], stream);
    gpu_copy_out(pipeline.host[lane], block[2], bytes, stream);
    if (allocates)
        pipeline.allocator->release(block[2], stream);
}

static void start(const struct allocator *allocator)
{
    pipeline.allocator = allocator;
}

static bool answer(void)
{
    struct test test;
    uint64_t start_ns;

    if (scanf("%15s %u %u %u %zu %lu", test.mode, &test.streams, &test.paced, &test.items,
              &test.size_bytes, &test.compute_ns) != 6)
        return false;
    if (!test.streams || test.streams > STREAMS_MAX ||
        (pipeline.room_bytes && test.size_bytes > pipeline.room_bytes))
        exit(2);
    pipeline.room_bytes = pipeline.room_bytes ? pipeline.room_bytes : test.size_bytes;
    prepare(&test);
    gpu_synchronize();
    start_ns = gpu_now_ns();
    for (unsigned item = 0; item < test.items; item++)
        play_item(&test, item);
    gpu_synchronize();
    printf("%lu\n", gpu_now_ns() - start_ns);
    return true;
}

const struct part part_overlap = {"overlap", start, answer};
