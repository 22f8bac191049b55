/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A stretch in which the calling thread is not cancelled (pthread_cancel): a thread that ended in the middle of
 * the library's own work would leave a lock held, or a count that others wait for. Only cancellation points
 * end a thread, so only what has some needs it. What holds:
 *
 * 1. The library's cancellation points are calls of the driver (its code may sleep, read and write), waits for a
 *    condition, and sleeps. Locks, atomics, memory of the host and pthread_create are none. Where none is, as
 *    in all that the pool does without the driver, a thread is not ended, and no time is spent here.
 * 2. Driver calls of the library's own are visits (visit.h), which are such stretches; so are the waits of the pool
 *    (pool/state.h) and of a fence. What calls the driver around a visit, and has marked something by then, is one as
 *    a whole: making a context, shared memory, captures, the end of contexts, peers.
 * 3. Calls of the program's that are only passed on stay as they are: allocations that the driver serves,
 *    copies, launches, all that waits for the GPU. Nothing of the library's is held across them; the record of
 *    a submission is the thread's own and ends with it. Where the outcome decides what the library has to know (a
 *    capture begins, a context ends) a request to cancel stays pending over the call, and acts at the thread's
 *    next point, as it does where the driver has none.
 * 4. A thread that allows asynchronous cancellation may be ended anywhere, between any two instructions. POSIX allows
 *    it no call but those that change that; CUDA promises nothing either, nor does the library.
 */
#ifndef SHIM_CANCEL_H
#define SHIM_CANCEL_H

#include <pthread.h>

/* Returns what cancel_allow is to be given. May be nested. */
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
