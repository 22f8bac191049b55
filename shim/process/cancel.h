/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Stretches of code in which pthread_cancel does not end the calling thread. A thread that ended
 * inside the library's own work would leave a lock held, or a count that other threads wait for. A
 * thread ends only at cancellation points, so only code with such points needs a stretch.
 *
 * 1. The library's cancellation points are calls of the driver (its code may sleep, read and
 *    write), waits for a condition, and sleeps. Locks, atomics, host memory and pthread_create are
 *    none. The pool's work without the driver has no such point, so no thread ends there and the
 *    work needs no stretch.
 * 2. The library makes its own driver calls in call scopes (shim/driver/call_scope.h), which are
 *    stretches. So are the waits of the pool (pool/state.h) and of a fence. Some functions mark
 *    something and then call the driver outside a call scope. They make or end a context, or they
 *    belong to shared memory, captures or peers. Each of these functions is one stretch as a whole.
 * 3. Calls that the library only passes on stay as they are: allocations that the driver serves,
 *    copies, launches, waits for the GPU. The library holds nothing across them. The record of a
 *    submission belongs to its thread and ends with it.
 * 4. With some calls of the program the library's state must follow: a capture begins, a context
 *    ends. A request to cancel stays pending over such a call and acts at the thread's next
 *    cancellation point. Without the library the same happens where the driver has no point.
 * 5. A thread that allows asynchronous cancellation may end between any two instructions. POSIX
 *    allows such a thread only the calls that change its cancellation. CUDA promises nothing for
 *    it, and neither does the library.
 */
#ifndef SHIM_CANCEL_H
#define SHIM_CANCEL_H

#include <pthread.h>

/* Returns the argument for the matching cancel_allow. Stretches may be nested. */
static inline int cancel_forbid(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancel_allow(int before)
{
    pthread_setcancelstate(before, NULL);
}

#endif
