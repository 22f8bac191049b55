/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What single calls cost beside an allocator. Reads one word a line on stdin and answers the
 * nanoseconds of one call, the median over batches:
 *   mem-info  free memory
 *   wild      a free of an address that no allocator handed out: an error
 *   foreign   a free of a block of stream-ordered allocation, without the allocation
 *   launch    a kernel on the legacy stream
 *   pair      malloc and free of 1 MiB
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/bench_stat.h"

#include <stdio.h>
#include <string.h>

enum { BATCHES = 15, CALLS = 256 };

static const struct allocator *allocator;
static void *scratch, *foreign[CALLS];

static void mem_info(unsigned i)
{
    gpu_mem_info();
}

static void wild(unsigned i)
{
    gpu_free_foreign();
}

static void take_foreign(void)
{
    for (unsigned i = 0; i < CALLS; i++)
        foreign[i] = gpu_malloc_async(4096, NULL);
}

static void free_foreign(unsigned i)
{
    gpu_free(foreign[i]);
}

static void launch(unsigned i)
{
    gpu_launch(scratch, NULL);
}

static void pair(unsigned i)
{
    allocator->release(allocator->allocate(1 << 20, NULL), NULL);
}

static const struct call {
    const char *name;
    void (*prepare)(void); /* of a batch; may be NULL */
    void (*body)(unsigned i);
} calls[] = {
    {"mem-info", NULL, mem_info}, {"wild", NULL, wild}, {"foreign", take_foreign, free_foreign},
    {"launch", NULL, launch},     {"pair", NULL, pair},
};

static double measure(const struct call *call)
{
    double ns[BATCHES];

    for (unsigned batch = 0; batch < BATCHES; batch++) {
        uint64_t start_ns;

        if (call->prepare)
            call->prepare();
        gpu_synchronize();
        start_ns = gpu_now_ns();
        for (unsigned i = 0; i < CALLS; i++)
            call->body(i);
        ns[batch] = (double)(gpu_now_ns() - start_ns) / CALLS;
    }
    return stat_median(ns, BATCHES);
}

static void start(const struct allocator *found)
{
    allocator = found;
    scratch = gpu_malloc(512);
}

static bool answer(void)
{
    char word[16];

    if (scanf("%15s", word) != 1)
        return false;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!strcmp(word, calls[i].name))
            printf("%.1f\n", measure(&calls[i]));
    }
    return true;
}

const struct part part_calls = {"calls", start, answer};
