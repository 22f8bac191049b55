/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room process/: what the library knows of its process without CUDA: log, environment, threads
 * of its own. It includes no header of another room of shim/. Its one seam is this header: the word
 * that every wrapper reads to learn whether the library works here. The other headers are tools for
 * all rooms.
 *
 * The library starts with the first allocation of device memory in a CUDA context, or with the
 * first opening of one of its IPC handles. It never starts before (shim/entry/start.h). The word
 * goes from NEW to STARTING, and then to ON, or to OFF where the options say so. In a forked child
 * of a started process it goes to OFF. It never leaves OFF.
 */
#ifndef SHIM_STATE_H
#define SHIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum state { STATE_NEW, STATE_STARTING, STATE_ON, STATE_OFF };

extern _Atomic int state_now __attribute__((visibility("hidden")));

static inline bool state_is_on(void)
{
    return atomic_load_explicit(&state_now, memory_order_acquire) == STATE_ON;
}

/* Off for good. A library that is not on need not be off: it may have no pool yet. */
static inline bool state_is_off(void)
{
    return atomic_load(&state_now) == STATE_OFF;
}

/* True for one thread of the process: that thread starts the library and calls state_settle. */
bool state_claim(void);
/* The start is over: ON, or OFF for good. */
void state_settle(bool on);
/* OFF for good, in a forked child. Async-signal-safe. */
void state_turn_off(void);

/* What keeps allocations from the fast path, as bits. Any thread reads it. */
enum { STATE_DETOUR_FLUSH = 1, STATE_DETOUR_TRACE = 2 };
extern _Atomic uint32_t state_detours_now __attribute__((visibility("hidden")));
static inline uint32_t state_detours(void)
{
    return atomic_load_explicit(&state_detours_now, memory_order_relaxed);
}
static inline void state_detour_begin(uint32_t bit)
{
    atomic_fetch_or(&state_detours_now, bit);
}
/* True: it was there. */
static inline bool state_detour_end(uint32_t bit)
{
    return atomic_fetch_and(&state_detours_now, ~bit) & bit;
}

/* When the library started (clock_now_ns). */
uint64_t state_started_ns(void);

#endif
