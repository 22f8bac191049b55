/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The control thread: one per process. It gives memory back when asked (by a signal, a touched file, an
 * interval) and when limits and timeouts say so. All signals are blocked on it, it holds no file
 * descriptor and no resource of the program's. To make it takes longer than to reserve address space (47 us,
 * H200), so the first allocation does without where nothing can be idle yet.
 */
#ifndef SHIM_CONTROL_H
#define SHIM_CONTROL_H

#include "shim/process/options.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The library has started: installs the signal handler, if one is wanted. */
void control_start(void);
/* A forked child: its signals are its own again. */
void control_leave_signal(void);
/* A pool is there. The thread is made now if options give it something to do, or if memory may be idle
 * before anything was freed (idle); else when it is needed. */
void control_pool_made(bool idle);
/* Is the thread there, or was it tried? */
extern atomic_bool control_there;
void control_make_thread(void);
/* Memory was freed, or is shared: the thread may have something to do from here on. On a thread of the
 * program's; nothing while there is no pool. Keeps errno. */
static inline void control_need(void)
{
    if (__builtin_expect(!atomic_load_explicit(&control_there, memory_order_relaxed), 0))
        control_make_thread();
}
/* The last open capture is over: what was put off can be done. Any thread. */
void control_capture_closed(void);

/* Something waits for the thread, if it is there: see ipc_answer. Any thread. */
void control_wake(void);

/* The program set GPUCACHE_EMPTY_CACHE to this value in its environment. */
void control_environ(const char *value);
/* Is such a request waiting? Looked at by every allocation. */
extern _Atomic bool control_requested __attribute__((visibility("hidden")));
/* Carries it out on the calling thread, so that it is done before the allocation returns. */
void control_serve_request(void);

#endif
