/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Giving idle memory back to the driver: on request, and when memory is short. limits.h has what
 * happens without a request. Lock held; drops it for driver calls.
 */
#ifndef POOL_RELEASE_H
#define POOL_RELEASE_H

#include <stdint.h>

struct pool;

/* Reserved, and neither live nor pending. */
uint64_t release_idle_bytes(const struct pool *p);
/* Releases idle chunks, whose work is complete and which were not used since unused_ns, until
 * want_bytes at least are back. Returns the bytes that came back. */
uint64_t release_idle(struct pool *p, uint64_t want_bytes, uint64_t unused_ns);
/* Learns what is complete; waits at most wait_ns for everything freed so far. */
void release_settle(struct pool *p, uint64_t wait_ns);

#endif
