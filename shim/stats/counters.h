/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Counters of the whole process, for what happens outside the pools. Generated from
 * shim/stats/counters.def. Atomic, relaxed, no lock: any thread and any signal handler may use
 * them.
 */
#ifndef SHIM_COUNTERS_H
#define SHIM_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

enum counter {
#define COUNTER(name, field, help) COUNTER_##name,
#include "shim/stats/counters.def"
#undef COUNTER
    NUM_COUNTERS
};

extern _Atomic uint64_t counter_values[NUM_COUNTERS];

static inline void counter_add(enum counter which, uint64_t by)
{
    atomic_fetch_add_explicit(&counter_values[which], by, memory_order_relaxed);
}

static inline uint64_t counter_get(enum counter which)
{
    return atomic_load_explicit(&counter_values[which], memory_order_relaxed);
}

#endif
