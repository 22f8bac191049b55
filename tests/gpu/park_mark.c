/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a mark costs a launch. To park a process, a closer must know the threads that are inside a
 * wrapper of the driver: each thread would mark itself before it reads the closing word.
 *
 * The question: how many ns, and how much of a launch, is
 *   seq_cst   a store in one order with all others (an exchange on x86), and a release store after;
 *   plain     plain stores; the closer makes the order by membarrier().
 * What it means: seq_cst costs less than 0.5 % of a launch, or less than the same wrapper differs
 * from itself ("now" and "again"): take it. Else take plain, if a membarrier takes less than 1 ms.
 *
 *   park_mark [--seconds S]
 * prints a line for each number of threads, with the median ns of a launch of an empty kernel in
 * each form; each thread has a stream of its own. "none" is the wrapper over a function that does
 * nothing, "direct" the driver without a wrapper.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS_MAX = 16, LAUNCHES = 256, BLOCKS_MAX = 4096, FORMS = 5 };

/* What stands for the library's word (pool_watch) and its slot of the driver's function. */
#define WORD_OPEN 0x8000u

#define LAUNCH_PARAMS                                                                              \
    CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,    \
        unsigned shared_bytes, CUstream stream, void **params, void **extra
#define LAUNCH_ARGS f, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, extra

typedef CUresult launch_fn(LAUNCH_PARAMS);

static atomic_uint word = WORD_OPEN;
static _Atomic(launch_fn *) slot;

/* The mark of a thread, alone in its cache line. */
struct mark {
    _Alignas(64) atomic_uint_least64_t inside;
};
static struct mark marks[THREADS_MAX];
static __thread struct mark *mine __attribute__((tls_model("initial-exec")));

static CUresult call(LAUNCH_PARAMS)
{
    launch_fn *fn = atomic_load_explicit(&slot, memory_order_relaxed);

    return fn(LAUNCH_ARGS);
}

__attribute__((noinline)) static CUresult now(LAUNCH_PARAMS)
{
    if (atomic_load_explicit(&word, memory_order_relaxed) != WORD_OPEN)
        return CUDA_ERROR_UNKNOWN;
    return call(LAUNCH_ARGS);
}

static void leave(struct mark *m)
{
    uint64_t inside = atomic_load_explicit(&m->inside, memory_order_relaxed);

    atomic_store_explicit(&m->inside, inside - 1, memory_order_release);
}

/* The low byte says how deep inside the thread is, the rest counts its uses. */
__attribute__((noinline)) static CUresult seq_cst(LAUNCH_PARAMS)
{
    struct mark *m = mine;
    CUresult rc = CUDA_ERROR_UNKNOWN;

    atomic_store(&m->inside, atomic_load_explicit(&m->inside, memory_order_relaxed) + 0x101);
    if (atomic_load_explicit(&word, memory_order_relaxed) == WORD_OPEN)
        rc = call(LAUNCH_ARGS);
    leave(m);
    return rc;
}

__attribute__((noinline)) static CUresult plain(LAUNCH_PARAMS)
{
    struct mark *m = mine;
    CUresult rc = CUDA_ERROR_UNKNOWN;

    atomic_store_explicit(&m->inside,
                          atomic_load_explicit(&m->inside, memory_order_relaxed) + 0x101,
                          memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&word, memory_order_relaxed) == WORD_OPEN)
        rc = call(LAUNCH_ARGS);
    leave(m);
    return rc;
}

__attribute__((noinline)) static CUresult nothing(LAUNCH_PARAMS)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared_bytes, (void)stream, (void)params, (void)extra;
    __asm__ volatile("");
    return CUDA_SUCCESS;
}

enum { DIRECT, NOW, SEQ_CST, PLAIN, AGAIN };
static launch_fn *forms[FORMS] = {NULL, now, seq_cst, plain, now};

/* One number of threads. The threads use the same form at the same time. */
static struct round {
    unsigned threads;
    bool with_driver;
    uint64_t end_ns;
    pthread_barrier_t turn;
    atomic_bool is_over;
    atomic_uint taken[FORMS];
    double ns[FORMS][BLOCKS_MAX];
} current;

static CUcontext context;
static CUfunction spin;

static double block_ns(launch_fn *launch, CUstream stream)
{
    uint64_t spin_ns = 0, start_ns = driver_now_ns();

    for (int i = 0; i < LAUNCHES; i++)
        if (launch(spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&spin_ns}, NULL))
            exit(2);
    return (double)(driver_now_ns() - start_ns) / LAUNCHES;
}

static void *launch_loop(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    CUstream stream;

    mine = &marks[me];
    DRIVER_CHECK(driver.cuCtxSetCurrent(context));
    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned turn = 0;; turn++) {
        unsigned form = turn % FORMS, at;
        double ns;

        if (me == 0 && form == 0)
            current.is_over = driver_now_ns() > current.end_ns;
        pthread_barrier_wait(&current.turn);
        if (current.is_over)
            break;
        ns = block_ns(forms[form] ? forms[form] : atomic_load(&slot), stream);
        DRIVER_CHECK(driver.cuStreamSynchronize(stream));
        at = atomic_fetch_add(&current.taken[form], 1);
        if (at < BLOCKS_MAX && turn >= FORMS)
            current.ns[form][at] = ns;
        else
            atomic_fetch_sub(&current.taken[form], 1);
        pthread_barrier_wait(&current.turn);
    }
    DRIVER_CHECK(driver.cuStreamDestroy_v2(stream));
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_ns(unsigned form)
{
    unsigned count = current.taken[form];

    if (!count)
        return 0;
    qsort(current.ns[form], count, sizeof(double), by_value);
    return current.ns[form][count / 2];
}

static void start_round(unsigned threads, bool with_driver, double seconds, pthread_t *ids)
{
    current.threads = threads;
    current.with_driver = with_driver;
    current.end_ns = driver_now_ns() + (uint64_t)(seconds * 1e9);
    current.is_over = false;
    for (unsigned form = 0; form < FORMS; form++)
        current.taken[form] = 0;
    atomic_store(&slot, with_driver ? driver.cuLaunchKernel : nothing);
    pthread_barrier_init(&current.turn, NULL, threads);
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, launch_loop, (void *)(uintptr_t)i);
}

static void end_round(pthread_t *ids)
{
    for (unsigned i = 0; i < current.threads; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&current.turn);
}

/* Prints the round; true when seq_cst is acceptable. */
static bool print_round(void)
{
    double ns[FORMS], base, noise, cost;
    char threads[16];
    bool is_good;

    for (unsigned form = 0; form < FORMS; form++)
        ns[form] = median_ns(form);
    base = (ns[NOW] + ns[AGAIN]) / 2;
    noise = ns[NOW] > ns[AGAIN] ? ns[NOW] - ns[AGAIN] : ns[AGAIN] - ns[NOW];
    cost = ns[SEQ_CST] - base;
    is_good = cost < 0.005 * base || cost <= noise;
    snprintf(threads, sizeof threads, current.with_driver ? "%u" : "none", current.threads);
    printf("%-7s  %8.1f  %8.1f  %8.1f  %8.1f  %8.1f  %+7.2f%%  %+7.2f%%  %+7.2f%%\n", threads,
           ns[DIRECT], ns[NOW], ns[AGAIN], ns[SEQ_CST], ns[PLAIN], 100 * noise / base,
           100 * cost / base, 100 * (ns[PLAIN] - base) / base);
    return is_good || !current.with_driver;
}

/* A membarrier interrupts the threads that run: its time beside launches. */
static void print_membarrier(unsigned threads)
{
    double sum = 0, worst = 0;
    unsigned count = 0;
    pthread_t ids[THREADS_MAX];

    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0)) {
        printf("membarrier: not here\n");
        return;
    }
    start_round(threads, true, 0.3, ids);
    while (!current.is_over && count < 1000) {
        uint64_t start_ns = driver_now_ns();
        long rc = syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        double us = (double)(driver_now_ns() - start_ns) / 1e3;

        if (rc)
            break;
        sum += us;
        worst = us > worst ? us : worst;
        count++;
        usleep(200);
    }
    end_round(ids);
    printf("membarrier beside %u threads: mean %.1f us, worst %.1f us of %u\n", threads,
           count ? sum / count : 0, worst, count);
}

int main(int argc, char **argv)
{
    static const unsigned counts[] = {1, 4, 16};
    double seconds = argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2]) : 2;
    bool is_good = true;
    pthread_t ids[THREADS_MAX];
    CUmodule module;

    context = driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&spin, module, "spin"));
    printf("threads    direct       now     again   seq_cst     plain     noise   seq_cst     "
           "plain\n");
    start_round(1, false, seconds / 4, ids);
    end_round(ids);
    print_round();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        start_round(counts[i], true, seconds, ids);
        end_round(ids);
        is_good &= print_round();
    }
    print_membarrier(THREADS_MAX);
    printf("verdict: %s\n", is_good ? "seq_cst costs less than 0.5 % of a launch, or than the noise"
                                    : "seq_cst costs 0.5 % of a launch or more: look at plain");
    return 0;
}
