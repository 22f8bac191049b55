/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A stretch in which the calling thread is not cancelled (pthread_cancel). A thread that ended in
 * the middle of the library's own work would leave a lock held, or a count that others wait for.
 * Only cancellation points end a thread, so only code that has some needs a stretch. What holds:
 *
 * 1. The library's cancellation points are calls of the driver (its code may sleep, read and
 *    write), waits for a condition, and sleeps. Locks, atomics, memory of the host and
 *    pthread_create are none. Where there is no such point, as in all that the pool does without
 *    the driver, no thread ends, and no time is spent here.
 * 2. The library's own driver calls are visits (visit.h), which are such stretches. So are the
 *    waits of the pool (pool/state.h) and of a fence. Some functions call the driver outside a
 *    visit after they marked something: making a context, shared memory, captures, the end of
 *    contexts, peers. Each of these is one stretch as a whole.
 * 3. Calls of the program's that the library only passes on stay as they are: allocations that the
 *    driver serves, copies, launches, all that waits for the GPU. The library holds nothing across
 *    them. The record of a submission is the thread's own and ends with it.
 * 4. Some of the program's calls decide what the library has to know: a capture begins, a context
 *    ends. There a request to cancel stays pending over the call and acts at the thread's next
 *    point, as it does where the driver has none.
 * 5. A thread that allows asynchronous cancellation may end between any two instructions. POSIX
 *    allows it no call but those that change that. CUDA promises nothing either, nor does the
 *    library.
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
