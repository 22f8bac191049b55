/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Whether the library works in this process: it starts at the first allocation in a CUDA context,
 * never before, and is off for ever in a forked child and wherever the options say so.
 */
#ifndef SHIM_STATE_H
#define SHIM_STATE_H

#include "shim/process/options.h"

#include <stdatomic.h>
#include <stdbool.h>

enum state { STATE_NEW, STATE_STARTING, STATE_ON, STATE_OFF };

extern _Atomic int state_now __attribute__((visibility("hidden")));

static inline bool state_is_on(void)
{
    return atomic_load_explicit(&state_now, memory_order_acquire) == STATE_ON;
}

/* Starts the library if nobody has; false: it is off, or another thread is just starting it. */
bool state_start(void);

/* The process's options; valid while the state is ON. */
const struct options *state_options(void);

/* When the library started, CLOCK_MONOTONIC. */
uint64_t state_started_ns(void);
uint64_t state_clock_ns(void);

#endif
