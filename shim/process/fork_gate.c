/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See fork_gate.h; the numbers below are those of its steps. No lock: two words, both futexes.
 */
#include "shim/process/fork_gate.h"

#include "shim/process/futex.h"

#include <errno.h>
#include <stdatomic.h>

static _Atomic uint32_t inside;  /* own threads in such a moment */
static _Atomic uint32_t forking; /* threads that fork */

static void count_out(void)
{
    if (atomic_fetch_sub(&inside, 1) == 1 && atomic_load(&forking)) /* step 1 */
        futex_wake_all(&inside, FUTEX_OF_PROCESS);
}

void fork_gate_enter(void)
{
    int saved_errno = errno;
    uint64_t end_ns = clock_now_ns() + FORK_GATE_PATIENCE_NS;
    for (;;) {
        atomic_fetch_add(&inside, 1);
        if (!atomic_load(&forking) || clock_now_ns() >= end_ns) /* steps 1 and 2 */
            break;
        count_out();
        futex_await_zero(&forking, end_ns, FUTEX_OF_PROCESS);
    }
    errno = saved_errno;
}

void fork_gate_leave(void)
{
    int saved_errno = errno;
    count_out();
    errno = saved_errno;
}

void fork_gate_close(void)
{
    int saved_errno = errno;
    atomic_fetch_add(&forking, 1);
    if (atomic_load(&inside)) /* step 1 */
        futex_await_zero(&inside, clock_now_ns() + FORK_GATE_PATIENCE_NS, FUTEX_OF_PROCESS);
    errno = saved_errno;
}

/* Another handler of the program's may have started the library, after this fork began. Then the
 * gate was not closed. */
void fork_gate_open(void)
{
    int saved_errno = errno;
    uint32_t now = atomic_load(&forking);
    while (now && !atomic_compare_exchange_weak(&forking, &now, now - 1))
        ;
    if (now == 1)
        futex_wake_all(&forking, FUTEX_OF_PROCESS);
    errno = saved_errno;
}

/* The child has none of these threads. */
void fork_gate_forget(void)
{
    atomic_store(&inside, 0);
    atomic_store(&forking, 0);
}
