/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The first bytes of a process. Reads one request on stdin, which a process should get only once:
 *   TOTAL_BYTES SIZE_BYTES
 * Takes as many blocks as make up the total, and answers
 *   TAKE_NS FREE_NS P50 P99 MAX
 * the time for all of them, the time to free them, and nanoseconds of single allocations.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/bench_stat.h"

#include <stdio.h>
#include <stdlib.h>

static const struct allocator *allocator;

static void start(const struct allocator *found)
{
    allocator = found;
    gpu_synchronize();
}

/* Takes the blocks, and returns the time of all. */
static uint64_t take(void **blocks, size_t count, size_t size_bytes, struct series *series)
{
    uint64_t start_ns = gpu_now_ns(), before_ns = start_ns;

    for (size_t i = 0; i < count; i++) {
        uint64_t after_ns;

        blocks[i] = allocator->allocate(size_bytes, NULL);
        after_ns = gpu_now_ns();
        series_add(series, after_ns - before_ns);
        before_ns = after_ns;
    }
    return before_ns - start_ns;
}

static bool answer(void)
{
    uint64_t taken_ns, start_ns, freed_ns;
    size_t total_bytes, size_bytes, count;
    struct series series;
    void **blocks;

    if (scanf("%zu %zu", &total_bytes, &size_bytes) != 2)
        return false;
    count = total_bytes / (size_bytes + !size_bytes);
    blocks = malloc((count + !count) * sizeof *blocks);
    if (!blocks || !count)
        exit(2);
    series = series_create(count);
    start_ns = gpu_now_ns();
    taken_ns = take(blocks, count, size_bytes, &series);
    start_ns += taken_ns;
    for (size_t i = 0; i < count; i++)
        allocator->release(blocks[i], NULL);
    gpu_synchronize();
    freed_ns = gpu_now_ns() - start_ns;
    series_sort(&series);
    printf("%lu %lu %u %u %u\n", taken_ns, freed_ns, series_permille(&series, 500),
           series_permille(&series, 990), series_permille(&series, 1000));
    series_destroy(&series);
    free(blocks);
    return true;
}

const struct part part_cold = {"cold", start, answer};
