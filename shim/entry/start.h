/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The start of the library, its end in a forked child, and the report when the process exits.
 */
#ifndef SHIM_START_H
#define SHIM_START_H

#include <stdbool.h>

/* Starts the library if no thread has done so. The driver must be known (hooks_init). False: the
 * library is off, or another thread is just starting it. Keeps errno. */
bool start_library(void);
/* The same, for a first call that needs the library: where another thread is just starting it, this
 * one waits for that. */
bool library_is_started(void);

/* For a wrapper that takes a lock of the library's before the library has started, ahead of that
 * lock. From the first call on, a child of fork() is off: in the parent another thread may have
 * held the lock, or left a count, that the child would wait for. 1. Each thread that takes such a
 * lock has registered the handler before, or has seen it registered. Two threads may both register
 * it, since it does the same a second time. 2. It does not run in a child whose fork began before:
 * of such a fork the thread may be in the middle, once in the life of a process. Keeps errno. */
bool library_is_off(void);

#endif
