/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room process/: what the library knows of its process without CUDA: options, log, environment.
 * It includes no header of another room of shim/. Its one seam is this header: the word that every
 * wrapper reads to learn whether the library works here, and the options. The other headers are
 * tools for all rooms.
 *
 * The library starts with the first allocation of device memory in a CUDA context, or with the
 * first opening of one of its IPC handles. It never starts before (shim/entry/start.h). The word
 * goes from NEW to STARTING, and then to ON, or to OFF where the options say so. In a forked child
 * of a started process it goes to OFF. It never leaves OFF.
 */
#ifndef SHIM_STATE_H
#define SHIM_STATE_H

#include "shim/process/options.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum state { STATE_NEW, STATE_STARTING, STATE_ON, STATE_OFF };

extern _Atomic int state_now __attribute__((visibility("hidden")));

static inline bool state_is_on(void)
{
    return atomic_load_explicit(&state_now, memory_order_acquire) == STATE_ON;
}

/* Nothing has started the library so far. */
static inline bool state_is_new(void)
{
    return atomic_load_explicit(&state_now, memory_order_relaxed) == STATE_NEW;
}

/* Off for good. A library that is not on need not be off: it may have no pool yet. */
static inline bool state_is_off(void)
{
    return atomic_load(&state_now) == STATE_OFF;
}

/* True for one thread of the process: that thread starts the library and calls state_settle. */
bool state_claim(void);
/* Reads the options from the environment. False: this process is not to be served. Only the thread
 * that state_claim chose calls it. */
bool state_load_options(void);
/* The start is over: ON, or OFF for good. */
void state_settle(bool on);
/* OFF for good, in a forked child. Async-signal-safe. */
void state_turn_off(void);

/* The process's options; valid while the state is ON. Those that are LIVE in the tables may change:
 * 1. The control thread alone changes them, under a lock of state.c, and reads them without.
 * 2. A switch, and a time, is one atomic word: any thread may read it.
 * 3. For other LIVE options any other thread calls one of the functions that copy them below.
 * 4. All others are never written after the start: any thread may read them. */
const struct options *state_options(void);
/* Changes one option (options_set). For the control thread. */
bool state_set_option(size_t row, const char *text);
/* Any thread: see options_pool_config; and all options. */
void state_pool_config(int device, uint64_t device_total_bytes, struct pool_config *out);
void state_copy_options(struct options *out);
/* Is there to be a report at the exit? Any thread. */
bool state_wants_report(void);

/* CLOCK_MONOTONIC in nanoseconds: when the library started, and now. */
uint64_t state_started_ns(void);
uint64_t state_clock_ns(void);

#endif
