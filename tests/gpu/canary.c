/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The canary: does the allocator ever hand out memory that the GPU may still use?
 *
 * Each round leaves work in flight that writes or reads a block late. It frees the block and
 * allocates until the address comes back. The new owner writes there at once from another stream.
 * Then the round waits for both. It fails if old work overwrote a byte or saw new data. The rounds
 * cover every pair of stream kinds, every kind of first access, and the same, smaller and coalesced
 * sizes. They also create and destroy streams, use several threads, and flush meanwhile.
 *
 * Exit status: 0 sound, 1 memory was disturbed, 2 a driver call failed, 77 no device.
 */
#include "tests/gpu/canary.h"
#include "tests/preload/kernels.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 64 };

static atomic_bool rounds_over;
static atomic_ulong signals_seen;

static void count_signal(int number)
{
    atomic_fetch_add_explicit(&signals_seen, 1, memory_order_relaxed);
}

static void usage(void)
{
    puts("canary [--rounds N] [--threads N] [--seed N] [--late-us N] [--size BYTES] "
         "[--legacy-only]\n"
         "       [--flush] [--empty] [--runs N] [--broken] [--stats]");
}

static bool parse(int argc, char **argv, struct canary_options *options)
{
    static const struct option names[] = {
        {"rounds", required_argument, NULL, 'r'}, {"threads", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 's'},   {"late-us", required_argument, NULL, 'l'},
        {"size", required_argument, NULL, 'z'},   {"legacy-only", no_argument, NULL, 'o'},
        {"runs", required_argument, NULL, 'u'},   {"flush", no_argument, NULL, 'f'},
        {"empty", no_argument, NULL, 'e'},        {"broken", no_argument, NULL, 'b'},
        {"stats", no_argument, NULL, 'v'},        {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        uint64_t number = optarg ? strtoull(optarg, NULL, 0) : 0;

        switch (option) {
        case 'r':
            options->rounds = number;
            break;
        case 't':
            options->threads = (unsigned)number;
            break;
        case 's':
            options->seed = number;
            break;
        case 'l':
            options->late_ns = number * 1000;
            break;
        case 'z':
            options->size_bytes = number;
            break;
        case 'o':
            options->legacy_only = true;
            break;
        case 'f':
            options->flush = true;
            break;
        case 'e':
            options->empty = true;
            break;
        case 'u':
            options->runs = strtoul(optarg, NULL, 0);
            break;
        case 'b':
            options->broken = true;
            break;
        case 'v':
            options->stats = true;
            break;
        default:
            return false;
        }
    }
    return optind == argc && options->threads >= 1 && options->threads <= THREADS_MAX &&
           options->size_bytes >= 4;
}

/* Requests flushes by both routes until the rounds are over. The program handles SIGUSR1, so that a
 * process without the shim survives it. */
static void *flush_main(void *unused)
{
    for (unsigned long i = 0; !atomic_load(&rounds_over); i++) {
        struct timespec pause = {.tv_nsec = 1000000 + (long)(i % 7) * 1000000};

        nanosleep(&pause, NULL);
        if (i % 3 == 0)
            setenv("GPUCACHE_EMPTY_CACHE", "1", 1);
        else
            kill(getpid(), SIGUSR1);
    }
    return NULL;
}

static void worker_start(struct worker *worker)
{
    size_t size_bytes = worker->canary->options.size_bytes * 4;

    DRIVER_CHECK(driver.cuCtxSetCurrent(worker->canary->context));
    worker->random = worker->canary->options.seed + worker->index * UINT64_C(0x5851f42d4c957f2d);
    DRIVER_CHECK(driver.cuMemAlloc_v2(&worker->source, size_bytes));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&worker->errors, 8));
    DRIVER_CHECK(driver.cuMemAllocHost_v2((void **)&worker->pinned, size_bytes));
    worker->pageable = malloc(size_bytes);
    if (!worker->pageable) {
        fputs("canary: no host memory\n", stderr);
        _Exit(2);
    }
}

static void worker_stop(struct worker *worker)
{
    DRIVER_CHECK(driver.cuMemFree_v2(worker->source));
    DRIVER_CHECK(driver.cuMemFree_v2(worker->errors));
    DRIVER_CHECK(driver.cuMemFreeHost(worker->pinned));
    free(worker->pageable);
    for (int kind = 0; kind < STREAM_KIND_COUNT; kind++) {
        if (worker->stream[kind] && worker->stream[kind] != CU_STREAM_PER_THREAD)
            DRIVER_CHECK(driver.cuStreamDestroy_v2(worker->stream[kind]));
    }
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;

    worker_start(worker);
    for (unsigned long i = 0; i < worker->canary->options.rounds; i++)
        canary_round(worker);
    worker_stop(worker);
    return NULL;
}

static void load_kernels(struct canary *canary)
{
    CUmodule module;

    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&canary->fill, module, "fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&canary->copy, module, "copy"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&canary->check, module, "check"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&canary->spin_fill, module, "spin_fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&canary->spin_check, module, "spin_check"));
}

static void run_threads(struct canary *canary)
{
    static struct worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX], flusher;
    unsigned count = canary->options.threads;

    if (canary->options.flush)
        pthread_create(&flusher, NULL, flush_main, NULL);
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (struct worker){.canary = canary, .index = i};
        pthread_create(&threads[i], NULL, worker_main, &workers[i]);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&rounds_over, true);
    if (canary->options.flush)
        pthread_join(flusher, NULL);
}

int main(int argc, char **argv)
{
    static struct canary canary = {
        .options = {
            .rounds = 500, .threads = 1, .seed = 1, .late_ns = 2000000, .size_bytes = 8u << 20}};
    const struct canary_options *options = &canary.options;
    unsigned long bad;

    if (!parse(argc, argv, &canary.options)) {
        usage();
        return 2;
    }
    signal(SIGUSR1, count_signal);
    canary.context = driver_start(0);
    load_kernels(&canary);
    run_threads(&canary);
    DRIVER_CHECK(driver.cuCtxSynchronize());

    bad = canary.overwritten + canary.seen_early;
    printf("canary: %lu rounds, %u threads, seed %llu: %lu overwritten, %lu seen early\n",
           options->rounds, options->threads, (unsigned long long)options->seed,
           (unsigned long)canary.overwritten, (unsigned long)canary.seen_early);
    if (options->stats)
        printf("canary: %lu addresses came back, %lu with the old work in flight, %lu signals\n",
               (unsigned long)canary.reused, (unsigned long)canary.in_flight,
               (unsigned long)signals_seen);
    return bad ? 1 : 0;
}
