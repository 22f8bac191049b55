/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Idle memory given back while another thread launches kernels. Reads one word a line on stdin:
 *   take COUNT SIZE_BYTES   allocates and frees that many -> "idle BYTES"
 *   quiet NS                launches for so long          -> START P50 P99 P999 MAX LAUNCHES
 *   trim NS                 the same, with the cache emptied a quarter of the time after the start
 *                                             -> BEGIN RETURNED P50 P99 P999 MAX LAUNCHES
 * START, BEGIN and RETURNED are moments of the monotonic clock: when the launches began, when the
 * request to empty the cache was made, and when the call came back. The rest are nanoseconds of
 * single launches.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/bench_stat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS_MAX = 1 << 16, LAUNCHES_MAX = 1 << 20, IN_FLIGHT_MAX = 256 };

static struct flush {
    const struct allocator *allocator;
    void *stream, *scratch;
    void *blocks[BLOCKS_MAX];
    uint64_t launch_ns; /* how long to launch */
    struct series series;
    atomic_bool begun;
} flush;

/* Each launch is timed; what waits for room in the queue is not a launch's time. */
static void *launch_main(void *argument)
{
    uint64_t end_ns;

    gpu_thread();
    flush.series.count = 0;
    for (unsigned i = 0; i < IN_FLIGHT_MAX; i++)
        gpu_launch(flush.scratch, flush.stream);
    gpu_stream_synchronize(flush.stream);
    end_ns = gpu_now_ns() + flush.launch_ns;
    atomic_store(&flush.begun, true);
    for (unsigned i = 1;; i++) {
        uint64_t before_ns = gpu_now_ns();

        if (before_ns >= end_ns || flush.series.count == flush.series.room)
            break;
        gpu_launch(flush.scratch, flush.stream);
        series_add(&flush.series, gpu_now_ns() - before_ns);
        if (i % IN_FLIGHT_MAX == 0)
            gpu_stream_synchronize(flush.stream);
    }
    gpu_stream_synchronize(flush.stream);
    return NULL;
}

static void sleep_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

static void say_launches(void)
{
    series_sort(&flush.series);
    printf("%u %u %u %u %zu\n", series_permille(&flush.series, 500),
           series_permille(&flush.series, 990), series_permille(&flush.series, 999),
           series_permille(&flush.series, 1000), flush.series.count);
}

static void play(bool trim)
{
    uint64_t begin_ns, returned_ns;
    pthread_t thread;

    atomic_store(&flush.begun, false);
    pthread_create(&thread, NULL, launch_main, NULL);
    while (!atomic_load(&flush.begun))
        sleep_ns(100000);
    if (trim)
        sleep_ns(flush.launch_ns / 4);
    begin_ns = gpu_now_ns();
    if (trim)
        flush.allocator->trim();
    returned_ns = gpu_now_ns();
    pthread_join(thread, NULL);
    printf("%lu ", begin_ns);
    if (trim)
        printf("%lu ", returned_ns);
    say_launches();
}

static void take(unsigned count, size_t size_bytes)
{
    for (unsigned i = 0; i < count; i++)
        flush.blocks[i] = flush.allocator->allocate(size_bytes, flush.stream);
    for (unsigned i = 0; i < count; i++)
        flush.allocator->release(flush.blocks[i], flush.stream);
    gpu_synchronize();
    printf("idle %zu\n", count * size_bytes);
}

static void start(const struct allocator *allocator)
{
    flush.allocator = allocator;
    flush.stream = gpu_stream_create();
    flush.scratch = gpu_malloc(512);
    flush.series = series_create(LAUNCHES_MAX);
}

static bool answer(void)
{
    char word[16];
    unsigned count;
    size_t size_bytes;

    if (scanf("%15s", word) != 1)
        return false;
    if (!strcmp(word, "take")) {
        if (scanf("%u %zu", &count, &size_bytes) != 2 || count > BLOCKS_MAX)
            exit(2);
        take(count, size_bytes);
    } else {
        if (scanf("%lu", &flush.launch_ns) != 1)
            exit(2);
        play(!strcmp(word, "trim"));
    }
    return true;
}

const struct part part_flush = {"flush", start, answer};
