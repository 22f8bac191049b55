/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A flush gives idle memory of the pools back to the driver. This file knows the reasons for one: a
 * signal (signal.h), an interval, a touched file, the library's start, the environment, limits and
 * timeouts.
 * The control thread makes all flushes but those of the environment. Each of its reasons is a duty
 * (thread.h) that needs calm: a flush synchronises, which would break a capture.
 *
 * Each flush also asks the packages that keep caches of their own (shim/framework/framework.h), and
 * does not wait for them. Their answer makes another flush due, which gives back what they freed.
 */
#ifndef SHIM_FLUSH_H
#define SHIM_FLUSH_H

#include "shim/framework/framework.h"
#include "shim/option/parse.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The library has started: installs the signal handler, if the options name a signal, and adds the
 * duties that the options ask for. */
void flush_start(void);
/* A pool exists. Makes the control thread if there is to be a page (publish.h), or if options give
 * the thread something to do. idle: memory may be idle before the program frees any, which is a
 * reason too. Otherwise control_ensure_thread makes the thread later. */
void flush_pool_made(bool idle);

/* An option changed: limits and timeouts, which the pools have already (flush_limits_changed),
 * GPUCACHE_EMPTY_CACHE (flush_policy_changed) or GPUCACHE_EMPTY_CACHE_FILE (flush_file_changed). On
 * the control thread. These make a duty due, which gives the memory back. False: the process has no
 * such device, or the file's folder is not there. */
void flush_limits_changed(void);
bool flush_policy_changed(void);
bool flush_file_changed(void);

/* GPUCACHE_EMPTY_CACHE=oom: where the driver has no memory left, all devices give theirs back. */
extern atomic_bool flush_at_oom __attribute__((visibility("hidden")));

/* Gives idle memory back now, within the limits of *e, and waits for pending memory. `why` is
 * static. Returns the bytes. On the control thread or a thread of the program's; no capture may be
 * open. */
uint64_t flush_pools(const struct empty_cache *e, uint64_t wait_ns, const char *why);

/* For a request that tells the packages' answer. Asks them; no flush follows by itself. Returns the
 * question's number (framework.h). */
uint64_t flush_ask_frameworks(void);
/* The request waits no longer. Fills NUM_FRAMEWORKS results. False: no answer yet, or a package was
 * busy. Then a flush with these settings follows the answer. Both on the control thread. */
bool flush_takes_answer(const struct empty_cache *e, uint64_t question,
                        struct framework_result *results);

/* The program set GPUCACHE_EMPTY_CACHE to this value in its environment. Allocations find
 * STATE_DETOUR_FLUSH until one has carried it out. */
void flush_request(const char *value);
/* Carries the request out on the calling thread, so that it is done before the allocation returns.
 * While a capture is open the request keeps waiting. */
void flush_serve_request(void);

#endif
