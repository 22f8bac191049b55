/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The allocators that CUDA itself has, the list of all, and how a program serves its requests.
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
    (void)stream;
    return gpu_malloc(size_bytes);
}

static void malloc_release(void *block, void *stream)
{
    (void)stream;
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

int bench_serve(int argc, char **argv, void (*start)(const struct allocator *allocator),
                bool (*answer)(void))
{
    if (argc != 2)
        return 2;
    gpu_start();
    start(allocator_find(argv[1]));
    puts("ready");
    do
        fflush(stdout);
    while (answer());
    return 0;
}
