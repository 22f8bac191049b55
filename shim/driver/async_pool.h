/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's own pools of device memory: its stream-ordered pools (cudaMallocAsync), and the
 * memory that it keeps for graphs. They are caches as ours are, and programs set their release
 * threshold so high that nothing goes back by itself. So whatever gives idle memory of our pools
 * back trims these too. That is a request or a limit of the user's, so a threshold does not stand
 * against it.
 *
 * Which pools it knows: the default one of each device, once the program has made a stream-ordered
 * allocation, and those that the program has made, up to ASYNC_POOLS_MAX. Another current pool of a
 * device is one of these. A pool that was imported belongs to another process, which trims it. A
 * pool of the host's memory is none of a device. Of a device the contexts need not be known,
 * because a stream or a pool can be used while a context of another device is current
 * (async_pool_devices). Left out is the default pool of a device where the program has no primary
 * context, and never allocated with another context of it current. Memory of graphs counts where a
 * stream-ordered allocation was captured or made, and while the primary context is active.
 *
 * A trim waits for no GPU work. What was freed behind work counts as used until the work is done,
 * and stays. All calls are call scopes (call_scope.h), so no capture is broken.
 *
 * A handle may be destroyed while another thread is about to trim its pool. So:
 *  1. A thread takes a row before it uses the row's handle, and puts it back afterwards. No lock is
 *     held in between.
 *  2. A thread that destroys a pool marks the row as leaving, then waits until nobody has it. From
 *     then on it cannot be taken. If the driver refuses, the row stays.
 *  3. The end of a primary context may end all pools of its device. So a thread that may end it is
 *     counted, and waits as in 2. While there is one, no row of the device can be taken. If the
 *     context has ended, the pools that the program made are known no more. A pool that the program
 *     makes meanwhile may be of the life that ends, or of the next one. So it is never known.
 *  4. The waits end: a taken row is held over a few calls of the driver, which wait for no work and
 *     for no thread of the program. A thread that is itself in such a call, in a signal handler,
 *     does not wait.
 *  5. In a forked child nobody takes a row, and nobody waits.
 */
#ifndef SHIM_ASYNC_POOL_H
#define SHIM_ASYNC_POOL_H

#include "shim/driver/hooks.h"
#include "shim/stats/async_stats.h"

#include <stdbool.h>
#include <stdint.h>

enum { ASYNC_POOLS_MAX = 1024 };

/* The program is about to make a pool. Returns a mark. */
unsigned async_pool_make_begins(const CUmemPoolProps *props);
/* The driver has made this pool for the program. Any thread. */
void async_pool_made(CUmemoryPool pool, const CUmemPoolProps *props, unsigned mark);
/* The program is about to destroy the pool, and has done so (done: the driver agreed). */
void async_pool_destroy_begins(CUmemoryPool pool);
void async_pool_destroy_over(CUmemoryPool pool, bool done);
/* The same for all pools of the device (-1: of all), around a call that may end its primary
 * context. After it, asks the driver which contexts are active. */
void async_pool_context_begins(CUdevice device);
void async_pool_context_over(CUdevice device);

/* Gives idle memory of the device's pools back, and leaves keep_bytes of it. The default pool keeps
 * first, then those that the program has made, then graphs: graphs keep all or nothing. At most
 * most_bytes go, and graphs may give more. Returns the bytes. Any thread; keeps errno. */
uint64_t async_pool_trim(CUdevice device, uint64_t keep_bytes, uint64_t most_bytes);
/* The driver was out of memory: gives all of it back. True: some went, or did lately. */
bool async_pool_release(CUdevice device);
/* Gives back what was idle at each look since timeout_ns ago. On the control thread. */
uint64_t async_pool_expire(CUdevice device, uint64_t timeout_ns);
/* The figures; if the process leaves, the latest ones. async_returned_bytes never falls. Any
 * thread. */
void async_pool_stats(CUdevice device, struct async_stats *out);
/* Does the process have such pools at all? */
bool async_pool_any(void);
/* The devices whose pools may have memory: a bit for each device of a pool that the program has
 * made, and of an active primary context. If the process leaves, the latest answer. Any thread. */
uint64_t async_pool_devices(void);
/* Those where memory went back at some time, a bit for each. Asks nobody. Any thread. */
uint64_t async_pool_returned_devices(void);

#endif
