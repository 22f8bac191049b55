/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room control/ holds the control thread and the flushes. A flush gives idle memory back to the
 * driver (flush.h); the thread does that and other duties. The room's one seam is struct duty:
 * other parts add duties, and the thread knows none of them.
 *
 * A process has at most one control thread. All signals are blocked on it. It holds no descriptor
 * and no resource of the program's. To make the thread takes longer than to reserve address space
 * (47 us, H200). So the first allocation does without it where no memory can be idle yet.
 *
 * Why it is safe:
 *  1. Only the control thread runs duties, one at a time. A duty needs no lock against itself.
 *  2. control_due uses atomics and one futex call, takes no lock and no memory, and keeps errno. So
 *     any thread may call it, under any lock, and a signal handler may.
 *  3. The list of duties only grows, and a duty stays for the life of the process. A duty's `next`
 *     is written before the duty is in the list, and never again. So the thread walks without a
 *     lock.
 *  4. A duty that needs calm starts only while no capture is open. A capture may begin while the
 *     duty runs. Its driver calls are call scopes (shim/driver/call_scope.h), which break no
 *     capture.
 *
 * Why no call is lost:
 *  5. control_due lowers the duty's time, then sets `wake`, then wakes the thread. The thread
 *     clears `wake` and then reads the times. So the thread reads the lower time, or `wake` is set
 *     after it was cleared. In the second case the kernel does not let the thread sleep.
 *  6. Before the thread runs a duty, it sets the duty's time to never. A call that came earlier is
 *     served by this run, which begins later. A call that comes later stays: the thread only lowers
 *     the time after the run.
 *  7. Two threads may call for a new duty at once, or a signal handler may interrupt the thread
 *     that adds it. One of the two adds the duty to the list, and each wakes the thread at its end.
 *     The later of both wake-ups comes after the duty was added and after both lowered its time.
 *  8. The thread announces that it puts a duty off, then looks for open captures. A capture that
 *     ends takes itself out of the count of open ones, then looks for the announcement. All four
 *     are sequentially consistent, so one sees the other: the thread runs the duty, or the end of
 *     the capture wakes the thread. The thread withdraws the announcement only in a pass that put
 *     no duty off.
 *
 * Why it ends with the process:
 *  9. No duty starts once the process leaves (call_scope_at_exit). The driver calls of a duty under
 *     way are call scopes (call_scope.h, 5 and 6). No new call scope begins then. The exit waits
 *     for the one that runs, for 10 s at most.
 * 10. A forked child has no control thread and makes none: the library is off there. In the child
 *     control_due changes a number that no thread reads.
 */
#ifndef SHIM_THREAD_H
#define SHIM_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DUTY_NEVER UINT64_MAX

/* Work for the control thread. Static; zero but for run, needs_calm and due_ns = DUTY_NEVER. */
struct duty {
    /* Does the work. now_ns is the time at which the pass began. Returns the time at which the duty
     * is due again; DUTY_NEVER: when control_due says so. */
    uint64_t (*run)(uint64_t now_ns);
    bool needs_calm; /* not while a capture is open: the work synchronises */
    /* These belong to thread.c. */
    _Atomic uint64_t due_ns; /* CLOCK_MONOTONIC */
    atomic_bool added;
    struct duty *next;
};

/* The duty is due at that time (CLOCK_MONOTONIC; 0: now), or at its present time if that is sooner.
 * Adds the duty to the list if it is not there, and wakes the thread. The thread sees all that the
 * caller stored before. Any thread, also in a signal handler. Keeps errno. */
void control_due(struct duty *duty, uint64_t due_ns);
/* now_ns + interval_ns; DUTY_NEVER if that is past the end of the clock. */
uint64_t control_after(uint64_t now_ns, uint64_t interval_ns);

/* A pool exists: from here on the thread may be made. */
void control_permit_thread(void);
/* Was the thread made, or tried to be made? */
extern atomic_bool control_started;
void control_make_thread(void);
/* Makes the thread if it is not there: memory was freed or is shared, or a duty is due. On a thread
 * of the program's. Does nothing before control_permit_thread. Keeps errno. A duty that was called
 * for earlier runs once the thread is there. */
static inline void control_ensure_thread(void)
{
    if (__builtin_expect(!atomic_load_explicit(&control_started, memory_order_relaxed), 0))
        control_make_thread();
}

/* The last open capture is over: duties that were put off can run. Any thread. */
void control_capture_closed(void);

#endif
