/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A pool over the model of a GPU, and how long a thread keeps its lock, for the scenes of
 * latency.c. The linker redirects the pool's lock calls to this file (--wrap).
 */
#ifndef TESTS_BENCH_LATENCY_RIG_H
#define TESTS_BENCH_LATENCY_RIG_H

#include "pool/pool.h"
#include "scripts/replay/model.h"

#include <stdbool.h>
#include <stdint.h>

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)

extern struct latency_run {
    struct model *model;
    struct pool *pool;
    struct pool_config config;
    uint64_t *addr;
    uint32_t count;
} run;

/* Of the calling thread, since its last measure_begin(): the longest time with the lock, and the
 * sum. */
extern __thread uint64_t longest_ns, sum_ns;

_Noreturn void fail(const char *words);
void start(uint64_t device_bytes, uint32_t most_blocks, enum pool_backing backing);
void finish(void);
uint64_t take(uint64_t size_bytes);
/* Goes past the magazines, which would keep the latest frees out of the pool. */
void give(uint64_t addr);
void fill(uint64_t count, uint64_t size_bytes);
/* Frees every step-th block that fill() took, from block `first` on. */
void give_every(uint32_t first, uint32_t step);
/* Submits work on two streams, so that frees need their fences. */
void work(uint64_t duration_ns);
void trim(uint64_t keep_bytes, uint64_t idle_ns);
/* Afterwards all freed blocks are idle memory of the pool. */
void settle(void);
void measure_begin(void);
void measure_end(void);
/* The measured request, and the end of the scene. */
void take_measured(uint64_t size_bytes);

#endif
