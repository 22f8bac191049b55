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
 * held the lock, or left a count, that the child would wait for. Keeps errno.
 *  1. Each thread that takes such a lock has registered the handlers before, or has seen them
 *     registered. Two threads may both register them: they do the same a second time.
 *  2. A handler of the program's may call a wrapper in the child ahead of ours, and some forks run
 *     no handlers (clone, _Fork). In such a child a byte of the library's is 0, which is 1 in the
 *     parent. The wrapper then does what our handler would. Where the kernel has no such byte, or a
 *     filter forbids it, the number of the process differs. The wrapper then only calls the driver,
 *     because a child of vfork has the memory of its parent.
 *  3. Left out: a fork that was under way at the registration, once in the life of a process; a
 *     signal handler that forks in the middle of such a call and returns into
 *     it in the child; and a first call from a handler of fork(), over which C libraries 2.28 to
 *     2.35 hold the lock of the registration. */
bool library_is_off(void);

#endif
