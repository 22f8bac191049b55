/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The first bytes of a process. Arguments:
 *   ALLOCATOR TOTAL_BYTES SIZE_BYTES
 * Takes as many blocks as make up the total, and prints
 *   TAKE_NS FREE_NS P50 P99 MAX
 * the time for all of them, the time to free them, and nanoseconds of single allocations.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/bench_stat.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const struct allocator *allocator;
    uint64_t start_ns, before_ns, after_ns, taken_ns;
    size_t size_bytes, count;
    struct series series;
    void **blocks;

    if (argc != 4)
        return 2;
    size_bytes = strtoull(argv[3], NULL, 10);
    count = strtoull(argv[2], NULL, 10) / (size_bytes + !size_bytes);
    blocks = malloc((count + !count) * sizeof *blocks);
    if (!blocks || !count)
        return 2;
    series = series_create(count);
    gpu_start();
    allocator = allocator_find(argv[1]);
    gpu_synchronize();
    before_ns = start_ns = gpu_now_ns();
    for (size_t i = 0; i < count; i++) {
        blocks[i] = allocator->allocate(size_bytes, NULL);
        after_ns = gpu_now_ns();
        series_add(&series, after_ns - before_ns);
        before_ns = after_ns;
    }
    taken_ns = before_ns - start_ns;
    for (size_t i = 0; i < count; i++)
        allocator->release(blocks[i], NULL);
    gpu_synchronize();
    after_ns = gpu_now_ns();
    series_sort(&series);
    printf("%lu %lu %u %u %u\n", taken_ns, after_ns - before_ns, series_permille(&series, 500),
           series_permille(&series, 990), series_permille(&series, 1000));
    series_destroy(&series);
    free(blocks);
    return 0;
}
