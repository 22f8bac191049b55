/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Clocks and waits, all in nanoseconds. Async-signal-safe. No state, no lock.
 */
#ifndef SHIM_CLOCK_H
#define SHIM_CLOCK_H

#include <stdint.h>
#include <time.h>

#define MS_NS UINT64_C(1000000)
#define SEC_NS UINT64_C(1000000000)

static inline uint64_t clock_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * SEC_NS + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC: what all times of this process are, where nothing else is said. */
static inline uint64_t clock_now_ns(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

static inline int64_t clock_now_ms(void)
{
    return (int64_t)(clock_now_ns() / MS_NS);
}

/* Since 1970. The machine's clock may be set meanwhile. */
static inline uint64_t clock_unix_ns(void)
{
    return clock_of(CLOCK_REALTIME);
}

static inline struct timespec clock_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / SEC_NS), .tv_nsec = (long)(ns % SEC_NS)};
}

/* Sleeps. A signal handler ends the sleep early. A cancellation point. */
static inline void clock_sleep(uint64_t ns)
{
    struct timespec t = clock_timespec(ns);
    nanosleep(&t, NULL);
}

#endif
