/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What single calls cost: malloc+free pairs idle and with a kernel launch in between, their
 * stream-ordered counterparts, launches, queries. Prints one line each: name, size in bytes,
 * threads, nanoseconds per repetition (median over batches, the final synchronisation included).
 * Threads share nothing but the start line.
 */
#include "tests/gpu/micro.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 5, THREADS_MAX = 64 };

static uint64_t batch_ns = 20000000;

struct job {
    const char *name;
    void (*body)(size_t size_bytes);
    size_t size_bytes;
    pthread_barrier_t *barrier;
    double ns;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pair(size_t size_bytes)
{
    micro_free(micro_malloc(size_bytes));
}

static void pair_launch(size_t size_bytes)
{
    void *block = micro_malloc(size_bytes);

    micro_launch();
    micro_free(block);
}

static void async_pair(size_t size_bytes)
{
    micro_free_async(micro_malloc_async(size_bytes));
}

static void async_pair_launch(size_t size_bytes)
{
    void *block = micro_malloc_async(size_bytes);

    micro_launch();
    micro_free_async(block);
}

static void launch(size_t size_bytes)
{
    (void)size_bytes;
    micro_launch();
}

static void mem_info(size_t size_bytes)
{
    (void)size_bytes;
    micro_mem_info();
}

static void free_foreign(size_t size_bytes)
{
    (void)size_bytes;
    micro_free_foreign();
}

static int compare(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;

    return (difference > 0) - (difference < 0);
}

/* One batch: as many repetitions as fit in batch_ns. */
static double batch(const struct job *job)
{
    uint64_t start, end;
    unsigned long count = 0, step = 1;

    micro_synchronize();
    start = now_ns();
    do {
        for (unsigned long i = 0; i < step; i++)
            job->body(job->size_bytes);
        count += step;
        if (step < 64)
            step *= 2;
        end = now_ns();
    } while (end - start < batch_ns);
    micro_synchronize();
    return (double)(now_ns() - start) / (double)count;
}

static void *job_main(void *argument)
{
    struct job *job = argument;
    double ns[BATCHES];

    micro_thread();
    job->body(job->size_bytes);
    for (int i = 0; i < BATCHES; i++) {
        pthread_barrier_wait(job->barrier);
        ns[i] = batch(job);
    }
    qsort(ns, BATCHES, sizeof *ns, compare);
    job->ns = ns[BATCHES / 2];
    return NULL;
}

static void measure(const char *name, void (*body)(size_t), size_t size_bytes, unsigned threads)
{
    struct job jobs[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    pthread_barrier_t barrier;
    double sum = 0;

    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        jobs[i] = (struct job){.name = name, .body = body, .size_bytes = size_bytes,
                               .barrier = &barrier};
        pthread_create(&ids[i], NULL, job_main, &jobs[i]);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        sum += jobs[i].ns;
    }
    pthread_barrier_destroy(&barrier);
    printf("%s %zu %u %.1f\n", name, size_bytes, threads, sum / threads);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {256, 64 << 10, 1 << 20, 2 << 20, 20 << 20, 256 << 20};

    if (argc == 2 && !strcmp(argv[1], "--quick"))
        batch_ns /= 10;
    micro_start();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        measure("pair", pair, sizes[i], 1);
        measure("pair+launch", pair_launch, sizes[i], 1);
        measure("async-pair", async_pair, sizes[i], 1);
        measure("async-pair+launch", async_pair_launch, sizes[i], 1);
    }
    measure("pair", pair, 1 << 20, 8);
    measure("pair+launch", pair_launch, 1 << 20, 8);
    measure("async-pair", async_pair, 1 << 20, 8);
    measure("async-pair+launch", async_pair_launch, 1 << 20, 8);
    measure("launch", launch, 0, 1);
    measure("launch", launch, 0, 8);
    measure("mem-info", mem_info, 0, 1);
    measure("free-foreign", free_foreign, 0, 1);
    return 0;
}
