/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Waits of threads at a word of 32 bits, and their wakes, by system calls. The C library's
 * functions do not serve: they have no wait with a time on CLOCK_MONOTONIC in all versions that the
 * library runs with, and no word that two processes share. Async-signal-safe, no cancellation
 * points, no lock. The calls set errno.
 */
#ifndef SHIM_FUTEX_H
#define SHIM_FUTEX_H

#include "shim/process/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Who waits at the word: threads of this process alone, or of any that maps its file. */
enum futex_scope { FUTEX_OF_PROCESS = FUTEX_PRIVATE_FLAG, FUTEX_OF_FILE = 0 };

#define FUTEX_FOREVER UINT64_MAX

/* Waits for a wake. The kernel waits only while the word has the value, and compares before it
 * waits. Returns at until_ns (clock_now_ns) at the latest, and may return early. False: the word is
 * not there. */
static inline bool futex_wait(const void *word, uint32_t value, uint64_t until_ns,
                              enum futex_scope scope)
{
    /* The time is absolute and, without FUTEX_CLOCK_REALTIME, of CLOCK_MONOTONIC. */
    struct timespec until = clock_timespec(until_ns);
    return !syscall(SYS_futex, word, FUTEX_WAIT_BITSET | (int)scope, value,
                    until_ns == FUTEX_FOREVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY) ||
           errno != EFAULT;
}

/* Waits until the word is 0, or until until_ns. */
static inline void futex_await_zero(const _Atomic uint32_t *word, uint64_t until_ns,
                                    enum futex_scope scope)
{
    for (uint32_t value; (value = atomic_load(word)) != 0 && clock_now_ns() < until_ns;)
        futex_wait(word, value, until_ns, scope);
}

/* Returns how many threads waited, at most `most`. Below 0: the word is not there. */
static inline long futex_wake(const void *word, int most, enum futex_scope scope)
{
    return syscall(SYS_futex, word, FUTEX_WAKE | (int)scope, most, NULL, NULL, 0);
}

static inline long futex_wake_all(const void *word, enum futex_scope scope)
{
    return futex_wake(word, INT_MAX, scope);
}

#endif
