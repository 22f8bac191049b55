/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The allocators that CUDA itself has, the lists of all of them and of all parts, and how a program
 * serves its requests: bench-ROUTE PART ALLOCATOR.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *malloc_allocate(size_t size_bytes, void *stream)
{
    return gpu_malloc(size_bytes);
}

static void malloc_release(void *block, void *stream)
{
    gpu_free(block);
}

/* A bare process has nothing to give back, and no handler for the signal. */
static void give_back(void)
{
    if (getenv("LD_PRELOAD"))
        kill(getpid(), SIGUSR1);
}

const struct allocator allocator_malloc = {"malloc", NULL, malloc_allocate, malloc_release,
                                           give_back};
const struct allocator allocator_async = {"async", NULL, gpu_malloc_async, gpu_free_async,
                                          gpu_trim_async};

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

static const struct part *part_find(const char *name)
{
    static const struct part *const parts[] = {
        &part_calls,  &part_cold, &part_flush, &part_overlap, &part_pairs,
#ifdef BENCH_MEMORY
        &part_memory,
#endif
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strcmp(parts[i]->name, name))
            return parts[i];
    }
    fprintf(stderr, "bench: built without the part %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    const struct part *part;

    if (argc != 3)
        return 2;
    part = part_find(argv[1]);
    gpu_start();
    part->start(allocator_find(argv[2]));
    puts("ready");
    do
        fflush(stdout);
    while (part->answer());
    return 0;
}
