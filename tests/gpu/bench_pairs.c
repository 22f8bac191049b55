/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a pair of malloc and free costs the thread that calls. Reads one case a line on stdin,
 *   WORK SIZE_BYTES THREADS BUSY STREAM BATCHES PAIRS NS
 * and answers one line, in nanoseconds:
 *   MEAN P10 P50 P90 P99 MAX PAIRS
 * MEAN is the median over batches and threads, of batches that are timed as a whole. The rest is
 * from batches in which each pair is timed, less the time of reading the clock.
 *   WORK    pair: malloc, free; launch: malloc, a kernel that writes the block, free; kernel: only
 *           the kernel
 *   BUSY    number of streams on which long kernels are in flight meanwhile
 *   STREAM  of the kernels: own (one for each thread) or legacy
 *   PAIRS   at most in a batch of a thread
 *   NS      after this time a batch ends
 * The program creates no stream until a case asks for own or busy ones.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/bench_stat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    THREADS_MAX = 64,
    BUSY_MAX = 256,
    PAIRS_MAX = 1 << 16,
    BATCHES_MAX = 64,
    SCRATCH_BYTES = 512
};

/* Of the kernels that keep streams busy: long enough that keeping many streams busy takes few
 * launches. */
static const uint64_t busy_ns = 4000000;

struct test {
    char work[16], stream[16];
    size_t size_bytes;
    unsigned threads, busy, batches, pairs;
    uint64_t ns;
};

struct worker {
    const struct test *test;
    pthread_barrier_t *barrier;
    void *stream, *scratch;
    double mean_ns[BATCHES_MAX];
    struct series series;
};

static struct pair_bench {
    const struct allocator *allocator;
    uint64_t clock_ns; /* what reading the clock takes */
    void *own[THREADS_MAX], *busy[BUSY_MAX];
    char *scratch; /* what kernels write when nothing is allocated; no device memory, which a driver
                    * would then find room in */
    atomic_bool stop;
} bench;

/* Keeps two kernels in flight on every busy stream, without asking the driver how far they are. */
static void *keep_busy(void *argument)
{
    const struct test *test = argument;
    uint64_t until_ns[BUSY_MAX] = {0};

    gpu_thread();
    while (!atomic_load(&bench.stop)) {
        for (unsigned i = 0; i < test->busy; i++) {
            uint64_t now_ns = gpu_now_ns();

            if (until_ns[i] > now_ns + busy_ns)
                continue;
            gpu_spin(busy_ns, bench.busy[i]);
            until_ns[i] = (until_ns[i] > now_ns ? until_ns[i] : now_ns) + busy_ns;
        }
        usleep(200);
    }
    return NULL;
}

static void one_pair(const struct worker *worker)
{
    const struct test *test = worker->test;
    void *block = worker->scratch;

    if (test->work[0] == 'k') {
        gpu_launch(block, worker->stream);
        return;
    }
    block = bench.allocator->allocate(test->size_bytes, worker->stream);
    if (test->work[0] == 'l')
        gpu_launch(block, worker->stream);
    bench.allocator->release(block, worker->stream);
}

/* Mean of one pair of the batch. */
static double batch_timed_as_a_whole(const struct worker *worker)
{
    uint64_t start_ns = gpu_now_ns(), spent_ns = 0;
    unsigned count = 0, step = 1;

    while (count < worker->test->pairs && spent_ns < worker->test->ns) {
        for (unsigned i = 0; i < step; i++)
            one_pair(worker);
        count += step;
        step = step < 32 ? step * 2 : step;
        spent_ns = gpu_now_ns() - start_ns;
    }
    return (double)spent_ns / count;
}

static void batch_timed_by_pair(struct worker *worker)
{
    uint64_t start_ns = gpu_now_ns(), before_ns = start_ns;

    for (unsigned i = 0; i < worker->test->pairs && before_ns - start_ns < worker->test->ns; i++) {
        uint64_t after_ns, ns;

        one_pair(worker);
        after_ns = gpu_now_ns();
        ns = after_ns - before_ns;
        series_add(&worker->series, ns > bench.clock_ns ? ns - bench.clock_ns : 0);
        before_ns = after_ns;
    }
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;

    gpu_thread();
    batch_timed_as_a_whole(worker);
    for (unsigned i = 0; i < worker->test->batches; i++) {
        gpu_stream_synchronize(worker->stream);
        pthread_barrier_wait(worker->barrier);
        worker->mean_ns[i] = batch_timed_as_a_whole(worker);
        gpu_stream_synchronize(worker->stream);
        pthread_barrier_wait(worker->barrier);
        batch_timed_by_pair(worker);
    }
    gpu_stream_synchronize(worker->stream);
    return NULL;
}

static void report(const struct test *test, struct worker *workers)
{
    double means[THREADS_MAX * BATCHES_MAX];
    struct series all = series_create((size_t)test->threads * PAIRS_MAX);
    size_t count = 0;

    for (unsigned i = 0; i < test->threads; i++) {
        for (unsigned k = 0; k < test->batches; k++)
            means[count++] = workers[i].mean_ns[k];
        series_append(&all, &workers[i].series);
    }
    series_sort(&all);
    printf("%.1f %u %u %u %u %u %zu\n", stat_median(means, count), series_permille(&all, 100),
           series_permille(&all, 500), series_permille(&all, 900), series_permille(&all, 990),
           series_permille(&all, 1000), all.count);
    series_destroy(&all);
}

static void create_streams(const struct test *test)
{
    for (unsigned i = 0; i < test->busy; i++) {
        if (!bench.busy[i])
            bench.busy[i] = gpu_stream_create();
    }
    for (unsigned i = 0; i < test->threads && test->stream[0] == 'o'; i++) {
        if (!bench.own[i])
            bench.own[i] = gpu_stream_create();
    }
}

static void run(struct test *test)
{
    static struct worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX], keeper;
    pthread_barrier_t barrier;

    create_streams(test);
    atomic_store(&bench.stop, false);
    if (test->busy) {
        pthread_create(&keeper, NULL, keep_busy, test);
        usleep(2000);
    }
    pthread_barrier_init(&barrier, NULL, test->threads);
    for (unsigned i = 0; i < test->threads; i++) {
        workers[i] = (struct worker){.test = test,
                                     .barrier = &barrier,
                                     .stream = test->stream[0] == 'o' ? bench.own[i] : NULL,
                                     .scratch = bench.scratch + i * SCRATCH_BYTES,
                                     .series = series_create(PAIRS_MAX)};
        pthread_create(&threads[i], NULL, worker_main, &workers[i]);
    }
    for (unsigned i = 0; i < test->threads; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&bench.stop, true);
    if (test->busy)
        pthread_join(keeper, NULL);
    gpu_synchronize();
    pthread_barrier_destroy(&barrier);
    report(test, workers);
    for (unsigned i = 0; i < test->threads; i++)
        series_destroy(&workers[i].series);
}

static void start(const struct allocator *allocator)
{
    bench.allocator = allocator;
    bench.scratch = gpu_malloc_host(THREADS_MAX * SCRATCH_BYTES);
    bench.clock_ns = stat_clock_ns();
}

static bool answer(void)
{
    struct test test;

    if (scanf("%15s %zu %u %u %15s %u %u %lu", test.work, &test.size_bytes, &test.threads,
              &test.busy, test.stream, &test.batches, &test.pairs, &test.ns) != 8)
        return false;
    if (!test.threads || test.threads > THREADS_MAX || test.busy > BUSY_MAX ||
        test.batches > BATCHES_MAX)
        exit(2);
    run(&test);
    return true;
}

const struct part part_pairs = {"pairs", start, answer};
