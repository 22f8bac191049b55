/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The control thread: one per process, made with the first pool. It gives memory back when asked (by a
 * signal, a touched file, an interval) and when limits and timeouts say so. All signals are blocked on
 * it, it holds no file descriptor and no resource of the program's.
 */
#ifndef SHIM_CONTROL_H
#define SHIM_CONTROL_H

#include "shim/options.h"

#include <stdbool.h>

/* The library has started: installs the signal handler, if one is wanted. */
void control_start(void);
/* A forked child: its signals are its own again. */
void control_leave_signal(void);
/* A pool is there: makes the thread if it is the first. */
void control_pool_made(void);
/* The last open capture is over: what was put off can be done. Any thread. */
void control_capture_closed(void);

/* Something waits for the thread: see ipc_answer. Any thread. */
void control_wake(void);

/* The program set GPUCACHE_EMPTY_CACHE to this value in its environment. */
void control_environ(const char *value);
/* Is such a request waiting? Looked at by every allocation. */
extern _Atomic bool control_requested __attribute__((visibility("hidden")));
/* Carries it out on the calling thread, so that it is done before the allocation returns. */
void control_serve_request(void);

#endif
