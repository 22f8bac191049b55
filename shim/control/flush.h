/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A flush gives idle memory of the pools back to the driver. This file knows what asks for one: a
 * signal, an interval, a touched file, the start of the library, the environment, and the pools'
 * limits and timeouts. The control thread makes all flushes but those of the environment. Each such
 * reason is a duty (thread.h) that needs calm: a flush synchronises, which would break a capture.
 */
#ifndef SHIM_FLUSH_H
#define SHIM_FLUSH_H

#include "shim/process/parse.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The library has started: installs the signal handler, if the options name a signal, and adds the
 * duties that the options ask for. */
void flush_start(void);
/* In a forked child: the signal has the program's handler again. */
void flush_leave_signal(void);
/* A pool exists. Makes the control thread if there is to be a page (publish.h), if options give the
 * thread something to do, or if memory may be idle before the program frees any (idle). Else
 * control_ensure_thread makes it later. */
void flush_pool_made(bool idle);

/* Gives idle memory back now, within the limits of *e, and waits for pending memory. `why` is
 * static. Returns the bytes. On the control thread or a thread of the program's; no capture may be
 * open. */
uint64_t flush(const struct empty_cache *e, uint64_t wait_ns, const char *why);

/* The program set GPUCACHE_EMPTY_CACHE to this value in its environment. */
void flush_request(const char *value);
/* Does such a request wait? Every allocation looks at it. */
extern _Atomic bool flush_requested __attribute__((visibility("hidden")));
/* Carries the request out on the calling thread, so that it is done before the allocation returns.
 * While a capture is open the request keeps waiting. */
void flush_serve_request(void);

#endif
