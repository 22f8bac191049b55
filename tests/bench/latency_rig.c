/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See latency_rig.h.
 */
#include "tests/bench/latency_rig.h"

#include "pool/magazine.h"
#include "pool/state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct latency_run run;

__thread uint64_t longest_ns, sum_ns;

/* The calling thread's. */
static __thread bool measures;
static __thread uint64_t mark_ns;

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    int code = __real_pthread_mutex_lock(lock);
    if (measures && lock == &run.pool->lock)
        mark_ns = thread_ns();
    return code;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    if (measures && lock == &run.pool->lock) {
        uint64_t ns = thread_ns() - mark_ns;
        longest_ns = ns > longest_ns ? ns : longest_ns;
        sum_ns += ns;
    }
    return __real_pthread_mutex_unlock(lock);
}

_Noreturn void fail(const char *words)
{
    fprintf(stderr, "latency: %s\n", words);
    exit(1);
}

void start(uint64_t device_bytes, uint32_t most_blocks, enum pool_backing backing)
{
    run.model = model_create(device_bytes);
    run.model->backend.frees_beside = true;
    run.model->late_allowed = true;
    run.config.backing = backing;
    run.pool = pool_create(&run.model->backend, &run.config, NULL);
    run.addr = calloc(most_blocks, sizeof *run.addr);
    run.count = 0;
    if (!run.pool || !run.addr)
        fail("no pool");
}

void finish(void)
{
    const char *words = model_error(run.model);
    if (words)
        fail(words);
    model_destroy_context(run.model);
    pool_abandon(run.pool);
    model_destroy(run.model);
    free(run.addr);
    pool_config_init(&run.config);
}

uint64_t take(uint64_t size_bytes)
{
    uint64_t addr;
    int code;
    if (pool_alloc(run.pool, size_bytes, &addr, &code) != POOL_OK)
        fail("no memory");
    return addr;
}

void give(uint64_t addr)
{
    if (pool_free_slowly(addr) != POOL_OK)
        fail("no free");
}

void fill(uint64_t count, uint64_t size_bytes)
{
    for (uint64_t i = 0; i < count; i++)
        run.addr[run.count++] = take(size_bytes);
}

void give_every(uint32_t first, uint32_t step)
{
    for (uint32_t i = first; i < run.count; i += step)
        give(run.addr[i]);
}

void work(uint64_t duration_ns)
{
    pool_submit(run.pool, 1);
    model_submit(run.model, 1, duration_ns, 0, 0, 0);
    pool_submit(run.pool, 2);
    model_submit(run.model, 2, duration_ns, 0, 0, 0);
}

void trim(uint64_t keep_bytes, uint64_t idle_ns)
{
    pool_trim(run.pool, &(struct pool_trim){.keep_bytes = keep_bytes, .idle_ns = idle_ns});
}

void settle(void)
{
    work(0);
    trim(UINT64_MAX, 0);
}

void measure_begin(void)
{
    longest_ns = sum_ns = 0;
    measures = true;
}

void measure_end(void)
{
    measures = false;
}

void take_measured(uint64_t size_bytes)
{
    measure_begin();
    take(size_bytes);
    measure_end();
    finish();
}
